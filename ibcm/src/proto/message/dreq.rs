//! DREQ: a request to disconnect.

use ibwire::{CommId, PrivateData, Qpn};
use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute_mut, transmute_ref};

use super::PAYLOAD_LEN;
use super::number::{u24, u24_bytes};

/// A request to disconnect (IBTA vol. 1, 12.6.10; spec/cm.md 2.6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dreq {
    /// The sender's ID.
    pub local_comm_id: CommId,
    /// The receiver's ID.
    pub remote_comm_id: CommId,
    /// The QP of the **receiver**.
    pub remote_qpn: Qpn,
    /// The application's bytes.
    pub private_data: PrivateData<220>,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DreqWire {
    local_comm_id: U32,
    remote_comm_id: U32,
    remote_qpn: [u8; 3],
    reserved_11: u8,
    private_data: [u8; 220],
}

const _: () = assert!(size_of::<DreqWire>() == PAYLOAD_LEN);

impl Dreq {
    pub(super) fn decode(payload: &[u8; PAYLOAD_LEN]) -> Self {
        let wire: &DreqWire = transmute_ref!(payload);
        Self {
            local_comm_id: CommId(wire.local_comm_id.get()),
            remote_comm_id: CommId(wire.remote_comm_id.get()),
            remote_qpn: Qpn::truncate(u24(wire.remote_qpn)),
            private_data: PrivateData::from_area(wire.private_data),
        }
    }

    pub(super) fn encode(&self, payload: &mut [u8; PAYLOAD_LEN]) {
        let wire: &mut DreqWire = transmute_mut!(payload);
        *wire = DreqWire {
            local_comm_id: U32::new(self.local_comm_id.0),
            remote_comm_id: U32::new(self.remote_comm_id.0),
            remote_qpn: u24_bytes(self.remote_qpn.get()),
            reserved_11: 0,
            private_data: *self.private_data.as_bytes(),
        };
    }
}
