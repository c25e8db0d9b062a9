//! Headers of atomic operations.

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::codec::codec;
use crate::{DecodeError, RKey};

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct AtomicEthLayout {
    va: U64,
    rkey: U32,
    swap_or_add: U64,
    compare: U64,
}

/// The extended transport header of COMPARE_SWAP and FETCH_ADD (IBTA vol. 1, 9.3; spec/softhca.md 1.5).
///
/// Operands are big-endian on the wire and numbers here; the memory they act on is in the host's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AtomicEth {
    /// Address in the responder's memory region, a multiple of 8.
    pub va: u64,
    /// Key of the region.
    pub rkey: RKey,
    /// What to swap in, or what to add.
    pub swap_or_add: u64,
    /// What to compare with; 0 in FETCH_ADD.
    pub compare: u64,
}

codec!(AtomicEth, AtomicEthLayout, 28, "AtomicETH");

impl AtomicEth {
    fn decode(l: &AtomicEthLayout) -> Result<Self, DecodeError> {
        Ok(Self {
            va: l.va.get(),
            rkey: RKey(l.rkey.get()),
            swap_or_add: l.swap_or_add.get(),
            compare: l.compare.get(),
        })
    }

    fn encode(&self) -> AtomicEthLayout {
        AtomicEthLayout {
            va: U64::new(self.va),
            rkey: U32::new(self.rkey.0),
            swap_or_add: U64::new(self.swap_or_add),
            compare: U64::new(self.compare),
        }
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct AtomicAckEthLayout {
    original: U64,
}

/// The extended transport header of ATOMIC_ACKNOWLEDGE (IBTA vol. 1, 9.3; spec/softhca.md 1.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AtomicAckEth {
    /// What stood in memory before the operation.
    pub original: u64,
}

codec!(AtomicAckEth, AtomicAckEthLayout, 8, "AtomicAckETH");

impl AtomicAckEth {
    fn decode(l: &AtomicAckEthLayout) -> Result<Self, DecodeError> {
        Ok(Self { original: l.original.get() })
    }

    fn encode(&self) -> AtomicAckEthLayout {
        AtomicAckEthLayout { original: U64::new(self.original) }
    }
}
