//! The requester.

use std::time::Instant;

use ibdev::qp::QpType;

use super::super::QpCreate;

use super::script::{D, Dut, P};
use super::*;

#[test]
fn hca_t07_immediate_and_padding() {
    Dut::new().run(
        "send 1 len=33 imm=0xdeadbeef SE=1
         D > SEND_ONLY_WITH_IMM 5000 A=1 len=33 pad=3 SE=1 imm=0xdeadbeef
         P > ACK 5000
         D : send 1 SUCCESS",
    );
}

#[test]
fn segmentation() {
    Dut::new().run(
        "send 1 len=0
         D > SEND_ONLY 5000 A=1 len=0
         send 2 len=1024
         D > SEND_ONLY 5001 A=1 len=1024
         send 3 len=1025 imm=1 SE=1
         D > SEND_FIRST 5002 A=0 len=1024
         D > SEND_LAST_WITH_IMM 5003 A=1 len=1 pad=3 SE=1 imm=0x1
         send 4 len=3072
         D > SEND_FIRST 5004 A=0 len=1024
         D > SEND_MIDDLE 5005 A=0 len=1024
         D > SEND_LAST 5006 A=1 len=1024
         P > ACK 5002
         D : send 1 SUCCESS
         D : send 2 SUCCESS
         P > ACK 5005
         D : send 3 SUCCESS
         P > ACK 5006
         D : send 4 SUCCESS",
    );
}

#[test]
fn hca_t31_a_silent_peer() {
    let mut dut = Dut::with(|_, rts| (rts.timeout, rts.retry_count) = (TimeCode::truncate(12), 3));
    // 4.096 us * 2^12 = 16.777216 ms
    dut.run(
        "send 1
         D > SEND_ONLY 5000 A=1 len=16
         wait 16.777215ms
         wait 0.000001ms
         D > SEND_ONLY 5000 A=1 len=16
         wait 16.777215ms
         wait 0.000001ms
         D > SEND_ONLY 5000 A=1 len=16
         wait 16.777216ms
         D > SEND_ONLY 5000 A=1 len=16
         send 2
         D > SEND_ONLY 5001 A=1 len=16
         wait 16.777216ms
         D : send 1 RETRY_EXC_ERR
         D : send 2 WR_FLUSH_ERR
         D ! QpError
         send 3
         D : send 3 WR_FLUSH_ERR
         wait 1s
         count timeouts 4
         count retransmitted 3",
    );
}

#[test]
fn timeout_zero_is_never_and_progress_restarts_the_timer() {
    let mut dut = Dut::with(|_, rts| rts.timeout = TimeCode::truncate(0));
    dut.run(
        "send 1
         D > SEND_ONLY 5000 A=1 len=16
         wait 10000s",
    );
    // 67.108864 ms
    let mut dut = Dut::with(|_, rts| rts.retry_count = 0);
    dut.run(
        "send 1
         D > SEND_ONLY 5000 A=1 len=16
         send 2
         D > SEND_ONLY 5001 A=1 len=16
         wait 60ms
         P > ACK 5000
         D : send 1 SUCCESS
         wait 67ms
         P > ACK 5001
         D : send 2 SUCCESS
         wait 10s
         send 3
         D > SEND_ONLY 5002 A=1 len=16
         wait 67.108863ms
         wait 0.000001ms
         D : send 3 RETRY_EXC_ERR
         D ! QpError",
    );
}

const FIVE: &str = "send 1
    D > SEND_ONLY 5000 A=1 len=16
    send 2
    D > SEND_ONLY 5001 A=1 len=16
    send 3
    D > SEND_ONLY 5002 A=1 len=16
    send 4
    D > SEND_ONLY 5003 A=1 len=16
    send 5
    D > SEND_ONLY 5004 A=1 len=16
";
const THREE: &str = "send 1
    D > SEND_ONLY 5000 A=1 len=16
    send 2
    D > SEND_ONLY 5001 A=1 len=16
    send 3
    D > SEND_ONLY 5002 A=1 len=16
";

#[test]
fn hca_t32_one_ack_for_five() {
    Dut::new().run(&format!(
        "{FIVE}
         P > ACK 5004
         D : send 1 SUCCESS
         D : send 2 SUCCESS
         D : send 3 SUCCESS
         D : send 4 SUCCESS
         D : send 5 SUCCESS
         wait 10s"
    ));
}

#[test]
fn hca_t33_sequence_nak() {
    let mut dut = Dut::with(|_, rts| rts.retry_count = 2);
    dut.run(&format!(
        "{FIVE}
         P > NAK 0x60 5002
         D : send 1 SUCCESS
         D : send 2 SUCCESS
         D > SEND_ONLY 5002 A=1 len=16
         D > SEND_ONLY 5003 A=1 len=16
         D > SEND_ONLY 5004 A=1 len=16
         P > NAK 0x60 5002
         count drop_repeated_nak 1
         wait 67.108864ms
         D > SEND_ONLY 5002 A=1 len=16
         D > SEND_ONLY 5003 A=1 len=16
         D > SEND_ONLY 5004 A=1 len=16
         wait 67.108864ms
         D : send 3 RETRY_EXC_ERR
         D : send 4 WR_FLUSH_ERR
         D : send 5 WR_FLUSH_ERR
         D ! QpError"
    ));
}

