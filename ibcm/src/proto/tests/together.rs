//! MADs that arrive together come to the same as one after the other, whatever they are: repeated, old, spoilt, about a connection
//! that one before them ends, or begins.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ibdev::{MAD_LEN, ReceivedMad};
use ibwire::{PrivateData, Qpn, RejReason};
use rand::rngs::ChaCha8Rng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{RngExt as _, SeedableRng as _};

use super::monitor::Ending;
use super::pair::*;
use crate::proto::message::Attribute;
use crate::proto::{Accept, ConnHandle, Disconnect, Event, Listen, LoadPath, Reject, Stats};

const SEEDS: u64 = 8;
const ROUNDS: usize = 30;

/// Two hosts that do what the seed says.
struct World {
    net: Net,
    rng: ChaCha8Rng,
    together: bool,
    old: Vec<Flight>,
    conns: [Vec<ConnHandle>; 2],
    /// All that the engines said.
    said: Vec<String>,
    /// All MADs that were sent.
    mads: Vec<[u8; MAD_LEN]>,
    messages: BTreeSet<Attribute>,
    largest: usize,
}

impl World {
    fn new(seed: u64, now: Instant, together: bool) -> Self {
        let mut net = Net { now, ..Net::two_ports() };
        net.listen(A, Listen::new(SERVICE));
        Self {
            net,
            rng: ChaCha8Rng::seed_from_u64(seed),
            together,
            old: Vec::new(),
            conns: [Vec::new(), Vec::new()],
            said: Vec::new(),
            mads: Vec::new(),
            messages: BTreeSet::new(),
            largest: 0,
        }
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.rng.random_bool(probability)
    }

    fn connect(&mut self, host: usize) {
        let mut connect = self.net.connect_to(host, 1 - host);
        if self.chance(0.3) {
            connect.qpn = Qpn::truncate(0x101 + self.rng.random_range(0..0x20));
        }
        let now = self.net.now;
        if let Ok(conn) = self.net.ep(host).connect(now, connect) {
            self.conns[host].push(conn);
        }
    }

    fn react(&mut self, host: usize, event: &Event) {
        let (now, conn) = (self.net.now, event.conn());
        match event {
            Event::Request { .. } if self.chance(0.8) => {
                self.conns[host].push(conn);
                let accept = Accept::new(self.net.hosts[host].qpn());
                _ = self.net.ep(host).accept(now, conn, accept);
            }
            Event::Reply { .. } if self.chance(0.8) => {
                _ = self.net.ep(host).ready(now, conn, PrivateData::EMPTY);
            }
            Event::Request { .. } | Event::Reply { .. }
                if self.chance(0.5)
                    && self.net.ep(host).reject(now, conn, Reject::new(RejReason::CONSUMER)).is_ok() =>
            {
                self.net.hosts[host].monitor.give_up(conn, Ending::Released);
            }
            _ => {}
        }
    }

    /// Ends a connection, or asks for another path.
    fn act(&mut self, host: usize) {
        let Some(&conn) = self.conns[host].choose(&mut self.rng) else { return };
        let now = self.net.now;
        match self.rng.random_range(0..4) {
            0 if self.net.ep(host).state(conn).is_some() => {
                self.net.ep(host).abort(now, conn);
                self.net.hosts[host].monitor.give_up(conn, Ending::Released);
            }
            1 => {
                let (from, to) = (self.net.hosts[host].address, self.net.hosts[1 - host].address);
                let load = LoadPath::new(from.path_between(2, &to, 2));
                if self.net.ep(host).load_path(now, conn, &load).is_ok() {
                    self.net.hosts[host].monitor.ask_for_path(conn);
                }
            }
            _ => _ = self.net.ep(host).disconnect(now, conn, Disconnect::default()),
        }
    }

