//! What peers can make the service keep, and what ends with them.

use std::time::Duration;

use ibsa::mad::{RmppHeader, RmppStatus, RmppType, SaHeader};
use ibsa::record::{GuidInfoRecord, InformInfo, McMemberRecord, Notice, NoticeType, ServiceRecord};
use ibsoft::manager::{SaConfig, SaMode, Topology};
use ibwire::mad::{AttributeId, MadHeader, Method, MgmtClass};
use ibwire::{Gid, Guid, Lid, Mtu, PKey, PacketLifeTime, QKey, Selector, ServiceId, TransactionId};

use crate::net::{TWO_SWITCHES, request, subnet};
use crate::rules::{
    CREATE, FULL, GET, JOIN, MEMBER, PATH, SERVICE, SET, TABLE, World, between, gid, registration,
};

const GUIDS: u16 = 0x30;
const ALIAS: Guid = Guid(0x77);

/// The subnet without Hca2.
fn without_hca_2() -> Topology {
    let mut topology = subnet(TWO_SWITCHES, 0);
    let gone = topology.at_gid(gid(2)).unwrap();
    let peer_of = topology.port(gone).unwrap().peer.unwrap();
    for at in [gone, peer_of] {
        topology.port_mut(at).unwrap().peer = None;
    }
    topology
}

/// Gives Hca2 an alias GUID.
fn set_alias(world: &mut World, guid: Guid) -> u16 {
    let mut record = GuidInfoRecord { lid: Lid(4), ..GuidInfoRecord::default() };
    record.guids[1] = guid;
    world.ask(4, SET, GUIDS, &record, 0b11 | 1 << 5).0
}

#[test]
fn sa_t75_what_a_lost_port_did_by_other_names_is_cleaned_up_too() {
    let mut config = SaConfig::default();
    config.prefix = 0xfd77 << 48;
    let mut topology = subnet(TWO_SWITCHES, 0);
    topology.prefix = config.prefix;
    let mut world = World::new(topology, config);
    assert_eq!(set_alias(&mut world, ALIAS), 0);
    let alias = Gid::from_parts(0xfd77 << 48, ALIAS);
    assert_eq!(world.join(4, 2, FULL, CREATE, |record| record.port_gid = alias).0, 0);
    let by_alias = ServiceRecord { service_gid: alias, ..registration(u32::MAX) };
    // One by its alias, one by the default prefix.
    for record in [by_alias, registration(u32::MAX)] {
        assert_eq!(world.ask(4, SET, SERVICE, &record, 0x17).0, 0);
    }
    let mut topology = without_hca_2();
    topology.prefix = 0xfd77 << 48;
    world.sa.set_topology(world.now, topology);
    let (_, groups) = world.ask(5, TABLE, MEMBER, &McMemberRecord::default(), 0);
    let (_, services) = world.ask(5, TABLE, SERVICE, &ServiceRecord::default(), 0);
    assert_eq!((groups, services), (vec![], vec![]));
}

#[test]
fn an_alias_that_is_in_a_group_is_not_replaced() {
    let mut world = World::plain();
    assert_eq!(set_alias(&mut world, ALIAS), 0);
    assert_eq!(world.join(4, 2, FULL, CREATE, |record| record.port_gid = Gid::link_local(ALIAS)).0, 0);
    assert_eq!(set_alias(&mut world, Guid(0x78)), 0x0700);
    assert_eq!(set_alias(&mut world, ALIAS), 0, "it stays as it is");
    let other = McMemberRecord {
        mgid: "ff15:a01b::7".parse().unwrap(),
        port_gid: Gid::link_local(ALIAS),
        join_state: FULL,
        ..McMemberRecord::default()
    };
    assert_eq!(world.ask(4, Method::DELETE, MEMBER, &other, JOIN).0, 0);
    assert_eq!(set_alias(&mut world, Guid(0x78)), 0);
}

/// A trap about a wrong key has that key in it.
#[test]
fn traps_about_keys_are_for_the_trusted_alone() {
    let mut world = World::plain();
    let trap = |trap_or_device| Notice {
        is_generic: true,
        notice_type: NoticeType::SECURITY,
        producer_or_vendor: 1,
        trap_or_device,
        issuer_lid: Lid(6),
        ..Notice::default()
    };
    let all = InformInfo::trap(InformInfo::ANY);
    assert_eq!(world.ask(4, SET, 3, &all, 0).0, 0);
    let mut trusted = request(SET, 3, 90, &all, 0);
    trusted[43] = 1; // the SM_Key
    assert_eq!(SaHeader::parse(&world.send(5, &trusted)[0]).unwrap().mad.status.0, 0);
    let mut told = |number| {
        world.sa.report(world.now, &trap(number), gid(4));
        std::iter::from_fn(|| world.sa.poll_transmit(world.now))
            .map(|sent| sent.peer.lid.0)
            .collect::<Vec<_>>()
    };
    assert_eq!(told(255), [4, 5]);
    assert_eq!([256, 257, 258, 259].map(&mut told), [5; 4].map(|lid| vec![lid]));
    assert_eq!(told(260), [4, 5]);
}

