//! Reliable connections of rxe0 with itself.

use super::*;

#[tokio::test]
#[ignore = "needs rxe0"]
async fn messages_go_both_ways_whole_and_in_order() {
    let device = rxe0().await;
    let (a, b) = pair(&device, 16).await;
    // 0 bytes, within a packet, a whole one, one more, many.
    let lengths = [0, 1, 1023, 1024, 1025, 100_000];
    for (from, to) in [(&a, &b), (&b, &a)] {
        let mut receives: VecDeque<_> =
            (0..).zip(device.domain().alloc(lengths.len(), 100_000).await.unwrap()).collect();
        for (id, buf) in receives.drain(..) {
            to.recv(100 + id, buf).unwrap();
        }
        for (id, len) in (0..).zip(lengths) {
            let mut buf = buf(&device, 100_000).await;
            buf.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i + len) as u8);
            buf.resize(len, 0);
            from.send(id, buf, (id % 2 == 0).then_some(0xdead_0000 + id as u32)).unwrap();
        }
        for (sent, id) in from.complete(lengths.len()).await.into_iter().zip(0..) {
            assert_eq!((sent.id, sent.status, sent.op), (id, Status::SUCCESS, CompletionOp::Send));
            assert_eq!((sent.qpn, sent.imm), (from.qp.qpn(), None));
        }
        for ((received, id), len) in to.complete(lengths.len()).await.into_iter().zip(0..).zip(lengths) {
            assert_eq!(
                (received.id, received.status, received.op),
                (100 + id, Status::SUCCESS, CompletionOp::Recv)
            );
            assert_eq!((received.qpn, received.len as usize), (to.qp.qpn(), len));
            assert_eq!(received.imm, (id % 2 == 0).then_some(0xdead_0000 + id as u32));
            assert_eq!(received.sg[0].len(), len);
            assert!(
                received.sg[0].iter().enumerate().all(|(i, byte)| *byte == (i + len) as u8),
                "{len} bytes"
            );
        }
    }
}

/// What asks whether a peer is there: a write of no length needs neither memory nor a key nor a receive.
#[tokio::test]
#[ignore = "needs rxe0"]
async fn a_write_of_no_length_is_answered() {
    let device = rxe0().await;
    let (a, b) = pair(&device, 4).await;
    let to = RemoteAddr { addr: 0, rkey: RKey(0) };
    let wr = SendWr::new(7, SendOp::Write { to, imm: None }, Buf::unregistered(0));
    a.qp.post_send(&mut VecDeque::from([wr])).unwrap();
    let done = a.complete(1).await.remove(0);
    assert_eq!((done.id, done.status, done.op), (7, Status::SUCCESS, CompletionOp::Write));
    assert_eq!(b.cq.poll(&mut Vec::new(), 1), 0);
}

/// Many rounds in which each side parks until the other's message is there: no completion goes unnoticed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs rxe0"]
async fn ping_pong_never_misses_a_wake_up() {
    const ROUNDS: u32 = 500;
    let device = rxe0().await;
    let (a, b) = pair(&device, 4).await;
    let mut buffers = device.domain().alloc(4, 64).await.unwrap();
    let mut buf = || buffers.pop().unwrap();
    a.recv(0, buf()).unwrap();
    b.recv(0, buf()).unwrap();
    let (ball, spare) = (buf(), buf());
    let server = tokio::spawn(async move {
        let mut spare = Some(spare);
        for round in 0..ROUNDS {
            let (sent, received) = round_trip(&b, spare.take(), round).await;
            b.recv(0, sent).unwrap();
            b.send(0, received, Some(round)).unwrap();
        }
        b.complete(1).await;
    });
    let mut ball = ball;
    for round in 0..ROUNDS {
        a.send(0, ball, Some(round)).unwrap();
        let (sent, received) = round_trip(&a, None, round).await;
        a.recv(0, received).unwrap();
        ball = sent;
    }
    server.await.unwrap();
}

