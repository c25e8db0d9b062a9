//! Two engines of two ports each, applications that do what they like, and a network that loses, repeats, delays and reorders. Whatever
//! the seed, the invariant of design.md section 8 holds: both sides are established, or both have failed, or one believes
//! itself established and learns better, within its bound, from its next DREQ; after TimeWait nothing is left; each event
//! comes once; an alternate path that both sides have loaded is the same one.
//!
//! `SEEDS=1000000 cargo test -p ibcm --lib two_engines` runs the first so many seeds instead of 10,000.

mod log;
mod paths;

use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashSet};
use std::time::{Duration, Instant};

use ibdev::MadSource;
use ibwire::mad::MAD_LEN;
use ibwire::{CommId, PrivateData, Qpn, RejReason, ServiceId, TimeCode};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt as _, SeedableRng as _};

use super::monitor::Ending;
use super::pair::*;
use crate::proto::message::{Attribute, Message};
use crate::proto::{
    Accept, ConnHandle, Connect, ConnectError, Disconnect, DisconnectCause, Event, Info, Listen, Path,
    Reject, Role, State,
};
use log::Line;

const SEEDS: u64 = 10_000;

/// What both sides ask each other for, and nobody listens for.
const PEERS: ServiceId = ServiceId(0x1000_0000_0000_0002);

/// What each message's fate and each application's move is drawn from.
#[derive(Debug)]
struct Weather {
    loss: f64,
    duplication: f64,
    delay: Duration,
    /// Now and then a MAD takes this much longer than the others.
    detour: Duration,
}

/// What happens at some time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Arrive(usize),
    Move(usize, Move, ConnHandle),
    Connect(usize),
    ConnectPeer(usize),
    Restart(usize),
}

/// What an application can do with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Move {
    Accept,
    Ready,
    Reject,
    Disconnect,
    Abort,
    Detach,
    FirstPacket,
    /// Active side: asks the peer to load another path.
    LoadPath,
    /// Passive side: our queue pair has the path that the peer asks for, or will not have it.
    AcceptPath,
    RejectPath,
    /// The queue pair goes over to the path that both ends have loaded.
    Migrate,
    /// And so does that of the peer, when it hears of it.
    Follow,
}

#[derive(Debug)]
struct Sim {
    net: Net,
    rng: ChaCha8Rng,
    weather: Weather,
    start: Instant,
    /// The heap is one of the largest: times are negated by `Reverse`.
    agenda: BinaryHeap<std::cmp::Reverse<(Instant, u64, What)>>,
    next_number: u64,
    in_flight: Vec<(usize, MadSource, Box<[u8; MAD_LEN]>)>,
    seed: u64,
    log: Vec<(Duration, Line)>,
    /// Connections that an application holds, with what it can do to them.
    held: BTreeMap<(usize, ConnHandle), Held>,
    /// Queue pairs whose connection has been released.
    free_qpns: [Vec<Qpn>; 2],
    /// The LAPs that were reported, told apart by their private data.
    laps: HashSet<PrivateData<168>>,
    /// Nobody begins anything any more.
    calm: bool,
    outcomes: Outcomes,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    qpn: Option<Qpn>,
    ended: bool,
    /// The path of the last LAP.
    asked_for: Option<Path>,
}

/// What came of it, to see that the simulation reaches what it is for.
#[derive(Debug, Default, Clone)]
struct Outcomes {
    established: u32,
    half_open: u32,
    rejected: u32,
    timed_out: u32,
    disconnected: u32,
    stale: u32,
    met: u32,
    /// By the REQ, by LAP and APR.
    proposed: u32,
    loaded: u32,
    paths_refused: u32,
    laps_timed_out: u32,
    migrated: u32,
    messages: BTreeSet<Attribute>,
}

