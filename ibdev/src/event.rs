//! What a device reports on its own.

use ibwire::Qpn;

/// An asynchronous event of a device (IBTA vol. 1, 11.6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceEvent {
    /// The port carries traffic again.
    PortUp(u8),
    /// The port is down.
    PortDown(u8),
    /// The port's GID table changed.
    GidChange(u8),
    /// The port's LID changed.
    LidChange(u8),
    /// The port's P_Key table changed.
    PkeyChange(u8),
    /// The port has another master subnet manager, or that is elsewhere.
    SmChange(u8),
    /// The subnet manager asks to register with the SA again: groups, services, event subscriptions.
    ClientReregister(u8),
    /// The first packet arrived on a QP in RTR: the peer considers the connection established. Once a QP.
    CommEstablished(Qpn),
    /// The QP went to the error state by itself.
    QpError(Qpn),
    /// The completion queue of the QP had no room for a completion, which is lost. The QP is in the error state. Raw QPs
    /// only: the completion queues of others have room.
    CqError(Qpn),
    /// A request of the peer asked for memory that it may not touch. The QP is in the error state.
    QpAccessError(Qpn),
    /// A request of the peer was against the rules. The QP is in the error state.
    QpRequestError(Qpn),
    /// The QP goes by its alternate path from now on (spec/softhca.md 2.12). None is loaded any more.
    PathMigrated(Qpn),
    /// The peer has migrated, but not to the path that is loaded here: its packets are dropped. Once a loaded path.
    PathMigrationFailed(Qpn),
    /// A QP in SQD has finished what it had started.
    SqDrained(Qpn),
    /// A QP in the error state has taken its last receive from its shared receive queue.
    LastWqeReached(Qpn),
    /// The shared receive queue with this number has fewer receives than the limit that was set. Once a limit set.
    SrqLimit(u32),
    /// The device is gone; nothing follows, maybe not even completions of what is posted.
    Gone,
}

impl DeviceEvent {
    /// The queue pair that it is about.
    pub const fn queue_pair(&self) -> Option<Qpn> {
        match *self {
            Self::CommEstablished(qpn)
            | Self::QpError(qpn)
            | Self::CqError(qpn)
            | Self::QpAccessError(qpn)
            | Self::QpRequestError(qpn)
            | Self::PathMigrated(qpn)
            | Self::PathMigrationFailed(qpn)
            | Self::SqDrained(qpn)
            | Self::LastWqeReached(qpn) => Some(qpn),
            Self::PortUp(_)
            | Self::PortDown(_)
            | Self::GidChange(_)
            | Self::LidChange(_)
            | Self::PkeyChange(_)
            | Self::SmChange(_)
            | Self::ClientReregister(_)
            | Self::SrqLimit(_)
            | Self::Gone => None,
        }
    }
}
