//! Unreliable connections of Linux's rdma_rxe, as they were captured: its packets to our receiver, and the same work
//! posted to our sender.

use std::time::Instant;

use ibdev::qp::QpType;
use ibdev::{CompletionOp, RemoteAddr, SharedMemory, Status};
use ibwire::packet::{ImmDt, Reth, TransportPacket};

use super::super::{CqId, DomainId, QpCreate};
use super::captured_requests::{Frame, frames};
use super::*;

const P: &str = "10.77.0.1";
const D: &str = "10.77.0.2";

/// The packets to one QP of a capture.
fn to_qp(file: &str, qpn: u32) -> Vec<Frame> {
    frames(file).into_iter().filter(|frame| frame.bth().dest_qp.get() == qpn).collect()
}

/// A QP that expects the first of these packets, and sends with its PSN to its destination.
fn peer_of(frames: &[Frame]) -> (Engine, CqId, Qpn) {
    let mut engine = engine(roce_port(D), 4);
    let cq = engine.create_cq(32).unwrap();
    let qpn = engine.create_qp(&QpCreate::new(QpType::Uc, cq, 4, 4)).unwrap();
    let first = frames[0].bth();
    engine.modify(qpn, Transition::Init(Init { access: Access::all(), ..INIT })).unwrap();
    engine.modify(qpn, Transition::Rtr(rtr(roce_av(P), first.dest_qp, first.psn.get()))).unwrap();
    engine.modify(qpn, Transition::Rts(rts(first.psn.get()))).unwrap();
    (engine, cq, qpn)
}

fn deliver(engine: &mut Engine, qpn: Qpn, bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    bytes[5..8].copy_from_slice(&qpn.get().to_be_bytes()[1..]);
    engine.handle_packet(Instant::now(), 1, &roce_net(P, D), &bytes);
    assert!(engine.poll_transmit(Instant::now(), &mut Vec::new()).is_none());
}

/// Lengths and payloads of the messages in these packets.
fn payload(frames: &[Frame]) -> Vec<u8> {
    frames
        .iter()
        .flat_map(|frame| TransportPacket::parse(&frame.transport).unwrap().payload().to_vec())
        .collect()
}

#[test]
fn the_packets_of_the_kernel_are_received() {
    let all = to_qp("05-uc", 0x15);
    let (mut engine, cq, qpn) = peer_of(&all);
    let (send, write) = all.split_at(2);
    let reth = TransportPacket::parse(&write[0].transport).unwrap().reth().unwrap();
    let memory = SharedMemory::zeroed(reth.len as usize);
    let (rkey, va) = engine.register(DomainId::DEFAULT, memory.clone(), Access::REMOTE_WRITE).unwrap();
    engine.post_recv(qpn, &mut VecDeque::from([recv(0, 2048), recv(1, 0)])).unwrap();
    for frame in send {
        deliver(&mut engine, qpn, &frame.transport);
    }
    for (i, frame) in write.iter().enumerate() {
        let mut bytes = frame.transport.clone();
        if i == 0 {
            Reth { va, rkey, ..reth }.write_to(&mut bytes[12..]);
        }
        deliver(&mut engine, qpn, &bytes);
    }
    let mut completions = Vec::new();
    assert_eq!(engine.poll_cq(cq, &mut completions, 9), 2);
    assert_eq!((completions[0].len, &completions[0].sg[0][..]), (1500, &payload(send)[..]));
    assert_eq!((completions[1].op, completions[1].len), (CompletionOp::RecvWrite, 2050));
    assert_eq!(completions[1].imm, Some(0x1122_3344));
    let mut written = vec![0; 2050];
    memory.copy_to(0, &mut written).unwrap();
    assert!(written == payload(write));
}

/// Byte for byte, but that M is 1 here and 0 there.
#[test]
fn the_packets_of_the_kernel_are_sent() {
    let all = to_qp("05-uc", 0x15);
    let (mut engine, _, qpn) = peer_of(&all);
    let (send, write) = all.split_at(2);
    let reth = TransportPacket::parse(&write[0].transport).unwrap().reth().unwrap();
    let imm = TransportPacket::parse(&write[2].transport).unwrap().immdt().map(ImmDt::to_u32);
    let to = RemoteAddr { addr: reth.va, rkey: reth.rkey };
    let mut work = VecDeque::new();
    for (op, frames) in [(SendOp::Send { imm: None }, send), (SendOp::Write { to, imm }, write)] {
        let bytes = payload(frames);
        let mut buf = Buf::unregistered(bytes.len());
        buf.copy_from_slice(&bytes);
        work.push_back(SendWr::new(0, op, buf));
    }
    engine.post_send(qpn, &mut work).unwrap();
    for frame in &all {
        let mut out = Vec::new();
        engine.poll_transmit(Instant::now(), &mut out).unwrap();
        out[1] &= !0x40;
        assert!(out == frame.transport, "frame {}", frame.number);
    }
    assert!(engine.poll_transmit(Instant::now(), &mut Vec::new()).is_none());
}

/// The probes UC1 to UC6. Rxe loses one message more in UC3, and fails in UC6.
#[test]
fn probes() {
    for (label, qpn, receives, delivered) in [
        // A gap between messages; a lost MIDDLE; FIRST, then ONLY.
        ("UC1", 0x19, &[(0, 2048), (0, 2048)][..], &[0, 1][..]),
        ("UC2", 0x1a, &[(0, 2048)], &[2]),
        ("UC3", 0x1b, &[(0, 2048), (0, 2048)], &[1, 2]),
        // No receive; a bad key; too long for the receive.
        ("UC4", 0x1c, &[(1, 2048)], &[1]),
        ("UC5", 0x1d, &[(0, 2048)], &[1]),
        ("UC6", 0x1e, &[(0, 8)], &[]),
    ] {
        let frames = to_qp("33-keys-read-length-uc", qpn);
        let (mut engine, cq, qpn) = peer_of(&frames);
        for (i, frame) in frames.iter().enumerate() {
            for &(_, len) in receives.iter().filter(|(before, _)| *before == i) {
                engine.post_recv(qpn, &mut one(recv(0, len))).unwrap();
            }
            deliver(&mut engine, qpn, &frame.transport);
        }
        let mut completions = Vec::new();
        engine.poll_cq(cq, &mut completions, 9);
        assert!(completions.iter().all(|completion| completion.status == Status::SUCCESS), "{label}");
        let received: Vec<_> = completions.iter().map(|completion| completion.sg[0].to_vec()).collect();
        let sent: Vec<_> = delivered.iter().map(|&at: &usize| payload(&frames[at..=at])).collect();
        assert_eq!(received, sent, "{label}");
    }
}