impl Sim {
    fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let net = Net::two_ports();
        let ms = Duration::from_millis;
        let weather = Weather {
            loss: rng.random_range(0.0..=0.4),
            duplication: rng.random_range(0.0..=0.2),
            delay: ms(rng.random_range(0..=20)),
            detour: ms([0, 50, 1_000][rng.random_range(0..3)]),
        };
        let mut sim = Self {
            start: net.now,
            net,
            rng,
            weather,
            agenda: BinaryHeap::new(),
            next_number: 0,
            in_flight: Vec::new(),
            seed,
            log: Vec::new(),
            held: BTreeMap::new(),
            free_qpns: [Vec::new(), Vec::new()],
            laps: HashSet::new(),
            calm: false,
            outcomes: Outcomes::default(),
        };
        sim.boot(A);
        sim.boot(P);
        for _ in 0..sim.rng.random_range(1..=4) {
            let host = if sim.chance(0.7) { A } else { P };
            let after = sim.pause(3_000);
            sim.schedule(after, What::Connect(host));
        }
        if sim.chance(0.5) {
            for host in [A, P].repeat(sim.rng.random_range(1..=2)) {
                let after = sim.pause(3_000);
                sim.schedule(after, What::ConnectPeer(host));
            }
        }
        if sim.chance(0.1) {
            let (host, after) = (if sim.chance(0.5) { A } else { P }, sim.pause(3_000));
            sim.schedule(after, What::Restart(host));
        }
        sim
    }

    /// A host with nothing in its memory. It numbers its queue pairs from the beginning.
    fn boot(&mut self, host: usize) {
        let seed = self.rng.random();
        self.net.reseed(host, seed);
        self.net.listen(host, Listen::new(SERVICE));
        self.free_qpns[host].clear();
        self.held.retain(|&(holder, _), _| holder != host);
        self.agenda.retain(|entry| !matches!(entry.0.2, What::Move(mover, ..) if mover == host));
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.rng.random_bool(probability)
    }

    /// Mostly short, at most `max` milliseconds.
    fn pause(&mut self, max: u64) -> Duration {
        let max = if self.chance(0.7) { max / 20 } else { max };
        Duration::from_millis(self.rng.random_range(0..=max))
    }

    fn schedule(&mut self, after: Duration, what: What) {
        self.next_number += 1;
        self.agenda.push(std::cmp::Reverse((self.net.now + after, self.next_number, what)));
    }

    // The network.

    /// Puts what was sent under way, and lets the applications hear of what happened.
    fn collect(&mut self) {
        self.net.collect();
        while let Some(flight) = self.net.wire.pop_front() {
            let copies = match (self.chance(self.weather.loss), self.chance(self.weather.duplication)) {
                (true, _) => 0,
                (false, false) => 1,
                (false, true) => 2,
            };
            self.outcomes.messages.insert(flight.message.attribute());
            let fate = ["loses ", "sends ", "sends twice"][copies];
            for _ in 0..copies {
                let jitter = self.rng.random_range(0.0..=1.0);
                let detour = if self.chance(0.05) { self.weather.detour } else { Duration::ZERO };
                let number = self.in_flight.len();
                self.in_flight.push((flight.to.unwrap(), flight.source, Box::new(*flight.bytes())));
                self.schedule((self.weather.delay + detour).mul_f64(jitter), What::Arrive(number));
            }
            self.note(Line::Sent { fate, flight: Box::new(flight) });
        }
        for host in [A, P] {
            for event in self.net.events(host) {
                self.note(Line::Told(host, event.clone()));
                self.react(host, &event);
            }
        }
    }

    /// Does everything that is due by `end`.
    fn run_until(&mut self, end: Instant) {
        self.collect();
        loop {
            let agenda = self.agenda.peek().map(|entry| entry.0.0);
            let timer = self.net.next_timeout();
            let next = [agenda, timer].into_iter().flatten().min().filter(|&at| at <= end);
            let Some(at) = next else { break };
            self.net.now = self.net.now.max(at);
            if timer.is_some_and(|timer| timer <= self.net.now) {
                self.net.fire();
            } else if let Some(std::cmp::Reverse((_, _, what))) = self.agenda.pop() {
                self.happen(what);
            }
            self.collect();
        }
        self.net.now = end;
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Arrive(number) => {
                let (to, source, mad) = &self.in_flight[number];
                let (to, message) = (*to, Message::decode(mad).unwrap().1);
                self.net.hosts[to].ep.handle_mad(self.net.now, source, mad);
                self.note(Line::Arrived { to, message });
            }
            What::Connect(host) => self.connect(host, SERVICE),
            What::ConnectPeer(host) => self.connect(host, PEERS),
            What::Restart(host) => {
                self.note(Line::Restarted(host));
                self.boot(host);
            }
            What::Move(host, what, conn) => self.act(host, what, conn),
        }
    }

    // The applications.

    fn connect(&mut self, host: usize, service_id: ServiceId) {
        let mut connect: Connect = self.net.connect_to(host, 1 - host);
        connect.service_id = service_id;
        connect.path.record.packet_life_time = TimeCode::truncate(12).into(); // 17 ms
        connect.response_timeout = TimeCode::truncate(self.rng.random_range(12..=16));
        connect.local_response_timeout = TimeCode::truncate(self.rng.random_range(13..=16));
        connect.max_cm_retries = self.rng.random_range(0..=15);
        if self.chance(0.2) {
            connect.deadline = Some(self.net.now + Duration::from_millis(self.rng.random_range(1..3_000)));
        }
        if self.chance(0.3) {
            connect.alternate = Some(self.any_path(host));
        }
        // A queue pair that has rested is as good as a new one.
        if let Some(qpn) = self.free_qpns[host].pop() {
            connect.qpn = qpn;
        }
        let (now, qpn) = (self.net.now, connect.qpn);
        let ep = self.net.ep(host);
        let conn = match service_id {
            PEERS => ep.connect_peer(now, connect),
            _ => ep.connect(now, connect),
        };
        let Ok(conn) = conn else {
            // The alternate path is the primary one.
            assert!(matches!(conn, Err(ConnectError::Invalid(_))), "{conn:?}");
            self.free_qpns[host].push(qpn);
            return;
        };
        self.hold(host, conn, Some(qpn));
        if self.chance(0.1) {
            let after = self.pause(1_000);
            let what = if self.chance(0.5) { Move::Abort } else { Move::Detach };
            self.schedule(after, What::Move(host, what, conn));
        }
    }

    fn hold(&mut self, host: usize, conn: ConnHandle, qpn: Option<Qpn>) {
        self.held.insert((host, conn), Held { qpn, ended: false, asked_for: None });
    }

    fn react(&mut self, host: usize, event: &Event) {
        let conn = event.conn();
        if event.is_final() {
            self.held.get_mut(&(host, conn)).expect("an event of a connection that nobody holds").ended =
                true;
        }
        match event {
            Event::Request { .. } | Event::PeerRequest { .. } => {
                if matches!(event, Event::Request { .. }) {
                    self.hold(host, conn, None);
                } else {
                    self.outcomes.met += 1;
                }
                let what =
                    self.draw(&[(Move::Accept, 90), (Move::Reject, 6), (Move::Abort, 2), (Move::Detach, 2)]);
                let after = self.pause(400);
                self.schedule(after, What::Move(host, what, conn));
            }
            Event::Reply { .. } => {
                let what =
                    self.draw(&[(Move::Ready, 92), (Move::Reject, 4), (Move::Abort, 2), (Move::Detach, 2)]);
                let after = self.pause(400);
                self.schedule(after, What::Move(host, what, conn));
            }
            Event::Established { .. } => {
                self.outcomes.established += 1;
                self.plan_the_end(host, conn);
                self.plan_paths(host, conn);
            }
            Event::Rejected { .. } | Event::Withdrawn { .. } | Event::ReplyRefused { .. } => {
                self.outcomes.rejected += 1;
            }
            Event::Timeout { .. } => self.outcomes.timed_out += 1,
            Event::Disconnected { cause, .. } => {
                self.outcomes.disconnected += 1;
                self.outcomes.stale += u32::from(*cause == DisconnectCause::Stale);
            }
            Event::Released { .. } => {
                let held = self.held.remove(&(host, conn)).expect("released twice, or never held");
                self.free_qpns[host].extend(held.qpn);
            }
            Event::Busy { .. } => {}
            other => self.react_to_path(host, other),
        }
    }

    /// Some connections are left established for the end of the simulation.
    fn plan_the_end(&mut self, host: usize, conn: ConnHandle) {
        if self.calm || self.chance(0.4) {
            return;
        }
        let what = self.draw(&[(Move::Disconnect, 70), (Move::Abort, 15), (Move::Detach, 15)]);
        let after = self.pause(3_000);
        self.schedule(after, What::Move(host, what, conn));
        if self.chance(0.3) {
            let after = self.pause(1_000);
            self.schedule(after, What::Connect(host));
        }
    }

    fn draw(&mut self, moves: &[(Move, u32)]) -> Move {
        let total = moves.iter().map(|(_, weight)| weight).sum();
        let mut left = self.rng.random_range(0..total);
        for &(what, weight) in moves {
            if left < weight {
                return what;
            }
            left -= weight;
        }
        moves[0].0
    }

    fn act(&mut self, host: usize, what: Move, conn: ConnHandle) {
        if !self.held.contains_key(&(host, conn)) {
            return; // it has been released since
        }
        let now = self.net.now;
        let info = self.net.ep(host).info(conn).expect("held, so not released");
        let ep = &mut self.net.hosts[host].ep;
        let possible = match what {
            Move::Accept => {
                let own = self.held[&(host, conn)].qpn;
                let qpn = match own.or_else(|| self.free_qpns[host].pop()) {
                    Some(qpn) => qpn,
                    None => self.net.hosts[host].qpn(),
                };
                let mut accept = Accept::new(qpn);
                accept.failover = self.rng.random_bool(0.9);
                if self.rng.random_bool(0.2) {
                    accept.deadline = Some(now + Duration::from_millis(self.rng.random_range(1..3_000)));
                }
                let accepted = self.net.hosts[host].ep.accept(now, conn, accept).is_ok();
                if accepted {
                    self.held.get_mut(&(host, conn)).unwrap().qpn = Some(qpn);
                }
                // The other side may send as soon as it is ready, and its data overtake the RTU.
                if accepted && self.chance(0.2) {
                    let after = self.pause(100);
                    self.schedule(after, What::Move(host, Move::FirstPacket, conn));
                }
                accepted
            }
            Move::Ready => {
                let ready = ep.ready(now, conn, PrivateData::from(b"ready")).is_ok();
                if ready {
                    self.plan_the_end(host, conn);
                    self.plan_paths(host, conn);
                }
                ready
            }
            Move::Reject => {
                let rejected = ep.reject(now, conn, Reject::new(RejReason::CONSUMER)).is_ok();
                if rejected {
                    self.give_up(host, conn, Ending::Released);
                }
                rejected
            }
            Move::Disconnect => ep.disconnect(now, conn, Disconnect::default()).is_ok(),
            Move::Abort => {
                ep.abort(now, conn);
                self.give_up(host, conn, Ending::Released);
                true
            }
            Move::Detach => {
                ep.detach(now, conn);
                self.give_up(host, conn, Ending::Nothing);
                self.held.remove(&(host, conn));
                true
            }
            Move::FirstPacket => {
                // Data come only from a peer that considers the connection established.
                let peer_is_ready =
                    self.peer_of(host, &info).is_some_and(|(_, peer)| peer.state == State::Established);
                if peer_is_ready {
                    self.net.hosts[host].ep.comm_established(now, info.local_qpn);
                }
                peer_is_ready
            }
            Move::LoadPath => self.load_path(host, conn, &info),
            Move::AcceptPath | Move::RejectPath => self.answer_path(host, conn, what == Move::AcceptPath),
            Move::Migrate => self.migrate(host, conn, &info),
            Move::Follow => self.follow(host, conn, &info),
        };
        self.note(Line::Did(host, what, conn, possible));
    }

    fn give_up(&mut self, host: usize, conn: ConnHandle, ending: Ending) {
        self.net.hosts[host].monitor.give_up(conn, ending);
    }

    /// The connection at the other host that has the same two IDs.
    fn peer_of(&self, host: usize, info: &Info) -> Option<(ConnHandle, Info)> {
        let other = &self.net.hosts[1 - host];
        other.monitor.connections().find_map(|conn| {
            let peer = other.ep.info(conn)?;
            let ids = |info: &Info| -> (CommId, CommId) { (info.local_comm_id, info.remote_comm_id) };
            (ids(&peer) == (info.remote_comm_id, info.local_comm_id)).then_some((conn, peer))
        })
    }

    // The judgement.

    fn established(&self) -> Vec<(usize, ConnHandle, Info)> {
        let mut all = Vec::new();
        for &(host, conn) in self.held.keys() {
            let info = self.net.hosts[host].ep.info(conn).expect("held, so not released");
            if info.state == State::Established {
                all.push((host, conn, info));
            }
        }
        all
    }

    /// Two sides that both believe in a connection agree about it.
    fn check_agreement(&mut self) {
        let mut ids = BTreeSet::new();
        for (host, conn, info) in self.established() {
            assert!(ids.insert((host, info.local_comm_id)), "an ID for two connections");
            let attrs = self.net.ep(host).attrs(conn).unwrap();
            match self.peer_of(host, &info) {
                Some((peer_conn, peer)) if peer.state == State::Established => {
                    assert_eq!((info.local_qpn, info.remote_qpn), (peer.remote_qpn, peer.local_qpn));
                    assert_ne!(info.role, peer.role);
                    let theirs = self.net.ep(1 - host).attrs(peer_conn).unwrap();
                    assert_eq!(attrs.rts.sq_psn, theirs.rtr.rq_psn);
                    assert_eq!(attrs.rtr.rq_psn, theirs.rts.sq_psn);
                    assert_eq!(attrs.rtr.path_mtu, theirs.rtr.path_mtu);
                    assert!(attrs.rts.max_rd_atomic <= theirs.rtr.max_dest_rd_atomic);
                    self.check_paths(host, &attrs, &theirs);
                }
                _ => self.outcomes.half_open += 1,
            }
        }
    }

    fn run(&mut self) {
        // By then every handshake that was begun has been decided: undecided requests wait 400 ms at most, a message
        // at most 16 times 303 ms, or 60 s where it was told to.
        self.run_until(self.start + Duration::from_secs(30));
        self.calm = true;
        self.run_until(self.start + Duration::from_secs(200));
        for state in [
            State::ReqSent,
            State::ReqMraRcvd,
            State::RepRcvd,
            State::RepMraSent,
            State::ReqRcvd,
            State::ReqMraSent,
            State::RepSent,
            State::RepMraRcvd,
            State::DreqSent,
            State::TimeWait,
        ] {
            for host in [A, P] {
                assert_eq!(self.net.ep(host).count(state), 0, "host {host} is stuck in {state}");
            }
        }
        self.check_agreement();
        self.check_laps();

        // Those that are left end by the DREQ of one side; a side that did not hear it, by its own.
        while let Some(&(host, conn, info)) = self.established().first() {
            self.act(host, Move::Disconnect, conn);
            let bound = self.bound(info.role);
            self.run_until(self.net.now + bound);
            let held = self.held.get(&(host, conn));
            assert!(held.is_none_or(|held| held.ended), "not over within its bound");
        }
        self.run_until(self.net.now + Duration::from_secs(60));
        for host in [A, P] {
            let connections = self.net.ep(host).connections();
            assert_eq!(connections, 0, "host {host} has connections left");
            assert_eq!(self.net.ep(host).poll_timeout(), None, "host {host} has a timer left");
            let listener = self.net.hosts[host].listener.unwrap();
            assert_eq!(self.net.ep(host).pending_requests(listener), Some(0));
            assert!(self.net.hosts[host].monitor.all_released(), "{:?}", self.net.hosts[host].monitor);
        }
        assert!(self.held.is_empty(), "{:?}", self.held);
    }

    /// The longest that a DREQ can be tried: 16 times, each as long as a REQ or a REP waits at most.
    fn bound(&self, role: Role) -> Duration {
        let period = match role {
            Role::Active => time(16) + 2 * time(12),
            Role::Passive => time(16),
        };
        16 * period
    }
}

