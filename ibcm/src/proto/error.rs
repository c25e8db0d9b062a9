//! Why a command was refused.

use ibwire::Qpn;

use super::connection::State;
use super::invalid::Invalid;

/// Why [`Endpoint::listen`](super::Endpoint::listen) refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// There is a listener with this service ID and mask, port, GID, LID and discriminator.
    #[error("the service ID has a listener already")]
    AddrInUse,
    /// A value is out of range.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The device was removed.
    #[error("the device is gone")]
    DeviceRemoved,
}

/// Why [`Endpoint::connect`](super::Endpoint::connect) refused. Nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A value is out of range.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The port of the path carries no traffic at present.
    #[error("port {0} is down")]
    PortDown(u8),
    /// The queue pair serves a connection, or one that is in TimeWait.
    #[error("queue pair {0} still belongs to a connection")]
    QpInUse(Qpn),
    /// The device was removed.
    #[error("the device is gone")]
    DeviceRemoved,
}

/// Why a command about alternate paths was refused. Nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// The connection has ended.
    #[error("the connection is gone")]
    Gone,
    /// The connection is not established.
    #[error("not possible in state {0}")]
    State(State),
    /// The device cannot have this path beside the primary one.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The port of the path carries no traffic at present.
    #[error("port {0} is down")]
    PortDown(u8),
    /// Only the side that sent the REQ proposes paths.
    #[error("only the active side loads alternate paths")]
    PassiveSide,
    /// The peer has said that it cannot migrate paths, or has not answered an earlier LAP.
    #[error("the peer cannot migrate paths, or did not answer when it was asked before")]
    PeerUnable,
    /// An earlier LAP is not answered yet.
    #[error("the peer has not answered an earlier request yet")]
    Busy,
    /// An alternate path is loaded; another one can be when the queue pair has migrated to it.
    #[error("an alternate path is loaded already")]
    Loaded,
    /// No alternate path is loaded.
    #[error("no alternate path is loaded")]
    NotLoaded,
    /// The peer asks for nothing.
    #[error("the peer does not ask for an alternate path")]
    NotAsked,
}

impl From<CommandError> for PathError {
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::State(state) => Self::State(state),
            CommandError::Invalid(invalid) => Self::Invalid(invalid),
            CommandError::Gone | CommandError::QpInUse(_) => Self::Gone,
        }
    }
}

/// Why a command for a connection was refused. Nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The connection has ended: the peer withdrew, it failed, or it was given up here.
    #[error("the connection is gone")]
    Gone,
    /// The connection is in a state that does not take this command.
    #[error("not possible in state {0}")]
    State(State),
    /// A value is out of range.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The queue pair serves another connection, or one that is in TimeWait.
    #[error("queue pair {0} still belongs to a connection")]
    QpInUse(Qpn),
}
