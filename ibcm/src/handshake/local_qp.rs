//! What the peer is told of a program's own queue pair.

use ibwire::Qpn;

/// A queue pair of the program's own, as far as the handshake concerns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalQp {
    /// Its number. No other connection of the HCA may have it, TimeWait included.
    pub qpn: Qpn,
    /// It uses a shared receive queue.
    pub srq: bool,
    /// Its receive queue returns end-to-end credits.
    pub end_to_end_flow_control: bool,
    /// RDMA reads and atomics of the peer that it serves at once; 0 also closes its memory to them. `None`: as many as the
    /// device can, and on the passive side no more than the peer asks for. More is invalid.
    pub responder_resources: Option<u8>,
    /// RDMA reads and atomics that it will have outstanding. `None`: as many as the device can and the peer serves. More is
    /// invalid.
    pub initiator_depth: Option<u8>,
}

impl LocalQp {
    /// A reliable connection with receives of its own, as many reads as can be agreed upon and no credits.
    pub const fn rc(qpn: Qpn) -> Self {
        Self {
            qpn,
            srq: false,
            end_to_end_flow_control: false,
            responder_resources: None,
            initiator_depth: None,
        }
    }

    /// It uses a shared receive queue.
    #[must_use]
    pub const fn srq(mut self, srq: bool) -> Self {
        self.srq = srq;
        self
    }

    /// Its receive queue returns end-to-end credits.
    #[must_use]
    pub const fn end_to_end_flow_control(mut self, credits: bool) -> Self {
        self.end_to_end_flow_control = credits;
        self
    }

    /// RDMA reads and atomics of the peer that it serves at once; 0 also closes its memory to them.
    #[must_use]
    pub const fn responder_resources(mut self, count: Option<u8>) -> Self {
        self.responder_resources = count;
        self
    }

    /// RDMA reads and atomics that it will have outstanding.
    #[must_use]
    pub const fn initiator_depth(mut self, count: Option<u8>) -> Self {
        self.initiator_depth = count;
        self
    }
}
