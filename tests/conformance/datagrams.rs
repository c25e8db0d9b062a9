//! Datagrams over UD.

use std::collections::VecDeque;
use std::sync::Arc;

use ibdev::qp::{QpType, Transition};
use ibdev::{
    AddressHandle, CompletionOp, DatagramDest, PostError, RecvWr, SendFlags, SendOp, SendWr, Status,
};
use ibwire::{Lid, Psn, QKey};

use super::bench::Bench;
use super::case::cases;
use super::differs::Difference;
use super::end::{End, Options, message, way};

cases! {
    datagram_of_every_length [Ud];
    datagram_with_immediate [Ud];
    datagram_tells_its_sender [Ud];
    datagram_is_answered [Ud];
    datagram_without_grh [Ud];
    datagram_to_the_own_device [Ud];
    datagram_on_the_second_port [Ud, TwoPorts];
    datagram_gathers_and_scatters [Ud, ScatterGather];
    datagram_inline [Ud, Inline];
    datagram_unsignaled [Ud];
    datagram_with_another_qkey_is_dropped [Ud];
    datagram_with_the_own_qkey [Ud];
    datagram_without_a_receive_is_dropped [Ud];
    datagram_too_long_for_its_receive_is_dropped [Ud];
    datagram_too_long_for_a_packet [Ud];
    datagram_with_an_address_handle_of_another_domain [Ud];
    datagram_qp_takes_nothing_else [Ud];
    datagram_to_nobody_completes [Ud];
    datagram_qp_serves_many [Ud];
    datagram_qp_flushes [Ud];
}

/// What stands before the message in a receive.
const GRH: usize = 40;
const QKEY: QKey = QKey(0x1234_5678);

fn ud() -> Options {
    Options { kind: QpType::Ud, qkey: QKEY, ..Options::default() }
}

async fn ready(end: &End) {
    end.modify(Transition::Init(end.init())).await;
    end.modify(Transition::DatagramRtr).await;
    end.modify(Transition::DatagramRts { sq_psn: Psn::truncate(0xff_fffe) }).await;
}

async fn two(bench: &Bench, options: Options) -> (End, End) {
    let (a, b) = (End::new(&bench.a, options).await, End::new(&bench.b, options).await);
    ready(&a).await;
    ready(&b).await;
    (a, b)
}

async fn handle(from: &End, to: &End) -> Arc<dyn AddressHandle> {
    let av = way(&from.device, &to.device, from.options.port, from.options.grh);
    let ah = from.domain.create_ah(av).await.unwrap();
    assert_eq!(*ah.av(), av);
    ah
}

async fn to(from: &End, to: &End, imm: Option<u32>) -> SendOp {
    let dest = DatagramDest { ah: handle(from, to).await, qpn: to.qp.qpn(), qkey: to.options.qkey };
    SendOp::Datagram { to: dest, imm }
}

async fn datagram_of_every_length(bench: Bench) {
    let (a, b) = two(&bench, ud()).await;
    let mtu = bench.a.port(1).unwrap().active_mtu.bytes().unwrap() as usize;
    for len in [0, 1, 3, 4, 255, 1024, mtu - 1, mtu] {
        b.receives(3, 1, GRH + mtu).await;
        let done = a.carry_out(to(&a, &b, None).await, &message(1, len)).await;
        assert_eq!((done.status, done.op), (Status::SUCCESS, CompletionOp::Send));
        let got = b.completion().await;
        assert_eq!((got.id, got.status, got.op), (3, Status::SUCCESS, CompletionOp::Recv));
        assert_eq!((got.len as usize, got.sg[0].len(), got.imm), (GRH + len, GRH + len, None));
        assert!(got.sg[0][GRH..] == message(1, len), "{len} bytes");
    }
}

async fn datagram_with_immediate(bench: Bench) {
    let (a, b) = two(&bench, ud()).await;
    for (len, imm) in [(0, 0x0102_0304), (100, u32::MAX)] {
        b.receives(0, 1, 256).await;
        assert!(a.carry_out(to(&a, &b, Some(imm)).await, &message(1, len)).await.status.is_ok());
        let got = b.completion().await;
        assert_eq!((got.imm, got.len as usize), (Some(imm), GRH + len));
    }
}

