//! Unreliable connections.

use std::time::Instant;

use ibdev::qp::QpType;
use ibdev::{
    Completion, CompletionOp, DeviceError, DeviceEvent, PostError, RemoteAddr, SendFlags, SharedMemory,
    Status,
};
use ibwire::RKey;
use ibwire::packet::{Bth, ImmDt, Opcode, Reth, TransportPacket};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::super::{CqId, DomainId, EngineEvent, QpCreate};
use super::*;

const P: &str = "10.77.0.1";
const D: &str = "10.77.0.2";
const MTU: usize = 1024;

/// A device with one QP, which expects PSN 1000 and sends from 0xfffffe on, and a region that its peer may write to.
struct Dut {
    engine: Engine,
    cq: CqId,
    qpn: Qpn,
    now: Instant,
    memory: SharedMemory,
    at: RemoteAddr,
}

impl Dut {
    fn new() -> Self {
        let mut dut = Self::in_rtr();
        dut.engine.modify(dut.qpn, Transition::Rts(rts(0xff_fffe))).unwrap();
        dut
    }

    fn in_rtr() -> Self {
        let mut engine = engine(roce_port(D), 3);
        let cq = engine.create_cq(32).unwrap();
        let create = QpCreate { max_sge: 3, ..QpCreate::new(QpType::Uc, cq, 8, 8) };
        let qpn = engine.create_qp(&create).unwrap();
        let memory = SharedMemory::zeroed(4000);
        let (rkey, addr) = engine.register(DomainId::DEFAULT, memory.clone(), Access::REMOTE_WRITE).unwrap();
        engine.modify(qpn, Transition::Init(Init { access: Access::all(), ..INIT })).unwrap();
        engine.modify(qpn, Transition::Rtr(rtr(roce_av(P), Qpn::truncate(5), 1000))).unwrap();
        Self { engine, cq, qpn, now: Instant::now(), memory, at: RemoteAddr { addr, rkey } }
    }

    fn post_recv(&mut self, ids: std::ops::Range<u64>, len: usize) {
        for id in ids {
            self.engine.post_recv(self.qpn, &mut one(recv(id, len))).unwrap();
        }
    }

    /// P > a packet that asks for an acknowledgement: no answer.
    fn packet(&mut self, opcode: Opcode, psn: u32, extended: &[u8], payload: &[u8]) {
        let pad = Bth::pad_for(payload.len());
        let bth = Bth { pad, ack_req: true, ..Bth::new(opcode, self.qpn, Psn::truncate(psn)) };
        let mut bytes = [&bth.to_bytes()[..], extended, payload].concat();
        bytes.resize(bytes.len() + usize::from(pad), 0);
        self.engine.handle_packet(self.now, 1, &roce_net(P, D), &bytes);
        assert_eq!(self.transmit(), None);
        assert_eq!(self.engine.poll_timeout(), None);
    }

    fn transmit(&mut self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        self.engine.poll_transmit(self.now, &mut out).map(|_| out)
    }

    fn completion(&mut self) -> Option<Completion> {
        let mut out = Vec::new();
        self.engine.poll_cq(self.cq, &mut out, 1);
        out.pop()
    }

    /// The next completion is a message with these bytes.
    #[track_caller]
    fn received(&mut self, id: u64, bytes: &[u8]) -> Option<u32> {
        let completion = self.completion().expect("a message");
        assert_eq!((completion.id, completion.status), (id, Status::SUCCESS));
        assert_eq!((completion.op, completion.len as usize), (CompletionOp::Recv, bytes.len()));
        assert_eq!(completion.sg.iter().flat_map(|buf| buf.to_vec()).collect::<Vec<_>>(), bytes);
        completion.imm
    }

    fn reth(&self, at: u64, len: u32) -> [u8; Reth::LEN] {
        Reth { va: self.at.addr + at, rkey: self.at.rkey, len }.to_bytes()
    }

    fn written(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.copy_to(at, &mut bytes).unwrap();
        bytes
    }

