//! Ports: PortInfo, PortInfoRecord, PortInfoExtendedRecord.

use std::fmt;

use ibwire::mad::AttributeId;
use ibwire::{Lid, Mtu, Rate, ServiceLevel, TimeCode};

use super::bits::{be16, be32, be64, byte, bytes};
use super::code::{
    LinkSpeed, LinkSpeedExt, LinkSpeedExt2, LinkWidth, PortCapabilities, PortCapabilities2,
    PortPhysicalState, PortState,
};
use super::layout::{Masked, Record, layout};

layout! {
    /// PortInfo (IBTA vol. 1, 14.2.5.6; spec/sa.md 3.4.2).
    pub struct PortInfo, "PortInfo", 64 bytes {
        /// The management key; 0 for who may not see it.
        m_key: u64 = be64(0) => mask(0), secret;
        /// Subnet prefix of the port's GIDs; 0 is the default prefix.
        gid_prefix: u64 = be64(8) => mask(1);
        /// Base LID.
        lid: Lid = be16(16) => mask(2);
        /// LID of the master SM.
        master_sm_lid: Lid = be16(18) => mask(3);
        /// What the port can do.
        capability_mask: PortCapabilities = be32(20) => mask(4);
        /// A diagnostic code, 0 if all is well.
        diag_code: u16 = be16(24) => mask(5);
        /// How long the M_Key protects without the SM, seconds; 0 is for ever.
        m_key_lease_period: u16 = be16(26) => mask(6);
        /// The port by which the request for this came in.
        local_port_num: u8 = byte(28) => mask(7);
        /// Widths that are allowed.
        link_width_enabled: LinkWidth = byte(29) => mask(8);
        /// Widths that are possible.
        link_width_supported: LinkWidth = byte(30) => mask(9);
        /// The width in use.
        link_width_active: LinkWidth = byte(31) => mask(10);
        /// Speeds up to QDR that are possible.
        link_speed_supported: LinkSpeed = byte(32).bits(7, 4) => mask(11);
        /// Logical state.
        port_state: PortState = byte(32).bits(3, 0) => mask(12);
        /// Physical state.
        port_physical_state: PortPhysicalState = byte(33).bits(7, 4) => mask(13);
        /// The state after the link went down, sleep or polling.
        link_down_default_state: PortPhysicalState = byte(33).bits(3, 0) => mask(14);
        /// What the M_Key protects, 2 bits.
        m_key_protect_bits: u8 = byte(34).bits(7, 6) => mask(15);
        /// The port has 2^LMC LIDs.
        lmc: u8 = byte(34).bits(2, 0) => mask(17);
        /// The speed in use, if it is not an extended one.
        link_speed_active: LinkSpeed = byte(35).bits(7, 4) => mask(18);
        /// Speeds up to QDR that are allowed.
        link_speed_enabled: LinkSpeed = byte(35).bits(3, 0) => mask(19);
        /// The MTU of this link.
        neighbor_mtu: Mtu = byte(36).bits(7, 4) => mask(20);
        /// SL of packets to the master SM.
        master_sm_sl: ServiceLevel = byte(36).bits(3, 0) => mask(21);
        /// Data VLs that are possible: 1 is VL0, 2 is VL0 to 1, 3 is to 3, 4 is to 7, 5 is to 14.
        vl_cap: u8 = byte(37).bits(7, 4) => mask(22);
        /// What the SM shall keep when it configures the port, 4 bits.
        init_type: u8 = byte(37).bits(3, 0) => mask(23);
        /// How much high priority traffic may pass before low priority has its turn.
        vl_high_limit: u8 = byte(38) => mask(24);
        /// Entries of the high priority arbitration table.
        vl_arbitration_high_cap: u8 = byte(39) => mask(25);
        /// Entries of the low priority arbitration table.
        vl_arbitration_low_cap: u8 = byte(40) => mask(26);
        /// What the SM did keep, 4 bits.
        init_type_reply: u8 = byte(41).bits(7, 4) => mask(27);
        /// The largest MTU that is possible.
        mtu_cap: Mtu = byte(41).bits(3, 0) => mask(28);
        /// Packets lost in a row that stall a VL, 3 bits.
        vl_stall_count: u8 = byte(42).bits(7, 5) => mask(29);
        /// How long a packet may wait at the head of a queue.
        hoq_life: TimeCode = byte(42).bits(4, 0) => mask(30);
        /// Data VLs in use, as in `vl_cap`.
        operational_vls: u8 = byte(43).bits(7, 4) => mask(31);
        /// Whether P_Keys are enforced on packets that come in.
        partition_enforcement_inbound: bool = byte(43).bits(3, 3) => mask(32);
        /// Whether P_Keys are enforced on packets that go out.
        partition_enforcement_outbound: bool = byte(43).bits(2, 2) => mask(33);
        /// Whether raw packets that come in are dropped.
        filter_raw_inbound: bool = byte(43).bits(1, 1) => mask(34);
        /// Whether raw packets that go out are dropped.
        filter_raw_outbound: bool = byte(43).bits(0, 0) => mask(35);
        /// MADs with a wrong M_Key.
        m_key_violations: u16 = be16(44) => mask(36);
        /// Packets with a wrong P_Key.
        p_key_violations: u16 = be16(46) => mask(37);
        /// Packets with a wrong Q_Key.
        q_key_violations: u16 = be16(48) => mask(38);
        /// Entries of the GUID table.
        guid_cap: u8 = byte(50) => mask(39);
        /// Asks the port's users to register again what they had at the SA.
        client_reregister: bool = byte(51).bits(7, 7) => mask(40);
        /// Whether traps of wrong P_Keys in multicast are suppressed, 2 bits.
        multicast_p_key_trap_suppression: u8 = byte(51).bits(6, 5) => mask(41);
        /// How long a packet travels through the subnet at most.
        subnet_timeout: TimeCode = byte(51).bits(4, 0) => mask(42);
        /// How long the port takes for an answer at most.
        resp_time: TimeCode = byte(52).bits(4, 0) => mask(44);
        /// Errors of the link that raise a trap, 4 bits.
        local_phy_errors: u8 = byte(53).bits(7, 4) => mask(45);
        /// Buffer overruns that raise a trap, 4 bits.
        overrun_errors: u8 = byte(53).bits(3, 0) => mask(46);
        /// How many credits the port would like.
        max_credit_hint: u16 = be16(54) => mask(47);
        /// The speed in use from XDR on.
        link_speed_ext_active2: LinkSpeedExt2 = byte(56).bits(6, 5) => unmasked;
        /// Speeds from XDR on that are possible.
        link_speed_ext_supported2: LinkSpeedExt2 = byte(56).bits(4, 3) => unmasked;
        /// Speeds from XDR on that are allowed.
        link_speed_ext_enabled2: LinkSpeedExt2 = byte(56).bits(2, 0) => unmasked;
        /// Round trip of the link, in units of 4 ns, 24 bits.
        link_round_trip_latency: u32 = be32(56).bits(23, 0) => mask(49);
        /// What else the port can do.
        capability_mask2: PortCapabilities2 = be16(60) => mask(50);
        /// The speed in use from FDR on; none if `link_speed_active` counts.
        link_speed_ext_active: LinkSpeedExt = byte(62).bits(7, 4) => mask(51);
        /// Speeds from FDR on that are possible.
        link_speed_ext_supported: LinkSpeedExt = byte(62).bits(3, 0) => mask(52);
        /// Speeds from FDR on that are allowed.
        link_speed_ext_enabled: LinkSpeedExt = byte(63).bits(4, 0) => mask(54);
    }
}

