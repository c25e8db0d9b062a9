//! The path block of a REQ.

use ibwire::{FlowLabel, Gid, Lid, Rate, ServiceLevel, TimeCode};
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// One of the two paths of a REQ, seen from its sender: "local" is the sender's port (IBTA vol. 1, 12.6.5;
/// spec/cm.md 2.1).
///
/// The default, all zero, is no path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathBlock {
    /// The sender's port. [`Lid::PERMISSIVE`] on a routed path; that or 0 on RoCE.
    pub local_lid: Lid,
    /// The receiver's port.
    pub remote_lid: Lid,
    /// The sender's port.
    pub local_gid: Gid,
    /// The receiver's port.
    pub remote_gid: Gid,
    /// For the GRH.
    pub flow_label: FlowLabel,
    /// The path's static rate; 6 bits go onto the wire.
    pub rate: Rate,
    /// For the GRH.
    pub traffic_class: u8,
    /// For the GRH.
    pub hop_limit: u8,
    /// The path's service level.
    pub sl: ServiceLevel,
    /// Whether the path stays in its subnet, so that packets need no GRH.
    pub subnet_local: bool,
    /// The ack timeout that the receiver's QP should use.
    pub local_ack_timeout: TimeCode,
}

impl PathBlock {
    /// No path.
    pub const NONE: Self = Self {
        local_lid: Lid::NONE,
        remote_lid: Lid::NONE,
        local_gid: Gid::UNSPECIFIED,
        remote_gid: Gid::UNSPECIFIED,
        flow_label: FlowLabel::truncate(0),
        rate: Rate::PORT_CURRENT,
        traffic_class: 0,
        hop_limit: 0,
        sl: ServiceLevel::truncate(0),
        subnet_local: false,
        local_ack_timeout: TimeCode::truncate(0),
    };
}

impl Default for PathBlock {
    fn default() -> Self {
        Self::NONE
    }
}

/// The block as it lies in the REQ.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct PathWire {
    local_lid: U16,
    remote_lid: U16,
    local_gid: [u8; 16],
    remote_gid: [u8; 16],
    /// Flow label in bits 31:12, rate in bits 5:0.
    flow_label_rate: U32,
    traffic_class: u8,
    hop_limit: u8,
    /// SL in bits 7:4, SubnetLocal in bit 3.
    sl_subnet_local: u8,
    /// Ack timeout in bits 7:3. Bit 2 of the alternate block is SAPSupported, a field of the REQ.
    ack_timeout: u8,
}

const _: () = assert!(size_of::<PathWire>() == 44);

impl PathWire {
    pub(super) fn decode(&self) -> PathBlock {
        let word = self.flow_label_rate.get();
        PathBlock {
            local_lid: Lid(self.local_lid.get()),
            remote_lid: Lid(self.remote_lid.get()),
            local_gid: Gid(self.local_gid),
            remote_gid: Gid(self.remote_gid),
            flow_label: FlowLabel::truncate(word >> 12),
            rate: Rate((word & 0x3f) as u8),
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            sl: ServiceLevel::truncate(self.sl_subnet_local >> 4),
            subnet_local: self.sl_subnet_local & 0x08 != 0,
            local_ack_timeout: TimeCode::truncate(self.ack_timeout >> 3),
        }
    }

    pub(super) fn encode(path: &PathBlock) -> Self {
        Self {
            local_lid: U16::new(path.local_lid.0),
            remote_lid: U16::new(path.remote_lid.0),
            local_gid: path.local_gid.0,
            remote_gid: path.remote_gid.0,
            flow_label_rate: U32::new(path.flow_label.get() << 12 | u32::from(path.rate.0 & 0x3f)),
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            sl_subnet_local: path.sl.get() << 4 | u8::from(path.subnet_local) << 3,
            ack_timeout: path.local_ack_timeout.get() << 3,
        }
    }

    pub(super) const fn sap_supported(&self) -> bool {
        self.ack_timeout & 0x04 != 0
    }

    pub(super) const fn with_sap_supported(mut self, sap: bool) -> Self {
        self.ack_timeout |= (sap as u8) << 2;
        self
    }
}
