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
