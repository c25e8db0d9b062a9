//! What keeps something at the SA: when to try again, and how long to wait.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::ChaCha8Rng;

/// After a change of the SM everything is registered again within so long, by chance, for others do the same.
pub(super) const SPREAD: Duration = Duration::from_secs(1);

/// How long giving something up may take. What the SA then still has ends by its own rules.
pub(super) const LEAVE: Duration = Duration::from_secs(5);

/// A time within [`SPREAD`].
pub(super) fn spread(rng: &mut ChaCha8Rng) -> Duration {
    SPREAD.mul_f64(rng.random_range(0.0..1.0))
}

/// Rests between attempts: 1 s, doubled up to 16 s, each up to a quarter more or less (spec/sa.md 5.5).
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    pub(super) fn next(&mut self, rng: &mut ChaCha8Rng) -> Duration {
        let rest = Duration::from_secs(1 << self.failures.min(4));
        self.failures += 1;
        rest.mul_f64(rng.random_range(0.75..1.25))
    }

    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// What comes first; the other one is dropped. Of two that are ready the one named first.
pub(super) async fn first<A: Future, B: Future>(one: A, other: B) -> Result<A::Output, B::Output> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| match one.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Ok(output)),
        Poll::Pending => other.as_mut().poll(cx).map(Err),
    })
    .await
}
