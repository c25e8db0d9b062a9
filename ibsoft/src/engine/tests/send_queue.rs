//! The send queue: windows, what needs no completion, SQD, flushing, and what cannot be posted.

use std::time::Instant;

use ibdev::qp::QpType;
use ibdev::{DatagramDest, PostError, RemoteAddr, SendFlags, SendOp};
use ibwire::RKey;
use ibwire::packet::TransportPacket;

use super::super::QpCreate;
use super::rc_rdma::with_depth;
use super::script::{D, Dut, P};
use super::*;

#[test]
fn hca_t46_the_window_with_a_write() {
    let packet = |n: u32, ack| match n {
        0 => "D > RDMA_WRITE_FIRST 5000 A=0 len=1024 va=0 dma=240640\n".to_string(),
        _ => format!("D > RDMA_WRITE_MIDDLE {} A={ack} len=1024\n", 5000 + n),
    };
    let mut script = "put 1 len=240640\n".to_string();
    let first: String = (0..64).map(|n| packet(n, u8::from(n % 32 == 31))).collect();
    script += &first;
    // Nothing more within a timeout; then the same again.
    script += "wait 67.108863ms\nwait 0.000001ms\n";
    script += &first;
    let mut acknowledged = 0;
    while acknowledged + 64 < 235 {
        script += &format!("P > ACK {}\n", 5000 + acknowledged + 31);
        for n in acknowledged + 64..(acknowledged + 96).min(235) {
            script += &match n {
                234 => "D > RDMA_WRITE_LAST 5234 A=1 len=1024\n".to_string(),
                _ => packet(n, u8::from(n % 32 == 31)),
            };
        }
        acknowledged += 32;
    }
    script += "P > ACK 5234\nD : write 1 SUCCESS";
    Dut::new().run(&script);
}

#[test]
fn a_long_read_is_asked_for_in_parts() {
    // The window is 64 packets: what is asked for fits twice into what a receiver has to hold.
    let response = |n: u32| {
        let (kind, len) = match n {
            0 | 64 | 128 => ("FIRST", 1024),
            63 | 127 => ("LAST", 1024),
            149 => ("LAST", 1),
            _ => ("MIDDLE", 1024),
        };
        format!("P > RDMA_READ_RESPONSE_{kind} {} len={len} at={}\n", 5000 + n, n * 1024)
    };
    let mut script =
        "get 1 len=152577\nD > RDMA_READ_REQUEST 5000 A=1 len=0 va=0 dma=65536\nsend 2\n".to_string();
    for n in 0..=149 {
        script += &response(n);
        script += match n {
            0 => "D > RDMA_READ_REQUEST 5064 A=1 len=0 va=65536 dma=65536\n",
            64 => "D > RDMA_READ_REQUEST 5128 A=1 len=0 va=131072 dma=21505\nD > SEND_ONLY 5150 A=1 len=16\n",
            _ => "",
        };
        if n == 10 {
            // One is lost. Both parts are asked for again, to where they ended before.
            script += &response(12);
            script += "D > RDMA_READ_REQUEST 5011 A=1 len=0 va=11264 dma=54272\n";
            script += "D > RDMA_READ_REQUEST 5064 A=1 len=0 va=65536 dma=65536\n";
        }
    }
    script += "D : read 1 SUCCESS len=152577\nP > ACK 5150\nD : send 2 SUCCESS\ncount timeouts 0";
    with_depth(2).run(&script);
}

