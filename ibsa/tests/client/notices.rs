//! Subscriptions: made, made again, bounded, and deaf to strangers.

use futures::{FutureExt, StreamExt};
use ibdev::DeviceEvent;
use ibsa::record::{InformInfo, Layout, Record};
use ibsa::{Notice, Notices, Trap};
use ibwire::mad::{MadStatus, Method};
use ibwire::{Gid, Guid, Lid};

use crate::fake::{Fake, Mood, SM};
use crate::{MS, SECOND, drop_after, pass, settle};

const OUT: Notice = Notice::GidOut(GID);
const GID: Gid = Gid::link_local(Guid(0xa));

fn subscriptions(fake: &Fake) -> Vec<u16> {
    fake.with(|w| w.subscriptions.iter().copied().collect())
}

fn now(notices: &mut Notices) -> Option<Notice> {
    notices.next().now_or_never().map(|notice| notice.expect("it goes on"))
}

#[tokio::test(start_paused = true)]
async fn sa_t69_the_last_that_wants_a_trap_ends_its_subscription() {
    let fake = Fake::new();
    let client = fake.client();
    let mut both = client.subscribe([Trap::GID_IN, Trap::GID_OUT]).await.unwrap();
    let mut one = client.subscribe([Trap::GID_OUT]).await.unwrap();
    fake.report(SM, 65, GID);
    assert_eq!((both.next().await, one.next().await), (Some(OUT), Some(OUT)));
    drop(both);
    settle().await;
    assert_eq!(subscriptions(&fake), [65]);
    assert_eq!(
        fake.count(Method::SET, InformInfo::ATTRIBUTE),
        4,
        "nothing is lost of the other one meanwhile"
    );
    drop(one);
    settle().await;
    assert!(subscriptions(&fake).is_empty());
}

#[tokio::test(start_paused = true)]
async fn reports_of_strangers_are_dropped_and_counted() {
    let fake = Fake::new();
    let client = fake.client();
    let mut notices = client.subscribe([Trap::GID_OUT]).await.unwrap();
    fake.report(Lid(66), 65, GID);
    settle().await;
    assert_eq!((now(&mut notices), client.stats().dropped_report), (None, 1));
    assert_eq!(fake.with(|w| w.acknowledged), 0);
    fake.report(SM, 65, GID);
    assert_eq!(notices.next().await, Some(OUT));
    assert_eq!(fake.with(|w| w.acknowledged), 1);
}

