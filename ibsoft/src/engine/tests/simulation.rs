//! Two engines and a bad network, in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use ibdev::qp::QpType;
use ibdev::{CompletionOp, Status};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::super::{CqId, QpCreate};
use super::*;

const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
/// Work requests that a side keeps posted.
const DEPTH: u64 = 16;
const LONGEST: usize = 5000;

/// What the network does to packets.
#[derive(Debug, Clone, Copy, Default)]
struct Faults {
    loss: f64,
    duplicate: f64,
    reorder: f64,
    /// How often a side does not post a receive at once.
    lazy: f64,
}

/// One device with one connected QP, which sends and receives messages 0, 1, 2, …
struct Side {
    engine: Engine,
    cq: CqId,
    qpn: Qpn,
    /// Posted and completed, by queue: sends, receives.
    posted: [u64; 2],
    completed: [u64; 2],
    /// Completed with success.
    sent: u64,
    received: u64,
    failed: bool,
}

/// A packet under way. The first in order arrives first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Flight {
    at: Instant,
    order: u64,
    to: usize,
    bytes: Vec<u8>,
}

struct Sim {
    seed: u64,
    rng: ChaCha8Rng,
    start: Instant,
    now: Instant,
    faults: Faults,
    messages: u64,
    sides: [Side; 2],
    wire: BinaryHeap<Reverse<Flight>>,
    flights: u64,
}

/// Message `tag` of a side: length and immediate.
fn shape(side: usize, tag: u64) -> (usize, Option<u32>) {
    let mut rng = ChaCha8Rng::seed_from_u64(tag * 2 + side as u64);
    let len = match rng.random_range(0..4) {
        0 => rng.random_range(0..=64),
        1 => 1024 * rng.random_range(0..=4),
        _ => rng.random_range(0..=LONGEST),
    };
    (len, rng.random_bool(0.3).then_some(tag as u32))
}

impl Sim {
    fn new(seed: u64, messages: u64, faults: Faults) -> Self {
        let mut sides = [0, 1].map(|i| {
            let mut engine = engine(roce_port(ADDRESSES[i]), seed as u8 ^ i as u8);
            let cq = engine.create_cq(2 * DEPTH as u32).unwrap();
            let max = DEPTH as u32;
            let create =
                QpCreate::new(QpType::Rc, cq, max, max);
            let qpn = engine.create_qp(&create).unwrap();
            Side { engine, cq, qpn, posted: [0; 2], completed: [0; 2], sent: 0, received: 0, failed: false }
        });
        let psns = [0xff_ff00, 77];
        for i in 0..2 {
            let rtr = Rtr {
                min_rnr_timer: RnrTimer::truncate(5),
                ..rtr(roce_av(ADDRESSES[1 - i]), sides[1 - i].qpn, psns[1 - i])
            };
            let qpn = sides[i].qpn;
            connect(&mut sides[i].engine, qpn, rtr, rts(psns[i]));
        }
        let start = Instant::now();
        Self {
            seed,
            rng: ChaCha8Rng::seed_from_u64(seed),
            start,
            now: start,
            faults,
            messages,
            sides,
            wire: BinaryHeap::new(),
            flights: 0,
        }
    }

    /// Runs until both sides have sent everything, or one has failed.
    fn run(&mut self) {
        loop {
            for i in 0..2 {
                self.complete(i);
                self.post(i);
                self.transmit(i);
            }
            if self.sides.iter().any(|side| side.failed) {
                return;
            }
            if self.sides.iter().all(|side| side.sent == self.messages && side.received == self.messages) {
                return;
            }
            let arrival = self.wire.peek().map(|Reverse(flight)| flight.at);
            let timeouts = self.sides.iter().filter_map(|side| side.engine.poll_timeout());
            // A side that is lazy about receives looks again after a while.
            let later = (self.faults.lazy > 0.0).then(|| self.now + Duration::from_micros(500));
            let next = timeouts.chain(arrival).chain(later).min();
            self.now = next.unwrap_or_else(|| panic!("seed {}: stuck", self.seed)).max(self.now);
            while self.wire.peek().is_some_and(|Reverse(flight)| flight.at <= self.now) {
                let Some(Reverse(Flight { to, bytes, .. })) = self.wire.pop() else { break };
                let net = roce_net(ADDRESSES[1 - to], ADDRESSES[to]);
                self.sides[to].engine.handle_packet(self.now, 1, &net, &bytes);
            }
            for side in &mut self.sides {
                side.engine.handle_timeout(self.now);
            }
        }
    }

