//! A message that is sent again until it is answered: REQ, REP or DREQ.

use std::time::{Duration, Instant};

use ibdev::MAD_LEN;

use super::event::Effort;

/// How long and how often a message is tried.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// From one transmission to the next.
    pub(super) period: Duration,
    /// Up to so much longer is each wait for an answer, by chance.
    pub(super) jitter: Duration,
    /// Transmissions after the first.
    pub(super) max_retries: u8,
    /// The longest wait that one MRA can bring.
    pub(super) max_mra_wait: Duration,
    /// From the first transmission to the end of it all, unless there is a deadline.
    pub(super) max_time: Duration,
    /// The end of it all.
    pub(super) deadline: Option<Instant>,
}

impl Patience {
    /// How long it can take where there is no deadline. MRAs can stretch each of the periods to the longest wait but add
    /// none: a peer that sends them for ever is given up.
    fn longest(&self) -> Duration {
        let periods = u32::from(self.max_retries) + 1;
        (self.period + self.jitter).max(self.max_mra_wait).saturating_mul(periods).min(self.max_time)
    }
}

/// The message, the same bytes each time, and how far it has got.
#[derive(Debug)]
pub(super) struct Exchange {
    mad: [u8; MAD_LEN],
    patience: Patience,
    /// From the first transmission to the end of it all, unless there is a deadline.
    longest: Duration,
    sent: u8,
    first_sent: Option<Instant>,
    busy: bool,
}

/// Makes exchanges in the memory of those that are over: a connection has two or three, one after the other.
#[derive(Debug, Default)]
pub(super) struct Exchanges {
    #[expect(clippy::vec_box, reason = "the boxes go to the connections")]
    spares: Vec<Box<Exchange>>,
}

impl Exchanges {
    const MOST_SPARES: usize = 1024;

    pub(super) fn make(
        &mut self,
        patience: Patience,
        encode: impl FnOnce(&mut [u8; MAD_LEN]),
    ) -> Box<Exchange> {
        let new = Exchange {
            mad: [0; MAD_LEN],
            longest: patience.longest(),
            patience,
            sent: 0,
            first_sent: None,
            busy: false,
        };
        let mut exchange = match self.spares.pop() {
            Some(mut spare) => {
                *spare = new;
                spare
            }
            None => Box::new(new),
        };
        encode(&mut exchange.mad);
        exchange
    }

    /// Takes the memory of one that is over.
    pub(super) fn keep(&mut self, exchange: Box<Exchange>) {
        if self.spares.len() < Self::MOST_SPARES {
            self.spares.push(exchange);
        }
    }
}

impl Exchange {
    /// Hands the message out; the answer is due at the returned instant. `draw` gives a random number.
    #[inline]
    pub(super) fn transmit(&mut self, now: Instant, draw: impl FnOnce() -> u32) -> ([u8; MAD_LEN], Instant) {
        self.sent += 1;
        self.first_sent.get_or_insert(now);
        let Patience { period, jitter, .. } = self.patience;
        let longer = match jitter {
            Duration::ZERO => Duration::ZERO,
            jitter => jitter.mul_f64(f64::from(draw()) / f64::from(u32::MAX)),
        };
        (self.mad, self.bounded(now + period + longer))
    }

    /// The message once more for a peer that repeated its own; it changes nothing here. `None` if it was never sent.
    pub(super) fn repeat(&self) -> Option<&[u8; MAD_LEN]> {
        (self.sent > 0).then_some(&self.mad)
    }

    /// The peer wants so much more time from now on. Returns when that is over.
    pub(super) fn extend(&mut self, now: Instant, wait: Duration) -> Instant {
        self.busy = true;
        self.bounded(now + wait.min(self.patience.max_mra_wait))
    }

    /// It ends at `deadline` if not before.
    pub(super) fn hasten(&mut self, deadline: Instant) {
        self.patience.deadline = Some(self.bounded(deadline));
    }

    pub(super) fn is_sent(&self) -> bool {
        self.sent > 0
    }

    pub(super) fn is_resent(&self) -> bool {
        self.sent > 1
    }

    /// Whether the peer sent an MRA.
    pub(super) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Whether a wait that is over at `now` was the last.
    pub(super) fn is_exhausted(&self, now: Instant) -> bool {
        self.sent > self.patience.max_retries || self.limit().is_some_and(|limit| limit <= now)
    }

    pub(super) fn effort(&self, now: Instant) -> Effort {
        let waited = self.first_sent.map_or(Duration::ZERO, |first| now.saturating_duration_since(first));
        Effort { sent: self.sent, waited, busy: self.busy }
    }

    /// The end of it all, if there is one.
    pub(super) fn limit(&self) -> Option<Instant> {
        self.patience.deadline.or_else(|| self.first_sent?.checked_add(self.longest))
    }

    fn bounded(&self, at: Instant) -> Instant {
        self.limit().map_or(at, |limit| at.min(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn exchange(deadline: Option<Instant>) -> Box<Exchange> {
        let patience = Patience {
            period: SECOND,
            jitter: Duration::ZERO,
            max_retries: 2,
            max_mra_wait: 60 * SECOND,
            max_time: Duration::MAX,
            deadline,
        };
        Exchanges::default().make(patience, |mad| mad[0] = 1)
    }

    #[test]
    fn retries_are_transmissions_after_the_first() {
        let (start, mut exchange) = (Instant::now(), exchange(None));
        assert_eq!(exchange.repeat(), None);
        for n in 0..3 {
            let now = start + n * SECOND;
            assert!(!exchange.is_exhausted(now));
            assert_eq!(exchange.transmit(now, || 7).1, now + SECOND);
        }
        assert!(exchange.is_exhausted(start + 3 * SECOND));
        let effort = exchange.effort(start + 3 * SECOND);
        assert_eq!(effort, Effort { sent: 3, waited: 3 * SECOND, busy: false });
    }

    #[test]
    fn cm_t42_an_mra_is_capped_and_counts_once() {
        let (start, mut exchange) = (Instant::now(), exchange(None));
        exchange.transmit(start, || 0);
        assert_eq!(exchange.extend(start, 8796 * SECOND), start + 60 * SECOND);
        let now = start + 60 * SECOND;
        assert!(!exchange.is_exhausted(now));
        assert_eq!(exchange.transmit(now, || 0).1, now + SECOND);
    }

    #[test]
    fn jitter_makes_waits_longer_and_never_passes_the_deadline() {
        let start = Instant::now();
        for (random, wait) in [(0, 1000), (u32::MAX / 2, 1250), (u32::MAX, 1500)] {
            let mut exchange = exchange(Some(start + 2 * SECOND));
            exchange.patience.jitter = SECOND / 2;
            assert_eq!((exchange.transmit(start, || random).1 - start).as_millis(), wait);
            assert_eq!(exchange.transmit(start + SECOND, || u32::MAX).1, start + 2 * SECOND);
        }
    }

    #[test]
    fn cm_t43_mras_for_ever_end_at_the_deadline_or_the_longest_possible_wait() {
        let start = Instant::now();
        for (deadline, end) in [(Some(start + 10 * SECOND), 10), (None, 180)] {
            let mut exchange = exchange(deadline);
            exchange.transmit(start, || 0);
            let mut now = start;
            while now < start + end * SECOND {
                assert!(!exchange.is_exhausted(now));
                now = exchange.extend(now, 7 * SECOND);
            }
            assert_eq!(now, start + end * SECOND);
            assert!(exchange.is_exhausted(now));
        }
    }
}
