//! A subnet in this process with a manager and its SA: queries, the cache, and many callers that want the same.

use std::time::Duration;

use benches::{Case, Clock, Options, Sampling, side_by_side};
use futures::future::try_join_all;
use ibcm::Hca;
use ibcm::sim::Subnet;
use tokio::runtime::{Builder, Runtime};

use crate::Result;

/// Callers that want the same path at once.
const CALLERS: usize = 1000;

pub(crate) fn run(options: &Options) -> Result {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (_net, asks, asked) = runtime.block_on(async {
        let net = Subnet::star(["asks", "asked"]).managed().await?;
        let (asks, asked) = (Hca::open(net.device("asks")).await?, Hca::open(net.device("asked")).await?);
        Ok::<_, Box<dyn std::error::Error>>((net, asks, asked.gid()))
    })?;
    let sa = asks.sa();
    let ask = |runtime: &Runtime, count: u64, cached: bool| {
        runtime.block_on(async {
            for _ in 0..count {
                let query = sa.path(asked);
                let query = if cached { query } else { query.uncached() };
                query.await.expect("a path");
            }
        });
    };
    let cases = vec![
        Case::new("a path of the cache", |count| ask(&runtime, count, true)),
        Case::new("a path of the SA in this process", |count| ask(&runtime, count, false)),
    ];
    let cases = cases.into_iter().filter(|case| options.selects(case.name())).collect::<Vec<_>>();
    let sampling = Sampling::new(options, Clock::Cpu, Duration::from_millis(20), 41);
    if !cases.is_empty() {
        println!("{}", crate::queries("", &side_by_side(sampling, cases)));
    }
    let before = sa.stats().requests;
    runtime.block_on(try_join_all((0..CALLERS).map(|_| sa.path(asked).uncached())))?;
    let queries = sa.stats().requests - before;
    assert_eq!(queries, 1, "callers that want the same path share one query");
    println!("{CALLERS} callers at once that want one path: {queries} query\n");
    Ok(())
}
