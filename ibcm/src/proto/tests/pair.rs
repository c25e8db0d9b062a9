//! The harness: hosts with an endpoint each, a virtual clock, a wire that holds each MAD until the test passes, repeats,
//! changes or drops it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ibdev::{GlobalRoute, MadSource, OutgoingMad};
use ibwire::mad::{MadHeader, Method};
use ibwire::{CommId, Lid, PrivateData, Qpn, RejReason, ServiceId, TimeCode};

pub(super) use super::host::{Address, Flight, Host};
use super::monitor::Ending;
use crate::proto::message::{Attribute, DecodeError, Message, Rep};
use crate::proto::{
    Accept, Config, ConnHandle, Connect, Disconnect, Endpoint, Event, Listen, ListenerId, Reject, Request,
    State,
};

/// The active host.
pub(super) const A: usize = 0;
/// The passive host: it listens on [`SERVICE`].
pub(super) const P: usize = 1;
/// A third host, in a net of three.
pub(super) const C: usize = 2;

pub(super) const SERVICE: ServiceId = ServiceId(0x1000_0000_0000_0001);

/// Packet lifetime of all paths: 268 ms.
pub(super) const LIFE_TIME: TimeCode = TimeCode::truncate(16);
/// Ack delay of all CAs: 134 ms.
pub(super) const ACK_DELAY: TimeCode = TimeCode::truncate(15);

/// The time that a code stands for.
pub(super) fn time(code: u8) -> Duration {
    TimeCode::new(code).unwrap().duration()
}

/// How long a REQ with the default response timeout waits for its answer.
pub(super) fn req_timer() -> Duration {
    time(20) + 2 * time(16)
}

/// How long a REP waits if the REQ had the default local response timeout.
pub(super) fn rep_timer() -> Duration {
    time(20)
}

/// When the passive side owes its peer an MRA at the latest, counted from the REQ.
pub(super) fn answer_time() -> Duration {
    time(20)
}

/// Hosts, clock and wire.
#[derive(Debug)]
pub(super) struct Net {
    pub(super) now: Instant,
    pub(super) hosts: Vec<Host>,
    pub(super) wire: VecDeque<Flight>,
    /// Answers to Get and Set, which are no CM messages.
    pub(super) class_answers: VecDeque<OutgoingMad>,
}

impl Net {
    /// Two RoCE hosts.
    pub(super) fn pair() -> Self {
        Self::roce(2)
    }

    /// Two RoCE hosts of two ports each, which can migrate paths.
    pub(super) fn two_ports() -> Self {
        Self::new((0..2).map(|n| (Address::two_ports(n), Config::default())))
    }

    /// `n` RoCE hosts, of which [`P`] listens.
    pub(super) fn roce(n: usize) -> Self {
        Self::new((0..n).map(|n| (Address::roce(n), Config::default())))
    }

    /// Two InfiniBand hosts, of which [`P`] listens.
    pub(super) fn infiniband() -> Self {
        Self::new((0..2).map(|n| (Address::infiniband(n), Config::default())))
    }

    /// These hosts, of which [`P`] listens.
    pub(super) fn new(hosts: impl IntoIterator<Item = (Address, Config)>) -> Self {
        let hosts =
            (1..).zip(hosts).map(|(seed, (address, config))| Host::new(address, config, seed)).collect();
        // Where the virtual clock starts is of no consequence.
        let mut net =
            Self { now: Instant::now(), hosts, wire: VecDeque::new(), class_answers: VecDeque::new() };
        net.listen(P, Listen::new(SERVICE));
        net
    }

    pub(super) fn ep(&mut self, host: usize) -> &mut Endpoint {
        &mut self.hosts[host].ep
    }

    pub(super) fn listen(&mut self, host: usize, listen: Listen) -> ListenerId {
        let listener = self.ep(host).listen(listen).unwrap();
        self.hosts[host].listener = Some(listener);
        listener
    }

    /// Switches a host off and on: all state is lost, the addresses remain.
    pub(super) fn restart(&mut self, host: usize) {
        let address = self.hosts[host].address;
        let listened = self.hosts[host].listener.is_some();
        let next_qpn = self.hosts[host].next_qpn;
        self.hosts[host] =
            Host { next_qpn, ..Host::new(address, Config::default(), 0xdead_0000 + host as u64) };
        if listened {
            self.listen(host, Listen::new(SERVICE));
        }
    }

    /// Gives a host a new engine with this seed.
    pub(super) fn reseed(&mut self, host: usize, seed: u64) {
        self.hosts[host] = Host::new(self.hosts[host].address, Config::default(), seed);
    }

    // The clock and the wire.

