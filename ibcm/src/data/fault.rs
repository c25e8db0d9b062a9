//! What broke a connection.

use std::time::Duration;

use ibdev::Status;

use crate::closed::How;
use crate::error::{OpCause, RecvError};

/// What broke a connection, before either side has disconnected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An operation failed.
    Operation(Status),
    /// Nothing was heard from the peer for so long.
    Silence(Duration),
}

impl From<Fault> for OpCause {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Operation(status) => Self::Status(status),
            Fault::Silence(silence) => Self::Silent(silence),
        }
    }
}

impl From<Fault> for RecvError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Operation(status) => Self::Broken(status),
            Fault::Silence(silence) => Self::Silent(silence),
        }
    }
}

impl From<Fault> for How {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Operation(status) => Self::Broken(status),
            Fault::Silence(silence) => Self::Silent(silence),
        }
    }
}