#[test]
fn small_reads_do_not_outrun_their_window_nor_block_sends() {
    let mut dut = with_depth(16);
    let mut script = String::new();
    for n in 0..4 {
        script +=
            &format!("get {n} len=20480\nD > RDMA_READ_REQUEST {} A=1 len=0 va=0 dma=20480\n", 5000 + 20 * n);
    }
    script += "get 4 len=20480\nsend 5\n";
    dut.run(&script);
    let mut dut = with_depth(16);
    dut.run(
        "get 1 len=60000
         D > RDMA_READ_REQUEST 5000 A=1 len=0 va=0 dma=60000
         put 2 len=2000
         D > RDMA_WRITE_FIRST 5059 A=0 len=1024 va=0 dma=2000
         D > RDMA_WRITE_LAST 5060 A=1 len=976
         put 3 len=5000
         D > RDMA_WRITE_FIRST 5061 A=0 len=1024 va=0 dma=5000
         D > RDMA_WRITE_MIDDLE 5062 A=0 len=1024
         D > RDMA_WRITE_MIDDLE 5063 A=0 len=1024
         D > RDMA_WRITE_MIDDLE 5064 A=0 len=1024
         D > RDMA_WRITE_LAST 5065 A=1 len=904",
    );
}

#[test]
fn hca_t47_unsignaled() {
    let mut dut = Dut::new();
    dut.run(
        "send 1 SIGNALED=0
         D > SEND_ONLY 5000 A=1 len=16
         put 2 SIGNALED=0
         D > RDMA_WRITE_ONLY 5001 A=1 len=16 va=0 dma=16
         send 3
         D > SEND_ONLY 5002 A=1 len=16
         P > ACK 5002
         D : send 3 SUCCESS
         get 4 SIGNALED=0
         D > RDMA_READ_REQUEST 5003 A=1 len=0 va=0 dma=16
         P > RDMA_READ_RESPONSE_ONLY 5003 len=16 at=0",
    );
    let released = dut.engine.take_released();
    assert_eq!((released.len(), dut.engine.take_released().len()), (3, 0));
    assert!(released[2].iter().enumerate().all(|(i, &byte)| byte == pattern(55, i)), "the read is in place");
    assert_eq!(dut.engine.outstanding(dut.qpn), Some((0, 0)));
    dut.run(
        "send 5 SIGNALED=0
         D > SEND_ONLY 5004 A=1 len=16
         send 6 SIGNALED=0
         D > SEND_ONLY 5005 A=1 len=16
         P > NAK 0x63 5004
         D : send 5 REM_OP_ERR
         D : send 6 WR_FLUSH_ERR
         D ! QpError
         send 7 SIGNALED=0
         D : send 7 WR_FLUSH_ERR",
    );
    assert!(dut.engine.take_released().is_empty());
}

#[test]
fn hca_t48_the_send_queue_is_drained() {
    let mut dut = Dut::new();
    dut.run(
        "send 1
         D > SEND_ONLY 5000 A=1 len=16
         send 2
         D > SEND_ONLY 5001 A=1 len=16
         modify SQD
         send 3",
    );
    let draining = dut.engine.modify(dut.qpn, Transition::SqResume).unwrap_err();
    assert_eq!(draining.to_string(), "not possible in QP state SQD, draining");
    dut.run(
        "P > ACK 5000
         D : send 1 SUCCESS
         wait 67.108864ms
         D > SEND_ONLY 5001 A=1 len=16
         P > ACK 5001
         D : send 2 SUCCESS
         D ! SqDrained
         wait 10s
         P > SEND_ONLY 1001
         D > NAK 0x60 1000 MSN=0
         modify resume
         D > SEND_ONLY 5002 A=1 len=16
         P > ACK 5002
         D : send 3 SUCCESS
         modify SQD
         D ! SqDrained
         send 4
         modify ERR
         D : send 4 WR_FLUSH_ERR",
    );
}

