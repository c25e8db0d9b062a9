//! Immediate data.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::DecodeError;
use crate::codec::codec;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ImmDtLayout {
    bytes: [u8; 4],
}

/// Immediate data: four bytes that reach the receiver's completion as they were sent (IBTA vol. 1, 9.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ImmDt(pub [u8; 4]);

codec!(ImmDt, ImmDtLayout, 4, "ImmDt");

impl ImmDt {
    /// The immediate data that carries a number, big-endian.
    pub const fn from_u32(number: u32) -> Self {
        Self(number.to_be_bytes())
    }

    /// The four bytes as a big-endian number.
    pub const fn to_u32(self) -> u32 {
        u32::from_be_bytes(self.0)
    }

    fn decode(l: &ImmDtLayout) -> Result<Self, DecodeError> {
        Ok(Self(l.bytes))
    }

    fn encode(&self) -> ImmDtLayout {
        ImmDtLayout { bytes: self.0 }
    }
}
