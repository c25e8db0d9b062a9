//! One engine with 100,000 established connections: how much memory it holds of each, that no two have one ID, that
//! all of them end.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::HashSet;
use std::time::{Duration, Instant};

use allocation_counter::measure;
use ibcm::proto::{
    Accept, Config, ConnHandle, Connect, Disconnect, Endpoint, Event, Listen, LocalCa, LocalPort, Path, State,
};
use ibdev::{DeviceAttr, GidEntry, GidKind, GlobalRoute, LinkLayer, MadSource, PortAttr, PortState};
use ibwire::{
    FlowLabel, Gid, Guid, Lid, Mtu, PKey, PathRecord, PrivateData, Qpn, Rate, ServiceId, ServiceLevel,
    TimeCode,
};

const SERVICE: ServiceId = ServiceId(0x1234);
const CONNECTIONS: u32 = 100_000;
/// Begun at once.
const WAVE: u32 = 1_000;
/// What an engine may hold of an established connection, all its tables included.
const BYTES_EACH: u64 = 1024;

fn gid(host: u8) -> Gid {
    Gid::from_ip([10, 0, 0, host].into())
}

fn endpoint(host: u8) -> Endpoint {
    let attr = DeviceAttr::new("test", Guid(host.into()), 1);
    let port = PortAttr {
        number: 1,
        state: PortState::Active,
        link_layer: LinkLayer::Ethernet,
        active_mtu: Mtu::B1024,
        lid: Lid::NONE,
        lmc: 0,
        sm_lid: Lid::NONE,
        sm_sl: ServiceLevel::default(),
        rate: Rate::GBPS_100,
    };
    let gids = vec![GidEntry { index: 0, gid: gid(host), kind: GidKind::RoceV2 }];
    let ca = LocalCa::new(&attr, vec![LocalPort::new(&port, gids, vec![PKey::DEFAULT])]);
    Endpoint::new(Config::default(), ca, [host; 32])
}

fn source(host: u8) -> MadSource {
    let grh = GlobalRoute {
        dgid: gid(host),
        sgid_index: 0,
        flow_label: FlowLabel::default(),
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
        grh: Some(grh),
    }
}

/// Two engines and what an application knows.
struct Hosts {
    now: Instant,
    active: Endpoint,
    passive: Endpoint,
    /// The connections of each, room for all of them made beforehand.
    handles: [Vec<ConnHandle>; 2],
}

impl Hosts {
    fn new() -> Self {
        let mut passive = endpoint(2);
        let mut listen = Listen::new(SERVICE);
        listen.backlog = WAVE as usize;
        passive.listen(listen).unwrap();
        let handles = [(); 2].map(|()| Vec::with_capacity(CONNECTIONS as usize));
        Self { now: Instant::now(), active: endpoint(1), passive, handles }
    }

    fn connect(&mut self) {
        let record = PathRecord {
            sgid: gid(1),
            dgid: gid(2),
            hop_limit: 64,
            pkey: PKey::DEFAULT,
            mtu: Mtu::B1024,
            packet_life_time: TimeCode::truncate(14).into(),
            ..PathRecord::default()
        };
        let qpn = Qpn::truncate(0x100 + self.handles[0].len() as u32);
        let connect = Connect::new(Path { port: 1, record }, SERVICE, qpn);
        self.handles[0].push(self.active.connect(self.now, connect).unwrap());
    }

    /// Until nobody has anything to say; requests are accepted, replies answered.
    fn run(&mut self) {
        let now = self.now;
        loop {
            let mut quiet = true;
            while let Some(out) = self.active.poll_transmit(now, 1) {
                self.passive.handle_mad(now, &source(1), &out.mad);
                quiet = false;
            }
            while let Some(event) = self.passive.poll_event() {
                if let Event::Request { conn, request, .. } = event {
                    self.passive.accept(now, conn, Accept::new(request.req.local_qpn)).unwrap();
                    self.handles[1].push(conn);
                }
            }
            while let Some(out) = self.passive.poll_transmit(now, 1) {
                self.active.handle_mad(now, &source(2), &out.mad);
                quiet = false;
            }
            while let Some(event) = self.active.poll_event() {
                if let Event::Reply { conn, .. } = event {
                    self.active.ready(now, conn, PrivateData::EMPTY).unwrap();
                }
            }
            if quiet {
                return;
            }
        }
    }
}

#[test]
fn a_hundred_thousand_connections_on_one_engine() {
    let mut hosts = Hosts::new();
    let taken = measure(|| {
        for _ in 0..CONNECTIONS / WAVE {
            (0..WAVE).for_each(|_| hosts.connect());
            hosts.run();
        }
    });
    let all = CONNECTIONS as usize;
    assert_eq!([&hosts.active, &hosts.passive].map(|host| host.count(State::Established)), [all; 2]);
    assert_eq!(hosts.active.poll_timeout(), None, "an established connection needs no timer");
    for (endpoint, handles) in [&hosts.active, &hosts.passive].into_iter().zip(&hosts.handles) {
        let ids: HashSet<_> =
            handles.iter().map(|conn| endpoint.info(*conn).unwrap().local_comm_id).collect();
        assert_eq!(ids.len(), all, "an ID for two connections");
    }
    let ends = 2 * u64::from(CONNECTIONS);
    let each = taken.bytes_current as u64 / ends;
    eprintln!("{each} bytes for a connection at each end, {} at most meanwhile", taken.bytes_max / ends);
    assert!(each < BYTES_EACH, "{each} bytes");

    for wave in std::mem::take(&mut hosts.handles[0]).chunks(WAVE as usize) {
        for conn in wave {
            hosts.active.disconnect(hosts.now, *conn, Disconnect::default()).unwrap();
        }
        hosts.run();
    }
    assert_eq!([&hosts.active, &hosts.passive].map(|host| host.count(State::TimeWait)), [all; 2]);
    hosts.now += Duration::from_secs(60);
    for host in [&mut hosts.active, &mut hosts.passive] {
        host.handle_timeout(hosts.now);
        assert_eq!((host.connections(), host.poll_timeout()), (0, None));
        assert_eq!(host.stats().resent, 0);
    }
}