/// A segment of a GetMulti from Hca2 or Hca3.
fn segment(tid: u64, kind: RmppType, flags: u8, status: RmppStatus, number: u32) -> [u8; 256] {
    let mad = MadHeader::new(MgmtClass::SA, 2, Method::GET_MULTI, AttributeId(0x3a), TransactionId(tid));
    let rmpp = RmppHeader {
        version: 1,
        kind,
        flags: RmppHeader::ACTIVE | flags,
        status,
        segment: number,
        ..RmppHeader::default()
    };
    let mut out = [0; 256];
    out[..56].copy_from_slice(&SaHeader { rmpp, ..SaHeader::new(mad) }.to_bytes());
    out
}

fn data(tid: u64, number: u32) -> [u8; 256] {
    let flags = if number == 1 { RmppHeader::FIRST } else { 0 };
    segment(tid, RmppType::DATA, flags, RmppStatus::OK, number)
}

fn kinds(mads: &[[u8; 256]]) -> Vec<RmppType> {
    mads.iter().map(|mad| SaHeader::parse(mad).unwrap().rmpp.kind).collect()
}

/// 255 GIDs of each end are 41 segments.
#[test]
fn a_query_is_no_longer_than_it_can_be() {
    let mut world = World::plain();
    assert_eq!(kinds(&world.send(4, &data(1, 1))), [RmppType::ACK]);
    for number in 2..=41 {
        assert_eq!(kinds(&world.send(4, &data(1, number))), [], "{number}");
    }
    assert_eq!(kinds(&world.send(4, &data(1, 42))), [RmppType::ABORT]);
    assert_eq!((world.sa.counters().transfers_failed, world.sa.poll_timeout()), (1, None));
}

#[test]
fn sa_t45_a_query_that_was_broken_off_is_forgotten() {
    let mut world = World::plain();
    for (kind, status) in
        [(RmppType::ABORT, RmppStatus::TOO_MANY_RETRIES), (RmppType::STOP, RmppStatus::RESOURCES_EXHAUSTED)]
    {
        assert_eq!(kinds(&world.send(4, &data(1, 1))), [RmppType::ACK]);
        assert!(world.sa.poll_timeout().is_some());
        assert_eq!(kinds(&world.send(4, &segment(1, kind, 0, status, 0))), []);
        assert_eq!(world.sa.poll_timeout(), None, "nothing is kept");
    }
    assert_eq!(world.sa.counters().transfers_failed, 2);
    assert_eq!(world.sa.counters().drop_unknown_transfer, 0);
}

#[test]
fn queries_of_one_requester_are_bounded() {
    let mut config = SaConfig::default();
    config.limits.transfers_each = 2;
    let mut world = World::new(subnet(TWO_SWITCHES, 0), config);
    let status = |world: &mut World, from, tid| {
        SaHeader::parse(&world.send(from, &data(tid, 1))[0]).unwrap().mad.status.0
    };
    assert_eq!([1, 2, 3].map(|tid| status(&mut world, 4, tid)), [0, 0, 1]);
    assert_eq!(status(&mut world, 5, 3), 0, "another one's");
    assert_eq!(status(&mut world, 4, 2), 0, "one that has begun");
}

#[test]
fn the_tables_under_way_are_bounded_together() {
    // The table of nodes is 672 bytes: 6 records of 112.
    for (bytes, statuses) in [(671, [0x0100, 0x0100]), (672, [0, 1]), (1343, [0, 1]), (1344, [0, 0])] {
        let mut config = SaConfig::default();
        config.limits.bytes = bytes;
        let mut world = World::new(subnet(TWO_SWITCHES, 0), config);
        let mut ask = |from| {
            let table = request(TABLE, 0x11, 1, &ServiceRecord::default(), 0);
            SaHeader::parse(&world.send(from, &table)[0]).unwrap().mad.status.0
        };
        assert_eq!([4, 5].map(&mut ask), statuses, "{bytes} bytes");
    }
}

#[test]
fn what_is_kept_is_bounded_by_its_number() {
    let mut config = SaConfig::default();
    (config.limits.groups, config.limits.services, config.limits.subscriptions) = (1, 1, 1);
    let mut world = World::new(subnet(TWO_SWITCHES, 0), config);
    let mut statuses = Vec::new();
    for number in [7, 8, 7] {
        let mgid: Gid = format!("ff15:a01b::{number}").parse().unwrap();
        statuses.push(world.join(4, 2, FULL, CREATE, |record| record.mgid = mgid).0);
        let service = ServiceRecord { service_id: ServiceId(number), ..registration(60) };
        statuses.push(world.ask(4, SET, SERVICE, &service, 0x17).0);
        statuses.push(world.ask(4, SET, 3, &InformInfo::trap(number as u16), 0).0);
    }
    assert_eq!(statuses, [0, 0, 0, 0x0100, 0x0100, 0x0100, 0, 0, 0], "the second of each");
    assert_eq!(world.sa.counters().no_resources, 3);
}

