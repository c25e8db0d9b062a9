//! What the scenarios of `proto::tests` leave out: bounds, and who is heard.

mod reuse;

use std::net::Ipv4Addr;
use std::time::Duration;

use ibdev::{DeviceAttr, GidEntry, GidKind, GlobalRoute, LinkLayer, PortAttr, PortState};
use ibwire::{
    Gid, Guid, Lid, Mtu, PKey, PacketLifeTime, PathRecord, Rate, ServiceId, ServiceLevel, TimeCode,
};

use super::super::event::DisconnectCause;
use super::super::message::Message;
use super::super::path::Path;
use super::*;

const SERVICE: ServiceId = ServiceId::new(0x1000_0000_0000_0001);

/// Two hosts on RoCE, and a third that only sends what the test has it send.
struct Hosts {
    now: Instant,
    active: Endpoint,
    passive: Endpoint,
}

fn gid(host: u8) -> Gid {
    Gid::from(Ipv4Addr::new(10, 0, 0, host))
}

fn endpoint(host: u8) -> Endpoint {
    let attr = DeviceAttr::new("test", Guid(0x100 + u64::from(host)), 1);
    let port = PortAttr {
        number: 1,
        state: PortState::Active,
        link_layer: LinkLayer::Ethernet,
        active_mtu: Mtu::B1024,
        lid: Lid::NONE,
        lmc: 0,
        sm_lid: Lid::NONE,
        sm_sl: ServiceLevel::default(),
        rate: Rate::PORT_CURRENT,
    };
    let gids = vec![GidEntry { index: 0, gid: gid(host), kind: GidKind::RoceV2 }];
    let port = LocalPort::new(&port, gids, vec![PKey::DEFAULT]);
    Endpoint::new(Config::default(), LocalCa::new(&attr, vec![port]), [host; 32])
}

fn from(host: u8) -> MadSource {
    let route = GlobalRoute {
        dgid: gid(host),
        sgid_index: 0,
        flow_label: Default::default(),
        hop_limit: 64,
        traffic_class: 0,
    };
    MadSource {
        port: 1,
        slid: Lid::NONE,
        sl: ServiceLevel::default(),
        path_bits: 0,
        qpn: Qpn::GSI,
        pkey_index: 0,
        grh: Some(route),
    }
}

fn connect() -> Connect {
    let record = PathRecord {
        sgid: gid(1),
        dgid: gid(2),
        hop_limit: 64,
        pkey: PKey::DEFAULT,
        mtu: Mtu::B1024,
        packet_life_time: PacketLifeTime::truncate(10),
        ..PathRecord::default()
    };
    Connect::new(Path { port: 1, record }, SERVICE, Qpn::truncate(0x11))
}

impl Hosts {
    fn new() -> Self {
        let mut passive = endpoint(2);
        passive.listen(Listen::new(SERVICE)).unwrap();
        Self { now: Instant::now(), active: endpoint(1), passive }
    }

    /// The request is at the passive side.
    fn requested(connect: Connect) -> (Self, ConnHandle, ConnHandle) {
        let mut hosts = Self::new();
        let active = hosts.active.connect(hosts.now, connect).unwrap();
        hosts.deliver_to_passive(1);
        let Some(Event::Request { conn, .. }) = hosts.passive.poll_event() else { panic!() };
        (hosts, active, conn)
    }

    /// The RTU is under way.
    fn replied() -> (Self, ConnHandle, ConnHandle) {
        let (mut hosts, active, passive) = Self::requested(connect());
        hosts.passive.accept(hosts.now, passive, Accept::new(Qpn::truncate(0x22))).unwrap();
        hosts.deliver_to_active(2);
        let Some(Event::Reply { .. }) = hosts.active.poll_event() else { panic!() };
        hosts.active.ready(hosts.now, active, PrivateData::EMPTY).unwrap();
        (hosts, active, passive)
    }

    /// What the active side sends arrives as if `source` had sent it.
    fn deliver_to_passive(&mut self, source: u8) {
        while let Some(out) = self.active.poll_transmit(self.now, 1) {
            self.passive.handle_mad(self.now, &from(source), &out.mad);
        }
    }

    fn deliver_to_active(&mut self, source: u8) {
        while let Some(out) = self.passive.poll_transmit(self.now, 1) {
            self.active.handle_mad(self.now, &from(source), &out.mad);
        }
    }
}

#[test]
fn an_rtu_of_another_host_is_not_heard() {
    let (mut hosts, _, passive) = Hosts::replied();
    hosts.deliver_to_passive(3);
    assert_eq!(hosts.passive.state(passive), Some(State::RepSent));
    assert_eq!(hosts.passive.stats().foreign_source, 1);
}

#[test]
fn a_drep_of_another_host_is_not_heard() {
    let (mut hosts, active, _) = Hosts::replied();
    hosts.deliver_to_passive(1);
    hosts.active.disconnect(hosts.now, active, Disconnect::default()).unwrap();
    hosts.deliver_to_passive(1);
    hosts.deliver_to_active(3);
    assert_eq!(hosts.active.state(active), Some(State::DreqSent));
    assert_eq!(hosts.active.stats().foreign_source, 1);
}

#[test]
fn an_mra_of_another_host_is_not_heard() {
    for (source, state) in [(3, State::ReqSent), (2, State::ReqMraRcvd)] {
        let (mut hosts, active, _) = Hosts::requested(connect());
        hosts.now = hosts.passive.poll_timeout().unwrap();
        hosts.passive.handle_timeout(hosts.now);
        hosts.deliver_to_active(source);
        assert_eq!(hosts.active.state(active), Some(state));
    }
}

