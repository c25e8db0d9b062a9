//! Three engines that ask each other for datagram services, applications that answer, redirect, cancel and deregister when
//! they like, and a network that loses, repeats, delays and reorders. Whatever the seed: each query ends once or was cancelled,
//! a resolved one names the queue pair of the host that it leads to, and nothing is left in the end.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::time::{Duration, Instant};

use ibdev::MadSource;
use ibwire::mad::{ClassPortInfo, MAD_LEN, Redirect};
use ibwire::{QKey, Qpn, ServiceId, TimeCode};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt as _, SeedableRng as _};

use super::pair::*;
use crate::proto::message::SidrStatus;
use crate::proto::{
    SidrAnswer, SidrEvent, SidrHandling, SidrQuery, SidrQueryHandle, SidrRequestHandle, SidrServe,
    SidrServiceId,
};

const SEEDS: u64 = 2_000;
const HOSTS: usize = 3;
/// Reported to the application.
const REPORTED: ServiceId = ServiceId(0x1000_0000_0000_0011);
/// Answered by the engine.
const PUBLISHED: ServiceId = ServiceId(0x1000_0000_0000_0012);

/// What happens at some time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Arrive(usize),
    Ask(usize),
    Cancel(usize, SidrQueryHandle),
    Answer(usize, SidrRequestHandle),
    /// Offers the service anew, or no more.
    Serve(usize, ServiceId),
    Restart(usize),
}

/// What came of it, to see that the simulation reaches what it is for.
#[derive(Debug, Default, Clone, Copy)]
struct Outcomes {
    resolved: u32,
    elsewhere: u32,
    refused: u32,
    timed_out: u32,
    cancelled: u32,
}

struct Sim {
    net: Net,
    rng: ChaCha8Rng,
    seed: u64,
    loss: f64,
    agenda: BinaryHeap<Reverse<(Instant, u64, What)>>,
    next_number: u64,
    in_flight: Vec<(usize, MadSource, Box<[u8; MAD_LEN]>)>,
    queries: [BTreeSet<SidrQueryHandle>; HOSTS],
    services: [[Option<SidrServiceId>; 2]; HOSTS],
    outcomes: Outcomes,
}

impl Drop for Sim {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {} fails", self.seed);
        }
    }
}

fn qpn_of(host: usize) -> Qpn {
    Qpn::truncate(0x100 + host as u32)
}

