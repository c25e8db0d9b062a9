//! Datagrams of rxe0 with itself.

use ibdev::{AddressHandle, DatagramDest};

use super::*;

const GRH: usize = 40;
const QKEY: QKey = QKey(0x1234_5678);

async fn ready(device: &LinuxDevice) -> End {
    let end = end_of(device, QpType::Ud, 8, 2).await;
    let init = Init { port: 1, pkey_index: 0, access: Access::empty(), qkey: QKEY };
    for step in [
        Transition::Init(init),
        Transition::DatagramRtr,
        Transition::DatagramRts { sq_psn: Psn::truncate(0xff_fffe) },
    ] {
        end.qp.modify(step).await.unwrap();
    }
    end
}

fn to(ah: &Arc<dyn AddressHandle>, end: &End, qkey: QKey, imm: Option<u32>) -> SendOp {
    SendOp::Datagram { to: DatagramDest { ah: ah.clone(), qpn: end.qp.qpn(), qkey }, imm }
}

/// Over IPv4 and IPv6, and back by what the receiver was told alone.
#[tokio::test]
#[ignore = "needs rxe0"]
async fn a_datagram_tells_its_sender_and_is_answered() {
    let device = rxe0().await;
    let (a, b) = (ready(&device).await, ready(&device).await);
    for (family, here) in [("v4", HERE), ("v6", "fd77::1")] {
        let ah = device.domain().create_ah(av_from(&device, here, here)).await.unwrap();
        a.recv(1, buf(&device, 256).await).unwrap();
        b.recv(2, buf(&device, 256).await).unwrap();
        let sent = a.carry_out(to(&ah, &b, QKEY, Some(3)), filled(&device, b"question").await).await;
        assert_eq!((sent.status, sent.op), (Status::SUCCESS, CompletionOp::Send), "{family}");
        let got = b.complete(1).await.remove(0);
        assert_eq!((got.id, got.len as usize, got.imm), (2, GRH + 8, Some(3)), "{family}");
        assert_eq!(&got.sg[0][GRH..], b"question");
        let from = got.from.unwrap();
        assert_eq!((from.qpn, from.slid, from.pkey_index), (a.qp.qpn(), Lid::NONE, 0));
        let grh = from.grh.unwrap();
        assert_eq!(
            (grh.dgid, grh.sgid_index),
            (here.parse().unwrap(), ah.av().grh.unwrap().sgid_index),
            "{family}"
        );
        let back = AddressVector { grh: Some(grh), ..*ah.av() };
        let back = device.domain().create_ah(back).await.unwrap();
        let dest = DatagramDest { ah: back, qpn: from.qpn, qkey: QKEY };
        b.carry_out(SendOp::Datagram { to: dest, imm: None }, filled(&device, b"answer").await).await;
        assert_eq!(&a.complete(1).await[0].sg[0][GRH..], b"answer", "{family}");
    }
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn a_foreign_qkey_reaches_nobody_and_the_own_one_is_put_in() {
    let device = rxe0().await;
    let (a, b) = (ready(&device).await, ready(&device).await);
    let ah = device.domain().create_ah(av(&device, HERE)).await.unwrap();
    b.recv(0, buf(&device, 64).await).unwrap();
    assert!(a.carry_out(to(&ah, &b, QKey(1), None), filled(&device, b"wrong").await).await.status.is_ok());
    a.carry_out(to(&ah, &b, QKey(0x8000_0000), None), filled(&device, b"own").await).await;
    assert_eq!(&b.complete(1).await[0].sg[0][GRH..], b"own");
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn what_a_datagram_queue_pair_does_not_take() {
    let device = rxe0().await;
    let a = ready(&device).await;
    let ah = device.domain().create_ah(av(&device, HERE)).await.unwrap();
    let other = device.create_domain().await.unwrap();
    let foreign = other.create_ah(av(&device, HERE)).await.unwrap();
    let too_long = a.post(SendWr::new(0, to(&ah, &a, QKEY, None), buf(&device, 1025).await));
    assert_eq!(too_long, Err(PostError::TooLong { len: 1025, limit: 1024 }));
    for op in [SendOp::Send { imm: None }, to(&foreign, &a, QKEY, None)] {
        let refused = a.post(SendWr::new(0, op, buf(&device, 8).await));
        assert!(matches!(refused, Err(PostError::Invalid { .. })), "{refused:?}");
    }
    let no_port = AddressVector { port: 2, ..av(&device, HERE) };
    match device.domain().create_ah(no_port).await {
        Err(DeviceError::Limit { value, limit, .. }) => assert_eq!((value, limit), (2, 1)),
        other => panic!("{other:?}"),
    }
    let rtr = a.qp.modify(Transition::Rts(Rts {
        sq_psn: Psn::default(),
        timeout: TimeCode::truncate(0),
        retry_count: 0,
        rnr_retry: 0,
        max_rd_atomic: 0,
        alternate: None,
    }));
    assert!(rtr.await.is_err());
}

/// The handle is dropped as soon as the datagram is posted, which leaves all the same.
#[tokio::test]
#[ignore = "needs rxe0"]
async fn a_posted_datagram_keeps_its_address_handle() {
    let device = rxe0().await;
    let (a, b) = (ready(&device).await, ready(&device).await);
    for round in 0..8 {
        b.recv(round, buf(&device, 64).await).unwrap();
        let ah = device.domain().create_ah(av(&device, HERE)).await.unwrap();
        let op = to(&ah, &b, QKEY, None);
        drop(ah);
        a.post(SendWr::new(0, op, filled(&device, b"x").await)).unwrap();
    }
    assert!(a.complete(8).await.iter().all(|done| done.status.is_ok()));
    assert_eq!(b.complete(8).await.len(), 8);
}
