//! What happens under a seed: everything is drawn before it begins, so that no choice depends on an outcome.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use ibcm::{Mtu, Role, TimeCode};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt as _, SeedableRng as _};

/// All that is chosen for one seed.
#[derive(Debug)]
pub struct Plan {
    pub seed: u64,
    /// Two or three, and how each of them listens.
    pub hosts: Vec<Listening>,
    /// Ports of each host.
    pub rails: usize,
    pub weather: Weather,
    /// Whether the weather is good again when the last connections are ended.
    pub clears_up: bool,
    /// Whether the HCAs are closed in the end; else all handles are dropped.
    pub closes: bool,
    pub incidents: Vec<(Duration, Incident)>,
    pub calls: Vec<Call>,
}

/// How a host takes requests.
#[derive(Debug)]
pub struct Listening {
    pub backlog: usize,
    /// How long it pauses behind each request.
    pub pause: Duration,
}

/// What happens to packets.
#[derive(Debug)]
pub struct Weather {
    pub loss: f64,
    pub duplicate: f64,
    pub reorder: f64,
    pub corrupt: f64,
    pub delay: RangeInclusive<Duration>,
}

/// What happens to hosts.
#[derive(Debug, Clone, Copy)]
pub enum Incident {
    /// Nothing passes between this host and the others.
    Partition { host: usize, lasts: Duration },
    /// All its ports are down.
    LinkDown { host: usize, lasts: Duration },
    /// One of its ports is down.
    PortDown { host: usize, port: u8, lasts: Duration },
    /// Its device is taken out for good.
    Removal { host: usize },
    /// Its listener is closed, or dropped; another one follows.
    ListenerGone { host: usize, closed: bool, lasts: Duration },
    /// Its HCA is closed, and opened again when that is over.
    Restart { host: usize },
}

/// A program that connects, and the one that it finds.
#[derive(Debug)]
pub struct Call {
    pub number: usize,
    pub at: Duration,
    pub from: usize,
    /// May be the same host.
    pub to: usize,
    pub port: u8,
    /// Whether somebody serves what it asks for.
    pub served: bool,
    pub deadline: Duration,
    pub response_timeout: Option<Duration>,
    pub max_cm_retries: Option<u8>,
    pub retry_count: u8,
    pub mtu: Mtu,
    /// When the future is dropped.
    pub gives_up: Option<GiveUp>,
    pub answer: Answer,
    pub active: Life,
    pub passive: Life,
}

/// When a program drops a future that is not ready.
#[derive(Debug, Clone, Copy)]
pub enum GiveUp {
    After(Duration),
    /// At its n-th poll, the first being 0.
    AtPoll(usize),
}

/// What the other program does with each request of a call.
#[derive(Debug)]
pub struct Answer {
    /// How many it ignores first.
    pub ignores: usize,
    /// How long it thinks.
    pub after: Duration,
    pub what: Decision,
}

/// What it comes to.
#[derive(Debug, Clone, Copy)]
pub enum Decision {
    Accept {
        deadline: Option<Duration>,
        gives_up: Option<GiveUp>,
    },
    /// With private data that names the call.
    Reject,
    /// Drops the request.
    Drop,
}

/// What a program does with its side of a connection.
#[derive(Debug)]
pub struct Life {
    /// Receive buffers, of 4 KiB.
    pub buffers: usize,
    pub talk: Vec<Burst>,
    /// How long it takes to read a message.
    pub reads: Duration,
    pub end: End,
}

/// Messages that are sent at once.
#[derive(Debug)]
pub struct Burst {
    pub after: Duration,
    /// The number of the first one.
    pub first: usize,
    pub lens: Vec<usize>,
    /// When the futures are dropped that are not ready.
    pub gives_up: Option<Duration>,
}

/// How a program leaves a connection.
#[derive(Debug, Clone, Copy)]
pub struct End {
    /// From the beginning of the simulation on; `None`: when all others have settled.
    pub at: Option<Duration>,
    pub how: Leave,
}

/// What it does then.
#[derive(Debug, Clone, Copy)]
pub enum Leave {
    Disconnect {
        deadline: Duration,
    },
    /// Drops the connection.
    Drop,
    /// Drops the future of the disconnection, then the connection.
    DropDisconnecting {
        after: Duration,
    },
    /// One more message, then disconnects.
    Probe,
}

/// The life time of packets in a subnet, and the QP's ack timeout that follows.
const LIFE_TIME: TimeCode = TimeCode::truncate(16);
pub const ACK_TIMEOUT: Duration = TimeCode::truncate(17).duration();

/// Draws.
struct Dice(ChaCha8Rng);

impl Dice {
    fn chance(&mut self, probability: f64) -> bool {
        self.0.random_bool(probability)
    }

    fn below(&mut self, n: usize) -> usize {
        self.0.random_range(0..n)
    }

    fn share(&mut self, most: f64) -> f64 {
        self.0.random_range(0.0..=most)
    }

