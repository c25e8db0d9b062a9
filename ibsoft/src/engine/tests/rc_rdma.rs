//! The requester: RDMA writes and reads, atomics, and their answers.

use super::script::Dut;
use super::*;

/// In RTS, with so many reads and atomics outstanding at most.
pub(super) fn with_depth(max_rd_atomic: u8) -> Dut {
    Dut::with(|_, rts| rts.max_rd_atomic = max_rd_atomic)
}

#[test]
fn hca_t08_buffers_have_no_borders_on_the_wire() {
    Dut::new().run(
        "send 1 sge=3,0,1022
         D > SEND_FIRST 5000 A=0 len=1024
         D > SEND_LAST 5001 A=1 len=1 pad=3
         P > ACK 5001
         D : send 1 SUCCESS
         get 2 sge=5,1,0,6 va=7
         D > RDMA_READ_REQUEST 5002 A=1 len=0 va=7 dma=12
         P > RDMA_READ_RESPONSE_ONLY 5002 len=12 at=7
         D : read 2 SUCCESS len=12",
    );
}

#[test]
fn writes_on_the_wire() {
    Dut::new().run(
        "put 1 len=3000 va=8
         D > RDMA_WRITE_FIRST 5000 A=0 len=1024 va=8 dma=3000
         D > RDMA_WRITE_MIDDLE 5001 A=0 len=1024
         D > RDMA_WRITE_LAST 5002 A=1 len=952
         put 2 len=5 imm=0xdeadbeef SE=1
         D > RDMA_WRITE_ONLY_WITH_IMM 5003 A=1 len=5 pad=3 SE=1 va=0 dma=5 imm=0xdeadbeef
         put 3 len=1500 imm=1 SE=1
         D > RDMA_WRITE_FIRST 5004 A=0 len=1024 va=0 dma=1500
         D > RDMA_WRITE_LAST_WITH_IMM 5005 A=1 len=476 SE=1 imm=0x1
         put 4 len=0 SE=1
         D > RDMA_WRITE_ONLY 5006 A=1 len=0 va=0 dma=0
         put 5 len=0 imm=2
         D > RDMA_WRITE_ONLY_WITH_IMM 5007 A=1 len=0 va=0 dma=0 imm=0x2
         P > ACK 5007
         D : write 1 SUCCESS
         D : write 2 SUCCESS
         D : write 3 SUCCESS
         D : write 4 SUCCESS
         D : write 5 SUCCESS",
    );
}

#[test]
fn reads_on_the_wire() {
    with_depth(4).run(
        "get 1 len=3000 va=8
         D > RDMA_READ_REQUEST 5000 A=1 len=0 va=8 dma=3000
         get 2 len=10
         D > RDMA_READ_REQUEST 5003 A=1 len=0 va=0 dma=10
         get 3 len=0
         D > RDMA_READ_REQUEST 5004 A=1 len=0 va=0 dma=0
         get 4 len=2048 va=1
         D > RDMA_READ_REQUEST 5005 A=1 len=0 va=1 dma=2048
         put 5
         D > RDMA_WRITE_ONLY 5007 A=1 len=16 va=0 dma=16
         P > RDMA_READ_RESPONSE_FIRST 5000 len=1024 at=8
         P > RDMA_READ_RESPONSE_MIDDLE 5001 len=1024 at=1032
         P > RDMA_READ_RESPONSE_LAST 5002 len=952 at=2056
         D : read 1 SUCCESS len=3000
         P > RDMA_READ_RESPONSE_ONLY 5003 len=10 at=0
         D : read 2 SUCCESS len=10
         P > RDMA_READ_RESPONSE_ONLY 5004
         D : read 3 SUCCESS len=0
         P > RDMA_READ_RESPONSE_FIRST 5005 len=1024 at=1
         P > RDMA_READ_RESPONSE_LAST 5006 len=1024 at=1025
         D : read 4 SUCCESS len=2048
         P > ACK 5007
         D : write 5 SUCCESS
         wait 10s",
    );
}

