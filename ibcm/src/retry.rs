//! Whether and when a failed attempt to connect is made again.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use ibwire::RejReason;

use crate::error::ConnectError;
use crate::proto::Invalid;

/// Whether and when [`Connect`](crate::Connect) makes another attempt, within its deadline.
///
/// Each attempt has a communication ID, a queue pair and a starting PSN of its own, and its REQ is timed by what is left of
/// the deadline. The last attempt's error is the result; [`ConnectError::Unreachable`] and
/// [`Rejection`](crate::Rejection) tell what all attempts did together.
///
/// The default makes one more attempt, at once, if the peer still holds an older connection of the same queue pair
/// (reason 10).
///
/// ```
/// # use ibcm::{ConnectError, Connection, Hca, RejReason, Retry, ServiceId};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (hca, sid) = (Hca::open("soft").await?, ServiceId::new(0x1000_0000_0000_0001));
/// # let path = hca.path_to(hca.gid()).service_id(sid).await?;
/// // The service may not be there yet, which is no reason for another attempt by itself.
/// let not_yet = |error: &ConnectError| match error {
///     ConnectError::Rejected(no) => no.reason == RejReason::INVALID_SERVICE_ID,
///     other => other.is_retryable(),
/// };
/// let millis = Duration::from_millis;
/// let retry = Retry::backoff().pause(millis(1)..=millis(10)).attempts(3).when(not_yet);
/// match Connection::connect(path).retry(retry).await {
///     Err(ConnectError::Rejected(no)) => assert_eq!((no.attempts, no.sent), (3, 3)),
///     other => return Err(format!("{other:?}").into()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Retry {
    attempts: u32,
    first_pause: Duration,
    longest_pause: Duration,
    when: When,
}

/// After which errors.
#[derive(Clone)]
enum When {
    Stale,
    Retryable,
    Custom(Arc<dyn Fn(&ConnectError) -> bool + Send + Sync>),
}

/// By what the waits of an attempt are measured that another one may follow, at most: about half a second each, so that
/// a peer with many at its door is not idle before those that it turned away come again.
const SHORT_WAITS: Duration = Duration::from_millis(4500);

impl Retry {
    /// Any number of attempts, as long as [`ConnectError::is_retryable`] says so, with pauses between them that double from
    /// 20 ms to 2 s. Each pause is random between half of that and the whole, so that peers which failed together do not
    /// come back together.
    pub const fn backoff() -> Self {
        Self {
            attempts: u32::MAX,
            first_pause: Duration::from_millis(20),
            longest_pause: Duration::from_secs(2),
            when: When::Retryable,
        }
    }

    /// One attempt, whatever comes of it.
    pub const fn never() -> Self {
        Self::backoff().attempts(1)
    }

    /// The first pause, more than zero, and the longest to which the pauses double. An attempt that could not begin before
    /// the deadline is not waited for.
    #[must_use]
    pub fn pause(mut self, pause: RangeInclusive<Duration>) -> Self {
        (self.first_pause, self.longest_pause) = pause.into_inner();
        self
    }

    /// The most attempts, the first included. At least 1.
    #[must_use]
    pub const fn attempts(mut self, most: u32) -> Self {
        self.attempts = most;
        self
    }

    /// After which errors there is another attempt, in place of [`ConnectError::is_retryable`].
    #[must_use]
    pub fn when(mut self, again: impl Fn(&ConnectError) -> bool + Send + Sync + 'static) -> Self {
        self.when = When::Custom(Arc::new(again));
        self
    }

    pub(crate) fn check(&self) -> Result<(), Invalid> {
        if self.attempts == 0 {
            return Err(Invalid::at_least("attempts", 0, 1));
        }
        if matches!(self.when, When::Stale) {
            return Ok(());
        }
        Invalid::more_than_zero("the first pause", self.first_pause)?;
        Invalid::not_less("the longest pause", self.longest_pause, self.first_pause)
    }

    /// The time by which the waits of the attempt with this number, counted from 1, are measured when so much is left.
    pub(crate) fn time_for_waits(&self, number: u32, left: Duration) -> Duration {
        let is_last = number >= self.attempts || matches!(self.when, When::Stale);
        if is_last { left } else { left.min(SHORT_WAITS) }
    }