/// What a vendor's device is numbered is no trap.
#[tokio::test(start_paused = true)]
async fn notices_of_vendors_are_for_nobody() {
    let fake = Fake::new();
    let client = fake.client();
    let mut notices = client.subscribe([Trap::GID_OUT]).await.unwrap();
    fake.report_of_vendor(SM, 65);
    settle().await;
    assert_eq!((now(&mut notices), fake.with(|w| w.acknowledged)), (None, 1));
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_hears_how_much_it_missed() {
    let fake = Fake::new();
    let client = fake.client();
    let mut notices = client.subscribe([Trap::GID_OUT]).await.unwrap();
    for _ in 0..300 {
        fake.report(SM, 65, GID);
    }
    settle().await;
    assert_eq!(now(&mut notices), Some(Notice::Lagged(44)));
    for _ in 0..256 {
        assert_eq!(now(&mut notices), Some(OUT));
    }
    assert_eq!(now(&mut notices), None);
}

#[tokio::test(start_paused = true)]
async fn subscriptions_are_made_again_at_a_new_sm() {
    let fake = Fake::new();
    let client = fake.client();
    let mut notices = client.subscribe([Trap::GID_IN, Trap::GID_OUT]).await.unwrap();
    fake.new_sm(Lid(7));
    client.device_event(DeviceEvent::SmChange(1));
    assert_eq!(notices.next().await, Some(Notice::Resubscribed));
    assert_eq!(subscriptions(&fake), [64, 65]);
    // What changes nothing for the SA is none of its business.
    let sent = fake.with(|w| w.log.len());
    client.device_event(DeviceEvent::PkeyChange(1));
    client.device_event(DeviceEvent::GidChange(1));
    pass(10 * SECOND).await;
    assert_eq!((fake.with(|w| w.log.len()), now(&mut notices)), (sent, None));
}

/// Two changes before the subscriptions were made again are one.
#[tokio::test(start_paused = true)]
async fn subscriptions_are_made_again_once() {
    let fake = Fake::new();
    let client = fake.client();
    let mut notices = client.subscribe([Trap::GID_OUT]).await.unwrap();
    client.device_event(DeviceEvent::SmChange(1));
    settle().await;
    client.device_event(DeviceEvent::ClientReregister(1));
    pass(10 * SECOND).await;
    assert_eq!((now(&mut notices), now(&mut notices)), (Some(Notice::Resubscribed), None));
    assert_eq!(fake.count(Method::SET, InformInfo::ATTRIBUTE), 2);
}

/// Who subscribes while the end of a subscription is under way has one, though the SA hears of the end last.
#[tokio::test(start_paused = true)]
async fn a_subscription_that_its_predecessors_end_overtakes() {
    let fake = Fake::new();
    let client = fake.client();
    drop(client.subscribe([Trap::GID_OUT]).await.unwrap());
    fake.with(|w| w.mood = Mood::Silent);
    settle().await;
    fake.with(|w| w.mood = Mood::Prompt);
    let _notices = client.subscribe([Trap::GID_OUT]).await.unwrap();
    pass(20 * SECOND).await;
    assert_eq!(subscriptions(&fake), [65]);
    let last = fake.with(|w| w.log.iter().rev().take(2).map(|seen| seen.data.clone()).collect::<Vec<_>>());
    let subscribes = |data: &Vec<u8>| InformInfo::parse(data).unwrap().subscribe;
    assert_eq!(last.iter().map(subscribes).collect::<Vec<_>>(), [1, 0], "the end came, and was made good");
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_is_refused_again_is_not_told_as_made() {
    let fake = Fake::new();
    let client = fake.client();
    let mut notices = client.subscribe([Trap::GID_OUT]).await.unwrap();
    fake.new_sm(Lid(7));
    fake.with(|w| w.mood = Mood::Refuses(MadStatus(0x0100)));
    client.device_event(DeviceEvent::SmChange(1));
    pass(10 * SECOND).await;
    assert_eq!(now(&mut notices), None);
    assert!(fake.count(Method::SET, InformInfo::ATTRIBUTE) >= 3, "it is tried further");
    fake.with(|w| w.mood = Mood::Prompt);
    assert_eq!(notices.next().await, Some(Notice::Resubscribed));
    assert_eq!(subscriptions(&fake), [65]);
}

#[tokio::test(start_paused = true)]
async fn a_subscription_dropped_while_it_is_renewed_is_ended() {
    let fake = Fake::new();
    let client = fake.client();
    let notices = client.subscribe([Trap::GID_OUT]).await.unwrap();
    client.device_event(DeviceEvent::SmChange(1));
    settle().await;
    drop(notices);
    pass(10 * SECOND).await;
    assert!(subscriptions(&fake).is_empty());
}

/// Of several traps: the rest is not subscribed to when nobody wants it any more.
#[tokio::test(start_paused = true)]
async fn what_nobody_wants_any_more_is_not_renewed() {
    let fake = Fake::new();
    let client = fake.client();
    let notices = client.subscribe([Trap::GID_IN, Trap::GID_OUT]).await.unwrap();
    fake.new_sm(Lid(7));
    fake.with(|w| w.mood = Mood::Slow(2 * SECOND));
    client.device_event(DeviceEvent::SmChange(1));
    pass(1500 * MS).await;
    drop(notices);
    pass(20 * SECOND).await;
    let made = |w: &mut crate::fake::World| {
        let informs = w.log.iter().filter(|seen| seen.attribute == InformInfo::ATTRIBUTE);
        informs
            .skip(2)
            .map(|seen| InformInfo::parse(&seen.data).unwrap())
            .map(|info| (info.trap_or_device, info.subscribe))
            .collect::<Vec<_>>()
    };
    assert!(!fake.with(made).contains(&(65, 1)), "{:?}", fake.with(made));
    assert!(subscriptions(&fake).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_subscription_is_given_up() {
    let fake = Fake::new();
    let client = fake.client();
    fake.with(|w| w.mood = Mood::Slow(SECOND));
    drop_after(1500 * MS, client.subscribe([Trap::GID_IN, Trap::GID_OUT])).await;
    pass(10 * SECOND).await;
    assert!(subscriptions(&fake).is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_stream_ends_with_the_client() {
    let fake = Fake::new();
    let client = fake.client();
    let mut notices = client.subscribe([Trap::GID_OUT]).await.unwrap();
    client.close();
    assert_eq!(notices.next().await, None);
}
