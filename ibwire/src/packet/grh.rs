//! Global route header: the network layer, with the shape of an IPv6 header.

use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::codec::codec;
use crate::{DecodeError, FlowLabel, Gid};

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct GrhLayout {
    version_class_flow: U32,
    payload_len: U16,
    next_header: u8,
    hop_limit: u8,
    sgid: [u8; 16],
    dgid: [u8; 16],
}

/// The global route header (IBTA vol. 1, 8.3; spec/softhca.md 1.3).
///
/// The IPv6 header of a RoCEv2 packet is the same 40 bytes, with [`Grh::NEXT_UDP`]; its GIDs are IPv6 addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grh {
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label.
    pub flow_label: FlowLabel,
    /// Bytes behind this header, ICRC included.
    pub payload_len: u16,
    /// What follows: [`Grh::NEXT_BTH`] or [`Grh::NEXT_UDP`].
    pub next_header: u8,
    /// How many routers the packet may pass.
    pub hop_limit: u8,
    /// Source.
    pub sgid: Gid,
    /// Destination.
    pub dgid: Gid,
}

codec!(Grh, GrhLayout, 40, "GRH");

impl Grh {
    /// A BTH follows: InfiniBand and RoCEv1.
    pub const NEXT_BTH: u8 = 0x1b;
    /// UDP follows: RoCEv2 over IPv6.
    pub const NEXT_UDP: u8 = 17;

    fn decode(l: &GrhLayout) -> Result<Self, DecodeError> {
        let first = l.version_class_flow.get();
        if first >> 28 != 6 {
            return Err(DecodeError::Invalid { what: "GRH or IPv6 version", offset: 0, value: first >> 28 });
        }
        Ok(Self {
            traffic_class: (first >> 20) as u8,
            flow_label: FlowLabel::truncate(first),
            payload_len: l.payload_len.get(),
            next_header: l.next_header,
            hop_limit: l.hop_limit,
            sgid: Gid(l.sgid),
            dgid: Gid(l.dgid),
        })
    }

    fn encode(&self) -> GrhLayout {
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label.get();
        GrhLayout {
            version_class_flow: U32::new(first),
            payload_len: U16::new(self.payload_len),
            next_header: self.next_header,
            hop_limit: self.hop_limit,
            sgid: self.sgid.0,
            dgid: self.dgid.0,
        }
    }
}
