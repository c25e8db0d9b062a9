//! Why an operation on a connection failed.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use ibdev::{Buf, DeviceError, Status};

use crate::proto::Invalid;

/// Why an operation on a connection failed. The buffer comes back.
#[derive(Debug)]
#[non_exhaustive]
pub struct OpError {
    /// Why.
    pub cause: OpCause,
    /// The buffer that was given; none if the operation copies or has none, or if its QP was destroyed with the
    /// buffer in it. That of a read which failed is empty.
    pub buf: Option<Buf>,
}

/// The cause of an [`OpError`].
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum OpCause {
    /// The operation was posted and failed; the connection is broken.
    #[error("the operation failed: {0}")]
    Status(Status),
    /// The connection failed because nothing was heard from the peer for so long: see
    /// [`Connect::keepalive`](crate::Connect::keepalive).
    #[error("the peer was silent for {0:?}")]
    Silent(Duration),
    /// A value is out of range; nothing was posted and the connection goes on.
    #[error(transparent)]
    Invalid(Box<Invalid>),
    /// The connection is closed, by either side.
    #[error("the connection is closed")]
    Closed,
    /// The device refused the operation, failed, or is gone.
    #[error(transparent)]
    Device(DeviceError),
}

impl From<Invalid> for OpCause {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(Box::new(invalid))
    }
}

/// Shows its cause.
impl fmt::Display for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

/// Its source is that of its cause, which it shows itself.
impl Error for OpError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.source()
    }
}

impl OpError {
    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        match &self.cause {
            OpCause::Device(error) => error.io_kind(),
            OpCause::Status(_) => io::ErrorKind::ConnectionReset,
            OpCause::Silent(_) => io::ErrorKind::TimedOut,
            OpCause::Invalid(_) => io::ErrorKind::InvalidInput,
            OpCause::Closed => io::ErrorKind::BrokenPipe,
        }
    }
}
