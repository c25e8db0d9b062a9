//! HCAs of two ports: what waits at one holds up nothing at the other, requests belong to the port of their path, GIDs
//! outlive their indices.

use std::time::{Duration, Instant};

use ibdev::{
    DeviceAttr, GidEntry, GidKind, GlobalRoute, LinkLayer, MadSource, OutgoingMad, PortAttr, PortState,
};
use ibwire::{Gid, Guid, Lid, Mtu, PKey, PathRecord, PrivateData, Qpn, Rate, ServiceLevel, TimeCode};

use super::pair::{A, P, SERVICE};
use crate::proto::message::{Attribute as Id, Message};
use crate::proto::{
    Accept, CommandError, Config, ConnHandle, Connect, Disconnect, Endpoint, Event, Invalid, Listen,
    ListenError, LocalCa, LocalPort, Path, State,
};

fn gid(host: usize, port: u8) -> Gid {
    Gid::from_ip([10, 0, port, host as u8 + 1].into())
}

/// Port `number` of a host, which has its GID at this index of the table.
fn port(host: usize, number: u8, index: Option<u16>) -> LocalPort {
    let attr = PortAttr {
        number,
        state: PortState::Active,
        link_layer: LinkLayer::Ethernet,
        active_mtu: Mtu::B1024,
        lid: Lid::NONE,
        lmc: 0,
        sm_lid: Lid::NONE,
        sm_sl: ServiceLevel::default(),
        rate: Rate::GBPS_100,
    };
    let entry = |index, gid| GidEntry { index, gid, kind: GidKind::RoceV2 };
    let other = entry(index.map_or(0, |index| index + 1), gid(host, 99));
    let gids = index.map(|index| entry(index, gid(host, number))).into_iter().chain([other]).collect();
    LocalPort::new(&attr, gids, vec![PKey::DEFAULT])
}

/// Two hosts of two ports each; port 1 of the one reaches port 1 of the other, and so does port 2.
struct Net {
    now: Instant,
    hosts: [Endpoint; 2],
    next_qpn: u32,
}

impl Net {
    fn new() -> Self {
        let host = |host| {
            let attr = DeviceAttr::new("test", Guid(0x100 + host as u64), 2);
            let ports = [1, 2].map(|number| port(host, number, Some(0))).into();
            Endpoint::new(Config::default(), LocalCa::new(&attr, ports), [host as u8; 32])
        };
        Self { now: Instant::now(), hosts: [host(A), host(P)], next_qpn: 0x100 }
    }

    /// The listener of P.
    fn listening() -> Self {
        let mut net = Self::new();
        net.hosts[P].listen(Listen::new(SERVICE)).unwrap();
        net
    }

    fn qpn(&mut self) -> Qpn {
        self.next_qpn += 1;
        Qpn::truncate(self.next_qpn)
    }

    fn connect(&mut self, port: u8) -> ConnHandle {
        let record = PathRecord {
            sgid: gid(A, port),
            dgid: gid(P, port),
            hop_limit: 64,
            pkey: PKey::DEFAULT,
            mtu: Mtu::B1024,
            packet_life_time: TimeCode::truncate(10).into(),
            ..PathRecord::default()
        };
        let connect = Connect::new(Path { port, record }, SERVICE, self.qpn());
        self.hosts[A].connect(self.now, connect).unwrap()
    }

    /// The next MAD of a host's port.
    fn sent(&mut self, host: usize, port: u8) -> Option<(Id, OutgoingMad)> {
        let out = self.hosts[host].poll_transmit(self.now, port)?;
        assert_eq!(out.to.av.port, port);
        let (_, message) = Message::decode(&out.mad).unwrap();
        Some((message.attribute(), out))
    }

    /// Hands a MAD of `from` to the other host, where it arrives at `port`, sent to the GID at `index`.
    fn deliver(&mut self, from: usize, out: &OutgoingMad, port: u8, index: u16) {
        let grh = out.to.av.grh.unwrap();
        let source = MadSource {
            port,
            slid: Lid::NONE,
            sl: ServiceLevel::truncate(0),
            path_bits: 0,
            qpn: Qpn::GSI,
            pkey_index: 0,
            grh: Some(GlobalRoute { dgid: gid(from, out.to.av.port), sgid_index: index, ..grh }),
        };
        self.hosts[1 - from].handle_mad(self.now, &source, &out.mad);
    }

