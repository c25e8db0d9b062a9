//! Unreliable connections: messages and writes that nobody acknowledges.

use ibdev::qp::{QpType, Transition};
use ibdev::{Access, CompletionOp, PostError, SendFlags, SendOp, SendWr, Status};

use super::bench::Bench;
use super::case::cases;
use super::differs::Difference;
use super::end::{Options, bytes, message, no_rkey, pair, remote, write};
use super::memory::{ok, read};

cases! {
    uc_send_of_every_length [Uc];
    uc_send_with_immediate [Uc];
    uc_write [Uc, Regions];
    uc_write_with_immediate [Uc, Regions];
    uc_gathers_and_scatters [Uc, ScatterGather];
    uc_unsignaled [Uc];
    uc_completes_without_a_peer [Uc];
    uc_message_without_a_receive_is_dropped [Uc];
    uc_message_too_long_for_its_receive_is_dropped [Uc];
    uc_refused_write_is_dropped [Uc, Regions];
    uc_takes_no_reads_and_atomics [Uc, Regions];
    uc_error_flushes [Uc];
    uc_both_ways [Uc];
}

const SEND: SendOp = SendOp::Send { imm: None };

fn uc() -> Options {
    Options { kind: QpType::Uc, ..Options::default() }
}

async fn uc_send_of_every_length(bench: Bench) {
    let (a, b) = pair(&bench, uc()).await;
    for (n, len) in (0..).zip([0, 1, 3, 1023, 1024, 1025, 5000, 20_001]) {
        b.receives(n, 1, 20_001).await;
        ok(&a.carry_out(SEND, &message(n, len)).await, CompletionOp::Send);
        let got = b.completion().await;
        ok(&got, CompletionOp::Recv);
        assert_eq!((got.id, got.len as usize, got.imm), (n, len, None));
        assert!(got.sg[0][..] == message(n, len), "{len} bytes");
    }
}

async fn uc_send_with_immediate(bench: Bench) {
    let (a, b) = pair(&bench, uc()).await;
    for len in [0, 10, 3000] {
        b.receives(0, 1, 3000).await;
        ok(&a.carry_out(SendOp::Send { imm: Some(0x0102_0304) }, &message(1, len)).await, CompletionOp::Send);
        let got = b.completion().await;
        assert_eq!((got.imm, got.len as usize), (Some(0x0102_0304), len));
    }
}

async fn uc_write(bench: Bench) {
    let (a, b) = pair(&bench, uc()).await;
    let region = b.expose(30_000, Access::REMOTE_WRITE).await;
    for (n, len) in (0..).zip([1, 8, 1024, 1025, 20_001]) {
        ok(&a.carry_out(write(remote(&region, 77)), &message(n, len)).await, CompletionOp::Write);
        // Nobody says when it is there, but the message behind it.
        b.receives(0, 1, 8).await;
        a.carry_out(SEND, b"look").await;
        ok(&b.completion().await, CompletionOp::Recv);
        assert!(bytes(&region)[77..77 + len] == message(n, len), "{len} bytes");
    }
}

async fn uc_write_with_immediate(bench: Bench) {
    let (a, b) = pair(&bench, uc()).await;
    let region = b.expose(5000, Access::REMOTE_WRITE).await;
    for (len, imm) in [(0, 7), (3, 8), (4000, u32::MAX)] {
        b.receives(5, 1, 8).await;
        let op = SendOp::Write { to: remote(&region, 10), imm: Some(imm) };
        ok(&a.carry_out(op, &message(2, len)).await, CompletionOp::Write);
        let got = b.completion().await;
        ok(&got, CompletionOp::RecvWrite);
        assert_eq!((got.id, got.len as usize, got.imm, got.sg[0].len()), (5, len, Some(imm), 0));
        assert!(bytes(&region)[10..10 + len] == message(2, len));
    }
}

async fn uc_gathers_and_scatters(bench: Bench) {
    let (a, b) = pair(&bench, Options { sge: 2, ..uc() }).await;
    let data = message(1, 3000);
    let sg = [b.room(1000).await, b.room(2500).await].into_iter().collect();
    b.qp.post_recv(&mut [ibdev::RecvWr { id: 0, sg }].into()).unwrap();
    let sg = [a.buf(&data[..1]).await, a.buf(&data[1..]).await].into_iter().collect();
    a.post(SendWr { id: 0, op: SEND, sg, flags: SendFlags::SIGNALED }).unwrap();
    ok(&a.completion().await, CompletionOp::Send);
    let got = b.completion().await;
    assert!(got.sg.iter().map(|buf| buf.len()).eq([1000, 2000]));
    assert!(got.sg.iter().flat_map(|buf| buf.iter().copied()).eq(data));
}

