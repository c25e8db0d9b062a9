//! The state table, posting, flushing, limits.

use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use ibdev::qp::QpType;
use ibdev::{BufHome, DatagramDest, DeviceError, DeviceEvent, PostError, Status};

use super::super::{EngineEvent, QpCreate};
use super::script::{D, Dut, P, P_QPN};
use super::*;

#[test]
fn hca_t49_error_flushes_everything() {
    Dut::new().receives(2, 64).run(
        "send 1
         D > SEND_ONLY 5000 A=1 len=16
         send 2
         D > SEND_ONLY 5001 A=1 len=16
         modify ERR
         send 3
         recv 2
         D : send 1 WR_FLUSH_ERR
         D : send 2 WR_FLUSH_ERR
         D : recv 0 WR_FLUSH_ERR
         D : recv 1 WR_FLUSH_ERR
         D : send 3 WR_FLUSH_ERR
         D : recv 2 WR_FLUSH_ERR
         P > ACK 5001
         P > SEND_ONLY 1000
         wait 10s
         modify ERR
         modify RESET",
    );
}

#[test]
fn a_reset_qp_begins_anew() {
    let mut dut = Dut::new().receives(2, 64);
    dut.run(
        "send 1
         D > SEND_ONLY 5000 A=1 len=16
         P >> SEND_ONLY 1000
         modify RESET
         wait 10s",
    );
    let (qpn, engine) = (dut.qpn, &mut dut.engine);
    assert_eq!(engine.post_recv(qpn, &mut one(recv(1, 1))), Err(PostError::State { state: "RESET" }));
    connect(engine, qpn, rtr(roce_av(P), P_QPN, 1000), rts(5000));
    dut.run(
        "recv 7
         P > SEND_ONLY 1000
         D > ACK 1000 MSN=1
         D : recv 7 SUCCESS len=16
         send 8
         D > SEND_ONLY 5000 A=1 len=16",
    );
}

#[test]
fn a_reset_qp_has_all_its_slots() {
    let (mut engine, qpn) = setup(QpType::Rc);
    let fill = |engine: &mut Engine| {
        connect(engine, qpn, rtr(roce_av(P), P_QPN, 1000), rts(5000));
        engine.post_recv(qpn, &mut (0..4).map(|id| recv(id, 1)).collect()).unwrap();
        engine.post_send(qpn, &mut (0..4).map(|id| send(id, 1, None)).collect()).unwrap();
    };
    fill(&mut engine);
    assert_eq!(engine.modify(qpn, Transition::Reset).unwrap().len(), 8);
    fill(&mut engine);
}

fn setup(kind: QpType) -> (Engine, Qpn) {
    let mut engine = engine(roce_port(D), 3);
    let cq = engine.create_cq(8).unwrap();
    let qpn = engine.create_qp(&QpCreate::new(kind, cq, 4, 4)).unwrap();
    (engine, qpn)
}

#[test]
fn only_the_transitions_of_the_table() {
    let init = Transition::Init(INIT);
    let rtr = Transition::Rtr(rtr(roce_av(P), P_QPN, 1));
    let rts = Transition::Rts(rts(1));
    let steps = [init, rtr, rts];
    for reached in 0..=3 {
        for (step, transition) in steps.into_iter().enumerate() {
            let (mut engine, qpn) = setup(QpType::Rc);
            for step in &steps[..reached] {
                engine.modify(qpn, *step).unwrap();
            }
            let legal = step == reached || step == 0 && reached == 1;
            assert_eq!(engine.modify(qpn, transition).is_ok(), legal, "{transition:?} from state {reached}");
            assert_eq!(engine.modify(qpn, Transition::Error).is_ok(), reached > 0 || legal);
            engine.modify(qpn, Transition::Reset).unwrap();
        }
    }
    let (mut engine, qpn) = setup(QpType::Rc);
    engine.modify(qpn, init).unwrap();
    assert!(matches!(engine.modify(qpn, Transition::DatagramRtr), Err(DeviceError::Unsupported { .. })));
    let (mut engine, qpn) = setup(QpType::Ud);
    engine.modify(qpn, init).unwrap();
    assert!(matches!(engine.modify(qpn, rtr), Err(DeviceError::Unsupported { .. })));
    engine.modify(qpn, Transition::DatagramRtr).unwrap();
    assert!(matches!(engine.modify(qpn, rts), Err(DeviceError::Unsupported { .. })));
    assert!(matches!(engine.modify(Qpn::truncate(9), init), Err(DeviceError::State { .. })));
}

