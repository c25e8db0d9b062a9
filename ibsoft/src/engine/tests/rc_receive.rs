//! The responder.

use std::time::Instant;

use ibdev::PostError;
use ibdev::qp::QpType;
use ibwire::packet::{Bth, Opcode};

use super::super::QpCreate;
use super::script::Dut;
use super::*;

#[test]
fn hca_t05_packets_that_are_not_right_vanish() {
    let mut dut = Dut::new().receives(4, 4096);
    dut.run(
        "P > SEND_ONLY 1000 pkey=0x8001
         P > SEND_ONLY 1000 tver=1
         P > SEND_ONLY 1000 qpn=0x123456
         P > 0x15 1000
         P > 0x81 1000
         P > 0x24 1000
         P > 0x64 1000
         count drop_pkey 1
         count drop_version 1
         count drop_unknown_qp 1
         count drop_opcode 1
         count drop_cnp 1
         count drop_transport 2
         P > SEND_ONLY 1000
         D > ACK 1000 MSN=1
         D : recv 0 SUCCESS len=16",
    );
}

#[test]
fn hca_t06_packets_that_are_unusual_are_taken() {
    Dut::new().receives(4, 4096).run(
        "P > SEND_ONLY 1000 pkey=0x7fff
         D > ACK 1000 MSN=1
         D : recv 0 SUCCESS len=16
         P > SEND_ONLY 1001 M=0
         D > ACK 1001 MSN=2
         D : recv 1 SUCCESS len=16
         P > SEND_ONLY 1002 M=1 byte4=0xff
         D > ACK 1002 MSN=3
         D : recv 2 SUCCESS len=16",
    );
}

#[test]
fn hca_t10_t11_ack_request_and_duplicate() {
    Dut::new().receives(4, 4096).run(
        "P > SEND_ONLY 1000 A=0
         D : recv 0 SUCCESS len=16
         P > SEND_ONLY 1001 A=1
         D > ACK 1001 MSN=2
         D : recv 1 SUCCESS len=16
         P > SEND_ONLY 1000 A=1
         D > ACK 1001 MSN=2
         P > SEND_ONLY 1000 A=0
         count drop_duplicate 2",
    );
}

#[test]
fn hca_t12_one_sequence_nak_a_gap() {
    Dut::new().receives(8, 4096).run(
        "P > SEND_ONLY 1000 A=0
         P > SEND_ONLY 1001
         D > ACK 1001 MSN=2
         D : recv 0 SUCCESS len=16
         D : recv 1 SUCCESS len=16
         P > SEND_ONLY 1004
         D > NAK 0x60 1002 MSN=2
         P > SEND_ONLY 1005
         P > SEND_ONLY 1003
         P > SEND_ONLY 1002
         D > ACK 1002 MSN=3
         D : recv 2 SUCCESS len=16
         P > SEND_ONLY 1004
         D > NAK 0x60 1003 MSN=3",
    );
}

#[test]
fn a_gap_closed_within_a_batch_is_still_told() {
    Dut::new().receives(8, 4096).run(
        "P >> SEND_ONLY 1001
         P > SEND_ONLY 1000
         D > NAK 0x60 1000 MSN=0
         D > ACK 1000 MSN=1
         D : recv 0 SUCCESS len=16",
    );
}

#[test]
fn hca_t13_psns_wrap() {
    Dut::with(|rtr, _| rtr.rq_psn = Psn::truncate(0xff_fffe)).receives(8, 4096).run(
        "P > SEND_ONLY 0xfffffe
         D > ACK 16777214 MSN=1
         P > SEND_ONLY 0xffffff
         D > ACK 16777215 MSN=2
         P > SEND_ONLY 0
         D > ACK 0 MSN=3
         P > SEND_ONLY 1
         D > ACK 1 MSN=4
         D : recv 0 SUCCESS len=16
         D : recv 1 SUCCESS len=16
         D : recv 2 SUCCESS len=16
         D : recv 3 SUCCESS len=16
         P > SEND_ONLY 0xfffffe
         D > ACK 1 MSN=4
         P > SEND_ONLY 0x7fffff
         D > NAK 0x60 2 MSN=4
         P > SEND_ONLY 0x800003
         D > ACK 1 MSN=4",
    );
}

const BROKEN: &str = "D : recv 0 WR_FLUSH_ERR
    D : recv 1 WR_FLUSH_ERR
    D ! QpRequestError
    P > SEND_ONLY 1000
    count drop_state 1";

#[test]
fn hca_t14_opcodes_out_of_order() {
    for request in ["SEND_MIDDLE 1000 len=1024", "SEND_LAST 1000", "SEND_LAST_WITH_IMM 1000 imm=1"] {
        let mut dut = Dut::new().receives(2, 4096);
        dut.run(&format!("P > {request}\nD > NAK 0x61 1000 MSN=0\n{BROKEN}"));
    }
    for request in ["SEND_ONLY 1001", "SEND_FIRST 1001 len=1024"] {
        let mut dut = Dut::new().receives(2, 4096);
        dut.run(&format!(
            "P > SEND_FIRST 1000 len=1024 A=0\nP > {request}\nD > NAK 0x61 1001 MSN=0\n{BROKEN}"
        ));
    }
}