#[test]
fn progress_renews_all_patience() {
    Dut::with(|_, rts| rts.retry_count = 1).run(&format!(
        "{THREE}
         wait 67.108864ms
         D > SEND_ONLY 5000 A=1 len=16
         D > SEND_ONLY 5001 A=1 len=16
         D > SEND_ONLY 5002 A=1 len=16
         P > NAK 0x60 5001
         D : send 1 SUCCESS
         D > SEND_ONLY 5001 A=1 len=16
         D > SEND_ONLY 5002 A=1 len=16
         P > NAK 0x60 5002
         D : send 2 SUCCESS
         D > SEND_ONLY 5002 A=1 len=16
         wait 67.108864ms
         D : send 3 RETRY_EXC_ERR
         D ! QpError"
    ));
    Dut::with(|_, rts| rts.rnr_retry = 1).run(
        "send 1
         D > SEND_ONLY 5000 A=1 len=16
         send 2
         D > SEND_ONLY 5001 A=1 len=16
         P > RNR 1 5000
         wait 0.01ms
         D > SEND_ONLY 5000 A=1 len=16
         D > SEND_ONLY 5001 A=1 len=16
         P > RNR 1 5001
         D : send 1 SUCCESS
         wait 0.01ms
         D > SEND_ONLY 5001 A=1 len=16
         P > RNR 1 5001
         D : send 2 RNR_RETRY_EXC_ERR
         D ! QpError",
    );
}

#[test]
fn an_ack_of_the_first_transmission_skips_the_second() {
    Dut::new().run(&format!(
        "{FIVE}
         P >> NAK 0x60 5000
         P > ACK 5002
         D : send 1 SUCCESS
         D : send 2 SUCCESS
         D : send 3 SUCCESS
         D > SEND_ONLY 5003 A=1 len=16
         D > SEND_ONLY 5004 A=1 len=16"
    ));
}

#[test]
fn hca_t34_t35_the_receiver_is_not_ready() {
    for during in ["", "P > NAK 0x60 5000\nP > RNR 26 5000\ncount drop_repeated_nak 2"] {
        Dut::new().run(&format!(
            "{THREE}
             P > RNR 26 5000
             wait 40ms
             {during}
             wait 41.919999ms
             wait 0.000001ms
             D > SEND_ONLY 5000 A=1 len=16
             D > SEND_ONLY 5001 A=1 len=16
             D > SEND_ONLY 5002 A=1 len=16
             count timeouts 0"
        ));
    }
}

/// From the second time on one packet asks; the others follow when it has arrived.
#[test]
fn a_receiver_that_is_not_ready_for_long_is_asked_with_one_packet() {
    let asked = "P > RNR 1 5000\nwait 0.01ms\nD > SEND_ONLY 5000 A=1 len=16\n".repeat(5);
    Dut::new().run(&format!(
        "{THREE}
         P > RNR 1 5000
         wait 0.01ms
         D > SEND_ONLY 5000 A=1 len=16
         D > SEND_ONLY 5001 A=1 len=16
         D > SEND_ONLY 5002 A=1 len=16
         {asked}
         P > ACK 5000
         D : send 1 SUCCESS
         D > SEND_ONLY 5001 A=1 len=16
         D > SEND_ONLY 5002 A=1 len=16
         P > RNR 1 5001
         wait 0.01ms
         D > SEND_ONLY 5001 A=1 len=16
         D > SEND_ONLY 5002 A=1 len=16"
    ));
}

#[test]
fn hca_t36_no_patience() {
    Dut::with(|_, rts| rts.rnr_retry = 0).run(
        "send 1
         D > SEND_ONLY 5000 A=1 len=16
         send 2
         D > SEND_ONLY 5001 A=1 len=16
         P > RNR 26 5000
         D : send 1 RNR_RETRY_EXC_ERR
         D : send 2 WR_FLUSH_ERR
         D ! QpError",
    );
}

#[test]
fn rnr_retries_are_counted_and_seven_is_for_ever() {
    let again = "P > RNR 1 5000\nwait 0.01ms\nD > SEND_ONLY 5000 A=1 len=16\n";
    let start = "send 1\nD > SEND_ONLY 5000 A=1 len=16\n";
    let mut dut = Dut::with(|_, rts| rts.rnr_retry = 2);
    dut.run(&format!("{start}{again}{again}P > RNR 1 5000\nD : send 1 RNR_RETRY_EXC_ERR\nD ! QpError"));
    Dut::new().run(&format!("{start}{}", again.repeat(100)));
}

