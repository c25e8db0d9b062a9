//! The CM engine: MADs of two peers, commands and time, in any order.
//!
//! An input is a list of operations; see `World::step`. However it goes, each connection sees one final event at
//! most and is released once, it has one LAP out at most and each has one end, and once all are aborted nothing is left
//! after a bounded time.

mod seeds;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use ibcm::proto::message::{ApInfo, ApStatus, Attribute, Eecn, SidrStatus};
use ibcm::proto::{
    Accept, CommandError, Config, ConnHandle, Connect, Disconnect, Discriminator, Endpoint, Event, Listen,
    ListenerId, LoadPath, LocalCa, LocalPort, Path, PathError, RdEnd, Reject, SidrAnswer, SidrEvent,
    SidrHandling, SidrQuery, SidrQueryHandle, SidrRequestHandle, SidrServe, SidrServiceId, Stats, Transport,
    Transports,
};
use ibdev::{
    DeviceAttr, GidEntry, GidKind, GlobalRoute, LinkLayer, MAD_LEN, MadSource, OutgoingMad, PortAttr,
    PortState, ReceivedMad,
};
use ibwire::mad::{MadHeader, MgmtClass};
use ibwire::{
    CommId, FlowLabel, Gid, Guid, Lid, Mtu, PKey, PathRecord, PrivateData, QKey, Qpn, Rate, RejReason,
    ServiceId, ServiceLevel, TimeCode,
};

use crate::{Input, mad};

pub use seeds::seeds;

const SERVICE: ServiceId = ServiceId(0x1234);
const PORTS: [u8; 2] = [1, 2];
const TRANSPORTS: [Transport; 4] = [Transport::Rc, Transport::Uc, Transport::Rd, Transport::Xrc];
const RD: RdEnd = RdEnd { eecn: Eecn::truncate(0x77), qkey: QKey(7) };
/// Where IDs and service ID stand in a MAD.
const LOCAL_ID: usize = MadHeader::LEN;
const REMOTE_ID: usize = MadHeader::LEN + 4;
const SERVICE_ID: usize = MadHeader::LEN + 8;
/// Where the service ID stands in a SIDR_REP.
const REP_SERVICE_ID: usize = MadHeader::LEN + 12;
/// Sent MADs that are remembered, to be sent back.
const REMEMBERED: usize = 8;

/// What a MAD gets before it is delivered, so that it is about something.
mod fix {
    /// The peer's ID of a connection as the sender's.
    pub(super) const SENDER: u8 = 1;
    /// Our ID of that connection as the receiver's.
    pub(super) const RECEIVER: u8 = 1 << 1;
    /// The service that is listened for.
    pub(super) const SERVICE: u8 = 1 << 2;
    /// The header of a CM message.
    pub(super) const HEADER: u8 = 1 << 3;
    /// The ID of the last query that was sent, and its service where a SIDR_REP has it.
    pub(super) const QUERY: u8 = 1 << 4;
}

/// The target.
pub fn run(bytes: &[u8]) {
    play(bytes);
}

/// What it came to, in the counters of the engine.
fn play(bytes: &[u8]) -> Stats {
    let mut input = Input::new(bytes);
    let mut world = World::new(input.byte() & 1 == 0);
    while !input.is_empty() {
        world.step(&mut input);
        world.drain();
    }
    if bytes.len().is_multiple_of(4) {
        world.ep.device_removed();
        world.drain();
    } else {
        world.wind_down();
    }
    assert_eq!(world.ep.connections(), 0);
    assert!(world.queries.is_empty());
    assert!(world.conns.values().all(|conn| conn.is_released || conn.is_detached));
    world.ep.stats()
}

/// What was seen of a connection.
#[derive(Debug, Default)]
struct Seen {
    is_final: bool,
    is_released: bool,
    is_detached: bool,
    /// Our LAP is out; the peer's is here, undecided.
    has_asked: bool,
    is_asked: bool,
}

struct World {
    ep: Endpoint,
    now: Instant,
    is_roce: bool,
    listener: Option<ListenerId>,
    conns: BTreeMap<ConnHandle, Seen>,
    queries: BTreeSet<SidrQueryHandle>,
    requests: Vec<SidrRequestHandle>,
    service: Option<SidrServiceId>,
    sent: VecDeque<OutgoingMad>,
    next_qpn: u32,
}