    /// Takes this MAD from `from`'s port and hands it over.
    #[track_caller]
    fn pass(&mut self, from: usize, port: u8, id: Id) {
        let (sent, out) = self.sent(from, port).unwrap();
        assert_eq!(sent, id);
        self.deliver(from, &out, port, 0);
    }

    #[track_caller]
    fn request(&mut self) -> ConnHandle {
        let Some(Event::Request { conn, .. }) = self.hosts[P].poll_event() else { panic!() };
        conn
    }

    /// From a request to an established connection.
    #[track_caller]
    fn establish(&mut self, a: ConnHandle, p: ConnHandle, port: u8) {
        let (now, accept) = (self.now, Accept::new(self.qpn()));
        self.hosts[P].accept(now, p, accept).unwrap();
        self.pass(P, port, Id::REP);
        let Some(Event::Reply { .. }) = self.hosts[A].poll_event() else { panic!() };
        self.hosts[A].ready(now, a, PrivateData::EMPTY).unwrap();
        self.pass(A, port, Id::RTU);
        let Some(Event::Established { .. }) = self.hosts[P].poll_event() else { panic!() };
    }
}

#[test]
fn a_port_that_cannot_send_holds_up_no_other() {
    let mut net = Net::listening();
    let waiting: Vec<_> = (0..1000).map(|_| net.connect(1)).collect();
    let a = net.connect(2);
    net.pass(A, 2, Id::REQ);
    let p = net.request();
    net.establish(a, p, 2);
    net.hosts[A].disconnect(net.now, a, Disconnect::default()).unwrap();
    let (id, dreq) = net.sent(A, 2).unwrap();
    assert_eq!(id, Id::DREQ);
    // Answers wait at port 1, too: to DREQs of no connection.
    for _ in 0..10 {
        net.deliver(P, &dreq, 1, 0);
    }
    net.deliver(A, &dreq, 2, 0);
    net.pass(P, 2, Id::DREP);
    assert_eq!(net.hosts[A].state(a), Some(State::TimeWait));
    assert!(net.sent(A, 2).is_none());

    // The time for an answer starts when the REQ leaves.
    net.now += Duration::from_secs(60);
    net.hosts[A].handle_timeout(net.now);
    assert_eq!(net.hosts[A].count(State::ReqSent), 1000);
    for _ in &waiting {
        let (id, out) = net.sent(A, 1).unwrap();
        assert_eq!(id, Id::REQ);
        net.deliver(A, &out, 1, 0);
    }
    for _ in 0..10 {
        assert_eq!(net.sent(A, 1).unwrap().0, Id::DREP);
    }
    assert!(net.sent(A, 1).is_none());
    assert_eq!(net.hosts[A].stats().resent, 0);
}

/// The REP arrived at another port than the REQ left by: the DREQ takes the way of the REQ, even if the REP is still in
/// the queue of the other.
#[test]
fn a_dreq_does_not_wait_where_the_rep_waited() {
    let mut net = Net::listening();
    net.connect(2);
    let (_, req) = net.sent(A, 2).unwrap();
    net.deliver(A, &req, 1, 0);
    let p = net.request();
    let accept = Accept::new(net.qpn());
    net.hosts[P].accept(net.now, p, accept).unwrap();
    net.hosts[P].disconnect(net.now, p, Disconnect::default()).unwrap();
    assert_eq!(net.sent(P, 2).unwrap().0, Id::DREQ);
    assert!(net.sent(P, 1).is_none() && net.sent(P, 2).is_none());
}

/// No MAD is lost without being counted.
#[test]
fn what_cannot_be_sent_is_counted() {
    let mut net = Net::new();
    net.connect(1);
    let (_, req) = net.sent(A, 1).unwrap();
    // There is no port 7 to send the REJ from.
    net.deliver(A, &req, 7, 0);
    assert_eq!(net.hosts[P].stats().dropped_no_port, 1);
    for _ in 0..3 {
        net.deliver(A, &req, 1, 0);
    }
    net.hosts[P].device_removed();
    assert_eq!(net.hosts[P].stats().dropped_no_port, 4);
    assert!(net.sent(P, 1).is_none());
}

