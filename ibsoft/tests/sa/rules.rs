//! The rules of the service (spec/sa.md section 10) and the halves of the numbered scenarios that are the service's.

use std::time::{Duration, Instant};

use ibsa::mad::{RmppHeader, RmppType, SaHeader};
use ibsa::record::{
    InformInfo, JoinState, Layout, McMemberRecord, Notice, NoticeDetails, PathRecord, ServiceRecord,
};
use ibsoft::manager::{Partition, Sa, SaConfig, SaMode, Topology};
use ibwire::mad::{AttributeId, ClassPortInfo, Method};
use ibwire::{Gid, Guid, Lid, Mtu, PKey, QKey, Qpn, Rate, Selector, ServiceId, ServiceLevel};

use crate::net::{TWO_SWITCHES, peer, request, service, subnet};

pub(crate) const GET: Method = Method::GET;
pub(crate) const SET: Method = Method::SET;
pub(crate) const TABLE: Method = Method::GET_TABLE;
pub(crate) const PATH: u16 = 0x35;
pub(crate) const MEMBER: u16 = 0x38;
pub(crate) const SERVICE: u16 = 0x31;

/// GIDs of Hca1 to Hca4, whose LIDs are 1, 4, 5 and 6.
pub(crate) fn gid(hca: u64) -> Gid {
    Gid::link_local(Guid(0x10_0001 + 3 * (hca - 1)))
}

/// The service, and a clock.
pub(crate) struct World {
    pub(crate) sa: Sa,
    pub(crate) now: Instant,
    pub(crate) tid: u64,
}

impl World {
    pub(crate) fn new(topology: Topology, config: SaConfig) -> Self {
        let now = Instant::now();
        Self { sa: service(topology, config, now), now, tid: 0 }
    }

    pub(crate) fn plain() -> Self {
        Self::new(subnet(TWO_SWITCHES, 0), SaConfig::default())
    }

    pub(crate) fn send(&mut self, from: u16, mad: &[u8; 256]) -> Vec<[u8; 256]> {
        self.sa.handle_mad(self.now, peer(from), mad);
        std::iter::from_fn(|| self.sa.poll_transmit(self.now)).map(|sent| sent.mad).collect()
    }

    /// Asks and acknowledges; status and data of the answer.
    pub(crate) fn ask<L: Layout>(
        &mut self,
        from: u16,
        method: Method,
        attribute: u16,
        record: &L,
        mask: u64,
    ) -> (u16, Vec<u8>) {
        self.tid += 1;
        let (header, data) = self.exchange(from, &request(method, attribute, self.tid, record, mask));
        (header.mad.status.0, data)
    }

    /// Sends a request, and acknowledges what comes back: the header of its last MAD, and the data of all.
    pub(crate) fn exchange(&mut self, from: u16, mad: &[u8; 256]) -> (SaHeader, Vec<u8>) {
        let mut answer = self.send(from, mad);
        let mut data = Vec::new();
        loop {
            let mads = std::mem::take(&mut answer);
            assert!(!mads.is_empty(), "no answer");
            for mad in mads {
                let mut header = SaHeader::parse(&mad).unwrap();
                if header.mad.attribute == AttributeId::NOTICE {
                    continue;
                }
                if !header.rmpp.is_active() {
                    return (header, mad[56..].to_vec());
                }
                let is_last = header.rmpp.flags & RmppHeader::LAST != 0;
                let len = if is_last { header.rmpp.length_or_window as usize - 20 } else { 200 };
                data.extend(&mad[56..56 + len]);
                let of_data = header;
                header.mad.method = Method(header.mad.method.0 ^ 0x80);
                header.rmpp.kind = RmppType::ACK;
                header.rmpp.length_or_window = header.rmpp.segment + 64;
                let mut ack = [0; 256];
                ack[..56].copy_from_slice(&header.to_bytes());
                answer.extend(self.send(from, &ack));
                if is_last {
                    return (of_data, data);
                }
            }
        }
    }

    pub(crate) fn paths(&mut self, from: u16, record: &PathRecord, mask: u64) -> Vec<PathRecord> {
        let (status, data) = self.ask(from, TABLE, PATH, record, mask);
        assert_eq!(status, 0);
        data.chunks(64).map(|raw| PathRecord::parse(raw).unwrap()).collect()
    }