    fn events(&mut self) -> Vec<DeviceEvent> {
        let events = std::iter::from_fn(|| self.engine.poll_event());
        events
            .filter_map(|event| if let EngineEvent::Device(event) = event { Some(event) } else { None })
            .collect()
    }
}

/// The packet behind the last one of a message that is lost whole has the PSN that it would have anyway.
#[test]
fn a_message_on_a_port_that_is_down_takes_its_psns_along() {
    let mut dut = Dut::new();
    let attr = *dut.engine.port(1).unwrap();
    let psn = |packet: Vec<u8>| Bth::parse(&packet).unwrap().psn.get();
    dut.engine.set_port(PortAttr { state: PortState::Down, ..attr });
    dut.engine.post_send(dut.qpn, &mut one(send(1, 2500, None))).unwrap();
    assert_eq!(dut.transmit(), None);
    assert_eq!((dut.completion().unwrap().id, dut.engine.counters().drop_tx_port_down), (1, 3));
    dut.engine.set_port(attr);
    dut.engine.post_send(dut.qpn, &mut one(send(2, 4, None))).unwrap();
    assert_eq!(dut.transmit().map(psn), Some(1));
}

/// Its sender may have lost the rest before it was made.
#[test]
fn a_message_that_begins_behind_half_of_another_is_delivered() {
    let mut dut = Dut::new();
    dut.post_recv(0..2, 2000);
    dut.packet(Opcode::UC_SEND_FIRST, 1000, &[], &[1; MTU]);
    dut.packet(Opcode::UC_SEND_ONLY, 1001, &[], b"whole");
    assert_eq!(dut.received(0, b"whole"), None);
    assert_eq!(dut.engine.counters().uc_abandoned, 1);
    dut.packet(Opcode::UC_SEND_ONLY, 1002, &[], b"next");
    assert_eq!(dut.received(1, b"next"), None);
}

#[test]
fn hca_t51_a_gap_between_messages() {
    let mut dut = Dut::new();
    dut.post_recv(0..3, 64);
    dut.packet(Opcode::UC_SEND_ONLY, 1000, &[], b"one");
    dut.packet(Opcode::UC_SEND_ONLY_WITH_IMM, 1005, &ImmDt::from_u32(7).to_bytes(), b"two");
    // Back again, as a packet that was overtaken.
    dut.packet(Opcode::UC_SEND_ONLY, 1003, &[], b"");
    assert_eq!(dut.received(0, b"one"), None);
    assert_eq!(dut.received(1, b"two"), Some(7));
    assert_eq!(dut.received(2, b""), None);
}

#[test]
fn hca_t52_a_lost_packet_loses_its_message() {
    let mut dut = Dut::new();
    dut.post_recv(0..1, 4 * MTU);
    dut.packet(Opcode::UC_SEND_FIRST, 1000, &[], &[1; MTU]);
    dut.packet(Opcode::UC_SEND_LAST, 1002, &[], &[2; 10]);
    dut.packet(Opcode::UC_SEND_ONLY, 1003, &[], b"only");
    dut.received(0, b"only");
    let counters = dut.engine.counters();
    assert_eq!((counters.uc_abandoned, counters.drop_out_of_sequence), (1, 1));

    // What follows a lost FIRST is of no use, whatever it is.
    dut.post_recv(1..3, 4 * MTU);
    dut.packet(Opcode::UC_SEND_MIDDLE, 1005, &[], &[3; MTU]);
    dut.packet(Opcode::UC_SEND_LAST, 1006, &[], b"x");
    // A message that begins in the middle of another is a new one, without a gap too.
    dut.packet(Opcode::UC_SEND_FIRST, 1007, &[], &[4; MTU]);
    dut.packet(Opcode::UC_SEND_FIRST, 1008, &[], &[5; MTU]);
    dut.packet(Opcode::UC_SEND_LAST, 1009, &[], &[5; 5]);
    dut.packet(Opcode::UC_SEND_FIRST, 1010, &[], &[6; MTU]);
    dut.packet(Opcode::UC_RDMA_WRITE_LAST, 1011, &[], &[6; 5]);
    dut.packet(Opcode::UC_SEND_LAST, 1012, &[], &[6; 5]);
    dut.packet(Opcode::UC_SEND_ONLY, 1013, &[], b"end");
    dut.received(1, &[5; MTU + 5]);
    dut.received(2, b"end");
    let counters = dut.engine.counters();
    assert_eq!((counters.uc_abandoned, counters.drop_out_of_sequence), (3, 2));
    assert_eq!(counters.drop_opcode_sequence, 3);
    assert_eq!(dut.events(), []);
}