#[test]
fn atomics_on_the_wire() {
    with_depth(4).run(
        "add 1 add=5 va=16
         D > FETCH_ADD 5000 A=1 len=0 va=16 swap_or_add=5 compare=0
         cas 2 compare=1 swap=2 len=24
         D > COMPARE_SWAP 5001 A=1 len=0 va=0 swap_or_add=2 compare=1
         P > ATOMIC_ACKNOWLEDGE 5000 original=4096
         D : fetchadd 1 SUCCESS original=4096
         P > ATOMIC_ACKNOWLEDGE 5001 original=18446744073709551615
         D : compareswap 2 SUCCESS original=18446744073709551615
         wait 10s",
    );
}

#[test]
fn hca_t38_a_lost_response_is_asked_for_again() {
    for again in ["FIRST", "MIDDLE"] {
        Dut::with(|_, rts| rts.retry_count = 0).run(&format!(
            "get 1 len=3000 va=8
             D > RDMA_READ_REQUEST 5000 A=1 len=0 va=8 dma=3000
             P > RDMA_READ_RESPONSE_FIRST 5000 len=1024 at=8
             P > RDMA_READ_RESPONSE_LAST 5002 len=952 at=2056
             D > RDMA_READ_REQUEST 5001 A=1 len=0 va=1032 dma=1976
             P > RDMA_READ_RESPONSE_LAST 5002 len=952 at=2056
             P > RDMA_READ_RESPONSE_FIRST 5000 len=1024 at=8
             P > RDMA_READ_RESPONSE_{again} 5001 len=1024 at=1032
             P > RDMA_READ_RESPONSE_LAST 5002 len=952 at=2056
             D : read 1 SUCCESS len=3000
             count drop_behind_gap 2
             count drop_stale_response 1
             count implied_naks_received 1
             wait 10s"
        ));
    }
}

/// The answer to what lies before it is no reason to send earlier to a receiver that is not ready.
#[test]
fn a_response_does_not_end_the_wait_for_a_receiver() {
    Dut::new().run(
        "get 1 len=1500
         D > RDMA_READ_REQUEST 5000 A=1 len=0 va=0 dma=1500
         send 2
         D > SEND_ONLY 5002 A=1 len=16
         P > RNR 26 5002
         P > RDMA_READ_RESPONSE_FIRST 5000 len=1024 at=0
         P > RDMA_READ_RESPONSE_LAST 5001 len=476 at=1024
         D : read 1 SUCCESS len=1500
         wait 81.919999ms
         wait 0.000001ms
         D > SEND_ONLY 5002 A=1 len=16
         P > RNR 26 5002
         wait 1ms
         P > ACK 5002
         D : send 2 SUCCESS
         send 3
         D > SEND_ONLY 5003 A=1 len=16
         P > ACK 5003
         D : send 3 SUCCESS
         wait 10s",
    );
}

#[test]
fn what_is_lost_twice_waits_for_the_timeout() {
    for last in ["LAST", "ONLY"] {
        Dut::new().run(&format!(
            "get 1 len=2000
             D > RDMA_READ_REQUEST 5000 A=1 len=0 va=0 dma=2000
             P > RDMA_READ_RESPONSE_LAST 5001 len=976 at=1024
             D > RDMA_READ_REQUEST 5000 A=1 len=0 va=0 dma=2000
             P > RDMA_READ_RESPONSE_LAST 5001 len=976 at=1024
             wait 67.108864ms
             D > RDMA_READ_REQUEST 5000 A=1 len=0 va=0 dma=2000
             P > RDMA_READ_RESPONSE_FIRST 5000 len=1024 at=0
             wait 67.108864ms
             D > RDMA_READ_REQUEST 5001 A=1 len=0 va=1024 dma=976
             P > RDMA_READ_RESPONSE_{last} 5001 len=976 at=1024
             D : read 1 SUCCESS len=2000
             count timeouts 2"
        ));
    }
}