    pub(crate) fn join(
        &mut self,
        from: u16,
        hca: u64,
        state: JoinState,
        mask: u64,
        change: impl FnOnce(&mut McMemberRecord),
    ) -> (u16, McMemberRecord) {
        let mut record = McMemberRecord {
            mgid: "ff15:a01b::7".parse().unwrap(),
            port_gid: gid(hca),
            q_key: QKey(7),
            p_key: PKey::DEFAULT,
            join_state: state,
            ..McMemberRecord::default()
        };
        change(&mut record);
        let (status, data) = self.ask(from, SET, MEMBER, &record, mask);
        (status, McMemberRecord::parse(&data).unwrap())
    }

    pub(crate) fn leave(&mut self, from: u16, hca: u64, state: JoinState) -> u16 {
        let mgid = "ff15:a01b::7".parse().unwrap();
        let record =
            McMemberRecord { mgid, port_gid: gid(hca), join_state: state, ..McMemberRecord::default() };
        self.ask(from, Method::DELETE, MEMBER, &record, 0x1_0003).0
    }

    pub(crate) fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.sa.poll_timeout().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.sa.handle_timeout(self.now);
        }
        self.now = end;
    }
}

pub(crate) const CREATE: u64 = 0x1_30c7;
pub(crate) const JOIN: u64 = 0x1_0003;
pub(crate) const FULL: JoinState = JoinState::FULL_MEMBER;

pub(crate) fn between(a: u64, b: u64) -> PathRecord {
    PathRecord { sgid: gid(a), dgid: gid(b), ..PathRecord::default() }
}

#[test]
fn before_the_first_sweep_it_is_busy() {
    let mut sa = Sa::new(SaConfig::default());
    let now = Instant::now();
    sa.handle_mad(now, peer(4), &request(GET, 1, 9, &ClassPortInfo::default(), 0));
    let answer = SaHeader::parse(&sa.poll_transmit(now).unwrap().mad).unwrap();
    assert_eq!((answer.mad.status.0, answer.mad.method), (1, Method::GET_RESP));
}

#[test]
fn what_is_unknown_is_refused_and_a_wrong_key_hears_nothing() {
    let mut world = World::plain();
    for (method, attribute) in
        [(GET, 0x16), (Method::GET_TRACE_TABLE, 0x39), (GET, 0x3b), (SET, PATH), (GET, 3)]
    {
        assert_eq!(
            world.ask(4, method, attribute, &PathRecord::default(), 0).0,
            0x000c,
            "{method} {attribute:#x}"
        );
    }
    let mut mad = request(GET, PATH, 77, &between(2, 1), 0xc);
    mad[2] = 1; // class version of IBA 1.0a
    assert_eq!(SaHeader::parse(&world.send(4, &mad)[0]).unwrap().mad.status.0, 0x0004);
    mad[2] = 2;
    mad[36..44].copy_from_slice(&5u64.to_be_bytes());
    assert_eq!(world.send(4, &mad), [] as [[u8; 256]; 0]);
    assert_eq!(world.sa.counters().drop_sm_key, 1);
    mad[36..44].fill(0);
    assert_eq!(world.send(99, &mad), [] as [[u8; 256]; 0]);
    assert_eq!(world.sa.counters().drop_unknown_requester, 1);
}

#[test]
fn errors_echo_the_request_without_its_key() {
    let mut world = World::plain();
    let mut mad = request(GET, PATH, 5, &between(2, 9), 0xc);
    mad[36..44].copy_from_slice(&1u64.to_be_bytes());
    let answer = world.send(4, &mad)[0];
    let header = SaHeader::parse(&answer).unwrap();
    assert_eq!((header.mad.status.0, header.sm_key, header.attribute_offset), (0x0300, 0, 0));
    assert_eq!((&answer[56..], header.component_mask), (&mad[56..], 0xc));
    assert_eq!(header.rmpp, RmppHeader::default());
}

#[test]
fn sa_t17_no_paths_are_wanted_and_none_come() {
    let mut world = World::plain();
    let none = PathRecord { num_paths: 0, ..between(2, 1) };
    assert_eq!(world.paths(4, &none, 0x100c), []);
    let one = PathRecord { num_paths: 1, ..between(2, 1) };
    assert_eq!(world.paths(4, &one, 0x1008).len(), 6, "one to each destination");
    assert_eq!(world.ask(4, GET, PATH, &none, 0x100c).0, 0, "a Get does not look at it");
}

