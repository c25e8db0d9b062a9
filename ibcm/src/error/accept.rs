//! Why a request did not become a connection.

use std::io;
use std::time::Duration;

use ibdev::DeviceError;

use super::{QpStep, Rejection};
use crate::proto::Invalid;

/// Why [`IncomingRequest::accept`](crate::IncomingRequest::accept) failed. It concerns that one peer; the
/// listener goes on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The peer gave up or its connection was closed before it was established.
    #[error("the peer has withdrawn its request")]
    Withdrawn,
    /// The peer rejected the reply.
    #[error("the peer rejected the reply: {0}")]
    Rejected(Box<Rejection>),
    /// Neither an RTU nor data came.
    #[error("no confirmation of {sent} repl{} in {waited:?}", if *sent == 1 { "y" } else { "ies" })]
    Unconfirmed {
        /// How many REPs were sent.
        sent: u8,
        /// How long was waited.
        waited: Duration,
    },
    /// A value is out of range; the peer was rejected.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The device failed or is gone.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The QP could not be made ready; the peer was rejected.
    #[error("the queue pair could not be made ready (step: {step})")]
    Qp {
        /// What was being done.
        step: QpStep,
        /// Why the device refused.
        #[source]
        source: DeviceError,
    },
    /// This side used up the deadline with making the QP ready; the peer was rejected.
    #[error("this side was not ready within {waited:?}: deadline(..) allows more")]
    Deadline {
        /// How long it was tried.
        waited: Duration,
    },
    /// The HCA was closed or its runtime ended.
    #[error("the HCA is closed")]
    Closed,
}

impl AcceptError {
    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::Withdrawn => io::ErrorKind::ConnectionAborted,
            Self::Rejected(_) => io::ErrorKind::ConnectionRefused,
            Self::Unconfirmed { .. } | Self::Deadline { .. } => io::ErrorKind::TimedOut,
            Self::Invalid(_) => io::ErrorKind::InvalidInput,
            Self::Device(e) | Self::Qp { source: e, .. } => e.io_kind(),
            Self::Closed => io::ErrorKind::NotConnected,
        }
    }
}
