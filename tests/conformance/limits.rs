//! What is used up, and that the error says so.

use ibdev::qp::{OwnCqSpec, QpSpec, QpType};
use ibdev::{AddressVector, DeviceError, PostError, RecvWr, SendFlags, SendOp, SendWr};

use super::bench::Bench;
use super::case::cases;
use super::end::{Options, pair, spec, way};

cases! {
    send_queue_fills_up;
    receive_queue_fills_up;
    place_is_free_when_its_completion_is_polled;
    flushed_work_takes_its_place_until_polled;
    cq_is_too_small_for_a_qp;
    cq_hosts_qps_while_their_work_fits;
    cq_is_longer_than_the_device_allows;
    queues_are_longer_than_the_device_allows;
    buffers_are_more_than_the_device_allows;
    message_is_longer_than_the_device_allows;
    objects_of_another_device_are_refused [TwoDevices];
    address_handle_of_no_port [Ud];
}

const SEND: SendOp = SendOp::Send { imm: None };

fn limit<T: std::fmt::Debug>(result: Result<T, DeviceError>) -> (u64, u64) {
    match result {
        Err(ref error @ DeviceError::Limit { value, limit, .. }) => {
            let text = error.to_string();
            assert!(text.contains(&value.to_string()) && text.contains(&limit.to_string()), "{text}");
            (value, limit)
        }
        other => panic!("{other:?}"),
    }
}

/// The first ones are posted, the rest comes back.
async fn send_queue_fills_up(bench: Bench) {
    let (a, b) = pair(&bench, Options { depth: 4, ..Options::default() }).await;
    let mut work = std::collections::VecDeque::new();
    for id in 0..6 {
        work.push_back(SendWr::new(id, SEND, a.buf(b"one of six").await));
    }
    assert_eq!(a.qp.post_send(&mut work), Err(PostError::Full));
    assert!(work.iter().map(|wr| wr.id).eq([4, 5]));
    assert_eq!(&work[0].sg[0][..], b"one of six");
    b.receives(0, 4, 16).await;
    assert_eq!(a.completions(4).await.len(), 4);
    a.qp.post_send(&mut work).unwrap();
    b.completions(4).await;
    b.receives(0, 2, 16).await;
    assert!(a.completions(2).await.iter().map(|done| done.id).eq([4, 5]));
}

async fn receive_queue_fills_up(bench: Bench) {
    let (_a, b) = pair(&bench, Options { depth: 4, ..Options::default() }).await;
    let mut work = std::collections::VecDeque::new();
    for id in 0..6 {
        work.push_back(RecvWr::new(id, b.room(8).await));
    }
    assert_eq!(b.qp.post_recv(&mut work), Err(PostError::Full));
    assert!(work.iter().map(|wr| wr.id).eq([4, 5]));
}

async fn place_is_free_when_its_completion_is_polled(bench: Bench) {
    let (a, b) = pair(&bench, Options { depth: 2, ..Options::default() }).await;
    b.receives(0, 2, 8).await;
    for id in 0..2 {
        a.send(id, b"x").await;
    }
    let full = || async { a.post(SendWr::new(9, SEND, a.buf(b"x").await)) };
    assert_eq!(full().await, Err(PostError::Full));
    assert_eq!(a.completion().await.id, 0);
    assert_eq!(full().await, Ok(()));
    assert_eq!(b.completions(2).await.len(), 2);
    b.receives(2, 2, 8).await;
    assert_eq!(a.completions(2).await.len(), 2);
}

async fn flushed_work_takes_its_place_until_polled(bench: Bench) {
    let (a, _b) = pair(&bench, Options { depth: 2, ..Options::default() }).await;
    a.modify(ibdev::qp::Transition::Error).await;
    for id in 0..2 {
        a.send(id, b"x").await;
    }
    assert_eq!(a.post(SendWr::new(2, SEND, a.buf(b"x").await)), Err(PostError::Full));
    a.completions(2).await;
    a.send(3, b"x").await;
}

async fn cq_is_too_small_for_a_qp(bench: Bench) {
    let cq = bench.a.create_cq(10).await.unwrap();
    let created = bench.a.domain().create_qp(QpSpec::new(QpType::Rc, &cq, 2000, 2000)).await;
    let (value, most) = limit(created);
    assert!(value > most && most < 2000);
}

