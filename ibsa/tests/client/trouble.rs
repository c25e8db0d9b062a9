//! An SA that is silent, slow or busy; more requests than there is room for; a port that cannot be read.

use ibdev::DeviceEvent;
use ibsa::record::{PathRecord, Record, Template};
use ibsa::{Config, QueryError};
use ibwire::mad::Method;
use ibwire::{Gid, Guid, Lid};

use crate::fake::{Fake, Mood};
use crate::{MS, SECOND, drop_after, pass, settle};

fn wanted(n: u64) -> Template<PathRecord> {
    Template::<PathRecord>::new().dgid(Gid::link_local(Guid(n)))
}

fn asked(fake: &Fake) -> usize {
    fake.count(Method::GET, PathRecord::ATTRIBUTE)
}

#[tokio::test(start_paused = true)]
async fn sa_t28_a_silent_sa_is_an_error_in_the_end() {
    let fake = Fake::new();
    let client = fake.client();
    fake.with(|w| w.mood = Mood::Silent);
    let error = client.get(wanted(1)).await.unwrap_err();
    let QueryError::Silent(effort) = error else { panic!("{error}") };
    assert_eq!((effort.sent, asked(&fake)), (5, 5));
    assert!(effort.waited <= client.default_timeout());
}

#[tokio::test(start_paused = true)]
async fn sa_t31_a_busy_sa_and_a_slow_one_answer_in_the_end() {
    let fake = Fake::new();
    let client = fake.client();
    fake.with(|w| w.mood = Mood::Busy);
    let query = tokio::spawn({
        let client = client.clone();
        async move { client.get(wanted(1)).await }
    });
    pass(SECOND).await;
    assert!(client.stats().busy >= 2);
    fake.with(|w| w.mood = Mood::Slow(2 * SECOND));
    assert_eq!(query.await.unwrap().unwrap().dlid, Lid(9));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_request_is_forgotten() {
    let fake = Fake::new();
    let client = fake.client();
    fake.with(|w| w.mood = Mood::Slow(SECOND));
    // While the port is opened, while the answer is on its way.
    drop(client.get(wanted(1)));
    drop_after(MS, client.get(wanted(1))).await;
    pass(100 * SECOND).await;
    assert_eq!((asked(&fake), client.stats().dropped_stray), (1, 1), "not repeated, the answer is a stray");
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_bounded() {
    let fake = Fake::new();
    let mut config = Config::default();
    (config.queue, config.window) = (8, 2);
    let client = fake.client_with(config);
    fake.with(|w| w.mood = Mood::Silent);
    let ask = |n| {
        let client = client.clone();
        tokio::spawn(async move { client.get(wanted(n)).await })
    };
    let waiting: Vec<_> = (0..8).map(ask).collect();
    settle().await;
    let full = client.get(wanted(9)).await;
    assert!(matches!(full, Err(QueryError::QueueFull { limit: 8 })), "{full:?}");
    assert_eq!((asked(&fake), client.stats().refused_queue), (2, 1), "two at a time");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    settle().await;
    fake.with(|w| w.mood = Mood::Prompt);
    client.get(wanted(9)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_port_that_is_not_readable_is_read_again() {
    let fake = Fake::new();
    let client = fake.client();
    client.get(wanted(1)).await.unwrap();
    fake.with(|w| (w.unreadable, w.tables.attr.sm_lid) = (2, Lid(7)));
    client.device_event(DeviceEvent::SmChange(1));
    let started = tokio::time::Instant::now();
    client.get(wanted(1)).await.unwrap();
    assert!(started.elapsed() <= 6 * SECOND, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_sa_says_so() {
    let fake = Fake::new();
    fake.with(|w| w.tables.attr.sm_lid = Lid::NONE);
    let client = fake.client();
    let error = client.get(wanted(1)).await.unwrap_err();
    assert!(matches!(error, QueryError::NoSa), "{error}");
    assert_eq!(asked(&fake), 0);
}

#[tokio::test(start_paused = true)]
async fn a_device_that_goes_ends_what_waits() {
    let fake = Fake::new();
    let client = fake.client();
    fake.with(|w| w.mood = Mood::Silent);
    let query = tokio::spawn({
        let client = client.clone();
        async move { client.get(wanted(1)).await }
    });
    settle().await;
    client.device_event(DeviceEvent::Gone);
    let error = query.await.unwrap().unwrap_err();
    assert!(matches!(error, QueryError::Device(ibdev::DeviceError::Gone)), "{error}");
}

/// A client outlives the runtime that it ran on; its handles answer.
#[test]
fn the_end_of_the_runtime_ends_what_waits() {
    let fake = Fake::new();
    let client = fake.client();
    let on = |f: &dyn Fn(&tokio::runtime::Runtime)| {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        f(&builder.enable_time().start_paused(true).build().unwrap());
    };
    on(&|runtime| _ = runtime.block_on(client.get(wanted(1))).unwrap());
    on(&|runtime| {
        runtime.block_on(async {
            for _ in 0..2 {
                let path = client.path(Gid::link_local(Guid(1))).await;
                assert!(matches!(path, Err(QueryError::Closed)), "{path:?}");
            }
            assert!(matches!(client.get(wanted(1)).await, Err(QueryError::Closed)));
        });
    });
}