    /// What one receive of each host gives: what is on the wire, and what the network makes of it.
    fn batches(&mut self) -> [Vec<ReceivedMad>; 2] {
        let mut flights: Vec<_> = self.net.wire.drain(..).collect();
        self.messages.extend(flights.iter().map(|flight| flight.message.attribute()));
        self.old.extend(flights.iter().cloned());
        for _ in 0..flights.len() / 3 {
            let old = self.old.choose(&mut self.rng).cloned();
            flights.extend(old);
        }
        for flight in &mut flights {
            if self.rng.random_bool(0.1) {
                let (place, bit) = (self.rng.random_range(0..80), self.rng.random_range(0..8));
                *flight = flight.patched(|mad| mad[place] ^= 1 << bit);
            }
        }
        if self.chance(0.5) {
            flights.shuffle(&mut self.rng);
        }
        let mut batches = [Vec::new(), Vec::new()];
        for flight in flights {
            let Some(to) = flight.to.filter(|_| self.rng.random_bool(0.9)) else { continue };
            let mut received = ReceivedMad { from: flight.source, mad: *flight.bytes() };
            if let Some(grh) = received.from.grh.as_mut().filter(|_| self.rng.random_bool(0.05)) {
                grh.dgid.0[15] ^= 1; // somebody else sends it
            }
            batches[to].push(received);
        }
        batches
    }

    /// With nothing in its memory, and the numbers of its queue pairs from the beginning.
    fn restart(&mut self, host: usize) {
        let seed = self.rng.random();
        self.net.reseed(host, seed);
        self.net.listen(host, Listen::new(SERVICE));
        self.conns[host].clear();
    }

    fn round(&mut self) {
        if self.chance(0.05) {
            let host = self.rng.random_range(0..2);
            self.restart(host);
        }
        for host in [A, P] {
            for _ in 0..self.rng.random_range(0..12) {
                self.connect(host);
            }
            for _ in 0..self.rng.random_range(0..3) {
                self.act(host);
            }
        }
        self.net.collect();
        let now = self.net.now;
        for (host, batch) in self.batches().into_iter().enumerate() {
            self.largest = self.largest.max(batch.len());
            match self.together {
                true => self.net.ep(host).handle_mads(now, &batch),
                false => {
                    for ReceivedMad { from, mad } in &batch {
                        self.net.ep(host).handle_mad(now, from, mad);
                    }
                }
            }
        }
        for host in [A, P] {
            for event in self.net.events(host) {
                self.said.push(format!("{host} {event:?}"));
                self.react(host, &event);
            }
        }
        self.net.collect();
        self.said.extend(self.net.wire.iter().map(|flight| format!("{:?} {:?}", flight.source, flight.sent)));
        self.mads.extend(self.net.wire.iter().map(|flight| *flight.bytes()));
        let pause = Duration::from_millis(self.rng.random_range(0..=1_000));
        self.net.advance(pause);
    }

    fn run(&mut self) -> [Stats; 2] {
        (0..ROUNDS).for_each(|_| self.round());
        [A, P].map(|host| self.net.ep(host).stats())
    }
}

#[test]
fn what_arrives_together_is_as_one_by_one() {
    let (mut messages, mut largest, mut stale) = (BTreeSet::new(), 0, 0);
    for seed in 0..SEEDS {
        let now = Instant::now();
        let [mut together, mut one_by_one] = [true, false].map(|together| World::new(seed, now, together));
        let stats = together.run();
        assert_eq!(stats, one_by_one.run(), "seed {seed}");
        let (said, wanted) = (&together.said, &one_by_one.said);
        let differs = said.iter().zip(wanted).position(|(said, wanted)| said != wanted);
        assert_eq!(differs.map(|at| (&said[at], &wanted[at])), None, "seed {seed}");
        assert_eq!(said.len(), wanted.len(), "seed {seed}");
        assert!(together.mads == one_by_one.mads, "seed {seed}");
        messages.extend(together.messages);
        largest = largest.max(together.largest);
        stale += stats.iter().map(|stats| stats.stale).sum::<u64>();
    }
    // Each message of a connection's life, more than one lookahead, peers that restarted.
    assert!(
        messages.len() >= 9 && largest > 32 && stale > 0,
        "{messages:?}, {largest} at once, {stale} stale"
    );
}
