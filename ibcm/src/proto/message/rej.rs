//! REJ: a request, a reply or a connection is rejected.

use ibwire::{CommId, PrivateData, RejReason};
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute_mut, transmute_ref};

use super::{Ari, MessageId, PAYLOAD_LEN};

/// A rejection (IBTA vol. 1, 12.6.7; spec/cm.md 2.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rej {
    /// The rejecter's ID, none if it assigned none.
    pub local_comm_id: CommId,
    /// The ID of who is rejected, none if the rejecter never learnt it.
    pub remote_comm_id: CommId,
    /// Which message is rejected: REQ, REP or no message in particular.
    pub message: MessageId,
    /// Why.
    pub reason: RejReason,
    /// Additional information; [`RejectInfo::decode`](super::RejectInfo::decode) reads it by the reason.
    pub ari: Ari,
    /// The application's bytes.
    pub private_data: PrivateData<148>,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RejWire {
    local_comm_id: U32,
    remote_comm_id: U32,
    /// MessageRejected 7:6.
    message: u8,
    /// RejectInfoLength 7:1.
    ari_len: u8,
    reason: U16,
    ari: [u8; Ari::MAX_LEN],
    private_data: [u8; 148],
}

const _: () = assert!(size_of::<RejWire>() == PAYLOAD_LEN);

impl Rej {
    pub(super) fn decode(payload: &[u8; PAYLOAD_LEN]) -> Self {
        let wire: &RejWire = transmute_ref!(payload);
        Self {
            local_comm_id: CommId(wire.local_comm_id.get()),
            remote_comm_id: CommId(wire.remote_comm_id.get()),
            message: MessageId::truncate(wire.message >> 6),
            reason: RejReason(wire.reason.get()),
            ari: Ari::from_area(&wire.ari, usize::from(wire.ari_len >> 1)),
            private_data: PrivateData::from_area(wire.private_data),
        }
    }

    pub(super) fn encode(&self, payload: &mut [u8; PAYLOAD_LEN]) {
        let wire: &mut RejWire = transmute_mut!(payload);
        *wire = RejWire {
            local_comm_id: U32::new(self.local_comm_id.0),
            remote_comm_id: U32::new(self.remote_comm_id.0),
            message: self.message.get() << 6,
            ari_len: (self.ari.as_bytes().len() as u8) << 1,
            reason: U16::new(self.reason.0),
            ari: *self.ari.area(),
            private_data: *self.private_data.as_bytes(),
        };
    }
}