#[test]
fn sa_t20_half_a_service_id_is_refused() {
    let mut world = World::plain();
    for half in [1, 2] {
        assert_eq!(world.ask(4, GET, PATH, &between(2, 1), 0xc | half).0, 0x0600);
    }
    assert_eq!(world.ask(4, GET, PATH, &between(2, 1), 0xc | 3).0, 0);
}

#[test]
fn sa_t21_a_gid_and_a_lid_of_different_ports_are_refused() {
    let mut world = World::plain();
    let query = PathRecord { slid: Lid(5), ..between(2, 1) };
    assert_eq!(world.ask(4, GET, PATH, &query, 0x2c).0, 0x0200);
    assert_eq!(world.ask(4, GET, PATH, &PathRecord { slid: Lid(4), ..query }, 0x2c).0, 0);
    let query = PathRecord { dlid: Lid(5), ..between(2, 1) };
    assert_eq!(world.ask(4, GET, PATH, &query, 0x1c).0, 0x0200);
}

#[test]
fn selectors_are_compared_by_speed_and_lower_what_can_be_lowered() {
    let mut world = World::plain();
    let mtu = |mtu_selector, mtu| (PathRecord { mtu_selector, mtu, ..between(2, 1) }, 0xc | 0b11 << 16);
    let rate = |rate_selector, rate| (PathRecord { rate_selector, rate, ..between(2, 1) }, 0xc | 0b11 << 18);
    let mut found = |(query, mask): (PathRecord, u64)| {
        world.paths(4, &query, mask).first().map(|path| (path.mtu, path.rate))
    };
    use Selector::{Best, Exactly, GreaterThan, LessThan};
    assert_eq!(found(mtu(LessThan, Mtu::B2048)), Some((Mtu::B1024, Rate::GBPS_10)));
    assert_eq!(found(mtu(Exactly, Mtu::B512)), Some((Mtu::B512, Rate::GBPS_10)));
    assert_eq!(found(mtu(GreaterThan, Mtu::B2048)), None);
    assert_eq!(found(mtu(LessThan, Mtu::B256)), None);
    assert_eq!(found(mtu(Best, Mtu(0))), Some((Mtu::B2048, Rate::GBPS_10)));
    assert_eq!(found(rate(LessThan, Rate::GBPS_10)), Some((Mtu::B2048, Rate::GBPS_5)));
    assert_eq!(found(rate(Exactly, Rate::GBPS_2_5)), None);
    assert_eq!(
        found(rate(GreaterThan, Rate::GBPS_5)),
        Some((Mtu::B2048, Rate::GBPS_10)),
        "code 5 is less than code 3"
    );
    assert_eq!(found(rate(LessThan, Rate::GBPS_2_5)), None);
    let (query, mask) = mtu(Exactly, Mtu(9));
    assert_eq!(world.ask(4, GET, PATH, &query, mask).0, 0x0200);
    let (query, mask) = mtu(GreaterThan, Mtu::B4096);
    let only_selector = mask & !(1 << 17);
    assert_eq!(world.ask(4, GET, PATH, &query, only_selector).0, 0, "a selector alone is not looked at");
}

/// The seed's example as OpenSM answers it: LMC 1, partition 0x1234 with SL 3, links of 1x SDR.
#[test]
fn the_worked_example_is_answered_as_by_opensm() {
    let mut topology = subnet(TWO_SWITCHES, 1);
    for node in &mut topology.nodes {
        for port in node.ports.values_mut() {
            port.info.link_width_active = ibsa::record::LinkWidth::X1;
            port.p_keys.push(PKey(0x9234));
        }
    }
    let partitions = [(0x1234, Partition { sl: ServiceLevel::truncate(3) })].into();
    let mut config = SaConfig::default();
    config.partitions = partitions;
    let now = Instant::now();
    let (source, destination) = (gid(2), gid(3));
    let sa = service(topology, config, now);
    let lid = |gid| sa.topology().port(sa.topology().at_gid(gid).unwrap()).unwrap().info.lid;
    let (slid, dlid) = (lid(source), lid(destination));
    let mut world = World { sa, now, tid: 0 };
    let query = PathRecord {
        sgid: source,
        dgid: destination,
        num_paths: 2,
        pkey: PKey(0x1234),
        sl: ServiceLevel::truncate(3),
        mtu_selector: Selector::LessThan,
        mtu: Mtu::B2048,
        rate_selector: Selector::Exactly,
        rate: Rate::GBPS_2_5,
        ..PathRecord::default()
    };
    let paths = world.paths(slid.0, &query, 0xf_b04c);
    let lids: Vec<_> = paths.iter().map(|path| (path.dlid, path.slid, path.preference)).collect();
    assert_eq!(lids, [(dlid, slid, 0), (Lid(dlid.0 + 1), Lid(slid.0 + 1), 0)]);
    for path in paths {
        let seen =
            (path.pkey, path.sl.get(), path.mtu, path.rate, path.packet_life_time.get(), path.reversible);
        assert_eq!(seen, (PKey(0x1234), 3, Mtu::B1024, Rate::GBPS_2_5, 18, true));
    }
    let all = world.paths(slid.0, &query, 0xf_b04c & !(1 << 12));
    assert_eq!(all.iter().map(|path| path.preference).collect::<Vec<_>>(), [0, 0, 2, 2]);
}

