//! Services: registered, renewed, cancelled, found.

use std::time::Duration;

use ibdev::DeviceEvent;
use ibsa::QueryError;
use ibsa::record::{Record, ServiceRecord};
use ibwire::mad::{MadStatus, Method};
use ibwire::{Lid, PKey, ServiceId};

use crate::fake::{Fake, HERE, Mood};
use crate::{MS, SECOND, drop_after, pass, settle};

const ID: ServiceId = ServiceId::new(0x1000_0000_0000_0077);

fn registered(fake: &Fake) -> usize {
    fake.count(Method::SET, ServiceRecord::ATTRIBUTE)
}

fn held(fake: &Fake) -> usize {
    fake.with(|w| w.services.len())
}

#[tokio::test(start_paused = true)]
async fn a_service_is_registered_found_and_cancelled() {
    let fake = Fake::new();
    let client = fake.client();
    let service = client.register(ID, "kv/eu-1").data8(0, 7).data64(1, 9).key([1; 16]).await.unwrap();
    let record = service.record();
    assert_eq!((record.service_gid, record.service_p_key, record.service_lease), (HERE, PKey::DEFAULT, 60));
    assert_eq!((record.service_data8[0], record.service_data64[1]), (7, 9));
    let found = client.resolve(ID).await.unwrap().complete().unwrap();
    assert_eq!((found.len(), found[0].service_name.to_string()), (1, "kv/eu-1".into()));
    assert!(client.resolve(ServiceId::new(1)).await.unwrap().is_empty());
    service.cancel().await.unwrap();
    assert_eq!(held(&fake), 0);
}

#[tokio::test(start_paused = true)]
async fn sa_t72_the_p_key_is_always_named() {
    let fake = Fake::new();
    fake.with(|w| w.tables.pkeys = vec![PKey(0x7fff)]);
    let client = fake.client();
    let limited = client.register(ID, "a").await.unwrap();
    let named = client.register(ID, "b").p_key(0x9234u16).await.unwrap();
    assert_eq!(
        (limited.record().service_p_key, named.record().service_p_key),
        (PKey(0x7fff), PKey(0x9234)),
        "the fake SA refuses requests without it"
    );
    assert_eq!(held(&fake), 2);
    drop((limited, named));
    settle().await;
    assert_eq!(held(&fake), 0);
}

#[tokio::test(start_paused = true)]
async fn sa_t73_a_lease_is_renewed_at_its_half() {
    let fake = Fake::new();
    let client = fake.client();
    let mut service = client.register(ID, "a").lease(10 * SECOND).await.unwrap();
    for renewals in 1..=4 {
        assert_eq!(registered(&fake), renewals);
        pass(5 * SECOND).await;
    }
    assert!(tokio::time::timeout(MS, service.changed()).await.is_err(), "nothing out of the ordinary");
    drop(service);
    settle().await;
    let sent = fake.with(|w| w.log.len());
    pass(100 * SECOND).await;
    assert_eq!((held(&fake), fake.with(|w| w.log.len())), (0, sent));
}

