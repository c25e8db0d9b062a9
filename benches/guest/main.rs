//! The software HCA next to Linux's rdma_rxe, in the guest of tests/guest: two rxe devices at the ends of a veth pair, driven
//! by perftest, against two of ours in two network namespaces at the ends of another one, and plain UDP over that.
//!
//! Boots qemu, which takes a minute, and then some minutes more. The same program runs in the guest, as `answer` and as `ask`.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use benches::traffic::{Asker, Control, End, MESSAGE, Rc, Result, Task, Udp, Waiting, Work, serve};
use benches::{Options, Table};
use ibwire::Mtu;
use tests::guest::{self, Case, Config, Machine};
use tokio::net::TcpListener;

/// Samples of everything, taken in turn.
const ROUNDS: usize = 5;
/// Where the end that answers waits for the other one.
const CONTROL: u16 = 18_600;
const PINGS: u64 = 1000;
const MESSAGES: u64 = 200;

fn main() -> std::result::Result<(), Box<dyn Error + Send + Sync>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["answer", who, address, mtu] => in_guest(who, address.parse()?, mtu, None),
        ["ask", who, address, mtu, peer] => in_guest(who, address.parse()?, mtu, Some(peer.parse()?)),
        _ => on_host(),
    }
}

fn on_host() -> Result {
    let options = Options::start(
        "guest: the software HCA next to rdma_rxe and plain UDP, over veth in an emulated machine",
    );
    let mut missing = guest::missing();
    missing.extend(
        ["ib_send_lat", "ib_send_bw"].into_iter().filter(|tool| !Path::new("/usr/bin").join(tool).exists()),
    );
    if options.quick || !missing.is_empty() {
        println!("left out: `cargo bench` boots the guest for it; missing here: {missing:?}");
        return Ok(());
    }
    let program = std::env::current_exe()?.to_string_lossy().into_owned();
    let config = Config {
        name: "bench",
        setup: "setup-bench.sh",
        variables: vec![("BENCH", program)],
        helpers: &[],
        targets: &[],
        limit: Duration::from_secs(3600),
    };
    let machine = Machine::new(config, &Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest"));
    let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for round in 1..=ROUNDS {
        let outcome = machine.run(&Case::new(format!("round{round}"), "bench.sh", &[]).limit(600))?;
        if outcome.status != 0 {
            return Err(format!("round {round} ends with {}:\n{}", outcome.status, outcome.log).into());
        }
        for line in outcome.log.lines().filter_map(|line| line.strip_prefix("sample ")) {
            let (what, ns) = line.rsplit_once(' ').ok_or("a sample without a number")?;
            samples.entry(what.to_owned()).or_default().push(ns.parse()?);
        }
    }
    for samples in samples.values_mut() {
        samples.sort_by(f64::total_cmp);
    }
    print!("{}", table(&samples));
    Ok(())
}

/// Medians next to each other, with the lowest and the highest sample.
fn table(samples: &BTreeMap<String, Vec<f64>>) -> Table {
    let mut table =
        Table::new(["half RTT us; MB/s", "rxe", "spread", "ours", "spread", "of rxe", "UDP", "of UDP"]);
    let mut row = |name: String, [rxe, ours, udp]: [&str; 3], shown: fn(f64) -> f64| {
        let sorted = |key: &str| {
            let mut values: Vec<f64> = samples.get(key)?.iter().copied().map(shown).collect();
            values.sort_by(f64::total_cmp);
            Some(values)
        };
        let median = |key| sorted(key).map(|values| values[values.len() / 2]);
        let number = |value: Option<f64>| value.map(|value| format!("{value:.0}")).unwrap_or_default();
        let spread = |key| {
            let ends = sorted(key).and_then(|values| Some((*values.first()?, *values.last()?)));
            ends.map(|(least, most)| format!("{least:.0} .. {most:.0}")).unwrap_or_default()
        };
        let of = |key| {
            let ratio = median(ours).zip(median(key)).map(|(ours, other)| ours / other);
            ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default()
        };
        let numbers = [rxe, ours, udp].map(|key| number(median(key)));
        let [of_rxe, of_udp] = [rxe, udp].map(of);
        let [rxe_median, ours_median, udp_median] = numbers;
        table.row([name, rxe_median, spread(rxe), ours_median, spread(ours), of_rxe, udp_median, of_udp]);
    };
    for waiting in ["blocking", "spinning"] {
        let what = format!("ping-pong {waiting}");
        let keys = ["rxe", "rc", "udp"].map(|who| format!("{who} {what}"));
        row(format!("64 bytes, {waiting}"), keys.each_ref().map(String::as_str), |ns| ns / 2e3);
    }
    for mtu in ["1024", "4096"] {
        for what in ["write", "read", "send"] {
            // Plain UDP only sends.
            let keys = [format!("rxe {what} {mtu}"), format!("rc {what} {mtu}"), format!("udp send {mtu}")];
            row(format!("64 KiB {what}, MTU {mtu}"), keys.each_ref().map(String::as_str), |ns| {
                MESSAGE as f64 / ns * 1e3
            });
        }
    }
    table
}

/// One end, in its namespace of the guest: answers, or asks the one at `peer` and prints samples.
fn in_guest(who: &str, address: IpAddr, mtu: &str, peer: Option<IpAddr>) -> Result {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let bytes: u32 = mtu.parse()?;
    let code = if bytes == 4096 { Mtu::B4096 } else { Mtu::B1024 };
    runtime.block_on(async {
        let mut control = match peer {
            Some(peer) => Control::connect((peer, CONTROL).into()).await?,
            None => Control::accept(&TcpListener::bind((address, CONTROL)).await?).await?,
        };
        if who == "rc" {
            let works = [Work::Write, Work::Read, Work::Send];
            let end = Rc::open(&mut control, Some(address), code).await?;
            run(control, end, peer.is_some(), who, bytes, &works).await
        } else {
            let end = Udp::open(&mut control, Some(address), code).await?;
            run(control, end, peer.is_some(), who, bytes, &[Work::Send]).await
        }
    })
}

async fn run(control: Control, end: impl End, asks: bool, who: &str, mtu: u32, works: &[Work]) -> Result {
    if !asks {
        return serve(control, end).await;
    }
    let mut asker = Asker::new(control, end);
    if mtu == 1024 {
        for waiting in [Waiting::Blocking, Waiting::Spinning] {
            let ns = time(&mut asker, Task { work: Work::PingPong, waiting, count: PINGS }).await?;
            println!("sample {who} ping-pong {waiting} {ns}");
        }
    }
    for &work in works {
        let ns = time(&mut asker, Task { work, waiting: Waiting::Blocking, count: MESSAGES }).await?;
        println!("sample {who} {work} {mtu} {ns}");
    }
    Ok(())
}

/// Nanoseconds for each time, after a tenth to warm up.
async fn time(asker: &mut Asker<impl End>, task: Task) -> Result<f64> {
    asker.run(Task { count: task.count / 10, ..task }).await?;
    let start = Instant::now();
    asker.run(task).await?;
    Ok(start.elapsed().as_secs_f64() * 1e9 / task.count as f64)
}