    /// Whole microseconds up to so many milliseconds, mostly few.
    fn pause(&mut self, most: u64) -> Duration {
        let most = if self.chance(0.7) { most / 20 } else { most };
        Duration::from_micros(self.0.random_range(0..=1_000 * most))
    }

    fn millis(&mut self, range: RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.0.random_range(range))
    }

    fn maybe<T>(&mut self, probability: f64, draw: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.chance(probability).then(|| draw(self))
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

impl Plan {
    pub fn draw(seed: u64) -> Self {
        let mut dice = Dice(ChaCha8Rng::seed_from_u64(seed));
        let hosts = if dice.chance(0.2) { 3 } else { 2 };
        let rails = if dice.chance(0.2) { 2 } else { 1 };
        let fair = dice.chance(0.1);
        let weather = if fair { Weather::fair() } else { Weather::draw(&mut dice) };
        let incidents = match dice.below(10) {
            _ if fair => 0,
            0..5 => 0,
            5..8 => 1,
            _ => 2,
        };
        Self {
            seed,
            hosts: (0..hosts).map(|_| Listening::draw(&mut dice)).collect(),
            rails,
            weather,
            clears_up: dice.chance(0.5),
            closes: dice.chance(0.5),
            incidents: (0..incidents)
                .map(|_| (dice.pause(4_000), Incident::draw(&mut dice, hosts, rails)))
                .collect(),
            calls: {
                let calls = 1 + dice.below(4);
                (0..calls).map(|number| Call::draw(&mut dice, number, hosts, rails)).collect()
            },
        }
    }

    /// The hosts' names in the subnet.
    pub fn names(&self) -> &'static [&'static str] {
        &["amber", "birch", "cedar"][..self.hosts.len()]
    }

    /// Whether this call must come to what its two programs do.
    pub fn is_undisturbed(&self) -> bool {
        self.weather.loss == 0.0 && self.weather.corrupt == 0.0 && self.incidents.is_empty()
    }

    /// When the longest exchange of a connection that was left alone is over, TimeWait included.
    pub fn exchange_bound(&self) -> Duration {
        let longest = self.calls.iter().map(Call::passive_bound).max().unwrap_or_default();
        longest + 3 * ACK_TIMEOUT
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, hosts, rails, weather, clears_up, closes, incidents, calls } = self;
        writeln!(f, "seed {seed}: hosts {:?} {hosts:?}, {rails} rails, {weather:?}", self.names())?;
        writeln!(f, "clears up: {clears_up}, closes: {closes}")?;
        incidents.iter().try_for_each(|(at, incident)| writeln!(f, "at {at:?} {incident:?}"))?;
        calls.iter().try_for_each(|call| writeln!(f, "{call:?}"))
    }
}

impl Listening {
    fn draw(dice: &mut Dice) -> Self {
        Self {
            backlog: if dice.chance(0.8) { 128 } else { 1 + dice.below(2) },
            pause: dice.maybe(0.3, |dice| dice.pause(1_000)).unwrap_or_default(),
        }
    }
}

impl Weather {
    fn fair() -> Self {
        Self { loss: 0.0, duplicate: 0.0, reorder: 0.0, corrupt: 0.0, delay: Duration::ZERO..=Duration::ZERO }
    }

    fn draw(dice: &mut Dice) -> Self {
        let longest = dice.pause(5);
        Self {
            loss: dice.share(0.4),
            duplicate: dice.share(0.2),
            reorder: dice.share(0.3),
            corrupt: dice.maybe(0.2, |dice| dice.share(0.05)).unwrap_or(0.0),
            delay: longest / 4..=longest,
        }
    }
}

impl Incident {
    fn draw(dice: &mut Dice, hosts: usize, rails: usize) -> Self {
        let host = dice.below(hosts);
        let lasts = dice.pause(8_000);
        match dice.below(10) {
            0..3 => Self::Partition { host, lasts },
            3 => Self::LinkDown { host, lasts },
            4 => Self::PortDown { host, port: 1 + dice.below(rails) as u8, lasts },
            5 => Self::Removal { host },
            6..8 => Self::ListenerGone { host, closed: dice.chance(0.5), lasts },
            _ => Self::Restart { host },
        }
    }
}

impl Call {
    fn draw(dice: &mut Dice, number: usize, hosts: usize, rails: usize) -> Self {
        let from = dice.below(hosts);
        let to = match dice.chance(0.07) {
            true => from,
            false => (from + 1 + dice.below(hosts - 1)) % hosts,
        };
        let mut call = Self {
            number,
            at: dice.pause(2_000),
            from,
            to,
            port: 1 + dice.below(rails) as u8,
            served: !dice.chance(0.03),
            deadline: match dice.chance(0.4) {
                true => Duration::from_secs(10),
                false => dice.millis(500..=12_000),
            },
            response_timeout: dice.maybe(0.3, |dice| dice.millis(10..=600)),
            max_cm_retries: dice.maybe(0.3, |dice| dice.below(16) as u8),
            retry_count: if dice.chance(0.65) { 7 } else { dice.below(8) as u8 },
            mtu: dice.pick(&[Mtu::B256, Mtu::B1024, Mtu::B4096]),
            gives_up: dice.maybe(0.15, GiveUp::draw),
            answer: Answer::draw(dice),
            active: Life::draw(dice),
            passive: Life::draw(dice),
        };
        if dice.chance(0.15) {
            call.passive.end.at = call.active.end.at;
        }
        call
    }