#[test]
fn what_waits_is_bounded_by_its_number() {
    let mut config = SaConfig::default();
    (config.limits.reports, config.limits.answers) = (1, 2);
    let mut world = World::new(subnet(TWO_SWITCHES, 0), config);
    for lid in [4, 5] {
        assert_eq!(world.ask(lid, SET, 3, &InformInfo::trap(InformInfo::ANY), 0).0, 0);
    }
    world.sa.report(world.now, &Notice { is_generic: true, ..Notice::default() }, gid(4));
    assert_eq!(std::iter::from_fn(|| world.sa.poll_transmit(world.now)).count(), 1);
    assert_eq!(world.sa.counters().drop_reports, 1);
    world.sa.set_mode(SaMode::Slow(Duration::from_secs(3600)));
    for tid in 0..3 {
        world.send(4, &request(GET, PATH, tid, &between(2, 1), 0xc));
    }
    assert_eq!(world.sa.counters().drop_overrun, 1);
}

#[test]
fn codes_that_are_none_make_no_group() {
    let mut world = World::plain();
    let mtu = CREATE | 0b11 << 4;
    for (how, code) in [
        (Selector::Exactly, 0),
        (Selector::Exactly, 6),
        (Selector::LessThan, 0x3f),
        (Selector::LessThan, 0),
        (Selector::GreaterThan, 0),
    ] {
        let (status, _) = world.join(4, 2, FULL, mtu, |record| {
            (record.mtu_selector, record.mtu) = (how, Mtu(code));
        });
        assert_eq!(status, 0x0200, "{how:?} {code}");
    }
    let (status, record) = world.join(4, 2, FULL, mtu, |record| {
        (record.mtu_selector, record.mtu) = (Selector::Best, Mtu(0));
    });
    assert_eq!((status, record.mtu), (0, Mtu::B2048));
}

#[test]
fn a_group_has_a_lifetime_as_it_was_asked_for() {
    for (how, asked, is) in [
        (Selector::Exactly, 18, 18),
        (Selector::GreaterThan, 18, 19),
        (Selector::LessThan, 18, 17),
        (Selector::Best, 18, 0),
    ] {
        let mut world = World::plain();
        let (status, record) = world.join(4, 2, FULL, CREATE | 0b11 << 10, |record| {
            record.packet_life_time_selector = how;
            record.packet_life_time = PacketLifeTime::truncate(asked);
        });
        assert_eq!((status, record.packet_life_time.get()), (0, is), "{how:?}");
    }
    let mut world = World::plain();
    for (how, asked) in [(Selector::GreaterThan, 63), (Selector::LessThan, 0)] {
        let (status, _) = world.join(4, 2, FULL, CREATE | 0b11 << 10, |record| {
            record.packet_life_time_selector = how;
            record.packet_life_time = PacketLifeTime::truncate(asked);
        });
        assert_eq!(status, 0x0200, "{how:?} {asked}");
    }
}

#[test]
fn a_port_of_another_subnet_leaves_nothing() {
    let mut world = World::plain();
    assert_eq!(world.join(4, 2, FULL, CREATE, |_| ()).0, 0);
    let foreign = McMemberRecord {
        mgid: "ff15:a01b::7".parse().unwrap(),
        port_gid: Gid::from_parts(0xfd77 << 48, Guid(gid(2).interface_id())),
        join_state: FULL,
        q_key: QKey(0),
        p_key: PKey(0),
        ..McMemberRecord::default()
    };
    assert_eq!(world.ask(4, Method::DELETE, MEMBER, &foreign, JOIN).0, 0x0500);
    assert_eq!(world.leave(4, 2, FULL), 0);
}

/// Subscribers know copies of a report by its number.
#[test]
fn a_service_that_starts_anew_does_not_number_its_reports_as_before() {
    let mut world = World::plain();
    let report = |world: &mut World| {
        assert_eq!(world.ask(5, SET, 3, &InformInfo::trap(InformInfo::ANY), 0).0, 0);
        world.sa.report(world.now, &Notice { is_generic: true, ..Notice::default() }, gid(4));
        SaHeader::parse(&world.sa.poll_transmit(world.now).unwrap().mad).unwrap().mad.tid
    };
    let first = report(&mut world);
    world.sa.restart();
    world.sa.set_topology(world.now, subnet(TWO_SWITCHES, 0));
    assert_ne!(report(&mut world), first);
}

#[test]
fn answers_may_be_held_back_for_ever() {
    let mut world = World::plain();
    world.sa.set_mode(SaMode::Slow(Duration::MAX));
    assert_eq!(world.send(4, &request(GET, PATH, 9, &between(2, 1), 0xc)), [] as [[u8; 256]; 0]);
    world.wait(Duration::from_secs(3600));
    assert_eq!(world.sa.poll_transmit(world.now), None);
    // Those behind do not wait for them.
    world.sa.set_mode(SaMode::Slow(Duration::from_secs(1)));
    assert_eq!(world.send(4, &request(GET, PATH, 10, &between(2, 1), 0xc)), [] as [[u8; 256]; 0]);
    world.wait(Duration::from_secs(1));
    let answer = world.sa.poll_transmit(world.now).unwrap();
    assert_eq!(SaHeader::parse(&answer.mad).unwrap().mad.tid.0, 10);
}