#[test]
fn operations_that_the_qp_does_not_allow_are_invalid() {
    for request in [
        "RDMA_WRITE_FIRST 1000 len=1024",
        "RDMA_WRITE_ONLY 1000 len=0",
        "RDMA_WRITE_ONLY_WITH_IMM 1000",
        "RDMA_READ_REQUEST 1000 len=0",
        "COMPARE_SWAP 1000 len=0",
        "FETCH_ADD 1000 len=0",
    ] {
        let mut dut = Dut::allowing(Access::empty()).receives(2, 4096);
        dut.run(&format!("P > {request}\nD > NAK 0x61 1000 MSN=0\n{BROKEN}"));
    }
}

#[test]
fn hca_t15_first_and_middle_are_as_long_as_the_path_mtu() {
    for request in ["SEND_FIRST 1000 len=512", "SEND_FIRST 1000 len=1028", "SEND_ONLY 1000 len=1025"] {
        let mut dut = Dut::new().receives(2, 4096);
        dut.run(&format!("P > {request}\nD > NAK 0x61 1000 MSN=0\n{BROKEN}"));
    }
    for request in ["SEND_MIDDLE 1001 len=1023", "SEND_LAST 1001 len=0", "SEND_LAST 1001 len=1025"] {
        let mut dut = Dut::new().receives(2, 4096);
        dut.run(&format!(
            "P > SEND_FIRST 1000 len=1024 A=0\nP > {request}\nD > NAK 0x61 1001 MSN=0\n{BROKEN}"
        ));
    }
}

#[test]
fn messages_of_every_shape_arrive() {
    let mut dut = Dut::new().receives(3, 4096);
    dut.run(
        "P > SEND_ONLY 1000 len=0
         D > ACK 1000 MSN=1
         D : recv 0 SUCCESS len=0
         P > SEND_FIRST 1001 len=1024 A=0
         P > SEND_MIDDLE 1002 len=1024 A=1
         D > ACK 1002 MSN=1
         P > SEND_LAST_WITH_IMM 1003 len=1 imm=0xdeadbeef
         D > ACK 1003 MSN=2
         D : recv 1 SUCCESS len=2049 imm=0xdeadbeef
         P > SEND_ONLY_WITH_IMM 1004 len=1024 imm=7
         D > ACK 1004 MSN=3
         D : recv 2 SUCCESS len=1024 imm=0x7",
    );
}

#[test]
fn hca_t24_no_receive() {
    Dut::new().run(
        "P > SEND_ONLY 1000
         D > RNR 12 1000 MSN=0
         recv 0
         P > SEND_ONLY 1000
         D > ACK 1000 MSN=1
         D : recv 0 SUCCESS len=16",
    );
}

#[test]
fn hca_t25_silence_behind_an_rnr_nak() {
    Dut::new().run(
        "P > SEND_ONLY 1000
         D > RNR 12 1000 MSN=0
         P > SEND_ONLY 1001
         P > SEND_ONLY 1000
         D > RNR 12 1000 MSN=0
         recv 0
         P > SEND_ONLY 1000
         D > ACK 1000 MSN=1
         D : recv 0 SUCCESS len=16
         P > SEND_ONLY 1002
         D > NAK 0x60 1001 MSN=1",
    );
}

#[test]
fn hca_t26_message_longer_than_the_receive() {
    Dut::new().receives(2, 1500).run(
        "P > SEND_FIRST 1000 len=1024 A=0
         P > SEND_LAST 1001 len=1000
         D > NAK 0x61 1001 MSN=0
         D : recv 0 LOC_LEN_ERR
         D : recv 1 WR_FLUSH_ERR
         D ! QpRequestError",
    );
}

#[test]
fn message_longer_than_there_are() {
    let longest = |engine: &mut Engine, _: &mut QpCreate| engine.shared.device.max_message = 3000;
    for (last, answer) in [(952, "ACK 1002 MSN=1"), (953, "NAK 0x61 1002 MSN=0")] {
        let mut dut = Dut::made(longest, Access::all(), |_, _| {}).receives(1, 4096);
        let done = match last {
            952 => "D : recv 0 SUCCESS len=3000\nD ! CommEstablished",
            _ => "D : recv 0 WR_FLUSH_ERR\nD ! CommEstablished\nD ! QpRequestError\ncount drop_length 1",
        };
        dut.run(&format!(
            "P > SEND_FIRST 1000 len=1024 A=0
             P > SEND_MIDDLE 1001 len=1024 A=0
             P > SEND_LAST 1002 len={last}
             D > {answer}
             {done}"
        ));
    }
}

