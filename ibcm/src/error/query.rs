//! Why no path was found.

use std::io;

use ibdev::DeviceError;
use ibwire::Gid;

use crate::proto::Invalid;

/// Why [`Hca::path_to`](crate::Hca::path_to) gave no path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// There is no path to the destination.
    #[error("no path to {dgid}")]
    NoPath {
        /// The destination.
        dgid: Gid,
    },
    /// The port to go out of is down.
    #[error("port {port} is down")]
    PortDown {
        /// The port.
        port: u8,
    },
    /// A value is out of range.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The device failed or is gone.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The subnet's SA refused, or did not answer.
    #[error(transparent)]
    Sa(Box<ibsa::QueryError>),
    /// The HCA was closed or its runtime ended.
    #[error("the HCA is closed")]
    Closed,
}

impl QueryError {
    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::NoPath { .. } => io::ErrorKind::HostUnreachable,
            Self::PortDown { .. } => io::ErrorKind::NetworkDown,
            Self::Invalid(_) => io::ErrorKind::InvalidInput,
            Self::Device(e) => e.io_kind(),
            Self::Sa(e) => e.io_kind(),
            Self::Closed => io::ErrorKind::NotConnected,
        }
    }
}
