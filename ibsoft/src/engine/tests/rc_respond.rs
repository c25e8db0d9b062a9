//! The responder: reads, atomics, the order of answers.

use std::sync::atomic::Ordering;
use std::time::Instant;

use ibdev::qp::QpType;
use ibdev::{DeviceEvent, SharedMemory};
use ibwire::packet::{Aeth, Bth, NakCode, Opcode, Syndrome, TransportPacket};

use super::super::{DomainId, EngineEvent, QpCreate};
use super::script::{D, Dut, P, P_QPN};
use super::*;

const INVALID: &str = "D : recv 0 WR_FLUSH_ERR
    D ! QpRequestError
    P > SEND_ONLY 1000
    count drop_state 1
    count fatal_naks_sent 1";

#[test]
fn hca_t19_t20_a_read_and_its_replay() {
    Dut::new().receives(1, 64).run(
        "P > RDMA_READ_REQUEST 1000 va=5 dma=3000
         D > RDMA_READ_RESPONSE_FIRST 1000 MSN=1 len=1024
         D > RDMA_READ_RESPONSE_MIDDLE 1001 A=0 len=1024
         D > RDMA_READ_RESPONSE_LAST 1002 MSN=1 len=952
         read 5 len=3000
         P > RDMA_READ_REQUEST 1001 va=1029 dma=1976
         D > RDMA_READ_RESPONSE_FIRST 1001 MSN=1 len=1024
         D > RDMA_READ_RESPONSE_LAST 1002 MSN=1 len=952
         read 1029 len=1976
         P > RDMA_READ_REQUEST 1002 va=2053 dma=952
         D > RDMA_READ_RESPONSE_ONLY 1002 MSN=1 len=952
         read 2053 len=952
         P > RDMA_READ_REQUEST 1000 va=5 dma=3000
         D > RDMA_READ_RESPONSE_FIRST 1000 MSN=1 len=1024
         D > RDMA_READ_RESPONSE_MIDDLE 1001 A=0 len=1024
         D > RDMA_READ_RESPONSE_LAST 1002 MSN=1 len=952
         read 5 len=3000
         count replayed 3
         P > RDMA_READ_REQUEST 1001 va=1028 dma=1976
         P > RDMA_READ_REQUEST 1001 va=1029 dma=1975
         P > RDMA_READ_REQUEST 1001 va=1029 dma=1976 key=0x12345678
         P > RDMA_READ_REQUEST 999 va=5 dma=3000
         P > FETCH_ADD 1000 add=1
         count drop_forgotten 4
         count drop_rkey 1
         P > SEND_ONLY 1001
         D > ACK 999 MSN=1
         P > SEND_ONLY 1003
         D > ACK 1003 MSN=2
         D : recv 0 SUCCESS len=16",
    );
}

/// A replay reads the memory as it is by then; nothing is kept.
#[test]
fn reads_of_every_shape() {
    Dut::new().run(
        "P > RDMA_READ_REQUEST 1000 va=4095 dma=1
         D > RDMA_READ_RESPONSE_ONLY 1000 MSN=1 len=1
         read 4095 len=1
         P > RDMA_READ_REQUEST 1001 dma=1024
         D > RDMA_READ_RESPONSE_ONLY 1001 MSN=2 len=1024
         read 0 len=1024
         P > RDMA_READ_REQUEST 1002 dma=1025 A=0
         D > RDMA_READ_RESPONSE_FIRST 1002 MSN=3 len=1024
         D > RDMA_READ_RESPONSE_LAST 1003 MSN=3 len=1
         read 0 len=1025
         P > RDMA_READ_REQUEST 1004 dma=4096
         D > RDMA_READ_RESPONSE_FIRST 1004 MSN=4 len=1024
         D > RDMA_READ_RESPONSE_MIDDLE 1005 A=0 len=1024
         D > RDMA_READ_RESPONSE_MIDDLE 1006 A=0 len=1024
         D > RDMA_READ_RESPONSE_LAST 1007 MSN=4 len=1024
         read 0 len=4096
         P > RDMA_WRITE_ONLY 1008 va=2048
         D > ACK 1008 MSN=5
         P > RDMA_READ_REQUEST 1006 va=2048 dma=2048
         D > RDMA_READ_RESPONSE_FIRST 1006 MSN=4 len=1024
         D > RDMA_READ_RESPONSE_LAST 1007 MSN=4 len=1024
         read 2048 len=2048",
    );
}

