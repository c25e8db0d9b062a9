//! Alternate paths: in the REQ, by LAP and APR, and after the migration (spec/cm.md 4.11). Two hosts of three ports.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ibdev::{
    DeviceAttr, GidEntry, GidKind, GlobalRoute, LinkLayer, MadSource, OutgoingMad, PortAttr, PortState,
};
use ibwire::{
    CommId, Gid, Guid, Lid, Mtu, PKey, PathRecord, PrivateData, Qpn, Rate, RejReason, TimeCode, TransactionId,
};

use super::pair::{A, P, SERVICE, time};
use crate::proto::message::{
    ApInfo, ApStatus, Apr, Ari, Attribute as Id, FailoverAccepted, Lap, Message, MessageId, Mra, PathBlock,
    Rej, TransportService,
};
use crate::proto::{
    Accept, AlternateRequest, Config, ConnHandle, Connect, ConnectError, Disconnect, DisconnectCause,
    Endpoint, Event, Listen, LoadPath, LocalCa, LocalPort, Path, PathError, State, Transport,
};

const LIFE_TIME: u8 = 16;

/// A MAD on its way.
#[derive(Debug, Clone)]
struct Flight {
    from: usize,
    out: OutgoingMad,
    tid: TransactionId,
    message: Message,
}

impl Flight {
    fn lap(&self) -> Lap {
        let Message::Lap(lap) = &self.message else { panic!("{self:?}") };
        lap.clone()
    }

    fn apr(&self) -> Apr {
        let Message::Apr(apr) = &self.message else { panic!("{self:?}") };
        apr.clone()
    }

    /// The same with another message, in the same transaction or another one.
    fn with(&self, message: impl Into<Message>, tid: TransactionId) -> Self {
        let mut flight = Self { message: message.into(), tid, ..self.clone() };
        flight.message.encode(tid, &mut flight.out.mad);
        flight
    }
}

struct Net {
    now: Instant,
    hosts: [Endpoint; 2],
    wire: VecDeque<Flight>,
    events: [VecDeque<Event>; 2],
    link: LinkLayer,
    next_qpn: u32,
}

/// An established connection.
#[derive(Debug, Clone, Copy)]
struct Pair {
    a: ConnHandle,
    p: ConnHandle,
}

impl Net {
    fn new() -> Self {
        Self::on(LinkLayer::Ethernet, [true, true])
    }

    fn on(link: LinkLayer, migrates: [bool; 2]) -> Self {
        let host = |host: usize| {
            let mut attr = DeviceAttr::new("test", Guid(0x100 + host as u64), 3);
            attr.path_migration = migrates[host];
            let ports = [1, 2, 3].map(|number| port(link, host, number)).into();
            Endpoint::new(Config::default(), LocalCa::new(&attr, ports), [host as u8; 32])
        };
        let mut hosts = [host(A), host(P)];
        hosts[P].listen(Listen::new(SERVICE)).unwrap();
        Self {
            now: Instant::now(),
            hosts,
            wire: VecDeque::new(),
            events: Default::default(),
            link,
            next_qpn: 0x100,
        }
    }

    /// The path from A's port to the port of P with the same number.
    fn path(&self, port: u8) -> Path {
        let is_ib = self.link == LinkLayer::InfiniBand;
        let record = PathRecord {
            sgid: gid(A, port),
            dgid: gid(P, port),
            slid: if is_ib { lid(A, port) } else { Lid::NONE },
            dlid: if is_ib { lid(P, port) } else { Lid::NONE },
            hop_limit: if is_ib { 0 } else { 64 },
            pkey: PKey::DEFAULT,
            mtu: Mtu::B1024,
            packet_life_time: TimeCode::truncate(LIFE_TIME).into(),
            ..PathRecord::default()
        };
        Path { port, record }
    }

    fn qpn(&mut self) -> Qpn {
        self.next_qpn += 1;
        Qpn::truncate(self.next_qpn)
    }

    fn connect(&mut self, alternate: Option<u8>) -> ConnHandle {
        let mut connect = Connect::new(self.path(1), SERVICE, self.qpn());
        connect.alternate = alternate.map(|port| self.path(port));
        connect.max_cm_retries = 2;
        self.hosts[A].connect(self.now, connect).unwrap()
    }

    /// Takes what the hosts have to say.
    fn collect(&mut self) {
        for from in [A, P] {
            for port in 1..=3 {
                while let Some(out) = self.hosts[from].poll_transmit(self.now, port) {
                    assert_eq!(out.to.av.port, port);
                    let (header, message) = Message::decode(&out.mad).unwrap();
                    self.wire.push_back(Flight { from, out, tid: header.tid, message });
                }
            }
            self.events[from].extend(std::iter::from_fn(|| self.hosts[from].poll_event()));
        }
    }