#[test]
fn hca_t53_no_receive_and_bad_keys() {
    let mut dut = Dut::new();
    dut.packet(Opcode::UC_SEND_ONLY, 1000, &[], b"nobody waits");
    dut.packet(Opcode::UC_SEND_FIRST, 1001, &[], &[1; MTU]);
    dut.post_recv(0..2, 2 * MTU);
    dut.packet(Opcode::UC_SEND_LAST, 1002, &[], b"too late");
    for (psn, rkey, at, len) in [
        (1003, RKey(dut.at.rkey.0 ^ 1), 0, 8),
        (1004, dut.at.rkey, 3996, 8),
        (1005, dut.at.rkey, u64::MAX - dut.at.addr - 3, 8),
        (1006, dut.at.rkey, 0, 9),
    ] {
        let reth = Reth { va: dut.at.addr.wrapping_add(at), rkey, len };
        dut.packet(Opcode::UC_RDMA_WRITE_ONLY, psn, &reth.to_bytes(), &[1; 8]);
    }
    // With a bad key the whole message is dropped.
    let reth = Reth { va: dut.at.addr, rkey: RKey(0), len: MTU as u32 + 8 };
    dut.packet(Opcode::UC_RDMA_WRITE_FIRST, 1007, &reth.to_bytes(), &[1; MTU]);
    dut.packet(Opcode::UC_RDMA_WRITE_LAST, 1008, &[], &[1; 8]);
    assert_eq!(dut.written(0, 4000), [0; 4000]);
    assert!(dut.completion().is_none());
    let counters = dut.engine.counters();
    assert_eq!((counters.drop_rnr, counters.drop_rkey, counters.drop_range), (2, 2, 2));
    assert_eq!((counters.drop_length, counters.drop_opcode_sequence), (1, 2));

    dut.packet(Opcode::UC_SEND_ONLY, 1009, &[], b"next");
    dut.received(0, b"next");
    let reth = dut.reth(8, 4);
    dut.packet(Opcode::UC_RDMA_WRITE_ONLY, 1010, &reth, b"word");
    assert_eq!(dut.written(4, 12), b"\0\0\0\0word\0\0\0\0");
    assert_eq!(dut.events(), []);
    assert_eq!(dut.engine.outstanding(dut.qpn), Some((0, 1)));
}

#[test]
fn writes_take_a_receive_with_their_immediate() {
    let mut dut = Dut::new();
    let imm = ImmDt::from_u32(0xabcd).to_bytes();
    let reth = dut.reth(0, MTU as u32 + 2);
    dut.packet(Opcode::UC_RDMA_WRITE_FIRST, 1000, &reth, &[1; MTU]);
    // Nobody waits for it. What came before stays written.
    dut.packet(Opcode::UC_RDMA_WRITE_LAST_WITH_IMM, 1001, &imm, &[2; 2]);
    assert_eq!(dut.written(MTU - 2, 4), [1, 1, 0, 0]);
    dut.post_recv(0..2, 0);
    dut.packet(Opcode::UC_RDMA_WRITE_FIRST, 1002, &reth, &[3; MTU]);
    dut.packet(Opcode::UC_RDMA_WRITE_LAST_WITH_IMM, 1003, &imm, &[4; 2]);
    // Nothing is written, so nothing is asked for its key.
    let nothing = [&Reth { va: 1, rkey: RKey(1), len: 0 }.to_bytes()[..], &imm].concat();
    dut.packet(Opcode::UC_RDMA_WRITE_ONLY_WITH_IMM, 1004, &nothing, &[]);
    assert_eq!(dut.written(MTU - 2, 4), [3, 3, 4, 4]);
    for len in [MTU as u32 + 2, 0] {
        let completion = dut.completion().unwrap();
        assert_eq!((completion.op, completion.len), (CompletionOp::RecvWrite, len));
        assert_eq!((completion.imm, completion.sg[0].len()), (Some(0xabcd), 0));
    }
}

