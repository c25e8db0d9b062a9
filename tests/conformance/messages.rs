//! Messages over RC: what arrives, and how both sides learn of it.

use ibdev::{Buf, CompletionOp, PostError, SendFlags, SendOp, SendWr, Status};
use ibwire::Mtu;

use super::bench::Bench;
use super::case::cases;
use super::end::{End, Options, connect, message, pair};

cases! {
    send_of_every_length;
    send_with_immediate;
    send_of_nothing;
    send_at_every_mtu;
    send_without_grh;
    send_on_the_second_port [TwoPorts];
    send_both_ways_at_once;
    send_to_the_own_device;
    send_gathers [ScatterGather];
    receive_scatters [ScatterGather];
    receive_is_longer_than_the_message;
    send_unsignaled_completes_in_silence;
    send_unsignaled_frees_its_place;
    send_unsignaled_gives_buffers_back;
    send_unsignaled_that_fails_completes;
    send_inline [Inline];
    send_inline_that_is_too_long [Inline];
    send_solicited_wakes;
    send_fenced;
    completions_bring_buffers_back;
    early_message_waits_for_a_receive;
}

const SEND: SendOp = SendOp::Send { imm: None };

/// Lengths around what fits into one packet, two, and many.
const LENGTHS: [usize; 12] = [0, 1, 3, 4, 255, 256, 1023, 1024, 1025, 2048, 4097, 70_001];

async fn exchange(a: &End, b: &End, lengths: &[usize]) {
    let longest = lengths.iter().copied().max().unwrap_or(0);
    b.receives(100, lengths.len(), longest).await;
    for (id, len) in (0u64..).zip(lengths) {
        a.send(id, &message(id, *len)).await;
    }
    for (id, done) in (0u64..).zip(a.completions(lengths.len()).await) {
        assert_eq!((done.id, done.status, done.op), (id, Status::SUCCESS, CompletionOp::Send));
        assert_eq!(done.qpn, a.qp.qpn());
    }
    for ((id, len), got) in (0u64..).zip(lengths).zip(b.completions(lengths.len()).await) {
        assert_eq!((got.id, got.status, got.op), (100 + id, Status::SUCCESS, CompletionOp::Recv));
        assert_eq!((got.qpn, got.len as usize, got.imm), (b.qp.qpn(), *len, None));
        assert!(got.sg[0][..] == message(id, *len), "message {id} of {len} bytes");
        assert!(got.from.is_none());
    }
}

async fn send_of_every_length(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    exchange(&a, &b, &LENGTHS).await;
    exchange(&b, &a, &LENGTHS).await;
}

async fn send_with_immediate(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    for (len, imm) in [(0, 0), (5, u32::MAX), (1024, 0x0102_0304), (3000, 7)] {
        b.receives(0, 1, 3000).await;
        let done = a.carry_out(SendOp::Send { imm: Some(imm) }, &message(3, len)).await;
        assert_eq!((done.status, done.op), (Status::SUCCESS, CompletionOp::Send));
        let got = b.completion().await;
        assert_eq!((got.imm, got.op, got.len as usize), (Some(imm), CompletionOp::Recv, len));
        assert!(got.sg[0][..] == message(3, len));
    }
}

/// Without any buffer at all, too.
async fn send_of_nothing(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    b.receives(0, 1, 8).await;
    b.qp.post_recv(&mut [ibdev::RecvWr { id: 1, sg: [].into_iter().collect() }].into()).unwrap();
    for id in 0..2 {
        let sg = [].into_iter().collect();
        a.post(SendWr { id, op: SEND, sg, flags: SendFlags::SIGNALED }).unwrap();
    }
    assert!(a.completions(2).await.iter().all(|done| done.status.is_ok()));
    let got = b.completions(2).await;
    assert!(got.iter().all(|got| got.status.is_ok() && got.len == 0), "{got:?}");
    assert_eq!(got[0].sg[0].len(), 0);
}

async fn send_at_every_mtu(bench: Bench) {
    let active = bench.a.port(1).unwrap().active_mtu;
    for mtu in [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096] {
        if mtu.bytes() > active.bytes() {
            continue;
        }
        let (a, b) = pair(&bench, Options { mtu, ..Options::default() }).await;
        let bytes = mtu.bytes().unwrap() as usize;
        exchange(&a, &b, &[bytes - 1, bytes, bytes + 1, 5 * bytes, 5 * bytes + 1]).await;
    }
}

