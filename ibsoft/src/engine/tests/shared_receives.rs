//! Shared receive queues (spec/softhca.md 2.11, 4).

use std::time::Instant;

use ibdev::qp::QpType;
use ibdev::{Completion, DeviceError, DeviceEvent, PostError, Status};
use ibwire::packet::{Bth, Opcode};

use super::super::{CqId, DomainId, EngineEvent, QpCreate, SrqId};
use super::script::{D, Dut, P, P_QPN};
use super::*;

const DEFAULT: DomainId = DomainId::DEFAULT;

fn device() -> Engine {
    engine(roce_port(D), 6)
}

fn receives(ids: std::ops::Range<u64>, len: usize) -> VecDeque<RecvWr> {
    ids.map(|id| recv(id, len)).collect()
}

/// A QP in RTS that takes its receives from `srq`.
fn qp(engine: &mut Engine, cq: CqId, srq: SrqId) -> Qpn {
    let create = QpCreate { srq: Some(srq), ..QpCreate::new(QpType::Rc, cq, 4, 0) };
    let qpn = engine.create_qp(&create).unwrap();
    connect(engine, qpn, rtr(roce_av(P), P_QPN, 1000), rts(5000));
    qpn
}

fn deliver(engine: &mut Engine, qpn: Qpn, opcode: Opcode, psn: u32, len: usize) {
    let bth = Bth { pad: Bth::pad_for(len), ..Bth::new(opcode, qpn, Psn::truncate(psn)) };
    let mut bytes = [&bth.to_bytes()[..], &message(psn.into(), len)].concat();
    bytes.resize(bytes.len() + usize::from(bth.pad), 0);
    engine.handle_packet(Instant::now(), 1, &roce_net(P, D), &bytes);
}

fn poll(engine: &mut Engine, cq: CqId) -> Vec<Completion> {
    let mut completions = Vec::new();
    engine.poll_cq(cq, &mut completions, usize::MAX);
    completions
}

fn events(engine: &mut Engine) -> Vec<DeviceEvent> {
    std::iter::from_fn(|| engine.poll_event())
        .filter_map(|event| match event {
            EngineEvent::Device(event) => Some(event),
            _ => None,
        })
        .collect()
}

#[test]
fn many_take_from_one_in_order() {
    let mut engine = device();
    let cq = engine.create_cq(64).unwrap();
    let srq = engine.create_srq(DEFAULT, 4, 1).unwrap();
    let [a, b] = [qp(&mut engine, cq, srq), qp(&mut engine, cq, srq)];
    engine.post_srq_recv(srq, &mut receives(0..3, 4096)).unwrap();
    deliver(&mut engine, a, Opcode::RC_SEND_FIRST, 1000, 1024);
    deliver(&mut engine, b, Opcode::RC_SEND_ONLY, 1000, 30);
    deliver(&mut engine, a, Opcode::RC_SEND_LAST, 1001, 20);
    deliver(&mut engine, b, Opcode::RC_SEND_ONLY, 1001, 7);
    deliver(&mut engine, a, Opcode::RC_SEND_ONLY, 1002, 1);
    let done: Vec<_> = poll(&mut engine, cq)
        .into_iter()
        .map(|done| (done.qpn, done.id, done.len, done.sg[0].len()))
        .collect();
    assert_eq!(done, [(b, 1, 30, 30), (a, 0, 1044, 1044), (b, 2, 7, 7)]);
    assert_eq!(engine.counters().drop_rnr, 1);
    engine.post_srq_recv(srq, &mut receives(3..4, 64)).unwrap();
    deliver(&mut engine, a, Opcode::RC_SEND_ONLY, 1002, 1);
    assert_eq!(poll(&mut engine, cq)[0].id, 3);
}

#[test]
fn a_write_with_immediate_takes_one() {
    let mut srq = None;
    let create = |engine: &mut Engine, create: &mut QpCreate| {
        srq = Some(engine.create_srq(DEFAULT, 4, 1).unwrap());
        create.srq = srq;
    };
    let mut dut = Dut::made(create, Access::all(), |_, _| {});
    dut.run("modify RTS\nP > RDMA_WRITE_ONLY_WITH_IMM 1000 imm=3\nD > RNR 12 1000 MSN=0");
    dut.engine.post_srq_recv(srq.unwrap(), &mut receives(5..7, 4)).unwrap();
    dut.run(
        "P > RDMA_WRITE_ONLY_WITH_IMM 1000 imm=3
         D > ACK 1000 MSN=1
         D : recvwrite 5 SUCCESS len=16 imm=0x3
         P > SEND_ONLY 1001 len=16
         D > NAK 0x61 1001 MSN=1
         D : recv 6 LOC_LEN_ERR
         D ! QpRequestError
         D ! LastWqeReached",
    );
    assert!(matches!(dut.engine.post_recv(dut.qpn, &mut receives(0..1, 4)), Err(PostError::Invalid { .. })));
}

