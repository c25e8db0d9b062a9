//! Ten thousand connections on one laptop: two software HCAs in this process, one of which connects to the other.
//!
//! ```text
//! cargo run --release --example storm                             10,000 connections, 64 in flight
//! cargo run --release --example storm -- --count 50000 --concurrency 256
//! cargo run --release --example storm -- --count 2000 --concurrency 2000 --decide 5 --backlog 64
//!                                                                 a server that is slow, and turns clients away
//! ```
//!
//! With `--device NAME` both ends are on that device. Each connection carries a message there and back before all are ended. The receives are shared: a pool for each side,
//! however many connections there are. The progress bars need a terminal.
#![forbid(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use examples::{both_ends, chain};
use futures::stream::{self, StreamExt, TryStreamExt};
use ibcm::{Connection, Hca, IncomingRequest, Listener, Recv, Retry, ServiceId, SharedRecv};
use indicatif::{MultiProgress, ProgressBar, ProgressState, ProgressStyle};

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const SERVICE: ServiceId = ServiceId::new(0x1000_0000_0000_0001);
/// The shared receive buffers of each side.
const RECEIVES: usize = 256;
const MESSAGE: usize = 64;

/// Opens many connections at once, and tells how fast that went.
#[derive(Debug, Clone, Parser)]
struct Args {
    /// The device of both ends; without it two software HCAs
    #[arg(long)]
    device: Option<String>,
    /// How many connections to open
    #[arg(long, default_value_t = 10_000)]
    count: usize,
    /// How many of them may be in the making at once
    #[arg(long, default_value_t = 64)]
    concurrency: usize,
    /// How long all of them may take, in seconds
    #[arg(long, default_value_t = 120)]
    deadline: u64,
    /// How many undecided requests the server has in its hands
    #[arg(long, default_value_t = 128)]
    window: usize,
    /// How many more may wait behind those; the next one is dropped and comes again
    #[arg(long, default_value_t = 128)]
    backlog: usize,
    /// How long the server thinks about each request, one after the other, in milliseconds
    #[arg(long, default_value_t = 0)]
    decide: u64,
    /// Print all counters
    #[arg(long)]
    stats: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    match storm(&Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn storm(args: &Args) -> Result {
    let (client, server) = both_ends(args.device.as_deref(), None).await?;
    let bars = Bars::new(args.count);
    let bind = Listener::bind(SERVICE).device(&server).window(args.window).backlog(args.backlog);
    let listener = Arc::new(bind.await?);
    let receives = server.shared_recv(RECEIVES, MESSAGE).await?;
    tokio::spawn(serve(Arc::clone(&listener), receives, Duration::from_millis(args.decide)));

    let start = Instant::now();
    let (conns, mut times) = connect(args, &client, &server, &listener, &bars).await?;
    let took = start.elapsed();
    println!(
        "{} of {} connections in {:.2} s, {:.0} a second, {} in flight at once",
        conns.len(),
        args.count,
        took.as_secs_f64(),
        conns.len() as f64 / took.as_secs_f64(),
        args.concurrency
    );
    times.sort_unstable();
    let part = |share: usize| times.get(times.len().saturating_sub(1) * share / 100).map_or(0.0, ms);
    println!(
        "each took {:.2} ms in the middle, {:.2} ms at most for 99 of 100, {:.2} ms at most",
        part(50),
        part(99),
        part(100)
    );
    let requests = listener.stats();
    println!(
        "the server got {} requests, accepted {} and dropped {}",
        requests.received, requests.accepted, requests.dropped
    );

    let start = Instant::now();
    greet(args, &conns, &bars).await?;
    println!("a message there and back on each in {:.2} s", start.elapsed().as_secs_f64());
    if let Some(kib) = resident_kib() {
        println!(
            "{} MiB of memory for both ends, {} KiB a connection",
            kib >> 10,
            kib / args.count.max(1) as u64
        );
    }

    let start = Instant::now();
    let bar = bars.begin("disconnecting");
    let ended = stream::iter(&conns).map(Connection::disconnect).buffer_unordered(args.concurrency);
    ended.for_each(async |_| bar.inc(1)).await;
    bar.finish();
    drop(conns);
    println!("disconnected in {:.2} s", start.elapsed().as_secs_f64());
    listener.close().await;
    for hca in [&client, &server] {
        hca.wait_idle().await;
    }
    println!("nothing is left after {:.2} s, TimeWait included", start.elapsed().as_secs_f64());
    for (name, hca) in [("client", &client), ("server", &server)] {
        let cm = hca.stats().cm;
        println!(
            "{name}: {} CM messages sent, {} of them again; {} MRAs",
            cm.mads_sent, cm.resent, cm.mras_sent
        );
        if args.stats {
            hca.stats()
                .named()
                .filter(|(_, value)| *value > 0)
                .for_each(|(name, value)| println!("  {name} {value}"));
        }
    }
    Ok(())
}

/// Takes every request, one after the other.
async fn serve(listener: Arc<Listener>, receives: SharedRecv, decide: Duration) {
    while let Ok(request) = listener.accept().await {
        if !decide.is_zero() {
            tokio::time::sleep(decide).await;
        }
        tokio::spawn(echo(request, Recv::shared(&receives)));
    }
}

async fn echo(request: IncomingRequest, recv: Recv) -> std::result::Result<(), ibcm::Error> {
    let conn = request.accept().recv(recv).await?;
    while let Some(message) = conn.recv().await? {
        conn.send_copy(&message).await?;
    }
    Ok(())
}

/// Opens all connections. Also how long each took.
async fn connect(
    args: &Args,
    client: &Hca,
    server: &Hca,
    listener: &Listener,
    bars: &Bars,
) -> Result<(Vec<Connection>, Vec<Duration>)> {
    let receives = client.shared_recv(RECEIVES, MESSAGE).await?;
    let mut all = client
        .connect_all(std::iter::repeat_n((server.gid(), SERVICE), args.count))
        .concurrency(args.concurrency)
        .deadline(Duration::from_secs(args.deadline))
        .retry(Retry::backoff())
        .each(move |_, connect| connect.recv(Recv::shared(&receives)));
    let (up, asking) = (bars.begin("connecting"), bars.line("server"));
    let (mut conns, mut times) = (Vec::new(), Vec::new());
    while let Some(attempt) = all.next().await {
        match attempt.result {
            Ok(conn) => {
                conns.push(conn);
                times.push(attempt.took);
            }
            Err(error) => {
                let (index, tries) = (attempt.index, attempt.tries);
                bars.print(format!("connection {index}: {}, {tries} tries", chain(&error)));
            }
        }
        let progress = all.progress();
        up.set_position(progress.done() as u64);
        up.set_message(progress.to_string());
        // Asking the listener costs more than the line is worth each time.
        if progress.done().is_multiple_of(64) {
            let stats = listener.stats();
            asking.set_message(format!(
                "{} requests in its hands, {} waiting, {} dropped",
                stats.in_window, stats.waiting, stats.dropped
            ));
        }
    }
    up.finish();
    asking.finish();
    Ok((conns, times))
}

/// Sends a message over each and waits until it is back.
async fn greet(args: &Args, conns: &[Connection], bars: &Bars) -> Result {
    let bar = bars.begin("greeting");
    let greetings = stream::iter(conns.iter().enumerate().map(Ok::<_, ibcm::Error>));
    let greet = async |(n, conn): (usize, &Connection)| {
        conn.send_copy(&n.to_be_bytes()).await?;
        let back = conn.recv().await?.ok_or(ibcm::RecvError::Closed)?;
        assert_eq!(back[..], n.to_be_bytes());
        bar.inc(1);
        Ok(())
    };
    greetings.try_for_each_concurrent(args.concurrency, greet).await?;
    bar.finish();
    Ok(())
}

/// What is drawn on the terminal, if there is one.
struct Bars {
    all: MultiProgress,
    count: u64,
}

impl Bars {
    fn new(count: usize) -> Self {
        Self { all: MultiProgress::new(), count: count as u64 }
    }

    /// A bar for something that is done once for each connection.
    fn begin(&self, what: &'static str) -> ProgressBar {
        let bar = self.all.add(ProgressBar::new(self.count));
        bar.set_style(style("{prefix:>13} {bar:25} {rate:>8} {elapsed:>4} {wide_msg}"));
        bar.with_prefix(what)
    }

    /// A line of text.
    fn line(&self, what: &'static str) -> ProgressBar {
        let line = self.all.add(ProgressBar::no_length());
        line.set_style(style("{prefix:>13} {wide_msg}"));
        line.with_prefix(what)
    }

    /// Prints a line above the bars.
    fn print(&self, line: String) {
        self.all.suspend(|| eprintln!("{line}"));
    }
}

fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let rate =
        |state: &ProgressState, out: &mut dyn std::fmt::Write| _ = write!(out, "{:.0}/s", state.per_sec());
    style.with_key("rate", rate)
}

fn ms(time: &Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The memory of this process, where the system tells.
fn resident_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}