#[test]
fn attributes_out_of_range() {
    let limit = |transition: Transition, steps: &[Transition]| {
        let (mut engine, qpn) = setup(QpType::Rc);
        for step in steps {
            engine.modify(qpn, *step).unwrap();
        }
        let error = engine.modify(qpn, transition).unwrap_err();
        assert!(matches!(error, DeviceError::Limit { .. }), "{error}");
        error.to_string()
    };
    let init = Transition::Init(INIT);
    let rtr = rtr(roce_av(P), P_QPN, 1);
    let rts = rts(1);
    assert_eq!(limit(Transition::Init(Init { port: 2, ..INIT }), &[]), "port 2, the device allows 1");
    limit(Transition::Init(Init { port: 0, ..INIT }), &[]);
    limit(Transition::Init(Init { pkey_index: 1, ..INIT }), &[]);
    limit(Transition::Rtr(Rtr { path_mtu: Mtu::B2048, ..rtr }), &[init]);
    limit(Transition::Rtr(Rtr { path_mtu: Mtu(6), ..rtr }), &[init]);
    limit(Transition::Rtr(Rtr { max_dest_rd_atomic: 17, ..rtr }), &[init]);
    limit(Transition::Rtr(Rtr { av: AddressVector { port: 2, ..rtr.av }, ..rtr }), &[init]);
    let ready = [init, Transition::Rtr(rtr)];
    assert_eq!(
        limit(Transition::Rts(Rts { retry_count: 8, ..rts }), &ready),
        "retry count 8, the device allows 7"
    );
    limit(Transition::Rts(Rts { rnr_retry: 8, ..rts }), &ready);
    limit(Transition::Rts(Rts { max_rd_atomic: 17, ..rts }), &ready);
    // An address without a route, from a GID that the port does not have, and of another family than the port's GID.
    let (mut engine, qpn) = setup(QpType::Rc);
    engine.modify(qpn, init).unwrap();
    let grh = |change: fn(&mut GlobalRoute)| {
        let mut grh = rtr.av.grh.unwrap();
        change(&mut grh);
        Some(grh)
    };
    for grh in [None, grh(|grh| grh.sgid_index = 0), grh(|grh| grh.dgid = gid("fd77::1"))] {
        let bad = Transition::Rtr(Rtr { av: AddressVector { grh, ..rtr.av }, ..rtr });
        assert!(matches!(engine.modify(qpn, bad), Err(DeviceError::Unsupported { .. })));
    }
    engine.modify(qpn, Transition::Rtr(rtr)).unwrap();
}

#[test]
fn a_slot_is_free_when_its_completion_was_polled() {
    let (mut engine, qpn) = setup(QpType::Rc);
    let mut receives: VecDeque<_> = (0..5).map(|id| recv(id, 16)).collect();
    assert_eq!(engine.post_recv(qpn, &mut receives), Err(PostError::State { state: "RESET" }));
    connect(&mut engine, qpn, rtr(roce_av(P), P_QPN, 1), rts(1));
    assert_eq!(engine.post_recv(qpn, &mut receives), Err(PostError::Full));
    assert_eq!(receives.len(), 1);
    engine.modify(qpn, Transition::Error).unwrap();
    assert_eq!(engine.post_recv(qpn, &mut receives), Err(PostError::Full));
    let cq = match engine.poll_event() {
        Some(EngineEvent::CqReady(cq)) => cq,
        other => panic!("{other:?}"),
    };
    let mut out = Vec::new();
    assert_eq!((engine.cq_len(cq), engine.poll_cq(cq, &mut out, 1)), (4, 1));
    assert_eq!((out[0].id, out[0].status), (0, Status::WR_FLUSH_ERR));
    engine.post_recv(qpn, &mut receives).unwrap();
    assert_eq!((receives.len(), engine.cq_len(cq)), (0, 4));
    assert_eq!(engine.poll_event(), None);
    assert!(matches!(engine.destroy_cq(cq), Err(DeviceError::InUse { .. })));
    assert_eq!(engine.destroy_qp(qpn).len(), 4);
    engine.destroy_cq(cq).unwrap();
}

