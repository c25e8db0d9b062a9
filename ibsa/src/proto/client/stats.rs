//! What the client has counted.

/// Counters of a [`Client`](super::Client), all since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Requests sent, the first copy of each.
    pub requests: u64,
    /// Further copies after silence.
    pub repeated: u64,
    /// Requests answered without an error.
    pub answered: u64,
    /// Requests that failed.
    pub failed: u64,
    /// BUSY answers.
    pub busy: u64,
    /// Redirections followed.
    pub redirected: u64,
    /// Of what the SA said of itself: redirections into a partition of which the port is no member. Requests go on to where they
    /// went before.
    pub refused_redirect: u64,
    /// Notices reported.
    pub reports: u64,
    /// Copies of notices, acknowledged again.
    pub reports_again: u64,
    /// Dropped: notices from somebody who is not the port's SA. They are not acknowledged.
    pub dropped_report: u64,
    /// Dropped: of another class version, or no SA MAD at all.
    pub dropped_version: u64,
    /// Dropped: answers to no request that is under way, or from somebody else than was asked; acknowledgements of what is
    /// acknowledged.
    pub dropped_stray: u64,
    /// Dropped: segments of answers that were there already or beyond the window, of which those that were acknowledged are so
    /// again; first ones that break a rule.
    pub dropped_segment: u64,
    /// Dropped: answers about something else than was asked.
    pub dropped_mismatch: u64,
    /// Dropped: requests that are for an SA.
    pub dropped_request: u64,
    /// Requests that were not taken because too many wait.
    pub refused_queue: u64,
}
