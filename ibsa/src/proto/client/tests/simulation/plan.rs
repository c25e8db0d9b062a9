//! What a seed makes of the network, the SA and the client.

use super::super::*;

/// Percentages, and what the client is like.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) loss: u32,
    pub(super) duplicates: u32,
    /// The longest that a MAD is under way; those that differ overtake each other.
    pub(super) delay: Duration,
    pub(super) silent: u32,
    pub(super) busy: u32,
    pub(super) refuses: u32,
    pub(super) redirects: u32,
    /// How long the SA thinks, at most.
    pub(super) thinks: Duration,
    /// Tables that are cut to one MAD on their way.
    pub(super) cuts: u32,
    /// Segments with headers that break a rule.
    pub(super) breaks: u32,
    /// Transfers that the SA gives up in the middle, without a word.
    pub(super) dies: u32,
    pub(super) requests: u32,
    pub(super) cancels: u32,
    /// How often the SM moves.
    pub(super) moves: u32,
    pub(super) reports: u32,
    /// No request has a shorter time.
    pub(super) patience: Duration,
}

impl Plan {
    /// One seed of eight has no trouble at all.
    pub(super) fn draw(seed: u64, rng: &mut ChaCha8Rng) -> (Self, Config) {
        let calm = seed.is_multiple_of(8);
        let mut some = |most: u32| match rng.random_range(0..3) {
            0 if !calm => rng.random_range(1..=most),
            _ => 0,
        };
        let plan = Self {
            loss: some(30),
            duplicates: some(30),
            delay: MS * (1 + some(400)),
            silent: some(50) + 100 * (some(20) / 20),
            busy: some(60) + 100 * (some(20) / 20),
            refuses: some(30),
            redirects: some(60),
            thinks: MS * some(3000),
            cuts: some(40),
            breaks: some(15),
            dies: some(10),
            cancels: some(20),
            moves: some(6),
            reports: some(8),
            requests: rng.random_range(1..20),
            patience: if calm { Duration::from_secs(60) } else { 50 * MS },
        };
        let mut config = Config { window: rng.random_range(1..=16), ..Config::default() };
        config.rmpp.window = rng.random_range(1..=64);
        if !calm {
            config.queue = rng.random_range(1..=20);
            config.tries = rng.random_range(1..=6);
            config.first_timeout = MS * rng.random_range(100..=2400u32);
            config.redirects = rng.random_range(0..=3);
            config.finished = rng.random_range(0..=8);
            config.rmpp.total = Duration::from_secs(rng.random_range(2..=40));
        }
        (plan, config)
    }
}
