//! DREP: the reply to a request to disconnect.

use ibwire::{CommId, PrivateData};
use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute_mut, transmute_ref};

use super::PAYLOAD_LEN;

/// The answer to a DREQ (IBTA vol. 1, 12.6.11; spec/cm.md 2.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drep {
    /// The sender's ID.
    pub local_comm_id: CommId,
    /// The receiver's ID.
    pub remote_comm_id: CommId,
    /// The application's bytes.
    pub private_data: PrivateData<224>,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DrepWire {
    local_comm_id: U32,
    remote_comm_id: U32,
    private_data: [u8; 224],
}

const _: () = assert!(size_of::<DrepWire>() == PAYLOAD_LEN);

impl Drep {
    pub(super) fn decode(payload: &[u8; PAYLOAD_LEN]) -> Self {
        let wire: &DrepWire = transmute_ref!(payload);
        Self {
            local_comm_id: CommId(wire.local_comm_id.get()),
            remote_comm_id: CommId(wire.remote_comm_id.get()),
            private_data: PrivateData::from_area(wire.private_data),
        }
    }

    pub(super) fn encode(&self, payload: &mut [u8; PAYLOAD_LEN]) {
        let wire: &mut DrepWire = transmute_mut!(payload);
        *wire = DrepWire {
            local_comm_id: U32::new(self.local_comm_id.0),
            remote_comm_id: U32::new(self.remote_comm_id.0),
            private_data: *self.private_data.as_bytes(),
        };
    }
}
