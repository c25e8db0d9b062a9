//! Shared receive queues.

use ibdev::SharedReceiveQueue;

use super::*;

async fn receives(device: &LinuxDevice, srq: &Arc<dyn SharedReceiveQueue>, first: u64, count: usize) {
    let buffers = device.domain().alloc(count, 64).await.unwrap();
    let mut work: VecDeque<_> = (first..).zip(buffers).map(|(id, buf)| RecvWr::new(id, buf)).collect();
    srq.post_recv(&mut work).unwrap();
    assert!(work.is_empty());
}

/// Two ends that send, and two that share a queue of 8.
async fn ends(device: &LinuxDevice) -> (Arc<dyn SharedReceiveQueue>, Vec<(End, End)>) {
    let srq = device.domain().create_srq(8, 1).await.unwrap();
    let mut ends = Vec::new();
    for _ in 0..2 {
        let (a, cq) = (end(device, 8).await, device.create_cq(16).await.unwrap());
        let spec = QpSpec { srq: Some(srq.clone()), ..QpSpec::new(QpType::Rc, &cq, 8, 0) };
        let b = End { qp: device.domain().create_qp(spec).await.unwrap(), cq };
        connect(device, &a, &b).await;
        ends.push((a, b));
    }
    (srq, ends)
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn two_queue_pairs_take_receives_in_order() {
    let device = rxe0().await;
    let (srq, ends) = ends(&device).await;
    receives(&device, &srq, 0, 8).await;
    let mut ids = Vec::new();
    for _ in 0..4 {
        for (a, b) in &ends {
            a.send(0, filled(&device, b"shared").await, None).unwrap();
            assert!(a.complete(1).await[0].status.is_ok());
            let got = b.complete(1).await.remove(0);
            assert_eq!((got.qpn, &got.sg[0][..]), (b.qp.qpn(), &b"shared"[..]));
            ids.push(got.id);
        }
    }
    assert_eq!(ids, (0..8).collect::<Vec<_>>());
    receives(&device, &srq, 8, 8).await; // all places are free again
    let (_, b) = &ends[0];
    assert!(matches!(b.recv(0, buf(&device, 8).await), Err(PostError::Invalid { .. })));
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn the_limit_is_told_once() {
    let device = rxe0().await;
    let (srq, ends) = ends(&device).await;
    let (a, b) = &ends[0];
    receives(&device, &srq, 0, 4).await;
    srq.set_limit(3).unwrap();
    for _ in 0..3 {
        a.send(0, filled(&device, b"x").await, None).unwrap();
        a.complete(1).await;
        b.complete(1).await;
    }
    event(&device, DeviceEvent::SrqLimit(srq.number())).await;
    match srq.set_limit(9) {
        Err(DeviceError::Limit { value, limit, .. }) => assert_eq!((value, limit), (9, 8)),
        other => panic!("{other:?}"),
    }
    srq.set_limit(0).unwrap();
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn a_full_queue_says_so_and_what_does_not_fit_comes_back() {
    let device = rxe0().await;
    let srq = device.domain().create_srq(4, 1).await.unwrap();
    let buffers = device.domain().alloc(6, 8).await.unwrap();
    let mut work: VecDeque<_> = (0..).zip(buffers).map(|(id, buf)| RecvWr::new(id, buf)).collect();
    assert_eq!(srq.post_recv(&mut work), Err(PostError::Full));
    assert!(work.iter().map(|wr| wr.id).eq([4, 5]));
    let other = device.create_domain().await.unwrap();
    let cq = device.create_cq(16).await.unwrap();
    let spec = QpSpec { srq: Some(srq), ..QpSpec::new(QpType::Rc, &cq, 4, 0) };
    assert!(matches!(other.create_qp(spec).await, Err(DeviceError::Unsupported { .. })));
}

/// A queue pair that goes away with completions which nobody polled leaves no place taken.
#[tokio::test]
#[ignore = "needs rxe0"]
async fn a_destroyed_queue_pair_leaves_its_places() {
    let device = rxe0().await;
    let (srq, mut ends) = ends(&device).await;
    receives(&device, &srq, 0, 8).await;
    let (a, b) = ends.remove(0);
    for _ in 0..3 {
        a.send(0, filled(&device, b"unread").await, None).unwrap();
        a.complete(1).await;
    }
    drop((a, b));
    let mut work: VecDeque<_> = VecDeque::new();
    for (id, buf) in (8..).zip(device.domain().alloc(3, 64).await.unwrap()) {
        work.push_back(RecvWr::new(id, buf));
    }
    within("places", async {
        while srq.post_recv(&mut work).is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let (c, d) = &ends[0];
    c.send(0, filled(&device, b"read").await, None).unwrap();
    assert_eq!(d.complete(1).await[0].id, 3);
}