    /// Takes what the endpoints have to say: MADs go onto the wire, events to their host.
    pub(super) fn collect(&mut self) {
        for from in 0..self.hosts.len() {
            while let Some(sent) = self.transmit(from) {
                match Message::decode(&sent.mad) {
                    Ok((header, message)) => {
                        let flight = self.route(from, sent, header, message);
                        self.wire.push_back(flight);
                    }
                    Err(DecodeError::Method { method: Method::GET_RESP, .. }) => {
                        self.class_answers.push_back(sent);
                    }
                    Err(error) => panic!("host {from} sent what is no message: {error}"),
                }
            }
            let host = &mut self.hosts[from];
            while let Some(event) = host.ep.poll_event() {
                host.monitor.check(&event);
                host.events.push_back(event);
            }
        }
    }

    /// What a host sends next, by any of its ports.
    fn transmit(&mut self, from: usize) -> Option<OutgoingMad> {
        let Host { ep, address, .. } = &mut self.hosts[from];
        (1..=address.ports).find_map(|port| {
            let sent = ep.poll_transmit(self.now, port)?;
            assert_eq!(sent.to.av.port, port);
            Some(sent)
        })
    }

    fn route(&self, from: usize, sent: OutgoingMad, header: MadHeader, message: Message) -> Flight {
        let sender = &self.hosts[from].address;
        let av = &sent.to.av;
        let owns_lid = |lid: Lid| {
            let owner =
                self.hosts.iter().position(|h| !h.address.is_roce() && lid.0 & !1 == h.address.lid.0)?;
            Some((owner, 1))
        };
        let destination = match &av.grh {
            Some(grh) if sender.is_roce() => {
                assert_eq!(grh.sgid_index, Address::GID_INDEX, "a GID index of the wrong type");
                (0..).zip(&self.hosts).find_map(|(n, host)| Some((n, host.address.port_with(grh.dgid)?)))
            }
            _ => owns_lid(av.dlid),
        };
        assert!(sender.is_roce() == (av.dlid == Lid::NONE), "{av:?}");
        // A SIDR_REQ may have been redirected to another queue pair.
        assert!(sent.to.qpn == Qpn::GSI || matches!(message, Message::SidrReq(_)));
        let source = MadSource {
            port: destination.map_or(1, |(_, port)| port),
            slid: Lid(sender.lid.0 | u16::from(av.path_bits)),
            sl: av.sl,
            path_bits: (av.dlid.0 & 1) as u8,
            qpn: Qpn::GSI,
            pkey_index: sent.to.pkey_index,
            grh: av.grh.map(|grh| GlobalRoute {
                dgid: sender.gid_of(av.port),
                sgid_index: Address::GID_INDEX,
                ..grh
            }),
        };
        Flight { from, to: destination.map(|(host, _)| host), source, sent, header, message }
    }

    /// Hands a MAD to its receiver.
    pub(super) fn deliver(&mut self, flight: &Flight) {
        if let Some(to) = flight.to {
            self.hosts[to].ep.handle_mad(self.now, &flight.source, &flight.sent.mad);
        }
        self.collect();
    }

    /// The next MAD on the wire, whoever sent it; it stays the test's to deliver or to lose.
    #[track_caller]
    pub(super) fn take(&mut self, attribute: Attribute) -> Flight {
        self.collect();
        let flight = self.wire.pop_front().unwrap_or_else(|| panic!("no {attribute} is on the wire"));
        assert_eq!(flight.message.attribute(), attribute, "{flight:?}");
        flight
    }

    /// Takes the only MAD on the wire.
    #[track_caller]
    pub(super) fn take_only(&mut self, attribute: Attribute) -> Flight {
        let flight = self.take(attribute);
        self.assert_silent();
        flight
    }

    /// Takes the next MAD and delivers it.
    #[track_caller]
    pub(super) fn pass(&mut self, attribute: Attribute) -> Flight {
        let flight = self.take(attribute);
        self.deliver(&flight);
        flight
    }

    /// Takes the next MAD and loses it.
    #[track_caller]
    pub(super) fn lose(&mut self, attribute: Attribute) -> Flight {
        self.take(attribute)
    }

    /// Delivers all that is on the wire and what comes of it, at once.
    pub(super) fn run(&mut self) {
        self.collect();
        while let Some(flight) = self.wire.pop_front() {
            self.deliver(&flight);
        }
    }

    #[track_caller]
    pub(super) fn assert_silent(&mut self) {
        self.collect();
        assert!(self.wire.is_empty(), "on the wire: {:?}", self.wire);
    }

    /// When the next timer of any host is due.
    pub(super) fn next_timeout(&mut self) -> Option<Instant> {
        self.hosts.iter_mut().filter_map(|host| host.ep.poll_timeout()).min()
    }