#[test]
fn hca_t28_data_before_rts() {
    let mut dut = Dut::in_rtr(|_, _| {}).receives(4, 4096);
    dut.run(
        "P > SEND_ONLY 1001
         D > NAK 0x60 1000 MSN=0
         P > SEND_ONLY 1000
         D > ACK 1000 MSN=1
         D : recv 0 SUCCESS len=16
         D ! CommEstablished
         P > SEND_ONLY 1001
         D > ACK 1001 MSN=2
         D : recv 1 SUCCESS len=16
         P > ACK 5000
         count drop_state 1",
    );
    assert_eq!(dut.post_send(1), Err(PostError::State { state: "RTR" }));
    dut.run(
        "modify RTS
         send 1
         D > SEND_ONLY 5000 A=1 len=16
         P > ACK 5000
         D : send 1 SUCCESS
         P > SEND_ONLY 1002
         D > ACK 1002 MSN=3
         D : recv 2 SUCCESS len=16",
    );
}

#[test]
fn hca_t29_a_batch_gets_one_ack() {
    let mut dut = Dut::new().receives(64, 64);
    let mut script: Vec<String> = (1000..1064).map(|psn| format!("P >> SEND_ONLY {psn}")).collect();
    script[63] = "P > SEND_ONLY 1063".into();
    script.push("D > ACK 1063 MSN=64".into());
    script.extend((0..64).map(|id| format!("D : recv {id} SUCCESS len=16")));
    dut.run(&script.join("\n"));
}

/// PSN and MSN of an acknowledgement belong together: what the MSN counts is acknowledged.
#[test]
fn an_ack_names_the_newest_request_of_its_batch() {
    Dut::new().receives(4, 4096).run(
        "P >> SEND_ONLY 1000 A=1
         P >> SEND_ONLY 1001 A=0
         P > SEND_FIRST 1002 len=1024 A=0
         D > ACK 1002 MSN=2
         D : recv 0 SUCCESS len=16
         D : recv 1 SUCCESS len=16",
    );
}

#[test]
fn a_nak_stands_for_the_ack_that_waits() {
    Dut::new().receives(4, 4096).run(
        "P >> SEND_ONLY 1000
         P > SEND_ONLY 1002
         D > NAK 0x60 1001 MSN=1
         D : recv 0 SUCCESS len=16",
    );
}

/// An acknowledgement would be taken for a broken response.
#[test]
fn duplicates_of_reads_and_atomics_are_not_acknowledged() {
    Dut::new().run(
        "P > RDMA_READ_REQUEST 999 len=0
         P > COMPARE_SWAP 998 len=0
         P > FETCH_ADD 997 len=0
         P > RDMA_WRITE_ONLY 999 len=0
         D > ACK 999 MSN=0
         count drop_duplicate 1
         count drop_forgotten 3",
    );
}

#[test]
fn an_invalid_request_establishes_nothing() {
    Dut::in_rtr(|_, _| {}).receives(1, 4096).run(
        "P > SEND_MIDDLE 1000 len=1024
         D > NAK 0x61 1000 MSN=0
         D : recv 0 WR_FLUSH_ERR
         D ! QpRequestError",
    );
}

#[test]
fn hca_t30_wrong_state_or_source() {
    let mut dut = Dut::new().receives(2, 4096);
    dut.run(
        "P > SEND_ONLY 1000 from=10.77.0.9
         P > SEND_ONLY 1000 from=fd77::1
         P > SEND_ONLY 1000 to=10.77.0.7
         count drop_address 3
         modify ERR
         D : recv 0 WR_FLUSH_ERR
         D : recv 1 WR_FLUSH_ERR
         P > SEND_ONLY 1000
         modify RESET
         P > SEND_ONLY 1000
         count drop_state 2",
    );
}

#[test]
fn on_infiniband_lids_tell_the_peer() {
    let mut engine = engine(ib_port(8), 1);
    let cq = engine.create_cq(8).unwrap();
    let create = QpCreate::new(QpType::Rc, cq, 1, 1);
    let qpn = engine.create_qp(&create).unwrap();
    let av = AddressVector { dlid: Lid(5), path_bits: 1, grh: None, ..roce_av("fe80::5") };
    connect(&mut engine, qpn, rtr(av, Qpn::truncate(17), 1000), rts(5000));
    engine.post_recv(qpn, &mut one(recv(1, 16))).unwrap();
    let bth = Bth { pkey: PKey(0x8001), ..Bth::new(Opcode::RC_SEND_ONLY, qpn, Psn::truncate(1000)) };
    let mut deliver = |slid, dlid, route| {
        let net = NetHeader { slid: Lid(slid), dlid: Lid(dlid), sl: ServiceLevel::default(), route };
        engine.handle_packet(Instant::now(), 1, &net, &bth.to_bytes());
        (engine.counters().drop_address, engine.cq_len(cq))
    };
    assert_eq!(deliver(6, 9, None), (1, 0));
    assert_eq!(deliver(5, 8, None), (2, 0));
    assert_eq!(deliver(5, 9, roce_net("fe80::5", "fe80::1").route), (3, 0));
    assert_eq!(deliver(5, 9, None), (3, 1));
}
