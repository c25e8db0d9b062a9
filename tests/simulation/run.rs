//! Going through the seeds.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use ibcm::sim::Subnet;

use super::journal::Journal;
use super::judge::{Outcomes, judge};
use super::plan::Plan;
use super::world::{Error, World, text};

/// Seeds of a run that names none.
const SEEDS: u64 = 2_000;
/// After so many failures nothing new is learnt.
const ENOUGH: usize = 3;
/// The end of a log that is printed; all of it is in a file.
const LINES: usize = 400;

/// Which seeds to run: `SEED=1234` is one, `SEED=100..200` a range, `SEEDS=100000` the first so many.
pub fn seeds() -> Range<u64> {
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("{text:?} is not a seed"));
    let Ok(one) = std::env::var("SEED") else {
        return 0..std::env::var("SEEDS").map_or(SEEDS, |count| number(&count));
    };
    match one.split_once("..") {
        Some((from, to)) => number(from)..number(to),
        None => number(&one)..number(&one) + 1,
    }
}

/// Whether the run names its seeds.
pub fn is_chosen() -> bool {
    std::env::var_os("SEED").is_some()
}

/// Runs every `of`-th seed, the `shard`-th first.
///
/// # Panics
/// If one fails. Before that it is told what happened.
pub fn shard(shard: u64, of: u64) -> Outcomes {
    let (mut outcomes, mut failed) = (Outcomes::default(), Vec::new());
    for seed in seeds().filter(|seed| seed % of == shard) {
        match simulate(seed) {
            Ok(run) => outcomes.merge(run.outcomes),
            Err(report) => {
                eprintln!("{report}");
                failed.push(seed);
            }
        }
        if failed.len() == ENOUGH {
            break;
        }
    }
    assert!(failed.is_empty(), "seeds that fail: {failed:?}");
    outcomes
}

/// What is left of a simulation that went well.
#[derive(Debug)]
pub struct Run {
    pub outcomes: Outcomes,
    net: Subnet,
    journal: Journal,
}

impl Run {
    /// What the programs did, and each packet.
    pub fn log(&self) -> String {
        self.journal.with_packets(&self.net.log())
    }
}

/// Runs one seed. The error tells all about it.
pub fn simulate(seed: u64) -> Result<Run, String> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime of this thread");
    let parts: RefCell<Option<(Subnet, Journal)>> = RefCell::default();
    let run = || {
        runtime.block_on(async {
            let plan = Plan::draw(seed);
            let net = Subnet::rails(plan.rails, plan.names().iter().copied()).seed(seed).await?;
            let journal = Journal::start();
            parts.replace(Some((net.clone(), journal.clone())));
            let world = World::build(plan, net, journal).await?;
            world.run().await?;
            let outcomes = judge(&world)?;
            world.end().await?;
            Ok(outcomes)
        })
    };
    let result: Result<Outcomes, Error> =
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| Err(text(&*payload).into()));
    match (result, parts.into_inner()) {
        (Ok(outcomes), Some((net, journal))) => Ok(Run { outcomes, net, journal }),
        (Ok(_), None) => unreachable!("there is a subnet before there are outcomes"),
        (Err(error), parts) => Err(report(seed, &*error, parts)),
    }
}

/// What a failure prints.
fn report(seed: u64, error: &dyn std::error::Error, parts: Option<(Subnet, Journal)>) -> String {
    let log = parts.as_ref().map(|(net, journal)| journal.with_packets(&net.log())).unwrap_or_default();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("simulation");
    let file = |ending: &str| folder.join(format!("seed-{seed}.{ending}"));
    let mut report = format!("seed {seed} fails: {error}\n{}\n", Plan::draw(seed));
    let lines: Vec<&str> = log.lines().collect();
    let skipped = lines.len().saturating_sub(LINES);
    if skipped > 0 {
        _ = writeln!(report, "({skipped} lines before these)");
    }
    for line in &lines[skipped..] {
        _ = writeln!(report, "{line}");
    }
    let written = |what: std::io::Result<PathBuf>| match what {
        Ok(path) => path.display().to_string(),
        Err(error) => format!("not written: {error}"),
    };
    let log = std::fs::create_dir_all(&folder).and_then(|()| {
        std::fs::write(file("log"), log)?;
        Ok(file("log"))
    });
    let pcap = parts.ok_or_else(|| std::io::Error::other("there was no subnet yet"));
    let pcap = pcap.and_then(|(net, _)| {
        net.write_pcap(file("pcap"))?;
        Ok(file("pcap"))
    });
    _ = writeln!(report, "the whole log: {}", written(log));
    _ = writeln!(report, "the packets:   {}", written(pcap));
    _ = writeln!(
        report,
        "again: SEED={seed} cargo test --test simulation -- --nocapture; RUST_LOG=ibcm=debug tells more"
    );
    report
}