#[test]
fn two_engines_on_a_bad_network() {
    let mut total = Outcomes::default();
    let long = std::env::var("SEEDS").map(|count| count.parse().expect("SEEDS is a number"));
    for seed in 0..long.unwrap_or(SEEDS) {
        let mut sim = Sim::new(seed);
        sim.run();
        let got = std::mem::take(&mut sim.outcomes);
        total.established += got.established;
        total.half_open += got.half_open;
        total.rejected += got.rejected;
        total.timed_out += got.timed_out;
        total.disconnected += got.disconnected;
        total.stale += got.stale;
        total.met += got.met;
        total.proposed += got.proposed;
        total.loaded += got.loaded;
        total.paths_refused += got.paths_refused;
        total.laps_timed_out += got.laps_timed_out;
        total.migrated += got.migrated;
        total.messages.extend(got.messages);
    }
    // The simulation is worth its time only if it gets everywhere.
    eprintln!("{total:?}");
    let Outcomes { established, half_open, rejected, timed_out, disconnected, stale, met, .. } = total;
    assert!(established > 1_000 && disconnected > 1_000 && rejected > 100 && timed_out > 100, "{total:?}");
    assert!(half_open > 0 && stale > 0 && met > 1_000, "{total:?}");
    let Outcomes { proposed, loaded, paths_refused, laps_timed_out, migrated, .. } = total;
    assert!(proposed > 1_000 && loaded > 1_000 && migrated > 1_000, "{total:?}");
    assert!(paths_refused > 100 && laps_timed_out > 100, "{total:?}");
    let all = [
        Attribute::REQ,
        Attribute::MRA,
        Attribute::REJ,
        Attribute::REP,
        Attribute::RTU,
        Attribute::DREQ,
        Attribute::DREP,
        Attribute::LAP,
        Attribute::APR,
    ];
    assert_eq!(total.messages, BTreeSet::from(all));
}
