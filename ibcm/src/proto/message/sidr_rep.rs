//! SIDR_REP: the queue pair of a service, or why there is none.

use ibwire::{CommId, PrivateData, QKey, Qpn, ServiceId};
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute_mut, transmute_ref};

use super::number::{u24, u24_bytes};
use super::{Ari, PAYLOAD_LEN, SidrStatus, VendorId};

/// The answer to a [`SidrReq`](super::SidrReq) (IBTA vol. 1, 12.11; spec/cm.md 2.10).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SidrRep {
    /// That of the request.
    pub request_id: CommId,
    /// Whether there is a queue pair, or why not.
    pub status: SidrStatus,
    /// What goes with the status; [`SidrInfo::decode`](super::SidrInfo::decode) reads it.
    pub info: Ari,
    /// Whose ECE options the attribute modifier carries.
    pub vendor_id: VendorId,
    /// The queue pair; it means something with status 0 only.
    pub qpn: Qpn,
    /// The service ID of the request.
    pub service_id: ServiceId,
    /// The Q_Key of the queue pair; it means something with status 0 only.
    pub qkey: QKey,
    /// The application's bytes.
    pub private_data: PrivateData<136>,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SidrRepWire {
    request_id: U32,
    status: u8,
    info_len: u8,
    /// Bits 23:8.
    vendor_id_high: U16,
    qpn: [u8; 3],
    /// Bits 7:0.
    vendor_id_low: u8,
    service_id: U64,
    qkey: U32,
    info: [u8; Ari::MAX_LEN],
    private_data: [u8; 136],
}

const _: () = assert!(size_of::<SidrRepWire>() == PAYLOAD_LEN);

impl SidrRep {
    /// Says no, and nothing else.
    pub(crate) const fn refusal(request_id: CommId, service_id: ServiceId, status: SidrStatus) -> Self {
        Self {
            request_id,
            status,
            info: Ari::EMPTY,
            vendor_id: VendorId::truncate(0),
            qpn: Qpn::truncate(0),
            service_id,
            qkey: QKey(0),
            private_data: PrivateData::EMPTY,
        }
    }

    pub(super) fn decode(payload: &[u8; PAYLOAD_LEN]) -> Self {
        let wire: &SidrRepWire = transmute_ref!(payload);
        let vendor_id = u32::from(wire.vendor_id_high.get()) << 8 | u32::from(wire.vendor_id_low);
        Self {
            request_id: CommId(wire.request_id.get()),
            status: SidrStatus(wire.status),
            info: Ari::from_area(&wire.info, usize::from(wire.info_len)),
            vendor_id: VendorId::truncate(vendor_id),
            qpn: Qpn::truncate(u24(wire.qpn)),
            service_id: ServiceId(wire.service_id.get()),
            qkey: QKey(wire.qkey.get()),
            private_data: PrivateData::from_area(wire.private_data),
        }
    }

    pub(super) fn encode(&self, payload: &mut [u8; PAYLOAD_LEN]) {
        let wire: &mut SidrRepWire = transmute_mut!(payload);
        let vendor_id = self.vendor_id.get();
        *wire = SidrRepWire {
            request_id: U32::new(self.request_id.0),
            status: self.status.0,
            info_len: self.info.as_bytes().len() as u8,
            vendor_id_high: U16::new((vendor_id >> 8) as u16),
            qpn: u24_bytes(self.qpn.get()),
            vendor_id_low: vendor_id as u8,
            service_id: U64::new(self.service_id.0),
            qkey: U32::new(self.qkey.0),
            info: *self.info.area(),
            private_data: *self.private_data.as_bytes(),
        };
    }
}