    /// Hands a MAD to the other host.
    fn deliver(&mut self, flight: &Flight) {
        let (from, av) = (flight.from, &flight.out.to.av);
        let is_ib = self.link == LinkLayer::InfiniBand;
        let source = MadSource {
            port: av.port,
            slid: if is_ib { lid(from, av.port) } else { Lid::NONE },
            sl: av.sl,
            path_bits: 0,
            qpn: Qpn::GSI,
            pkey_index: 0,
            grh: av.grh.map(|grh| GlobalRoute { dgid: gid(from, av.port), sgid_index: 0, ..grh }),
        };
        self.hosts[1 - from].handle_mad(self.now, &source, &flight.out.mad);
        self.collect();
    }

    fn run(&mut self) {
        self.collect();
        while let Some(flight) = self.wire.pop_front() {
            self.deliver(&flight);
        }
    }

    /// The only MAD on the wire, which is the test's to deliver or to lose.
    #[track_caller]
    fn take(&mut self, id: Id) -> Flight {
        self.collect();
        let flight = self.wire.pop_front().unwrap_or_else(|| panic!("no {id} is on the wire"));
        assert_eq!(flight.message.attribute(), id, "{flight:?}");
        assert!(self.wire.is_empty(), "{:?}", self.wire);
        flight
    }

    #[track_caller]
    fn pass(&mut self, id: Id) -> Flight {
        let flight = self.take(id);
        self.deliver(&flight);
        flight
    }

    #[track_caller]
    fn silent(&mut self) {
        self.collect();
        assert!(self.wire.is_empty(), "{:?}", self.wire);
    }

    #[track_caller]
    fn event(&mut self, host: usize) -> Event {
        self.collect();
        self.events[host].pop_front().expect("no event")
    }

    #[track_caller]
    fn no_event(&mut self, host: usize) {
        self.collect();
        assert!(self.events[host].is_empty(), "{:?}", self.events[host]);
    }

    /// Lets time pass; what is sent meanwhile is lost. Returns it.
    fn advance(&mut self, time: Duration) -> Vec<Flight> {
        let end = self.now + time;
        self.collect();
        while let Some(due) =
            self.hosts.iter_mut().filter_map(Endpoint::poll_timeout).min().filter(|due| *due <= end)
        {
            self.now = self.now.max(due);
            self.hosts.iter_mut().for_each(|host| host.handle_timeout(due));
            self.collect();
        }
        self.now = end;
        self.wire.drain(..).collect()
    }

    /// An established connection, with an alternate path in the REQ or without. Nobody has a word left.
    fn established(&mut self, alternate: Option<u8>) -> Pair {
        let a = self.connect(alternate);
        self.pass(Id::REQ);
        let Event::Request { conn: p, .. } = self.event(P) else { panic!() };
        let accept = Accept::new(self.qpn());
        self.hosts[P].accept(self.now, p, accept).unwrap();
        self.pass(Id::REP);
        let Event::Reply { .. } = self.event(A) else { panic!() };
        self.hosts[A].ready(self.now, a, PrivateData::EMPTY).unwrap();
        self.pass(Id::RTU);
        let Event::Established { .. } = self.event(P) else { panic!() };
        Pair { a, p }
    }

    /// A asks for the path from this port; the LAP is on the wire.
    fn load(&mut self, a: ConnHandle, port: u8) {
        let load = LoadPath::new(self.path(port));
        self.hosts[A].load_path(self.now, a, &load).unwrap();
    }

    #[track_caller]
    fn refused(&mut self, a: ConnHandle, port: u8) -> PathError {
        let load = LoadPath::new(self.path(port));
        self.hosts[A].load_path(self.now, a, &load).unwrap_err()
    }

    #[track_caller]
    fn asked(&mut self, p: ConnHandle) -> Box<AlternateRequest> {
        match self.event(P) {
            Event::AlternateRequest { conn, request } if conn == p => request,
            other => panic!("{other:?}"),
        }
    }

    /// Both sides have the path from this port loaded.
    fn loaded(&mut self, port: u8) -> Pair {
        let pair = self.established(None);
        self.load_on(pair, port);
        pair
    }

    fn load_on(&mut self, pair: Pair, port: u8) -> Flight {
        self.load(pair.a, port);
        let lap = self.pass(Id::LAP);
        self.asked(pair.p);
        self.hosts[P].accept_path(self.now, pair.p, PrivateData::EMPTY).unwrap();
        self.pass(Id::APR);
        let Event::AlternateLoaded { path, .. } = self.event(A) else { panic!() };
        assert_eq!(path.av.port, port);
        lap
    }

    #[track_caller]
    fn established_still(&mut self, pair: Pair) {
        assert_eq!(self.hosts[A].state(pair.a), Some(State::Established));
        assert_eq!(self.hosts[P].state(pair.p), Some(State::Established));
    }
}

fn gid(host: usize, port: u8) -> Gid {
    Gid::from_ip([10, 0, port, host as u8 + 1].into())
}

fn lid(host: usize, port: u8) -> Lid {
    Lid(16 * u16::from(port) + host as u16 + 1)
}

