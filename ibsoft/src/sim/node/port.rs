//! A port of a node: what its management attributes say.

use ibdev::{GidEntry, GidKind, LinkLayer, PortAttr, PortTables};
use ibsa::record::{
    LinkSpeed, LinkSpeedExt, LinkWidth, PortCapabilities, PortInfo, PortPhysicalState, PortState, VlWeight,
};
use ibwire::{Gid, Guid, Lid, Mtu, PKey, Rate, TimeCode};

/// P_Keys that a port holds, in blocks of 32.
pub(crate) const PKEYS: usize = 64;
/// GUIDs that a port holds, in blocks of 8.
pub(crate) const GUIDS: usize = 32;
/// SLs.
pub(crate) const SLS: usize = 16;
/// The prefix of GIDs unless a manager sets another one.
const LINK_LOCAL: u64 = 0xfe80 << 48;

/// What a port is made as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortShape {
    pub number: u8,
    /// Zero at the external ports of switches, which have no address of their own.
    pub guid: Guid,
    pub mtu: Mtu,
    pub rate: Rate,
}

/// A port.
#[derive(Debug)]
pub(crate) struct Port {
    pub info: PortInfo,
    /// The rate of its link.
    pub rate: Rate,
    pub pkeys: Vec<PKey>,
    pub guids: Vec<Guid>,
    /// VLs by SL for packets that came in by a port (0 at a CA) and leave by this one; those not here go by VL 0.
    sl_to_vl: Vec<(u8, [u8; SLS])>,
    /// Low priority entries, then high priority ones.
    pub arbitration: [Vec<VlWeight>; 4],
}

impl Port {
    pub(crate) fn new(shape: PortShape) -> Self {
        let (width, speed, extended) = link_of(shape.rate);
        let (mut capabilities, mut guid_cap) = (PortCapabilities::empty(), 0);
        if shape.guid.0 != 0 {
            guid_cap = GUIDS as u8;
            capabilities |= PortCapabilities::TRAP
                | PortCapabilities::AUTOMATIC_MIGRATION
                | PortCapabilities::SL_MAPPING
                | PortCapabilities::SYSTEM_IMAGE_GUID
                | PortCapabilities::EXTENDED_SPEEDS
                | PortCapabilities::COMMUNICATION_MANAGEMENT
                | PortCapabilities::CAPABILITY_MASK_NOTICE
                | PortCapabilities::CLIENT_REREGISTRATION;
        }
        let info = PortInfo {
            gid_prefix: LINK_LOCAL,
            capability_mask: capabilities,
            local_port_num: shape.number,
            link_width_enabled: width,
            link_width_supported: width,
            link_width_active: width,
            link_speed_supported: speed,
            link_speed_enabled: speed,
            link_speed_active: speed,
            link_speed_ext_supported: extended,
            link_speed_ext_enabled: extended,
            link_speed_ext_active: extended,
            port_state: PortState::DOWN,
            port_physical_state: PortPhysicalState::POLLING,
            link_down_default_state: PortPhysicalState::POLLING,
            neighbor_mtu: shape.mtu,
            mtu_cap: shape.mtu,
            vl_cap: 4,
            operational_vls: 4,
            vl_arbitration_high_cap: 64,
            vl_arbitration_low_cap: 64,
            // For ever: no packet is dropped for waiting.
            hoq_life: TimeCode::MAX,
            guid_cap,
            subnet_timeout: TimeCode::truncate(18),
            resp_time: TimeCode::truncate(16),
            ..PortInfo::default()
        };
        let mut pkeys = vec![PKey(0); PKEYS];
        pkeys[0] = PKey::DEFAULT;
        let mut guids = vec![Guid(0); if shape.guid.0 == 0 { 0 } else { GUIDS }];
        if let Some(first) = guids.first_mut() {
            *first = shape.guid;
        }
        let table = || vec![VlWeight::default(); 32];
        Self {
            info,
            rate: shape.rate,
            pkeys,
            guids,
            sl_to_vl: Vec::new(),
            arbitration: [table(), table(), table(), table()],
        }
    }

    /// Forgets what it was told.
    pub(crate) fn reset(&mut self) {
        let shape = PortShape {
            number: self.info.local_port_num,
            guid: self.guids.first().copied().unwrap_or_default(),
            mtu: self.info.mtu_cap,
            rate: self.rate,
        };
        let (state, physical) = (self.info.port_state, self.info.port_physical_state);
        *self = Self::new(shape);
        (self.info.port_state, self.info.port_physical_state) = (state, physical);
    }

    /// The VL of packets of this SL that came in by `entered` and leave by this port; 15 drops them.
    pub(crate) fn vl(&self, entered: u8, sl: u8) -> u8 {
        let table = self.sl_to_vl.iter().find(|(port, _)| *port == entered);
        table.map_or(0, |(_, vls)| vls[usize::from(sl) % SLS])
    }