#[test]
fn too_long_for_the_receive_which_stays() {
    let mut dut = Dut::new();
    dut.post_recv(0..1, MTU + 10);
    dut.packet(Opcode::UC_SEND_FIRST, 1000, &[], &[1; MTU]);
    dut.packet(Opcode::UC_SEND_LAST, 1001, &[], &[1; 11]);
    assert!(dut.completion().is_none());
    assert_eq!((dut.engine.counters().drop_too_long, dut.engine.counters().uc_abandoned), (1, 1));
    dut.packet(Opcode::UC_SEND_ONLY, 1002, &[], &[2; 5]);
    dut.received(0, &[2; 5]);
}

#[test]
fn access_is_the_qps_too() {
    let mut dut = Dut::new();
    dut.engine.modify(dut.qpn, Transition::Reset).unwrap();
    connect(&mut dut.engine, dut.qpn, rtr(roce_av(P), Qpn::truncate(5), 1000), rts(0));
    let reth = dut.reth(0, 4);
    dut.packet(Opcode::UC_RDMA_WRITE_ONLY, 1000, &reth, b"word");
    assert_eq!((dut.written(0, 4), dut.engine.counters().drop_not_allowed), (vec![0; 4], 1));
}

#[test]
fn packets_of_others_are_dropped() {
    let mut dut = Dut::new();
    dut.post_recv(0..1, 64);
    // READ, atomic and invalidation are not of UC.
    for opcode in [0x2c, 0x31, 0x33, 0x34, 0x37] {
        dut.packet(Opcode(opcode), 1000, &[0; 28], &[]);
    }
    assert_eq!(dut.engine.counters().drop_opcode, 5);
    dut.packet(Opcode::RC_SEND_ONLY, 1000, &[], b"x");
    assert_eq!(dut.engine.counters().drop_transport, 1);
    let bth = Bth { pkey: PKey(0x8001), ..Bth::new(Opcode::UC_SEND_ONLY, dut.qpn, Psn::truncate(1000)) };
    dut.engine.handle_packet(dut.now, 1, &roce_net(P, D), &bth.to_bytes());
    let bth = Bth { pkey: PKey::DEFAULT, ..bth };
    dut.engine.handle_packet(dut.now, 1, &roce_net("10.77.0.3", D), &bth.to_bytes());
    assert_eq!((dut.engine.counters().drop_pkey, dut.engine.counters().drop_address), (1, 1));
    dut.engine.modify(dut.qpn, Transition::Error).unwrap();
    dut.packet(Opcode::UC_SEND_ONLY, 1000, &[], b"x");
    assert_eq!(dut.engine.counters().drop_state, 1);
    assert_eq!(dut.completion().map(|completion| completion.status), Some(Status::WR_FLUSH_ERR));
}

#[test]
fn data_in_rtr_is_an_event_once() {
    let mut dut = Dut::in_rtr();
    dut.post_recv(0..2, 64);
    assert!(matches!(
        dut.engine.post_send(dut.qpn, &mut one(send(0, 4, None))),
        Err(PostError::State { state: "RTR" })
    ));
    dut.packet(Opcode::UC_SEND_ONLY, 1000, &[], b"first");
    dut.packet(Opcode::UC_SEND_ONLY, 1001, &[], b"second");
    assert_eq!(dut.events(), [DeviceEvent::CommEstablished(dut.qpn)]);
    dut.received(0, b"first");
}