#[test]
fn hca_t21_an_atomic_is_carried_out_once() {
    let mut dut = Dut::with(|rtr, _| rtr.max_dest_rd_atomic = 2);
    dut.memory.atomic(64).unwrap().store(100, Ordering::Relaxed);
    dut.run(
        "P > FETCH_ADD 1000 va=64 add=5
         D > ATOMIC_ACKNOWLEDGE 1000 MSN=1 original=100
         word 64 105
         P > FETCH_ADD 1000 va=64 add=5
         D > ATOMIC_ACKNOWLEDGE 1000 MSN=1 original=100
         word 64 105
         P > COMPARE_SWAP 1000 va=64
         count drop_forgotten 1
         P > COMPARE_SWAP 1001 va=64 compare=105 swap=7
         D > ATOMIC_ACKNOWLEDGE 1001 MSN=2 original=105
         word 64 7
         P > COMPARE_SWAP 1001 va=64 compare=105 swap=7
         D > ATOMIC_ACKNOWLEDGE 1001 MSN=2 original=105
         P > FETCH_ADD 1000 va=64 add=5
         D > ATOMIC_ACKNOWLEDGE 1000 MSN=1 original=100
         P > COMPARE_SWAP 1002 va=64 compare=8 swap=9
         D > ATOMIC_ACKNOWLEDGE 1002 MSN=3 original=7
         word 64 7
         P > FETCH_ADD 1000 va=64 add=5
         count drop_forgotten 2
         P > FETCH_ADD 1003 va=64 add=0xffffffffffffffff
         D > ATOMIC_ACKNOWLEDGE 1003 MSN=4 original=7
         word 64 6",
    );
}

#[test]
fn hca_t22_an_atomic_on_a_multiple_of_eight() {
    for request in ["FETCH_ADD 1000 va=4 add=1", "COMPARE_SWAP 1000 va=4087"] {
        let mut dut = Dut::new().receives(1, 64);
        dut.run(&format!("P > {request}\nD > NAK 0x61 1000 MSN=0\n{INVALID}\ncount drop_unaligned 1"));
        dut.untouched();
    }
}

#[test]
fn hca_t23_more_reads_than_agreed() {
    let mut dut = Dut::new().receives(1, 64);
    dut.run(&format!(
        "P >> RDMA_READ_REQUEST 1000 dma=1500
         P > RDMA_READ_REQUEST 1002 dma=8
         D > RDMA_READ_RESPONSE_FIRST 1000 MSN=1 len=1024
         D > RDMA_READ_RESPONSE_LAST 1001 MSN=1 len=476
         D > NAK 0x61 1002 MSN=1
         read 0 len=1500
         {INVALID}
         count drop_resources 1"
    ));
    for request in ["RDMA_READ_REQUEST 1000 dma=0", "FETCH_ADD 1000", "COMPARE_SWAP 1000"] {
        let mut dut = Dut::with(|rtr, _| rtr.max_dest_rd_atomic = 0).receives(1, 64);
        dut.run(&format!("P > {request}\nD > NAK 0x61 1000 MSN=0\n{INVALID}\ncount drop_resources 1"));
    }
}

/// The first answer has left, so the peer may ask for more, even if an old request comes again just before.
#[test]
fn a_replay_does_not_count_as_outstanding() {
    Dut::new().run(
        "P > RDMA_READ_REQUEST 1000 dma=8
         D > RDMA_READ_RESPONSE_ONLY 1000 MSN=1 len=8
         P >> RDMA_READ_REQUEST 1000 dma=8
         P > RDMA_READ_REQUEST 1001 dma=8 va=8
         D > RDMA_READ_RESPONSE_ONLY 1001 MSN=2 len=8
         P > RDMA_READ_REQUEST 1000 dma=8
         count drop_forgotten 1",
    );
}

#[test]
fn hca_t27_answers_in_the_order_of_the_requests() {
    Dut::new().receives(4, 64).run(
        "P >> RDMA_READ_REQUEST 1000 dma=1500
         P > SEND_ONLY 1002
         D > RDMA_READ_RESPONSE_FIRST 1000 MSN=1 len=1024
         D > RDMA_READ_RESPONSE_LAST 1001 MSN=1 len=476
         D > ACK 1002 MSN=2
         D : recv 0 SUCCESS len=16
         P >> SEND_ONLY 1003
         P >> FETCH_ADD 1004
         P >> SEND_ONLY 1005
         P > SEND_ONLY 1007
         D > ATOMIC_ACKNOWLEDGE 1004 MSN=4 original=ORIGINAL
         D > NAK 0x60 1006 MSN=5
         D : recv 1 SUCCESS len=16
         D : recv 2 SUCCESS len=16"
            .replace("ORIGINAL", &u64::from_ne_bytes(message(77, 8)[..].try_into().unwrap()).to_string())
            .as_str(),
    );
}

/// A NAK of the past stands before what was executed since.
#[test]
fn a_gap_closed_by_a_read_is_told_first() {
    Dut::new().receives(1, 64).run(
        "P >> SEND_ONLY 1001
         P >> RDMA_READ_REQUEST 1000 dma=8
         P > SEND_ONLY 1001
         D > NAK 0x60 1000 MSN=0
         D > RDMA_READ_RESPONSE_ONLY 1000 MSN=1 len=8
         D > ACK 1001 MSN=2
         D : recv 0 SUCCESS len=16",
    );
}

