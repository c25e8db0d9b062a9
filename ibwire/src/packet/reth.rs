//! RDMA extended transport header.

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::codec::codec;
use crate::{DecodeError, RKey};

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RethLayout {
    va: U64,
    rkey: U32,
    len: U32,
}

/// The RDMA extended transport header of WRITE and READ requests (IBTA vol. 1, 9.3; spec/softhca.md 1.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reth {
    /// Address in the responder's memory region.
    pub va: u64,
    /// Key of the region.
    pub rkey: RKey,
    /// Length of the whole message in bytes.
    pub len: u32,
}

codec!(Reth, RethLayout, 16, "RETH");

impl Reth {
    fn decode(l: &RethLayout) -> Result<Self, DecodeError> {
        Ok(Self { va: l.va.get(), rkey: RKey(l.rkey.get()), len: l.len.get() })
    }

    fn encode(&self) -> RethLayout {
        RethLayout { va: U64::new(self.va), rkey: U32::new(self.rkey.0), len: U32::new(self.len) }
    }
}