async fn send_without_grh(bench: Bench) {
    let (a, b) = pair(&bench, Options { grh: false, ..Options::default() }).await;
    exchange(&a, &b, &LENGTHS).await;
}

async fn send_on_the_second_port(bench: Bench) {
    let (a, b) = pair(&bench, Options { port: 2, ..Options::default() }).await;
    exchange(&a, &b, &LENGTHS).await;
}

async fn send_both_ways_at_once(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    for end in [&a, &b] {
        end.receives(100, 16, 5000).await;
    }
    for id in 0..16 {
        for end in [&a, &b] {
            end.send(id, &message(id, 5000)).await;
        }
    }
    for end in [&a, &b] {
        let done = end.completions(32).await;
        let ids = |recv: bool| done.iter().filter(move |c| c.op.is_recv() == recv).map(|c| c.id);
        assert!(ids(false).eq(0..16) && ids(true).eq(100..116));
        assert!(done.iter().all(|c| c.status.is_ok()));
    }
}

async fn send_to_the_own_device(bench: Bench) {
    let options = Options::default();
    let (a, b) = (End::new(&bench.a, options).await, End::new(&bench.a, options).await);
    connect(&a, &b).await;
    exchange(&a, &b, &LENGTHS).await;
    exchange(&b, &a, &LENGTHS).await;
}

async fn send_gathers(bench: Bench) {
    let (a, b) = pair(&bench, Options { sge: 4, ..Options::default() }).await;
    for parts in [&[5, 1, 100][..], &[3, 0, 1022], &[1024, 1024, 1], &[0, 0, 0, 2000], &[700, 700, 700, 700]]
    {
        let len = parts.iter().sum();
        let whole = message(1, len);
        let (mut sg, mut rest) = (ibdev::SgList::new(), &whole[..]);
        for part in parts {
            let (bytes, others) = rest.split_at(*part);
            sg.push(a.buf(bytes).await);
            rest = others;
        }
        b.receives(0, 1, len).await;
        a.post(SendWr { id: 0, op: SEND, sg, flags: SendFlags::SIGNALED }).unwrap();
        let done = a.completion().await;
        assert_eq!((done.status, done.sg.len()), (Status::SUCCESS, parts.len()), "{parts:?}");
        assert!(b.completion().await.sg[0][..] == whole, "{parts:?}");
    }
}

/// Lengths of the parts are those of the message's parts.
async fn receive_scatters(bench: Bench) {
    let (a, b) = pair(&bench, Options { sge: 4, ..Options::default() }).await;
    for (room, len, parts) in [
        ([8, 16, 104, 8], 12, [8, 4, 0, 0]),
        ([1024, 1024, 1024, 1024], 3000, [1024, 1024, 952, 0]),
        ([104, 3000, 8, 8], 3120, [104, 3000, 8, 8]),
        ([8, 8, 8, 8], 0, [0, 0, 0, 0]),
    ] {
        let mut sg = ibdev::SgList::new();
        for len in room {
            sg.push(b.room(len).await);
        }
        b.qp.post_recv(&mut [ibdev::RecvWr { id: 0, sg }].into()).unwrap();
        assert!(a.carry_out(SEND, &message(2, len)).await.status.is_ok());
        let got = b.completion().await;
        let lengths: Vec<_> = got.sg.iter().map(|buf| buf.len()).collect();
        assert_eq!((got.len as usize, &lengths[..]), (len, &parts[..]));
        assert!(got.sg.iter().flat_map(|buf| buf.iter().copied()).eq(message(2, len)));
    }
}

/// The whole capacity is offered, whatever the length is; the length becomes the message's.
async fn receive_is_longer_than_the_message(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let mut buf = b.room(5000).await;
    buf.clear();
    b.qp.post_recv(&mut [ibdev::RecvWr::new(0, buf)].into()).unwrap();
    a.send(0, &message(1, 4999)).await;
    let buf = b.completion().await.into_buf().unwrap();
    assert_eq!((buf.len(), buf.capacity()), (4999, 5000));
}

async fn send_unsignaled_completes_in_silence(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    b.receives(0, 4, 8).await;
    for id in 0..3 {
        a.start_with(id, SEND, b"quiet", SendFlags::empty()).await;
    }
    a.send(3, b"loud").await;
    assert_eq!(a.completion().await.id, 3);
    assert!(a.completed().is_empty());
    assert_eq!(b.completions(4).await.len(), 4);
}

