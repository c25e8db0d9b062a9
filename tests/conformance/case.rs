//! A case: what it is called, what it needs of a device, what it does.

use std::time::Duration;

use futures::future::LocalBoxFuture;
use libtest_mimic::{Failed, Trial};

use super::bench::{Bench, Feature, Fixture};
use super::lacking;

/// How long a case may take. On a paused clock one that hangs is at its limit at once.
const LIMIT: Duration = Duration::from_secs(60);

/// One case, to run on each device that has what it needs.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    pub needs: &'static [Feature],
    pub run: fn(Bench) -> LocalBoxFuture<'static, ()>,
}

/// Makes the list `CASES` out of async functions: `name;` or `name [Feature, …];`.
macro_rules! cases {
    ($($case:ident $([$($feature:ident),+])?;)*) => {
        pub const CASES: &[$crate::conformance::case::Case] = &[$(
            $crate::conformance::case::Case {
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
    let trials = runs
        .into_iter()
        .chain(refusals)
        .map(|case| Trial::test(format!("{}::{}", fixture.name(), case.name), move || run(fixture, case)));
    trials.collect()
}

fn run(fixture: &dyn Fixture, case: Case) -> Result<(), Failed> {
    let runtime = fixture.runtime();
    runtime.block_on(async {
        let bench = fixture.open().await;
        let within = tokio::time::timeout(LIMIT, (case.run)(bench));
        within.await.map_err(|_| Failed::from(format!("hangs: not done within {LIMIT:?}")))
    })
}
