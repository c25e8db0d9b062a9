//! A thousand clients ask one server at the same moment, and it can decide 50 of them a second, or 200, or 500: what
//! admission and back-off are for (design.md section 5, spec/cm.md T84).
//!
//! Two policies on the same subnet, with the same engine, in virtual time; a table tells how they compare:
//! - Ours: the listener holds 32 requests in its window and 128 behind it, drops the others and keeps its own patient by
//!   MRAs; clients have 30 s and [`Retry::backoff`].
//! - Linux's schedule: what rdma_cm puts into its REQs, response timeouts 20 (4.3 s) at exact periods, 15 retries, one
//!   attempt; MRAs of code 24 (68.7 s); no admission, so every request is taken and waits at the server. Two things are
//!   more favourable than on Linux: the first MRA comes unasked, where Linux waits for the REQ to come again, and it
//!   stretches one wait, where Linux stretches all that follow (spec/cm.md 3.3 and 3.6).
//!
//! `cargo test --test overload -- --nocapture` prints the tables.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use ibcm::sim::Subnet;
use ibcm::{Config, Connect, Connection, Hca, Listener, Overflow, Recv, Retry, ServiceId, TimeCode};
use tokio::time::{Instant, sleep};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

const SERVICE: ServiceId = ServiceId::new(0x1000_0000_0000_0001);
const CLIENTS: usize = 1_000;
/// rdma_cm's, 4.3 s.
const RESPONSE_TIMEOUT: TimeCode = TimeCode::truncate(20);
/// So long that retries decide.
const HOUR: Duration = Duration::from_secs(3_600);
/// No room is needed: nobody says anything.
const RECEIVES: Recv = Recv::buffers(1, 64);

#[derive(Debug, Clone, Copy)]
enum Policy {
    Ours,
    Linux,
}

impl Policy {
    /// How many requests the server holds in its hands, and behind that.
    const fn admission(self) -> (usize, usize) {
        match self {
            Self::Ours => (32, 128),
            Self::Linux => (1, CLIENTS),
        }
    }

    fn config(self) -> Config {
        let mut config = Config::default();
        if matches!(self, Self::Linux) {
            // The REQ of the same engine allows for the flight besides; rdma_cm's says 20 here, too.
            config.max_response_timeout = RESPONSE_TIMEOUT.duration();
            config.mra_service_timeout = TimeCode::truncate(24);
            config.max_mra_wait = Duration::from_secs(70);
        }
        config
    }

    fn connect(self, connect: Connect<92>) -> Connect<92> {
        match self {
            Self::Ours => connect.deadline(Duration::from_secs(30)).retry(Retry::backoff()),
            Self::Linux => connect
                .deadline(HOUR)
                .retry(Retry::never())
                .response_timeout(RESPONSE_TIMEOUT.duration())
                .max_cm_retries(15),
        }
    }
}

/// A storm of clients, and the network that it passes.
#[derive(Debug, Clone, Copy)]
struct Storm {
    /// The server's whole capacity, in decisions a second.
    capacity: u32,
    seed: u64,
    loss: f64,
}

/// What came of it.
struct Outcome {
    policy: Policy,
    capacity: u32,
    connected: usize,
    /// Until the last connection was there, which is also the longest wait.
    took: Duration,
    /// CM messages that were sent, by all.
    messages: u64,
    /// Undecided requests at the server, at most.
    undecided: u64,
}

impl Outcome {
    /// The share of the server's capacity that was of use.
    fn goodput(&self) -> f64 {
        self.connected as f64 / self.took.as_secs_f64() / f64::from(self.capacity)
    }

    /// What our own policy promises.
    fn assert(&self) {
        let (window, backlog) = Policy::Ours.admission();
        assert_eq!(self.connected, CLIENTS, "all connect");
        assert!(self.goodput() >= 0.8, "{:.2} of the capacity", self.goodput());
        assert!(self.undecided <= (window + backlog) as u64, "{} requests at the server", self.undecided);
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.policy {
            Policy::Ours => "ours",
            Policy::Linux => "Linux's schedule",
        };
        write!(
            f,
            "{name:<18} {:>9} {:>13.0} % {:>12.1} s {:>10} {:>19}",
            self.connected,
            100.0 * self.goodput(),
            self.took.as_secs_f64(),
            self.messages,
            self.undecided
        )
    }
}