async fn datagram_tells_its_sender(bench: Bench) {
    let (a, b) = two(&bench, ud()).await;
    b.receives(0, 1, 256).await;
    a.carry_out(to(&a, &b, None).await, b"who am I").await;
    let from = b.completion().await.from.expect("a sender");
    assert_eq!((from.qpn, from.slid, from.pkey_index), (a.qp.qpn(), bench.a.port(1).unwrap().lid, 0));
    let back = way(&bench.b, &bench.a, 1, true).grh.unwrap();
    let grh = from.grh.expect("a GRH came along");
    assert_eq!((grh.dgid, grh.sgid_index), (back.dgid, back.sgid_index));
}

/// By what the receiver was told alone.
async fn datagram_is_answered(bench: Bench) {
    let (a, b) = two(&bench, ud()).await;
    for end in [&a, &b] {
        end.receives(0, 1, 256).await;
    }
    a.carry_out(to(&a, &b, None).await, b"question").await;
    let from = b.completion().await.from.unwrap();
    let source = ibdev::MadSource {
        port: 1,
        slid: from.slid,
        sl: from.sl,
        path_bits: from.path_bits,
        qpn: from.qpn,
        pkey_index: from.pkey_index,
        grh: from.grh,
    };
    let ah = b.domain.create_ah(source.reply().av).await.unwrap();
    let dest = DatagramDest { ah, qpn: from.qpn, qkey: QKEY };
    b.carry_out(SendOp::Datagram { to: dest, imm: None }, b"answer").await;
    assert_eq!(&a.completion().await.sg[0][GRH..], b"answer");
}

/// On InfiniBand the 40 bytes are there, but mean nothing.
async fn datagram_without_grh(bench: Bench) {
    let (a, b) = two(&bench, Options { grh: false, ..ud() }).await;
    b.receives(0, 1, 256).await;
    a.carry_out(to(&a, &b, None).await, b"local").await;
    let got = b.completion().await;
    assert_eq!(&got.sg[0][GRH..], b"local");
    assert_eq!(got.from.unwrap().grh.is_none(), bench.a.port(1).unwrap().lid != Lid::NONE);
}

async fn datagram_to_the_own_device(bench: Bench) {
    let (a, b) = (End::new(&bench.a, ud()).await, End::new(&bench.a, ud()).await);
    ready(&a).await;
    ready(&b).await;
    b.receives(0, 1, 256).await;
    a.receives(0, 1, 256).await;
    a.carry_out(to(&a, &b, None).await, b"neighbour").await;
    assert_eq!(&b.completion().await.sg[0][GRH..], b"neighbour");
    a.start(0, to(&a, &a, None).await, b"self").await;
    let done = a.completions(2).await;
    assert!(done.iter().any(|c| c.op == CompletionOp::Recv && c.sg[0][GRH..] == *b"self"));
}

async fn datagram_on_the_second_port(bench: Bench) {
    let (a, b) = two(&bench, Options { port: 2, ..ud() }).await;
    b.receives(0, 1, 256).await;
    a.carry_out(to(&a, &b, None).await, b"second").await;
    assert_eq!(&b.completion().await.sg[0][GRH..], b"second");
    // A handle of the other port is of no use to it.
    let ah = a.domain.create_ah(way(&bench.a, &bench.b, 1, true)).await.unwrap();
    let dest = DatagramDest { ah, qpn: b.qp.qpn(), qkey: QKEY };
    let refused = a.post(SendWr::new(0, SendOp::Datagram { to: dest, imm: None }, a.buf(b"x").await));
    assert!(matches!(refused, Err(PostError::Invalid { .. })), "{refused:?}");
}

