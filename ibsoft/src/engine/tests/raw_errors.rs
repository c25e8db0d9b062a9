//! Raw queue pairs: the error classes of IBTA (spec/raw.md 3.4).

use std::sync::Arc;

use bytes::BytesMut;
use ibdev::qp::QpType;
use ibdev::{CompletionOp, DeviceEvent, MemoryKey, RawFilter, Status};
use ibwire::raw::ether_frame;

use super::super::{EngineEvent, QpCreate};
use super::raw::{CHAT, Dut, End, OWN, ether, lrh};
use super::*;

/// The registration of another device.
#[derive(Debug)]
struct Foreign;

impl MemoryKey for Foreign {
    fn lkey(&self) -> u32 {
        7
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

fn foreign(len: usize) -> Buf {
    Buf::registered(BytesMut::zeroed(len), Arc::new(Foreign))
}

fn open(dut: &mut Dut, cqe: u32) -> End {
    let end = dut.create(QpType::RawEtherType, cqe);
    dut.engine.set_raw_filter(end.qpn, RawFilter::default()).unwrap();
    dut.ready(end);
    end
}

fn arrive(dut: &mut Dut) {
    dut.arrive(&ether_frame(lrh(OWN), CHAT, b"12345678"));
}

fn device_events(dut: &mut Dut) -> Vec<DeviceEvent> {
    let all = std::iter::from_fn(|| dut.engine.poll_event());
    all.filter_map(|event| match event {
        EngineEvent::Device(event) => Some(event),
        _ => None,
    })
    .collect()
}

fn endings(dut: &mut Dut, end: End) -> Vec<(u64, CompletionOp, Status)> {
    std::iter::from_fn(|| dut.completion(end)).map(|c| (c.id, c.op, c.status)).collect()
}

fn packets(dut: &mut Dut) -> usize {
    let mut out = Vec::new();
    std::iter::from_fn(|| dut.engine.poll_transmit(dut.now, &mut out).map(|_| ())).count()
}

#[test]
fn raw_t12_a_completion_queue_that_overflows_takes_the_queue_pair_along() {
    let mut dut = Dut::new();
    let end = open(&mut dut, 1);
    (0..3).for_each(|id| dut.post_recv(end, id, 64));
    arrive(&mut dut);
    assert_eq!(device_events(&mut dut), []);
    arrive(&mut dut);
    assert_eq!(device_events(&mut dut), [DeviceEvent::CqError(end.qpn)]);
    arrive(&mut dut);
    assert_eq!(device_events(&mut dut), []);
    assert_eq!(dut.engine.counters().drop_state, 1);
    assert_eq!(endings(&mut dut, end), [(0, CompletionOp::Recv, Status::SUCCESS)]);
    assert!(dut.engine.post_recv(end.qpn, &mut one(recv(9, 64))).is_ok());
    assert_eq!(endings(&mut dut, end), [], "nothing completes in a queue that has overflowed");
    assert_eq!(dut.engine.take_released().len(), 3);
    drop(dut.engine.destroy_qp(end.qpn));
}

/// Of two completion queues the one that has room goes on.
#[test]
fn raw_t12_only_the_queue_that_overflows_fails() {
    let mut dut = Dut::new();
    let received = dut.engine.create_cq(1).unwrap();
    let sent = dut.engine.create_cq(8).unwrap();
    let mut create = QpCreate::new(QpType::RawEtherType, received, 8, 8);
    create.send_cq = sent;
    let end = End { qpn: dut.engine.create_qp(&create).unwrap(), cq: sent };
    dut.engine.modify(end.qpn, Transition::Init(INIT)).unwrap();
    dut.engine.set_raw_filter(end.qpn, RawFilter::default()).unwrap();
    dut.ready(end);
    (0..2).for_each(|id| dut.post_recv(end, id, 64));
    (0..2).for_each(|_| arrive(&mut dut));
    assert_eq!(device_events(&mut dut), [DeviceEvent::CqError(end.qpn)]);
    dut.send(end, ether(0x20), b"12345678").unwrap();
    assert_eq!(endings(&mut dut, end), [(1, CompletionOp::Send, Status::WR_FLUSH_ERR)]);
    drop(dut.engine.destroy_qp(end.qpn));
}

#[test]
fn class_f_a_send_that_has_no_room_to_complete() {
    let mut dut = Dut::new();
    let end = open(&mut dut, 1);
    for _ in 0..2 {
        dut.send(end, ether(0x20), b"12345678").unwrap();
    }
    assert_eq!(packets(&mut dut), 2, "the transfer is fine");
    assert_eq!(device_events(&mut dut), [DeviceEvent::CqError(end.qpn)]);
    assert_eq!(endings(&mut dut, end), [(1, CompletionOp::Send, Status::SUCCESS)]);
    arrive(&mut dut);
    assert_eq!(dut.engine.counters().drop_state, 1);
}

#[test]
fn raw_t13_a_send_that_fails_stops_sending_alone() {
    let mut dut = Dut::new();
    let end = open(&mut dut, 16);
    let mut work: VecDeque<_> = (0..3)
        .map(|id| SendWr::new(id, ether(0x20), if id == 1 { foreign(8) } else { message(id, 8) }))
        .collect();
    dut.engine.post_send(end.qpn, &mut work).unwrap();
    assert_eq!(packets(&mut dut), 1);
    let sends = [(0, Status::SUCCESS), (1, Status::LOC_PROT_ERR), (2, Status::WR_FLUSH_ERR)];
    assert_eq!(endings(&mut dut, end), sends.map(|(id, status)| (id, CompletionOp::Send, status)));
    assert_eq!(device_events(&mut dut), []);
    // SQE: it still receives, and what is posted is flushed.
    dut.post_recv(end, 5, 64);
    arrive(&mut dut);
    assert_eq!(endings(&mut dut, end), [(5, CompletionOp::Recv, Status::SUCCESS)]);
    dut.send(end, ether(0x20), b"12345678").unwrap();
    assert_eq!(endings(&mut dut, end), [(1, CompletionOp::Send, Status::WR_FLUSH_ERR)]);
    dut.engine.modify(end.qpn, Transition::SqResume).unwrap();
    dut.send(end, ether(0x20), b"12345678").unwrap();
    assert_eq!(packets(&mut dut), 1);
    assert_eq!(endings(&mut dut, end), [(1, CompletionOp::Send, Status::SUCCESS)]);
}

#[test]
fn class_a_a_receive_that_cannot_be_carried_out() {
    let mut dut = Dut::new();
    let end = open(&mut dut, 16);
    dut.engine.post_recv(end.qpn, &mut one(RecvWr::new(1, foreign(64)))).unwrap();
    dut.post_recv(end, 2, 64);
    arrive(&mut dut);
    let receives = [(1, Status::LOC_QP_OP_ERR), (2, Status::WR_FLUSH_ERR)];
    assert_eq!(endings(&mut dut, end), receives.map(|(id, status)| (id, CompletionOp::Recv, status)));
    assert_eq!(device_events(&mut dut), []);
    dut.send(end, ether(0x20), b"12345678").unwrap();
    assert_eq!(endings(&mut dut, end), [(1, CompletionOp::Send, Status::WR_FLUSH_ERR)]);
    arrive(&mut dut);
    assert_eq!(dut.engine.counters().drop_state, 1);
}

#[test]
fn class_c_the_device_fails_without_a_work_request() {
    let mut dut = Dut::new();
    let end = open(&mut dut, 16);
    dut.post_recv(end, 2, 64);
    dut.engine.break_raw_qp(end.qpn).unwrap();
    assert_eq!(device_events(&mut dut), [DeviceEvent::QpError(end.qpn)]);
    assert_eq!(endings(&mut dut, end), [(2, CompletionOp::Recv, Status::WR_FLUSH_ERR)]);
    // Out of the error state it comes by RESET alone.
    assert!(dut.engine.modify(end.qpn, Transition::SqResume).is_err());
    drop(dut.engine.modify(end.qpn, Transition::Reset).unwrap());
    dut.engine.modify(end.qpn, Transition::Init(INIT)).unwrap();
    dut.ready(end);
    dut.post_recv(end, 3, 64);
    arrive(&mut dut);
    assert_eq!(endings(&mut dut, end), [(3, CompletionOp::Recv, Status::SUCCESS)]);
}
