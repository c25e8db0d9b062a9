//! What goes wrong on the way, decided by the seed.

use std::ops::RangeInclusive;
use std::time::Duration;

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

/// How likely each fault is, for every packet between two ports.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FaultRates {
    pub loss: f64,
    pub duplicate: f64,
    pub corrupt: f64,
    pub reorder: f64,
    pub delay: RangeInclusive<Duration>,
}

impl Default for FaultRates {
    fn default() -> Self {
        Self { loss: 0.0, duplicate: 0.0, corrupt: 0.0, reorder: 0.0, delay: Duration::ZERO..=Duration::ZERO }
    }
}

/// The fate of one copy of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Travel {
    /// How long it takes.
    pub delay: Duration,
    /// How long it is held back on top, so that others overtake it.
    pub held: Option<Duration>,
}

/// Draws faults, one packet after the other.
#[derive(Debug)]
pub(super) struct FaultDice {
    rng: ChaCha8Rng,
    pub rates: FaultRates,
}

/// A packet that is held back waits about 2^n microseconds, n below this: from a moment, which data in flight
/// overtakes, to 65 ms, which a retransmission overtakes.
const HOLD_POWERS: u32 = 16;

impl FaultDice {
    pub(super) fn new(seed: u64) -> Self {
        Self { rng: ChaCha8Rng::seed_from_u64(seed), rates: FaultRates::default() }
    }

    /// Whether the next packet is lost.
    pub(super) fn loses(&mut self) -> bool {
        Self::chance(&mut self.rng, self.rates.loss)
    }

    /// Whether the next packet arrives twice.
    pub(super) fn duplicates(&mut self) -> bool {
        Self::chance(&mut self.rng, self.rates.duplicate)
    }

    /// Which bit of the next packet, of `bits`, is flipped.
    pub(super) fn corrupts(&mut self, bits: usize) -> Option<usize> {
        Self::chance(&mut self.rng, self.rates.corrupt).then(|| self.rng.random_range(0..bits.max(1)))
    }

    /// How the next copy travels.
    pub(super) fn travel(&mut self) -> Travel {
        let (from, to) = (nanos(*self.rates.delay.start()), nanos(*self.rates.delay.end()));
        let delay = if from < to { self.rng.random_range(from..=to) } else { from };
        let held = Self::chance(&mut self.rng, self.rates.reorder).then(|| {
            let shortest = 1_000 << self.rng.random_range(0..HOLD_POWERS);
            Duration::from_nanos(self.rng.random_range(shortest..2 * shortest))
        });
        Travel { delay: Duration::from_nanos(delay), held }
    }

    fn chance(rng: &mut ChaCha8Rng, probability: f64) -> bool {
        probability > 0.0 && rng.random_bool(probability)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_kept() {
        let mut dice = FaultDice::new(1);
        dice.rates = FaultRates {
            loss: 0.25,
            duplicate: 0.0,
            corrupt: 1.0,
            reorder: 1.0,
            delay: Duration::from_micros(2)..=Duration::from_millis(3),
        };
        let lost = (0..10_000).filter(|_| dice.loses()).count();
        assert!((2_300..2_700).contains(&lost), "{lost}");
        assert!(!(0..1_000).any(|_| dice.duplicates()));
        assert!((0..1_000).all(|_| dice.corrupts(8).is_some_and(|bit| bit < 8)));
        for _ in 0..1_000 {
            let travel = dice.travel();
            assert!(dice.rates.delay.contains(&travel.delay));
            let held = travel.held.expect("all are held back");
            assert!((1..=65_536).contains(&held.as_micros()), "{held:?}");
        }
    }

    #[test]
    fn the_seed_decides() {
        let draw = |seed| {
            let mut dice = FaultDice::new(seed);
            dice.rates.loss = 0.5;
            (0..64).map(|_| dice.loses()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }
}