fn port(link_layer: LinkLayer, host: usize, number: u8) -> LocalPort {
    let attr = PortAttr {
        number,
        state: PortState::Active,
        link_layer,
        active_mtu: Mtu::B1024,
        lid: if link_layer == LinkLayer::InfiniBand { lid(host, number) } else { Lid::NONE },
        lmc: 0,
        sm_lid: Lid::NONE,
        rate: Rate::GBPS_100,
    };
    let kind = if link_layer == LinkLayer::InfiniBand { GidKind::Infiniband } else { GidKind::RoceV2 };
    LocalPort::new(&attr, vec![GidEntry { index: 0, gid: gid(host, number), kind }], vec![PKey::DEFAULT])
}

fn period() -> Duration {
    time(20) + 2 * time(LIFE_TIME)
}

#[test]
fn an_alternate_path_in_the_req_is_loaded_on_both_sides() {
    for link in [LinkLayer::Ethernet, LinkLayer::InfiniBand] {
        let mut net = Net::on(link, [true, true]);
        let a = net.connect(Some(2));
        let req = net.pass(Id::REQ);
        let Message::Req(req) = req.message else { panic!() };
        let block = req.alternate_path().unwrap();
        assert_eq!((block.local_gid, block.remote_gid), (gid(A, 2), gid(P, 2)));
        let Event::Request { conn: p, request, .. } = net.event(P) else { panic!() };
        let turned = request.alternate.unwrap();
        assert_eq!((turned.port, turned.record.sgid, turned.record.dgid), (2, gid(P, 2), gid(A, 2)));
        let accept = Accept::new(net.qpn());
        let told = net.hosts[P].accept_attrs(p, &accept).unwrap().rts.alternate.unwrap();
        assert_eq!(told.av.port, 2);
        assert_eq!(told.timeout, block.local_ack_timeout);
        net.hosts[P].accept(net.now, p, accept).unwrap();
        net.pass(Id::REP);
        assert_eq!(net.hosts[P].attrs(p).unwrap().rts.alternate, Some(told));
        let ours = net.hosts[A].attrs(a).unwrap().rts.alternate.unwrap();
        assert_eq!(
            (ours.av.port, ours.av.dlid),
            (2, if link == LinkLayer::InfiniBand { lid(P, 2) } else { Lid::NONE })
        );
        for (host, conn) in [(A, a), (P, p)] {
            assert_eq!(net.hosts[host].failover(conn), Some(FailoverAccepted::ACCEPTED));
        }
    }
}

#[test]
fn cm_t52_the_failover_code_says_what_became_of_the_path() {
    let answer = |migrates, takes, change: fn(&mut PathBlock)| {
        let mut net = Net::on(LinkLayer::Ethernet, [true, migrates]);
        let a = net.connect(Some(2));
        let flight = net.take(Id::REQ);
        let Message::Req(mut req) = flight.message.clone() else { panic!() };
        change(&mut req.alternate);
        net.deliver(&flight.with(req, flight.tid));
        let Event::Request { conn: p, .. } = net.event(P) else { panic!() };
        let mut accept = Accept::new(net.qpn());
        accept.failover = takes;
        let loads = net.hosts[P].accept_attrs(p, &accept).unwrap().rts.alternate.is_some();
        net.hosts[P].accept(net.now, p, accept).unwrap();
        net.pass(Id::REP);
        let Event::Reply { rep, .. } = net.event(A) else { panic!() };
        assert_eq!(loads, rep.failover_accepted == FailoverAccepted::ACCEPTED);
        assert_eq!(net.hosts[A].attrs(a).unwrap().rts.alternate.is_some(), loads);
        rep.failover_accepted
    };
    let as_it_is = |_: &mut PathBlock| {};
    assert_eq!(answer(true, true, as_it_is), FailoverAccepted::ACCEPTED);
    assert_eq!(answer(true, false, as_it_is), FailoverAccepted::REJECTED);
    assert_eq!(answer(false, true, as_it_is), FailoverAccepted::UNSUPPORTED);
    assert_eq!(answer(true, true, |block| block.remote_gid = gid(P, 9)), FailoverAccepted::REJECTED);
    let primary = |block: &mut PathBlock| (block.local_gid, block.remote_gid) = (gid(A, 1), gid(P, 1));
    assert_eq!(answer(true, true, primary), FailoverAccepted::REJECTED);
}

