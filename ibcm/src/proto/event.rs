//! What an endpoint reports.

use std::time::{Duration, Instant};

use ibdev::MadSource;
use ibdev::qp::AlternatePath;
use ibwire::{PrivateData, RejReason};

use super::endpoint::{ConnHandle, ListenerId};
use super::message::{ApInfo, ApStatus, Lap, MessageId, Mra, Rej, RejectInfo, Rep, Req};
use super::path::Path;
use super::transport::Transport;

/// Something that happened to a connection.
///
/// Of the final events ([`Event::is_final`]) each connection sees at most one, and none that was ended by
/// [`reject`](super::Endpoint::reject) or [`abort`](super::Endpoint::abort). [`Event::Released`] comes exactly once,
/// as the last of all: at once where nothing is left on the wire, else when TimeWait is over.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A REQ arrived. It waits, kept alive by automatic MRAs, for [`accept`](super::Endpoint::accept) or
    /// [`reject`](super::Endpoint::reject).
    Request {
        /// The new connection.
        conn: ConnHandle,
        /// Whose request it is.
        listener: ListenerId,
        /// What is wanted.
        request: Box<Request>,
    },
    /// The peer asked, too ([`connect_peer`](super::Endpoint::connect_peer)), and its REQ is the one that counts: this
    /// side has become the passive one. Kept alive by automatic MRAs, it waits for the queue pair to be moved to RTS
    /// ([`accept_attrs`](super::Endpoint::accept_attrs)), then for [`accept`](super::Endpoint::accept) with the same queue
    /// pair, or for [`reject`](super::Endpoint::reject).
    PeerRequest {
        /// The connection.
        conn: ConnHandle,
        /// What the peer wants.
        request: Box<Request>,
        /// What our own request took.
        effort: Effort,
    },
    /// A REP arrived. Now the QP has to be moved to RTS
    /// ([`attrs`](super::Endpoint::attrs)), then [`ready`](super::Endpoint::ready) called, or
    /// [`reject`](super::Endpoint::reject).
    Reply {
        /// The connection.
        conn: ConnHandle,
        /// The reply.
        rep: Box<Rep>,
        /// What the request took.
        effort: Effort,
    },
    /// The passive side's connection is established: the RTU came, or something that implies it.
    Established {
        /// The connection.
        conn: ConnHandle,
        /// The RTU's private data; `None` if data or a DREQ came first.
        rtu_data: Option<PrivateData<224>>,
    },
    /// The peer said for the first time that its answer takes longer.
    Busy {
        /// The connection.
        conn: ConnHandle,
        /// What it said.
        mra: Box<Mra>,
        /// Until when its answer is waited for, unless it says so again.
        until: Instant,
    },
    /// Active side: the peer has loaded the alternate path. Now our queue pair has to
    /// ([`Transition::LoadPath`](ibdev::qp::Transition::LoadPath)); if it does not, say so by
    /// [`unload_path`](super::Endpoint::unload_path).
    AlternateLoaded {
        /// The connection.
        conn: ConnHandle,
        /// For the queue pair.
        path: Box<AlternatePath>,
    },
    /// Active side: the peer has not loaded the alternate path. The connection stays.
    AlternateRefused {
        /// The connection.
        conn: ConnHandle,
        /// Why.
        status: ApStatus,
        /// What came with the status.
        info: Box<ApInfo>,
        /// The application's bytes.
        private_data: Box<PrivateData<148>>,
    },
    /// Active side: the LAP was not answered. The connection stays, and no other LAP is sent on it.
    AlternateTimeout {
        /// The connection.
        conn: ConnHandle,
        /// What was tried.
        effort: Effort,
    },
    /// Passive side: the peer asks for an alternate path. It is kept patient by automatic MRAs until
    /// [`accept_path`](super::Endpoint::accept_path), once our queue pair has the path, or
    /// [`reject_path`](super::Endpoint::reject_path).
    AlternateRequest {
        /// The connection.
        conn: ConnHandle,
        /// What is wanted.
        request: Box<AlternateRequest>,
    },
    /// The queue pair has migrated; the connection goes by its alternate path now, and none is loaded.
    Migrated {
        /// The connection.
        conn: ConnHandle,
        /// The path from now on.
        primary: Box<Path>,
    },
    /// Final: the request withdrew before it was accepted or rejected.
    Withdrawn {
        /// The connection.
        conn: ConnHandle,
        /// The REJ that withdrew it, if it was one.
        rejection: Option<Box<Rejection>>,
    },
    /// Final: the peer rejected the request, or the reply.
    Rejected {
        /// The connection.
        conn: ConnHandle,
        /// How.
        rejection: Box<Rejection>,
        /// What our request, or our reply, had taken until then; `None` on the active side if the request was answered
        /// by a reply before.
        effort: Option<Effort>,
    },
    /// Final: the peer's reply breaks the rules and was rejected.
    ReplyRefused {
        /// The connection.
        conn: ConnHandle,
        /// The reason that the peer was told.
        reason: RejReason,
        /// The reply.
        rep: Box<Rep>,
        /// What the request took.
        effort: Effort,
    },
    /// Final: the REQ, or the REP, was not answered.
    Timeout {
        /// The connection.
        conn: ConnHandle,
        /// What was tried.
        effort: Effort,
    },
    /// Final: the connection was established, or nearly so, and is disconnected.
    Disconnected {
        /// The connection.
        conn: ConnHandle,
        /// How it came.
        cause: DisconnectCause,
    },
    /// Final: the device was removed.
    DeviceRemoved {
        /// The connection.
        conn: ConnHandle,
    },
    /// The handle is dead, its IDs are free and its queue pair may be used again: TimeWait is over, or there was none
    /// to wait for.
    Released {
        /// What was the connection.
        conn: ConnHandle,
    },
}