#[test]
fn hca_t39_a_response_acknowledges_what_lies_before() {
    Dut::new().run(
        "put 1
         D > RDMA_WRITE_ONLY 5000 A=1 len=16 va=0 dma=16
         get 2
         D > RDMA_READ_REQUEST 5001 A=1 len=0 va=0 dma=16
         P > RDMA_READ_RESPONSE_ONLY 5001 len=16 at=0
         D : write 1 SUCCESS
         D : read 2 SUCCESS len=16
         send 3
         D > SEND_ONLY 5002 A=1 len=16
         get 4 len=2000
         D > RDMA_READ_REQUEST 5003 A=1 len=0 va=0 dma=2000
         P > RDMA_READ_RESPONSE_MIDDLE 5003 len=1024 at=0
         D : send 3 SUCCESS
         P > RDMA_READ_RESPONSE_LAST 5004 len=976 at=1024
         D : read 4 SUCCESS len=2000
         send 5
         D > SEND_ONLY 5005 A=1 len=16
         add 6 add=1
         D > FETCH_ADD 5006 A=1 len=0 va=0 swap_or_add=1 compare=0
         P > ATOMIC_ACKNOWLEDGE 5006 original=1
         D : send 5 SUCCESS
         D : fetchadd 6 SUCCESS original=1",
    );
}

#[test]
fn hca_t40_an_ack_that_skips_a_read() {
    Dut::with(|_, rts| rts.retry_count = 0).run(
        "send 1
         D > SEND_ONLY 5000 A=1 len=16
         get 2
         D > RDMA_READ_REQUEST 5001 A=1 len=0 va=0 dma=16
         send 3
         D > SEND_ONLY 5002 A=1 len=16
         P > ACK 5002
         D : send 1 SUCCESS
         D > RDMA_READ_REQUEST 5001 A=1 len=0 va=0 dma=16
         D > SEND_ONLY 5002 A=1 len=16
         P > ACK 5002
         P > ACK 5001
         count implied_naks_received 1
         count drop_repeated_nak 2
         P > RDMA_READ_RESPONSE_ONLY 5001 len=16 at=0
         D : read 2 SUCCESS len=16
         P > ACK 5002
         D : send 3 SUCCESS",
    );
}

#[test]
fn a_response_that_skips_an_atomic() {
    with_depth(2).run(
        "add 1 add=1
         D > FETCH_ADD 5000 A=1 len=0 va=0 swap_or_add=1 compare=0
         get 2
         D > RDMA_READ_REQUEST 5001 A=1 len=0 va=0 dma=16
         P > RDMA_READ_RESPONSE_ONLY 5001 len=16 at=0
         D > FETCH_ADD 5000 A=1 len=0 va=0 swap_or_add=1 compare=0
         D > RDMA_READ_REQUEST 5001 A=1 len=0 va=0 dma=16
         P > ATOMIC_ACKNOWLEDGE 5000 original=3
         D : fetchadd 1 SUCCESS original=3
         P > RDMA_READ_RESPONSE_ONLY 5001 len=16 at=0
         D : read 2 SUCCESS len=16",
    );
}

const FOUR_READS: &str = "get 1
    D > RDMA_READ_REQUEST 5000 A=1 len=0 va=0 dma=16
    get 2
    D > RDMA_READ_REQUEST 5001 A=1 len=0 va=0 dma=16
    get 3
    get 4
    send 5
";

