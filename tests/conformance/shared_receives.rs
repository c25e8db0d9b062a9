//! Shared receive queues.

use std::collections::VecDeque;
use std::sync::Arc;

use ibdev::qp::{QpSpec, Transition};
use ibdev::{
    Access, CompletionOp, DeviceError, DeviceEvent, PostError, ProtectionDomain, RecvWr, SendOp,
    SharedReceiveQueue, Status,
};

use super::bench::{Bench, event, events_now};
use super::case::cases;
use super::drops::Shelf;
use super::end::{End, Options, connect, message, remote, spec};

cases! {
    srq_serves_two_qps [Srq];
    srq_serves_writes_with_immediate [Srq, Regions];
    srq_that_is_empty_delays_the_sender [Srq];
    srq_scatters [Srq, ScatterGather];
    srq_fills_up [Srq];
    srq_limit_is_an_event_once [Srq];
    srq_limit_is_within_the_queue [Srq];
    srq_keeps_receives_of_a_qp_in_error [Srq];
    srq_last_wqe_is_an_event [Srq, QpEvents];
    srq_belongs_to_its_domain [Srq];
    srq_qp_has_no_receive_queue [Srq];
    srq_gives_buffers_back [Srq];
    srqs_have_numbers [Srq];
    srq_outlives_a_qp_and_a_qp_outlives_its_handle [Srq];
}

const SEND: SendOp = SendOp::Send { imm: None };

/// `a` ends of their own, `b` ends that share `srq`.
async fn pairs(
    bench: &Bench,
    count: usize,
    options: Options,
) -> (Arc<dyn SharedReceiveQueue>, Vec<(End, End)>) {
    let domain = bench.b.domain();
    let srq = domain.create_srq(16, options.sge).await.unwrap();
    let mut ends = Vec::new();
    for _ in 0..count {
        let a = End::new(&bench.a, options).await;
        let b = End::in_domain(&bench.b, domain.clone(), options, Some(srq.clone())).await;
        connect(&a, &b).await;
        ends.push((a, b));
    }
    (srq, ends)
}

async fn receives(
    srq: &Arc<dyn SharedReceiveQueue>,
    domain: &Arc<dyn ProtectionDomain>,
    first: u64,
    count: usize,
    len: usize,
) {
    let buffers = domain.alloc(count, len).await.unwrap();
    let mut work: VecDeque<_> = (first..).zip(buffers).map(|(id, buf)| RecvWr::new(id, buf)).collect();
    srq.post_recv(&mut work).unwrap();
    assert!(work.is_empty());
}

async fn srq_serves_two_qps(bench: Bench) {
    let (srq, ends) = pairs(&bench, 2, Options::default()).await;
    receives(&srq, &ends[0].1.domain, 0, 8, 2000).await;
    let mut ids = Vec::new();
    for round in 0..4 {
        for (a, b) in &ends {
            assert!(a.carry_out(SEND, &message(round, 2000)).await.status.is_ok());
            let got = b.completion().await;
            assert_eq!((got.qpn, got.op, got.status), (b.qp.qpn(), CompletionOp::Recv, Status::SUCCESS));
            assert!(got.sg[0][..] == message(round, 2000));
            ids.push(got.id);
        }
    }
    assert!(ids.into_iter().eq(0..8), "taken in order");
}

async fn srq_serves_writes_with_immediate(bench: Bench) {
    let (srq, ends) = pairs(&bench, 1, Options::default()).await;
    let (a, b) = &ends[0];
    let region = b.expose(64, Access::REMOTE_WRITE).await;
    receives(&srq, &b.domain, 3, 1, 8).await;
    let op = SendOp::Write { to: remote(&region, 0), imm: Some(5) };
    assert!(a.carry_out(op, &[1; 64]).await.status.is_ok());
    let got = b.completion().await;
    assert_eq!((got.id, got.op, got.imm, got.len), (3, CompletionOp::RecvWrite, Some(5), 64));
}

async fn srq_that_is_empty_delays_the_sender(bench: Bench) {
    let (srq, ends) = pairs(&bench, 1, Options::default()).await;
    let (a, b) = &ends[0];
    a.send(0, b"early").await;
    let receive = async {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        receives(&srq, &b.domain, 0, 1, 8).await;
        b.completion().await
    };
    let (done, got) = tokio::join!(a.completion(), receive);
    assert_eq!((done.status, &got.sg[0][..]), (Status::SUCCESS, &b"early"[..]));
}

async fn srq_scatters(bench: Bench) {
    let (srq, ends) = pairs(&bench, 1, Options { sge: 2, ..Options::default() }).await;
    let (a, b) = &ends[0];
    let sg = [b.room(8).await, b.room(2000).await].into_iter().collect();
    srq.post_recv(&mut [RecvWr { id: 0, sg }].into()).unwrap();
    assert!(a.carry_out(SEND, &message(1, 1500)).await.status.is_ok());
    let got = b.completion().await;
    assert!(got.sg.iter().map(|buf| buf.len()).eq([8, 1492]));
    assert!(got.sg.iter().flat_map(|buf| buf.iter().copied()).eq(message(1, 1500)));
}

