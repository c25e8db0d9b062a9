//! Engines, the network between them, and time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use ibdev::qp::{QpType, Rtr, Rts};
use ibdev::{Access, Completion, RemoteAddr, SharedMemory, Status};
use ibwire::{Mtu, RnrTimer};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::super::super::{CqId, DomainId, QpCreate, SrqId};
use super::super::*;
use super::end::{Claim, DEPTH, End, Exposed, MOST_BUFS, Posted, Reach};
use super::model::Model;

/// Words of a node that all ends add to.
const COUNTERS: usize = 4;
/// Bytes behind each packet of a run.
const ROOM: usize = 4;
/// Longer than any simulation takes.
const MOST_STEPS: u32 = 500_000;

/// What the network, and who uses it, does to packets and programs.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Faults {
    pub(super) loss: f64,
    pub(super) duplicate: f64,
    pub(super) reorder: f64,
    /// How often an end does not post a receive at once.
    pub(super) lazy: f64,
    /// How often, when something happens, a region is deregistered or a QP put into the error state.
    pub(super) trouble: f64,
}

/// What is simulated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) nodes: usize,
    /// Work requests of each end.
    pub(super) requests: u64,
    pub(super) faults: Faults,
}

/// One device.
struct Node {
    engine: Engine,
    cq: CqId,
    srq: Option<SrqId>,
    /// What is posted to the shared receive queue.
    receives: Posted,
    counters: SharedMemory,
    counters_at: RemoteAddr,
}

/// A packet under way. The first in order arrives first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Flight {
    at: Instant,
    order: u64,
    from: usize,
    to: usize,
    bytes: Vec<u8>,
}

pub(super) struct World {
    plan: Plan,
    rng: ChaCha8Rng,
    pub(super) start: Instant,
    pub(super) now: Instant,
    nodes: Vec<Node>,
    /// Those of one connection are neighbours.
    ends: Vec<End>,
    wire: BinaryHeap<Reverse<Flight>>,
    flights: u64,
}

fn address(node: usize) -> String {
    format!("10.77.0.{}", node + 1)
}

