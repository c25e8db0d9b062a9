//! What comes before what.

use ibdev::{Access, CompletionOp, SendFlags, SendOp, SendWr, Status};

use super::bench::Bench;
use super::case::cases;
use super::end::{Options, bytes, message, pair, remote, write};
use super::memory::{read, value};

cases! {
    completions_come_in_posting_order;
    completions_of_all_operations_come_in_posting_order [Regions, Atomics];
    write_is_there_before_the_message_behind_it [Regions];
    write_is_there_before_the_immediate_behind_it [Regions];
    receives_are_taken_in_posting_order;
    batches_are_taken_from_the_front;
    connections_of_one_cq_are_told_apart;
}

const SEND: SendOp = SendOp::Send { imm: None };

async fn completions_come_in_posting_order(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    b.receives(0, 30, 3000).await;
    for id in 0..30 {
        a.send(id, &message(id, 3000 - 100 * id as usize)).await;
    }
    assert!(a.completions(30).await.iter().map(|done| done.id).eq(0..30));
    let got = b.completions(30).await;
    assert!(got.iter().map(|got| got.id).eq(0..30));
    assert!((0..30).zip(&got).all(|(n, got)| got.sg[0][..] == message(n, 3000 - 100 * n as usize)));
}

/// And each sees what those before it did. Only behind a read that takes a fence: its data may be fetched late (IBTA vol.
/// 1, 10.8.3.3).
async fn completions_of_all_operations_come_in_posting_order(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(4096, Access::all()).await;
    b.receives(100, 8, 2000).await;
    let at = |at| remote(&region, at);
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    for round in 0..4 {
        let id = round * 7;
        a.start_with(id, write(at(0)), &round.to_ne_bytes(), fenced).await;
        a.start(id + 1, read(at(0)), &[0; 2000]).await;
        a.start_with(id + 2, SendOp::FetchAdd { at: at(0), add: 100 }, &[0; 8], fenced).await;
        a.start(id + 3, SEND, &message(round, 2000)).await;
        a.start(id + 4, SendOp::CompareSwap { at: at(0), compare: round + 100, swap: 77 }, &[0; 8]).await;
        a.start(id + 5, SendOp::Write { to: at(8), imm: Some(round as u32) }, &message(round, 2000)).await;
        a.start(id + 6, read(at(0)), &[0; 8]).await;
    }
    let done = a.completions(28).await;
    assert!(done.iter().map(|done| (done.id, done.status)).eq((0..28).map(|id| (id, Status::SUCCESS))));
    for (round, done) in (0..).zip(done.chunks(7)) {
        let ops = done.iter().map(|done| done.op);
        use CompletionOp::{CompareSwap, FetchAdd, Read, Send, Write};
        assert!(ops.eq([Write, Read, FetchAdd, Send, CompareSwap, Write, Read]));
        let values = [1, 2, 4, 6].map(|n| value(&done[n]));
        assert_eq!(values, [round, round, round + 100, 77]);
    }
    let got = b.completions(8).await;
    assert!(got.iter().map(|got| got.id).eq(100..108));
    let kinds = got.iter().map(|got| got.op == CompletionOp::RecvWrite);
    assert!(kinds.eq([false, true].into_iter().cycle().take(8)));
}

async fn write_is_there_before_the_message_behind_it(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(20_000, Access::REMOTE_WRITE).await;
    for round in 0..10 {
        b.receives(0, 1, 8).await;
        let data = message(round, 20_000);
        a.start(0, write(remote(&region, 0)), &data).await;
        a.send(1, b"look").await;
        b.completion().await;
        assert!(bytes(&region) == data, "round {round}");
        a.completions(2).await;
    }
}

async fn write_is_there_before_the_immediate_behind_it(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(20_000, Access::REMOTE_WRITE).await;
    for round in 0..10 {
        b.receives(0, 1, 8).await;
        let data = message(round, 20_000);
        a.start(0, write(remote(&region, 0)), &data[..10_000]).await;
        let op = SendOp::Write { to: remote(&region, 10_000), imm: Some(1) };
        a.start(1, op, &data[10_000..]).await;
        b.completion().await;
        assert!(bytes(&region) == data, "round {round}");
        a.completions(2).await;
    }
}

async fn receives_are_taken_in_posting_order(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    for id in [5, 3, 9, 1] {
        b.receives(id, 1, 8).await;
    }
    for id in 0..4 {
        a.send(id, b"next").await;
    }
    assert!(b.completions(4).await.iter().map(|got| got.id).eq([5, 3, 9, 1]));
    a.completions(4).await;
}

async fn batches_are_taken_from_the_front(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    b.receives(0, 16, 8).await;
    let mut work = std::collections::VecDeque::new();
    for id in 0..16 {
        let sg = [a.buf(&[id as u8]).await].into_iter().collect();
        work.push_back(SendWr { id, op: SEND, sg, flags: SendFlags::SIGNALED });
    }
    a.qp.post_send(&mut work).unwrap();
    assert!(work.is_empty());
    assert!(a.completions(16).await.iter().map(|done| done.id).eq(0..16));
    assert!(b.completions(16).await.iter().map(|got| got.sg[0][0]).eq(0..16));
}

/// Two QPs that complete in one queue, with the same ids.
async fn connections_of_one_cq_are_told_apart(bench: Bench) {
    let options = Options::default();
    let cq = bench.a.create_cq(4 * options.depth).await.unwrap();
    let mut ends = Vec::new();
    for _ in 0..2 {
        let spec = super::end::spec(options, &cq);
        let qp = bench.a.domain().create_qp(spec).await.unwrap();
        let domain = bench.a.domain();
        let a = super::end::End::of(&bench.a, domain, cq.clone(), qp, options);
        let b = super::end::End::new(&bench.b, options).await;
        super::end::connect(&a, &b).await;
        b.receives(0, 8, 16).await;
        ends.push((a, b));
    }
    for id in 0..8 {
        for (a, _) in &ends {
            a.send(id, b"one of two").await;
        }
    }
    let done = super::end::completions(&cq, 16).await;
    for (a, _) in &ends {
        let own = done.iter().filter(|done| done.qpn == a.qp.qpn());
        assert!(own.map(|done| done.id).eq(0..8));
    }
}
