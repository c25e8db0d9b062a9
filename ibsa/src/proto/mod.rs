//! The engines of the class, sans-IO: transfers of more than one MAD, and the client's transactions.

pub mod client;
pub mod rmpp;

use std::time::{Duration, Instant};

/// Waits are no longer than this, so that no limit that a caller sets leaves the clock's range.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// The time `wait` after `now`, 30 years at most.
pub fn after(now: Instant, wait: Duration) -> Instant {
    now + wait.min(FAR)
}