#[test]
fn hca_t41_reads_outstanding() {
    with_depth(2).run(&format!(
        "{FOUR_READS}
         P > RDMA_READ_RESPONSE_ONLY 5000 len=16 at=0
         D : read 1 SUCCESS len=16
         D > RDMA_READ_REQUEST 5002 A=1 len=0 va=0 dma=16
         P > RDMA_READ_RESPONSE_ONLY 5001 len=16 at=0
         D : read 2 SUCCESS len=16
         D > RDMA_READ_REQUEST 5003 A=1 len=0 va=0 dma=16
         D > SEND_ONLY 5004 A=1 len=16
         P > RDMA_READ_RESPONSE_ONLY 5002 len=16 at=0
         D : read 3 SUCCESS len=16
         P > RDMA_READ_RESPONSE_ONLY 5003 len=16 at=0
         D : read 4 SUCCESS len=16
         P > ACK 5004
         D : send 5 SUCCESS"
    ));
    // The limit holds for what is sent again, too.
    with_depth(2).run(&format!(
        "{FOUR_READS}
         wait 67.108864ms
         D > RDMA_READ_REQUEST 5000 A=1 len=0 va=0 dma=16
         D > RDMA_READ_REQUEST 5001 A=1 len=0 va=0 dma=16
         P > RDMA_READ_RESPONSE_ONLY 5000 len=16 at=0
         D : read 1 SUCCESS len=16
         D > RDMA_READ_REQUEST 5002 A=1 len=0 va=0 dma=16
         modify ERR
         D : read 2 WR_FLUSH_ERR
         D : read 3 WR_FLUSH_ERR
         D : read 4 WR_FLUSH_ERR
         D : send 5 WR_FLUSH_ERR"
    ));
}

#[test]
fn hca_t42_a_fence_waits_for_reads_and_atomics() {
    with_depth(2).run(
        "send 1
         D > SEND_ONLY 5000 A=1 len=16
         send 2 FENCE=1
         D > SEND_ONLY 5001 A=1 len=16
         get 3
         D > RDMA_READ_REQUEST 5002 A=1 len=0 va=0 dma=16
         add 4 add=1
         D > FETCH_ADD 5003 A=1 len=0 va=0 swap_or_add=1 compare=0
         send 5 FENCE=1
         send 6
         P > RDMA_READ_RESPONSE_ONLY 5002 len=16 at=0
         D : send 1 SUCCESS
         D : send 2 SUCCESS
         D : read 3 SUCCESS len=16
         P > ATOMIC_ACKNOWLEDGE 5003 original=1
         D : fetchadd 4 SUCCESS original=1
         D > SEND_ONLY 5004 A=1 len=16
         D > SEND_ONLY 5005 A=1 len=16
         wait 67.108864ms
         D > SEND_ONLY 5004 A=1 len=16
         D > SEND_ONLY 5005 A=1 len=16",
    );
}

#[test]
fn hca_t44_responses_of_the_wrong_length() {
    let read = "get 1\nD > RDMA_READ_REQUEST 5000 A=1 len=0 va=0 dma=16\nget 2\n";
    let failed = "D : read 1 LOC_LEN_ERR\nD : read 2 WR_FLUSH_ERR\nD ! QpError";
    for len in [8, 15, 17, 32] {
        Dut::new().run(&format!("{read}P > RDMA_READ_RESPONSE_ONLY 5000 len={len} at=0\n{failed}"));
    }
    Dut::new().run(&format!("{read}P > RDMA_READ_RESPONSE_FIRST 5000 len=1024 at=0\n{failed}"));
    let read = "get 1 len=2000\nD > RDMA_READ_REQUEST 5000 A=1 len=0 va=0 dma=2000\nget 2\n";
    for wrong in ["FIRST 5000 len=1020", "LAST 5000 len=1024", "ONLY 5000 len=1024"] {
        Dut::new().run(&format!("{read}P > RDMA_READ_RESPONSE_{wrong} at=0\n{failed}"));
    }
    let first = "P > RDMA_READ_RESPONSE_FIRST 5000 len=1024 at=0\n";
    for wrong in ["LAST 5001 len=975", "LAST 5001 len=1024", "MIDDLE 5001 len=976"] {
        Dut::new().run(&format!("{read}{first}P > RDMA_READ_RESPONSE_{wrong} at=1024\n{failed}"));
    }
}