/// An ACK with the PSN of a READ would be taken for a broken response.
#[test]
fn a_duplicate_is_acknowledged_with_the_psn_of_a_send_or_write() {
    Dut::new().receives(1, 64).run(
        "P > SEND_ONLY 1000
         D > ACK 1000 MSN=1
         D : recv 0 SUCCESS len=16
         P > RDMA_READ_REQUEST 1001 dma=2000
         D > RDMA_READ_RESPONSE_FIRST 1001 MSN=2 len=1024
         D > RDMA_READ_RESPONSE_LAST 1002 MSN=2 len=976
         P > SEND_ONLY 1000
         D > ACK 1000 MSN=2
         P > RDMA_WRITE_ONLY 1003
         D > ACK 1003 MSN=3
         P > SEND_ONLY 1000
         D > ACK 1003 MSN=3
         P >> RDMA_READ_REQUEST 1001 dma=2000
         P > RDMA_WRITE_ONLY 1003
         D > RDMA_READ_RESPONSE_FIRST 1001 MSN=2 len=1024
         D > RDMA_READ_RESPONSE_LAST 1002 MSN=2 len=976
         D > ACK 1003 MSN=3",
    );
}

#[test]
fn hca_t29_a_batch_of_everything() {
    let mut script = String::new();
    for i in 0..16 {
        let psn = 1000 + 4 * i;
        script += &format!(
            "P >> SEND_ONLY {psn}\nP >> RDMA_WRITE_ONLY {}\nP >> FETCH_ADD {} add=1\nP >> RDMA_WRITE_ONLY {}\n",
            psn + 1,
            psn + 2,
            psn + 3
        );
    }
    script = script.replace("P >> RDMA_WRITE_ONLY 1063", "P > RDMA_WRITE_ONLY 1063");
    let mut dut = Dut::with(|rtr, _| rtr.max_dest_rd_atomic = 16).receives(16, 64);
    for i in 0..16 {
        // What the write before it has left in that word.
        let original = u64::from_ne_bytes(message(1001 + 4 * i, 8)[..].try_into().unwrap());
        script += &format!("D > ATOMIC_ACKNOWLEDGE {} MSN={} original={original}\n", 1002 + 4 * i, 4 * i + 3);
    }
    script += "D > ACK 1063 MSN=64\n";
    for i in 0..16 {
        script += &format!("D : recv {i} SUCCESS len=16\n");
    }
    dut.run(&script);
}

fn packet(out: &mut Vec<u8>, dut: &mut Dut) -> Option<(Opcode, Psn, Option<Aeth>)> {
    out.clear();
    dut.engine.poll_transmit(dut.now, out)?;
    let packet = TransportPacket::parse(out).unwrap();
    Some((packet.bth().opcode, packet.bth().psn, packet.aeth()))
}

/// The answer stops where the memory does, and the NAK names what could not be sent.
#[test]
fn a_region_taken_away_while_it_is_read() {
    let mut dut = Dut::new().receives(1, 64);
    dut.run(
        "P >> SEND_ONLY 1000
         P >> RDMA_READ_REQUEST 1001 dma=3000
         P >> RDMA_WRITE_ONLY 1004",
    );
    let mut out = Vec::new();
    let (opcode, psn, _) = packet(&mut out, &mut dut).unwrap();
    assert_eq!((opcode, psn.get()), (Opcode::RC_RDMA_READ_RESPONSE_FIRST, 1001));
    dut.engine.deregister(dut.rkey);
    let (opcode, psn, aeth) = packet(&mut out, &mut dut).unwrap();
    assert_eq!((opcode, psn.get()), (Opcode::RC_ACKNOWLEDGE, 1002));
    let aeth = aeth.unwrap();
    assert_eq!(aeth.syndrome, Syndrome::nak(NakCode::REMOTE_ACCESS_ERROR));
    assert_eq!(aeth.msn.get(), 1, "the send before it, not the read");
    assert_eq!(packet(&mut out, &mut dut), None);
    dut.drain();
    dut.run(
        "D : recv 0 SUCCESS len=16
         D ! QpAccessError
         count read_faults 1
         P > RDMA_READ_REQUEST 1001 dma=3000
         count drop_state 1",
    );
}

#[test]
fn a_qp_fails_once() {
    let mut dut = Dut::new().receives(1, 64);
    dut.run(
        "P >> RDMA_READ_REQUEST 1000 dma=3000
         P >> SEND_MIDDLE 1003 len=1024",
    );
    let mut out = Vec::new();
    let (opcode, psn, _) = packet(&mut out, &mut dut).unwrap();
    assert_eq!((opcode, psn.get()), (Opcode::RC_RDMA_READ_RESPONSE_FIRST, 1000));
    dut.engine.deregister(dut.rkey);
    dut.drain();
    dut.run(
        "D > NAK 0x62 1001 MSN=0
         D : recv 0 WR_FLUSH_ERR
         D ! QpRequestError
         count qp_errors 1",
    );
}