async fn uc_unsignaled(bench: Bench) {
    let (a, b) = pair(&bench, Options { depth: 2, ..uc() }).await;
    for round in 0..4 {
        b.receives(0, 2, 8).await;
        a.start_with(0, SEND, b"quiet", SendFlags::empty()).await;
        a.send(1 + round, b"loud").await;
        assert_eq!(a.completion().await.id, 1 + round);
        assert!(a.completed().is_empty());
        assert_eq!(b.completions(2).await.len(), 2);
    }
}

async fn uc_completes_without_a_peer(bench: Bench) {
    let (a, b) = pair(&bench, uc()).await;
    drop(b);
    for id in 0..4 {
        assert!(a.carry_out(SEND, &message(id, 3000)).await.status.is_ok());
    }
}

/// And the next one arrives.
async fn uc_message_without_a_receive_is_dropped(bench: Bench) {
    let (a, b) = pair(&bench, uc()).await;
    let barrier = pair(&bench, Options::default()).await;
    ok(&a.carry_out(SEND, &message(1, 3000)).await, CompletionOp::Send);
    barrier.1.receives(0, 1, 8).await;
    assert!(barrier.0.carry_out(SEND, b"behind").await.status.is_ok());
    assert!(b.completed().is_empty());
    b.receives(0, 1, 3000).await;
    ok(&a.carry_out(SEND, &message(2, 3000)).await, CompletionOp::Send);
    assert!(b.completion().await.sg[0][..] == message(2, 3000));
}

/// Its receive is used for the next one.
async fn uc_message_too_long_for_its_receive_is_dropped(bench: Bench) {
    let (a, b) = pair(&bench, uc()).await;
    b.receives(3, 2, 2000).await;
    ok(&a.carry_out(SEND, &message(1, 2001)).await, CompletionOp::Send);
    if bench.differs(Difference::TooLongEndsUnreliable) {
        let got: Vec<_> = b.completions(2).await.iter().map(|got| (got.id, got.status)).collect();
        assert_eq!(got, [(3, Status::LOC_QP_OP_ERR), (4, Status::WR_FLUSH_ERR)]);
        return;
    }
    ok(&a.carry_out(SEND, &message(2, 2000)).await, CompletionOp::Send);
    let got = b.completion().await;
    assert_eq!((got.id, got.status, got.len), (3, Status::SUCCESS, 2000));
    assert!(got.sg[0][..] == message(2, 2000));
}

async fn uc_refused_write_is_dropped(bench: Bench) {
    let (a, b) = pair(&bench, uc()).await;
    let region = b.expose(64, Access::REMOTE_WRITE).await;
    let read_only = b.expose(64, Access::REMOTE_READ).await;
    let mut wrong = remote(&region, 0);
    wrong.rkey = no_rkey(&region);
    for to in [wrong, remote(&region, 60), remote(&read_only, 0)] {
        ok(&a.carry_out(write(to), b"nonsense").await, CompletionOp::Write);
    }
    b.receives(0, 1, 8).await;
    let op = SendOp::Write { to: remote(&region, 8), imm: Some(1) };
    ok(&a.carry_out(op, b"sensible").await, CompletionOp::Write);
    ok(&b.completion().await, CompletionOp::RecvWrite);
    let mut expected = [0; 64];
    expected[8..16].copy_from_slice(b"sensible");
    assert_eq!((bytes(&region), bytes(&read_only)), (expected.to_vec(), vec![0; 64]));
}

async fn uc_takes_no_reads_and_atomics(bench: Bench) {
    let (a, b) = pair(&bench, uc()).await;
    let region = b.expose(8, Access::all()).await;
    let at = remote(&region, 0);
    for op in [read(at), SendOp::FetchAdd { at, add: 1 }, SendOp::CompareSwap { at, compare: 0, swap: 1 }] {
        let refused = a.post(SendWr::new(0, op, a.buf(b"12345678").await));
        assert!(matches!(refused, Err(PostError::Invalid { .. })), "{refused:?}");
    }
}

async fn uc_error_flushes(bench: Bench) {
    let (a, _b) = pair(&bench, uc()).await;
    a.receives(0, 2, 8).await;
    a.modify(Transition::Error).await;
    a.send(2, b"late").await;
    assert!(a.completions(3).await.iter().all(|done| done.status == Status::WR_FLUSH_ERR));
}

async fn uc_both_ways(bench: Bench) {
    let (a, b) = pair(&bench, uc()).await;
    for end in [&a, &b] {
        end.receives(100, 8, 3000).await;
    }
    for id in 0..8 {
        for end in [&a, &b] {
            end.send(id, &message(id, 3000)).await;
        }
    }
    for end in [&a, &b] {
        let done = end.completions(16).await;
        assert!(done.iter().all(|done| done.status.is_ok()));
        let received = done.iter().filter(|done| done.op == CompletionOp::Recv);
        assert!((0..).zip(received).all(|(n, got)| got.sg[0][..] == message(n, 3000)));
    }
}