#[test]
fn a_path_that_the_device_cannot_have_is_refused_before_anything_is_sent() {
    let mut net = Net::on(LinkLayer::Ethernet, [false, true]);
    let mut connect = Connect::new(net.path(1), SERVICE, net.qpn());
    connect.alternate = Some(net.path(2));
    let refused = net.hosts[A].connect(net.now, connect.clone()).unwrap_err();
    assert!(refused.to_string().contains("the device cannot migrate paths"), "{refused}");

    let mut net = Net::new();
    let good = net.path(2);
    let bad = [
        Path { port: 9, ..good },
        Path { record: PathRecord { sgid: gid(A, 9), ..good.record }, ..good },
        Path { record: PathRecord { pkey: PKey(0x8001), ..good.record }, ..good },
        Path { record: PathRecord { mtu: Mtu::B512, ..good.record }, ..good },
        net.path(1),
    ];
    for alternate in bad {
        connect.alternate = Some(alternate);
        let refused = net.hosts[A].connect(net.now, connect.clone()).unwrap_err();
        assert!(
            matches!(refused, ConnectError::Invalid(invalid) if invalid.field == "alternate path"),
            "{refused}"
        );
        net.silent();
    }
    (connect.alternate, connect.transport) = (Some(good), Transport::Uc);
    let refused = net.hosts[A].connect(net.now, connect).unwrap_err();
    assert!(refused.to_string().contains("only reliable connections migrate"), "{refused}");
}

/// The device cannot do it for other transports: the REQ's path is declined.
#[test]
fn an_unreliable_connection_has_no_alternate_path() {
    let mut net = Net::new();
    let mut listen = Listen::new(SERVICE);
    listen.transports = Transport::Uc.into();
    net.hosts[P] = {
        let attr = net.hosts[P].local_ca().clone();
        Endpoint::new(Config::default(), attr, [9; 32])
    };
    net.hosts[P].listen(listen).unwrap();
    net.connect(Some(2));
    let flight = net.take(Id::REQ);
    let Message::Req(mut req) = flight.message.clone() else { panic!() };
    req.transport = TransportService::UC;
    net.deliver(&flight.with(req, flight.tid));
    let Event::Request { conn: p, .. } = net.event(P) else { panic!() };
    let accept = Accept::new(net.qpn());
    assert_eq!(net.hosts[P].accept_attrs(p, &accept).unwrap().rts.alternate, None);
    net.hosts[P].accept(net.now, p, accept).unwrap();
    let Message::Rep(rep) = net.take(Id::REP).message else { panic!() };
    assert_eq!(rep.failover_accepted, FailoverAccepted::UNSUPPORTED);
}

#[test]
fn lap_and_apr_load_a_path() {
    for link in [LinkLayer::Ethernet, LinkLayer::InfiniBand] {
        let mut net = Net::on(link, [true, true]);
        let pair = net.established(None);
        assert_eq!(net.hosts[A].failover(pair.a), None);
        let mut load = LoadPath::new(net.path(2));
        load.private_data = PrivateData::from(b"spare");
        net.hosts[A].load_path(net.now, pair.a, &load).unwrap();
        let lap = net.pass(Id::LAP);
        let request = net.asked(pair.p);
        assert_eq!((request.path.port, request.path.record.dgid), (2, gid(A, 2)));
        assert_eq!(request.lap.private_data.trimmed(), b"spare");
        assert_eq!((request.attr.av.port, request.attr.timeout), (2, lap.lap().alternate.local_ack_timeout));
        net.hosts[P].accept_path(net.now, pair.p, PrivateData::EMPTY).unwrap();
        let apr = net.pass(Id::APR);
        assert_eq!((apr.apr().status, apr.tid), (ApStatus::LOADED, lap.tid));
        let Event::AlternateLoaded { path, .. } = net.event(A) else { panic!() };
        assert_eq!(path.av.port, 2);
        assert_eq!(net.hosts[P].accept_path(net.now, pair.p, PrivateData::EMPTY), Err(PathError::NotAsked));
        assert_eq!(net.refused(pair.a, 3), PathError::Loaded);
        net.established_still(pair);
        // The queue pair did not take it after all.
        net.hosts[A].unload_path(pair.a);
        net.load(pair.a, 2);
        net.pass(Id::LAP);
        net.no_event(P);
        assert_eq!(net.pass(Id::APR).apr().status, ApStatus::LOADED);
        let Event::AlternateLoaded { .. } = net.event(A) else { panic!() };
    }
}

#[test]
fn only_the_active_side_of_an_established_connection_loads_paths() {
    let mut net = Net::new();
    let a = net.connect(None);
    assert_eq!(net.refused(a, 2), PathError::State(State::ReqSent));
    net.wire.clear();
    let mut net = Net::new();
    let pair = net.established(None);
    let load = LoadPath::new(net.path(2));
    assert_eq!(net.hosts[P].load_path(net.now, pair.p, &load), Err(PathError::PassiveSide));
    assert!(matches!(net.refused(pair.a, 1), PathError::Invalid(_)), "the primary path");
    net.load(pair.a, 2);
    assert_eq!(net.refused(pair.a, 3), PathError::Busy);
}