#[test]
fn in_the_error_state_receives_stay_with_the_queue() {
    let mut engine = device();
    let cq = engine.create_cq(64).unwrap();
    let srq = engine.create_srq(DEFAULT, 8, 1).unwrap();
    let [a, b] = [qp(&mut engine, cq, srq), qp(&mut engine, cq, srq)];
    engine.post_srq_recv(srq, &mut receives(0..3, 4096)).unwrap();
    deliver(&mut engine, a, Opcode::RC_SEND_FIRST, 1000, 1024);
    events(&mut engine);
    drop(engine.modify(a, Transition::Error).unwrap());
    let done = poll(&mut engine, cq);
    assert_eq!((done.len(), done[0].id, done[0].status), (1, 0, Status::WR_FLUSH_ERR));
    assert_eq!(events(&mut engine), [DeviceEvent::LastWqeReached(a)]);
    drop(engine.modify(a, Transition::Error).unwrap());
    assert_eq!(events(&mut engine), []);
    deliver(&mut engine, b, Opcode::RC_SEND_ONLY, 1000, 8);
    assert_eq!(poll(&mut engine, cq)[0].id, 1);
}

#[test]
fn a_limit_is_reported_once() {
    let mut engine = device();
    let cq = engine.create_cq(64).unwrap();
    let srq = engine.create_srq(DEFAULT, 8, 1).unwrap();
    let a = qp(&mut engine, cq, srq);
    engine.post_srq_recv(srq, &mut receives(0..4, 64)).unwrap();
    assert!(matches!(engine.set_srq_limit(srq, 9), Err(DeviceError::Limit { limit: 8, .. })));
    engine.set_srq_limit(srq, 3).unwrap();
    let after = |engine: &mut Engine, psn| {
        deliver(engine, a, Opcode::RC_SEND_ONLY, psn, 8);
        poll(engine, cq);
        events(engine)
    };
    let reached = DeviceEvent::SrqLimit(srq.number());
    assert_eq!(after(&mut engine, 1000), []);
    assert_eq!(after(&mut engine, 1001), [reached]);
    assert_eq!(after(&mut engine, 1002), []);
    // Fewer already: at once, or nobody would learn it before the next message.
    engine.set_srq_limit(srq, 2).unwrap();
    assert_eq!(events(&mut engine), [reached]);
    engine.set_srq_limit(srq, 1).unwrap();
    engine.set_srq_limit(srq, 0).unwrap();
    assert_eq!(after(&mut engine, 1003), []);
}

/// However many QPs there are, a queue of four receives never has more than four completions.
#[test]
fn places_in_completion_queues_are_reserved_once_a_queue() {
    let mut engine = device();
    let cq = engine.create_cq(4 + 3 * 4).unwrap();
    let srq = engine.create_srq(DEFAULT, 4, 1).unwrap();
    let qps: Vec<_> = (0..3).map(|_| qp(&mut engine, cq, srq)).collect();
    let create = |cq| QpCreate { srq: Some(srq), ..QpCreate::new(QpType::Rc, cq, 0, 0) };
    let own = engine.create_cq(4).unwrap();
    let apart = engine.create_qp(&create(own)).unwrap();
    let small = engine.create_cq(3).unwrap();
    assert!(matches!(engine.create_qp(&create(small)), Err(DeviceError::Limit { value: 4, limit: 3, .. })));
    let full = QpCreate::new(QpType::Rc, cq, 1, 0);
    assert!(matches!(engine.create_qp(&full), Err(DeviceError::Limit { limit: 0, .. })));

    // Places are taken until completions are polled, by whichever QP.
    engine.post_srq_recv(srq, &mut receives(0..4, 64)).unwrap();
    for qpn in &qps {
        deliver(&mut engine, *qpn, Opcode::RC_SEND_ONLY, 1000, 8);
    }
    let mut more = receives(4..6, 64);
    assert_eq!(engine.post_srq_recv(srq, &mut more), Err(PostError::Full));
    assert_eq!((more.len(), poll(&mut engine, cq).len()), (2, 3));
    engine.post_srq_recv(srq, &mut more).unwrap();

    // With a QP its completions go, and their places are free.
    deliver(&mut engine, qps[0], Opcode::RC_SEND_ONLY, 1001, 8);
    deliver(&mut engine, qps[0], Opcode::RC_SEND_FIRST, 1002, 1024);
    assert_eq!(engine.post_srq_recv(srq, &mut receives(6..8, 64)), Err(PostError::Full));
    for qpn in qps {
        drop(engine.destroy_qp(qpn));
    }
    engine.create_qp(&QpCreate::new(QpType::Rc, cq, 16, 0)).unwrap();
    assert!(matches!(engine.destroy_srq(srq), Err(DeviceError::InUse { .. })));
    assert!(matches!(engine.destroy_cq(own), Err(DeviceError::InUse { .. })));
    drop(engine.destroy_qp(apart));
    engine.destroy_cq(own).unwrap();
    let left = engine.destroy_srq(srq).unwrap();
    assert!((1..=4).contains(&left.len()));
    assert!(matches!(engine.post_srq_recv(srq, &mut receives(0..1, 8)), Err(PostError::Gone)));
    assert!(engine.create_qp(&create(cq)).is_err());
}