    pub fn life(&self, role: Role) -> &Life {
        match role {
            Role::Active => &self.active,
            Role::Passive => &self.passive,
        }
    }

    /// From one REQ, or DREQ of the active side, to the next, at most.
    fn period(&self) -> Duration {
        let flight = 2 * LIFE_TIME.duration();
        match self.response_timeout {
            Some(timeout) => TimeCode::at_least(timeout).duration() + flight,
            // As many as eight shall fit the deadline.
            None => (self.deadline / 8).max(TimeCode::truncate(12).duration() + flight),
        }
    }

    /// How long a DREQ of the active side can be tried.
    pub fn active_bound(&self) -> Duration {
        match self.max_cm_retries {
            Some(retries) => self.period() * (u32::from(retries) + 1),
            // As many as fit the deadline, at least five.
            None => (self.deadline + self.period()).max(self.period() * 5),
        }
    }

    /// The same for the passive side, which was told the period as the next power of two.
    pub fn passive_bound(&self) -> Duration {
        2 * self.active_bound()
    }

    /// How long the messages of a burst can be tried, and what is still in the queue before them: each packet as often as
    /// the QP may.
    pub fn send_bound(&self, role: Role, burst: usize) -> Duration {
        let (life, peer) = match role {
            Role::Active => (&self.active, &self.passive),
            Role::Passive => (&self.passive, &self.active),
        };
        let mtu = self.mtu.bytes().unwrap_or(256) as usize;
        let lens = || life.talk.iter().take(burst + 1).flat_map(|burst| &burst.lens);
        let packets: usize = lens().map(|len| len.div_ceil(mtu).max(1)).sum();
        let tries = u32::from(self.retry_count) + 1;
        // A receiver that is not ready adds no more than the time that its program takes to read.
        let reading = (peer.reads + Duration::from_millis(1)) * (lens().count() as u32 + 1);
        ACK_TIMEOUT * tries * (packets as u32 + 1) + reading
    }
}

impl GiveUp {
    fn draw(dice: &mut Dice) -> Self {
        match dice.chance(0.5) {
            true => Self::After(dice.pause(3_000)),
            false => Self::AtPoll(dice.below(6)),
        }
    }
}

impl Answer {
    fn draw(dice: &mut Dice) -> Self {
        let after = match dice.below(20) {
            0..12 => Duration::ZERO,
            12..18 => dice.pause(400),
            18 => dice.pause(4_000),
            _ => dice.millis(4_000..=20_000),
        };
        let what = match dice.below(20) {
            0..17 => Decision::Accept {
                deadline: dice.maybe(0.2, |dice| dice.millis(1..=3_000)),
                gives_up: dice.maybe(0.1, GiveUp::draw),
            },
            17..19 => Decision::Reject,
            _ => Decision::Drop,
        };
        Self { ignores: dice.maybe(0.08, |dice| 1 + dice.below(2)).unwrap_or(0), after, what }
    }
}

impl Life {
    fn draw(dice: &mut Dice) -> Self {
        let mut first = 0;
        let bursts = dice.below(5);
        let talk = (0..bursts).map(|_| Burst::draw(dice, &mut first)).collect();
        Self {
            buffers: if dice.chance(0.2) { 1 } else { 16 },
            talk,
            reads: dice.maybe(0.2, |dice| dice.millis(0..=20)).unwrap_or_default(),
            end: End::draw(dice),
        }
    }
}

impl Burst {
    fn draw(dice: &mut Dice, first: &mut usize) -> Self {
        // Now and then more than fit a send queue.
        let many = dice.chance(0.02);
        let messages = if many { 60 + dice.below(20) } else { 1 + dice.below(3) };
        let len = |dice: &mut Dice| match dice.below(6) {
            0 => 0,
            1 if !many => dice.below(4097),
            _ => dice.below(200),
        };
        let burst = Self {
            after: dice.pause(400),
            first: *first,
            lens: (0..messages).map(|_| len(dice)).collect(),
            gives_up: dice.maybe(0.1, |dice| dice.pause(500)),
        };
        *first += messages;
        burst
    }
}

impl End {
    fn draw(dice: &mut Dice) -> Self {
        let how = match dice.below(20) {
            0..11 => Leave::Disconnect {
                deadline: if dice.chance(0.7) { Duration::from_secs(10) } else { dice.millis(1..=5_000) },
            },
            11..15 => Leave::Drop,
            15..18 => Leave::DropDisconnecting { after: dice.pause(1_000) },
            _ => Leave::Probe,
        };
        Self { at: dice.maybe(0.6, |dice| dice.pause(5_000)), how }
    }
}
