//! Names for what SIDR holds.

use super::super::endpoint::ListenerId;

/// A query of an [`Endpoint`](super::super::Endpoint). It never means another one, even when its slot is used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SidrQueryHandle {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// A request that waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SidrRequestHandle {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// A datagram service of an [`Endpoint`](super::super::Endpoint).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SidrServiceId(pub(super) ListenerId);
