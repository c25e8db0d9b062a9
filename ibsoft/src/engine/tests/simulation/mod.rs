//! Two or three engines whose programs send, write, read and count at random, over a bad network and in virtual time,
//! against a model of what must come of it.
//!
//! A seed that fails prints itself. `SEED=1234 cargo test -p ibsoft --lib simulation` runs that one, `SEEDS=100000` the first so
//! many instead of 200.

mod end;
mod model;
mod world;

use ibdev::Status;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use world::{Faults, Plan, World};

fn run(plan: Plan) -> World {
    let mut world = World::new(plan);
    world.run();
    world
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

fn seeds() -> std::ops::Range<u64> {
    match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(200),
    }
}

/// One seed decides everything.
fn plan(seed: u64, requests: u64) -> Plan {
    // Another stream than the world's own.
    let mut rng = ChaCha8Rng::seed_from_u64(!seed);
    let mut some = |most: f64| if rng.random_bool(0.5) { rng.random_range(0.0..most) } else { 0.0 };
    let faults =
        Faults { loss: some(0.05), duplicate: some(0.1), reorder: some(0.2), lazy: some(0.7), trouble: 0.0 };
    Plan { seed, nodes: if seed.is_multiple_of(3) { 3 } else { 2 }, requests, faults }
}

#[test]
fn a_good_network_needs_no_retransmission() {
    let world = run(Plan { seed: 1, nodes: 2, requests: 3000, faults: Faults::default() });
    assert_eq!(world.failures(), 0);
    assert_eq!((world.sum(|c| c.retransmitted), world.sum(|c| c.timeouts)), (0, 0));
    assert_eq!(world.sum(|c| c.sequence_naks_sent), 0);
}

#[test]
fn hca_t62_loss() {
    let faults = Faults { loss: 0.01, ..Faults::default() };
    let world = run(Plan { seed: 2, nodes: 2, requests: 5000, faults });
    assert_eq!(world.failures(), 0);
    assert!(world.sum(|c| c.retransmitted) > 0);
}

#[test]
fn hca_t63_reordering_duplication_delay() {
    let faults = Faults { duplicate: 0.05, reorder: 0.05, ..Faults::default() };
    let world = run(Plan { seed: 3, nodes: 2, requests: 5000, faults });
    assert_eq!(world.failures(), 0);
    assert!(world.sum(|c| c.drop_duplicate) > 0);
}

#[test]
fn memory_and_completions_equal_the_model() {
    let mut not_ready = 0;
    for seed in seeds() {
        let world = run(plan(seed, 60));
        assert_eq!(world.failures(), 0, "SEED={seed}");
        not_ready += world.sum(|c| c.rnr_naks_received);
    }
    assert!(not_ready > 0 || number("SEED").is_some());
}

#[test]
fn what_fails_is_what_lost_its_memory() {
    let mut refused = 0;
    for seed in seeds() {
        let mut plan = plan(seed, 60);
        plan.faults.trouble = 0.002;
        refused += run(plan).failed_with(Status::REM_ACCESS_ERR);
    }
    assert!(refused > 0 || number("SEED").is_some());
}

#[test]
fn a_terrible_network_breaks_promises_to_nobody() {
    let faults = Faults { loss: 0.4, duplicate: 0.2, reorder: 0.2, lazy: 0.3, trouble: 0.0 };
    let (mut through, mut given_up) = (0, 0);
    for seed in seeds() {
        let world = run(Plan { faults, ..plan(seed, 20) });
        through += usize::from(world.failures() == 0);
        given_up += world.failed_with(Status::RETRY_EXC_ERR);
    }
    assert!(
        through > 0 && given_up > 0 || number("SEED").is_some(),
        "{through} got through, {given_up} gave up"
    );
}
