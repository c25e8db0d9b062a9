//! A request that was let in.

use std::time::Instant;

use ibsa::mad::SaHeader;
use ibsa::record::Layout;
use ibwire::mad::MadStatus;

use super::Peer;
use crate::manager::PortAt;

/// A request and who asks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'a> {
    pub now: Instant,
    pub from: Peer,
    pub header: SaHeader,
    /// The end port that has the LID it came from; there for every request that is answered with records.
    pub requester: Option<PortAt>,
    /// Whether it has the right SM_Key.
    pub is_trusted: bool,
    pub data: &'a [u8],
}

impl Request<'_> {
    /// The record that it carries.
    pub(super) fn record<L: Layout>(&self) -> Result<L, MadStatus> {
        L::parse(self.data).map_err(|_| MadStatus::INVALID_FIELD)
    }

    /// Whether its mask has this bit.
    pub(super) const fn has(&self, bit: u32) -> bool {
        self.header.component_mask >> bit & 1 != 0
    }

    /// Whether its mask has all of these bits.
    pub(super) const fn has_all(&self, mask: u64) -> bool {
        self.header.component_mask & mask == mask
    }
}

/// Status codes of the class (spec/sa.md 1.3).
pub(super) mod status {
    use ibwire::mad::MadStatus;

    pub(in super::super) const NO_RESOURCES: MadStatus = MadStatus(0x0100);
    pub(in super::super) const INVALID: MadStatus = MadStatus(0x0200);
    pub(in super::super) const NO_RECORDS: MadStatus = MadStatus(0x0300);
    pub(in super::super) const TOO_MANY_RECORDS: MadStatus = MadStatus(0x0400);
    pub(in super::super) const INVALID_GID: MadStatus = MadStatus(0x0500);
    pub(in super::super) const INSUFFICIENT: MadStatus = MadStatus(0x0600);
    pub(in super::super) const DENIED: MadStatus = MadStatus(0x0700);
}
