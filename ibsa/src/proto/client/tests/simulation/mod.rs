//! The client against a modelled SA on a bad network, seed by seed.
//!
//! Whatever the seed: each request ends in one outcome, by its deadline; what is called whole is what the SA has; nothing is
//! left of it, and the counters add up. `SEED=1234 cargo test -p ibsa simulation` runs one seed and prints what happens, and
//! `SEEDS=100000` the first so many instead of 2,000.

mod plan;
mod sa;
mod world;

use std::collections::BTreeMap;

use world::World;

const SEEDS: u64 = 2000;
const SHARDS: u64 = 2;

/// How often what came of requests.
type Outcomes = BTreeMap<&'static str, u64>;

fn shard(number: u64) {
    if let Ok(seed) = std::env::var("SEED") {
        World::new(seed.parse().unwrap(), true).run();
        return;
    }
    let mut outcomes = Outcomes::new();
    let seeds = std::env::var("SEEDS").map_or(SEEDS, |seeds| seeds.parse().unwrap());
    for seed in (0..seeds).filter(|seed| seed % SHARDS == number) {
        let end = std::panic::catch_unwind(|| World::new(seed, false).run());
        let Ok((journal, came)) = end else { panic!("SEED={seed}") };
        came.into_iter().for_each(|(what, count)| *outcomes.entry(what).or_default() += count);
        if seed % 20 < SHARDS {
            assert_eq!(World::new(seed, false).run().0, journal, "SEED={seed} runs otherwise the next time");
        }
    }
    // The simulation is worth its time only if it gets everywhere.
    for (what, least) in [
        ("answered", 1000),
        ("table", 500),
        ("table of several segments", 200),
        ("table that was cut", 20),
        ("several segments asked", 20),
        ("silent", 100),
        ("busy to the end", 10),
        ("no SA", 10),
        ("status", 100),
        ("redirected too often", 5),
        ("redirected nowhere", 5),
        ("redirected to another partition", 5),
        ("transfer aborted", 5),
        ("transfer stopped", 5),
        ("transfer broken", 20),
        ("transfer timed out", 5),
        ("request not acknowledged", 1),
        ("cancelled", 50),
        ("queue full", 50),
        ("notice", 100),
        ("copy of a notice", 20),
    ] {
        let times = outcomes.get(what).copied().unwrap_or_default();
        assert!(times >= least, "only {times} times: {what}; {outcomes:?}");
    }
}

#[test]
fn requests_on_a_bad_network_1_of_2() {
    shard(0);
}

#[test]
fn requests_on_a_bad_network_2_of_2() {
    shard(1);
}
