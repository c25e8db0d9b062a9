//! Why listening failed.

use std::io;

use ibdev::DeviceError;
use ibwire::ServiceId;

use super::OpenError;
use crate::proto::Invalid;

/// Why [`Listener::bind`](crate::Listener::bind) or [`Listener::accept`](crate::Listener::accept) failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another listener of the same HCA takes the same: service ID and mask, port, GID, LID and discriminator.
    #[error("service ID {service_id} already has a listener")]
    InUse {
        /// The service ID.
        service_id: ServiceId,
    },
    /// No address of the HCA is the one to listen on.
    #[error("{address} is not an address of this HCA")]
    AddressNotLocal {
        /// What was asked for.
        address: std::net::IpAddr,
    },
    /// No device could be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A value is out of range.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The device failed or is gone.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The listener or its HCA was closed, or the runtime ended.
    #[error("the listener is closed")]
    Closed,
}

impl ListenError {
    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::InUse { .. } => io::ErrorKind::AddrInUse,
            Self::AddressNotLocal { .. } => io::ErrorKind::AddrNotAvailable,
            Self::Open(e) => e.io_kind(),
            Self::Invalid(_) => io::ErrorKind::InvalidInput,
            Self::Device(e) => e.io_kind(),
            Self::Closed => io::ErrorKind::NotConnected,
        }
    }
}
