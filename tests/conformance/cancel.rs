//! Slow calls whose futures are dropped, at the start or on the way, leave nothing behind.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use ibdev::qp::Transition;
use ibdev::{Access, SharedMemory};

use super::bench::Bench;
use super::case::cases;
use super::end::{End, Options, connect, own_cq, spec, way};

cases! {
    dropped_creations_leave_nothing;
    dropped_creations_of_memory_leave_nothing [Regions, Srq, Ud];
    dropped_modify_leaves_the_qp_usable;
    dropped_close_goes_on [Close];
}

/// Polls the future so many times, at most to its end, and drops it and what it made.
async fn give_up<F: Future>(polls: usize, future: F) {
    let mut future = pin!(future);
    for _ in 0..polls {
        if poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await {
            return;
        }
        tokio::task::yield_now().await;
    }
}

async fn dropped_creations_leave_nothing(bench: Bench) {
    let options = Options { depth: 4, ..Options::default() };
    let cq = bench.a.create_cq(8).await.unwrap();
    for polls in [0, 1, 2, 5] {
        give_up(polls, bench.a.create_cq(8)).await;
        give_up(polls, bench.a.create_domain()).await;
        let domain = bench.a.domain();
        give_up(polls, domain.create_qp(spec(options, &cq))).await;
        give_up(polls, domain.create_qp_with_cq(&*bench.a, own_cq(options))).await;
        give_up(polls, domain.alloc(4, 64)).await;
    }
    // Its places in the completion queue are free again, at the latest when the device gets to it.
    while bench.a.domain().create_qp(spec(options, &cq)).await.is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    drop(cq);
    bench.nothing_left().await;
}

async fn dropped_creations_of_memory_leave_nothing(bench: Bench) {
    let av = way(&bench.a, &bench.b, 1, true);
    for polls in [0, 1, 2, 5] {
        let domain = bench.a.domain();
        give_up(polls, domain.create_srq(8, 1)).await;
        give_up(polls, domain.create_ah(av)).await;
        let memory = SharedMemory::zeroed(4096);
        give_up(polls, domain.register(memory.clone(), Access::all())).await;
        memory.copy_from(0, b"still ours").unwrap();
    }
    bench.nothing_left().await;
}

/// The change may or may not have happened; RESET is always possible.
async fn dropped_modify_leaves_the_qp_usable(bench: Bench) {
    let (a, b) = (End::new(&bench.a, Options::default()).await, End::new(&bench.b, Options::default()).await);
    for polls in [0, 1, 2, 5] {
        a.modify(Transition::Init(a.init())).await;
        give_up(polls, a.qp.modify(Transition::Rtr(a.rtr(&b)))).await;
        a.modify(Transition::Reset).await;
    }
    connect(&a, &b).await;
    b.receives(0, 1, 8).await;
    assert!(a.carry_out(ibdev::SendOp::Send { imm: None }, b"usable").await.status.is_ok());
}

async fn dropped_close_goes_on(bench: Bench) {
    for device in [&bench.a, &bench.b] {
        give_up(1, device.close()).await;
    }
    bench.hands.nothing_left().await;
}