/// A LAP that was long under way and that has been answered, granted or not, asks for nothing any more.
#[test]
fn a_lap_of_before_is_no_request() {
    let mut net = Net::new();
    let pair = net.established(None);
    let first = net.load_on(pair, 2);
    for (host, conn) in [(A, pair.a), (P, pair.p)] {
        net.hosts[host].migrated(net.now, conn).unwrap();
        let Event::Migrated { .. } = net.event(host) else { panic!() };
    }
    // By the path that both have gone over to, so it is refused, for now.
    let second = first.with(first.lap(), TransactionId(2));
    net.deliver(&second);
    assert_eq!(net.take(Id::APR).apr().status, ApStatus::CURRENT_PATH);
    net.load_on(pair, 3);
    for (host, conn) in [(A, pair.a), (P, pair.p)] {
        net.hosts[host].migrated(net.now, conn).unwrap();
        let Event::Migrated { .. } = net.event(host) else { panic!() };
    }
    let before = net.hosts[P].stats().dropped_duplicate;
    for late in [first, second] {
        net.deliver(&late);
        net.silent();
        net.no_event(P);
    }
    assert_eq!(net.hosts[P].stats().dropped_duplicate, before + 2);
}

/// A repetition while the user thinks is no second request; behind the answer it meets the same answer.
#[test]
fn a_lap_that_comes_again() {
    let mut net = Net::new();
    let pair = net.established(None);
    net.load(pair.a, 2);
    let lap = net.pass(Id::LAP);
    net.asked(pair.p);
    net.deliver(&lap);
    net.no_event(P);
    net.silent();
    let other = Lap {
        alternate: PathBlock { local_gid: gid(A, 3), remote_gid: gid(P, 3), ..lap.lap().alternate },
        ..lap.lap()
    };
    net.deliver(&lap.with(other, TransactionId(1)));
    assert_eq!(net.take(Id::APR).apr().status, ApStatus::REJECTED);
    // Half of the time is over: an MRA, which meets each repetition from now on.
    let sent = net.advance(time(20) / 2);
    let [mra] = &sent[..] else { panic!("{sent:?}") };
    assert!(matches!(&mra.message, Message::Mra(mra) if mra.message == MessageId::LAP));
    assert_eq!(mra.tid, lap.tid);
    net.deliver(&lap);
    let again = net.take(Id::MRA);
    assert_eq!(again.out.mad, mra.out.mad);
    net.deliver(&again);
    let Event::Busy { .. } = net.event(A) else { panic!() };
    assert!(net.advance(time(20)).is_empty(), "patience");
    net.hosts[P].accept_path(net.now, pair.p, PrivateData::EMPTY).unwrap();
    let apr = net.take(Id::APR);
    net.deliver(&lap);
    assert_eq!(net.take(Id::APR).out.mad, apr.out.mad);
    net.no_event(P);
    net.deliver(&apr);
    let Event::AlternateLoaded { .. } = net.event(A) else { panic!() };
    net.deliver(&apr);
    net.no_event(A);
}

#[test]
fn what_a_lap_is_refused_for() {
    let mut net = Net::new();
    let pair = net.loaded(2);
    net.load_refused_by_hand(pair);
    for (migrates, takes) in [(false, true), (true, false)] {
        let mut net = Net::on(LinkLayer::Ethernet, [true, migrates]);
        let a = net.connect(None);
        net.pass(Id::REQ);
        let Event::Request { conn: p, .. } = net.event(P) else { panic!() };
        let mut accept = Accept::new(net.qpn());
        accept.failover = takes;
        net.hosts[P].accept(net.now, p, accept).unwrap();
        net.pass(Id::REP);
        net.event(A);
        net.hosts[A].ready(net.now, a, PrivateData::EMPTY).unwrap();
        net.pass(Id::RTU);
        net.event(P);
        net.load(a, 2);
        net.pass(Id::LAP);
        net.no_event(P);
        net.pass(Id::APR);
        let Event::AlternateRefused { status, .. } = net.event(A) else { panic!() };
        assert_eq!(status, ApStatus::UNSUPPORTED);
        // It is not asked again.
        assert_eq!(net.refused(a, 2), PathError::PeerUnable);
    }
}

