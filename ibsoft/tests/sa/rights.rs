//! Who may do what, and who sees it (spec/sa.md 4.6, 5.2 and 6.2).

use ibsa::mad::SaHeader;
use ibsa::record::{
    GuidInfoRecord, InformInfo, JoinState, Layout, LinkWidth, McMemberRecord, MultiPathRecord, Notice,
    NoticeType, PathRecord, PortInfoRecord, ServiceRecord, SmInfoRecord,
};
use ibsoft::manager::{Port, SaConfig};
use ibwire::mad::Method;
use ibwire::{Gid, Guid, Lid, Mtu, PKey, ServiceLevel};

use crate::net::{TWO_SWITCHES, request, subnet};
use crate::rules::{
    CREATE, FULL, GET, JOIN, MEMBER, PATH, SERVICE, SET, TABLE, World, between, gid, registration,
};

/// A subnet whose Hca3, at LID 5, is another one.
fn changed(change: impl FnOnce(&mut Port)) -> World {
    let mut topology = subnet(TWO_SWITCHES, 0);
    let at = topology.at_gid(gid(3)).unwrap();
    change(topology.port_mut(at).unwrap());
    World::new(topology, SaConfig::default())
}

/// Hca3 in a partition of its own.
fn alone() -> World {
    changed(|port| port.p_keys = vec![PKey(0x8005)])
}

/// Asks with the SM_Key for one record.
fn trusted<L: Layout>(
    world: &mut World,
    from: u16,
    method: Method,
    attribute: u16,
    record: &L,
    mask: u64,
) -> (u16, Vec<u8>) {
    let mut mad = request(method, attribute, 0x7000, record, mask);
    mad[43] = 1;
    let answer = world.send(from, &mad)[0];
    (SaHeader::parse(&answer).unwrap().mad.status.0, answer[56..].to_vec())
}

#[test]
fn who_joined_for_another_port_may_leave_for_it() {
    let mut world = World::plain();
    let (status, record) = world.join(5, 2, FULL, CREATE, |_| ());
    assert_eq!((status, record.port_gid, record.proxy_join.0), (0, gid(2), true));
    assert_eq!(world.leave(6, 2, FULL), 0x0200, "one that has no part in it");
    assert_eq!(world.leave(5, 2, FULL), 0);
    assert_eq!(world.join(5, 2, FULL, CREATE, |_| ()).0, 0);
    assert_eq!(world.leave(4, 2, FULL), 0, "the port itself");
}

#[test]
fn nobody_joins_for_a_port_of_another_partition() {
    let mut world = alone();
    assert_eq!(world.join(4, 3, FULL, CREATE, |record| record.p_key = PKey(0x8005)).0, 0x0200);
    assert_eq!(world.join(5, 3, FULL, CREATE, |record| record.p_key = PKey(0x8005)).0, 0);
}

#[test]
fn a_join_in_no_way_is_none() {
    let mut world = World::plain();
    assert_eq!(world.join(4, 2, FULL, CREATE, |_| ()).0, 0);
    assert_eq!(world.join(5, 3, JoinState::empty(), JOIN, |_| ()).0, 0x0200);
}

#[test]
fn empty_places_of_a_table_are_no_partition() {
    let mut world = changed(|port| port.p_keys = vec![PKey::DEFAULT, PKey(0)]);
    for p_key in [0, 0x8000] {
        assert_eq!(world.join(5, 3, FULL, CREATE, |record| record.p_key = PKey(p_key)).0, 0x0200);
    }
}

#[test]
fn a_port_that_is_too_slow_or_too_narrow_does_not_fit_a_group() {
    let changes: [fn(&mut Port); 2] =
        [|port| port.info.neighbor_mtu = Mtu::B1024, |port| port.info.link_width_active = LinkWidth::X1];
    for change in changes {
        let mut world = changed(change);
        assert_eq!(world.join(4, 2, FULL, CREATE, |_| ()).0, 0);
        assert_eq!(world.join(5, 3, FULL, JOIN, |_| ()).0, 0x0200);
        assert_eq!(world.join(6, 4, FULL, JOIN, |_| ()).0, 0);
    }
}

/// Groups, services, the manager and paths are for those who share a partition with them.
#[test]
fn other_partitions_see_nothing() {
    let mut world = alone();
    assert_eq!(world.join(4, 2, FULL, CREATE, |_| ()).0, 0);
    assert_eq!(world.ask(4, SET, SERVICE, &registration(60), 0x17).0, 0);
    for (lid, sees) in [(5, false), (6, true)] {
        let groups = world.ask(lid, TABLE, MEMBER, &McMemberRecord::default(), 0).1;
        let services = world.ask(lid, TABLE, SERVICE, &ServiceRecord::default(), 0).1;
        let managers = world.ask(lid, TABLE, 0x18, &SmInfoRecord::default(), 0).1;
        assert_eq!([groups, services, managers].map(|data| !data.is_empty()), [sees; 3], "{lid}");
    }
}

#[test]
fn a_path_to_a_group_begins_at_a_member() {
    let mut world = World::plain();
    assert_eq!(world.join(4, 2, FULL, CREATE, |_| ()).0, 0);
    let to_group = |hca| PathRecord { dgid: "ff15:a01b::7".parse().unwrap(), ..between(hca, 1) };
    assert_eq!(world.ask(4, GET, PATH, &to_group(2), 0xc).0, 0);
    assert_eq!(world.ask(4, GET, PATH, &to_group(3), 0xc).0, 0x0300);
}

