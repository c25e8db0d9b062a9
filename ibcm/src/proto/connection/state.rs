//! The states of a connection.

use std::fmt;

/// Which side of a connection we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// We sent the REQ.
    Active,
    /// We received it.
    Passive,
}

/// The state of a connection (spec/cm.md 4.1). A DREQ is answered at once, so there is no DreqRcvd; what has no
/// connection yet, or no longer, has no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// Active: the REQ is out.
    ReqSent,
    /// Active: the peer wants more time for its reply.
    ReqMraRcvd,
    /// Active: the REP is here, we have not answered it.
    RepRcvd,
    /// Active: the same, and we asked for more time.
    RepMraSent,
    /// Passive: the REQ is here, we have not answered it.
    ReqRcvd,
    /// Passive: the same, and we asked for more time.
    ReqMraSent,
    /// Passive: the REP is out.
    RepSent,
    /// Passive: the peer wants more time for its RTU.
    RepMraRcvd,
    /// Both sides may send.
    Established,
    /// Our DREQ is out.
    DreqSent,
    /// Over; IDs and QP number rest until no packet of the connection can be alive.
    TimeWait,
}

impl State {
    pub(in super::super) const COUNT: usize = Self::TimeWait as usize + 1;

    pub(in super::super) const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