impl Net {
    /// LAPs that A's engine would not send.
    fn load_refused_by_hand(&mut self, pair: Pair) {
        let info = self.hosts[A].info(pair.a).unwrap();
        let block = PathBlock {
            local_lid: Lid::PERMISSIVE,
            remote_lid: Lid::PERMISSIVE,
            local_gid: gid(A, 3),
            remote_gid: gid(P, 3),
            hop_limit: 64,
            local_ack_timeout: TimeCode::truncate(17),
            ..PathBlock::NONE
        };
        let lap = Lap {
            local_comm_id: info.local_comm_id,
            remote_comm_id: info.remote_comm_id,
            remote_qpn: info.remote_qpn,
            remote_cm_response_timeout: TimeCode::truncate(20),
            alternate: block,
            private_data: PrivateData::EMPTY,
        };
        self.hosts[A].disconnect(self.now, pair.a, Disconnect::default()).unwrap();
        let carrier = self.take(Id::DREQ);
        let ends = |n| PathBlock { local_gid: gid(A, n), remote_gid: gid(P, n), ..block };
        let rejected = [
            (Lap { alternate: ends(1), ..lap.clone() }, ApStatus::CURRENT_PATH, ApInfo::None),
            (Lap { alternate: ends(2), ..lap.clone() }, ApStatus::LOADED, ApInfo::None),
            (lap.clone(), ApStatus::REJECTED, ApInfo::None),
            (Lap { remote_qpn: Qpn::truncate(9), ..lap.clone() }, ApStatus::WRONG_QPN, ApInfo::None),
            (
                Lap { alternate: PathBlock { remote_gid: gid(P, 7), ..block }, ..lap.clone() },
                ApStatus::REMOTE_GID,
                ApInfo::Gid(gid(P, 1)),
            ),
            (Lap { remote_comm_id: CommId(1), ..lap.clone() }, ApStatus::INVALID_COMM_ID, ApInfo::None),
        ];
        for (n, (lap, status, info)) in (0..).zip(rejected) {
            self.deliver(&carrier.with(lap.clone(), TransactionId(77 + n)));
            let apr = self.take(Id::APR);
            assert_eq!((apr.apr().status, apr.tid), (status, TransactionId(77 + n)));
            assert_eq!(ApInfo::decode(status, &apr.apr().info), info);
            assert_eq!(
                (apr.apr().local_comm_id, apr.apr().remote_comm_id),
                (lap.remote_comm_id, lap.local_comm_id)
            );
            self.no_event(P);
        }
    }
}

#[test]
fn the_user_refuses_and_later_agrees() {
    let mut net = Net::new();
    let pair = net.established(None);
    net.load(pair.a, 2);
    net.pass(Id::LAP);
    net.asked(pair.p);
    let info = ApInfo::TrafficClass(7);
    net.hosts[P]
        .reject_path(net.now, pair.p, ApStatus::TRAFFIC_CLASS, &info, PrivateData::from(b"no"))
        .unwrap();
    net.pass(Id::APR);
    match net.event(A) {
        Event::AlternateRefused { status, info, private_data, .. } => {
            assert_eq!((status, *info), (ApStatus::TRAFFIC_CLASS, ApInfo::TrafficClass(7)));
            assert_eq!(private_data.trimmed(), b"no");
        }
        other => panic!("{other:?}"),
    }
    net.load_on(pair, 3);
    // On an InfiniBand port the LID has to be one of its own.
    let mut net = Net::on(LinkLayer::InfiniBand, [true, true]);
    let pair = net.established(None);
    net.load(pair.a, 2);
    let lap = net.take(Id::LAP);
    let block = PathBlock { remote_lid: Lid(999), ..lap.lap().alternate };
    net.deliver(&lap.with(Lap { alternate: block, ..lap.lap() }, lap.tid));
    let apr = net.take(Id::APR).apr();
    assert_eq!(
        (apr.status, ApInfo::decode(apr.status, &apr.info)),
        (ApStatus::REMOTE_LID, ApInfo::Lid(lid(P, 2)))
    );
}

/// The second LAP is not completed by the APR of the first one, should that come again.
#[test]
fn cm_t73_an_apr_of_an_earlier_lap() {
    let mut net = Net::new();
    let pair = net.established(None);
    net.load(pair.a, 2);
    net.pass(Id::LAP);
    net.asked(pair.p);
    net.hosts[P].reject_path(net.now, pair.p, ApStatus::REJECTED, &ApInfo::None, PrivateData::EMPTY).unwrap();
    let first = net.pass(Id::APR);
    let Event::AlternateRefused { .. } = net.event(A) else { panic!() };
    net.load(pair.a, 3);
    net.take(Id::LAP);
    net.deliver(&first.with(Apr { status: ApStatus::LOADED, ..first.apr() }, first.tid));
    net.no_event(A);
    // A peer that echoes the REQ's transaction, or any other, is understood.
    net.deliver(&first.with(Apr { status: ApStatus::LOADED, ..first.apr() }, TransactionId(5)));
    let Event::AlternateLoaded { path, .. } = net.event(A) else { panic!() };
    assert_eq!(path.av.port, 3);
}

/// As Linux does it: nobody ever answers. The connection stays, a late answer means nothing.
#[test]
fn cm_t74_a_lap_that_is_never_answered() {
    let mut net = Net::new();
    let pair = net.established(None);
    net.load(pair.a, 2);
    let lap = net.take(Id::LAP);
    for _ in 0..2 {
        assert!(net.advance(period() - Duration::from_nanos(1)).is_empty());
        let sent = net.advance(Duration::from_nanos(1));
        assert!(sent.len() == 1 && sent[0].out.mad == lap.out.mad, "{sent:?}");
    }
    net.no_event(A);
    net.advance(period());
    let Event::AlternateTimeout { effort, .. } = net.event(A) else { panic!() };
    assert_eq!((effort.sent, effort.waited, effort.busy), (3, 3 * period(), false));
    assert_eq!(net.hosts[A].stats().lap_timeouts, 1);
    assert_eq!(net.refused(pair.a, 2), PathError::PeerUnable);
    net.deliver(&lap);
    net.asked(pair.p);
    net.hosts[P].accept_path(net.now, pair.p, PrivateData::EMPTY).unwrap();
    net.pass(Id::APR);
    net.no_event(A);
    net.established_still(pair);
    net.hosts[A].disconnect(net.now, pair.a, Disconnect::default()).unwrap();
    net.run();
    let Event::Disconnected { cause: DisconnectCause::Local { .. }, .. } = net.event(A) else { panic!() };
}