#[test]
fn responses_of_the_wrong_kind() {
    let cases = [
        (
            "get 1\nD > RDMA_READ_REQUEST 5000 A=1 len=0 va=0 dma=16",
            "ATOMIC_ACKNOWLEDGE 5000 original=1",
            "read",
        ),
        (
            "add 1\nD > FETCH_ADD 5000 A=1 len=0 va=0 swap_or_add=0 compare=0",
            "RDMA_READ_RESPONSE_ONLY 5000",
            "fetchadd",
        ),
        ("put 1\nD > RDMA_WRITE_ONLY 5000 A=1 len=16 va=0 dma=16", "RDMA_READ_RESPONSE_ONLY 5000", "write"),
        ("send 1\nD > SEND_ONLY 5000 A=1 len=16", "ATOMIC_ACKNOWLEDGE 5000 original=1", "send"),
    ];
    for (posted, response, op) in cases {
        Dut::new().run(&format!(
            "{posted}
             P > ACK 4999
             P > {response}
             D : {op} 1 BAD_RESP_ERR
             D ! QpError
             count drop_bad_response 1"
        ));
    }
}

#[test]
fn naks_of_reads_and_atomics() {
    for (syndrome, status) in [(0x61, "REM_INV_REQ_ERR"), (0x62, "REM_ACCESS_ERR"), (0x63, "REM_OP_ERR")] {
        with_depth(2).run(&format!(
            "put 1
             D > RDMA_WRITE_ONLY 5000 A=1 len=16 va=0 dma=16
             get 2 len=2000
             D > RDMA_READ_REQUEST 5001 A=1 len=0 va=0 dma=2000
             add 3
             D > FETCH_ADD 5003 A=1 len=0 va=0 swap_or_add=0 compare=0
             P > RDMA_READ_RESPONSE_FIRST 5001 len=1024 at=0
             D : write 1 SUCCESS
             P > NAK {syndrome:#x} 5002
             D : read 2 {status}
             D : fetchadd 3 WR_FLUSH_ERR
             D ! QpError"
        ));
    }
    // What is refused is not what is asked for before it, whose answer may be late.
    let refused = "put 1
         D > RDMA_WRITE_ONLY 5000 A=1 len=16 va=0 dma=16
         get 2
         D > RDMA_READ_REQUEST 5001 A=1 len=0 va=0 dma=16
         put 3
         D > RDMA_WRITE_ONLY 5002 A=1 len=16 va=0 dma=16
         put 4
         D > RDMA_WRITE_ONLY 5003 A=1 len=16 va=0 dma=16
         P > NAK 0x62 5003
         D : write 1 SUCCESS
         send 5
         P > NAK 0x60 5002
         P > ACK 5002
         count drop_repeated_nak 2
    ";
    Dut::new().run(&format!(
        "{refused}
         P > RDMA_READ_RESPONSE_ONLY 5001 len=16 at=0
         D : read 2 SUCCESS len=16
         D : write 3 SUCCESS
         D : write 4 REM_ACCESS_ERR
         D : send 5 WR_FLUSH_ERR
         D ! QpError"
    ));
    // The peer has failed: to ask again would be in vain.
    Dut::new().run(&format!(
        "{refused}
         wait 67.108864ms
         D : read 2 RETRY_EXC_ERR
         D : write 3 WR_FLUSH_ERR
         D : write 4 WR_FLUSH_ERR
         D : send 5 WR_FLUSH_ERR
         D ! QpError"
    ));
    // Also if nothing was to be sent at that moment.
    let not_ready = "get 1
         D > RDMA_READ_REQUEST 5000 A=1 len=0 va=0 dma=16
         send 2
         D > SEND_ONLY 5001 A=1 len=16
         P > RNR 31 5001
         P > NAK 0x61 5001\n";
    let failed = "D : read 1 RETRY_EXC_ERR\nD : send 2 WR_FLUSH_ERR\nD ! QpError";
    Dut::new().run(&format!("{not_ready}wait 67.108864ms\n{failed}"));
    Dut::with(|_, rts| rts.timeout = TimeCode::truncate(0)).run(&format!("{not_ready}{failed}"));
    // A lost request: what came behind it has shown.
    with_depth(2).run(
        "get 1
         D > RDMA_READ_REQUEST 5000 A=1 len=0 va=0 dma=16
         send 2
         D > SEND_ONLY 5001 A=1 len=16
         P > NAK 0x60 5000
         D > RDMA_READ_REQUEST 5000 A=1 len=0 va=0 dma=16
         D > SEND_ONLY 5001 A=1 len=16
         P > RDMA_READ_RESPONSE_ONLY 5000 len=16 at=0
         D : read 1 SUCCESS len=16
         P > RNR 1 5001
         wait 0.01ms
         D > SEND_ONLY 5001 A=1 len=16
         P > ACK 5001
         D : send 2 SUCCESS",
    );
    // Syndromes in responses that are none.
    Dut::new().run(
        "get 1
         D > RDMA_READ_REQUEST 5000 A=1 len=0 va=0 dma=16
         P > RDMA_READ_RESPONSE_ONLY 5000 len=16 at=0 syndrome=0x62
         count drop_syndrome 1
         P > RDMA_READ_RESPONSE_ONLY 5000 len=16 at=0 syndrome=0x0a
         D : read 1 SUCCESS len=16",
    );
}

#[test]
fn hca_t43_responses_that_nothing_asked_for() {
    Dut::new().run(
        "put 1
         D > RDMA_WRITE_ONLY 5000 A=1 len=16 va=0 dma=16
         get 2 len=2000
         D > RDMA_READ_REQUEST 5001 A=1 len=0 va=0 dma=2000
         P > RDMA_READ_RESPONSE_ONLY 5003 len=16 at=0
         P > ATOMIC_ACKNOWLEDGE 5004 original=1
         P > NAK 0x62 5003
         P > RDMA_READ_RESPONSE_LAST 4999 len=16 at=0
         count drop_future_response 3
         count drop_stale_response 1
         wait 67.108864ms
         D > RDMA_WRITE_ONLY 5000 A=1 len=16 va=0 dma=16
         D > RDMA_READ_REQUEST 5001 A=1 len=0 va=0 dma=2000",
    );
}

#[test]
fn retries_of_reads_end() {
    Dut::with(|_, rts| rts.retry_count = 1).run(
        "get 1
         D > RDMA_READ_REQUEST 5000 A=1 len=0 va=0 dma=16
         wait 67.108864ms
         D > RDMA_READ_REQUEST 5000 A=1 len=0 va=0 dma=16
         wait 67.108864ms
         D : read 1 RETRY_EXC_ERR
         D ! QpError",
    );
}

#[test]
fn psns_of_reads_wrap() {
    Dut::with(|_, rts| rts.sq_psn = Psn::truncate(0xff_fffe)).run(
        "get 1 len=3000
         D > RDMA_READ_REQUEST 16777214 A=1 len=0 va=0 dma=3000
         send 2
         D > SEND_ONLY 1 A=1 len=16
         P > RDMA_READ_RESPONSE_FIRST 16777214 len=1024 at=0
         P > RDMA_READ_RESPONSE_LAST 0 len=952 at=2048
         D > RDMA_READ_REQUEST 16777215 A=1 len=0 va=1024 dma=1976
         D > SEND_ONLY 1 A=1 len=16
         P > RDMA_READ_RESPONSE_MIDDLE 16777215 len=1024 at=1024
         P > RDMA_READ_RESPONSE_LAST 0 len=952 at=2048
         D : read 1 SUCCESS len=3000
         P > ACK 1
         D : send 2 SUCCESS",
    );
}