/// The place of an unsignaled send is free when a later signaled one has been polled.
async fn send_unsignaled_frees_its_place(bench: Bench) {
    let (a, b) = pair(&bench, Options { depth: 4, ..Options::default() }).await;
    for round in 0..10 {
        b.receives(0, 4, 8).await;
        for id in 0..3 {
            a.start_with(id, SEND, b"quiet", SendFlags::empty()).await;
        }
        a.send(round, b"loud").await;
        assert_eq!(a.completion().await.id, round);
        b.completions(4).await;
    }
}

async fn send_unsignaled_gives_buffers_back(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let shelf = super::drops::Shelf::new();
    b.receives(0, 2, 8).await;
    let sg = [shelf.label(a.buf(b"quiet").await)].into_iter().collect();
    a.post(SendWr { id: 0, op: SEND, sg, flags: SendFlags::empty() }).unwrap();
    a.send(1, b"loud").await;
    a.completion().await;
    assert_eq!(shelf.count(), 1);
    b.completions(2).await;
}

async fn send_unsignaled_that_fails_completes(bench: Bench) {
    let (a, b) = pair(&bench, Options { rnr_retry: 0, ..Options::default() }).await;
    a.start_with(5, SEND, b"too early", SendFlags::empty()).await;
    let done = a.completion().await;
    assert_eq!((done.id, done.status), (5, Status::RNR_RETRY_EXC_ERR));
    assert_eq!(&done.sg[0][..], b"too early");
    drop(b);
}

/// Of buffers that no device knows.
async fn send_inline(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let most = a.device.attr().max_inline_data as usize;
    for len in [0, 1, most] {
        b.receives(0, 1, most.max(1)).await;
        let mut buf = Buf::unregistered(len);
        buf.copy_from_slice(&message(4, len));
        let (sg, flags) = ([buf].into_iter().collect(), SendFlags::SIGNALED | SendFlags::INLINE);
        a.post(SendWr { id: 0, op: SEND, sg, flags }).unwrap();
        let done = a.completion().await;
        assert_eq!((done.status, done.sg[0].len()), (Status::SUCCESS, len));
        assert!(b.completion().await.sg[0][..] == message(4, len));
    }
}

async fn send_inline_that_is_too_long(bench: Bench) {
    let (a, _b) = pair(&bench, Options::default()).await;
    let limit = a.device.attr().max_inline_data as usize;
    let sg = [Buf::unregistered(limit + 1)].into_iter().collect();
    let refused = a.post(SendWr { id: 0, op: SEND, sg, flags: SendFlags::INLINE });
    assert_eq!(refused, Err(PostError::TooLong { len: limit + 1, limit }));
}

async fn send_solicited_wakes(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    b.receives(0, 1, 8).await;
    a.start_with(0, SEND, b"knock", SendFlags::SIGNALED | SendFlags::SOLICITED).await;
    assert_eq!(&b.completion().await.sg[0][..], b"knock");
    assert!(a.completion().await.status.is_ok());
}

/// With nothing to wait for it is a send as any other.
async fn send_fenced(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    b.receives(0, 2, 8).await;
    a.send(0, b"first").await;
    a.start_with(1, SEND, b"second", SendFlags::SIGNALED | SendFlags::FENCE).await;
    assert!(a.completions(2).await.iter().map(|done| done.id).eq(0..2));
    assert_eq!(&b.completions(2).await[1].sg[0][..], b"second");
}

/// The same memory, not another one.
async fn completions_bring_buffers_back(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let (sent, offered) = (a.buf(b"there and back").await, b.room(64).await);
    let addresses = [sent.as_ptr() as usize, offered.as_ptr() as usize];
    b.qp.post_recv(&mut [ibdev::RecvWr::new(0, offered)].into()).unwrap();
    a.post(SendWr::new(0, SEND, sent)).unwrap();
    let (sent, received) =
        (a.completion().await.into_buf().unwrap(), b.completion().await.into_buf().unwrap());
    assert_eq!([sent.as_ptr() as usize, received.as_ptr() as usize], addresses);
    assert_eq!((&sent[..], &received[..]), (&b"there and back"[..], &b"there and back"[..]));
}

/// Receiver not ready, then ready.
async fn early_message_waits_for_a_receive(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    a.send(0, b"early").await;
    let receive = async {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        b.receives(0, 1, 8).await;
        b.completion().await
    };
    let (done, got) = tokio::join!(a.completion(), receive);
    assert_eq!((done.status, &got.sg[0][..]), (Status::SUCCESS, &b"early"[..]));
}