/// The peer has had the answer, and may have told that the memory is not needed any more.
#[test]
fn a_replay_of_memory_that_is_gone_is_met_with_silence() {
    let mut dut = Dut::with(|rtr, _| rtr.max_dest_rd_atomic = 2).receives(1, 64);
    dut.run(
        "P > RDMA_READ_REQUEST 1000 dma=3000
         D > RDMA_READ_RESPONSE_FIRST 1000 MSN=1 len=1024
         D > RDMA_READ_RESPONSE_MIDDLE 1001 A=0 len=1024
         D > RDMA_READ_RESPONSE_LAST 1002 MSN=1 len=952
         P >> RDMA_READ_REQUEST 1000 dma=3000
         P >> SEND_ONLY 1003",
    );
    dut.engine.deregister(dut.rkey);
    dut.drain();
    dut.run(
        "D > ACK 1003 MSN=2
         D : recv 0 SUCCESS len=16
         P > RDMA_READ_REQUEST 1000 dma=3000
         count read_faults 1
         count drop_rkey 1
         P > SEND_ONLY 1004
         D > RNR 12 1004 MSN=2",
    );
}

#[test]
fn a_qp_that_is_stopped_reads_no_more() {
    let mut dut = Dut::new().receives(1, 64);
    dut.run("P >> RDMA_READ_REQUEST 1000 dma=3000\nP >> SEND_ONLY 1003");
    let mut out = Vec::new();
    assert!(packet(&mut out, &mut dut).is_some());
    dut.run("modify ERR\nD : recv 0 SUCCESS len=16");
}

/// Readers take turns: one long answer does not keep the others waiting.
#[test]
fn reads_of_several_qps_take_turns() {
    let mut dut = Dut::new();
    let memory = SharedMemory::zeroed(1 << 20);
    let (rkey, addr) = dut.engine.register(DomainId::DEFAULT, memory, Access::REMOTE_READ).unwrap();
    let cq = dut.engine.create_cq(8).unwrap();
    let other = dut.engine.create_qp(&QpCreate::new(QpType::Rc, cq, 2, 2)).unwrap();
    let init = Init { access: Access::REMOTE_READ, ..INIT };
    dut.engine.modify(other, Transition::Init(init)).unwrap();
    dut.engine.modify(other, Transition::Rtr(rtr(roce_av(P), P_QPN, 1000))).unwrap();
    for qpn in [dut.qpn, other] {
        let bth = Bth::new(Opcode::RC_RDMA_READ_REQUEST, qpn, Psn::truncate(1000));
        let reth = ibwire::packet::Reth { va: addr, rkey, len: 1 << 20 };
        let bytes = [&bth.to_bytes()[..], &reth.to_bytes()].concat();
        dut.engine.handle_packet(Instant::now(), 1, &roce_net(P, D), &bytes);
    }
    let (mut out, mut senders) = (Vec::new(), Vec::new());
    while let Some(egress) = dut.engine.poll_transmit(dut.now, &mut out) {
        let capacity = out.capacity();
        out.clear();
        assert!(capacity < 4096, "one buffer serves all packets");
        if senders.last() != Some(&egress.qpn) {
            senders.push(egress.qpn);
        }
    }
    assert!(senders.len() >= 32, "{}", senders.len());
    assert_eq!(dut.engine.counters().read_responses_sent, 2048);
    while let Some(event) = dut.engine.poll_event() {
        assert!(matches!(event, EngineEvent::Device(DeviceEvent::CommEstablished(qpn)) if qpn == other));
    }
}

#[test]
fn reads_and_writes_across_the_end_of_the_psns() {
    Dut::with(|rtr, _| (rtr.rq_psn, rtr.max_dest_rd_atomic) = (Psn::MAX, 4)).run(
        "P > RDMA_READ_REQUEST 0xffffff dma=3000
         D > RDMA_READ_RESPONSE_FIRST 16777215 MSN=1 len=1024
         D > RDMA_READ_RESPONSE_MIDDLE 0 A=0 len=1024
         D > RDMA_READ_RESPONSE_LAST 1 MSN=1 len=952
         read 0 len=3000
         P > RDMA_WRITE_ONLY 2
         D > ACK 2 MSN=2
         P > RDMA_READ_REQUEST 0 va=1024 dma=1976
         D > RDMA_READ_RESPONSE_FIRST 0 MSN=1 len=1024
         D > RDMA_READ_RESPONSE_LAST 1 MSN=1 len=952
         read 1024 len=1976",
    );
}
