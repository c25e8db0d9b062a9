//! What the service counts.

/// Counters of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SaCounters {
    /// MADs that arrived.
    pub received: u64,
    /// MADs that were sent.
    pub sent: u64,
    /// Requests that were let in.
    pub requests: u64,
    /// Answers with a status other than 0.
    pub refused: u64,
    /// Requests that were told to come later.
    pub busy: u64,
    /// Transfers that were begun.
    pub transfers: u64,
    /// Transfers that failed.
    pub transfers_failed: u64,
    /// Reports that were begun.
    pub reports: u64,
    /// Reports that nobody answered.
    pub reports_given_up: u64,
    /// Service records whose lease ended.
    pub leases_expired: u64,
    /// Dropped: no SA MAD.
    pub drop_malformed: u64,
    /// Dropped: the service is silent.
    pub drop_silent: u64,
    /// Dropped: an answer to nothing.
    pub drop_response: u64,
    /// Dropped: an SM_Key that is neither 0 nor right.
    pub drop_sm_key: u64,
    /// Dropped: no port of the subnet has that LID.
    pub drop_unknown_requester: u64,
    /// Dropped: too many answers wait.
    pub drop_overrun: u64,
    /// Dropped: part of a transfer that is not known.
    pub drop_unknown_transfer: u64,
    /// Reports that were not sent because too many wait for an answer.
    pub drop_reports: u64,
    /// Subscriptions, groups and records that a bound kept out.
    pub no_resources: u64,
}

impl SaCounters {
    /// All of them by name.
    pub const fn named(&self) -> [(&'static str, u64); 19] {
        [
            ("received", self.received),
            ("sent", self.sent),
            ("requests", self.requests),
            ("refused", self.refused),
            ("busy", self.busy),
            ("transfers", self.transfers),
            ("transfers_failed", self.transfers_failed),
            ("reports", self.reports),
            ("reports_given_up", self.reports_given_up),
            ("leases_expired", self.leases_expired),
            ("drop_malformed", self.drop_malformed),
            ("drop_silent", self.drop_silent),
            ("drop_response", self.drop_response),
            ("drop_sm_key", self.drop_sm_key),
            ("drop_unknown_requester", self.drop_unknown_requester),
            ("drop_overrun", self.drop_overrun),
            ("drop_unknown_transfer", self.drop_unknown_transfer),
            ("drop_reports", self.drop_reports),
            ("no_resources", self.no_resources),
        ]
    }
}