impl World {
    fn new(is_roce: bool) -> Self {
        let mut attr = DeviceAttr::new("fuzz", Guid(1), 2);
        attr.path_migration = true;
        let ca = LocalCa::new(&attr, PORTS.map(|number| port(is_roce, number, true)).into());
        let mut ep = Endpoint::new(Config::default(), ca, [7; 32]);
        let mut listen = Listen::new(SERVICE);
        listen.backlog = 4;
        let listener = ep.listen(listen).ok();
        Self {
            ep,
            now: Instant::now(),
            is_roce,
            listener,
            conns: BTreeMap::new(),
            queries: BTreeSet::new(),
            requests: Vec::new(),
            service: None,
            sent: VecDeque::new(),
            next_qpn: 0x100,
        }
    }

    /// One operation: its number, then what it needs.
    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 25 {
            0 | 1 => {
                let ReceivedMad { from, mad } = self.mad(input);
                self.ep.handle_mad(self.now, &from, &mad);
            }
            24 => self.deliver_together(input),
            2 => {
                let at = input.below(REMEMBERED);
                if let Some(mad) = self.sent.get(at).map(|sent| sent.mad) {
                    self.ep.handle_mad(self.now, &self.source(input.byte()), &mad);
                }
            }
            3 => self.connect(input),
            4 => {
                let mut accept = Accept::new(self.qpn());
                let how = input.byte();
                accept.rnr_retry_count = how % 9;
                accept.failover = how & 0x80 == 0;
                if let Some(conn) = self.conn(input) {
                    let info = self.ep.info(conn);
                    // One that asked for its peer has a queue pair already.
                    accept.qpn =
                        info.map(|info| info.local_qpn).filter(|qpn| qpn.get() != 0).unwrap_or(accept.qpn);
                    accept.rd = info.filter(|info| info.transport == Transport::Rd).map(|_| RD);
                    _ = self.ep.accept_attrs(conn, &accept);
                    _ = self.ep.accept(self.now, conn, accept);
                }
            }
            5 => {
                if let Some(conn) = self.conn(input) {
                    _ = self.ep.attrs(conn);
                    _ = self.ep.ready(self.now, conn, PrivateData::EMPTY);
                }
            }
            6 => {
                let reject = Reject::new(RejReason(input.u16()));
                if let Some(conn) = self.conn(input) {
                    _ = self.ep.reject(self.now, conn, reject);
                }
            }
            7 => {
                if let Some(conn) = self.conn(input) {
                    _ = self.ep.ignore(self.now, conn);
                }
            }
            8 => {
                let mut disconnect = Disconnect::default();
                disconnect.deadline = self.deadline(input);
                if let Some(conn) = self.conn(input) {
                    _ = self.ep.disconnect(self.now, conn, disconnect);
                }
            }
            9 => {
                if let Some(conn) = self.conn(input) {
                    self.ep.abort(self.now, conn);
                }
            }
            10 => {
                if let Some(conn) = self.conn(input) {
                    self.ep.detach(self.now, conn);
                    self.conns.entry(conn).or_default().is_detached = true;
                }
            }
            11 => {
                let qpn = self.conn(input).and_then(|conn| self.ep.info(conn)).map(|info| info.local_qpn);
                self.ep.comm_established(self.now, qpn.unwrap_or(Qpn::truncate(input.u32())));
            }
            12 => {
                self.now += Duration::from_millis(input.u16().into());
                self.timeout();
            }
            13 => {
                self.now = self.ep.poll_timeout().map_or(self.now, |at| at.max(self.now));
                self.timeout();
            }
            14 => {
                let how = input.byte();
                self.ep.update_port(port(self.is_roce, PORTS[usize::from(how >> 1 & 1)], how & 1 == 0));
            }
            16 => self.query(input),
            17 => {
                let at = input.below(self.queries.len().max(1));
                if let Some(query) = self.queries.iter().nth(at).copied() {
                    self.ep.sidr_cancel(query);
                    self.queries.remove(&query);
                }
            }
            18 => self.answer(input),
            19 => match self.service.take() {
                Some(service) => self.ep.sidr_unserve(service),
                None => self.service = self.ep.sidr_serve(service(input.byte())).ok(),
            },
            20 => self.load_path(input),
            21 => self.answer_path(input),
            22 => {
                if let Some(conn) = self.conn(input) {
                    _ = self.ep.migrated(self.now, conn);
                    _ = self.ep.failover(conn);
                }
            }
            23 => match (input.byte() & 1, self.conn(input)) {
                (0, Some(conn)) => self.ep.unload_path(conn),
                (_, conn) => {
                    let qpn = conn.and_then(|conn| self.ep.info(conn)).map(|info| info.local_qpn);
                    self.ep.path_migrated(self.now, qpn.unwrap_or(Qpn::truncate(input.u32())));
                }
            },
            _ => match self.listener.take() {
                Some(listener) => self.ep.unlisten(listener),
                None => self.listener = self.ep.listen(listen(input)).ok(),
            },
        }
    }

    /// MADs that arrive together: how many, and of each whether it is one that was sent, and which, or a new one.
    fn deliver_together(&mut self, input: &mut Input<'_>) {
        let mut mads = Vec::new();
        for _ in 0..=input.below(40) {
            let (what, at) = (input.byte(), input.below(REMEMBERED));
            let sent = self.sent.get(at).filter(|_| what & 1 != 0);
            let mad = match sent {
                Some(sent) => ReceivedMad { from: self.source(what >> 1), mad: sent.mad },
                None => self.mad(input),
            };
            mads.push(mad);
        }
        self.ep.handle_mads(self.now, &mads);
    }

    /// A MAD: who sends it, what is fixed, for which connection, its length, its bytes.
    fn mad(&mut self, input: &mut Input<'_>) -> ReceivedMad {
        let (from, fixes) = (self.source(input.byte()), input.byte());
        let conn = self.conn(input);
        let len = input.u16() % (MAD_LEN as u16 + 1);
        let mut bytes = mad::padded(input.bytes(len.into()));
        if fixes & fix::HEADER != 0 {
            let attribute = Attribute(Attribute::REQ.0 + u16::from(bytes[17] % 11));
            let mut header = MadHeader::new(
                MgmtClass::CM,
                2,
                ibwire::mad::Method::SEND,
                attribute.into(),
                ibwire::TransactionId(bytes[9].into()),
            );
            header.class_version = 2 + u8::from(bytes[2] == 0xff);
            header.write_to(&mut bytes);
        }
        let info = conn.and_then(|conn| self.ep.info(conn));
        let (ours, theirs) =
            info.map_or((CommId::NONE, CommId::NONE), |info| (info.local_comm_id, info.remote_comm_id));
        if fixes & fix::SENDER != 0 {
            bytes[LOCAL_ID..LOCAL_ID + 4].copy_from_slice(&theirs.0.to_be_bytes());
        }
        if fixes & fix::RECEIVER != 0 {
            bytes[REMOTE_ID..REMOTE_ID + 4].copy_from_slice(&ours.0.to_be_bytes());
        }
        if fixes & fix::SERVICE != 0 {
            bytes[SERVICE_ID..SERVICE_ID + 8].copy_from_slice(&SERVICE.0.to_be_bytes());
        }
        let is_query = |mad: &&OutgoingMad| mad.mad[17] == Attribute::SIDR_REQ.0 as u8;
        if fixes & fix::QUERY != 0
            && let Some(query) = self.sent.iter().find(is_query)
        {
            bytes[LOCAL_ID..LOCAL_ID + 4].copy_from_slice(&query.mad[LOCAL_ID..LOCAL_ID + 4]);
            bytes[REP_SERVICE_ID..REP_SERVICE_ID + 8].copy_from_slice(&SERVICE.0.to_be_bytes());
        }
        ReceivedMad { from, mad: bytes }
    }

    fn connect(&mut self, input: &mut Input<'_>) {
        let path = self.path(1 + input.byte() % 2);
        let mut connect = Connect::new(path, SERVICE, self.qpn());
        connect.max_cm_retries = input.byte() % 17;
        connect.response_timeout = TimeCode::truncate(input.byte());
        connect.deadline = self.deadline(input);
        let how = input.byte();
        connect.transport = TRANSPORTS[usize::from(how / 2 % 4)];
        connect.alternate = (how & 8 != 0).then(|| self.alternate(input.byte()));
        connect.rd = (connect.transport == Transport::Rd).then_some(RD);
        let made = match how % 2 {
            0 => self.ep.connect(self.now, connect),
            _ => self.ep.connect_peer(self.now, connect),
        };
        if let Ok(conn) = made {
            self.conns.insert(conn, Seen::default());
        }
    }

    fn path(&self, host: u8) -> Path {
        self.path_between(PORTS[0], host)
    }

    /// From a port of ours to a host of the first network or of the second.
    fn alternate(&self, which: u8) -> Path {
        self.path_between(PORTS[usize::from(which & 1)], which >> 1 & 3)
    }

    fn path_between(&self, port: u8, host: u8) -> Path {
        let ours = own_number(port);
        let record = PathRecord {
            dgid: gid(self.is_roce, host),
            sgid: gid(self.is_roce, ours),
            dlid: lid(self.is_roce, host),
            slid: lid(self.is_roce, ours),
            hop_limit: if self.is_roce { 64 } else { 0 },
            reversible: true,
            pkey: PKey::DEFAULT,
            mtu: Mtu::B1024,
            rate: Rate::GBPS_100,
            packet_life_time: TimeCode::truncate(14).into(),
            ..PathRecord::default()
        };
        Path { port, record }
    }

    fn load_path(&mut self, input: &mut Input<'_>) {
        let mut load = LoadPath::new(self.alternate(input.byte()));
        load.response_timeout = TimeCode::truncate(input.byte());
        load.deadline = self.deadline(input);
        let Some(conn) = self.conn(input) else { return };
        let result = self.ep.load_path(self.now, conn, &load);
        let seen = self.conns.entry(conn).or_default();
        match result {
            Ok(()) => assert!(!std::mem::replace(&mut seen.has_asked, true), "a second LAP"),
            Err(PathError::Busy) => assert!(seen.has_asked, "busy with nothing"),
            Err(_) => {}
        }
    }

    fn answer_path(&mut self, input: &mut Input<'_>) {
        let status = ApStatus(input.byte());
        let Some(conn) = self.conn(input) else { return };
        let result = match status {
            ApStatus::LOADED => self.ep.accept_path(self.now, conn, PrivateData::EMPTY),
            _ => self.ep.reject_path(self.now, conn, status, &ApInfo::None, PrivateData::EMPTY),
        };
        if result.is_ok() {
            let seen = self.conns.entry(conn).or_default();
            assert!(std::mem::take(&mut seen.is_asked), "an answer to nothing");
        }
    }

    fn query(&mut self, input: &mut Input<'_>) {
        let path = self.path(1 + input.byte() % 2);
        let mut query = SidrQuery::new(path, SERVICE);
        query.max_retries = input.byte() % 17;
        query.response_timeout = Duration::from_millis(input.u16().into());
        query.deadline = self.deadline(input);
        if let Ok(query) = self.ep.sidr_query(self.now, &query) {
            assert!(self.queries.insert(query), "a handle twice");
        }
    }

    fn answer(&mut self, input: &mut Input<'_>) {
        let (at, status) = (input.below(self.requests.len().max(1)), SidrStatus(input.byte() % 8));
        if at < self.requests.len() {
            let request = self.requests.remove(at);
            let answer = SidrAnswer { qpn: Qpn::truncate(input.u16().into()), ..SidrAnswer::refusal(status) };
            if let Err(error) = self.ep.sidr_answer(self.now, request, &answer) {
                // What cannot be an answer leaves the request as it is.
                assert!(matches!(error, CommandError::Invalid(_)), "{error}");
                self.ep
                    .sidr_answer(self.now, request, &SidrAnswer::refusal(SidrStatus::REJECTED))
                    .expect("pending");
            }
        }
    }

    fn qpn(&mut self) -> Qpn {
        self.next_qpn += 1;
        Qpn::truncate(self.next_qpn)
    }

    fn deadline(&self, input: &mut Input<'_>) -> Option<Instant> {
        let ms = input.u16();
        (ms & 1 != 0).then(|| self.now + Duration::from_millis(ms.into()))
    }

    /// One of all connections that there ever were.
    fn conn(&self, input: &mut Input<'_>) -> Option<ConnHandle> {
        let at = input.below(self.conns.len().max(1));
        self.conns.keys().nth_back(at).copied()
    }

    fn source(&self, who: u8) -> MadSource {
        let (peer, port) = (1 + who % 2, PORTS[usize::from(who >> 3 & 1)]);
        let grh = GlobalRoute {
            dgid: gid(self.is_roce, peer),
            sgid_index: 0,
            flow_label: FlowLabel::default(),
            hop_limit: 64,
            traffic_class: 0,
        };
        MadSource {
            port,
            slid: lid(self.is_roce, peer),
            sl: ServiceLevel::default(),
            path_bits: 0,
            qpn: Qpn::GSI,
            pkey_index: 0,
            grh: (self.is_roce || who & 4 != 0).then_some(grh),
        }
    }

    fn timeout(&mut self) {
        self.ep.handle_timeout(self.now);
        assert!(self.ep.poll_timeout().is_none_or(|at| at > self.now), "something is due for ever");
    }

    fn transmit(&mut self) -> Option<OutgoingMad> {
        PORTS.into_iter().find_map(|port| self.ep.poll_transmit(self.now, port))
    }

    /// Takes all that the engine has to say.
    fn drain(&mut self) {
        let most = 3 * self.ep.connections()
            + self.ep.sidr_queries()
            + 2 * PORTS.len() * Config::default().max_queued_answers;
        for _ in 0..most {
            let Some(mad) = self.transmit() else { break };
            assert_eq!(MadHeader::parse(&mad.mad).map(|header| header.class), Ok(MgmtClass::CM));
            self.sent.push_front(mad);
            self.sent.truncate(REMEMBERED);
        }
        assert!(self.transmit().is_none(), "more than the queues hold");
        self.drain_sidr();
        while let Some(event) = self.ep.poll_event() {
            let seen = self.conns.entry(event.conn()).or_default();
            assert!(!seen.is_released && !seen.is_detached, "{event:?}");
            if event.is_final() {
                assert!(!seen.is_final, "{event:?}");
                seen.is_final = true;
            }
            match event {
                Event::Released { conn } => {
                    seen.is_released = true;
                    assert!(self.ep.state(conn).is_none());
                }
                Event::AlternateRequest { .. } => {
                    assert!(!std::mem::replace(&mut seen.is_asked, true), "{event:?}");
                }
                Event::AlternateLoaded { .. }
                | Event::AlternateRefused { .. }
                | Event::AlternateTimeout { .. } => {
                    assert!(std::mem::take(&mut seen.has_asked), "{event:?}");
                }
                _ => {}
            }
        }
    }

    /// Each query has one end; requests are held as long as they are not answered.
    fn drain_sidr(&mut self) {
        while let Some(event) = self.ep.poll_sidr_event() {
            match (event.query(), event) {
                (Some(query), event) => assert!(self.queries.remove(&query), "{event:?}"),
                (None, SidrEvent::Request { handle, .. }) => self.requests.push(handle),
                (None, event) => panic!("{event:?}"),
            }
        }
        assert_eq!(self.ep.sidr_queries(), self.queries.len());
    }

    /// Ends all, and waits until nothing is left.
    fn wind_down(&mut self) {
        for query in std::mem::take(&mut self.queries) {
            self.ep.sidr_cancel(query);
        }
        let handles: Vec<_> = self.conns.keys().copied().collect();
        for conn in handles {
            self.ep.abort(self.now, conn);
        }
        self.drain();
        for _ in 0..100 * (1 + self.conns.len()) {
            let Some(at) = self.ep.poll_timeout() else { break };
            self.now = at.max(self.now);
            self.timeout();
            self.drain();
        }
    }
}