impl World {
    pub(super) fn new(plan: Plan) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(plan.seed);
        let mtu = Mtu(rng.random_range(1..=5));
        let bytes = mtu.bytes().unwrap() as usize;
        let longest = (4 * bytes).min(6000);
        let pairs: Vec<_> = (0..plan.nodes).flat_map(|a| (a + 1..plan.nodes).map(move |b| (a, b))).collect();
        let mut nodes: Vec<_> = (0..plan.nodes).map(|i| node(i, plan, &mut rng)).collect();
        let mut ends = Vec::new();
        for (a, b) in pairs {
            let max_rd_atomic: [u8; 2] = [rng.random_range(1..=4), rng.random_range(1..=4)];
            let psns: [u32; 2] = if rng.random_bool(0.5) { [0xff_fff0, 77] } else { rng.random() };
            let both = [a, b];
            let first = ends.len();
            for i in both {
                ends.push(end(i, &mut nodes[i], plan.requests, longest, &mut rng));
            }
            for (i, node) in both.into_iter().enumerate() {
                let peer = ends[first + 1 - i].qpn;
                let rtr = Rtr {
                    path_mtu: mtu,
                    min_rnr_timer: RnrTimer::truncate(rng.random_range(1..8)),
                    max_dest_rd_atomic: max_rd_atomic[1 - i] + rng.random_range(0..=2),
                    ..rtr(roce_av(&address(both[1 - i])), peer, psns[1 - i])
                };
                let rts = Rts { max_rd_atomic: max_rd_atomic[i], ..rts(psns[i]) };
                let (engine, qpn) = (&mut nodes[node].engine, ends[first + i].qpn);
                for transition in [
                    Transition::Init(Init { access: Access::all(), ..INIT }),
                    Transition::Rtr(rtr),
                    Transition::Rts(rts),
                ] {
                    engine.modify(qpn, transition).unwrap();
                }
            }
            for i in [first, first + 1] {
                ends[i].model = Model::new(ends[i ^ 1].regions.iter().map(Exposed::bytes).collect());
            }
        }
        let start = Instant::now();
        Self { plan, rng, start, now: start, nodes, ends, wire: BinaryHeap::new(), flights: 0 }
    }

    /// Runs until nothing is to be expected any more.
    pub(super) fn run(&mut self) {
        for _ in 0..MOST_STEPS {
            self.complete();
            self.post();
            self.transmit();
            if self.is_through() {
                return self.check();
            }
            self.pass();
        }
        self.fail("it does not come to an end");
    }

    fn fail(&self, what: impl std::fmt::Display) -> ! {
        panic!("{what}\nSEED={} {:?}, after {:?}", self.plan.seed, self.plan, self.now - self.start)
    }

    fn is_through(&self) -> bool {
        self.ends.iter().enumerate().all(|(i, end)| {
            let has_all = self.ends[i ^ 1].model.arrivals.is_empty() || self.ends[i ^ 1].failed.is_some();
            end.is_through() && (has_all || end.failed.is_some())
        })
    }

    /// Takes and checks completions.
    fn complete(&mut self) {
        for node in 0..self.nodes.len() {
            let Node { engine, cq, .. } = &mut self.nodes[node];
            drop(engine.take_released());
            while engine.poll_event().is_some() {}
            let mut completions = Vec::new();
            engine.poll_cq(*cq, &mut completions, usize::MAX);
            for completion in completions {
                if let Err(what) = self.take(node, &completion) {
                    self.fail(format_args!("node {node}, {}: {what}", completion.qpn));
                }
            }
        }
    }

    fn take(&mut self, node: usize, completion: &Completion) -> Result<(), String> {
        let is_its = |end: &End| end.node == node && end.qpn == completion.qpn;
        let i = self.ends.iter().position(is_its).ok_or("no such QP")?;
        let (end, peer) = pair(&mut self.ends, i);
        if completion.op.is_recv() {
            end.received(completion, &mut peer.model, &mut self.nodes[node].receives)
        } else {
            end.sent(completion, &peer.regions)
        }
    }

    fn post(&mut self) {
        let Self { nodes, ends, rng, plan, .. } = self;
        let longest = ends[0].longest;
        for Node { engine, srq, receives, .. } in nodes.iter_mut() {
            let Some(srq) = *srq else { continue };
            while receives.open() < DEPTH && !rng.random_bool(plan.faults.lazy) {
                engine.post_srq_recv(srq, &mut one(receives.draw(rng, longest))).unwrap();
            }
        }
        for i in 0..ends.len() {
            let (end, peer) = pair(ends, i);
            let engine = &mut nodes[end.node].engine;
            if let Some(receives) = end.receives.as_mut().filter(|_| end.failed.is_none()) {
                while receives.open() < DEPTH && !rng.random_bool(plan.faults.lazy) {
                    engine.post_recv(end.qpn, &mut one(receives.draw(rng, longest))).unwrap();
                }
            }
            let mut work = VecDeque::new();
            while end.failed.is_none() && end.left > 0 && end.model.in_flight() < DEPTH {
                let counters = (peer.node, nodes[peer.node].counters_at, COUNTERS);
                let reach = Reach { regions: &peer.regions, counters };
                work.push_back(end.draw(rng, &reach));
            }
            if !work.is_empty() {
                nodes[end.node].engine.post_send(end.qpn, &mut work).unwrap();
            }
        }
    }

    fn transmit(&mut self) {
        let faults = self.plan.faults;
        let mut out = Vec::new();
        for from in 0..self.nodes.len() {
            let now = self.now;
            // One by one, or in runs.
            let poll = |engine: &mut Engine, out: &mut Vec<u8>| {
                let egress = match from % 2 {
                    0 => engine.poll_transmit(now, out),
                    _ => engine.poll_run(now, out, ROOM),
                };
                egress.map(|egress| (egress.net.route.unwrap().dgid, egress.len, egress.packets))
            };
            while let Some((dgid, len, packets)) = poll(&mut self.nodes[from].engine, &mut out) {
                let to = (0..self.nodes.len()).find(|&node| gid(&address(node)) == dgid).unwrap();
                let stride = len + if from % 2 == 0 { 0 } else { ROOM };
                assert_eq!(out.len(), packets * stride);
                for bytes in out.chunks_exact(stride).map(|packet| &packet[..len]) {
                    let copies = match self.rng.random::<f64>() {
                        x if x < faults.loss => 0,
                        x if x < faults.loss + faults.duplicate => 2,
                        _ => 1,
                    };
                    for _ in 0..copies {
                        let late = if self.rng.random_bool(faults.reorder) { 300 } else { 1 };
                        let delay = Duration::from_micros(10 + self.rng.random_range(0..late));
                        self.flights += 1;
                        let (at, order) = (self.now + delay, self.flights);
                        self.wire.push(Reverse(Flight { at, order, from, to, bytes: bytes.to_vec() }));
                    }
                }
                out.clear();
            }
        }
    }

    /// Lets time pass until something happens, and something go wrong.
    fn pass(&mut self) {
        let arrival = self.wire.peek().map(|Reverse(flight)| flight.at);
        let timeouts = self.nodes.iter().filter_map(|node| node.engine.poll_timeout());
        // Who is lazy about receives looks again after a while.
        let later = (self.plan.faults.lazy > 0.0).then(|| self.now + Duration::from_micros(500));
        let Some(next) = timeouts.chain(arrival).chain(later).min() else { self.fail("it is stuck") };
        self.now = next.max(self.now);
        while self.wire.peek().is_some_and(|Reverse(flight)| flight.at <= self.now) {
            let Some(Reverse(Flight { from, to, bytes, .. })) = self.wire.pop() else { break };
            let net = roce_net(&address(from), &address(to));
            self.nodes[to].engine.handle_packet(self.now, 1, &net, &bytes);
        }
        for node in &mut self.nodes {
            node.engine.handle_timeout(self.now);
        }
        if self.rng.random_bool(self.plan.faults.trouble) {
            self.make_trouble();
        }
    }

    fn make_trouble(&mut self) {
        let i = self.rng.random_range(0..self.ends.len());
        let (end, peer) = (&self.ends[i], i ^ 1);
        let engine = &mut self.nodes[end.node].engine;
        if self.rng.random_bool(0.3) {
            drop(engine.modify(end.qpn, Transition::Error).unwrap());
            return;
        }
        let region = self.rng.random_range(0..end.regions.len());
        if end.regions[region].gone.is_some() {
            return;
        }
        engine.deregister(end.regions[region].at.rkey);
        let bytes = end.regions[region].bytes();
        if let Err(what) = self.ends[peer].model.check_region(region, &bytes) {
            self.fail(format_args!("end {i}, deregistering: {what}"));
        }
        self.ends[i].regions[region].gone = Some(bytes);
    }

    /// At the end: all memory is what the model says, and nothing is left over.
    fn check(&mut self) {
        for (i, end) in self.ends.iter().enumerate() {
            let peer = &self.ends[i ^ 1];
            if end.failed.is_some() {
                let left = end.model.posted() - end.flushed();
                if left != 0 || end.receives.as_ref().is_some_and(|receives| receives.open() != 0) {
                    self.fail(format_args!("end {i} has not flushed all of its work"));
                }
            }
            for (region, exposed) in peer.regions.iter().enumerate() {
                let actual = exposed.bytes();
                let checked = match &exposed.gone {
                    Some(then) if *then != actual => Err("it changed after it was deregistered".into()),
                    Some(_) => Ok(()),
                    None => end.model.check_region(region, &actual),
                };
                if let Err(what) = checked {
                    self.fail(format_args!("end {i}, region {region}: {what}"));
                }
            }
        }
        for node in 0..self.nodes.len() {
            for word in 0..COUNTERS {
                if let Err(what) = self.check_counter(node, word) {
                    self.fail(format_args!("node {node}, counter {word}: {what}"));
                }
            }
        }
        let has_failed = self.failures() > 0;
        for i in 0..self.ends.len() {
            let (node, qpn) = (self.ends[i].node, self.ends[i].qpn);
            let (sends, _) = self.nodes[node].engine.outstanding(qpn).unwrap();
            if sends != 0 && !has_failed {
                self.fail(format_args!("end {i} has {sends} sends outstanding"));
            }
        }
    }

    /// Each addition counted once: sorted, each began where the one before it had ended.
    fn check_counter(&self, node: usize, word: usize) -> Result<(), String> {
        let is_its = |claim: &&Claim| claim.word == (node, word);
        let claims = self.ends.iter().flat_map(|end| &end.claimed).filter(is_its);
        let mut parts: Vec<_> = claims.map(|claim| (claim.before.unwrap_or(u64::MAX), claim.add)).collect();
        parts.sort_unstable();
        let open: u64 = self
            .ends
            .iter()
            .flat_map(|end| &end.claims)
            .filter(|(_, claim)| is_its(&claim))
            .map(|c| c.1.add)
            .sum();
        let mut sum = 0;
        for (before, add) in parts {
            if before < sum || open == 0 && before != sum {
                return Err(format!("{add} was added to {before}, {sum} was there"));
            }
            sum = before + add;
        }
        let value =
            self.nodes[node].counters.atomic(8 * word).unwrap().load(std::sync::atomic::Ordering::Relaxed);
        (value >= sum && value - sum <= open)
            .then_some(())
            .ok_or_else(|| format!("it is {value}, {sum} were added, and maybe {open}"))
    }

    /// How many ends have failed.
    pub(super) fn failures(&self) -> usize {
        self.ends.iter().filter(|end| end.failed.is_some()).count()
    }

    /// How many ends failed like this.
    pub(super) fn failed_with(&self, status: Status) -> usize {
        self.ends.iter().filter(|end| end.failed == Some(status)).count()
    }

    /// The sum of a counter over all engines.
    pub(super) fn sum(&self, counter: impl Fn(&super::super::super::Counters) -> u64) -> u64 {
        self.nodes.iter().map(|node| counter(node.engine.counters())).sum()
    }
}