#[test]
fn a_send_is_complete_when_it_has_left() {
    let mut dut = Dut::new();
    let sg = [700, 0, 3 * MTU - 700].iter().map(|&len| message(1, len)).collect();
    let op = SendOp::Send { imm: Some(9) };
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    let to = RemoteAddr { addr: 0x1000, rkey: RKey(3) };
    let write = SendWr::new(2, SendOp::Write { to, imm: None }, message(2, 5));
    let mut work =
        VecDeque::from([SendWr { id: 1, op, sg, flags }, SendWr { flags: SendFlags::SOLICITED, ..write }]);
    dut.engine.post_send(dut.qpn, &mut work).unwrap();
    let opcodes = [
        Opcode::UC_SEND_FIRST,
        Opcode::UC_SEND_MIDDLE,
        Opcode::UC_SEND_LAST_WITH_IMM,
        Opcode::UC_RDMA_WRITE_ONLY,
    ];
    for (i, opcode) in opcodes.into_iter().enumerate() {
        assert!(dut.completion().is_none());
        let bytes = dut.transmit().unwrap();
        let packet = TransportPacket::parse(&bytes).unwrap();
        let bth = packet.bth();
        assert_eq!((bth.opcode, bth.dest_qp), (opcode, Qpn::truncate(5)));
        assert_eq!(
            (bth.psn, bth.ack_req, bth.mig_req),
            (Psn::truncate(0xff_fffe).offset(i as u32), false, true)
        );
        assert_eq!(bth.solicited, i == 2, "a plain write wakes nobody");
        match i {
            2 => {
                let completion = dut.completion().unwrap();
                assert_eq!((completion.id, completion.op), (1, CompletionOp::Send));
                assert_eq!(packet.immdt().map(ImmDt::to_u32), Some(9));
            }
            3 => assert_eq!(packet.reth(), Some(Reth { va: 0x1000, rkey: RKey(3), len: 5 })),
            _ => assert_eq!(packet.payload().len(), MTU),
        }
    }
    // The write was not signaled: its place is free, its buffer on its way home.
    assert!(dut.completion().is_none());
    assert_eq!((dut.engine.outstanding(dut.qpn), dut.engine.take_released().len()), (Some((0, 0)), 1));
    assert_eq!(dut.transmit(), None);
    assert_eq!(dut.engine.poll_timeout(), None, "nobody waits for an answer");
}

#[test]
fn reads_and_atomics_are_refused() {
    let mut dut = Dut::new();
    for op in [
        SendOp::Read { from: dut.at },
        SendOp::FetchAdd { at: dut.at, add: 1 },
        SendOp::CompareSwap { at: dut.at, compare: 1, swap: 2 },
    ] {
        let mut work = one(SendWr::new(0, op, message(0, 8)));
        assert!(matches!(dut.engine.post_send(dut.qpn, &mut work), Err(PostError::Invalid { .. })));
        assert_eq!(work.len(), 1);
    }
}

#[test]
fn rtr_and_rts_look_at_no_more_than_uc_uses() {
    let mut dut = Dut::new();
    dut.engine.modify(dut.qpn, Transition::Reset).unwrap();
    dut.engine.modify(dut.qpn, Transition::Init(INIT)).unwrap();
    let good = rtr(roce_av(P), Qpn::truncate(5), 1000);
    let long = Rtr { path_mtu: Mtu::B2048, ..good };
    assert!(matches!(dut.engine.modify(dut.qpn, Transition::Rtr(long)), Err(DeviceError::Limit { .. })));
    dut.engine.modify(dut.qpn, Transition::Rtr(Rtr { max_dest_rd_atomic: 200, ..good })).unwrap();
    let odd = Rts { retry_count: 99, rnr_retry: 99, max_rd_atomic: 200, ..rts(1) };
    dut.engine.modify(dut.qpn, Transition::Rts(odd)).unwrap();
    for transition in [Transition::DatagramRtr, Transition::DatagramRts { sq_psn: Psn::default() }] {
        assert!(matches!(dut.engine.modify(dut.qpn, transition), Err(DeviceError::State { .. })));
    }
}