impl Sim {
    fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let loss = rng.random_range(0.0..=0.5);
        let mut sim = Self {
            net: Net::roce(HOSTS),
            rng,
            seed,
            loss,
            agenda: BinaryHeap::new(),
            next_number: 0,
            in_flight: Vec::new(),
            queries: Default::default(),
            services: Default::default(),
            outcomes: Outcomes::default(),
        };
        for host in 0..HOSTS {
            sim.boot(host);
        }
        for _ in 0..8 {
            let (host, other) = (sim.rng.random_range(0..HOSTS), sim.rng.random_range(0..HOSTS));
            let service = if sim.chance(0.5) { REPORTED } else { PUBLISHED };
            sim.schedule(3_000, What::Ask(host));
            if sim.chance(0.2) {
                sim.schedule(3_000, What::Serve(other, service));
            }
            if sim.chance(0.05) {
                sim.schedule(3_000, What::Restart(other));
            }
        }
        sim
    }

    fn boot(&mut self, host: usize) {
        let seed = self.rng.random();
        self.net.reseed(host, seed);
        self.queries[host].clear();
        self.services[host] = [None; 2];
        self.agenda.retain(
            |Reverse((_, _, what))| !matches!(what, What::Cancel(of, _) | What::Answer(of, _) if *of == host),
        );
        self.serve(host, REPORTED);
        self.serve(host, PUBLISHED);
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.rng.random_bool(probability)
    }

    /// At some time within so many milliseconds.
    fn schedule(&mut self, ms: u64, what: What) {
        let after = Duration::from_micros(self.rng.random_range(0..=1_000 * ms));
        self.next_number += 1;
        self.agenda.push(Reverse((self.net.now + after, self.next_number, what)));
    }

    fn answer(&mut self, host: usize) -> SidrAnswer {
        if self.chance(0.3) {
            let to = self.rng.random_range(0..HOSTS);
            let redirect = Redirect { gid: self.net.hosts[to].address.gid, ..Redirect::default() };
            return SidrAnswer::redirect(ClassPortInfo { redirect, ..ClassPortInfo::default() });
        }
        match self.chance(0.1) {
            true => SidrAnswer::refusal(SidrStatus::NO_QP),
            false => SidrAnswer::resolved(qpn_of(host), QKey(7)),
        }
    }

    fn serve(&mut self, host: usize, service_id: ServiceId) {
        let place = usize::from(service_id == PUBLISHED);
        if let Some(service) = self.services[host][place].take() {
            self.net.ep(host).sidr_unserve(service);
            return;
        }
        let handling = match service_id {
            REPORTED => SidrHandling::Report { backlog: 3 },
            _ => SidrHandling::Answer(Box::new(self.answer(host))),
        };
        let serve = SidrServe { handling, ..SidrServe::reporting(service_id) };
        self.services[host][place] = Some(self.net.ep(host).sidr_serve(serve).unwrap());
    }

    fn happen(&mut self, what: What) {
        let now = self.net.now;
        match what {
            What::Arrive(number) => {
                let (to, source, mad) = &self.in_flight[number];
                self.net.hosts[*to].ep.handle_mad(now, source, mad);
            }
            What::Ask(host) => {
                let to = self.rng.random_range(0..HOSTS);
                let mut path = self.net.hosts[host].address.path_to(&self.net.hosts[to].address);
                path.record.packet_life_time = TimeCode::truncate(12).into();
                let mut query = SidrQuery::new(path, if self.chance(0.5) { REPORTED } else { PUBLISHED });
                query.response_timeout = Duration::from_millis(self.rng.random_range(10..=300));
                query.jitter = Duration::from_millis(self.rng.random_range(0..=50));
                query.max_retries = self.rng.random_range(0..=15);
                if self.chance(0.3) {
                    query.deadline = Some(now + Duration::from_millis(self.rng.random_range(0..2_000)));
                }
                let handle = self.net.ep(host).sidr_query(now, &query).unwrap();
                assert!(self.queries[host].insert(handle), "a handle twice");
                if self.chance(0.2) {
                    self.schedule(500, What::Cancel(host, handle));
                }
            }
            What::Cancel(host, handle) => {
                self.net.ep(host).sidr_cancel(handle);
                self.outcomes.cancelled += u32::from(self.queries[host].remove(&handle));
            }
            What::Answer(host, request) => {
                let answer = self.answer(host);
                self.net.ep(host).sidr_answer(now, request, &answer).expect("it waits for an answer");
            }
            What::Serve(host, service_id) => self.serve(host, service_id),
            What::Restart(host) => self.boot(host),
        }
    }

    /// Puts what was sent under way, and lets the applications hear of what happened.
    fn collect(&mut self) {
        self.net.collect();
        while let Some(flight) = self.net.wire.pop_front() {
            let copies = match (self.chance(self.loss), self.chance(0.2)) {
                (true, _) => 0,
                (false, twice) => 1 + usize::from(twice),
            };
            for _ in 0..copies {
                let number = self.in_flight.len();
                self.in_flight.push((flight.to.unwrap(), flight.source, Box::new(*flight.bytes())));
                let delay = if self.chance(0.05) { 1_000 } else { 20 };
                self.schedule(delay, What::Arrive(number));
            }
        }
        for host in 0..HOSTS {
            while let Some(event) = self.net.ep(host).poll_sidr_event() {
                self.react(host, &event);
            }
            assert_eq!(self.net.ep(host).sidr_queries(), self.queries[host].len());
        }
    }

    fn react(&mut self, host: usize, event: &SidrEvent) {
        if let Some(query) = event.query() {
            assert!(self.queries[host].remove(&query), "ended twice, or after it was cancelled: {event:?}");
        }
        match event {
            SidrEvent::Request { handle, .. } => self.schedule(600, What::Answer(host, *handle)),
            SidrEvent::Resolved { rep, path, .. } => {
                let is_there = |to: &usize| self.net.hosts[*to].address.gid == path.record.dgid;
                let to = (0..HOSTS).find(is_there).expect("the path leads to a host");
                assert_eq!(rep.qpn, qpn_of(to), "the queue pair of another host");
                self.outcomes.resolved += 1;
            }
            SidrEvent::Refused { .. } => self.outcomes.refused += 1,
            SidrEvent::Timeout { .. } => self.outcomes.timed_out += 1,
            SidrEvent::DeviceRemoved { .. } => panic!("{event:?}"),
        }
    }

    fn run(&mut self) {
        self.collect();
        loop {
            let agenda = self.agenda.peek().map(|entry| entry.0.0);
            let timer = self.net.next_timeout();
            let Some(at) = [agenda, timer].into_iter().flatten().min() else { break };
            self.net.now = self.net.now.max(at);
            if timer.is_some_and(|timer| timer <= self.net.now) {
                self.net.fire();
            } else if let Some(Reverse((_, _, what))) = self.agenda.pop() {
                self.happen(what);
            }
            self.collect();
        }
        for host in 0..HOSTS {
            assert!(self.queries[host].is_empty());
            let [pending, answers, names] = self.net.ep(host).sidr_held();
            assert!(pending == 0 && answers == names, "{pending} pending, {answers} answers, {names} names");
            self.outcomes.elsewhere += self.net.ep(host).stats().sidr_redirects as u32;
        }
    }
}

#[test]
fn three_engines_ask_on_a_bad_network() {
    let mut total = Outcomes::default();
    for seed in 0..SEEDS {
        let mut sim = Sim::new(seed);
        sim.run();
        total.resolved += sim.outcomes.resolved;
        total.elsewhere += sim.outcomes.elsewhere;
        total.refused += sim.outcomes.refused;
        total.timed_out += sim.outcomes.timed_out;
        total.cancelled += sim.outcomes.cancelled;
    }
    let Outcomes { resolved, elsewhere, refused, timed_out, cancelled } = total;
    eprintln!("{total:?}");
    assert!(resolved > 1_000 && elsewhere > 1_000 && refused > 1_000, "{total:?}");
    assert!(timed_out > 100 && cancelled > 100, "{total:?}");
}
