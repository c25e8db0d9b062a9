//! The software HCA next to Linux's rdma_rxe, in the guest of tests/guest: two rxe devices at the ends of a veth pair, driven
//! by perftest, against two of ours in two network namespaces at the ends of another one, and plain UDP over that. With the
//! feature `verbs` also the SDK on rdma_rxe: its messages against perftest's, its connections against cmtime's.
//!
//! Boots qemu, which takes a minute, and then some minutes more. The same program runs in the guest, as `answer` and as `ask`,
//! as `steps` and as `whole`.

#[cfg(feature = "verbs")]
mod connections;
mod samples;

use std::error::Error;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use benches::Options;
#[cfg(feature = "verbs")]
use benches::traffic::Sdk;
use benches::traffic::{Asker, Control, End, Rc, Result, Task, Udp, Waiting, Work, serve};
use ibwire::Mtu;
use samples::Samples;
use tests::guest::{self, Case, Config, Machine};
use tokio::net::TcpListener;

/// Samples of everything, taken in turn, unless `--count=N` says otherwise.
const ROUNDS: u64 = 5;
/// Where the end that answers waits for the other one.
const CONTROL: u16 = 18_600;
const PINGS: u64 = 1000;
const MESSAGES: u64 = 200;
/// Connections in the making at once.
const CONNECTIONS: &str = "200";

fn main() -> std::result::Result<(), Box<dyn Error + Send + Sync>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        #[cfg(feature = "verbs")]
        ["answer", "sdk", device, waiting] => one_thread()?.block_on(messages(device, waiting, false)),
        ["answer", who, address, mtu] => in_guest(who, address.parse()?, mtu, None),
        ["ask", who, address, mtu, peer] => in_guest(who, address.parse()?, mtu, Some(peer.parse()?)),
        #[cfg(feature = "verbs")]
        ["ask", "sdk", device, waiting] => one_thread()?.block_on(messages(device, waiting, true)),
        #[cfg(feature = "verbs")]
        ["steps", device, count] => two_threads()?.block_on(connections::by_steps(device, count.parse()?)),
        #[cfg(feature = "verbs")]
        ["whole", device, count] => two_threads()?.block_on(connections::whole(device, count.parse()?)),
        _ => on_host(),
    }
}

fn on_host() -> Result {
    let options = Options::start(
        "guest: the software HCA next to rdma_rxe and plain UDP, over veth in an emulated machine",
    );
    let mut missing = guest::missing();
    missing.extend(
        ["cmtime", "ib_send_lat", "ib_send_bw"]
            .into_iter()
            .filter(|tool| !Path::new("/usr/bin").join(tool).exists()),
    );
    if options.quick || !missing.is_empty() {
        println!("left out: `cargo bench` boots the guest for it; missing here: {missing:?}");
        return Ok(());
    }
    let program = std::env::current_exe()?.to_string_lossy().into_owned();
    let config = Config {
        name: "bench",
        setup: "setup-bench.sh",
        variables: vec![
            ("BENCH", program),
            ("CONNECTIONS", CONNECTIONS.into()),
            ("ON_RXE", if cfg!(feature = "verbs") { "yes" } else { "" }.into()),
        ],
        helpers: &[],
        targets: &[],
        limit: Duration::from_secs(3600),
    };
    let machine = Machine::new(config, &Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest"));
    let mut samples = Samples::default();
    for round in 1..=options.count.unwrap_or(ROUNDS) {
        let outcome = machine.run(&Case::new(format!("round{round}"), "bench.sh", &[]).limit(600))?;
        if outcome.status != 0 {
            return Err(format!("round {round} ends with {}:\n{}", outcome.status, outcome.log).into());
        }
        samples.take(&outcome.log)?;
    }
    print!("{}", samples.traffic());
    if cfg!(feature = "verbs") {
        print!("\n{}", samples.on_rxe());
    } else {
        println!("left out: the SDK on rdma_rxe, which needs the feature `verbs`");
    }
    Ok(())
}

/// As perftest, which has one thread at each end.
fn one_thread() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// As the processors; cmtime has more.
#[cfg(feature = "verbs")]
fn two_threads() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

/// One end of the SDK's ping-pongs on a device of rdma_rxe, in a process of its own.
#[cfg(feature = "verbs")]
async fn messages(device: &str, waiting: &str, asks: bool) -> Result {
    const HERE: std::net::SocketAddr =
        std::net::SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), CONTROL);
    let task: Task = format!("{} {waiting} {PINGS}", Work::PingPong).parse()?;
    if !asks {
        let mut control = Control::accept(&TcpListener::bind(HERE).await?).await?;
        let end = Sdk::accept(&mut control, device, task.waiting).await?;
        return serve(control, end).await;
    }
    let mut control = Control::connect(HERE).await?;
    let end = Sdk::connect(&mut control, device, task.waiting).await?;
    let ns = time(&mut Asker::new(control, end), task).await?;
    println!("sample sdk ping-pong {waiting} {ns}");
    Ok(())
}

/// One end, in its namespace of the guest: answers, or asks the one at `peer` and prints samples.
fn in_guest(who: &str, address: IpAddr, mtu: &str, peer: Option<IpAddr>) -> Result {
    let runtime = one_thread()?;
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