#[test]
fn a_reset_qp_gives_its_places_back() {
    let mut engine = device();
    let cq = engine.create_cq(64).unwrap();
    let srq = engine.create_srq(DEFAULT, 3, 1).unwrap();
    let a = qp(&mut engine, cq, srq);
    engine.post_srq_recv(srq, &mut receives(0..3, 4096)).unwrap();
    deliver(&mut engine, a, Opcode::RC_SEND_ONLY, 1000, 8);
    deliver(&mut engine, a, Opcode::RC_SEND_FIRST, 1001, 1024);
    assert_eq!(engine.modify(a, Transition::Reset).unwrap().len(), 2);
    engine.post_srq_recv(srq, &mut receives(3..5, 64)).unwrap();
    assert_eq!(engine.post_srq_recv(srq, &mut receives(5..6, 64)), Err(PostError::Full));
}

#[test]
fn limits_domains_and_lists() {
    let mut engine = device();
    let cq = engine.create_cq(64).unwrap();
    let other = engine.create_domain().unwrap();
    let srq = engine.create_srq(other, 8, 2).unwrap();
    let create = QpCreate { srq: Some(srq), ..QpCreate::new(QpType::Rc, cq, 1, 0) };
    assert!(matches!(engine.create_qp(&create), Err(DeviceError::Unsupported { .. })));
    assert!(matches!(engine.destroy_domain(other), Err(DeviceError::InUse { .. })));
    engine.create_qp(&QpCreate { domain: other, ..create }).unwrap();
    let sg = |count: usize| RecvWr { id: 1, sg: (0..count).map(|_| Buf::unregistered(8)).collect() };
    engine.post_srq_recv(srq, &mut one(sg(2))).unwrap();
    let refused = engine.post_srq_recv(srq, &mut one(sg(3)));
    assert!(matches!(refused, Err(PostError::Limit { value: 3, limit: 2, .. })));
    let (longest, widest) = (engine.device().max_srq_wr, engine.device().max_sge);
    assert!(matches!(engine.create_srq(DEFAULT, longest + 1, 1), Err(DeviceError::Limit { .. })));
    assert!(matches!(engine.create_srq(DEFAULT, 1, widest + 1), Err(DeviceError::Limit { .. })));
}

/// A datagram that is too long leaves the queue as it is, for others.
#[test]
fn datagrams_take_from_it_too() {
    let mut engine = device();
    let cq = engine.create_cq(64).unwrap();
    let srq = engine.create_srq(DEFAULT, 8, 1).unwrap();
    let create = QpCreate { srq: Some(srq), ..QpCreate::new(QpType::Ud, cq, 1, 0) };
    let [a, b] = [engine.create_qp(&create).unwrap(), engine.create_qp(&create).unwrap()];
    for qpn in [a, b] {
        engine.modify(qpn, Transition::Init(INIT)).unwrap();
        engine.modify(qpn, Transition::DatagramRtr).unwrap();
    }
    engine.post_srq_recv(srq, &mut receives(0..1, 50)).unwrap();
    let mut datagram = |qpn, len| {
        let bth = Bth::new(Opcode::UD_SEND_ONLY, qpn, Psn::default());
        let deth = ibwire::packet::Deth::new(QKey(0x1234), Qpn::truncate(9));
        let bytes = [&bth.to_bytes()[..], &deth.to_bytes(), &message(0, len)].concat();
        engine.handle_packet(Instant::now(), 1, &roce_net(P, D), &bytes);
        poll(&mut engine, cq)
    };
    assert!(datagram(a, 12).is_empty());
    let done = datagram(b, 8);
    assert_eq!((done[0].qpn, done[0].len), (b, 48));
}
