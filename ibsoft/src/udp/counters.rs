//! What the UDP link counts.

use ibwire::icrc::IdClass;

/// From the socket to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RxCounters {
    pub datagrams: u64,
    pub batches: u64,
    pub drop_too_short: u64,
    pub drop_icrc: u64,
    pub drop_without_df: u64,
    /// The device was taken away first.
    pub drop_gone: u64,
    pub icrc_full: u64,
    pub icrc_predicted_id: u64,
    pub icrc_solved_id: u64,
    pub errors: u64,
    pub failed_sockets: u64,
}

impl RxCounters {
    /// Counts how far the ICRC of a packet could be checked, and says whether that is far enough.
    ///
    /// Every sender of RoCEv2 sets DF (spec/softhca.md 1.10). To believe in one that does not would let twice as many
    /// damaged packets pass: it is refused.
    pub(super) fn count_id(&mut self, class: IdClass) -> bool {
        let (counter, accepted) = match class {
            IdClass::Zero => (&mut self.icrc_full, true),
            IdClass::Predicted => (&mut self.icrc_predicted_id, true),
            IdClass::Solved => (&mut self.icrc_solved_id, true),
            IdClass::SolvedWithoutDf => (&mut self.drop_without_df, false),
        };
        *counter += 1;
        accepted
    }

    pub(super) fn named(&self) -> [(&'static str, u64); 11] {
        [
            ("link_rx_datagrams", self.datagrams),
            ("link_rx_batches", self.batches),
            ("link_drop_too_short", self.drop_too_short),
            ("link_drop_icrc", self.drop_icrc),
            ("link_drop_without_df", self.drop_without_df),
            ("link_drop_gone", self.drop_gone),
            ("link_icrc_full", self.icrc_full),
            ("link_icrc_predicted_id", self.icrc_predicted_id),
            ("link_icrc_solved_id", self.icrc_solved_id),
            ("link_rx_errors", self.errors),
            ("link_rx_failed_sockets", self.failed_sockets),
        ]
    }
}

/// From the engine to the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct TxCounters {
    pub datagrams: u64,
    pub batches: u64,
    pub gso_fallbacks: u64,
    pub drop_no_source: u64,
    pub drop_too_long: u64,
    pub drop_refused: u64,
    /// The sockets were closed first.
    pub drop_closed: u64,
}

impl TxCounters {
    pub(super) fn named(&self) -> [(&'static str, u64); 7] {
        [
            ("link_tx_datagrams", self.datagrams),
            ("link_tx_batches", self.batches),
            ("link_gso_fallbacks", self.gso_fallbacks),
            ("link_drop_tx_no_source", self.drop_no_source),
            ("link_drop_tx_too_long", self.drop_too_long),
            ("link_drop_tx_refused", self.drop_refused),
            ("link_drop_tx_closed", self.drop_closed),
        ]
    }
}
