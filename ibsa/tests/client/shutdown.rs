//! A client that shuts down: what it keeps at the SA is given up.

use futures::StreamExt;
use ibdev::DeviceEvent;
use ibsa::record::{McMemberRecord, PathRecord, Record, Template};
use ibsa::{Client, Group, Membership, Notices, QueryError, Registration, Trap};
use ibwire::mad::Method;
use ibwire::{Gid, Lid, ServiceId};
use tokio::time::Instant;

use crate::fake::{Fake, Mood};
use crate::{MS, SECOND, drop_after, pass};

const ID: ServiceId = ServiceId::new(7);

fn group() -> Gid {
    "ff15:a01b::7".parse().unwrap()
}

/// Something of each kind that can be kept.
async fn kept(client: &Client) -> (Membership, Registration, Notices) {
    let member = client.join(group()).or_create(Group::new(1u32)).await.unwrap();
    let service = client.register(ID, "a").await.unwrap();
    (member, service, client.subscribe([Trap::GID_IN, Trap::GID_OUT]).await.unwrap())
}

/// Another request.
async fn ask(client: &Client) -> Result<PathRecord, QueryError> {
    client.get(Template::<PathRecord>::new()).await
}

/// What the SA has.
fn held(fake: &Fake) -> [usize; 3] {
    fake.with(|w| [w.groups.len(), w.services.len(), w.subscriptions.len()])
}

#[tokio::test(start_paused = true)]
async fn sa_t75_a_client_that_shuts_down_leaves_nothing_at_the_sa() {
    let fake = Fake::new();
    let client = fake.client();
    let (mut member, mut service, mut notices) = kept(&client).await;
    assert_eq!(held(&fake), [1, 1, 2]);
    client.shutdown().await;
    assert_eq!(held(&fake), [0, 0, 0]);
    assert!(matches!(member.changed().await, Err(QueryError::Closed)));
    assert!(matches!(service.changed().await, Err(QueryError::Closed)));
    assert_eq!(notices.next().await, None);
    assert!(matches!(ask(&client).await, Err(QueryError::Closed)));
    assert!(matches!(client.open().await, Err(QueryError::Closed)));
    client.shutdown().await;
    assert!(matches!(member.leave().await, Err(QueryError::Closed)));
    assert!(matches!(service.cancel().await, Err(QueryError::Closed)));
}

/// What is dropped at that moment is on its way out already.
#[tokio::test(start_paused = true)]
async fn sa_t75_what_is_being_given_up_is_waited_for() {
    let fake = Fake::new();
    let client = fake.client();
    let kept = kept(&client).await;
    fake.with(|w| w.mood = Mood::Slow(SECOND));
    drop(kept);
    client.shutdown().await;
    assert_eq!(held(&fake), [0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn sa_t75_shutting_down_is_bounded() {
    // Nothing is kept, or nobody is there to be told: no time.
    let fake = Fake::new();
    let (unused, used, alone) = (fake.client(), fake.client(), fake.client());
    let started = Instant::now();
    unused.shutdown().await;
    ask(&used).await.unwrap();
    used.shutdown().await;
    let _kept = kept(&alone).await;
    fake.with(|w| w.tables.attr.sm_lid = Lid::NONE);
    alone.device_event(DeviceEvent::SmChange(1));
    pass(MS).await;
    alone.shutdown().await;
    assert_eq!(started.elapsed(), MS);
    // A silent SA: 5 s.
    let fake = Fake::new();
    let client = fake.client();
    let _kept = kept(&client).await;
    fake.with(|w| w.mood = Mood::Silent);
    let started = Instant::now();
    client.shutdown().await;
    assert_eq!(started.elapsed().as_secs(), 5);
    assert!(matches!(ask(&client).await, Err(QueryError::Closed)));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_shutdown_goes_on_but_for_the_end() {
    let fake = Fake::new();
    let client = fake.client();
    let (mut member, _service, _notices) = kept(&client).await;
    fake.with(|w| w.mood = Mood::Slow(SECOND));
    drop_after(MS, client.shutdown()).await;
    // Nothing more is kept, and who waits is told.
    let refused = client.join(group()).or_create(Group::new(1u32)).await;
    assert!(matches!(refused, Err(QueryError::Closed)), "{refused:?}");
    assert!(matches!(client.register(ID, "b").await, Err(QueryError::Closed)));
    assert!(matches!(client.subscribe([Trap::GID_IN]).await, Err(QueryError::Closed)));
    assert!(matches!(member.changed().await, Err(QueryError::Closed)));
    pass(10 * SECOND).await;
    assert_eq!(held(&fake), [0, 0, 0]);
    assert!(ask(&client).await.is_ok());
}

/// Who waits to be in a group, or to be registered, is not kept waiting.
#[tokio::test(start_paused = true)]
async fn who_waits_hears_of_the_end() {
    let fake = Fake::new();
    let client = fake.client();
    ask(&client).await.unwrap();
    fake.with(|w| w.mood = Mood::Slow(SECOND));
    let (joining, registering) = (client.join(group()).or_create(Group::new(1u32)), client.register(ID, "a"));
    let (joining, registering) = (tokio::spawn(joining), tokio::spawn(registering));
    pass(MS).await;
    client.shutdown().await;
    assert!(matches!(joining.await.unwrap(), Err(QueryError::Closed)));
    assert!(matches!(registering.await.unwrap(), Err(QueryError::Closed)));
    assert_eq!(held(&fake), [0, 0, 0]);
    assert_eq!(fake.count(Method::DELETE, McMemberRecord::ATTRIBUTE), 1);
}
