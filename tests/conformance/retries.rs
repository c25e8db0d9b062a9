//! Peers that are not ready or not there.

use ibdev::{DeviceEvent, SendOp, Status};

use super::bench::{Bench, event};
use super::case::cases;
use super::end::{Options, pair};

cases! {
    peer_that_is_never_ready_ends_the_sender;
    peer_that_is_gone_ends_the_sender;
    peer_that_failed_ends_the_sender;
    peer_that_is_gone_flushes_what_follows;
    peers_fail_on_their_own;
}

const SEND: SendOp = SendOp::Send { imm: None };
const IMPATIENT: u8 = 8; // 1 ms

fn impatient() -> Options {
    Options { timeout: IMPATIENT, retry_count: 1, rnr_retry: 2, ..Options::default() }
}

/// The receiver stays as it is.
async fn peer_that_is_never_ready_ends_the_sender(bench: Bench) {
    for rnr_retry in [0, 3] {
        let (a, b) = pair(&bench, Options { rnr_retry, ..Options::default() }).await;
        let done = a.carry_out(SEND, b"nobody listens").await;
        assert_eq!(done.status, Status::RNR_RETRY_EXC_ERR);
        assert_eq!(&done.sg[0][..], b"nobody listens");
        event(&a.device, DeviceEvent::QpError(a.qp.qpn())).await;
        b.receives(0, 1, 8).await;
        assert!(b.completed().is_empty());
    }
}

async fn peer_that_is_gone_ends_the_sender(bench: Bench) {
    for retry_count in [0, 2] {
        let (a, b) = pair(&bench, Options { retry_count, ..impatient() }).await;
        drop(b);
        assert_eq!(a.carry_out(SEND, b"nobody there").await.status, Status::RETRY_EXC_ERR);
        event(&a.device, DeviceEvent::QpError(a.qp.qpn())).await;
    }
}

async fn peer_that_failed_ends_the_sender(bench: Bench) {
    let (a, b) = pair(&bench, impatient()).await;
    b.modify(ibdev::qp::Transition::Error).await;
    assert_eq!(a.carry_out(SEND, b"too late").await.status, Status::RETRY_EXC_ERR);
}

async fn peer_that_is_gone_flushes_what_follows(bench: Bench) {
    let (a, b) = pair(&bench, impatient()).await;
    a.receives(10, 2, 8).await;
    drop(b);
    for id in 0..3 {
        a.send(id, b"nobody there").await;
    }
    let done: Vec<_> = a.completions(5).await.iter().map(|done| (done.id, done.status)).collect();
    let (sends, receives): (Vec<_>, Vec<_>) = done.into_iter().partition(|(id, _)| *id < 10);
    let flushed = Status::WR_FLUSH_ERR;
    assert_eq!(sends, [(0, Status::RETRY_EXC_ERR), (1, flushed), (2, flushed)]);
    assert_eq!(receives, [(10, flushed), (11, flushed)]);
}

/// Another connection of the same devices goes on.
async fn peers_fail_on_their_own(bench: Bench) {
    let (a, b) = pair(&bench, impatient()).await;
    let (c, d) = pair(&bench, Options::default()).await;
    drop(b);
    a.send(0, b"nobody there").await;
    d.receives(0, 8, 8).await;
    for id in 0..8 {
        assert!(c.carry_out(SEND, b"fine").await.status.is_ok(), "{id}");
    }
    assert_eq!(a.completion().await.status, Status::RETRY_EXC_ERR);
    d.receives(8, 1, 8).await;
    assert!(c.carry_out(SEND, b"fine").await.status.is_ok());
    assert_eq!(d.completions(9).await.len(), 9);
}