/// Three pairs have to share a partition, and any port of the requester's device may (spec/sa.md 4.6).
#[test]
fn paths_are_visible_to_who_shares_a_partition_with_both_ends() {
    let mut topology = subnet(TWO_SWITCHES, 0);
    for (hca, keys) in [(1, vec![0x8001]), (2, vec![0x8001, 0x8002]), (3, vec![0x8002]), (4, vec![0x0001])] {
        let at = topology.at_gid(gid(hca)).unwrap();
        topology.port_mut(at).unwrap().p_keys = keys.into_iter().map(PKey).collect();
    }
    let mut world = World::new(topology, SaConfig::default());
    let status = |world: &mut World, from, a, b| world.ask(from, GET, PATH, &between(a, b), 0xc).0;
    assert_eq!(status(&mut world, 4, 2, 1), 0);
    assert_eq!(status(&mut world, 5, 2, 1), 0x0300, "Hca3 shares no partition with Hca1");
    assert_eq!(status(&mut world, 4, 1, 3), 0x0300, "the ends share none");
    assert_eq!(status(&mut world, 1, 1, 4), 0);
    let limited = PathRecord { pkey: PKey(0x0001), ..between(2, 4) };
    let path = world.paths(4, &limited, 0x200c);
    assert_eq!(path[0].pkey, PKey(0x0001), "as it was asked for");
}

#[test]
fn sa_t61_a_group_ends_with_its_last_full_member() {
    let mut world = World::plain();
    let both = FULL | JoinState::SEND_ONLY_FULL_MEMBER;
    assert_eq!(world.join(4, 2, both, CREATE, |_| ()).0, 0);
    assert_eq!(world.leave(4, 2, FULL), 0, "the other bit is left");
    let (_, data) = world.ask(4, TABLE, MEMBER, &McMemberRecord::default(), 0);
    assert_eq!(data.len(), 56);
    assert_eq!(world.leave(4, 2, FULL), 0x0200, "it is not held any more");
    assert_eq!(world.join(5, 3, JoinState::NON_MEMBER, JOIN, |_| ()).0, 0);
    assert_eq!(world.leave(4, 2, JoinState::SEND_ONLY_FULL_MEMBER), 0);
    let (_, data) = world.ask(4, TABLE, MEMBER, &McMemberRecord::default(), 0);
    assert_eq!(data, [], "a member that does not count keeps nothing alive");
    assert_eq!(world.join(5, 3, JoinState::SEND_ONLY_NON_MEMBER, CREATE, |_| ()).0, 0x0200);
}

#[test]
fn sa_t62_a_join_that_is_refused_changes_nothing() {
    let mut world = World::plain();
    assert_eq!(world.join(4, 2, FULL, CREATE, |_| ()).0, 0);
    assert_eq!(world.join(4, 2, JoinState::NON_MEMBER, CREATE, |record| record.q_key = QKey(8)).0, 0x0200);
    assert_eq!(world.join(5, 3, FULL, CREATE, |record| record.sl = ServiceLevel::truncate(1)).0, 0x0200);
    let (status, record) = world.join(4, 2, FULL, JOIN, |_| ());
    assert_eq!((status, record.join_state, record.q_key), (0, FULL, QKey(7)));
    assert_eq!(world.leave(4, 2, FULL), 0);
    assert_eq!(world.leave(5, 3, FULL), 0x0200);
}