#[test]
fn cm_t75_a_lap_for_the_active_side_means_nothing() {
    let mut net = Net::new();
    let pair = net.established(None);
    net.load(pair.a, 2);
    let lap = net.take(Id::LAP);
    let info = net.hosts[P].info(pair.p).unwrap();
    let mirrored = Lap {
        local_comm_id: info.local_comm_id,
        remote_comm_id: info.remote_comm_id,
        remote_qpn: info.remote_qpn,
        ..lap.lap()
    };
    let mut flight = lap.with(mirrored, lap.tid);
    flight.from = P;
    net.deliver(&flight);
    net.silent();
    net.no_event(A);
    assert_eq!(net.hosts[A].stats().dropped_state, 1);
    // Neither before the connection is established.
    let mut net = Net::new();
    net.connect(None);
    let req = net.take(Id::REQ);
    net.deliver(&req);
    let Event::Request { conn: p, .. } = net.event(P) else { panic!() };
    let info = net.hosts[P].info(p).unwrap();
    let early = Lap { local_comm_id: info.remote_comm_id, remote_comm_id: info.local_comm_id, ..lap.lap() };
    net.deliver(&req.with(early, lap.tid));
    net.silent();
    net.no_event(P);
}

#[test]
fn cm_t76_a_disconnect_ends_a_lap() {
    for by in [A, P] {
        let mut net = Net::new();
        let pair = net.established(None);
        net.load(pair.a, 2);
        let lap = net.take(Id::LAP);
        net.hosts[by].disconnect(net.now, [pair.a, pair.p][by], Disconnect::default()).unwrap();
        net.run();
        let Event::Disconnected { .. } = net.event(A) else { panic!() };
        let sent = net.advance(20 * period());
        assert!(sent.is_empty(), "no LAP, no timeout: {sent:?}");
        let Event::Released { .. } = net.event(A) else { panic!() };
        net.deliver(&lap);
    }
    // The passive side's user answers too late.
    let mut net = Net::new();
    let pair = net.established(None);
    net.load(pair.a, 2);
    net.pass(Id::LAP);
    net.asked(pair.p);
    net.hosts[A].disconnect(net.now, pair.a, Disconnect::default()).unwrap();
    net.run();
    assert_eq!(net.hosts[P].accept_path(net.now, pair.p, PrivateData::EMPTY), Err(PathError::Gone));
}

#[test]
fn cm_t77_a_lap_stands_for_the_rtu() {
    let mut net = Net::new();
    let a = net.connect(None);
    net.pass(Id::REQ);
    let Event::Request { conn: p, .. } = net.event(P) else { panic!() };
    let accept = Accept::new(net.qpn());
    net.hosts[P].accept(net.now, p, accept).unwrap();
    net.pass(Id::REP);
    net.event(A);
    net.hosts[A].ready(net.now, a, PrivateData::EMPTY).unwrap();
    net.take(Id::RTU);
    net.load(a, 2);
    net.pass(Id::LAP);
    let Event::Established { rtu_data: None, .. } = net.event(P) else { panic!() };
    net.asked(p);
}

/// Until the migration is settled no other path is loaded; then MADs go by the new one.
#[test]
fn cm_t78_after_the_migration_mads_go_by_the_new_path() {
    for link in [LinkLayer::Ethernet, LinkLayer::InfiniBand] {
        let mut net = Net::on(link, [true, true]);
        let pair = net.loaded(2);
        assert_eq!(net.refused(pair.a, 3), PathError::Loaded);
        let [qa, qp] =
            [(A, pair.a), (P, pair.p)].map(|(host, conn)| net.hosts[host].info(conn).unwrap().local_qpn);
        net.hosts[A].path_migrated(net.now, qa);
        let Event::Migrated { primary, .. } = net.event(A) else { panic!() };
        assert_eq!((primary.port, primary.record.sgid, primary.record.dgid), (2, gid(A, 2), gid(P, 2)));
        // The peer may learn of it a moment later.
        net.hosts[P].path_migrated(net.now, qp);
        let Event::Migrated { primary, .. } = net.event(P) else { panic!() };
        assert_eq!((primary.port, primary.record.dgid), (2, gid(A, 2)));
        net.hosts[P].path_migrated(net.now, qp);
        net.no_event(P);
        assert_eq!(net.hosts[P].migrated(net.now, pair.p), Err(PathError::NotLoaded));

        // The old path is loaded again.
        let lap = net.load_on(pair, 1);
        assert_eq!(lap.out.to.av.port, 2);
        net.hosts[A].disconnect(net.now, pair.a, Disconnect::default()).unwrap();
        let dreq = net.pass(Id::DREQ);
        assert_eq!(dreq.out.to.av.port, 2);
        assert_eq!(net.pass(Id::DREP).out.to.av.port, 2);
        let Event::Disconnected { cause: DisconnectCause::Local { .. }, .. } = net.event(A) else { panic!() };
    }
}