/// A peer that is not ready is there: losses meanwhile do not add up to a peer that is not.
#[test]
fn a_receiver_that_is_not_ready_renews_the_retries() {
    let again = "wait 67.108864ms
         D > SEND_ONLY 5000 A=1 len=16
         P > RNR 1 5000
         wait 0.01ms
         D > SEND_ONLY 5000 A=1 len=16
         ";
    Dut::with(|_, rts| rts.retry_count = 1).run(&format!(
        "send 1
         D > SEND_ONLY 5000 A=1 len=16
         {}
         wait 67.108864ms
         D > SEND_ONLY 5000 A=1 len=16
         wait 67.108864ms
         D : send 1 RETRY_EXC_ERR
         D ! QpError",
        again.repeat(3)
    ));
}

#[test]
fn hca_t37_fatal_naks() {
    for (syndrome, status) in [(0x61, "REM_INV_REQ_ERR"), (0x62, "REM_ACCESS_ERR"), (0x63, "REM_OP_ERR")] {
        let mut dut = Dut::new();
        dut.run(&format!(
            "{THREE}
             P > NAK {syndrome:#x} 5001
             D : send 1 SUCCESS
             D : send 2 {status}
             D : send 3 WR_FLUSH_ERR
             D ! QpError
             count fatal_naks_received 1"
        ));
        assert_eq!(dut.engine.poll_timeout(), None);
    }
}

#[test]
fn hca_t43_responses_that_mean_nothing() {
    let mut dut = Dut::new();
    dut.run(
        "send 1
         D > SEND_ONLY 5000 A=1 len=16
         P > ACK 6000
         P > NAK 0x61 5001
         P > NAK 0x40 5000
         P > NAK 0x80 5000
         P > NAK 0x64 5000
         P > ACK 4999
         P > NAK 0x62 4999
         count drop_future_response 2
         count drop_syndrome 3
         count drop_stale_response 2
         wait 67.108864ms
         D > SEND_ONLY 5000 A=1 len=16",
    );
}

#[test]
fn a_response_of_the_wrong_kind_is_an_error() {
    Dut::new().run(
        "send 1
         D > SEND_ONLY 5000 A=1 len=16
         P > RDMA_READ_RESPONSE_ONLY 4999
         P > RDMA_READ_RESPONSE_ONLY 5000
         D : send 1 BAD_RESP_ERR
         D ! QpError",
    );
}

#[test]
fn hca_t45_credits_are_not_counted() {
    Dut::new().run(&format!(
        "{THREE}
         P > ACK 5000 credits=0
         D : send 1 SUCCESS
         P > ACK 5001 credits=10
         D : send 2 SUCCESS
         send 4
         D > SEND_ONLY 5003 A=1 len=16"
    ));
}

#[test]
fn hca_t46_the_window_with_sends() {
    let packet = |psn: u32, kind, ack| format!("D > SEND_{kind} {psn} A={ack} len=1024\n");
    let mut script = "send 1 len=102400\n".to_string();
    script += &packet(5000, "FIRST", 0);
    for n in 1..64 {
        script += &packet(5000 + n, "MIDDLE", u8::from(n % 32 == 31));
    }
    script += "P > ACK 5031\n";
    for n in 64..96 {
        script += &packet(5000 + n, "MIDDLE", u8::from(n % 32 == 31));
    }
    script += "P > ACK 5095\n";
    for n in 96..99 {
        script += &packet(5000 + n, "MIDDLE", 0);
    }
    script += &packet(5099, "LAST", 1);
    script += "P > ACK 5099\nD : send 1 SUCCESS";
    Dut::new().run(&script);
}

#[test]
fn packets_of_one_qp_come_in_a_row_and_each_qp_has_its_turn() {
    let mut config = Config::new(DeviceAttr::new("soft", Guid(1), 1), vec![roce_port(D)], [1; 32]);
    config.window = [200; 5];
    let mut engine = Engine::new(config);
    let cq = engine.create_cq(2).unwrap();
    let create = QpCreate::new(QpType::Rc, cq, 1, 0);
    let qpns = [(); 2].map(|()| {
        let qpn = engine.create_qp(&create).unwrap();
        connect(&mut engine, qpn, rtr(roce_av(P), Qpn::truncate(5), 1), rts(1));
        engine.post_send(qpn, &mut one(send(1, 100 * 1024, None))).unwrap();
        qpn
    });
    let (now, mut out, mut order) = (Instant::now(), Vec::new(), Vec::new());
    while let Some(egress) = engine.poll_transmit(now, &mut out) {
        order.push(egress.qpn);
    }
    let [a, b] = qpns;
    let expected = [vec![a; 64], vec![b; 64], vec![a; 36], vec![b; 36]].concat();
    assert_eq!(order, expected);
}
