//! What can go wrong: one error per operation, what the wire said kept.

mod accept;
mod connect;
mod invalid;
mod listen;
mod op;
mod open;
mod path;
mod query;
mod recv;
mod rejection;

pub use accept::AcceptError;
pub(crate) use connect::Attempts;
pub use connect::{ConnectError, QpStep};
pub use listen::ListenError;
pub use op::{OpCause, OpError};
pub use open::OpenError;
pub use path::PathError;
pub use query::QueryError;
pub use recv::RecvError;
pub use rejection::Rejection;

use std::io;

use ibdev::{DeviceError, PostError};

use crate::proto::Invalid;

/// Any error of this crate, for tasks that do several things.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Listening failed.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A request could not be accepted.
    #[error(transparent)]
    Accept(#[from] AcceptError),
    /// A connection could not be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A path could not be found.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The subnet's SA refused, or did not answer.
    #[error(transparent)]
    Sa(#[from] crate::sa::SaError),
    /// A datagram service could not be found.
    #[error(transparent)]
    Sidr(#[from] crate::sidr::QueryError),
    /// An alternate path could not be loaded.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Receiving failed.
    #[error(transparent)]
    Recv(#[from] RecvError),
    /// An operation on a connection failed.
    #[error(transparent)]
    Op(#[from] OpError),
    /// A value is out of range.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// Bytes outside a region.
    #[error(transparent)]
    Range(#[from] ibdev::RangeError),
    /// A device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The HCA was closed or its runtime ended.
    #[error("the HCA is closed")]
    Closed,
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Open(e) => e.io_kind(),
            Error::Listen(e) => e.io_kind(),
            Error::Accept(e) => e.io_kind(),
            Error::Connect(e) => e.io_kind(),
            Error::Query(e) => e.io_kind(),
            Error::Sa(e) => e.io_kind(),
            Error::Sidr(e) => e.io_kind(),
            Error::Path(e) => e.io_kind(),
            Error::Recv(e) => e.io_kind(),
            Error::Op(e) => e.io_kind(),
            Error::Invalid(_) | Error::Range(_) => io::ErrorKind::InvalidInput,
            Error::Device(e) => e.io_kind(),
            Error::Closed => io::ErrorKind::NotConnected,
        };
        Self::new(kind, error)
    }
}

impl From<ibwire::PrivateDataTooLong> for Error {
    fn from(error: ibwire::PrivateDataTooLong) -> Self {
        Self::Invalid(error.into())
    }
}

impl<R: std::fmt::Debug> From<crate::sa::Incomplete<R>> for Error {
    fn from(incomplete: crate::sa::Incomplete<R>) -> Self {
        Self::Sa(incomplete.into())
    }
}

/// Converts each error into [`io::Error`] with the kind that fits.
macro_rules! into_io {
    ($($error:ty),*) => {
        $(impl From<$error> for io::Error {
            fn from(error: $error) -> Self {
                Self::new(error.io_kind(), error)
            }
        })*
    };
}

into_io!(
    OpenError,
    ListenError,
    AcceptError,
    ConnectError,
    QueryError,
    PathError,
    crate::sidr::QueryError,
    RecvError,
    OpError
);

impl From<Invalid> for io::Error {
    fn from(error: Invalid) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

/// What the device says of work that it did not take.
pub(crate) fn not_posted(error: PostError) -> DeviceError {
    match error {
        PostError::State { state } => DeviceError::State { state },
        PostError::TooLong { len, limit } => {
            DeviceError::Limit { what: "message length", value: len as u64, limit: limit as u64 }
        }
        PostError::Limit { what, value, limit } => DeviceError::Limit { what, value, limit },
        PostError::Invalid { why } => DeviceError::Invalid { why },
        PostError::Gone => DeviceError::Gone,
        PostError::Full => DeviceError::InUse {
            what: "every place of the work queue",
            holder: "posted work, which has not completed or is not polled",
        },
        _ => DeviceError::Unsupported { what: "this work request" },
    }
}

#[cfg(test)]
mod tests;