async fn datagram_gathers_and_scatters(bench: Bench) {
    let (a, b) = two(&bench, Options { sge: 3, ..ud() }).await;
    let parts = [40, 5, 100];
    let mut sg = ibdev::SgList::new();
    for len in parts {
        sg.push(b.room(len).await);
    }
    b.qp.post_recv(&mut VecDeque::from([RecvWr { id: 0, sg }])).unwrap();
    let sg = [a.buf(b"ab").await, a.buf(b"cdefg").await].into_iter().collect();
    let op = to(&a, &b, None).await;
    a.post(SendWr { id: 0, op, sg, flags: SendFlags::SIGNALED }).unwrap();
    assert!(a.completion().await.status.is_ok());
    let got = b.completion().await;
    let lengths: Vec<_> = got.sg.iter().map(|buf| buf.len()).collect();
    assert!(lengths[..2] == [40, 5] || lengths[0] == 40, "{lengths:?}");
    assert!(got.sg.iter().flat_map(|buf| buf.iter().copied()).skip(GRH).eq(*b"abcdefg"));
}

async fn datagram_inline(bench: Bench) {
    let (a, b) = two(&bench, ud()).await;
    b.receives(0, 1, 256).await;
    let mut buf = ibdev::Buf::unregistered(6);
    buf.copy_from_slice(b"inline");
    let (sg, flags) = ([buf].into_iter().collect(), SendFlags::SIGNALED | SendFlags::INLINE);
    a.post(SendWr { id: 0, op: to(&a, &b, None).await, sg, flags }).unwrap();
    assert!(a.completion().await.status.is_ok());
    assert_eq!(&b.completion().await.sg[0][GRH..], b"inline");
}

async fn datagram_unsignaled(bench: Bench) {
    let (a, b) = two(&bench, Options { depth: 2, ..ud() }).await;
    for round in 0..4 {
        b.receives(0, 2, 256).await;
        a.start_with(0, to(&a, &b, None).await, b"quiet", SendFlags::empty()).await;
        a.start(1 + round, to(&a, &b, None).await, b"loud").await;
        assert_eq!(a.completion().await.id, 1 + round);
        assert!(a.completed().is_empty());
        assert_eq!(b.completions(2).await.len(), 2);
    }
}

/// Silently: neither end notices. What comes next arrives, in the same receive.
async fn datagram_with_another_qkey_is_dropped(bench: Bench) {
    let (a, b) = two(&bench, ud()).await;
    b.receives(7, 1, 256).await;
    let dest = DatagramDest { ah: handle(&a, &b).await, qpn: b.qp.qpn(), qkey: QKey(QKEY.0 ^ 1) };
    let done = a.carry_out(SendOp::Datagram { to: dest, imm: None }, b"wrong").await;
    assert!(done.status.is_ok());
    a.carry_out(to(&a, &b, None).await, b"right").await;
    let got = b.completion().await;
    assert_eq!((got.id, &got.sg[0][GRH..]), (7, &b"right"[..]));
}

/// With bit 31 set the key of the sending QP goes out instead.
async fn datagram_with_the_own_qkey(bench: Bench) {
    let (a, b) = two(&bench, ud()).await;
    b.receives(0, 1, 256).await;
    let dest = DatagramDest { ah: handle(&a, &b).await, qpn: b.qp.qpn(), qkey: QKey(0x8000_0000) };
    a.carry_out(SendOp::Datagram { to: dest, imm: None }, b"own key").await;
    assert_eq!(&b.completion().await.sg[0][GRH..], b"own key");
}

async fn datagram_without_a_receive_is_dropped(bench: Bench) {
    let (a, b) = two(&bench, ud()).await;
    let barrier = super::end::pair(&bench, Options::default()).await;
    assert!(a.carry_out(to(&a, &b, None).await, b"early").await.status.is_ok());
    barrier.1.receives(0, 1, 8).await;
    assert!(barrier.0.carry_out(SendOp::Send { imm: None }, b"behind").await.status.is_ok());
    b.receives(0, 1, 256).await;
    a.carry_out(to(&a, &b, None).await, b"late").await;
    assert_eq!(&b.completion().await.sg[0][GRH..], b"late");
}