    fn complete(&mut self, i: usize) {
        let side = &mut self.sides[i];
        let mut completions = Vec::new();
        side.engine.poll_cq(side.cq, &mut completions, usize::MAX);
        for completion in completions {
            let queue = usize::from(completion.op == CompletionOp::Recv);
            assert_eq!(completion.id, side.completed[queue], "seed {}", self.seed);
            side.completed[queue] += 1;
            if completion.status != Status::SUCCESS {
                side.failed = true;
                continue;
            }
            assert!(!side.failed, "seed {}: success after failure", self.seed);
            if completion.op == CompletionOp::Send {
                side.sent += 1;
                continue;
            }
            let (tag, seed) = (side.received, self.seed);
            let (len, imm) = shape(1 - i, tag);
            assert_eq!((completion.len as usize, completion.imm), (len, imm), "seed {seed}");
            assert!(completion.sg[0][..] == message(tag, len)[..], "seed {seed}: message {tag}");
            side.received += 1;
        }
    }

    fn post(&mut self, i: usize) {
        let side = &mut self.sides[i];
        while side.posted[1] < side.received + DEPTH && !self.rng.random_bool(self.faults.lazy) {
            side.engine.post_recv(side.qpn, &mut one(recv(side.posted[1], LONGEST))).unwrap();
            side.posted[1] += 1;
        }
        while side.posted[0] < self.messages.min(side.sent + DEPTH) {
            let (len, imm) = shape(i, side.posted[0]);
            side.engine.post_send(side.qpn, &mut one(send(side.posted[0], len, imm))).unwrap();
            side.posted[0] += 1;
        }
    }

    fn transmit(&mut self, i: usize) {
        let mut out = Vec::new();
        while self.sides[i].engine.poll_transmit(self.now, &mut out).is_some() {
            let copies = match self.rng.random::<f64>() {
                x if x < self.faults.loss => 0,
                x if x < self.faults.loss + self.faults.duplicate => 2,
                _ => 1,
            };
            for _ in 0..copies {
                let late = if self.rng.random_bool(self.faults.reorder) { 200 } else { 1 };
                let delay = Duration::from_micros(10 + self.rng.random_range(0..late));
                self.flights += 1;
                let (at, order) = (self.now + delay, self.flights);
                self.wire.push(Reverse(Flight { at, order, to: 1 - i, bytes: out.clone() }));
            }
            out.clear();
        }
    }

    /// What was acknowledged was delivered; a QP that failed completed all of its work.
    fn check(&self) {
        for i in 0..2 {
            let (side, peer) = (&self.sides[i], &self.sides[1 - i]);
            assert!(side.sent <= peer.received, "seed {}", self.seed);
            assert!(!side.failed || side.completed == side.posted, "seed {}", self.seed);
        }
    }
}

fn ten_thousand(seed: u64, faults: Faults) -> Sim {
    let mut sim = Sim::new(seed, 10_000, faults);
    sim.run();
    sim.check();
    assert!(!sim.sides.iter().any(|side| side.failed), "seed {seed} failed");
    sim
}

#[test]
fn a_good_network_needs_no_retransmission() {
    let sim = ten_thousand(1, Faults::default());
    for side in &sim.sides {
        let counters = side.engine.counters();
        assert_eq!((counters.retransmitted, counters.timeouts), (0, 0));
        assert!(counters.acks_sent <= 10_000);
    }
    assert!(sim.now - sim.start < Duration::from_secs(1));
}

#[test]
fn hca_t62_loss_with_sends() {
    let sim = ten_thousand(2, Faults { loss: 0.01, ..Faults::default() });
    assert!(sim.sides.iter().all(|side| side.engine.counters().retransmitted > 0));
}

#[test]
fn hca_t63_reordering_duplication_delay_with_sends() {
    ten_thousand(3, Faults { duplicate: 0.05, reorder: 0.05, ..Faults::default() });
}

#[test]
fn all_at_once_and_receives_late() {
    let sim = ten_thousand(4, Faults { loss: 0.01, duplicate: 0.02, reorder: 0.02, lazy: 0.6 });
    assert!(sim.sides.iter().any(|side| side.engine.counters().rnr_naks_received > 0));
}

#[test]
fn a_terrible_network_breaks_promises_to_nobody() {
    let faults = Faults { loss: 0.4, duplicate: 0.2, reorder: 0.2, lazy: 0.3 };
    let mut failed = 0;
    for seed in 0..300 {
        let mut sim = Sim::new(seed, 50, faults);
        sim.run();
        sim.check();
        failed += u32::from(sim.sides.iter().any(|side| side.failed));
    }
    assert!(failed < 300, "none got through");
}
