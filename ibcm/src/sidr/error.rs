//! Why a service was not found.

use std::io;
use std::time::Duration;

use ibdev::DeviceError;
use ibwire::PrivateData;

use super::{Info, Status};
use crate::error::OpenError;
use crate::proto::Invalid;

/// Why [`query`](super::query()) gave no socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// The peer answered that there is none.
    #[error("the peer refused: {status}")]
    Refused {
        /// Why.
        status: Status,
        /// What goes with that.
        info: Info,
        /// What the peer's program said.
        private_data: Box<PrivateData<136>>,
    },
    /// The peer did not answer.
    #[error("no answer to {sent} requests in {waited:?}")]
    Unreachable {
        /// Requests that were sent.
        sent: u32,
        /// From the first of them until it was given up.
        waited: Duration,
    },
    /// No path was found.
    #[error(transparent)]
    Path(#[from] crate::QueryError),
    /// No device could be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The port of the path is down.
    #[error("port {port} is down")]
    PortDown {
        /// The port.
        port: u8,
    },
    /// A value is out of range; nothing was sent.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The device failed or is gone.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The HCA was closed or its runtime ended.
    #[error("the HCA is closed")]
    Closed,
}

impl QueryError {
    /// Whether asking again may help: nobody answered, or a port was down.
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::PortDown { .. })
    }

    /// Whether nothing of it is the peer's or the network's doing.
    pub const fn is_local(&self) -> bool {
        !matches!(self, Self::Refused { .. } | Self::Unreachable { .. })
    }

    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::Refused { .. } => io::ErrorKind::ConnectionRefused,
            Self::Unreachable { .. } => io::ErrorKind::TimedOut,
            Self::Path(e) => e.io_kind(),
            Self::Open(e) => e.io_kind(),
            Self::PortDown { .. } => io::ErrorKind::NetworkDown,
            Self::Invalid(_) => io::ErrorKind::InvalidInput,
            Self::Device(e) => e.io_kind(),
            Self::Closed => io::ErrorKind::NotConnected,
        }
    }
}
