//! What the peer is told of a program's own queue pair.

use ibwire::Qpn;

use crate::proto::message::Eecn;
use crate::proto::{RdEnd, Transport};

/// A queue pair of the program's own, as far as the handshake concerns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalQp {
    /// Its number. No other connection of the HCA may have it, TimeWait included, unless they are reliable datagrams.
    pub qpn: Qpn,
    /// Its transport.
    pub transport: Transport,
    /// With reliable datagrams the EE context, for which the attributes are.
    pub rd: Option<RdEnd>,
    /// With reliable datagrams on the active side: the EE context of the peer to which this one is connected already.
    pub rdc: Option<Eecn>,
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
    /// Passive side: it takes alternate paths, that of the request and later ones, if the device can migrate paths. Default
    /// true.
    pub failover: bool,
}

impl LocalQp {
    /// A reliable connection with receives of its own, as many reads as can be agreed upon and no credits.
    pub const fn rc(qpn: Qpn) -> Self {
        Self {
            qpn,
            transport: Transport::Rc,
            rd: None,
            rdc: None,
            srq: false,
            end_to_end_flow_control: false,
            responder_resources: None,
            initiator_depth: None,
            failover: true,
        }
    }

    /// An unreliable connection. It has no reads and no retries; what the attributes say of them is 0. For INIT the peer may
    /// do no more than [`Access::REMOTE_WRITE`](crate::Access::REMOTE_WRITE).
    pub const fn uc(qpn: Qpn) -> Self {
        Self { transport: Transport::Uc, ..Self::rc(qpn) }
    }

    /// An extended reliable connection: the initiator on the active side, the target on the passive side.
    pub const fn xrc(qpn: Qpn) -> Self {
        Self { transport: Transport::Xrc, ..Self::rc(qpn) }
    }

    /// Reliable datagrams through this EE context. A peer that knows of none to be had rejects with
    /// [`RejReason::NO_EEC`](crate::RejReason::NO_EEC).
    pub const fn rd(qpn: Qpn, end: RdEnd) -> Self {
        Self { transport: Transport::Rd, rd: Some(end), ..Self::rc(qpn) }
    }

    /// The EE context is connected to this one of the peer already; only queue pairs get to know each other. A peer that
    /// knows nothing of that rejects with [`RejReason::RDC_NOT_EXIST`](crate::RejReason::RDC_NOT_EXIST).
    #[must_use]
    pub const fn rdc(mut self, remote: Eecn) -> Self {
        self.rdc = Some(remote);
        self
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

    /// Passive side: it takes alternate paths.
    #[must_use]
    pub const fn failover(mut self, takes: bool) -> Self {
        self.failover = takes;
        self
    }

    /// RDMA reads and atomics that it will have outstanding.
    #[must_use]
    pub const fn initiator_depth(mut self, count: Option<u8>) -> Self {
        self.initiator_depth = count;
        self
    }
}