#[test]
fn sa_t63_every_component_of_the_mask_is_compared() {
    let mut world = World::plain();
    assert_eq!(world.join(4, 2, FULL, CREATE, |_| ()).0, 0);
    type Change = fn(&mut McMemberRecord);
    let changes: [(u64, Change); 6] = [
        (1 << 2, |record| record.q_key = QKey(0)),
        (1 << 6, |record| record.traffic_class = 1),
        (1 << 7, |record| record.p_key = PKey(0x8001)),
        (1 << 12, |record| record.sl = ServiceLevel::truncate(2)),
        (0b11 << 4, |record| (record.mtu_selector, record.mtu) = (Selector::GreaterThan, Mtu::B2048)),
        (0b11 << 8, |record| (record.rate_selector, record.rate) = (Selector::Exactly, Rate::GBPS_40)),
    ];
    for (bits, change) in changes {
        assert_eq!(world.join(5, 3, FULL, JOIN | bits, change).0, 0x0200, "{bits:#x}");
        assert_eq!(world.join(5, 3, FULL, JOIN, change).0, 0, "without its bit it does not count");
    }
    assert_eq!(world.join(5, 3, FULL, 0x1_0001, |_| ()).0, 0x0600);
    let bad = Gid::from_parts(0xfec0 << 48, Guid(0x10_0001));
    assert_eq!(world.join(4, 2, FULL, JOIN, |record| record.port_gid = bad).0, 0x0500);
}

#[test]
fn sa_t64_the_default_prefix_is_taken_in_every_subnet() {
    let mut topology = subnet(TWO_SWITCHES, 0);
    topology.prefix = 0xfd77 << 48;
    let mut config = SaConfig::default();
    config.prefix = 0xfd77 << 48;
    let mut world = World::new(topology, config);
    let (status, record) = world.join(4, 2, FULL, CREATE, |_| ());
    assert_eq!((status, record.port_gid.prefix()), (0, 0xfd77 << 48));
    assert_eq!(world.ask(4, GET, PATH, &between(2, 1), 0xc).0, 0);
}

pub(crate) fn registration(lease: u32) -> ServiceRecord {
    ServiceRecord {
        service_id: ServiceId(7),
        service_gid: gid(2),
        service_p_key: PKey::DEFAULT,
        service_lease: lease,
        ..ServiceRecord::default()
    }
}

#[test]
fn leases_tell_what_is_left_and_end() {
    let mut world = World::plain();
    assert_eq!(world.ask(4, SET, SERVICE, &registration(10), 0x17).0, 0);
    world.wait(Duration::from_secs(4));
    let (_, data) = world.ask(5, GET, SERVICE, &registration(0), 1);
    assert_eq!(ServiceRecord::parse(&data).unwrap().service_lease, 6);
    assert_eq!(world.ask(4, SET, SERVICE, &registration(10), 0x17).0, 0, "renewed");
    world.wait(Duration::from_secs(9));
    assert_eq!(world.ask(5, GET, SERVICE, &registration(0), 1).0, 0);
    world.wait(Duration::from_secs(1));
    assert_eq!(world.ask(5, GET, SERVICE, &registration(0), 1).0, 0x0300);
    assert_eq!(world.sa.counters().leases_expired, 1);
    assert_eq!(world.ask(4, SET, SERVICE, &registration(10), 0x15).0, 0x0200, "without a GID");
    assert_eq!(world.ask(4, Method::DELETE, SERVICE, &registration(0), 7).0, 0x0300);
}

/// What a port that is gone has left behind goes with it; subscribers hear of it.
#[test]
fn sa_t75_what_a_lost_port_leaves_behind_is_cleaned_up() {
    let mut world = World::plain();
    assert_eq!(world.join(4, 2, FULL, CREATE, |_| ()).0, 0);
    assert_eq!(world.ask(4, SET, SERVICE, &registration(u32::MAX), 0x17).0, 0);
    for lid in [4, 5] {
        let all = InformInfo::trap(InformInfo::ANY);
        assert_eq!(world.ask(lid, SET, 3, &all, 0).0, 0);
    }
    let mut topology = subnet(TWO_SWITCHES, 0);
    let gone = topology.at_gid(gid(2)).unwrap();
    let peer_of = topology.port(gone).unwrap().peer.unwrap();
    for at in [gone, peer_of] {
        topology.port_mut(at).unwrap().peer = None;
    }
    world.sa.set_topology(world.now, topology);
    let mut reports = Vec::new();
    while let Some(sent) = world.sa.poll_transmit(world.now) {
        assert_eq!(sent.peer.lid, Lid(5));
        reports.push(Notice::parse(&sent.mad[56..]).unwrap().details());
    }
    let mgid = "ff15:a01b::7".parse().unwrap();
    assert_eq!(reports, [NoticeDetails::GroupDeleted(mgid), NoticeDetails::GidOut(gid(2))]);
    let (_, groups) = world.ask(5, TABLE, MEMBER, &McMemberRecord::default(), 0);
    let (_, services) = world.ask(5, TABLE, SERVICE, &ServiceRecord::default(), 0);
    assert_eq!((groups, services), (vec![], vec![]));
}