    /// Lets time pass; timers fire when they are due, MADs wait on the wire.
    pub(super) fn advance(&mut self, time: Duration) {
        self.collect();
        let end = self.now + time;
        for _ in 0..100_000 {
            match self.next_timeout().filter(|&due| due <= end) {
                Some(due) => {
                    self.now = self.now.max(due);
                    self.fire();
                }
                None => {
                    self.now = end;
                    return;
                }
            }
        }
        panic!("a timer that is due for ever");
    }

    /// Calls each host's timers at the present time, due or not.
    pub(super) fn fire(&mut self) {
        for host in &mut self.hosts {
            host.ep.handle_timeout(self.now);
        }
        self.collect();
    }

    /// Lets time pass without anybody listening: all that is sent is lost. Returns it.
    pub(super) fn advance_lossy(&mut self, time: Duration) -> Vec<Flight> {
        self.advance(time);
        self.wire.drain(..).collect()
    }

    /// Delivers everything and lets time pass until nothing is left: no connection, no timer.
    #[track_caller]
    pub(super) fn settle(&mut self) {
        for _ in 0..10_000 {
            self.run();
            if self.hosts.iter().all(|host| host.ep.connections() == 0) {
                for host in &mut self.hosts {
                    assert!(host.monitor.all_released(), "{:?}", host.monitor);
                }
                return;
            }
            let due = self.next_timeout().expect("a connection without a timer");
            self.now = self.now.max(due);
            self.fire();
        }
        panic!("it never ends");
    }

    // Events.

    #[track_caller]
    pub(super) fn event(&mut self, host: usize) -> Event {
        self.collect();
        self.hosts[host].events.pop_front().expect("no event")
    }

    /// All events of a host that have not been looked at.
    pub(super) fn events(&mut self, host: usize) -> Vec<Event> {
        self.collect();
        self.hosts[host].events.drain(..).collect()
    }

    #[track_caller]
    pub(super) fn no_event(&mut self, host: usize) {
        assert_eq!(self.events(host), []);
    }

    #[track_caller]
    pub(super) fn assert_released(&mut self, host: usize, conn: ConnHandle) {
        assert_eq!(self.event(host), Event::Released { conn });
        assert_eq!(self.ep(host).state(conn), None);
    }

    #[track_caller]
    pub(super) fn assert_state(&mut self, host: usize, conn: ConnHandle, state: State) {
        assert_eq!(self.ep(host).state(conn), Some(state));
    }

    /// The IDs of the connections that a host was ever told of and that live.
    pub(super) fn all_local_ids(&self, host: usize) -> Vec<CommId> {
        let host = &self.hosts[host];
        host.monitor.connections().filter_map(|conn| Some(host.ep.info(conn)?.local_comm_id)).collect()
    }

    pub(super) fn local_id(&self, host: usize, conn: ConnHandle) -> CommId {
        self.hosts[host].ep.info(conn).unwrap().local_comm_id
    }

    // A handshake in steps. Each leaves its MAD on the wire and takes its event.

    /// What `from` needs to connect to `to`, on a fresh QP.
    pub(super) fn connect_to(&mut self, from: usize, to: usize) -> Connect {
        let path = self.hosts[from].address.path_to(&self.hosts[to].address);
        Connect::new(path, SERVICE, self.hosts[from].qpn())
    }

    /// A connects to P; the REQ is on the wire.
    pub(super) fn connect(&mut self) -> ConnHandle {
        let connect = self.connect_to(A, P);
        self.connect_with(A, connect)
    }

    #[track_caller]
    pub(super) fn connect_with(&mut self, host: usize, connect: Connect) -> ConnHandle {
        let now = self.now;
        let conn = self.ep(host).connect(now, connect).unwrap();
        self.collect();
        conn
    }

    /// The request that `host` has been told of.
    #[track_caller]
    pub(super) fn request(&mut self, host: usize) -> (ConnHandle, Box<Request>) {
        match self.event(host) {
            Event::Request { conn, request, listener } => {
                assert_eq!(Some(listener), self.hosts[host].listener);
                (conn, request)
            }
            other => panic!("{other:?}"),
        }
    }

    /// `host` accepts on a fresh QP; the REP is on the wire.
    #[track_caller]
    pub(super) fn accept(&mut self, host: usize, conn: ConnHandle) {
        let accept = Accept::new(self.hosts[host].qpn());
        self.accept_with(host, conn, accept);
    }

    #[track_caller]
    pub(super) fn accept_with(&mut self, host: usize, conn: ConnHandle, accept: Accept) {
        let now = self.now;
        self.ep(host).accept(now, conn, accept).unwrap();
        self.collect();
    }

    /// The reply that `host` has been told of.
    #[track_caller]
    pub(super) fn reply(&mut self, host: usize, conn: ConnHandle) -> Box<Rep> {
        match self.event(host) {
            Event::Reply { conn: replied, rep, .. } if replied == conn => rep,
            other => panic!("{other:?}"),
        }
    }

