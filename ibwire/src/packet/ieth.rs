//! Invalidate extended transport header.

use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::codec::codec;
use crate::{DecodeError, RKey};

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct IethLayout {
    rkey: U32,
}

/// The invalidate extended transport header of SEND with invalidate (IBTA vol. 1, 9.3; spec/softhca.md 1.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ieth {
    /// The key that the responder shall invalidate.
    pub rkey: RKey,
}

codec!(Ieth, IethLayout, 4, "IETH");

impl Ieth {
    fn decode(l: &IethLayout) -> Result<Self, DecodeError> {
        Ok(Self { rkey: RKey(l.rkey.get()) })
    }

    fn encode(&self) -> IethLayout {
        IethLayout { rkey: U32::new(self.rkey.0) }
    }
}