#[test]
fn work_that_does_not_fit_the_qp() {
    let (mut engine, qpn) = setup(QpType::Rc);
    connect(&mut engine, qpn, rtr(roce_av(P), P_QPN, 1), rts(1));
    let to = DatagramDest { ah: ah(roce_av(P)), qpn: P_QPN, qkey: QKey(1) };
    let datagram = |id| SendWr { op: SendOp::Datagram { to: to.clone(), imm: None }, ..send(id, 16, None) };
    let mut work = VecDeque::from([send(1, 16, None), datagram(2), send(3, 16, None)]);
    assert!(matches!(engine.post_send(qpn, &mut work), Err(PostError::Invalid { .. })));
    assert_eq!(work.front().map(|wr| wr.id), Some(2));
    let mut out = Vec::new();
    assert!(engine.poll_transmit(Instant::now(), &mut out).is_some(), "the first was posted");
    let (mut engine, qpn) = setup(QpType::Ud);
    engine.modify(qpn, Transition::Init(INIT)).unwrap();
    engine.modify(qpn, Transition::DatagramRtr).unwrap();
    let mut work = one(datagram(1));
    assert_eq!(engine.post_send(qpn, &mut work), Err(PostError::State { state: "RTR" }));
    engine.modify(qpn, Transition::DatagramRts { sq_psn: Psn::truncate(1) }).unwrap();
    engine.post_send(qpn, &mut work).unwrap();
    assert!(matches!(engine.post_send(qpn, &mut one(send(2, 1, None))), Err(PostError::Invalid { .. })));
}

#[test]
fn queues_have_limits() {
    let mut engine = engine(roce_port(D), 4);
    assert!(matches!(engine.create_cq(65_537), Err(DeviceError::Limit { limit: 65_536, .. })));
    let cq = engine.create_cq(10).unwrap();
    let small = engine.create_cq(3).unwrap();
    let create = QpCreate { recv_cq: small, ..QpCreate::new(QpType::Rc, cq, 6, 4) };
    assert!(matches!(engine.create_qp(&create), Err(DeviceError::Limit { limit: 3, .. })));
    let qpn = engine.create_qp(&QpCreate { recv_cq: cq, ..create }).unwrap();
    assert!((2..=0xff_fffe).contains(&qpn.get()));
    let one_more = QpCreate { max_send_wr: 1, max_recv_wr: 0, recv_cq: cq, ..create };
    assert!(matches!(engine.create_qp(&one_more), Err(DeviceError::Limit { limit: 0, .. })));
    assert!(engine.destroy_qp(qpn).is_empty());
    engine.create_qp(&one_more).unwrap();
    let deep = QpCreate { max_send_wr: 16_385, ..one_more };
    assert!(matches!(engine.create_qp(&deep), Err(DeviceError::Limit { limit: 16_384, .. })));
}

#[derive(Debug, Default)]
struct Shelf(Mutex<usize>);

impl BufHome for Shelf {
    fn give_back(&self, _: Buf) {
        *self.0.lock().unwrap() += 1;
    }
}

#[test]
fn a_destroyed_qp_gives_all_buffers_back_and_completes_nothing() {
    let shelf = Arc::new(Shelf::default());
    let home: Weak<dyn BufHome> = Arc::downgrade(&(shelf.clone() as Arc<dyn BufHome>));
    let (mut engine, qpn) = setup(QpType::Rc);
    connect(&mut engine, qpn, rtr(roce_av(P), P_QPN, 1), rts(1));
    for id in 0..3 {
        let buf = Buf::unregistered(64).with_home(home.clone());
        engine.post_recv(qpn, &mut one(RecvWr::new(id, buf))).unwrap();
        let buf = Buf::unregistered(64).with_home(home.clone());
        let op = SendOp::Send { imm: None };
        engine.post_send(qpn, &mut one(SendWr::new(id, op, buf))).unwrap();
    }
    let now = Instant::now();
    let mut out = Vec::new();
    while engine.poll_transmit(now, &mut out).is_some() {}
    // One send completes and is not polled.
    let bth = ibwire::packet::Bth::new(ibwire::packet::Opcode::RC_ACKNOWLEDGE, qpn, Psn::truncate(1));
    let ack = [bth.to_bytes().as_slice(), &[0x1f, 0, 0, 1]].concat();
    engine.handle_packet(now, 1, &roce_net(P, D), &ack);
    let Some(EngineEvent::CqReady(cq)) = engine.poll_event() else { panic!("no completion") };
    assert_eq!(engine.cq_len(cq), 1);
    let bufs = engine.destroy_qp(qpn);
    assert_eq!((bufs.len(), *shelf.0.lock().unwrap()), (6, 0));
    drop(bufs);
    assert_eq!((engine.cq_len(cq), *shelf.0.lock().unwrap()), (0, 6));
    assert_eq!(engine.poll_timeout(), None);
    engine.handle_packet(now, 1, &roce_net(P, D), &ack);
    assert_eq!(engine.counters().drop_unknown_qp, 1);
    assert!(engine.destroy_qp(qpn).is_empty());
}

#[test]
fn qps_are_found_by_number_whatever_comes_and_goes() {
    let mut engine = engine(roce_port(D), 5);
    let cq = engine.create_cq(0).unwrap();
    let create = QpCreate::new(QpType::Ud, cq, 0, 0);
    let mut qpns = Vec::new();
    for round in 0..3000 {
        qpns.push(engine.create_qp(&create).unwrap());
        if round % 3 == 0 {
            let gone = qpns.swap_remove(round % qpns.len());
            drop(engine.destroy_qp(gone));
            assert!(engine.modify(gone, Transition::Reset).is_err());
        }
    }
    for qpn in qpns {
        engine.modify(qpn, Transition::Init(INIT)).unwrap();
    }
}