    pub(crate) fn vls(&self, entered: u8) -> [u8; SLS] {
        self.sl_to_vl.iter().find(|(port, _)| *port == entered).map_or([0; SLS], |(_, vls)| *vls)
    }

    pub(crate) fn set_vls(&mut self, entered: u8, vls: [u8; SLS]) {
        self.sl_to_vl.retain(|(port, _)| *port != entered);
        self.sl_to_vl.push((entered, vls));
    }

    /// How many data VLs are in use.
    pub(crate) fn data_vls(&self) -> u8 {
        vls_of(self.info.operational_vls)
    }

    pub(crate) fn is_active(&self) -> bool {
        self.info.port_state == PortState::ACTIVE
    }

    pub(crate) fn is_disabled(&self) -> bool {
        self.info.port_physical_state == PortPhysicalState::DISABLED
    }

    /// Whether the port answers to this LID.
    pub(crate) fn has_lid(&self, lid: Lid) -> bool {
        self.info.lid != Lid::NONE && (lid.0 ^ self.info.lid.0) >> self.info.lmc == 0
    }

    /// Whether a P_Key of the port's table lets in packets with this one.
    pub(crate) fn admits(&self, pkey: PKey) -> bool {
        self.pkeys.iter().any(|own| own.matches(pkey))
    }

    /// Whether who has this port's table may send packets with a P_Key: a limited member of a partition only as such.
    pub(crate) fn grants(&self, pkey: PKey) -> bool {
        let grants =
            |own: &PKey| own.base() == pkey.base() && (own.is_full_member() || !pkey.is_full_member());
        pkey.base() != 0 && self.pkeys.iter().any(grants)
    }

    /// The GID at this index of the table.
    pub(crate) fn gid(&self, index: usize) -> Option<Gid> {
        let guid = self.guids.get(index).filter(|guid| guid.0 != 0)?;
        Some(Gid::from_parts(self.info.gid_prefix, *guid))
    }

    /// The port as its HCA shows it.
    pub(crate) fn tables(&self, number: u8) -> PortTables {
        let state = match self.info.port_state {
            PortState::ACTIVE => ibdev::PortState::Active,
            PortState::DOWN => ibdev::PortState::Down,
            _ => ibdev::PortState::Initializing,
        };
        let attr = PortAttr {
            number,
            state,
            link_layer: LinkLayer::InfiniBand,
            active_mtu: self.info.neighbor_mtu,
            lid: self.info.lid,
            lmc: self.info.lmc,
            sm_lid: self.info.master_sm_lid,
            sm_sl: self.info.master_sm_sl,
            rate: self.rate,
        };
        let gids = (0..self.guids.len()).filter_map(|index| {
            Some(GidEntry { index: index as u16, gid: self.gid(index)?, kind: GidKind::Infiniband })
        });
        let used = self.pkeys.iter().rposition(|pkey| pkey.0 != 0).map_or(0, |last| last + 1);
        PortTables { attr, gids: gids.collect(), pkeys: self.pkeys[..used].to_vec() }
    }
}

/// How many data VLs a code of VLCap stands for.
pub(crate) const fn vls_of(code: u8) -> u8 {
    match code {
        0 | 1 => 1,
        2 => 2,
        3 => 4,
        4 => 8,
        _ => 15,
    }
}

/// The width and speeds that make a rate; four lanes of SDR for one that is none.
fn link_of(rate: Rate) -> (LinkWidth, LinkSpeed, LinkSpeedExt) {
    let widths = [LinkWidth::X4, LinkWidth::X1, LinkWidth::X8, LinkWidth::X12, LinkWidth::X2];
    let speeds = [
        (LinkSpeed::SDR, LinkSpeedExt::empty()),
        (LinkSpeed::DDR, LinkSpeedExt::empty()),
        (LinkSpeed::QDR, LinkSpeedExt::empty()),
        (LinkSpeed::QDR, LinkSpeedExt::FDR),
        (LinkSpeed::QDR, LinkSpeedExt::EDR),
        (LinkSpeed::QDR, LinkSpeedExt::HDR),
        (LinkSpeed::QDR, LinkSpeedExt::NDR),
    ];
    let all = widths
        .iter()
        .flat_map(|width| speeds.iter().map(move |(speed, extended)| (*width, *speed, *extended)));
    let makes = |(width, speed, extended): &(LinkWidth, LinkSpeed, LinkSpeedExt)| {
        let info = PortInfo {
            link_width_active: *width,
            link_speed_active: *speed,
            link_speed_ext_active: *extended,
            ..PortInfo::default()
        };
        info.rate() == Some(rate)
    };
    all.into_iter().find(makes).unwrap_or((LinkWidth::X4, LinkSpeed::SDR, LinkSpeedExt::empty()))
}
