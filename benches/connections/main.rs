//! How many connections a second the SDK makes and ends on loopback, next to TCP and to the same datagrams over plain UDP.
//!
//! Both ends are in this process, either in one runtime of several threads or each in a thread of its own, as two programs
//! are. A connection counts when the end that made it has the other end's answer to its farewell: the DREP, the FIN.

mod ends;
mod sdk;
mod tcp;
mod udp;

use std::error::Error;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use benches::{Case, Clock, Estimate, Options, Sampling, Table, side_by_side};
use ends::Ends;

/// Threads that free what others have allocated do not wait for each other, as they do in glibc.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ALLOCATOR_NAME: &str = if cfg!(feature = "mimalloc") { "mimalloc" } else { "the system's allocator" };

/// How many connections are being made or ended at once.
const IN_FLIGHT: [u64; 3] = [1, 64, 1000];

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::start("connections: made and ended on loopback, both ends in this process");
    println!("{ALLOCATOR_NAME}\n");
    let sampling = Sampling::new(&options, Clock::Wall, Duration::from_millis(500), 11);
    let mut all = Vec::new();
    for ends in [Ends::together()?, Ends::apart()?] {
        all.push((sdk::Pair::open(&ends)?, tcp::Pair::open(&ends)?, udp::Pair::open(&ends)?, ends));
    }
    let mut cases = Vec::new();
    for (sdk, tcp, udp, ends) in &all {
        let client = &ends.client;
        for n in IN_FLIGHT {
            let name = |what: &str| format!("{what}, {n} in flight, {ends}");
            let cases_here = [
                Case::new(name("SDK"), move |count| client.block_on(sdk.run(n, count))),
                Case::new(name("TCP"), move |count| client.block_on(tcp.run(n, count))),
                Case::new(name("UDP"), move |count| client.block_on(udp.run(n, count))),
            ];
            cases.extend(cases_here.into_iter().filter(|case| options.selects(case.name())));
        }
    }
    print!("{}", table(&side_by_side(sampling, cases)));
    for (sdk, _, udp, ends) in &all {
        println!("\n{ends}\n{}", sdk.close(ends));
        println!("UDP: {} datagrams lost", udp.lost());
    }
    Ok(())
}

fn table(estimates: &[Estimate]) -> Table {
    let mut table =
        Table::new(["", "connections/s", "quartiles", "of TCP", "of UDP", "CPU us each", "of TCP", "of UDP"]);
    for case in estimates {
        let ratio = |other: &str, value: fn(&Estimate) -> f64| {
            let (_, in_flight) = case.name.split_once(',').unwrap_or_default();
            let other = estimates.iter().find(|case| case.name == format!("{other},{in_flight}"));
            other.map(|other| format!("{:.2}", value(case) / value(other))).unwrap_or_default()
        };
        let (slow, fast) = (1e9 / case.quartiles.1, 1e9 / case.quartiles.0);
        table.row([
            case.name.clone(),
            format!("{:.0}", case.per_second()),
            format!("{slow:.0} .. {fast:.0}"),
            ratio("TCP", Estimate::per_second),
            ratio("UDP", Estimate::per_second),
            format!("{:.1}", case.cpu / 1e3),
            ratio("TCP", |case| case.cpu),
            ratio("UDP", |case| case.cpu),
        ]);
    }
    table
}

/// Does `once` this often, at most so many at once.
async fn concurrently<F>(in_flight: u64, count: u64, once: impl Fn() -> F + Clone + Send + 'static)
where
    F: Future<Output = io::Result<()>> + Send,
{
    let left = Arc::new(AtomicU64::new(count));
    let take = |left: &AtomicU64| {
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    };
    let tasks = (0..in_flight.min(count)).map(|_| {
        let (left, once) = (Arc::clone(&left), once.clone());
        tokio::spawn(async move {
            while take(&left) {
                once().await?;
            }
            Ok::<_, io::Error>(())
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("a task that does not panic").expect("a connection on loopback");
    }
}
