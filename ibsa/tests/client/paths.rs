//! Paths: asked for once, cached, forgotten when the port changes.

use std::time::Duration;

use ibdev::DeviceEvent;
use ibsa::record::{Is, Layout, PathRecord, Record};
use ibsa::{CacheConfig, Group, PathSource, QueryError};
use ibwire::mad::Method;
use ibwire::{Gid, Guid, Lid, Mtu, PKey, PacketLifeTime, Rate, Selector, ServiceId, ServiceLevel};

use crate::fake::{Fake, HERE, Mood};
use crate::{MS, SECOND, drop_after, pass, settle};

const THERE: Gid = Gid::link_local(Guid(0xa));

fn asked(fake: &Fake) -> usize {
    fake.count(Method::GET, PathRecord::ATTRIBUTE)
}

#[tokio::test(start_paused = true)]
async fn sa_t34_a_thousand_callers_of_one_path_are_one_query() {
    let fake = Fake::new();
    fake.with(|w| w.mood = Mood::Slow(MS));
    let client = fake.client();
    let callers: Vec<_> = (0..1000).map(|_| tokio::spawn(client.path(THERE))).collect();
    for caller in callers {
        let path = caller.await.unwrap().unwrap();
        assert_eq!((path.dlid, path.source()), (Lid(9), PathSource::Sa));
    }
    assert_eq!((asked(&fake), client.cache_stats()), (1, (0, 1000)));
}

#[tokio::test(start_paused = true)]
async fn a_cached_path_says_its_age_and_expires() {
    let fake = Fake::new();
    let client = fake.client();
    assert_eq!(client.path(THERE).await.unwrap().source(), PathSource::Sa);
    pass(100 * SECOND).await;
    assert_eq!(client.path(THERE).await.unwrap().source(), PathSource::Cache { age: 100 * SECOND });
    // Something else was asked: another path.
    assert_eq!(client.path(THERE).sl(3u8).await.unwrap().source(), PathSource::Sa);
    assert_eq!(client.path(THERE).uncached().await.unwrap().source(), PathSource::Sa);
    pass(301 * SECOND).await;
    assert_eq!(client.path(THERE).await.unwrap().source(), PathSource::Sa);
    assert_eq!(asked(&fake), 4);
}

