//! Alternate paths: in the REQ, by LAP and APR, and after the migration (spec/cm.md 4.11). Two hosts of three ports.

mod load;
mod other_messages;
mod request;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ibdev::{
    DeviceAttr, GidEntry, GidKind, GlobalRoute, LinkLayer, MadSource, OutgoingMad, PortAttr, PortState,
};

use ibwire::{
    CommId, Gid, Guid, Lid, Mtu, PKey, PathRecord, PrivateData, Qpn, Rate, RejReason, ServiceLevel, TimeCode,
    TransactionId,
};

use super::pair::{A, P, SERVICE, time};
use crate::proto::message::{
    ApInfo, ApStatus, Apr, Ari, Attribute as Id, FailoverAccepted, Lap, Message, MessageId, Mra, PathBlock,
    Rej, TransportService,
};

use crate::proto::{
    Accept, AlternateRequest, Config, ConnHandle, Connect, ConnectError, Disconnect, DisconnectCause,
    Endpoint, Event, Listen, LoadPath, LocalCa, LocalPort, Path, PathError, State, Transport, ack_timeout,
};

const LIFE_TIME: u8 = 16;
const ACK_DELAY: [TimeCode; 2] = [TimeCode::truncate(15), TimeCode::truncate(21)];

/// How long A's queue pair waits for an acknowledgement.
fn timeout_of_a() -> TimeCode {
    ack_timeout(TimeCode::truncate(LIFE_TIME), ACK_DELAY[P])
}

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
            // That of P is what counts in each timeout of A.
            attr.ack_delay = ACK_DELAY[host];
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
        sm_sl: ServiceLevel::default(),
        rate: Rate::GBPS_100,
    };
    let kind = if link_layer == LinkLayer::InfiniBand { GidKind::Infiniband } else { GidKind::RoceV2 };
    LocalPort::new(&attr, vec![GidEntry { index: 0, gid: gid(host, number), kind }], vec![PKey::DEFAULT])
}

fn period() -> Duration {
    time(20) + 2 * time(LIFE_TIME)
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