/// A listener: by mask or exactly, for some private data or any, for some transports, fast or slow.
fn listen(input: &mut Input<'_>) -> Listen {
    let how = input.byte();
    let mut listen = Listen::new(SERVICE);
    if how & 1 != 0 {
        listen.service_mask = SERVICE.0;
    }
    if how & 2 != 0 {
        listen.discriminator = Discriminator::new(input.byte().into(), &[input.byte()]).ok();
    }
    if how & 4 != 0 {
        listen.transports = Transports::from(TRANSPORTS);
    }
    if how & 8 != 0 {
        listen.turnaround = Some(Duration::from_millis(input.u16().into()));
    }
    listen
}

/// One that the engine answers, or one that reports a few at once.
fn service(kind: u8) -> SidrServe {
    let mut serve = match kind & 1 {
        0 => SidrServe::answering(SERVICE, SidrAnswer::resolved(Qpn::truncate(0x99), QKey(1))),
        _ => SidrServe::reporting(SERVICE),
    };
    serve.by_ip = kind & 2 != 0;
    if let SidrHandling::Report { backlog } = &mut serve.handling {
        *backlog = 4;
    }
    serve
}

fn gid(is_roce: bool, host: u8) -> Gid {
    if is_roce {
        Gid::from_ip([10, 77, 0, 2 - host % 2 + host / 2 * 2].into())
    } else {
        Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2 + host])
    }
}

fn lid(is_roce: bool, host: u8) -> Lid {
    if is_roce { Lid::NONE } else { Lid(u16::from(2 * (host + 1))) }
}

/// The number of the host that a port of ours is.
fn own_number(port: u8) -> u8 {
    if port == PORTS[0] { 0 } else { 4 }
}

fn port(is_roce: bool, number: u8, is_up: bool) -> LocalPort {
    let own = own_number(number);
    let attr = PortAttr {
        number,
        state: if is_up { PortState::Active } else { PortState::Down },
        link_layer: if is_roce { LinkLayer::Ethernet } else { LinkLayer::InfiniBand },
        active_mtu: Mtu::B4096,
        lid: lid(is_roce, own),
        lmc: 0,
        sm_lid: Lid::NONE,
        sm_sl: ServiceLevel::default(),
        rate: Rate::GBPS_100,
    };
    let kind = if is_roce { GidKind::RoceV2 } else { GidKind::Infiniband };
    LocalPort::new(&attr, vec![GidEntry { index: 0, gid: gid(is_roce, own), kind }], vec![PKey::DEFAULT])
}