#[tokio::test(start_paused = true)]
async fn the_cache_is_bounded_and_the_oldest_goes() {
    let fake = Fake::new();
    let client = fake.client();
    let mut config = CacheConfig::default();
    config.entries = 2;
    client.set_cache(config);
    let to = |n| Gid::link_local(Guid(n));
    for n in [30, 20, 10] {
        client.path(to(n)).await.unwrap();
        pass(SECOND).await;
    }
    for (n, expected) in [(10, 3), (20, 3), (30, 4)] {
        client.path(to(n)).await.unwrap();
        assert_eq!(asked(&fake), expected, "path to {n}");
    }
    config.entries = 0;
    client.set_cache(config);
    for expected in [5, 6] {
        client.path(to(10)).await.unwrap();
        assert_eq!(asked(&fake), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_path_again_takes_its_own_place_in_the_cache() {
    let fake = Fake::new();
    let client = fake.client();
    let mut config = CacheConfig::default();
    (config.entries, config.max_age) = (2, 10 * SECOND);
    client.set_cache(config);
    let to = |n| client.path(Gid::link_local(Guid(n)));
    to(1).await.unwrap();
    to(2).await.unwrap();
    to(2).uncached().await.unwrap();
    let cached = to(1).await.unwrap().source();
    assert_eq!(cached, PathSource::Cache { age: Duration::ZERO });
    pass(10 * SECOND).await;
    assert_eq!(to(1).await.unwrap().source(), PathSource::Cache { age: 10 * SECOND }, "no older than that");
    pass(MS).await;
    assert_eq!(to(1).await.unwrap().source(), PathSource::Sa);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_overtaken_by_an_event_is_told_and_not_kept() {
    let fake = Fake::new();
    let client = fake.client();
    fake.with(|w| w.mood = Mood::Slow(SECOND));
    let early = tokio::spawn(client.path(THERE));
    settle().await;
    client.device_event(DeviceEvent::PkeyChange(1));
    early.await.unwrap().unwrap();
    assert_eq!(client.path(THERE).await.unwrap().source(), PathSource::Sa);
}

#[tokio::test(start_paused = true)]
async fn each_event_of_the_port_ends_what_is_cached() {
    let fake = Fake::new();
    let client = fake.client();
    client.path(THERE).await.unwrap();
    let events = [
        DeviceEvent::PortDown(1),
        DeviceEvent::PortUp(1),
        DeviceEvent::LidChange(1),
        DeviceEvent::SmChange(1),
        DeviceEvent::PkeyChange(1),
        DeviceEvent::GidChange(1),
        DeviceEvent::ClientReregister(1),
    ];
    for (event, before) in events.into_iter().zip(1..) {
        assert_eq!((client.path(THERE).await.unwrap().dlid, asked(&fake)), (Lid(9), before), "{event:?}");
        client.device_event(event);
        assert_eq!(client.path(THERE).await.unwrap().source(), PathSource::Sa, "{event:?}");
    }
    // Another port is none of this client's business.
    client.device_event(DeviceEvent::LidChange(2));
    assert!(matches!(client.path(THERE).await.unwrap().source(), PathSource::Cache { .. }));
}

#[tokio::test(start_paused = true)]
async fn an_answer_from_before_an_event_is_not_kept() {
    let fake = Fake::new();
    let client = fake.client();
    fake.with(|w| w.mood = Mood::Slow(SECOND));
    let early = tokio::spawn(client.path(THERE));
    settle().await;
    assert_eq!(asked(&fake), 1);
    client.device_event(DeviceEvent::PkeyChange(1));
    let late = tokio::spawn(client.path(THERE));
    early.await.unwrap().unwrap();
    late.await.unwrap().unwrap();
    fake.with(|w| w.mood = Mood::Prompt);
    // The later of the two is kept.
    assert!(matches!(client.path(THERE).await.unwrap().source(), PathSource::Cache { .. }));
    assert!(asked(&fake) >= 3, "the first again after the event, and the second");
}

#[tokio::test(start_paused = true)]
async fn a_path_from_a_lid_that_the_port_had_is_not_kept() {
    let fake = Fake::new();
    let client = fake.client();
    let lid = |lid| {
        fake.with(|w| w.tables.attr.lid = lid);
        client.device_event(DeviceEvent::LidChange(1));
    };
    // The SA says 2, whatever the port has.
    lid(Lid(5));
    for _ in 0..2 {
        let path = client.path(THERE).await.unwrap();
        assert_eq!((path.slid, path.source()), (Lid(2), PathSource::Sa));
    }
    fake.with(|w| w.tables.attr.lmc = 3);
    lid(Lid(2));
    settle().await; // what is asked before the port is read may still be of before
    assert_eq!(client.path(THERE).await.unwrap().source(), PathSource::Sa);
    assert!(matches!(client.path(THERE).await.unwrap().source(), PathSource::Cache { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_path_that_is_forgotten_is_asked_for_again() {
    let fake = Fake::new();
    let client = fake.client();
    let other = Gid::link_local(Guid(0xc));
    for gid in [THERE, other] {
        client.path(gid).await.unwrap();
    }
    client.forget_paths(THERE);
    assert_eq!(client.path(THERE).await.unwrap().source(), PathSource::Sa);
    assert!(matches!(client.path(other).await.unwrap().source(), PathSource::Cache { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_path_query_fills_the_cache_all_the_same() {
    let fake = Fake::new();
    let client = fake.client();
    fake.with(|w| w.mood = Mood::Slow(SECOND));
    drop_after(MS, client.path(THERE)).await;
    // Whoever comes meanwhile waits for the same answer.
    assert_eq!(client.path(THERE).await.unwrap().source(), PathSource::Sa);
    assert!(matches!(client.path(THERE).await.unwrap().source(), PathSource::Cache { .. }));
    assert_eq!(asked(&fake), 1);
}

#[tokio::test(start_paused = true)]
async fn a_callers_own_limit_is_his_alone() {
    let fake = Fake::new();
    let client = fake.client();
    fake.with(|w| w.mood = Mood::Slow(SECOND));
    let patient = tokio::spawn(client.path(THERE));
    let hasty = client.path(THERE).timeout(10 * MS).await;
    assert!(matches!(hasty, Err(QueryError::Late(limit)) if limit == 10 * MS));
    patient.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_limit_may_be_longer_than_the_clock_goes() {
    let fake = Fake::new();
    let client = fake.client();
    client.path(THERE).timeout(Duration::MAX).await.unwrap();
    let group = "ff15:a01b::7".parse().unwrap();
    drop(client.join(group).or_create(Group::new(7)).timeout(Duration::MAX).await.unwrap());
    drop(client.register(ServiceId::new(7), "x").timeout(Duration::MAX).await.unwrap());
}

/// The worked example of the book's chapter in today's encoding (spec/sa.md 4.5).
#[tokio::test(start_paused = true)]
async fn the_books_example_byte_for_byte() {
    const ASKED: &str = "00000000 0000000000 02 1234 0003 44 82 00 00 000000000000";
    const FIRST: &str = "0008000a 0000000000 82 1234 0003 83 82 82 00 000000000000";
    const SECOND: &str = "0009000a 0000000000 82 1234 0003 82 82 8a 00 000000000000";
    let bytes = |text: &str| -> Vec<u8> {
        let digits: String = text.split(' ').collect();
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
    };
    let whole = |text| [&[0; 8][..], &THERE.0, &HERE.0, &bytes(text)].concat();
    let fake = Fake::new();
    let answer = |text| <PathRecord as Layout>::parse(&whole(text)).unwrap();
    fake.with(|w| w.paths = vec![answer(FIRST), answer(SECOND)]);
    let client = fake.client();
    let query = client.path(THERE).raw_traffic(false).count(2).p_key(0x1234).sl(3);
    let paths = query.mtu(Is::LessThan(Mtu::B2048)).rate(Is::Exactly(Rate::GBPS_2_5)).all().await.unwrap();
    let seen = fake.with(|w| w.log[0].clone());
    assert_eq!((seen.method, seen.attribute.0, seen.mask), (Method(0x12), 0x35, 0xf_b04c));
    assert_eq!(seen.data[..64], whole(ASKED));
    let path = |dlid, mtu, life| PathRecord {
        dgid: THERE,
        sgid: HERE,
        dlid: Lid(dlid),
        slid: Lid(10),
        reversible: true,
        num_paths: 2,
        pkey: PKey(0x1234),
        sl: ServiceLevel::truncate(3),
        mtu_selector: Selector::Exactly,
        mtu,
        rate_selector: Selector::Exactly,
        rate: Rate::GBPS_2_5,
        packet_life_time_selector: Selector::Exactly,
        packet_life_time: PacketLifeTime::truncate(life),
        ..<PathRecord as Layout>::parse(&[0; 64]).unwrap()
    };
    assert_eq!(paths, [path(8, Mtu::B1024, 2), path(9, Mtu::B512, 10)]);
    assert_eq!(
        paths.iter().flat_map(Layout::to_bytes).collect::<Vec<_>>(),
        [whole(FIRST), whole(SECOND)].concat()
    );
}
