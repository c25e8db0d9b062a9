//! APR: the answer to a LAP.

use ibwire::{CommId, PrivateData};
use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute_mut, transmute_ref};

use super::{ApStatus, Ari, PAYLOAD_LEN};

/// Alternate path response, from the passive to the active side (IBTA vol. 1, 12.8.2; spec/cm.md 2.8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Apr {
    /// The sender's ID.
    pub local_comm_id: CommId,
    /// The receiver's ID.
    pub remote_comm_id: CommId,
    /// Whether the path is loaded, or why not.
    pub status: ApStatus,
    /// What goes with the status; [`ApInfo::decode`](super::ApInfo::decode) reads it.
    pub info: Ari,
    /// The application's bytes.
    pub private_data: PrivateData<148>,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct AprWire {
    local_comm_id: U32,
    remote_comm_id: U32,
    info_len: u8,
    status: u8,
    reserved_10: [u8; 2],
    info: [u8; Ari::MAX_LEN],
    private_data: [u8; 148],
}

const _: () = assert!(size_of::<AprWire>() == PAYLOAD_LEN);

impl Apr {
    pub(super) fn decode(payload: &[u8; PAYLOAD_LEN]) -> Self {
        let wire: &AprWire = transmute_ref!(payload);
        Self {
            local_comm_id: CommId(wire.local_comm_id.get()),
            remote_comm_id: CommId(wire.remote_comm_id.get()),
            status: ApStatus(wire.status),
            info: Ari::from_area(&wire.info, usize::from(wire.info_len)),
            private_data: PrivateData::from_area(wire.private_data),
        }
    }

    pub(super) fn encode(&self, payload: &mut [u8; PAYLOAD_LEN]) {
        let wire: &mut AprWire = transmute_mut!(payload);
        *wire = AprWire {
            local_comm_id: U32::new(self.local_comm_id.0),
            remote_comm_id: U32::new(self.remote_comm_id.0),
            info_len: self.info.as_bytes().len() as u8,
            status: self.status.0,
            reserved_10: [0; 2],
            info: *self.info.area(),
            private_data: *self.private_data.as_bytes(),
        };
    }
}
