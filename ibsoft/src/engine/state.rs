//! States of queue pairs.

/// The state of a QP (IBTA vol. 1, 10.3; spec/softhca.md 2.11).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Reset,
    Init,
    ReadyToReceive,
    ReadyToSend,
    /// SQD, and what was started is not complete.
    Draining,
    /// SQD.
    Drained,
    /// SQE: a send of a raw QP has failed, receiving goes on.
    SendError,
    Error,
}

impl State {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::ReadyToReceive => "RTR",
            Self::ReadyToSend => "RTS",
            Self::Draining => "SQD, draining",
            Self::Drained => "SQD",
            Self::SendError => "SQE",
            Self::Error => "ERR",
        }
    }

    /// Whether sends can be posted.
    pub(super) const fn takes_sends(self) -> bool {
        self.sends() || self.flushes_sends()
    }

    /// Whether sends that are posted end as flushed.
    pub(super) const fn flushes_sends(self) -> bool {
        matches!(self, Self::Error | Self::SendError)
    }

    /// Whether requests leave, be it only those of messages that were started.
    pub(super) const fn sends(self) -> bool {
        matches!(self, Self::ReadyToSend | Self::Draining | Self::Drained)
    }

    /// Whether no message is started.
    pub(super) const fn drains(self) -> bool {
        matches!(self, Self::Draining | Self::Drained)
    }
}
