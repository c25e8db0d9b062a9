//! States of a queue pair (spec/softhca.md 2.11).

use ibdev::qp::Transition;

/// The state that was asked for. The device may have gone to the error state by itself, where it takes work as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Reset,
    Init,
    Rtr,
    Rts,
    Sqd,
    Error,
}

impl State {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Error => "ERR",
        }
    }

    /// Whether sends can be posted.
    pub(super) const fn takes_sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd | Self::Error)
    }

    /// Where the transition leads from here, if the state table has it. Whether it fits the transport is another question.
    pub(super) const fn next(self, transition: &Transition) -> Option<Self> {
        match (self, transition) {
            (_, Transition::Reset) => Some(Self::Reset),
            (Self::Reset | Self::Init, Transition::Init(_)) => Some(Self::Init),
            (Self::Init, Transition::Rtr(_) | Transition::DatagramRtr) => Some(Self::Rtr),
            (Self::Rtr, Transition::Rts(_) | Transition::DatagramRts { .. }) => Some(Self::Rts),
            (Self::Rts, Transition::SqDrain) => Some(Self::Sqd),
            (Self::Sqd, Transition::SqResume)
            | (Self::Rts, Transition::LoadPath(_) | Transition::Migrate) => Some(Self::Rts),
            (Self::Reset, _) => None,
            (_, Transition::Error) => Some(Self::Error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use ibdev::Access;
    use ibdev::qp::Init;
    use ibwire::QKey;

    use super::*;

    #[test]
    fn a_queue_pair_goes_only_where_the_state_table_leads() {
        let init = Transition::Init(Init { port: 1, pkey_index: 0, access: Access::empty(), qkey: QKey(0) });
        assert_eq!(State::Reset.next(&init), Some(State::Init));
        assert_eq!(State::Init.next(&init), Some(State::Init));
        assert_eq!(State::Rts.next(&init), None);
        assert_eq!(State::Reset.next(&Transition::Error), None);
        assert_eq!(State::Rtr.next(&Transition::Error), Some(State::Error));
        assert_eq!(State::Rts.next(&Transition::SqDrain), Some(State::Sqd));
        assert_eq!(State::Sqd.next(&Transition::SqResume), Some(State::Rts));
        for state in [State::Reset, State::Init, State::Rtr, State::Rts, State::Sqd, State::Error] {
            assert_eq!(state.next(&Transition::Reset), Some(State::Reset));
            assert_eq!(state.next(&Transition::DatagramRtr).is_some(), state == State::Init);
            assert_eq!(state.next(&Transition::SqResume).is_some(), state == State::Sqd);
        }
    }
}