#[test]
fn who_is_in_time_wait_is_gone_for_commands() {
    let (mut hosts, active, passive) = Hosts::replied();
    hosts.deliver_to_passive(1);
    hosts.active.disconnect(hosts.now, active, Disconnect::default()).unwrap();
    hosts.deliver_to_passive(1);
    hosts.deliver_to_active(2);
    let Some(Event::Disconnected { cause: DisconnectCause::Local { .. }, .. }) = hosts.active.poll_event()
    else {
        panic!()
    };
    assert_eq!(hosts.active.state(active), Some(State::TimeWait));
    assert_eq!(hosts.active.ready(hosts.now, active, PrivateData::EMPTY), Err(CommandError::Gone));
    assert_eq!(hosts.passive.state(passive), Some(State::TimeWait));
    let accept = Accept::new(Qpn::truncate(0x33));
    assert_eq!(hosts.passive.accept(hosts.now, passive, accept), Err(CommandError::Gone));
    assert_eq!(hosts.passive.disconnect(hosts.now, passive, Disconnect::default()), Ok(()));
}

#[test]
fn a_peer_in_a_hurry_gets_a_rep_each_millisecond_at_most() {
    let hurried = Connect { local_response_timeout: TimeCode::truncate(0), ..connect() };
    let (mut hosts, _, passive) = Hosts::requested(hurried);
    hosts.passive.accept(hosts.now, passive, Accept::new(Qpn::truncate(0x22))).unwrap();
    let mut sent = 0;
    let start = hosts.now;
    while hosts.passive.state(passive) == Some(State::RepSent) {
        while let Some(out) = hosts.passive.poll_transmit(hosts.now, 1) {
            sent += u32::from(matches!(Message::decode(&out.mad), Ok((_, Message::Rep(_)))));
        }
        hosts.now = hosts.passive.poll_timeout().unwrap();
        hosts.passive.handle_timeout(hosts.now);
    }
    assert_eq!((sent, hosts.now - start), (16, Duration::from_millis(16)));
}

#[test]
fn a_deadline_that_has_passed_leaves_time_to_send_once() {
    let (mut hosts, active, _) = Hosts::replied();
    hosts.deliver_to_passive(1);
    let disconnect = Disconnect { deadline: Some(hosts.now), ..Disconnect::default() };
    hosts.active.disconnect(hosts.now, active, disconnect).unwrap();
    hosts.active.handle_timeout(hosts.now);
    assert!(hosts.active.poll_transmit(hosts.now, 1).is_some());
    hosts.now += Duration::from_millis(1);
    hosts.active.handle_timeout(hosts.now);
    let Some(Event::Disconnected { cause: DisconnectCause::Timeout(effort), .. }) = hosts.active.poll_event()
    else {
        panic!()
    };
    assert_eq!(effort.sent, 1);
    assert_eq!(hosts.active.state(active), Some(State::TimeWait));
}

#[test]
fn ids_differ_and_are_free_again() {
    let mut hosts = Hosts::new();
    let mut seen = std::collections::HashSet::new();
    for n in 0..1000 {
        let connect = Connect { qpn: Qpn::truncate(0x100 + n), ..connect() };
        let conn = hosts.active.connect(hosts.now, connect).unwrap();
        let info = hosts.active.info(conn).unwrap();
        assert!(!info.local_comm_id.is_none() && seen.insert(info.local_comm_id));
        hosts.active.abort(hosts.now, conn);
        assert!(hosts.active.core.ids.by_local_id(info.local_comm_id).is_none());
        assert!(hosts.active.core.ids.by_local_qpn(info.local_qpn).is_none());
    }
    assert!(hosts.active.poll_transmit(hosts.now, 1).is_none(), "no REQ has left, so no REJ has to");
}

/// What waits to be sent again waits no longer than the whole may take.
#[test]
fn a_deadline_holds_while_nothing_can_be_sent() {
    let mut hosts = Hosts::new();
    let deadline = hosts.now + Duration::from_secs(10);
    let active = hosts.active.connect(hosts.now, Connect { deadline: Some(deadline), ..connect() }).unwrap();
    hosts.active.poll_transmit(hosts.now, 1).unwrap();
    for _ in 0..2 {
        hosts.now = hosts.active.poll_timeout().expect("a deadline");
        hosts.active.handle_timeout(hosts.now);
    }
    assert_eq!(hosts.now, deadline);
    let Some(Event::Timeout { conn, effort }) = hosts.active.poll_event() else { panic!() };
    assert_eq!((conn, effort.sent), (active, 1));
}

/// No bound at all is a bound too.
#[test]
fn mras_may_be_as_long_as_they_like() {
    let mut endpoint = endpoint(1);
    endpoint.core.config.max_mra_wait = Duration::MAX;
    endpoint.connect(Instant::now(), connect()).unwrap();
    assert!(endpoint.poll_transmit(Instant::now(), 1).is_some());
}

/// Neither an ID in use nor one that a remembered rejection names is given out.
#[test]
fn ids_that_are_taken_are_skipped() {
    // The same seed, so the same IDs.
    let (mut free, mut taken) = (endpoint(1), endpoint(1));
    let [first, second, third] = [(); 3].map(|()| free.core.draw_id());
    let (now, core) = (Instant::now(), &mut taken.core);
    core.ids.insert_local_id(first, 0);
    core.rejections.insert(now, now + Duration::from_secs(1), second, None, &[0; MAD_LEN]);
    assert_eq!(core.draw_id(), third);
}
