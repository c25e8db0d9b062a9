//! A case: what it is called, what it needs of a device, what it does.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use futures::future::LocalBoxFuture;
use libtest_mimic::{Failed, Trial};

use super::bench::{Bench, Feature, Fixture};
use super::lacking;

/// One case, to run on each device that has what it needs.
#[derive(Clone, Copy)]
pub struct Case {
    /// The file that it is in.
    pub group: &'static str,
    pub name: &'static str,
    pub needs: &'static [Feature],
    pub run: fn(Bench) -> LocalBoxFuture<'static, ()>,
}

/// Makes the list `CASES` out of async functions: `name;` or `name [Feature, …];`.
macro_rules! cases {
    ($($case:ident $([$($feature:ident),+])?;)*) => {
        pub const CASES: &[$crate::conformance::case::Case] = &[$(
            $crate::conformance::case::Case {
                group: module_path!(),
                name: stringify!($case),
                needs: &[$($($crate::conformance::bench::Feature::$feature),+)?],
                run: |bench| Box::pin($case(bench)),
            },
        )*];
    };
}
pub(super) use cases;

/// The tests of one kind of device.
pub fn trials(fixture: &'static dyn Fixture, cases: impl Iterator<Item = Case>) -> Vec<Trial> {
    let lacks = fixture.lacks();
    let (runs, left_out): (Vec<_>, Vec<_>) =
        cases.partition(|case| case.needs.iter().all(|need| !lacks.contains(need)));
    if !left_out.is_empty() {
        let names: Vec<_> = left_out.iter().map(|case| case.name).collect();
        eprintln!("{} lacks {lacks:?}, left out: {}", fixture.name(), names.join(" "));
    }
    let refusals = lacks.iter().filter_map(|lack| lacking::case(*lack));
    for (difference, reason) in fixture.differs() {
        eprintln!("{}: {difference:?}: {reason}", fixture.name());
    }
    let trials = runs.into_iter().chain(refusals).map(|case| {
        let group = case.group.rsplit("::").next().unwrap_or_default();
        let name = format!("{}::{group}::{}", fixture.name(), case.name);
        let runs_somewhere = !fixture.in_guest() || tests::CONFORMANCE_IN_GUEST.contains(&group);
        assert!(runs_somewhere, "{name}: the guest does not know that group, see tests/lib.rs");
        Trial::test(name, move || run(fixture, case)).with_ignored_flag(fixture.in_guest())
    });
    trials.collect()
}

fn run(fixture: &dyn Fixture, case: Case) -> Result<(), Failed> {
    let (runtime, limit) = (fixture.runtime(), fixture.limit());
    let _watched = watch(case.name, limit);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            let bench = fixture.open().await;
            tokio::time::timeout(limit, (case.run)(bench)).await
        })
    }));
    // Not by dropping it: that would wait for ever for a slow call that hangs.
    runtime.shutdown_timeout(limit);
    let left = fixture.nothing_left();
    outcome
        .unwrap_or_else(|panic| resume_unwind(panic))
        .map_err(|_| Failed::from(format!("hangs: not done within {limit:?}")))?;
    left.map_err(Failed::from)
}

/// Ends the program if what is returned is not dropped long after the limit: a case that never waits is stopped by no timer
/// of its runtime.
fn watch(name: &'static str, limit: Duration) -> Sender<()> {
    let (watched, over) = channel();
    std::thread::spawn(move || {
        if over.recv_timeout(4 * limit) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{name} hangs and waits for nothing");
            std::process::exit(1);
        }
    });
    watched
}