#[test]
fn a_message_that_was_started_is_finished_before_the_queue_is_drained() {
    let packet = |n: u32| match n {
        0 => "D > SEND_FIRST 5000 A=0 len=1024\n".to_string(),
        69 => "D > SEND_LAST 5069 A=1 len=1024\n".to_string(),
        _ => format!("D > SEND_MIDDLE {} A={} len=1024\n", 5000 + n, u8::from(n % 32 == 31)),
    };
    let mut script = "send 1 len=71680\n".to_string();
    script.extend((0..64).map(packet));
    script += "send 2\nmodify SQD\nP > ACK 5063\n";
    script.extend((64..70).map(packet));
    script += "P > ACK 5069\nD : send 1 SUCCESS\nD ! SqDrained\nmodify resume\nD > SEND_ONLY 5070 A=1 len=16";
    Dut::new().run(&script);
    let mut dut = with_depth(1);
    dut.run(
        "get 1
         D > RDMA_READ_REQUEST 5000 A=1 len=0 va=0 dma=16
         get 2
         modify SQD
         P > RDMA_READ_RESPONSE_ONLY 5000 len=16 at=0
         D : read 1 SUCCESS len=16
         D ! SqDrained",
    );
}

#[test]
fn hca_t49_flush_of_all_kinds_of_work() {
    with_depth(2).receives(2, 64).run(
        "put 1
         D > RDMA_WRITE_ONLY 5000 A=1 len=16 va=0 dma=16
         get 2 len=2000
         D > RDMA_READ_REQUEST 5001 A=1 len=0 va=0 dma=2000
         add 3 SIGNALED=0
         D > FETCH_ADD 5003 A=1 len=0 va=0 swap_or_add=0 compare=0
         send 4 SIGNALED=0 FENCE=1
         P > RDMA_READ_RESPONSE_FIRST 5001 len=1024 at=0
         D : write 1 SUCCESS
         modify ERR
         D : read 2 WR_FLUSH_ERR
         D : fetchadd 3 WR_FLUSH_ERR
         D : send 4 WR_FLUSH_ERR
         D : recv 0 WR_FLUSH_ERR
         D : recv 1 WR_FLUSH_ERR
         cas 5
         recv 6
         D : compareswap 5 WR_FLUSH_ERR
         D : recv 6 WR_FLUSH_ERR
         P > RDMA_READ_RESPONSE_LAST 5002 len=976 at=1024
         P > ATOMIC_ACKNOWLEDGE 5003 original=1
         wait 10s",
    );
}

/// Work that is refused when it is posted, and with which words.
#[test]
fn what_cannot_be_posted() {
    let mut engine = engine(roce_port(D), 3);
    let cq = engine.create_cq(64).unwrap();
    let at = RemoteAddr { addr: 0, rkey: RKey(1) };
    let mut refused = |max_rd_atomic: u8, wr: SendWr| {
        let create = QpCreate { max_sge: 3, ..QpCreate::new(QpType::Rc, cq, 1, 1) };
        let qpn = engine.create_qp(&create).unwrap();
        let rts = Rts { max_rd_atomic, ..rts(1) };
        connect(&mut engine, qpn, rtr(roce_av(P), Qpn::truncate(5), 1), rts);
        let mut work = one(wr);
        let error = engine.post_send(qpn, &mut work).unwrap_err();
        assert_eq!((work.len(), engine.outstanding(qpn)), (1, Some((0, 0))), "it comes back");
        drop(engine.destroy_qp(qpn));
        error.to_string()
    };
    let add = |len| SendWr { op: SendOp::FetchAdd { at, add: 1 }, ..send(1, len, None) };
    let read = |len| SendWr { op: SendOp::Read { from: at }, ..send(1, len, None) };
    let inline = |wr| SendWr { flags: SendFlags::INLINE, ..wr };
    let parts = |wr, count: usize| SendWr { sg: (0..count).map(|_| message(1, 8)).collect(), ..wr };
    assert_eq!(refused(0, read(1)), "reads and atomics outstanding 1, the limit is 0");
    assert_eq!(refused(0, add(8)), "reads and atomics outstanding 1, the limit is 0");
    assert_eq!(refused(1, add(7)), "too short for the result of an atomic: bytes 7, the limit is 8");
    assert_eq!(
        refused(1, parts(add(8), 0)),
        "too short for the result of an atomic: bytes 0, the limit is 8"
    );
    assert_eq!(refused(1, parts(add(8), 2)), "number of an atomic's buffers 2, the limit is 1");
    assert_eq!(refused(1, parts(send(1, 1, None), 4)), "number of buffers 4, the limit is 3");
    assert_eq!(refused(1, parts(read(1), 4)), "number of buffers 4, the limit is 3");
    assert_eq!(refused(1, inline(send(1, 257, None))), "message of 257 bytes, the limit is 256");
    let why = "not a work request for this QP: reads and atomics cannot be inline";
    assert_eq!((refused(1, inline(read(8))), refused(1, inline(add(8)))), (why.into(), why.into()));
    let to = DatagramDest { ah: ah(roce_av(P)), qpn: Qpn::truncate(5), qkey: QKey(1) };
    let datagram = SendWr { op: SendOp::Datagram { to, imm: None }, ..send(1, 1, None) };
    assert_eq!(refused(1, datagram), "not a work request for this QP: not an operation of a connected QP");

    let mut config = Config::new(device_attr("soft", Guid(1), 1), vec![roce_port(D)], [1; 32]);
    config.device.max_message = 3000;
    let mut engine = Engine::new(config);
    let cq = engine.create_cq(2).unwrap();
    let qpn = engine.create_qp(&QpCreate::new(QpType::Rc, cq, 1, 1)).unwrap();
    connect(&mut engine, qpn, rtr(roce_av(P), Qpn::truncate(5), 1), rts(1));
    let too_long = Err(PostError::TooLong { len: 3001, limit: 3000 });
    assert_eq!(engine.post_send(qpn, &mut one(read(3001))), too_long);
    assert_eq!(engine.post_send(qpn, &mut one(send(1, 3001, None))), too_long);
    engine.post_send(qpn, &mut one(read(3000))).unwrap();
}