#[test]
fn ports_are_apart() {
    let ports = vec![roce_port(D), roce_port(D)];
    let mut engine = Engine::new(Config::new(DeviceAttr::new("soft", Guid(1), 2), ports, [1; 32]));
    let cq = engine.create_cq(8).unwrap();
    let create = QpCreate::new(QpType::Rc, cq, 2, 2);
    let [first, second] = [1, 2].map(|port| {
        let qpn = engine.create_qp(&create).unwrap();
        let init = Init { port, ..INIT };
        let rtr = rtr(AddressVector { port, ..roce_av(P) }, P_QPN, 1000);
        for transition in [Transition::Init(init), Transition::Rtr(rtr), Transition::Rts(rts(5000))] {
            engine.modify(qpn, transition).unwrap();
        }
        engine.post_recv(qpn, &mut one(recv(1, 16))).unwrap();
        engine.post_send(qpn, &mut one(send(1, 16, None))).unwrap();
        qpn
    });

    // A packet for a QP of the other port.
    let now = Instant::now();
    let request = ibwire::packet::Bth::new(ibwire::packet::Opcode::RC_SEND_ONLY, first, Psn::truncate(1000));
    engine.handle_packet(now, 2, &roce_net(P, D), &request.to_bytes());
    assert_eq!((engine.counters().drop_address, engine.cq_len(cq)), (1, 0));
    engine.handle_packet(now, 1, &roce_net(P, D), &request.to_bytes());
    assert_eq!((engine.counters().drop_address, engine.cq_len(cq)), (1, 1));

    // What the port that is down does not send leaves no bytes behind.
    let attr = *engine.port(1).unwrap();
    engine.set_port(PortAttr { state: PortState::Down, ..attr });
    let mut out = Vec::new();
    let egress = engine.poll_transmit(now, &mut out).unwrap();
    assert_eq!((egress.qpn, egress.port, egress.len), (second, 2, out.len()));
    let len = egress.len;
    assert_eq!(engine.poll_transmit(now, &mut out), None);
    assert_eq!(out.len(), len);
}

/// One packet can ask for gigabytes: what a port that is down loses of them is not made before.
#[test]
fn an_answer_on_a_port_that_is_down_is_lost_whole() {
    let mut dut = Dut::new();
    let attr = *dut.engine.port(1).unwrap();
    dut.run("P >> RDMA_READ_REQUEST 1000 dma=3000");
    dut.engine.set_port(PortAttr { state: PortState::Down, ..attr });
    assert_eq!(dut.engine.poll_transmit(Instant::now(), &mut Vec::new()), None);
    let counters = dut.engine.counters();
    assert_eq!((counters.drop_tx_port_down, counters.read_responses_sent, counters.tx_packets), (3, 1, 0));
    dut.engine.set_port(attr);
    while dut.engine.poll_event().is_some() {}
    dut.run(
        "P > RDMA_READ_REQUEST 1001 va=1024 dma=1976
         D > RDMA_READ_RESPONSE_FIRST 1001 MSN=1 len=1024
         D > RDMA_READ_RESPONSE_LAST 1002 MSN=1 len=952
         P > RDMA_READ_REQUEST 1003 dma=4
         D > RDMA_READ_RESPONSE_ONLY 1003 MSN=2 len=4",
    );
}

#[test]
fn ports_go_down_and_up() {
    let mut dut = Dut::new().receives(1, 64);
    let attr = *dut.engine.port(1).unwrap();
    dut.engine.set_port(PortAttr { state: PortState::Down, ..attr });
    assert_eq!(dut.engine.poll_event(), Some(EngineEvent::Device(DeviceEvent::PortDown(1))));
    dut.run(
        "send 1
         count drop_tx_port_down 1
         count tx_packets 0
         P > SEND_ONLY 1000
         count drop_port_down 1",
    );
    dut.engine.set_port(attr);
    assert_eq!(dut.engine.poll_event(), Some(EngineEvent::Device(DeviceEvent::PortUp(1))));
    dut.run(
        "wait 67.2ms
         D > SEND_ONLY 5000 A=1 len=16",
    );
    dut.engine.set_gids(1, vec![]);
    assert_eq!(dut.engine.poll_event(), Some(EngineEvent::Device(DeviceEvent::GidChange(1))));
    assert_eq!(dut.engine.gids(1), []);
}