#[test]
fn reports_are_repeated_three_times_and_the_subscription_stays() {
    let mut world = World::plain();
    let wanted = InformInfo::trap(66);
    assert_eq!(world.ask(5, SET, 3, &wanted, 0).0, 0);
    let sent = |world: &mut World| {
        let all = std::iter::from_fn(|| world.sa.poll_transmit(world.now)).map(|sent| sent.mad);
        all.filter(|mad| SaHeader::parse(mad).unwrap().mad.method == Method::REPORT).collect::<Vec<_>>()
    };
    let mad = request(
        SET,
        MEMBER,
        50,
        &McMemberRecord {
            join_state: FULL,
            port_gid: gid(2),
            p_key: PKey::DEFAULT,
            ..McMemberRecord::default()
        },
        CREATE,
    );
    world.sa.handle_mad(world.now, peer(4), &mad);
    let first = sent(&mut world);
    assert_eq!(first.len(), 1);
    world.wait(Duration::from_secs(2));
    let again = sent(&mut world);
    assert_eq!(again, vec![first[0]; 3]);
    assert_eq!((world.sa.counters().reports_given_up, world.sa.poll_timeout()), (1, None));
    // The next one is answered.
    world.sa.handle_mad(world.now, peer(4), &mad);
    let mut answer = sent(&mut world)[0];
    answer[3] = 0x86;
    world.sa.handle_mad(world.now, peer(5), &answer);
    assert_eq!(world.sa.poll_timeout(), None);
    // The end of a subscription names the QP it was made from.
    let end = InformInfo { subscribe: 0, ..wanted };
    assert_eq!(world.ask(5, SET, 3, &end, 0).0, 0x0200);
    assert_eq!(world.ask(5, SET, 3, &InformInfo { qpn: Qpn::GSI, ..end }, 0).0, 0);
}

#[test]
fn modes_for_tests_of_clients() {
    let mut world = World::plain();
    world.sa.set_mode(SaMode::Busy);
    assert_eq!(world.ask(4, GET, PATH, &between(2, 1), 0xc).0, 0x0001);
    world.sa.set_mode(SaMode::Silent);
    assert_eq!(world.send(4, &request(GET, PATH, 9, &between(2, 1), 0xc)), [] as [[u8; 256]; 0]);
    world.sa.set_mode(SaMode::Slow(Duration::from_secs(3)));
    assert_eq!(world.send(4, &request(GET, PATH, 9, &between(2, 1), 0xc)), [] as [[u8; 256]; 0]);
    world.wait(Duration::from_secs(3));
    assert!(world.sa.poll_transmit(world.now).is_some());
}

/// One segment before the first ACK, then what the window lets through; given up in the end.
#[test]
fn a_table_waits_for_its_acks() {
    let mut world = World::plain();
    let query = request(TABLE, 0x11, 3, &PathRecord::default(), 0);
    assert_eq!(world.send(4, &query).len(), 1);
    assert_eq!(world.send(4, &query).len(), 0, "the request again changes nothing");
    let mut repeated = 0;
    while let Some(due) = world.sa.poll_timeout() {
        world.now = due;
        world.sa.handle_timeout(due);
        repeated += std::iter::from_fn(|| world.sa.poll_transmit(due)).count();
    }
    assert_eq!(repeated, 7 + 1, "copies, and an ABORT");
    assert_eq!(world.sa.counters().transfers_failed, 1);
}

#[test]
fn transfers_of_one_requester_are_bounded() {
    let mut config = SaConfig::default();
    config.limits.transfers_each = 2;
    let mut world = World::new(subnet(TWO_SWITCHES, 0), config);
    let statuses: Vec<u16> = (1..=3)
        .map(|tid| {
            SaHeader::parse(&world.send(4, &request(TABLE, 0x11, tid, &PathRecord::default(), 0))[0]).unwrap()
        })
        .map(|header| header.mad.status.0)
        .collect();
    assert_eq!(statuses, [0, 0, 1]);
}