    /// How long to wait before the next attempt after `made` of them, the last with this error; `None` if there is none.
    /// `jitter` draws a random number.
    pub(crate) fn pause_after(
        &self,
        made: u32,
        error: &ConnectError,
        jitter: impl FnOnce() -> u32,
    ) -> Option<Duration> {
        if made >= self.attempts || !self.when.is_met(error) {
            return None;
        }
        let doubled = self.first_pause.saturating_mul(2u32.saturating_pow(made.saturating_sub(1)));
        let half = doubled.min(self.longest_pause) / 2;
        Some(half + half.mul_f64(f64::from(jitter()) / f64::from(u32::MAX)))
    }
}

impl When {
    fn is_met(&self, error: &ConnectError) -> bool {
        match (self, error) {
            (Self::Stale, ConnectError::Rejected(no)) => no.reason == RejReason::STALE_CONNECTION,
            (Self::Stale, _) => false,
            (Self::Retryable, error) => error.is_retryable(),
            (Self::Custom(again), error) => again(error),
        }
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts: 2, first_pause: Duration::ZERO, longest_pause: Duration::ZERO, when: When::Stale }
    }
}

impl fmt::Debug for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry")
            .field("attempts", &self.attempts)
            .field("pause", &(self.first_pause..=self.longest_pause))
            .field("when", &self.when)
            .finish()
    }
}

impl fmt::Debug for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stale => "stale",
            Self::Retryable => "is_retryable",
            Self::Custom(_) => "custom",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOWN: ConnectError = ConnectError::PortDown { port: 1 };

    fn pauses(retry: &Retry, jitter: u32, attempts: u32) -> Vec<u128> {
        let pause = |made| retry.pause_after(made, &DOWN, || jitter).map(|pause| pause.as_millis());
        (1..=attempts).filter_map(pause).collect()
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let retry = Retry::backoff();
        assert_eq!(pauses(&retry, u32::MAX, 9), [20, 40, 80, 160, 320, 640, 1280, 2000, 2000]);
        assert_eq!(pauses(&retry, 0, 9), [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert!(retry.pause_after(u32::MAX - 1, &DOWN, || u32::MAX).is_some());
        let retry = retry.pause(Duration::from_millis(7)..=Duration::MAX);
        assert_eq!(pauses(&retry, u32::MAX, 3), [7, 14, 28]);
    }

    #[test]
    fn attempts_and_errors_decide() {
        let never = Retry::never().when(|_| true);
        assert_eq!(pauses(&never, 0, 2), []);
        assert_eq!(pauses(&Retry::backoff().attempts(3), 0, 9), [10, 20]);
        assert_eq!(pauses(&Retry::default(), 0, 2), []);
        assert_eq!(Retry::backoff().pause_after(1, &ConnectError::Closed, || 0), None);
        let twice = Retry::backoff().when(|error| matches!(error, ConnectError::Closed));
        assert!(twice.pause_after(1, &ConnectError::Closed, || 0).is_some());
        assert_eq!(twice.pause_after(1, &DOWN, || 0), None);
    }

    #[test]
    fn only_the_last_attempt_waits_long() {
        let secs = Duration::from_secs_f64;
        let twice = Retry::backoff().attempts(2);
        for (retry, number, left, has) in [
            (&twice, 1, 60.0, 4.5),
            (&twice, 1, 3.0, 3.0),
            (&twice, 2, 60.0, 60.0),
            (&Retry::never(), 1, 60.0, 60.0),
            (&Retry::default(), 1, 60.0, 60.0),
        ] {
            assert_eq!(retry.time_for_waits(number, secs(left)), secs(has), "{retry:?}");
        }
    }

    #[test]
    fn what_is_out_of_range() {
        let second = Duration::from_secs(1);
        for (retry, text) in [
            (Retry::backoff().attempts(0), "attempts is 0, at least 1 is needed"),
            (
                Retry::backoff().pause(Duration::ZERO..=second),
                "the first pause is 0ns, it must be more than zero",
            ),
            (
                Retry::backoff().pause(second..=second / 2),
                "the longest pause is 500ms, at least 1s is needed",
            ),
        ] {
            assert_eq!(retry.check().unwrap_err().to_string(), text);
        }
        for retry in [Retry::backoff(), Retry::never(), Retry::default()] {
            retry.check().unwrap();
        }
    }
}