    /// `host` answers the reply; the RTU is on the wire.
    #[track_caller]
    pub(super) fn ready(&mut self, host: usize, conn: ConnHandle, data: &[u8]) {
        let now = self.now;
        self.ep(host).ready(now, conn, PrivateData::new(data).unwrap()).unwrap();
        self.collect();
    }

    #[track_caller]
    pub(super) fn reject(&mut self, host: usize, conn: ConnHandle, reason: RejReason) {
        let now = self.now;
        self.ep(host).reject(now, conn, Reject::new(reason)).unwrap();
        self.hosts[host].monitor.give_up(conn, Ending::Released);
        self.collect();
    }

    #[track_caller]
    pub(super) fn disconnect(&mut self, host: usize, conn: ConnHandle) {
        let now = self.now;
        self.ep(host).disconnect(now, conn, Disconnect::default()).unwrap();
        self.collect();
    }

    pub(super) fn abort(&mut self, host: usize, conn: ConnHandle) {
        self.collect();
        self.hosts[host].monitor.give_up(conn, Ending::Released);
        let now = self.now;
        self.ep(host).abort(now, conn);
        self.collect();
    }

    pub(super) fn detach(&mut self, host: usize, conn: ConnHandle) {
        self.collect();
        self.hosts[host].monitor.give_up(conn, Ending::Nothing);
        let now = self.now;
        self.ep(host).detach(now, conn);
        self.collect();
    }

    /// A's REQ has reached P and waits for its decision.
    #[track_caller]
    pub(super) fn requested(&mut self) -> Handshake {
        let a = self.connect();
        let req = self.pass(Attribute::REQ);
        let (p, _) = self.request(P);
        Handshake { a, p, req }
    }

    /// P's REP is on the wire.
    #[track_caller]
    pub(super) fn accepted(&mut self) -> Handshake {
        let handshake = self.requested();
        self.accept(P, handshake.p);
        handshake
    }

    /// P's REP has reached A, which has not answered.
    #[track_caller]
    pub(super) fn replied(&mut self) -> (Handshake, Flight) {
        let handshake = self.accepted();
        let rep = self.pass(Attribute::REP);
        self.reply(A, handshake.a);
        (handshake, rep)
    }

    /// A's RTU is on the wire.
    #[track_caller]
    pub(super) fn readied(&mut self) -> (Handshake, Flight) {
        let (handshake, rep) = self.replied();
        self.ready(A, handshake.a, b"");
        (handshake, rep)
    }

    /// Both sides are established; nothing is on the wire, no event waits.
    #[track_caller]
    pub(super) fn established(&mut self) -> Established {
        let (Handshake { a, p, req }, rep) = self.readied();
        let rtu = self.pass(Attribute::RTU);
        match self.event(P) {
            Event::Established { conn, rtu_data: Some(_) } if conn == p => {}
            other => panic!("{other:?}"),
        }
        self.assert_state(A, a, State::Established);
        self.assert_state(P, p, State::Established);
        self.assert_silent();
        Established { a, p, req, rep, rtu }
    }

    /// Both sides are in TimeWait, A has disconnected; nothing is on the wire, no event waits.
    #[track_caller]
    pub(super) fn disconnected(&mut self) -> Disconnected {
        let Established { a, p, req, rep, rtu } = self.established();
        self.disconnect(A, a);
        let dreq = self.pass(Attribute::DREQ);
        let drep = self.pass(Attribute::DREP);
        self.assert_state(A, a, State::TimeWait);
        self.assert_state(P, p, State::TimeWait);
        self.assert_silent();
        for host in [A, P] {
            match self.event(host) {
                Event::Disconnected { .. } => {}
                other => panic!("{other:?}"),
            }
            self.no_event(host);
        }
        Disconnected { a, p, req, rep, rtu, dreq, drep }
    }
}

/// The two ends of a connection that has begun, and its REQ.
#[derive(Debug)]
pub(super) struct Handshake {
    pub(super) a: ConnHandle,
    pub(super) p: ConnHandle,
    pub(super) req: Flight,
}

/// The two ends of an established connection, and what was said.
#[derive(Debug)]
pub(super) struct Established {
    pub(super) a: ConnHandle,
    pub(super) p: ConnHandle,
    pub(super) req: Flight,
    pub(super) rep: Flight,
    pub(super) rtu: Flight,
}

/// The two ends of a connection in TimeWait, and what was said.
#[derive(Debug)]
pub(super) struct Disconnected {
    pub(super) a: ConnHandle,
    pub(super) p: ConnHandle,
    pub(super) req: Flight,
    pub(super) rep: Flight,
    pub(super) rtu: Flight,
    pub(super) dreq: Flight,
    pub(super) drep: Flight,
}