#[test]
fn inline_messages_are_like_others() {
    let mut dut = Dut::new();
    let wr = SendWr { flags: SendFlags::INLINE | SendFlags::SIGNALED, ..send(1, 256, None) };
    dut.engine.post_send(dut.qpn, &mut one(wr)).unwrap();
    dut.drain();
    dut.run("D > SEND_ONLY 5000 A=1 len=256\nP > ACK 5000\nD : send 1 SUCCESS");
}

#[test]
fn packets_have_the_path_mtu() {
    for (mtu, bytes) in
        [(Mtu::B256, 256), (Mtu::B512, 512), (Mtu::B1024, 1024), (Mtu::B2048, 2048), (Mtu::B4096, 4096)]
    {
        let mut port = roce_port(D);
        port.attr.active_mtu = Mtu::B4096;
        let mut engine = engine(port, 1);
        let cq = engine.create_cq(4).unwrap();
        let qpn = engine.create_qp(&QpCreate::new(QpType::Rc, cq, 3, 1)).unwrap();
        let rtr = Rtr { path_mtu: mtu, ..rtr(roce_av(P), Qpn::truncate(5), 1) };
        connect(&mut engine, qpn, rtr, rts(1));
        let at = RemoteAddr { addr: 0, rkey: RKey(1) };
        let write = SendWr { op: SendOp::Write { to: at, imm: None }, ..send(1, 2 * bytes + 1, None) };
        let read = SendWr { op: SendOp::Read { from: at }, ..send(2, 2 * bytes + 1, None) };
        engine.post_send(qpn, &mut VecDeque::from([write, read, send(3, bytes, None)])).unwrap();
        let mut seen = Vec::new();
        let (now, mut out) = (Instant::now(), Vec::new());
        while engine.poll_transmit(now, &mut out).is_some() {
            let packet = TransportPacket::parse(&out).unwrap();
            seen.push((packet.bth().psn.get(), packet.payload().len()));
            out.clear();
        }
        assert_eq!(seen, [(1, bytes), (2, bytes), (3, 1), (4, 0), (7, bytes)]);
    }
}
