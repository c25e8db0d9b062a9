//! LAP: a request to load an alternate path.

use ibwire::{CommId, FlowLabel, Gid, Lid, PrivateData, Qpn, Rate, ServiceLevel, TimeCode};
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute_mut, transmute_ref};

use super::number::{u24, u24_bytes};
use super::{PAYLOAD_LEN, PathBlock};

/// Load alternate path, from the active to the passive side (IBTA vol. 1, 12.8.1; spec/cm.md 2.7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lap {
    /// The sender's ID.
    pub local_comm_id: CommId,
    /// The receiver's ID.
    pub remote_comm_id: CommId,
    /// The QP of the **receiver**.
    pub remote_qpn: Qpn,
    /// Within which time the receiver must answer; flight time comes on top.
    pub remote_cm_response_timeout: TimeCode,
    /// The path, as its sender sees it. On the wire its fields stand in another order than in a REQ.
    pub alternate: PathBlock,
    /// The application's bytes.
    pub private_data: PrivateData<168>,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LapWire {
    local_comm_id: U32,
    remote_comm_id: U32,
    reserved_8: [u8; 4],
    remote_qpn: [u8; 3],
    /// RemoteCMResponseTimeout 7:3.
    remote_timeout: u8,
    reserved_16: [u8; 4],
    local_lid: U16,
    remote_lid: U16,
    local_gid: [u8; 16],
    remote_gid: [u8; 16],
    /// Flow label in bits 31:12, traffic class in bits 7:0.
    flow_label_class: U32,
    hop_limit: u8,
    /// Rate in bits 5:0.
    rate: u8,
    /// SL in bits 7:4, SubnetLocal in bit 3.
    sl_subnet_local: u8,
    /// Ack timeout in bits 7:3.
    ack_timeout: u8,
    private_data: [u8; 168],
}

const _: () = assert!(size_of::<LapWire>() == PAYLOAD_LEN);

impl Lap {
    pub(super) fn decode(payload: &[u8; PAYLOAD_LEN]) -> Self {
        let wire: &LapWire = transmute_ref!(payload);
        let word = wire.flow_label_class.get();
        Self {
            local_comm_id: CommId(wire.local_comm_id.get()),
            remote_comm_id: CommId(wire.remote_comm_id.get()),
            remote_qpn: Qpn::truncate(u24(wire.remote_qpn)),
            remote_cm_response_timeout: TimeCode::truncate(wire.remote_timeout >> 3),
            alternate: PathBlock {
                local_lid: Lid(wire.local_lid.get()),
                remote_lid: Lid(wire.remote_lid.get()),
                local_gid: Gid(wire.local_gid),
                remote_gid: Gid(wire.remote_gid),
                flow_label: FlowLabel::truncate(word >> 12),
                rate: Rate(wire.rate & 0x3f),
                traffic_class: word as u8,
                hop_limit: wire.hop_limit,
                sl: ServiceLevel::truncate(wire.sl_subnet_local >> 4),
                subnet_local: wire.sl_subnet_local & 0x08 != 0,
                local_ack_timeout: TimeCode::truncate(wire.ack_timeout >> 3),
            },
            private_data: PrivateData::from_area(wire.private_data),
        }
    }

    pub(super) fn encode(&self, payload: &mut [u8; PAYLOAD_LEN]) {
        let wire: &mut LapWire = transmute_mut!(payload);
        let path = &self.alternate;
        *wire = LapWire {
            local_comm_id: U32::new(self.local_comm_id.0),
            remote_comm_id: U32::new(self.remote_comm_id.0),
            reserved_8: [0; 4],
            remote_qpn: u24_bytes(self.remote_qpn.get()),
            remote_timeout: self.remote_cm_response_timeout.get() << 3,
            reserved_16: [0; 4],
            local_lid: U16::new(path.local_lid.0),
            remote_lid: U16::new(path.remote_lid.0),
            local_gid: path.local_gid.0,
            remote_gid: path.remote_gid.0,
            flow_label_class: U32::new(path.flow_label.get() << 12 | u32::from(path.traffic_class)),
            hop_limit: path.hop_limit,
            rate: path.rate.0 & 0x3f,
            sl_subnet_local: path.sl.get() << 4 | u8::from(path.subnet_local) << 3,
            ack_timeout: path.local_ack_timeout.get() << 3,
            private_data: *self.private_data.as_bytes(),
        };
    }
}