/// Decides one request after the other.
async fn serve(policy: Policy, capacity: u32, listener: Listener, most: Arc<AtomicU64>) {
    while let Ok(request) = listener.accept().await {
        let stats = listener.stats();
        most.fetch_max(stats.in_window + stats.waiting, Ordering::Relaxed);
        sleep(Duration::from_secs(1) / capacity).await;
        let accept = match policy {
            Policy::Ours => request.accept(),
            Policy::Linux => request.accept().deadline(HOUR),
        };
        let accept = accept.recv(RECEIVES);
        tokio::spawn(async move { Ok::<_, ibcm::Error>(accept.await?.closed().await) });
    }
}

async fn storm(policy: Policy, Storm { capacity, seed, loss }: Storm) -> Result<Outcome> {
    let names = (0..CLIENTS).map(|n| format!("client {n}"));
    let net = Subnet::star(names.chain(["server".to_owned()])).seed(seed).await?;
    net.faults().loss(loss).delay(Duration::from_micros(2)..=Duration::from_micros(50));
    let open = async |name: &str| {
        let mut rng_seed = [0; 32];
        rng_seed[..name.len()].copy_from_slice(name.as_bytes());
        rng_seed[24..].copy_from_slice(&seed.to_be_bytes());
        Hca::open(net.device(name)).config(policy.config()).rng_seed(rng_seed).await
    };
    let server = open("server").await?;
    let (window, backlog) = policy.admission();
    let bind = Listener::bind(SERVICE).device(&server).window(window).backlog(backlog);
    let undecided = Arc::<AtomicU64>::default();
    let serving =
        tokio::spawn(serve(policy, capacity, bind.overflow(Overflow::Drop).await?, Arc::clone(&undecided)));

    let mut clients = Vec::new();
    for n in 0..CLIENTS {
        let client = open(&format!("client {n}")).await?;
        let path = client.path_to(server.gid()).service_id(SERVICE).await?;
        clients.push((client, path));
    }
    let start = Instant::now();
    let asked = join_all(clients.iter().map(async |(_, path)| {
        let conn = policy.connect(Connection::connect(path.clone()).recv(RECEIVES)).await;
        (conn, start.elapsed())
    }));
    let (mut conns, mut took) = (Vec::new(), Duration::ZERO);
    for (conn, at) in asked.await {
        if let Ok(conn) = conn {
            conns.push(conn);
            took = took.max(at);
        }
    }
    let hcas = clients.iter().map(|(client, _)| client).chain([&server]);
    let outcome = Outcome {
        policy,
        capacity,
        connected: conns.len(),
        took,
        messages: hcas.map(|hca| hca.stats().cm.mads_sent).sum(),
        undecided: undecided.load(Ordering::Relaxed),
    };
    net.faults().clear();
    join_all(conns.iter().map(Connection::disconnect)).await;
    drop(conns);
    serving.abort();
    _ = serving.await;
    net.quiet().await?;
    Ok(outcome)
}

/// Both policies in the same storm.
async fn compare(load: Storm) -> Result {
    let (ours, linux) = (storm(Policy::Ours, load).await?, storm(Policy::Linux, load).await?);
    let Storm { capacity, seed, loss } = load;
    eprintln!(
        "{CLIENTS} clients at once, {capacity} decisions a second, {} % lost, seed {seed}\n\
         {:<18} {:>9} {:>15} {:>14} {:>10} {:>19}\n{ours}\n{linux}",
        100.0 * loss,
        "",
        "connected",
        "of capacity",
        "longest wait",
        "messages",
        "undecided at once"
    );
    ours.assert();
    // The other one is as it is described.
    assert!(linux.undecided > (CLIENTS * 9 / 10) as u64, "{} requests at the server", linux.undecided);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn cm_t84_all_get_in_when_nothing_is_lost() -> Result {
    compare(Storm { capacity: 50, seed: 1, loss: 0.0 }).await
}

#[tokio::test(start_paused = true)]
async fn cm_t84_all_get_in_when_one_message_in_a_hundred_is_lost() -> Result {
    for seed in 2..=4 {
        compare(Storm { capacity: 50, seed, loss: 0.01 }).await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn cm_t84_all_get_in_when_one_message_in_twenty_is_lost() -> Result {
    compare(Storm { capacity: 50, seed: 5, loss: 0.05 }).await
}

/// A server that is done with what waits before those that were turned away come again. Where nothing is lost the seed is
/// nothing to Linux's schedule.
#[tokio::test(start_paused = true)]
async fn cm_t84_a_fast_server_is_kept_busy() -> Result {
    for capacity in [200, 500] {
        compare(Storm { capacity, seed: 6, loss: 0.0 }).await?;
        for seed in 7..=8 {
            storm(Policy::Ours, Storm { capacity, seed, loss: 0.0 }).await?.assert();
        }
    }
    Ok(())
}
