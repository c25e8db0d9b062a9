//! What a REQ tells the peer about time, derived from what is left of the deadline.
//!
//! The rule stands at [`Connect::deadline`](crate::Connect::deadline), for users.

use std::time::Duration;

use ibwire::TimeCode;

/// The codes of a REQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timing {
    pub(crate) response_timeout: TimeCode,
    pub(crate) local_response_timeout: TimeCode,
    pub(crate) max_cm_retries: u8,
    /// Up to so much longer is each wait for an answer to the REQ.
    pub(crate) jitter: Duration,
}

/// How long connecting, and accepting, may take unless the program says otherwise.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);
/// The shortest derived response timeout, 16.8 ms: what a program needs to be scheduled.
const SHORTEST: u8 = 12;
/// The longest, 4.3 s: what Linux uses.
const LONGEST: u8 = 20;
/// So many REQs shall fit what measures the waits.
const REQUESTS: u32 = 8;
/// The fewest retries that a REQ grants: REP and DREQ are repeated as often, and are not bound to the deadline.
const FEWEST_RETRIES: u8 = 4;
/// The most that the field holds.
const MOST_RETRIES: u8 = 15;

impl Timing {
    /// Derives what is not given. So much is `left` of the deadline, and so much of that measures the waits; a packet is
    /// under way for `life_time` at most.
    pub(crate) fn derive(
        left: Duration,
        for_waits: Duration,
        life_time: TimeCode,
        response_timeout: Option<Duration>,
    ) -> Self {
        let period = |code: TimeCode| code.duration() + 2 * life_time.duration();
        let fits = |code: &TimeCode| period(*code).saturating_mul(REQUESTS) <= for_waits;
        let derived = || {
            let codes = (SHORTEST..=LONGEST).rev().map(TimeCode::truncate);
            codes.into_iter().find(fits).unwrap_or(TimeCode::truncate(SHORTEST))
        };
        let is_given = response_timeout.is_some();
        let response_timeout = response_timeout.map_or_else(derived, TimeCode::at_least);
        let period = period(response_timeout);
        let jitter = (response_timeout.duration() / 2).max(life_time.duration());
        let retries = left.as_nanos().div_ceil(period.as_nanos()).saturating_sub(1);
        Self {
            response_timeout,
            local_response_timeout: TimeCode::at_least(period),
            max_cm_retries: u8::try_from(retries).unwrap_or(u8::MAX).clamp(FEWEST_RETRIES, MOST_RETRIES),
            jitter: if is_given { Duration::ZERO } else { jitter },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn derive(secs: u64, life_time: u8) -> (u8, u8, u8) {
        let left = Duration::from_secs(secs);
        codes(&Timing::derive(left, left, TimeCode::truncate(life_time), None))
    }

    fn codes(timing: &Timing) -> (u8, u8, u8) {
        (timing.response_timeout.get(), timing.local_response_timeout.get(), timing.max_cm_retries)
    }

    #[test]
    fn eight_requests_fit_the_deadline() {
        assert_eq!(derive(1, 16), (12, 18, 4));
        assert_eq!(derive(5, 16), (14, 18, 8));
        assert_eq!(derive(10, 16), (17, 18, 9));
        assert_eq!(derive(60, 16), (20, 21, 12));
        assert_eq!(derive(600, 16), (20, 21, 15));
        assert_eq!(derive(0, 16), (12, 18, 4));
        assert_eq!(derive(10, 4), (18, 19, 9));
    }

    /// As before another attempt: short waits, and as many as fit what is left.
    #[test]
    fn waits_are_measured_by_their_own_time() {
        let derive = |life_time| {
            let (left, for_waits) = (Duration::from_secs(30), Duration::from_millis(4500));
            Timing::derive(left, for_waits, TimeCode::truncate(life_time), None)
        };
        assert_eq!(codes(&derive(16)), (12, 18, 15));
        assert_eq!(codes(&derive(4)), (17, 18, 15));
        // Those who ask together come back apart, however short the response timeout is.
        let millis = |life_time| derive(life_time).jitter.as_millis();
        assert_eq!((millis(16), millis(4)), (268, 268));
    }

    #[test]
    fn a_given_response_timeout_is_rounded_up() {
        let (left, given) = (Duration::from_secs(10), Some(Duration::from_millis(300)));
        let timing = Timing::derive(left, left, TimeCode::truncate(16), given);
        assert_eq!((timing.response_timeout.get(), timing.max_cm_retries), (17, 9));
        assert_eq!(timing.jitter, Duration::ZERO);
    }
}