async fn datagram_too_long_for_its_receive_is_dropped(bench: Bench) {
    let (a, b) = two(&bench, ud()).await;
    b.receives(4, 2, GRH + 8).await;
    assert!(a.carry_out(to(&a, &b, None).await, b"123456789").await.status.is_ok());
    if bench.differs(Difference::TooLongEndsUnreliable) {
        let got: Vec<_> = b.completions(2).await.iter().map(|got| (got.id, got.status)).collect();
        assert_eq!(got, [(4, Status::LOC_QP_OP_ERR), (5, Status::WR_FLUSH_ERR)]);
        return;
    }
    a.carry_out(to(&a, &b, None).await, b"12345678").await;
    let got = b.completion().await;
    assert_eq!((got.id, got.status, &got.sg[0][GRH..]), (4, Status::SUCCESS, &b"12345678"[..]));
}

async fn datagram_too_long_for_a_packet(bench: Bench) {
    let (a, b) = two(&bench, ud()).await;
    let mtu = bench.a.port(1).unwrap().active_mtu.bytes().unwrap() as usize;
    let refused = a.post(SendWr::new(0, to(&a, &b, None).await, a.room(mtu + 1).await));
    assert_eq!(refused, Err(PostError::TooLong { len: mtu + 1, limit: mtu }));
}

async fn datagram_with_an_address_handle_of_another_domain(bench: Bench) {
    let (a, b) = two(&bench, ud()).await;
    let other = bench.a.create_domain().await.unwrap();
    let ah = other.create_ah(way(&bench.a, &bench.b, 1, true)).await.unwrap();
    let dest = DatagramDest { ah, qpn: b.qp.qpn(), qkey: QKEY };
    let refused = a.post(SendWr::new(0, SendOp::Datagram { to: dest, imm: None }, a.buf(b"x").await));
    assert!(matches!(refused, Err(PostError::Invalid { .. })), "{refused:?}");
}

async fn datagram_qp_takes_nothing_else(bench: Bench) {
    let (a, _b) = two(&bench, ud()).await;
    let at = ibdev::RemoteAddr { addr: 0, rkey: ibwire::RKey(1) };
    for op in [
        SendOp::Send { imm: None },
        SendOp::Write { to: at, imm: None },
        SendOp::Read { from: at },
        SendOp::FetchAdd { at, add: 1 },
        SendOp::CompareSwap { at, compare: 0, swap: 1 },
    ] {
        let refused = a.post(SendWr::new(0, op, a.buf(b"12345678").await));
        assert!(matches!(refused, Err(PostError::Invalid { .. })), "{refused:?}");
    }
}

async fn datagram_to_nobody_completes(bench: Bench) {
    let (a, b) = two(&bench, ud()).await;
    let op = to(&a, &b, None).await;
    drop(b);
    assert!(a.carry_out(op, b"anyone?").await.status.is_ok());
}

async fn datagram_qp_serves_many(bench: Bench) {
    let server = End::new(&bench.b, ud()).await;
    ready(&server).await;
    server.receives(0, 16, 256).await;
    let mut clients = Vec::new();
    for n in 0..8 {
        let client = End::new(&bench.a, ud()).await;
        ready(&client).await;
        client.carry_out(to(&client, &server, Some(n)).await, &message(n.into(), 20)).await;
        clients.push(client);
    }
    for got in server.completions(8).await {
        let n = got.imm.unwrap();
        assert_eq!(got.from.unwrap().qpn, clients[n as usize].qp.qpn());
        assert_eq!(got.sg[0][GRH..], message(n.into(), 20));
    }
}

async fn datagram_qp_flushes(bench: Bench) {
    let (a, b) = two(&bench, ud()).await;
    a.receives(0, 2, 256).await;
    a.modify(Transition::Error).await;
    a.start(9, to(&a, &b, None).await, b"late").await;
    let done = a.completions(3).await;
    assert!(done.iter().all(|done| done.status == Status::WR_FLUSH_ERR));
    a.modify(Transition::Reset).await;
    ready(&a).await;
    b.receives(0, 1, 256).await;
    a.carry_out(to(&a, &b, None).await, b"again").await;
    assert_eq!(&b.completion().await.sg[0][GRH..], b"again");
}