/// One side knows of the migration, the other does not yet: they hear each other by either path.
#[test]
fn mads_by_either_path_are_heard_while_only_one_side_knows() {
    for by in [A, P] {
        let mut net = Net::new();
        let pair = net.loaded(2);
        net.hosts[A].migrated(net.now, pair.a).unwrap();
        net.hosts[by].disconnect(net.now, [pair.a, pair.p][by], Disconnect::default()).unwrap();
        assert_eq!(net.pass(Id::DREQ).out.to.av.port, if by == A { 2 } else { 1 });
        net.pass(Id::DREP);
        assert_eq!(net.hosts[by].state([pair.a, pair.p][by]), Some(State::TimeWait));
        assert_eq!(net.hosts.iter().map(|host| host.stats().foreign_source).sum::<u64>(), 0);
    }
}

/// A DREQ that is out when the path breaks is repeated by the new one.
#[test]
fn a_dreq_changes_its_path() {
    let mut net = Net::new();
    let pair = net.loaded(2);
    net.hosts[A].disconnect(net.now, pair.a, Disconnect::default()).unwrap();
    assert_eq!(net.take(Id::DREQ).out.to.av.port, 1);
    net.hosts[A].migrated(net.now, pair.a).unwrap();
    let sent = net.advance(period());
    assert!(sent.len() == 1 && sent[0].out.to.av.port == 2, "{sent:?}");
}

/// A REJ behind a LAP and its APR is of the handshake, and late.
#[test]
fn cm_t40_a_rej_after_an_exchange_of_paths_is_ignored() {
    for exchanged in [false, true] {
        let mut net = Net::new();
        let pair = net.established(None);
        if exchanged {
            net.load_on(pair, 2);
        }
        net.load_or_disconnect_for_carrier(pair, exchanged);
    }
}

impl Net {
    fn load_or_disconnect_for_carrier(&mut self, pair: Pair, ignored: bool) {
        let info = self.hosts[P].info(pair.p).unwrap();
        let rej = Rej {
            local_comm_id: info.local_comm_id,
            remote_comm_id: info.remote_comm_id,
            message: MessageId::OTHER,
            reason: RejReason::NO_RESOURCES,
            ari: Ari::EMPTY,
            private_data: PrivateData::EMPTY,
        };
        let mut out = OutgoingMad { mad: [0; ibdev::MAD_LEN], to: self.carrier() };
        Message::Rej(rej.clone()).encode(TransactionId(1), &mut out.mad);
        self.deliver(&Flight { from: P, out, tid: TransactionId(1), message: rej.into() });
        let state = self.hosts[A].state(pair.a);
        assert_eq!(state, Some(if ignored { State::Established } else { State::TimeWait }));
    }

    /// The way from P's first port.
    fn carrier(&self) -> ibdev::MadAddr {
        let grh = GlobalRoute {
            dgid: gid(A, 1),
            sgid_index: 0,
            flow_label: Default::default(),
            hop_limit: 64,
            traffic_class: 0,
        };
        let av = ibdev::AddressVector {
            port: 1,
            dlid: Lid::NONE,
            sl: Default::default(),
            path_bits: 0,
            rate: Rate::PORT_CURRENT,
            grh: Some(grh),
        };
        ibdev::MadAddr { av, qpn: Qpn::GSI, qkey: ibwire::QKey::GSI, pkey_index: 0 }
    }
}

/// An MRA for a LAP counts only while a LAP is out.
#[test]
fn cm_t41_an_mra_without_a_lap_is_ignored() {
    let mut net = Net::new();
    let pair = net.established(None);
    let info = net.hosts[P].info(pair.p).unwrap();
    let mra = Mra {
        local_comm_id: info.local_comm_id,
        remote_comm_id: info.remote_comm_id,
        message: MessageId::LAP,
        service_timeout: TimeCode::truncate(20),
        private_data: PrivateData::EMPTY,
    };
    let mut out = OutgoingMad { mad: [0; ibdev::MAD_LEN], to: net.carrier() };
    Message::Mra(mra.clone()).encode(TransactionId(1), &mut out.mad);
    net.deliver(&Flight { from: P, out, tid: TransactionId(1), message: mra.into() });
    net.no_event(A);
    assert_eq!(net.hosts[A].stats().dropped_state, 1);
    assert_eq!(net.hosts[A].poll_timeout(), None);
}