async fn srq_fills_up(bench: Bench) {
    let domain = bench.b.domain();
    let srq = domain.create_srq(4, 1).await.unwrap();
    let buffers = domain.alloc(6, 8).await.unwrap();
    let mut work: VecDeque<_> = (0..).zip(buffers).map(|(id, buf)| RecvWr::new(id, buf)).collect();
    assert_eq!(srq.post_recv(&mut work), Err(PostError::Full));
    assert!(work.iter().map(|wr| wr.id).eq([4, 5]));
}

async fn srq_limit_is_an_event_once(bench: Bench) {
    let (srq, ends) = pairs(&bench, 1, Options::default()).await;
    let (a, b) = &ends[0];
    let reached = DeviceEvent::SrqLimit(srq.number());
    receives(&srq, &b.domain, 0, 4, 8).await;
    srq.set_limit(3).unwrap();
    assert!(a.carry_out(SEND, b"3 left").await.status.is_ok());
    b.completion().await;
    assert!(!events_now(&b.device).contains(&reached), "three are not fewer than three");
    assert!(a.carry_out(SEND, b"2 left").await.status.is_ok());
    event(&b.device, reached).await;
    assert!(a.carry_out(SEND, b"1 left").await.status.is_ok());
    assert!(!events_now(&b.device).contains(&reached), "once");
    b.completions(2).await;
    // Set again, it comes again; 0 asks for none.
    receives(&srq, &b.domain, 4, 2, 8).await;
    srq.set_limit(2).unwrap();
    srq.set_limit(0).unwrap();
    for _ in 0..2 {
        assert!(a.carry_out(SEND, b"fewer").await.status.is_ok());
        b.completion().await;
    }
    assert!(!events_now(&b.device).contains(&reached));
}

async fn srq_limit_is_within_the_queue(bench: Bench) {
    let srq = bench.a.domain().create_srq(4, 1).await.unwrap();
    srq.set_limit(4).unwrap();
    match srq.set_limit(1 << 30) {
        Err(DeviceError::Limit { value, limit, .. }) => assert!(value == 1 << 30 && limit >= 4),
        other => panic!("{other:?}"),
    }
}

/// They are there for others.
async fn srq_keeps_receives_of_a_qp_in_error(bench: Bench) {
    let (srq, ends) = pairs(&bench, 2, Options::default()).await;
    let [(_, b), (c, d)] = &ends[..] else { panic!("two pairs") };
    receives(&srq, &b.domain, 0, 2, 8).await;
    b.modify(Transition::Error).await;
    for id in 0..2 {
        assert!(c.carry_out(SEND, b"others").await.status.is_ok());
        let got = d.completion().await;
        assert_eq!(got.id, id);
    }
    assert!(b.completed().is_empty());
}

async fn srq_last_wqe_is_an_event(bench: Bench) {
    let (srq, ends) = pairs(&bench, 1, Options::default()).await;
    let (_a, b) = &ends[0];
    receives(&srq, &b.domain, 0, 2, 8).await;
    b.modify(Transition::Error).await;
    event(&b.device, DeviceEvent::LastWqeReached(b.qp.qpn())).await;
    assert!(!events_now(&b.device).contains(&DeviceEvent::LastWqeReached(b.qp.qpn())));
}

async fn srq_belongs_to_its_domain(bench: Bench) {
    let srq = bench.b.create_domain().await.unwrap().create_srq(4, 1).await.unwrap();
    let options = Options::default();
    let cq = bench.b.create_cq(64).await.unwrap();
    let created = bench.b.domain().create_qp(QpSpec { srq: Some(srq), ..spec(options, &cq) }).await;
    assert!(matches!(created, Err(DeviceError::Unsupported { .. })), "{created:?}");
}

async fn srq_qp_has_no_receive_queue(bench: Bench) {
    let (_srq, ends) = pairs(&bench, 1, Options::default()).await;
    let (_a, b) = &ends[0];
    let refused = b.qp.post_recv(&mut [RecvWr::new(0, b.room(8).await)].into());
    assert!(matches!(refused, Err(PostError::Invalid { .. })), "{refused:?}");
}

async fn srq_gives_buffers_back(bench: Bench) {
    let (srq, ends) = pairs(&bench, 1, Options::default()).await;
    let shelf = Shelf::new();
    let buffers = ends[0].1.domain.alloc(3, 8).await.unwrap();
    let mut work = (0..).zip(buffers).map(|(id, buf)| RecvWr::new(id, shelf.label(buf))).collect();
    srq.post_recv(&mut work).unwrap();
    drop(srq);
    assert_eq!(shelf.count(), 0, "the queue pair holds it");
    drop(ends);
    shelf.holds(3).await;
}

async fn srqs_have_numbers(bench: Bench) {
    let domain = bench.a.domain();
    let (one, two) = (domain.create_srq(4, 1).await.unwrap(), domain.create_srq(4, 1).await.unwrap());
    assert_ne!(one.number(), two.number());
}

async fn srq_outlives_a_qp_and_a_qp_outlives_its_handle(bench: Bench) {
    let (srq, mut ends) = pairs(&bench, 2, Options::default()).await;
    let (a, b) = ends.remove(1);
    receives(&srq, &b.domain, 0, 2, 8).await;
    drop(ends);
    assert!(a.carry_out(SEND, b"one").await.status.is_ok());
    drop(srq);
    assert!(a.carry_out(SEND, b"two").await.status.is_ok());
    assert!(b.completions(2).await.iter().map(|got| got.id).eq(0..2));
}