impl PortInfo {
    /// The rate of the link, from its width and speed; `None` if one of them is unknown (spec/sa.md 4.2).
    pub fn rate(&self) -> Option<Rate> {
        let lanes = match self.link_width_active {
            LinkWidth::X1 => 1,
            LinkWidth::X2 => 2,
            LinkWidth::X4 => 4,
            LinkWidth::X8 => 8,
            LinkWidth::X12 => 12,
            _ => return None,
        };
        let rates: &[(u8, Rate)] = match self.lane_speed()? {
            Lane::Sdr => &[
                (1, Rate::GBPS_2_5),
                (2, Rate::GBPS_5),
                (4, Rate::GBPS_10),
                (8, Rate::GBPS_20),
                (12, Rate::GBPS_30),
            ],
            Lane::Ddr => &[
                (1, Rate::GBPS_5),
                (2, Rate::GBPS_10),
                (4, Rate::GBPS_20),
                (8, Rate::GBPS_40),
                (12, Rate::GBPS_60),
            ],
            Lane::Qdr => &[
                (1, Rate::GBPS_10),
                (2, Rate::GBPS_20),
                (4, Rate::GBPS_40),
                (8, Rate::GBPS_80),
                (12, Rate::GBPS_120),
            ],
            Lane::Fdr => &[
                (1, Rate::GBPS_14),
                (2, Rate::GBPS_28),
                (4, Rate::GBPS_56),
                (8, Rate::GBPS_112),
                (12, Rate::GBPS_168),
            ],
            Lane::Edr => &[
                (1, Rate::GBPS_25),
                (2, Rate::GBPS_50),
                (4, Rate::GBPS_100),
                (8, Rate::GBPS_200),
                (12, Rate::GBPS_300),
            ],
            Lane::Hdr => &[
                (1, Rate::GBPS_50),
                (2, Rate::GBPS_100),
                (4, Rate::GBPS_200),
                (8, Rate::GBPS_400),
                (12, Rate::GBPS_600),
            ],
            Lane::Ndr => &[
                (1, Rate::GBPS_100),
                (2, Rate::GBPS_200),
                (4, Rate::GBPS_400),
                (8, Rate::GBPS_800),
                (12, Rate::GBPS_1200),
            ],
            Lane::Xdr => {
                &[(1, Rate::GBPS_200), (2, Rate::GBPS_400), (4, Rate::GBPS_800), (8, Rate::GBPS_1600)]
            }
        };
        rates.iter().find(|(width, _)| *width == lanes).map(|(_, rate)| *rate)
    }

