//! What the UDP link counts.

use ibwire::icrc::IdClass;

/// From the socket to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RxCounters {
    pub datagrams: u64,
    pub batches: u64,
    pub drop_too_short: u64,
    pub drop_icrc: u64,
    pub icrc_full: u64,
    pub icrc_predicted_id: u64,
    pub icrc_solved_id: u64,
    pub icrc_without_df: u64,
    pub errors: u64,
}

impl RxCounters {
    /// Counts how far the ICRC of a packet could be checked.
    pub(super) fn count_id(&mut self, class: IdClass) {
        *match class {
            IdClass::Zero => &mut self.icrc_full,
            IdClass::Predicted => &mut self.icrc_predicted_id,
            IdClass::Solved => &mut self.icrc_solved_id,
            IdClass::SolvedWithoutDf => &mut self.icrc_without_df,
        } += 1;
    }

    pub(super) fn named(&self) -> [(&'static str, u64); 9] {
        [
            ("link_rx_datagrams", self.datagrams),
            ("link_rx_batches", self.batches),
            ("link_drop_too_short", self.drop_too_short),
            ("link_drop_icrc", self.drop_icrc),
            ("link_icrc_full", self.icrc_full),
            ("link_icrc_predicted_id", self.icrc_predicted_id),
            ("link_icrc_solved_id", self.icrc_solved_id),
            ("link_icrc_without_df", self.icrc_without_df),
            ("link_rx_errors", self.errors),
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
}

impl TxCounters {
    pub(super) fn named(&self) -> [(&'static str, u64); 6] {
        [
            ("link_tx_datagrams", self.datagrams),
            ("link_tx_batches", self.batches),
            ("link_gso_fallbacks", self.gso_fallbacks),
            ("link_drop_tx_no_source", self.drop_no_source),
            ("link_drop_tx_too_long", self.drop_too_long),
            ("link_drop_tx_refused", self.drop_refused),
        ]
    }
}
