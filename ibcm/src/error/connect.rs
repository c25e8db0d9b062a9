//! Why a connection was not made.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use ibdev::DeviceError;
use ibwire::RejReason;

use super::{OpenError, QueryError, Rejection};
use crate::proto::{Effort, Invalid};

/// Why [`Connection::connect`](crate::Connection::connect) failed. Groups: the peer said no, nobody answered,
/// this side could not.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The peer answered with a REJ.
    #[error("the peer rejected the request: {0}")]
    Rejected(Box<Rejection>),
    /// No REP and no REJ came.
    #[error(
        "no answer to {}{sent} request{} in {waited:?}{}",
        if *attempts > 1 { format!("the last of {attempts} attempts, ") } else { String::new() },
        if *sent == 1 { "" } else { "s" },
        if *busy { ", though the peer said that it is busy" } else { "" }
    )]
    Unreachable {
        /// How many attempts were made; the last one ended in silence. See [`Retry`](crate::Retry).
        attempts: u32,
        /// How many REQs all attempts sent.
        sent: u32,
        /// From the first REQ until now, pauses included.
        waited: Duration,
        /// Whether the peer answered the last attempt with an MRA: it is alive and undecided.
        busy: bool,
    },
    /// The peer accepted and disconnected before the connection was used.
    #[error("the peer disconnected while the connection was being made")]
    Disconnected,
    /// The peer's reply breaks the rules of the protocol.
    #[error("the peer's reply is not usable; it was told {reason}")]
    BadReply {
        /// The reason in the REJ that it got.
        reason: RejReason,
    },
    /// No device could be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// No path was found.
    #[error(transparent)]
    Path(#[from] QueryError),
    /// A value is out of range; nothing was sent.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The device failed or is gone.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The QP could not be made ready.
    #[error("the queue pair could not be made ready (step: {step})")]
    Qp {
        /// What was being done.
        step: QpStep,
        /// Why the device refused.
        #[source]
        source: DeviceError,
    },
    /// The port of the path is down.
    #[error("port {port} is down")]
    PortDown {
        /// The port.
        port: u8,
    },
    /// This side used up the deadline: with finding the path, or with making the QP ready.
    #[error("this side was not ready within {waited:?}: deadline(..) allows more")]
    Deadline {
        /// How long it was tried.
        waited: Duration,
    },
    /// The HCA was closed or its runtime ended.
    #[error("the HCA is closed")]
    Closed,
}

/// What was being done to a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QpStep {
    /// Creating it and its completion queue.
    Create,
    /// Allocating its buffers.
    Alloc,
    /// RESET to INIT.
    Init,
    /// Posting the first receives.
    PostRecv,
    /// INIT to RTR.
    Rtr,
    /// RTR to RTS.
    Rts,
}

impl fmt::Display for QpStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "create",
            Self::Alloc => "allocate buffers",
            Self::Init => "move to INIT",
            Self::PostRecv => "post receives",
            Self::Rtr => "move to RTR",
            Self::Rts => "move to RTS",
        })
    }
}

/// What the attempts of one call did.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Attempts {
    pub(crate) made: u32,
    /// REQs.
    pub(crate) sent: u32,
    pub(crate) first_sent: Option<Instant>,
}

impl Attempts {
    /// What the REQ of one of them took.
    pub(crate) fn add(&mut self, effort: Effort) {
        self.sent = self.sent.saturating_add(effort.sent.into());
    }
}

impl ConnectError {
    /// Whether the same call may succeed later: nobody answered, the peer was short of queue pairs or of something else
    /// (reasons 1 and 3) or still holds an old connection (10), or the port is down.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Rejected(no) => {
                matches!(no.reason, RejReason::NO_QP | RejReason::NO_RESOURCES | RejReason::STALE_CONNECTION)
            }
            Self::Unreachable { .. } | Self::PortDown { .. } | Self::Path(QueryError::PortDown { .. }) => {
                true
            }
            _ => false,
        }
    }

    /// The error of the last attempt, made that of all.
    pub(crate) fn of_all(mut self, all: &Attempts, now: Instant) -> Self {
        let in_all = all.first_sent.map_or(Duration::ZERO, |first| now.saturating_duration_since(first));
        match &mut self {
            Self::Rejected(no) => (no.attempts, no.sent, no.waited) = (all.made, all.sent, in_all),
            Self::Unreachable { attempts, sent, waited, .. } => {
                (*attempts, *sent, *waited) = (all.made, all.sent, in_all);
            }
            _ => {}
        }
        self
    }

    /// Whether it is this side's affair: no peer was asked, or it was not the peer who failed.
    pub const fn is_local(&self) -> bool {
        !matches!(
            self,
            Self::Rejected(_) | Self::Unreachable { .. } | Self::Disconnected | Self::BadReply { .. }
        )
    }

    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::Rejected(_) => io::ErrorKind::ConnectionRefused,
            Self::Unreachable { .. } | Self::Deadline { .. } => io::ErrorKind::TimedOut,
            Self::Disconnected => io::ErrorKind::ConnectionReset,
            Self::BadReply { .. } => io::ErrorKind::InvalidData,
            Self::Open(e) => e.io_kind(),
            Self::Path(e) => e.io_kind(),
            Self::Invalid(_) => io::ErrorKind::InvalidInput,
            Self::Device(e) | Self::Qp { source: e, .. } => e.io_kind(),
            Self::PortDown { .. } => io::ErrorKind::NetworkDown,
            Self::Closed => io::ErrorKind::NotConnected,
        }
    }
}