#[tokio::test(start_paused = true)]
async fn a_record_for_ever_is_registered_once() {
    let fake = Fake::new();
    let client = fake.client();
    let service = client.register(ID, "a").for_ever().await.unwrap();
    assert_eq!(service.record().service_lease, ServiceRecord::FOR_EVER);
    pass(Duration::from_secs(1_000_000)).await;
    assert_eq!(registered(&fake), 1);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_registered_is_refused_where_it_is_given() {
    let fake = Fake::new();
    let client = fake.client();
    let error = client.register(ID, "a").lease(Duration::ZERO).await.unwrap_err();
    assert_eq!(error.to_string(), "a lease of 0ns, from 1 s to 4,294,967,294 s are possible");
    for lease in [Duration::from_secs(u32::MAX.into()), Duration::MAX] {
        let error = client.register(ID, "a").lease(lease).await.unwrap_err();
        assert!(matches!(error, QueryError::Lease(_)));
    }
    let error = client.register(ID, "x".repeat(65).as_str()).await.unwrap_err();
    assert_eq!(error.to_string(), "ServiceRecord service_name is 65, at most 64 is possible");
    assert_eq!(registered(&fake), 0);
    let held = client.register(ID, "a").lease(1500 * MS).await.unwrap();
    assert_eq!(held.record().service_lease, 2, "rounded up");
    let twice = client.register(ID, "b").await.unwrap_err();
    assert!(matches!(twice, QueryError::Registered(ID)), "{twice}");
    held.cancel().await.unwrap();
    drop(client.register(ID, "b").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn services_are_registered_again_at_a_new_sm() {
    let fake = Fake::new();
    let client = fake.client();
    let mut service = client.register(ID, "a").await.unwrap();
    let mut for_ever = client.register(ServiceId::new(1), "b").for_ever().await.unwrap();
    for event in [DeviceEvent::SmChange(1), DeviceEvent::ClientReregister(1), DeviceEvent::LidChange(1)] {
        fake.new_sm(Lid(7));
        client.device_event(event);
        let started = tokio::time::Instant::now();
        service.changed().await.unwrap();
        for_ever.changed().await.unwrap();
        assert!(started.elapsed() <= SECOND, "within a second by chance");
        assert_eq!(held(&fake), 2, "{event:?}");
    }
}

/// The answer of an SM that has gone says nothing about the next one.
#[tokio::test(start_paused = true)]
async fn an_answer_from_before_a_change_is_not_believed() {
    let fake = Fake::new();
    let client = fake.client();
    let mut service = client.register(ID, "a").lease(1000 * SECOND).await.unwrap();
    fake.new_sm(Lid(7));
    fake.with(|w| w.mood = Mood::Slow(SECOND));
    client.device_event(DeviceEvent::SmChange(1));
    pass(1100 * MS).await;
    assert_eq!(registered(&fake), 2, "it is being registered again");
    fake.new_sm(Lid(7));
    client.device_event(DeviceEvent::ClientReregister(1));
    service.changed().await.unwrap();
    pass(4 * SECOND).await;
    assert_eq!(held(&fake), 1, "at the SM that is there now");
}

#[tokio::test(start_paused = true)]
async fn failed_renewals_are_told_and_tried_again() {
    let fake = Fake::new();
    let client = fake.client();
    let mut service = client.register(ID, "a").lease(10 * SECOND).await.unwrap();
    fake.with(|w| w.mood = Mood::Refuses(MadStatus(0x0100)));
    for _ in 0..3 {
        assert!(service.changed().await.is_err());
    }
    fake.with(|w| w.mood = Mood::Prompt);
    assert_eq!(service.changed().await.unwrap().service_id, ID);
    service.cancel().await.unwrap();
    assert_eq!(held(&fake), 0);
}

/// Who cancels hears of it, though somebody else registers the same again at the same moment.
#[tokio::test(start_paused = true)]
async fn a_cancelled_service_is_registered_again() {
    let fake = Fake::new();
    let client = fake.client();
    let first = client.register(ID, "a").await.unwrap();
    let both = async { tokio::join!(first.cancel(), client.register(ID, "b")) };
    let (cancelled, again) = tokio::time::timeout(20 * SECOND, both).await.unwrap();
    cancelled.unwrap();
    assert_eq!((again.unwrap().record().service_name.to_string(), held(&fake)), ("b".into(), 1));
}

#[tokio::test(start_paused = true)]
async fn dropped_registrations_are_cancelled() {
    let fake = Fake::new();
    let client = fake.client();
    fake.with(|w| w.mood = Mood::Slow(SECOND));
    drop_after(MS, client.register(ID, "a")).await;
    pass(3 * SECOND).await;
    assert_eq!((registered(&fake), held(&fake)), (1, 0), "dropped before the answer");
    fake.with(|w| w.mood = Mood::Prompt);
    let service = client.register(ID, "a").await.unwrap();
    fake.with(|w| w.mood = Mood::Slow(SECOND));
    drop_after(MS, service.cancel()).await;
    pass(3 * SECOND).await;
    assert_eq!(held(&fake), 0, "cancelling goes on");
    // At once again: the old one's end does not take the new one along.
    let service = client.register(ID, "a").await.unwrap();
    drop(service);
    let service = client.register(ID, "b").await.unwrap();
    pass(3 * SECOND).await;
    assert_eq!((held(&fake), service.record().service_name.to_string()), (1, "b".into()));
}

#[tokio::test(start_paused = true)]
async fn a_refused_registration_leaves_nothing() {
    let fake = Fake::new();
    let client = fake.client();
    fake.with(|w| w.mood = Mood::Refuses(MadStatus(0x0100)));
    assert!(client.register(ID, "a").await.is_err());
    pass(100 * SECOND).await;
    assert_eq!(fake.with(|w| w.log.len()), 1);
}

#[tokio::test(start_paused = true)]
async fn holders_hear_that_the_client_is_closed() {
    let fake = Fake::new();
    let client = fake.client();
    let mut service = client.register(ID, "a").await.unwrap();
    client.close();
    assert!(matches!(service.changed().await, Err(QueryError::Closed)));
    assert!(matches!(service.cancel().await, Ok(()) | Err(QueryError::Closed)));
}
