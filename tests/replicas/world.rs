//! The subnet, what happens there, and what came of it.

use std::ops::{AddAssign, RangeInclusive};
use std::time::Duration;

use futures::future::try_join_all;
use ibcm::Hca;
use ibcm::sim::{Mishap, Subnet};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::service::{Register, replica};
use super::writer::Writer;

const REPLICAS: [&str; 3] = ["first", "second", "third"];
/// Values that are written while things go wrong.
const VALUES: u32 = 30;
/// Longer than any run takes, in its own time.
const LIMIT: Duration = Duration::from_secs(3600);

/// What became of the values that were written, and how many connections that took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Outcome {
    pub written: u64,
    pub refused: u64,
    pub connected: u64,
}

impl Outcome {
    pub fn add(&mut self, other: Self) {
        self.written.add_assign(other.written);
        self.refused.add_assign(other.refused);
        self.connected.add_assign(other.connected);
    }
}

/// Three switches in a ring, a replica at each, and who writes at the first. A manager on each of two.
async fn subnet(seed: u64) -> Subnet {
    let build = Subnet::builder().switch("left").switch("right").switch("top");
    let build = build.link("left", "right").link("left", "top").link("right", "top");
    let build = build.hca("first").link("first", "left").hca("second").link("second", "right");
    let build = build.hca("third").link("third", "top").hca("writer").link("writer", "left");
    let net = build.managed().seed(seed).await.expect("a subnet");
    net.sm("right").start(0);
    net
}

/// Lets everything go wrong, how often and how badly the seed decides.
fn disturb(net: &Subnet, rng: &mut ChaCha8Rng) {
    let share = |rng: &mut ChaCha8Rng, most: f64| rng.random_range(0.0..most);
    let mut faults = net.faults().loss(share(rng, 0.05)).duplicate(share(rng, 0.05)).reorder(share(rng, 0.1));
    faults = faults.corrupt(share(rng, 0.02)).delay(Duration::ZERO..=Duration::from_millis(2));
    for what in [Mishap::Link, Mishap::Hca, Mishap::Switch, Mishap::Partition, Mishap::Manager] {
        let (least, longest) = (rng.random_range(2..10), rng.random_range(1..6));
        faults = faults.happen(what, seconds(least..=3 * least), seconds(0..=longest));
    }
}

fn seconds(range: RangeInclusive<u64>) -> RangeInclusive<Duration> {
    Duration::from_secs(*range.start())..=Duration::from_secs(*range.end())
}

/// One seed.
///
/// # Panics
/// If it shows a flaw.
pub async fn run(seed: u64) -> Outcome {
    let net = subnet(seed).await;
    timeout(LIMIT, written(&net, seed)).await.expect("it goes on")
}

async fn written(net: &Subnet, seed: u64) -> Outcome {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let registers = [(); REPLICAS.len()].map(|()| Register::default());
    let gids = try_join_all(
        REPLICAS.map(async |name| Ok::<_, ibcm::OpenError>(Hca::open(net.device(name)).await?.gid())),
    );
    let gids = gids.await.expect("all is well yet");
    let mut serving = JoinSet::new();
    for ((name, number), register) in REPLICAS.into_iter().zip(1..).zip(&registers) {
        serving.spawn(replica(net.clone(), name, number, register.clone()));
    }
    let mut writer = Writer::new(net, &gids);
    let start = until_all_take(&mut writer, 0).await;

    disturb(net, &mut rng);
    let (mut acknowledged, mut refused) = (vec![start], 0);
    for value in start + 1..=start + VALUES {
        match writer.write(value).await {
            2.. => acknowledged.push(value),
            _ => refused += 1,
        }
        sleep(Duration::from_millis(rng.random_range(1..1000))).await;
    }
    net.faults().clear();
    acknowledged.push(until_all_take(&mut writer, start + VALUES + 1).await);

    for value in &acknowledged {
        let kept = registers.iter().filter(|register| register.has(*value)).count();
        assert!(kept >= 2, "seed {seed}: {value} was acknowledged and is on {kept} replicas");
    }
    let wrong: Vec<_> = registers.iter().flat_map(Register::wrong).collect();
    assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
    let connected = writer.connected();
    drop(writer);
    serving.shutdown().await;
    if let Err(left) = net.quiet().await {
        panic!("seed {seed}: {left}");
    }
    Outcome { written: acknowledged.len() as u64, refused, connected }
}

/// Writes values from `first` on until all replicas have acknowledged one, and says which.
async fn until_all_take(writer: &mut Writer, first: u32) -> u32 {
    for value in first..first + 60 {
        if writer.write(value).await == REPLICAS.len() {
            return value;
        }
        sleep(Duration::from_secs(1)).await;
    }
    panic!("the replicas do not come back");
}