async fn cq_hosts_qps_while_their_work_fits(bench: Bench) {
    let cq = bench.a.create_cq(16).await.unwrap();
    let domain = bench.a.domain();
    let create = || domain.create_qp(QpSpec::new(QpType::Rc, &cq, 4, 4));
    let (first, second) = (create().await.unwrap(), create().await.unwrap());
    let mut more = Vec::new();
    // A device may have rounded the capacity up, but not for ever.
    let refused = loop {
        match create().await {
            Ok(qp) => more.push(qp),
            refused => break refused,
        }
        assert!(more.len() < 100_000);
    };
    limit(refused);
    drop(first);
    create().await.unwrap();
    drop((second, more));
    create().await.unwrap();
}

async fn cq_is_longer_than_the_device_allows(bench: Bench) {
    let most = bench.a.attr().max_cqe;
    assert_eq!(limit(bench.a.create_cq(most + 1).await), (most as u64 + 1, most.into()));
}

async fn queues_are_longer_than_the_device_allows(bench: Bench) {
    let attr = bench.a.attr();
    let cq = bench.a.create_cq(attr.max_cqe).await.unwrap();
    for (send, recv) in [(attr.max_qp_wr + 1, 1), (1, attr.max_qp_wr + 1)] {
        limit(bench.a.domain().create_qp(QpSpec::new(QpType::Rc, &cq, send, recv)).await);
        let spec = OwnCqSpec::new(QpType::Rc, send, recv);
        limit(bench.a.domain().create_qp_with_cq(&*bench.a, spec).await);
    }
    if attr.max_srq_wr > 0 {
        let most = attr.max_srq_wr;
        assert_eq!(limit(bench.a.domain().create_srq(most + 1, 1).await), (most as u64 + 1, most.into()));
    }
}

async fn buffers_are_more_than_the_device_allows(bench: Bench) {
    let most = bench.a.attr().max_sge;
    let cq = bench.a.create_cq(2).await.unwrap();
    let spec = QpSpec { max_sge: most + 1, ..QpSpec::new(QpType::Rc, &cq, 1, 1) };
    assert_eq!(limit(bench.a.domain().create_qp(spec).await), (most as u64 + 1, most.into()));
    if bench.a.attr().max_srq_wr > 0 {
        assert_eq!(limit(bench.a.domain().create_srq(1, most + 1).await), (most as u64 + 1, most.into()));
    }
}

/// The buffer is zeros that nobody has written: of 2 GiB the system gives addresses alone.
async fn message_is_longer_than_the_device_allows(bench: Bench) {
    let most = bench.a.attr().max_message as usize;
    let (a, _b) = pair(&bench, Options::default()).await;
    let refused = a.post(SendWr::new(0, SEND, a.room(most + 1).await));
    assert_eq!(refused, Err(PostError::TooLong { len: most + 1, limit: most }));
}

async fn objects_of_another_device_are_refused(bench: Bench) {
    let options = Options::default();
    let cq = bench.b.create_cq(64).await.unwrap();
    let created = bench.a.domain().create_qp(spec(options, &cq)).await;
    assert!(matches!(created, Err(DeviceError::Unsupported { .. })), "{created:?}");
    if bench.a.attr().max_srq_wr > 0 {
        let srq = bench.b.domain().create_srq(4, 1).await.unwrap();
        let cq = bench.a.create_cq(64).await.unwrap();
        let created = bench.a.domain().create_qp(QpSpec { srq: Some(srq), ..spec(options, &cq) }).await;
        assert!(matches!(created, Err(DeviceError::Unsupported { .. })), "{created:?}");
    }
    let (a, _b) = pair(&bench, options).await;
    let foreign = bench.b.domain().alloc(1, 8).await.unwrap().remove(0);
    if foreign.memory_key().is_some() {
        let sg = [foreign].into_iter().collect();
        let refused = a.post(SendWr { id: 0, op: SEND, sg, flags: SendFlags::SIGNALED });
        assert!(matches!(refused, Err(PostError::Invalid { .. })), "{refused:?}");
    }
}

async fn address_handle_of_no_port(bench: Bench) {
    let av = AddressVector { port: 9, ..way(&bench.a, &bench.b, 1, true) };
    let created = bench.a.domain().create_ah(av).await;
    assert_eq!(limit(created), (9, bench.a.attr().ports.into()));
}
