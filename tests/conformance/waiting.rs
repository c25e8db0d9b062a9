//! Waiting: who is woken, and how often.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use ibdev::{CompletionQueue, DeviceEvent, MadAgent, OutgoingMad, SendFlags, SendOp};

use super::bench::Bench;
use super::case::cases;
use super::end::{End, Options, pair};

cases! {
    cq_with_completions_is_ready;
    cq_wakes_once;
    cq_wakes_the_last_who_asked;
    cq_wakes_for_errors;
    cq_that_is_dropped_wakes_nobody_twice;
    agent_wakes_the_last_who_asked;
    event_reader_is_the_last_who_asked;
}

const SEND: SendOp = SendOp::Send { imm: None };

/// Counts its wakes.
#[derive(Debug, Default)]
pub struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Bell {
    pub fn rung(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Waits for exactly so many.
    pub async fn rings(&self, count: usize) {
        while self.rung() < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(self.rung(), count);
    }
}

pub fn bell() -> (Arc<Bell>, Waker) {
    let bell = Arc::new(Bell::default());
    (bell.clone(), bell.into())
}

/// Asks until it has to wait: a device that is armed first is ready at once.
pub fn wait(cq: &Arc<dyn CompletionQueue>, waker: &Waker) {
    for _ in 0..10 {
        if cq.poll_notified(&mut Context::from_waker(waker)).is_pending() {
            return;
        }
        assert_eq!(cq.poll(&mut Vec::new(), 1), 0, "nothing was to come");
    }
    panic!("an empty completion queue is ready all the time");
}

/// Sends from `a` to `b`, to its end.
async fn send(a: &End, count: usize) {
    for id in 0..count {
        a.send(id as u64, b"wake up").await;
    }
    a.completions(count).await;
}

/// A message after which everything before has arrived; on another connection, for it must not wake anyone.
async fn settle(other: &(End, End)) {
    other.1.receives(0, 1, 8).await;
    send(&other.0, 1).await;
    other.1.completion().await;
}

async fn cq_with_completions_is_ready(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    b.receives(0, 2, 8).await;
    send(&a, 2).await;
    b.completion().await;
    let (_, waker) = bell();
    // One is left.
    assert_eq!(b.cq.poll_notified(&mut Context::from_waker(&waker)), Poll::Ready(()));
    b.completion().await;
}

async fn cq_wakes_once(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let other = pair(&bench, Options::default()).await;
    b.receives(0, 6, 8).await;
    let (bell, waker) = bell();
    for round in 1..=2 {
        wait(&b.cq, &waker);
        send(&a, 3).await;
        bell.rings(round).await;
        settle(&other).await;
        assert_eq!(bell.rung(), round);
        assert_eq!(b.completed().len(), 3);
    }
}

async fn cq_wakes_the_last_who_asked(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let other = pair(&bench, Options::default()).await;
    b.receives(0, 1, 8).await;
    let ((first, first_waker), (last, last_waker)) = (bell(), bell());
    wait(&b.cq, &first_waker);
    wait(&b.cq, &last_waker);
    send(&a, 1).await;
    last.rings(1).await;
    settle(&other).await;
    assert_eq!((first.rung(), last.rung()), (0, 1));
    assert_eq!(b.completed().len(), 1);
}

async fn cq_wakes_for_errors(bench: Bench) {
    let (a, _b) = pair(&bench, Options::default()).await;
    let other = pair(&bench, Options::default()).await;
    a.receives(0, 1, 8).await;
    let (bell, waker) = bell();
    wait(&a.cq, &waker);
    a.modify(ibdev::qp::Transition::Error).await;
    bell.rings(1).await;
    settle(&other).await;
    assert_eq!(bell.rung(), 1);
    assert_eq!(a.completed().len(), 1);
}

async fn cq_that_is_dropped_wakes_nobody_twice(bench: Bench) {
    let cq = bench.a.create_cq(1).await.unwrap();
    let (bell, waker) = bell();
    wait(&cq, &waker);
    drop(cq);
    drop(waker);
    // The waker goes with the queue, which may be destroyed a little later.
    while Arc::strong_count(&bell) > 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(bell.rung() <= 1);
}

async fn agent_wakes_the_last_who_asked(bench: Bench) {
    let spec = ibdev::AgentSpec {
        port: 1,
        class: ibwire::mad::MgmtClass::CM,
        class_version: 2,
        methods: &[ibwire::mad::Method::SEND],
    };
    let a: Arc<dyn MadAgent> = bench.a.open_agent(spec).unwrap().into();
    let same = Arc::ptr_eq(&bench.a, &bench.b);
    let b: Arc<dyn MadAgent> = if same { a.clone() } else { bench.b.open_agent(spec).unwrap().into() };
    let other = pair(&bench, Options::default()).await;
    let ((first, first_waker), (last, last_waker)) = (bell(), bell());
    let mut mads = Vec::new();
    for waker in [&first_waker, &last_waker] {
        assert!(b.poll_recv(&mut Context::from_waker(waker), &mut mads, 1).is_pending());
    }
    let mut mad = [0; ibdev::MAD_LEN];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    let av = super::end::way(&bench.a, &bench.b, 1, false);
    let to = ibdev::MadAddr { av, qpn: ibwire::Qpn::GSI, qkey: ibwire::QKey::GSI, pkey_index: 0 };
    a.send(&mut [OutgoingMad { to, mad }].into()).unwrap();
    while last.rung() == 0 {
        settle(&other).await;
    }
    assert_eq!((first.rung(), last.rung()), (0, 1));
    assert!(b.poll_recv(&mut Context::from_waker(&last_waker), &mut mads, 1).is_ready());
    assert_eq!(mads.len(), 1);
}

async fn event_reader_is_the_last_who_asked(bench: Bench) {
    let (a, _b) = pair(&bench, Options { rnr_retry: 0, ..Options::default() }).await;
    super::bench::events_now(&a.device);
    let ((first, first_waker), (last, last_waker)) = (bell(), bell());
    for waker in [&first_waker, &last_waker] {
        assert!(a.device.poll_event(&mut Context::from_waker(waker)).is_pending());
    }
    a.start_with(0, SEND, b"fails", SendFlags::empty()).await;
    a.completion().await;
    while last.rung() == 0 {
        // A task that only yields would hold a paused clock.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!((first.rung(), last.rung()), (0, 1));
    super::bench::event(&a.device, DeviceEvent::QpError(a.qp.qpn())).await;
}
