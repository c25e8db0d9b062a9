//! The raw header: what stands between the LRH and the payload of a raw EtherType packet.

use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::EtherType;
use crate::DecodeError;
use crate::codec::codec;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RwhLayout {
    reserved: U16,
    ether_type: U16,
}

/// The raw header (spec/raw.md 1.3). The header of IP over InfiniBand (RFC 4391) has the same two fields the other way
/// round and is another thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rwh {
    /// Reserved as it was read: the VCRC covers it. Send 0.
    pub reserved: u16,
    /// What the payload is.
    pub ether_type: EtherType,
}

codec!(Rwh, RwhLayout, 4, "RWH");

impl Rwh {
    /// A header as it is sent.
    pub const fn new(ether_type: EtherType) -> Self {
        Self { reserved: 0, ether_type }
    }

    // Every value is one; the shape is that of the other headers.
    #[allow(clippy::unnecessary_wraps)]
    fn decode(l: &RwhLayout) -> Result<Self, DecodeError> {
        Ok(Self { reserved: l.reserved.get(), ether_type: EtherType(l.ether_type.get()) })
    }

    fn encode(&self) -> RwhLayout {
        RwhLayout { reserved: U16::new(self.reserved), ether_type: U16::new(self.ether_type.0) }
    }
}