#[test]
fn no_path_has_a_service_level_without_a_lane() {
    let mut world = changed(|port| port.vls[3] = 15);
    let with_sl = |sl| PathRecord { sl: ServiceLevel::truncate(sl), ..between(2, 3) };
    assert_eq!([2, 3].map(|sl| world.ask(4, GET, PATH, &with_sl(sl), 0x800c).0), [0, 0x0300]);
}

#[test]
fn a_report_is_answered_by_its_subscriber_alone() {
    let mut world = World::plain();
    assert_eq!(world.ask(5, SET, 3, &InformInfo::trap(InformInfo::ANY), 0).0, 0);
    world.sa.report(world.now, &Notice { is_generic: true, ..Notice::default() }, gid(4));
    let mut answer = world.sa.poll_transmit(world.now).unwrap().mad;
    answer[3] = 0x86;
    world.send(6, &answer);
    assert!(world.sa.poll_timeout().is_some(), "it is still waited for");
    assert_eq!(world.sa.counters().drop_response, 1);
    world.send(5, &answer);
    assert_eq!(world.sa.poll_timeout(), None);
}

#[test]
fn a_subscription_is_for_what_it_names() {
    let told = |info: &InformInfo, issuer_lid, notice_type| {
        let mut world = World::plain();
        assert_eq!(world.ask(4, SET, 3, info, 0).0, 0);
        let notice =
            Notice { is_generic: true, trap_or_device: 128, notice_type, issuer_lid, ..Notice::default() };
        world.sa.report(world.now, &notice, Gid::UNSPECIFIED);
        world.sa.poll_transmit(world.now).is_some()
    };
    let all = InformInfo::trap(InformInfo::ANY);
    let range = InformInfo { lid_range_begin: Lid(5), lid_range_end: Lid(6), ..all.clone() };
    assert_eq!(
        [4, 5, 6, 7].map(|lid| told(&range, Lid(lid), NoticeType::URGENT)),
        [false, true, true, false]
    );
    let urgent = InformInfo { notice_type: NoticeType::URGENT.0.into(), ..all.clone() };
    assert_eq!([NoticeType::URGENT, NoticeType::SECURITY].map(|of| told(&urgent, Lid(5), of)), [true, false]);
    let neither = InformInfo { subscribe: 2, ..all };
    assert_eq!(World::plain().ask(4, SET, 3, &neither, 0).0, 0x0200);
}

#[test]
fn alias_guids_have_their_place_and_their_partition() {
    let set = |world: &mut World, from, block_num| {
        let mut record = GuidInfoRecord { lid: Lid(5), block_num, ..GuidInfoRecord::default() };
        record.guids[1] = Guid(0x77);
        world.ask(from, SET, 0x30, &record, 0b11 | 1 << 5).0
    };
    let mut world = World::plain();
    assert_eq!(set(&mut world, 4, 4), 0x0300, "32 GUIDs are four blocks");
    assert_eq!(set(&mut world, 4, 3), 0);
    let mut world = alone();
    assert_eq!(set(&mut world, 4, 0), 0x0300);
    assert_eq!(set(&mut world, 5, 0), 0);
}

#[test]
fn the_m_key_is_for_the_trusted() {
    let mut world = changed(|port| port.info.m_key = 9);
    let wanted = PortInfoRecord { end_port_lid: Lid(5), port_num: 1, ..PortInfoRecord::default() };
    let m_key = |data: &[u8]| PortInfoRecord::parse(data).unwrap().port_info.m_key;
    let (status, data) = world.ask(4, GET, 0x12, &wanted, 0b11);
    assert_eq!((status, m_key(&data)), (0, 0));
    let (status, data) = trusted(&mut world, 4, GET, 0x12, &wanted, 0b11);
    assert_eq!((status, m_key(&data)), (0, 9));
}

#[test]
fn a_query_for_several_paths_says_how_many_gids_it_has() {
    let mut world = World::plain();
    let mut ask = |mask, counts: (u8, u8)| {
        let query =
            MultiPathRecord { sgid_count: counts.0, dgid_count: counts.1, ..MultiPathRecord::default() };
        let mut mad = request(Method::GET_MULTI, 0x3a, 5, &query, mask);
        mad[80..96].copy_from_slice(&gid(2).0);
        mad[96..112].copy_from_slice(&gid(3).0);
        (mad[24], mad[25], mad[26], mad[31], mad[35]) = (1, 1, 7, 1, 20 + 24 + 32);
        world.tid += 1;
        mad[15] = world.tid as u8;
        let answers = world.send(4, &mad);
        SaHeader::parse(answers.last().unwrap()).unwrap().mad.status.0
    };
    const COUNTS: u64 = 0b11 << 19;
    assert_eq!(ask(COUNTS, (1, 1)), 0);
    assert_eq!(ask(1 << 19, (1, 1)), 0x0600);
    assert_eq!(ask(COUNTS, (1, 2)), 0x0200, "two are there");
    assert_eq!(ask(COUNTS, (0, 2)), 0x0200);
}
