//! Why an alternate path is not loaded.

use std::io;
use std::time::Duration;

use ibdev::DeviceError;
use ibwire::PrivateData;

use crate::proto::message::{ApInfo, ApStatus};
use crate::proto::{self, Effort, Invalid};

/// Why [`Connection::load_alternate_path`](crate::Connection::load_alternate_path) and its like failed. The connection
/// stays as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// The device cannot have this path beside the primary one. Nothing was sent.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The port of the path is down, as far as the HCA knows: one that comes up counts from
    /// [`HcaEvent::PortUp`](crate::HcaEvent::PortUp) on. Nothing was sent.
    #[error("port {port} is down")]
    PortDown {
        /// The port.
        port: u8,
    },
    /// Only the side that asked for the connection loads alternate paths. Nothing was sent.
    #[error("only the active side loads alternate paths")]
    PassiveSide,
    /// The peer has said before that it cannot migrate paths, or has never answered. Nothing was sent.
    #[error("the peer cannot migrate paths, or did not answer when it was asked before")]
    PeerUnable,
    /// Another alternate path is being loaded. Nothing was sent.
    #[error("another alternate path is being loaded")]
    Busy,
    /// An alternate path is loaded, which can be replaced once the connection has migrated to it. Nothing was sent.
    #[error("an alternate path is loaded already")]
    Loaded,
    /// There is no alternate path to have migrated to.
    #[error("no alternate path is loaded")]
    NotLoaded,
    /// The peer does not want to load it.
    #[error("the peer refused: {status}")]
    Refused {
        /// Why.
        status: ApStatus,
        /// What came with the status.
        info: Box<ApInfo>,
        /// From the peer's program.
        private_data: Box<PrivateData<148>>,
    },
    /// The peer did not answer, as Linux never does.
    #[error(
        "no answer to {sent} request{} in {waited:?}{}",
        if *sent == 1 { "" } else { "s" },
        if *busy { ", though the peer said that it is busy" } else { "" }
    )]
    Unanswered {
        /// How often it was asked.
        sent: u8,
        /// From the first request on.
        waited: Duration,
        /// It asked for patience meanwhile.
        busy: bool,
    },
    /// The peer has loaded it, and this side's queue pair did not.
    #[error("the queue pair does not take the path")]
    Qp(#[source] DeviceError),
    /// The connection has ended, or is not established.
    #[error("the connection is closed")]
    Closed,
}

impl From<proto::PathError> for PathError {
    fn from(error: proto::PathError) -> Self {
        use proto::PathError as E;
        match error {
            E::Invalid(invalid) => Self::Invalid(invalid),
            E::PortDown(port) => Self::PortDown { port },
            E::PassiveSide => Self::PassiveSide,
            E::PeerUnable => Self::PeerUnable,
            E::Busy => Self::Busy,
            E::Loaded => Self::Loaded,
            E::NotLoaded => Self::NotLoaded,
            E::Gone | E::State(_) | E::NotAsked => Self::Closed,
        }
    }
}

impl From<Effort> for PathError {
    fn from(Effort { sent, waited, busy }: Effort) -> Self {
        Self::Unanswered { sent, waited, busy }
    }
}

impl PathError {
    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::Invalid(_) | Self::PassiveSide | Self::NotLoaded => io::ErrorKind::InvalidInput,
            Self::PortDown { .. } => io::ErrorKind::NetworkDown,
            Self::PeerUnable => io::ErrorKind::Unsupported,
            Self::Busy | Self::Loaded => io::ErrorKind::ResourceBusy,
            Self::Refused { .. } => io::ErrorKind::ConnectionRefused,
            Self::Unanswered { .. } => io::ErrorKind::TimedOut,
            Self::Qp(error) => error.io_kind(),
            Self::Closed => io::ErrorKind::NotConnected,
        }
    }
}
