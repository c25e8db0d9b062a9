//! Unreliable connections.

use super::*;

#[tokio::test]
#[ignore = "needs rxe0"]
async fn messages_and_writes_without_acknowledgement() {
    let device = rxe0().await;
    let (a, b) = pair_of(&device, QpType::Uc, 8, 1).await;
    let memory = SharedMemory::zeroed(3000);
    let region = device.domain().register(memory, Access::REMOTE_WRITE).await.unwrap();
    let to = RemoteAddr { addr: region.remote().addr(), rkey: region.remote().rkey() };
    b.recv(1, buf(&device, 3000).await).unwrap();
    b.recv(2, buf(&device, 8).await).unwrap();
    let sent = a.carry_out(SendOp::Send { imm: Some(7) }, filled(&device, &[5; 2500]).await).await;
    assert_eq!((sent.status, sent.op), (Status::SUCCESS, CompletionOp::Send));
    let wrote = a.carry_out(SendOp::Write { to, imm: Some(8) }, filled(&device, &[6; 2500]).await).await;
    assert_eq!((wrote.status, wrote.op), (Status::SUCCESS, CompletionOp::Write));
    let got = b.complete(2).await;
    assert_eq!(
        (got[0].id, got[0].op, got[0].imm, &got[0].sg[0][..]),
        (1, CompletionOp::Recv, Some(7), &[5; 2500][..])
    );
    assert_eq!((got[1].id, got[1].op, got[1].imm, got[1].len), (2, CompletionOp::RecvWrite, Some(8), 2500));
    let mut there = [0; 2500];
    region.copy_to(0, &mut there).unwrap();
    assert_eq!(there, [6; 2500]);
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn what_needs_an_answer_is_refused() {
    let device = rxe0().await;
    let (a, _b) = pair_of(&device, QpType::Uc, 8, 1).await;
    let at = RemoteAddr { addr: 0, rkey: RKey(1) };
    for op in [
        SendOp::Read { from: at },
        SendOp::FetchAdd { at, add: 1 },
        SendOp::CompareSwap { at, compare: 0, swap: 1 },
    ] {
        let refused = a.post(SendWr::new(0, op, buf(&device, 8).await));
        assert!(matches!(refused, Err(PostError::Invalid { .. })), "{refused:?}");
    }
}