    /// The newest generation that the active speeds name: the older fields keep a value beside it.
    fn lane_speed(&self) -> Option<Lane> {
        let xdr = self.capability_mask2.contains(PortCapabilities2::XDR)
            && self.link_speed_ext_active2 == LinkSpeedExt2::XDR;
        Some(match (self.link_speed_ext_active, self.link_speed_active) {
            _ if xdr => Lane::Xdr,
            (LinkSpeedExt::NDR, _) => Lane::Ndr,
            (LinkSpeedExt::HDR, _) => Lane::Hdr,
            (LinkSpeedExt::EDR, _) => Lane::Edr,
            (LinkSpeedExt::FDR, _) => Lane::Fdr,
            (ext, LinkSpeed::QDR) if ext.is_empty() => Lane::Qdr,
            (ext, LinkSpeed::DDR) if ext.is_empty() => Lane::Ddr,
            (ext, LinkSpeed::SDR) if ext.is_empty() => Lane::Sdr,
            _ => return None,
        })
    }

    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LID {}, {} ({})", self.lid.0, self.port_state, self.port_physical_state)?;
        match self.rate() {
            Some(rate) => write!(f, ", {} at {rate}", self.link_width_active)?,
            None => write!(f, ", {}", self.link_width_active)?,
        }
        write!(f, ", MTU {} of {}, LMC {}", self.neighbor_mtu, self.mtu_cap, self.lmc)
    }
}

/// Generations of lanes.
enum Lane {
    Sdr,
    Ddr,
    Qdr,
    Fdr,
    Edr,
    Hdr,
    Ndr,
    Xdr,
}

layout! {
    /// PortInfoRecord (spec/sa.md 3.4): one for each port, port 0 of switches included.
    pub struct PortInfoRecord, "PortInfoRecord", 68 bytes {
        /// Base LID of the end port that the port belongs to; of a switch's external ports the switch's.
        end_port_lid: Lid = be16(0) => mask(0);
        /// Number of the port.
        port_num: u8 = byte(2) => mask(1);
        /// Which form the rest has; 0 is the usual one.
        options: u8 = byte(3) => mask(2);
        /// The port. A query that names its capability masks can ask for ports which have at least those
        /// ([`PortInfoRecord::CAPABILITIES_AT_LEAST`]).
        port_info: PortInfo = bytes(4, 64) => inner(3);
    }
}

impl PortInfoRecord {
    /// The attribute modifier of a query that compares capability masks as sets: a port matches if it has all that are
    /// asked for. Without it they have to be equal.
    pub const CAPABILITIES_AT_LEAST: u32 = 1 << 31;

    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LID {} port {}: {}", self.end_port_lid.0, self.port_num, self.port_info)
    }
}

impl Record for PortInfoRecord {
    const ATTRIBUTE: AttributeId = AttributeId(0x0012);

    fn is_named(&self, wanted: &Self, mask: u64) -> bool {
        self.matches(wanted, mask & (1 << 1))
    }
}

layout! {
    /// PortInfoExtendedRecord: forward error correction of a port (spec/sa.md 3.20).
    pub struct PortInfoExtendedRecord, "PortInfoExtendedRecord", 68 bytes {
        /// The port's LID.
        lid: Lid = be16(0) => mask(0);
        /// Number of the port.
        port_num: u8 = byte(2) => mask(1);
        /// Which form the rest has.
        options: u8 = byte(3) => mask(2);
        /// What the port can do.
        cap_mask: u32 = be32(4) => unmasked;
        /// The mode in use.
        fec_mode_active: u16 = be16(8) => unmasked;
        /// Modes that are possible at FDR.
        fdr_fec_mode_supported: u16 = be16(10) => unmasked;
        /// Modes that are allowed at FDR.
        fdr_fec_mode_enabled: u16 = be16(12) => unmasked;
        /// Modes that are possible at EDR.
        edr_fec_mode_supported: u16 = be16(14) => unmasked;
        /// Modes that are allowed at EDR.
        edr_fec_mode_enabled: u16 = be16(16) => unmasked;
        /// Modes that are possible at HDR.
        hdr_fec_mode_supported: u16 = be16(18) => unmasked;
        /// Modes that are allowed at HDR.
        hdr_fec_mode_enabled: u16 = be16(20) => unmasked;
        /// Modes that are possible at NDR.
        ndr_fec_mode_supported: u16 = be16(22) => unmasked;
        /// Modes that are allowed at NDR.
        ndr_fec_mode_enabled: u16 = be16(24) => unmasked;
    }
}

impl PortInfoExtendedRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LID {} port {}: FEC mode {:#06x}", self.lid.0, self.port_num, self.fec_mode_active)
    }
}

impl Record for PortInfoExtendedRecord {
    const ATTRIBUTE: AttributeId = AttributeId(0x003e);
}