/// Waits for one message and, without a spare buffer, for the own send.
async fn round_trip(end: &End, spare: Option<Buf>, round: u32) -> (Buf, Buf) {
    let (mut sent, mut received) = (spare, None);
    while sent.is_none() || received.is_none() {
        let done = end.complete(1).await.remove(0);
        assert!(done.status.is_ok(), "{}", done.status);
        match done.op {
            CompletionOp::Recv => {
                assert_eq!(done.imm, Some(round));
                received = done.into_buf();
            }
            _ => sent = done.into_buf(),
        }
    }
    (sent.unwrap(), received.unwrap())
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn what_can_not_be_posted_stays_with_the_caller_and_says_why() {
    let device = rxe0().await;
    let one = end(&device, 4).await;
    let state = |error| match error {
        Err(PostError::State { state }) => state,
        other => panic!("{other:?}"),
    };
    assert_eq!(state(one.recv(0, buf(&device, 8).await)), "RESET");
    assert_eq!(state(one.send(0, buf(&device, 8).await, None)), "RESET");
    one.init().await;
    one.recv(0, buf(&device, 8).await).unwrap();
    assert_eq!(state(one.send(0, buf(&device, 8).await, None)), "INIT");

    let (a, _b) = pair(&device, 4).await;
    assert!(matches!(a.send(0, Buf::unregistered(8), None), Err(PostError::Invalid { .. })));
    let other = rxe0().await;
    assert!(matches!(a.send(0, buf(&other, 8).await, None), Err(PostError::Invalid { .. })));
    match a.send(0, buf(&device, (1 << 23) + 1).await, None) {
        Err(PostError::TooLong { len, limit }) => assert_eq!((len, limit), ((1 << 23) + 1, 1 << 23)),
        other => panic!("{other:?}"),
    }
    // Nobody takes messages at the other end, so the queue fills.
    let buffers = device.domain().alloc(64, 8).await.unwrap();
    let mut work: VecDeque<_> = (0..)
        .zip(buffers)
        .map(|(id, buf)| SendWr::new(id, SendOp::Send { imm: Some(id as u32) }, buf))
        .collect();
    assert!(matches!(a.qp.post_send(&mut work), Err(PostError::Full)));
    let posted = 64 - work.len();
    assert_eq!(posted, 4);
    let front = &work[0];
    assert_eq!(front.id, posted as u64);
    assert!(matches!(front.op, SendOp::Send { imm: Some(imm) } if imm == posted as u32));
    assert!(front.sg[0].len() == 8);
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn an_error_flushes_what_is_posted_and_what_is_posted_later() {
    let device = rxe0().await;
    let (a, _b) = pair(&device, 4).await;
    for id in 0..3 {
        a.recv(id, buf(&device, 8).await).unwrap();
    }
    a.qp.modify(Transition::Error).await.unwrap();
    a.send(3, buf(&device, 8).await, None).unwrap();
    let mut done = a.complete(4).await;
    done.sort_by_key(|done| done.id);
    for (done, id) in done.into_iter().zip(0..) {
        assert_eq!((done.id, done.status, done.sg[0].capacity()), (id, Status::WR_FLUSH_ERR, 8));
        assert_eq!(done.op, if id < 3 { CompletionOp::Recv } else { CompletionOp::Send });
    }
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn a_peer_that_is_gone_ends_the_send_by_its_retries() {
    let device = rxe0().await;
    let (a, b) = pair(&device, 4).await;
    b.qp.modify(Transition::Error).await.unwrap();
    a.send(1, buf(&device, 8).await, None).unwrap();
    a.send(2, buf(&device, 8).await, None).unwrap();
    let done = a.complete(2).await;
    assert_eq!((done[0].id, done[0].status), (1, Status::RETRY_EXC_ERR));
    assert_eq!((done[1].id, done[1].status), (2, Status::WR_FLUSH_ERR));
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn a_reset_qp_connects_again_and_completes_nothing_of_before() {
    let device = rxe0().await;
    let (a, b) = pair(&device, 4).await;
    for id in 0..3 {
        a.recv(id, buf(&device, 8).await).unwrap();
    }
    for end in [&a, &b] {
        end.qp.modify(Transition::Reset).await.unwrap();
        end.init().await;
    }
    a.recv(10, buf(&device, 8).await).unwrap();
    a.connect(&device, b.qp.qpn(), HERE).await;
    b.connect(&device, a.qp.qpn(), HERE).await;
    b.send(11, buf(&device, 5).await, None).unwrap();
    let done = a.complete(1).await.remove(0);
    assert_eq!((done.id, done.status, done.len), (10, Status::SUCCESS, 5));
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn transitions_out_of_the_table_and_out_of_range_are_refused() {
    let device = rxe0().await;
    let one = end(&device, 4).await;
    assert!(matches!(one.qp.modify(Transition::Error).await, Err(DeviceError::State { state: "RESET" })));
    one.init().await;
    let rts = Rts {
        sq_psn: Psn::default(),
        timeout: TimeCode::truncate(12),
        retry_count: 8,
        rnr_retry: 7,
        max_rd_atomic: 0,
        alternate: None,
    };
    assert!(matches!(one.qp.modify(Transition::Rts(rts)).await, Err(DeviceError::State { state: "INIT" })));
    one.connect(&device, Qpn::truncate(0x77), HERE).await;
    one.qp.modify(Transition::Reset).await.unwrap();
    one.init().await;
    let grh = av(&device, HERE).grh.map(|route| GlobalRoute { sgid_index: 256, ..route });
    let rtr = Rtr {
        av: AddressVector { grh, ..av(&device, HERE) },
        path_mtu: Mtu::B1024,
        dest_qpn: Qpn::truncate(0x77),
        rq_psn: Psn::default(),
        max_dest_rd_atomic: 0,
        min_rnr_timer: RnrTimer::truncate(12),
    };
    match one.qp.modify(Transition::Rtr(rtr)).await {
        Err(DeviceError::Limit { what, value, limit }) => {
            assert_eq!((what, value, limit), ("GID index", 256, 255));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn completion_queues_of_another_device_are_refused() {
    let (device, other) = (rxe0().await, rxe0().await);
    let cq = other.create_cq(4).await.unwrap();
    let spec = QpSpec::new(QpType::Rc, &cq, 1, 1);
    assert!(matches!(device.domain().create_qp(spec).await, Err(DeviceError::Unsupported { .. })));
}
