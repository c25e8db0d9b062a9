//! Why nothing more will be received.

use std::io;
use std::time::Duration;

use ibdev::Status;

/// Why [`Connection::recv`](crate::Connection::recv) failed. A peer that disconnects is not an error: that is
/// `Ok(None)`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecvError {
    /// This side has disconnected, the HCA was closed, or the runtime ended.
    #[error("the connection is closed")]
    Closed,
    /// The connection broke: an operation failed.
    #[error("the connection broke: {0}")]
    Broken(Status),
    /// The connection failed because nothing was heard from the peer for so long: see
    /// [`Connect::keepalive`](crate::Connect::keepalive).
    #[error("the peer was silent for {0:?}")]
    Silent(Duration),
    /// The device was removed.
    #[error("the device is gone")]
    Gone,
}

impl RecvError {
    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::Closed | Self::Gone => io::ErrorKind::NotConnected,
            Self::Broken(_) => io::ErrorKind::ConnectionReset,
            Self::Silent(_) => io::ErrorKind::TimedOut,
        }
    }
}
