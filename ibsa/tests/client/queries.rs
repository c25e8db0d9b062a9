//! What a query says, and what is made of answers that say too much.

use ibsa::mad::attribute_offset;
use ibsa::record::{
    InformInfo, Layout, NodeInfo, NodeRecord, PathRecord, PortInfoRecord, Record, SmInfoRecord, Template,
};
use ibsa::{QueryError, Trap};
use ibwire::mad::Method;
use ibwire::{Gid, Guid, Lid, PKey, ServiceLevel};

use crate::fake::{Fake, HERE, Seen};
use crate::settle;

const THERE: Gid = Gid::link_local(Guid(0xa));
const SLID: u64 = 1 << 5;
const NUM_PATHS: u64 = 1 << 12;
const P_KEY: u64 = 1 << 13;

fn last(fake: &Fake) -> Seen {
    fake.with(|w| w.log.last().cloned()).expect("a request")
}

fn asked(fake: &Fake) -> PathRecord {
    <PathRecord as Layout>::parse(&last(fake).data).unwrap()
}

fn path(p_key: u16) -> PathRecord {
    PathRecord { dgid: THERE, sgid: HERE, pkey: PKey(p_key), reversible: true, ..PathRecord::default() }
}

#[tokio::test(start_paused = true)]
async fn sa_t17_no_paths_at_all_are_not_asked_for() {
    let fake = Fake::new();
    let error = fake.client().path(THERE).count(0).all().await.unwrap_err();
    assert!(matches!(error, QueryError::Count), "{error}");
    assert!(fake.with(|w| w.log.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn sa_t18_a_get_has_no_count() {
    let fake = Fake::new();
    let client = fake.client();
    client.path(THERE).count(3).await.unwrap();
    assert_eq!(
        (last(&fake).method, last(&fake).mask & NUM_PATHS, asked(&fake).num_paths),
        (Method::GET, 0, 0)
    );
    client.path(THERE).count(3).all().await.unwrap();
    assert_eq!((last(&fake).mask & NUM_PATHS, asked(&fake).num_paths), (NUM_PATHS, 3));
}

#[tokio::test(start_paused = true)]
async fn sa_t21_the_source_is_a_gid_and_no_lid() {
    let fake = Fake::new();
    let client = fake.client();
    for lid in [2, 7] {
        fake.with(|w| w.tables.attr.lid = Lid(lid));
        client.device_event(ibdev::DeviceEvent::LidChange(1));
        settle().await;
        client.path(THERE).uncached().await.unwrap();
        assert_eq!((last(&fake).mask & SLID, asked(&fake).slid, asked(&fake).sgid), (0, Lid::NONE, HERE));
    }
}

#[tokio::test(start_paused = true)]
async fn sa_t22_each_partition_is_asked_for_by_itself() {
    let fake = Fake::new();
    let client = fake.client();
    for p_key in [0xffff, 0x8001, 0x0002] {
        fake.with(|w| w.paths = vec![path(p_key)]);
        let found = client.path(THERE).p_key(p_key).all().await.unwrap();
        assert_eq!((last(&fake).mask & P_KEY, asked(&fake).pkey), (P_KEY, PKey(p_key)));
        assert_eq!(found, [path(p_key)]);
    }
}

#[tokio::test(start_paused = true)]
async fn sa_t23_a_limited_member_is_in_the_same_partition() {
    let fake = Fake::new();
    fake.with(|w| w.paths = vec![path(0x7fff), path(0xffff), path(0x7ffe)]);
    let found = fake.client().path(THERE).p_key(0xffff).all().await.unwrap();
    assert_eq!(found, [path(0x7fff), path(0xffff)]);
}

#[tokio::test(start_paused = true)]
async fn sa_t24_limited_members_of_the_default_partition_ask_through_it() {
    for (p_keys, index) in
        [(vec![0x1234, 0x7fff], 1), (vec![0x7fff, 0xffff], 1), (vec![0x8001, 0x8002, 0xffff], 2)]
    {
        let fake = Fake::new();
        fake.with(|w| w.tables.pkeys = p_keys.iter().copied().map(PKey).collect());
        fake.client().path(THERE).await.unwrap();
        assert_eq!(last(&fake).pkey_index, index, "{p_keys:x?}");
    }
}

#[tokio::test(start_paused = true)]
async fn sa_t25_without_a_partition_any_is_answered() {
    let fake = Fake::new();
    fake.with(|w| w.paths = vec![path(0x2222)]);
    let found = fake.client().path(THERE).all().await.unwrap();
    assert_eq!((last(&fake).mask & P_KEY, found[0].pkey), (0, PKey(0x2222)));
}

/// What the SA answers, and what is made of it.
async fn told<R: Record>(fake: &Fake, records: &[R], wanted: Template<R>) -> Vec<R> {
    let stride = usize::from(attribute_offset::<R>()) * 8;
    let padded = records.iter().map(|record| {
        let mut bytes = record.to_bytes();
        bytes.resize(stride, 0);
        bytes
    });
    let table: Vec<u8> = padded.flatten().collect();
    fake.with(|w| w.others.insert(R::ATTRIBUTE, (attribute_offset::<R>(), table)));
    fake.client().table(wanted).await.unwrap().complete().unwrap()
}

#[tokio::test(start_paused = true)]
async fn sa_t26_only_the_sm_at_that_lid_is_told() {
    let fake = Fake::new();
    let sm = |lid| SmInfoRecord { lid: Lid(lid), guid: Guid(lid.into()), ..SmInfoRecord::default() };
    let all = [sm(1), sm(2), sm(3)];
    assert_eq!(told(&fake, &all, Template::<SmInfoRecord>::new().lid(2)).await, [sm(2)]);
    assert_eq!(told(&fake, &all, Template::<SmInfoRecord>::new().guid(3u64)).await, [sm(3)]);
    assert_eq!(told(&fake, &all, Template::new()).await, all);
    // What the SM writes into the record may have changed since.
    assert_eq!(told(&fake, &all, Template::<SmInfoRecord>::new().act_count(7u32)).await, all);
}

#[tokio::test(start_paused = true)]
async fn sa_t27_records_that_were_not_asked_for_are_left_out() {
    let fake = Fake::new();
    let port =
        |lid, port_num| PortInfoRecord { end_port_lid: Lid(lid), port_num, ..PortInfoRecord::default() };
    let all = [port(4, 1), port(4, 2)];
    let second = Template::<PortInfoRecord>::new().port_num(2);
    assert_eq!(told(&fake, &all, second.clone()).await, all[1..]);
    // A port with several LIDs is told by its first one.
    assert_eq!(told(&fake, &all[1..], second.end_port_lid(5)).await, all[1..]);
    let node_info = NodeInfo { node_guid: Guid(8), ..NodeInfo::default() };
    let node = NodeRecord { node_info, ..NodeRecord::default() };
    for (guid, found) in [(8u64, &[node.clone()][..]), (9, &[])] {
        let wanted = Template::<NodeRecord>::new().node_info(|info| info.node_guid(guid));
        assert_eq!(told(&fake, std::slice::from_ref(&node), wanted).await, found);
    }
}

#[tokio::test(start_paused = true)]
async fn sa_t64_a_gid_with_the_default_prefix_is_the_ports() {
    let fake = Fake::new();
    let real = Gid([0xfe, 0xc0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0xa]);
    let other = PathRecord { dgid: Gid::link_local(Guid(0xc)), ..path(0xffff) };
    fake.with(|w| w.paths = vec![PathRecord { dgid: real, ..path(0xffff) }, other]);
    let found = fake.client().path(THERE).all().await.unwrap();
    assert_eq!(found.iter().map(|path| path.dgid).collect::<Vec<_>>(), [real]);
}

#[tokio::test(start_paused = true)]
async fn sa_t27_paths_that_were_not_asked_for_are_left_out() {
    let fake = Fake::new();
    let changes: [fn(&mut PathRecord); 5] = [
        |path| path.sl = ServiceLevel::truncate(3),
        |path| path.dgid = HERE,
        |path| path.sgid = THERE,
        |path| path.pkey = PKey(0x8001),
        |path| path.reversible = false,
    ];
    for change in changes {
        let mut other = path(0xffff);
        change(&mut other);
        fake.with(|w| w.paths = vec![other, path(0xffff), other]);
        let found = fake.client().path(THERE).p_key(0xffff).sl(0).reversible(true).all().await.unwrap();
        assert_eq!(found, [path(0xffff)]);
    }
}

#[tokio::test(start_paused = true)]
async fn sa_t64_the_port_is_named_by_its_real_prefix() {
    let real = Gid([0xfe, 0xc0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0xb]);
    let fake = Fake::new();
    fake.with(|w| w.tables.gids[0].gid = real);
    fake.client().path(THERE).await.unwrap();
    assert_eq!(asked(&fake).sgid, real);
}

#[tokio::test(start_paused = true)]
async fn sa_t68_a_subscription_is_ended_under_its_queue_pair() {
    let fake = Fake::new();
    let client = fake.client();
    drop(client.subscribe([Trap::GID_IN]).await.unwrap());
    settle().await;
    assert_eq!(last(&fake).attribute, InformInfo::ATTRIBUTE);
    let info = InformInfo::parse(&last(&fake).data).unwrap();
    assert_eq!((info.subscribe, info.qpn.get()), (0, 1));
}
