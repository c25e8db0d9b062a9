//! Two or three whole HCAs in a subnet that loses, repeats, holds back and corrupts packets, and on them programs that do
//! what programs do. Whatever the seed, the invariant of design.md section 8 holds: both sides of a connection are
//! established, or both have failed, or one believes itself established and its next message or DREQ ends it within its
//! bound; after TimeWait nothing is left; each outcome comes once.
//!
//! All of it passes in virtual time and by the public API. A seed that fails prints its plan, what the programs did, every
//! packet, and where the pcap file is. `SEED=1234 cargo test --test simulation` runs one seed, `SEED=100..200` some, and
//! `SEEDS=100000` the first so many instead of 2,000.
#![forbid(unsafe_code)]
#![allow(unreachable_pub, reason = "a test has no users")]

/// [`plan`](self::simulation::plan) draws what shall happen, [`world`](self::simulation::world) makes it happen,
/// [`judge`](self::simulation::judge) looks at what came of it, [`run`](self::simulation::run) goes through the seeds.
mod simulation {
    pub mod active;
    pub mod content;
    pub mod journal;
    pub mod judge;
    pub mod passive;
    pub mod peers;
    pub mod plan;
    pub mod records;
    pub mod run;
    mod scenarios;
    pub mod side;
    pub mod world;
}

use simulation::run;

const SHARDS: u64 = 4;

fn shard(number: u64) {
    if run::is_chosen() {
        let writer = tracing_subscriber::fmt::TestWriter::new();
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        // Another shard may have been first.
        _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).without_time().try_init();
    }
    let outcomes = run::shard(number, SHARDS);
    eprintln!("{outcomes}");
    if run::is_chosen() {
        return;
    }
    // The simulation is worth its time only if it gets everywhere.
    for (what, least) in [
        ("connections", 300),
        ("connections half open", 5),
        ("messages", 2_000),
        ("call: given up", 20),
        ("call: no path, port down", 1),
        ("call: rejected, consumer reject (28)", 50),
        ("call: rejected, invalid service ID (8)", 10),
        ("call: rejected, timeout (4)", 1),
        ("call: unreachable", 10),
        ("call: unreachable, busy", 10),
        ("request: ignored", 10),
        ("request: Rejected", 10),
        ("request: Unconfirmed", 5),
        ("request: Withdrawn", 10),
        ("end: Broken", 10),
        ("end: ByPeer", 200),
        ("end: Confirmed", 100),
        ("end: Unconfirmed", 5),
        ("end: Rejected", 1),
        ("end: DeviceGone", 2),
        ("end: HcaClosed", 5),
        ("end: dropped", 50),
    ] {
        assert!(outcomes.get(what) >= least, "only {} times: {what}", outcomes.get(what));
    }
    // What was begun well mostly ends well, too.
    assert!(25 * outcomes.get("connections half open") < outcomes.get("connections"), "{outcomes}");
}

#[test]
fn whole_hcas_on_a_bad_network_1_of_4() {
    shard(0);
}

#[test]
fn whole_hcas_on_a_bad_network_2_of_4() {
    shard(1);
}

#[test]
fn whole_hcas_on_a_bad_network_3_of_4() {
    shard(2);
}

#[test]
fn whole_hcas_on_a_bad_network_4_of_4() {
    shard(3);
}

/// Programs that ask for each other, one way and the other.
#[test]
fn peers_on_a_bad_network() {
    let mut total = simulation::peers::Outcomes::default();
    for seed in run::seeds() {
        let got = simulation::peers::simulate(seed).unwrap_or_else(|report| panic!("{report}"));
        total.met += got.met;
        total.listener += got.listener;
        total.gave_up += got.gave_up;
        total.unreachable += got.unreachable;
        total.rejected += got.rejected;
    }
    eprintln!("{total:?}");
    let all = [total.met / 20, total.listener, total.gave_up, total.unreachable, total.rejected];
    assert!(run::is_chosen() || all.iter().all(|&count| count > 50), "{total:?}");
}

/// Nothing but the seed decides: not the order of a map, not the time of day.
#[test]
fn the_same_seed_is_the_same_simulation() {
    for seed in 0..40 {
        let log = || run::simulate(seed).unwrap_or_else(|report| panic!("{report}")).log();
        let (first, second) = (log(), log());
        let differs = first.lines().zip(second.lines()).find(|(a, b)| a != b);
        assert!(first == second, "seed {seed}: {differs:?}");
    }
}