/// An end and its peer.
fn pair(ends: &mut [End], i: usize) -> (&mut End, &mut End) {
    let (low, high) = ends.split_at_mut(i | 1);
    let (even, odd) = (&mut low[i & !1], &mut high[0]);
    if i & 1 == 0 { (even, odd) } else { (odd, even) }
}

fn node(i: usize, plan: Plan, rng: &mut ChaCha8Rng) -> Node {
    let mut port = roce_port(&address(i));
    port.attr.active_mtu = Mtu::B4096;
    let mut engine = engine(port, plan.seed as u8 ^ i as u8);
    let cq = engine.create_cq(2 * (plan.nodes * DEPTH) as u32).unwrap();
    let srq = rng
        .random_bool(0.4)
        .then(|| engine.create_srq(DomainId::DEFAULT, DEPTH as u32, MOST_BUFS as u32).unwrap());
    let counters = SharedMemory::zeroed(8 * COUNTERS);
    let (rkey, addr) = engine.register(DomainId::DEFAULT, counters.clone(), Access::REMOTE_ATOMIC).unwrap();
    let counters_at = RemoteAddr { addr, rkey };
    Node { engine, cq, srq, receives: Posted::default(), counters, counters_at }
}

fn end(i: usize, node: &mut Node, requests: u64, longest: usize, rng: &mut ChaCha8Rng) -> End {
    let max = DEPTH as u32;
    let create =
        QpCreate { max_sge: MOST_BUFS as u32, srq: node.srq, ..QpCreate::new(QpType::Rc, node.cq, max, max) };
    let qpn = node.engine.create_qp(&create).unwrap();
    let mut end = End::new(i, qpn, requests, longest, node.srq.is_none());
    for access in [
        Access::all(),
        Access::REMOTE_WRITE | Access::REMOTE_READ,
        Access::REMOTE_READ,
        Access::REMOTE_WRITE,
        Access::all(),
    ] {
        let len = rng.random_range(0..=longest + 100);
        let memory = SharedMemory::zeroed(len);
        if rng.random_bool(0.5) {
            let bytes: Vec<u8> = (0..len).map(|i| pattern(qpn.get().into(), i)).collect();
            memory.copy_from(0, &bytes).unwrap();
        }
        let (rkey, addr) = node.engine.register(DomainId::DEFAULT, memory.clone(), access).unwrap();
        end.regions.push(Exposed { memory, at: RemoteAddr { addr, rkey }, access, gone: None });
    }
    end
}
