//! SIDR_REQ: which queue pair serves a service?

use ibwire::{CommId, PKey, PrivateData, ServiceId};
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute_mut, transmute_ref};

use super::PAYLOAD_LEN;

/// A request to resolve a service ID to a datagram queue pair (IBTA vol. 1, 12.11; spec/cm.md 2.9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SidrReq {
    /// The sender's name for the request, the same in each repetition.
    pub request_id: CommId,
    /// The partition.
    pub pkey: PKey,
    /// Which service is wanted.
    pub service_id: ServiceId,
    /// The application's bytes.
    pub private_data: PrivateData<216>,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SidrReqWire {
    request_id: U32,
    pkey: U16,
    reserved_6: [u8; 2],
    service_id: U64,
    private_data: [u8; 216],
}

const _: () = assert!(size_of::<SidrReqWire>() == PAYLOAD_LEN);

impl SidrReq {
    pub(super) fn decode(payload: &[u8; PAYLOAD_LEN]) -> Self {
        let wire: &SidrReqWire = transmute_ref!(payload);
        Self {
            request_id: CommId(wire.request_id.get()),
            pkey: PKey(wire.pkey.get()),
            service_id: ServiceId(wire.service_id.get()),
            private_data: PrivateData::from_area(wire.private_data),
        }
    }

    pub(super) fn encode(&self, payload: &mut [u8; PAYLOAD_LEN]) {
        let wire: &mut SidrReqWire = transmute_mut!(payload);
        *wire = SidrReqWire {
            request_id: U32::new(self.request_id.0),
            pkey: U16::new(self.pkey.0),
            reserved_6: [0; 2],
            service_id: U64::new(self.service_id.0),
            private_data: *self.private_data.as_bytes(),
        };
    }
}