/// spec/cm.md 5.1: the port is the one that owns the GID that the REQ names, wherever the MAD came in.
#[test]
fn a_request_is_for_the_port_of_its_path() {
    let mut net = Net::new();
    let listen = |port| Listen { port: Some(port), ..Listen::new(SERVICE) };
    let first = net.hosts[P].listen(listen(1)).unwrap();
    let second = net.hosts[P].listen(listen(2)).unwrap();
    assert_eq!(net.hosts[P].listen(listen(2)), Err(ListenError::AddrInUse));
    net.connect(2);
    let (_, req) = net.sent(A, 2).unwrap();
    net.deliver(A, &req, 1, 0);
    let Some(Event::Request { conn, listener, request }) = net.hosts[P].poll_event() else { panic!() };
    assert_eq!((listener, request.path.port), (second, 2));
    let accept = Accept::new(net.qpn());
    assert_eq!(net.hosts[P].accept_attrs(conn, &accept).unwrap().init.port, 2);
    // Answers go back the way that the REQ came.
    net.hosts[P].accept(net.now, conn, accept).unwrap();
    assert_eq!(net.sent(P, 1).unwrap().0, Id::REP);

    // Nobody listens at port 2 any more.
    net.hosts[P].unlisten(second);
    net.connect(2);
    let (_, req) = net.sent(A, 2).unwrap();
    net.deliver(A, &req, 1, 0);
    assert_eq!(net.sent(P, 1).unwrap().0, Id::REJ);
    assert_eq!(net.hosts[P].pending_requests(first), Some(0));
}

/// A GID table is made anew: connections keep their GIDs.
#[test]
fn a_gid_keeps_its_connections_when_its_index_changes() {
    let mut net = Net::listening();
    let index = |out: &OutgoingMad| out.to.av.grh.unwrap().sgid_index;
    let a = net.connect(1);
    net.pass(A, 1, Id::REQ);
    let p = net.request();
    net.hosts[P].update_port(port(P, 1, Some(4)));
    let accept = Accept::new(net.qpn());
    let attrs = net.hosts[P].accept_attrs(p, &accept).unwrap();
    assert_eq!(attrs.rtr.av.grh.unwrap().sgid_index, 4);
    net.hosts[P].accept(net.now, p, accept).unwrap();
    let (id, rep) = net.sent(P, 1).unwrap();
    assert_eq!((id, index(&rep)), (Id::REP, 4));
    net.deliver(P, &rep, 1, 0);
    net.hosts[A].update_port(port(A, 1, Some(7)));
    assert_eq!(net.hosts[A].attrs(a).unwrap().rtr.av.grh.unwrap().sgid_index, 7);
    net.hosts[A].ready(net.now, a, PrivateData::EMPTY).unwrap();
    let (id, rtu) = net.sent(A, 1).unwrap();
    assert_eq!((id, index(&rtu)), (Id::RTU, 7));
    net.deliver(A, &rtu, 1, 4);

    // It is gone for a while: nothing goes out by another GID.
    net.hosts[A].update_port(port(A, 1, None));
    assert_eq!(net.hosts[A].attrs(a), None);
    net.hosts[A].disconnect(net.now, a, Disconnect::default()).unwrap();
    assert!(net.sent(A, 1).is_none());
    assert_eq!(net.hosts[A].stats().dropped_no_gid, 1);
    net.hosts[A].update_port(port(A, 1, Some(2)));
    net.now = net.hosts[A].poll_timeout().unwrap();
    net.hosts[A].handle_timeout(net.now);
    let (id, dreq) = net.sent(A, 1).unwrap();
    assert_eq!((id, index(&dreq)), (Id::DREQ, 2));
    net.deliver(A, &dreq, 1, 4);
    let (id, drep) = net.sent(P, 1).unwrap();
    assert_eq!((id, index(&drep)), (Id::DREP, 4));
}

/// A request cannot be accepted while the port lacks the GID that it came to.
#[test]
fn a_request_whose_gid_is_gone() {
    let mut net = Net::listening();
    net.connect(1);
    net.pass(A, 1, Id::REQ);
    let p = net.request();
    net.hosts[P].update_port(port(P, 1, None));
    let accept = Accept::new(net.qpn());
    let error = net.hosts[P].accept(net.now, p, accept.clone()).unwrap_err();
    assert!(matches!(error, CommandError::Invalid(Invalid { .. })), "{error}");
    assert!(error.to_string().contains(&gid(P, 1).to_string()), "{error}");
    net.hosts[P].update_port(port(P, 1, Some(3)));
    net.hosts[P].accept(net.now, p, accept).unwrap();
    assert_eq!(net.sent(P, 1).unwrap().0, Id::REP);
}