#[test]
fn draining_ends_with_the_message_that_was_begun() {
    let mut dut = Dut::new();
    dut.engine.post_send(dut.qpn, &mut VecDeque::from([send(0, MTU + 1, None), send(1, 1, None)])).unwrap();
    dut.transmit().unwrap();
    dut.engine.modify(dut.qpn, Transition::SqDrain).unwrap();
    assert_eq!(dut.events(), []);
    assert!(matches!(dut.engine.modify(dut.qpn, Transition::SqResume), Err(DeviceError::State { .. })));
    dut.transmit().unwrap();
    assert_eq!(dut.events(), [DeviceEvent::SqDrained(dut.qpn)]);
    assert_eq!(dut.transmit(), None);
    dut.engine.modify(dut.qpn, Transition::SqResume).unwrap();
    dut.transmit().unwrap();
    assert_eq!([0, 1].map(|_| dut.completion().unwrap().id), [0, 1]);
}

#[test]
fn errors_and_resets_leave_nothing_behind() {
    let mut dut = Dut::new();
    dut.post_recv(10..12, MTU);
    dut.packet(Opcode::UC_SEND_FIRST, 1000, &[], &[1; MTU]);
    dut.engine.post_send(dut.qpn, &mut VecDeque::from([send(0, 2 * MTU, None), send(1, 1, None)])).unwrap();
    dut.transmit().unwrap();
    dut.engine.modify(dut.qpn, Transition::Error).unwrap();
    assert_eq!(dut.transmit(), None);
    for id in [0, 1, 10, 11] {
        let completion = dut.completion().unwrap();
        assert_eq!((completion.id, completion.status), (id, Status::WR_FLUSH_ERR));
    }
    dut.engine.modify(dut.qpn, Transition::Reset).unwrap();
    connect(&mut dut.engine, dut.qpn, rtr(roce_av(P), Qpn::truncate(5), 7), rts(3));
    dut.post_recv(0..1, MTU);
    dut.packet(Opcode::UC_SEND_ONLY, 7, &[], b"new");
    dut.received(0, b"new");
    dut.engine.post_send(dut.qpn, &mut one(send(0, 1, None))).unwrap();
    assert_eq!(Bth::parse(&dut.transmit().unwrap()).map(|bth| bth.psn), Ok(Psn::truncate(3)));
}

/// Over a network that loses, repeats and swaps packets, what arrives is messages that were sent, whole.
#[test]
fn what_arrives_was_sent() {
    let mut arrived = 0;
    for seed in 0..200 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut from, mut to) = (Dut::new(), Dut::new());
        to.engine.modify(to.qpn, Transition::Reset).unwrap();
        let from_p = Rtr { rq_psn: Psn::truncate(0xff_fffe), ..rtr(roce_av(P), from.qpn, 0) };
        connect(&mut to.engine, to.qpn, from_p, rts(0));
        let mut wire = Vec::new();
        for id in 0..8 {
            let len = rng.random_range(0..3 * MTU);
            from.engine.post_send(from.qpn, &mut one(send(id, len, Some(id as u32)))).unwrap();
            while let Some(mut bytes) = from.transmit() {
                bytes[5..8].copy_from_slice(&to.qpn.get().to_be_bytes()[1..]);
                wire.push(bytes);
            }
            assert_eq!(from.completion().unwrap().id, id);
        }
        for _ in 0..rng.random_range(0..4) {
            let at = rng.random_range(0..wire.len() - 1);
            match rng.random_range(0..3) {
                0 => drop(wire.remove(at)),
                1 => wire.insert(at, wire[at].clone()),
                _ => wire.swap(at, at + 1),
            }
        }
        to.post_recv(0..8, 3 * MTU);
        for bytes in &wire {
            to.engine.handle_packet(to.now, 1, &roce_net(P, D), bytes);
            assert_eq!(to.transmit(), None);
        }
        while let Some(completion) = to.completion() {
            let id = u64::from(completion.imm.unwrap());
            let buf = &completion.sg[0];
            assert!(buf[..] == message(id, buf.len())[..], "seed {seed}: message {id}");
            arrived += 1;
        }
    }
    assert!((1000..1600).contains(&arrived), "{arrived} of 1600");
}