impl Event {
    /// The connection that the event is about.
    pub const fn conn(&self) -> ConnHandle {
        match self {
            Self::Request { conn, .. }
            | Self::PeerRequest { conn, .. }
            | Self::Reply { conn, .. }
            | Self::Established { conn, .. }
            | Self::Busy { conn, .. }
            | Self::AlternateLoaded { conn, .. }
            | Self::AlternateRefused { conn, .. }
            | Self::AlternateTimeout { conn, .. }
            | Self::AlternateRequest { conn, .. }
            | Self::Migrated { conn, .. }
            | Self::Withdrawn { conn, .. }
            | Self::Rejected { conn, .. }
            | Self::ReplyRefused { conn, .. }
            | Self::Timeout { conn, .. }
            | Self::Disconnected { conn, .. }
            | Self::DeviceRemoved { conn }
            | Self::Released { conn } => *conn,
        }
    }

    /// Whether it tells how the connection ended.
    pub const fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Withdrawn { .. }
                | Self::Rejected { .. }
                | Self::ReplyRefused { .. }
                | Self::Timeout { .. }
                | Self::Disconnected { .. }
                | Self::DeviceRemoved { .. }
        )
    }
}

/// A request for a connection, as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// The message.
    pub req: Req,
    /// Where it came from.
    pub from: MadSource,
    /// The transport that is wanted.
    pub transport: Transport,
    /// The path to the peer: that of the REQ, turned round.
    pub path: Path,
    /// The alternate path to the peer, likewise, if there is one that can be used.
    pub alternate: Option<Path>,
    /// The most that [`Accept::responder_resources`](super::Accept::responder_resources) can be: what the peer will have
    /// outstanding, or less if the device can't.
    pub responder_resources: u8,
    /// The most that [`Accept::initiator_depth`](super::Accept::initiator_depth) can be: what the peer serves, or less if
    /// the device can't.
    pub initiator_depth: u8,
}

/// A request to load an alternate path, as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AlternateRequest {
    /// The message.
    pub lap: Lap,
    /// The path to the peer: that of the LAP, turned round.
    pub path: Path,
    /// The same for our queue pair.
    pub attr: AlternatePath,
}

/// A REJ of the peer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejection {
    /// Why.
    pub reason: RejReason,
    /// What was rejected.
    pub message: MessageId,
    /// What came with the reason.
    pub info: RejectInfo,
    /// The application's bytes.
    pub private_data: PrivateData<148>,
}

impl Rejection {
    pub(super) fn new(rej: &Rej) -> Self {
        Self {
            reason: rej.reason,
            message: rej.message,
            info: RejectInfo::decode(rej.reason, &rej.ari),
            private_data: rej.private_data,
        }
    }

    /// Whether the application refused: reason 28, or 27 in answer to a REQ, which is Intel's number for it.
    pub fn is_consumer(&self) -> bool {
        is_consumer(self.message, self.reason)
    }
}

/// Whether an application refused that message.
pub(crate) fn is_consumer(message: MessageId, reason: RejReason) -> bool {
    reason == RejReason::CONSUMER
        || message == MessageId::REQ && reason == RejReason::INSUFFICIENT_RESPONDER_RESOURCES
}

/// What was tried before a message was answered or given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Effort {
    /// How often it was sent.
    pub sent: u8,
    /// From the first transmission until now.
    pub waited: Duration,
    /// Whether the peer sent an MRA meanwhile: it is alive.
    pub busy: bool,
}

/// How a connection was disconnected.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DisconnectCause {
    /// The peer sent a DREQ. It is answered.
    Peer {
        /// The private data of the DREQ.
        private_data: PrivateData<220>,
    },
    /// The peer answered our DREQ.
    Local {
        /// The private data of the DREP.
        private_data: PrivateData<224>,
    },
    /// Our DREQ was not answered.
    Timeout(Effort),
    /// The peer rejected the connection after it was established.
    Rejected(Box<Rejection>),
    /// The peer uses the connection's QP or ID for another connection: it must have restarted.
    Stale,
}
