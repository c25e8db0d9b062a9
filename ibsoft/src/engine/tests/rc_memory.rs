//! The responder: what a peer may do with memory, and writes.

use ibdev::qp::QpType;
use ibdev::{DeviceError, PostError, SharedMemory};
use ibwire::packet::Operation;
use proptest::prelude::*;

use super::super::{DomainId, QpCreate};
use super::script::{Dut, REGION};
use super::*;

const INVALID: &str = "D : recv 0 WR_FLUSH_ERR
    D ! QpRequestError
    P > SEND_ONLY 1000
    count drop_state 1
    count fatal_naks_sent 1";

const REFUSED: &str = "D : recv 0 WR_FLUSH_ERR
    D ! QpAccessError
    P > SEND_ONLY 1000
    count drop_state 1
    count fatal_naks_sent 1";

#[test]
fn writes_of_every_shape_land_where_they_should() {
    let mut dut = Dut::new().receives(2, 100);
    dut.run(
        "P > RDMA_WRITE_ONLY 1000 va=3 len=5
         D > ACK 1000 MSN=1
         memory 3 len=5 tag=1000
         P > RDMA_WRITE_FIRST 1001 va=1024 len=1024 dma=2049 A=0
         memory 1024 len=1024 tag=1001
         P > RDMA_WRITE_MIDDLE 1002 len=1024 A=0
         P > RDMA_WRITE_LAST 1003 len=1
         D > ACK 1003 MSN=2
         memory 2048 len=1024 tag=1002
         memory 3072 len=1 tag=1003
         P > RDMA_WRITE_ONLY_WITH_IMM 1004 va=4091 len=5 imm=0xdeadbeef
         D > ACK 1004 MSN=3
         D : recvwrite 0 SUCCESS len=5 imm=0xdeadbeef
         memory 4091 len=5 tag=1004
         P > RDMA_WRITE_FIRST 1005 len=1024 dma=1500 A=0
         P > RDMA_WRITE_LAST_WITH_IMM 1006 len=476 imm=7
         D > ACK 1006 MSN=4
         D : recvwrite 1 SUCCESS len=1500 imm=0x7
         memory 0 len=1024 tag=1005
         memory 1024 len=476 tag=1006
         P > RDMA_WRITE_ONLY 1007 va=0 len=1024
         D > ACK 1007 MSN=5
         memory 0 len=1024 tag=1007",
    );
    let rest = dut.bytes(1500, 548);
    assert_eq!(rest, message(1001, 1024)[476..], "what no write named is as it was");
}

#[test]
fn hca_t14_writes_out_of_order() {
    for request in
        ["RDMA_WRITE_MIDDLE 1000 len=1024", "RDMA_WRITE_LAST 1000", "RDMA_WRITE_LAST_WITH_IMM 1000 imm=1"]
    {
        let mut dut = Dut::new().receives(1, 4096);
        dut.run(&format!("P > {request}\nD > NAK 0x61 1000 MSN=0\n{INVALID}\ncount drop_opcode_sequence 1"));
        dut.untouched();
    }
    let kinds =
        [("RDMA_WRITE_FIRST 1000 len=1024 dma=3000", "SEND"), ("SEND_FIRST 1000 len=1024", "RDMA_WRITE")];
    for (first, other) in kinds {
        for request in
            ["ONLY 1001", "FIRST 1001 len=1024 dma=3000", "MIDDLE 1001 len=1024", "LAST 1001 len=20"]
        {
            let mut dut = Dut::new().receives(1, 4096);
            dut.run(&format!(
                "P > {first} A=0\nP > {other}_{request}\nD > NAK 0x61 1001 MSN=0\n{INVALID}\ncount drop_opcode_sequence 1"
            ));
        }
        for request in ["RDMA_READ_REQUEST 1001 dma=8", "FETCH_ADD 1001 add=1", "COMPARE_SWAP 1001"] {
            let mut dut = Dut::new().receives(1, 4096);
            dut.run(&format!(
                "P > {first} A=0\nP > {request}\nD > NAK 0x61 1001 MSN=0\n{INVALID}\ncount drop_opcode_sequence 1"
            ));
        }
    }
}

#[test]
fn hca_t14_t15_lengths_that_do_not_fit() {
    for request in [
        "RDMA_WRITE_ONLY 1000 len=16 dma=8",
        "RDMA_WRITE_ONLY 1000 len=16 dma=17",
        "RDMA_WRITE_ONLY 1000 len=0 dma=1",
        "RDMA_WRITE_ONLY 1000 len=1025 dma=1025",
        "RDMA_WRITE_FIRST 1000 len=512 dma=1500",
        "RDMA_WRITE_FIRST 1000 len=1024 dma=1024",
        "RDMA_WRITE_FIRST 1000 len=1024 dma=1000",
        "RDMA_WRITE_FIRST 1000 len=1024 dma=0x80000001",
        "RDMA_READ_REQUEST 1000 dma=0x80000001",
        "RDMA_READ_REQUEST 1000 dma=8 len=4",
        "FETCH_ADD 1000 len=8",
    ] {
        let mut dut = Dut::new().receives(1, 4096);
        dut.run(&format!("P > {request}\nD > NAK 0x61 1000 MSN=0\n{INVALID}\ncount drop_length 1"));
        dut.untouched();
    }
    for request in [
        "RDMA_WRITE_MIDDLE 1001 len=1023",
        "RDMA_WRITE_MIDDLE 1001 len=1028",
        "RDMA_WRITE_LAST 1001 len=475",
        "RDMA_WRITE_LAST 1001 len=477",
        "RDMA_WRITE_LAST 1001 len=0",
        "RDMA_WRITE_MIDDLE 1001 len=1024",
    ] {
        let mut dut = Dut::new().receives(1, 4096);
        dut.run(&format!(
            "P > RDMA_WRITE_FIRST 1000 len=1024 dma=1500 A=0
             P > {request}\nD > NAK 0x61 1001 MSN=0\n{INVALID}\ncount drop_length 1"
        ));
    }
}

#[test]
fn hca_t16_nothing_needs_no_memory() {
    let mut dut = Dut::new().receives(1, 64);
    dut.run(
        "P > RDMA_WRITE_ONLY 1000 len=0 key=0x12345678 va=0x9999
         D > ACK 1000 MSN=1
         P > RDMA_READ_REQUEST 1001 dma=0 key=0 va=0x9999
         D > RDMA_READ_RESPONSE_ONLY 1001 MSN=2 len=0
         P > RDMA_WRITE_ONLY_WITH_IMM 1002 len=0 key=0 imm=5
         D > ACK 1002 MSN=3
         D : recvwrite 0 SUCCESS len=0 imm=0x5",
    );
    dut.untouched();
}

#[test]
fn hca_t17_memory_that_is_not_the_peers() {
    for (request, counter) in [
        ("RDMA_WRITE_ONLY 1000 key=0x12345678", "drop_rkey"),
        ("RDMA_WRITE_ONLY 1000 key=0", "drop_rkey"),
        ("RDMA_WRITE_ONLY 1000 va=4090", "drop_range"),
        ("RDMA_WRITE_ONLY 1000 va=0xffffffffffffffff", "drop_range"),
        ("RDMA_WRITE_FIRST 1000 len=1024 va=1 dma=4096", "drop_range"),
        ("RDMA_READ_REQUEST 1000 dma=4097", "drop_range"),
        ("RDMA_READ_REQUEST 1000 dma=1 va=4096", "drop_range"),
        ("RDMA_READ_REQUEST 1000 dma=16 va=0xfffffffffffffff8", "drop_range"),
        ("RDMA_READ_REQUEST 1000 dma=1 key=0x12345678", "drop_rkey"),
        ("FETCH_ADD 1000 add=1 va=4092", "drop_range"),
        ("COMPARE_SWAP 1000 key=0x12345678", "drop_rkey"),
    ] {
        let mut dut = Dut::new().receives(1, 4096);
        dut.run(&format!("P > {request}\nD > NAK 0x62 1000 MSN=0\n{REFUSED}\ncount {counter} 1"));
        dut.untouched();
    }
}

#[test]
fn a_region_allows_what_it_was_made_for_in_its_domain() {
    let all = ["RDMA_WRITE_ONLY 1000", "RDMA_READ_REQUEST 1000 dma=16", "FETCH_ADD 1000 add=1"];
    let rights = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];
    for (request, needed) in all.iter().zip(rights) {
        for given in rights {
            let mut dut = Dut::new().receives(1, 64);
            dut.engine.deregister(dut.rkey);
            dut.expose(DomainId::DEFAULT, given);
            if given == needed {
                dut.peer(request);
                assert_eq!(dut.engine.counters().fatal_naks_sent, 0);
            } else {
                dut.run(&format!(
                    "P > {request}\nD > NAK 0x62 1000 MSN=0\n{REFUSED}\ncount drop_region_access 1"
                ));
                dut.untouched();
            }
        }
        let mut dut = Dut::new().receives(1, 64);
        let other = dut.engine.create_domain().unwrap();
        dut.expose(other, Access::all());
        dut.run(&format!("P > {request}\nD > NAK 0x62 1000 MSN=0\n{REFUSED}\ncount drop_domain 1"));
        dut.untouched();
    }
}

#[test]
fn a_qp_reaches_its_own_domain() {
    let mut domain = DomainId::DEFAULT;
    let create = |engine: &mut Engine, create: &mut QpCreate| {
        domain = engine.create_domain().unwrap();
        create.domain = domain;
    };
    let mut dut = Dut::made(create, Access::all(), |_, _| {});
    dut.run(
        "P > RDMA_WRITE_ONLY 1000
         D > ACK 1000 MSN=1
         D ! CommEstablished
         memory 0 len=16 tag=1000",
    );
    assert!(dut.engine.destroy_domain(domain).is_err());
    assert!(dut.engine.destroy_qp(dut.qpn).is_empty());
    dut.engine.deregister(dut.rkey);
    dut.engine.destroy_domain(domain).unwrap();
    let gone = QpCreate { domain, ..QpCreate::new(QpType::Rc, dut.engine.create_cq(2).unwrap(), 1, 1) };
    assert!(matches!(dut.engine.create_qp(&gone), Err(DeviceError::Gone)));
}

#[test]
fn hca_t18_what_the_qp_does_not_allow() {
    let rights = [
        (Access::REMOTE_WRITE, "RDMA_WRITE_ONLY"),
        (Access::REMOTE_READ, "RDMA_READ_REQUEST"),
        (Access::REMOTE_ATOMIC, "FETCH_ADD"),
        (Access::REMOTE_ATOMIC, "COMPARE_SWAP"),
    ];
    for (right, request) in rights {
        let mut dut = Dut::allowing(Access::all() - right).receives(1, 64);
        dut.run(&format!(
            "P > {request} 1000 len=0\nD > NAK 0x61 1000 MSN=0\n{INVALID}\ncount drop_not_allowed 1"
        ));
        let mut dut = Dut::allowing(right);
        dut.peer(&format!("{request} 1000 len=0"));
        assert_eq!(dut.engine.counters().fatal_naks_sent, 0, "{request}");
    }
}

#[test]
fn hca_t24_a_write_with_immediate_and_no_receive() {
    let mut dut = Dut::new();
    dut.run(
        "P > RDMA_WRITE_ONLY_WITH_IMM 1000 imm=1
         D > RNR 12 1000 MSN=0
         P > RDMA_WRITE_ONLY 1001
         count drop_rnr 1",
    );
    dut.untouched();
    dut.run(
        "recv 0
         P > RDMA_WRITE_ONLY_WITH_IMM 1000 imm=1
         D > ACK 1000 MSN=1
         D : recvwrite 0 SUCCESS len=16 imm=0x1
         memory 0 len=16 tag=1000
         P > RDMA_WRITE_FIRST 1001 len=1024 dma=1040 A=0
         P > RDMA_WRITE_LAST_WITH_IMM 1002 imm=2
         D > RNR 12 1002 MSN=1
         memory 0 len=1024 tag=1001
         recv 1
         P > RDMA_WRITE_LAST_WITH_IMM 1002 imm=2
         D > ACK 1002 MSN=2
         D : recvwrite 1 SUCCESS len=1040 imm=0x2
         memory 1024 len=16 tag=1002",
    );
}

/// The check for a receive comes before the one for the key.
#[test]
fn an_rnr_nak_comes_before_an_access_nak() {
    Dut::new().run(
        "P > RDMA_WRITE_ONLY_WITH_IMM 1000 imm=1 key=0x12345678
         D > RNR 12 1000 MSN=0
         recv 0
         P > RDMA_WRITE_ONLY_WITH_IMM 1000 imm=1 key=0x12345678
         D > NAK 0x62 1000 MSN=0
         D : recv 0 WR_FLUSH_ERR
         D ! QpAccessError",
    );
}

#[test]
fn hca_t30_requests_for_memory_in_the_wrong_state() {
    let mut dut = Dut::new();
    dut.run(
        "P > RDMA_WRITE_ONLY 1000 from=10.77.0.9
         count drop_address 1
         modify ERR
         P > RDMA_WRITE_ONLY 1000
         P > RDMA_READ_REQUEST 1000 dma=8
         P > FETCH_ADD 1000 add=1
         count drop_state 3",
    );
    dut.untouched();
}

#[test]
fn a_region_taken_away_between_packets() {
    let mut dut = Dut::new().receives(1, 64);
    dut.run("P > RDMA_WRITE_FIRST 1000 len=1024 dma=1500 A=0");
    dut.engine.deregister(dut.rkey);
    dut.run(&format!(
        "P > RDMA_WRITE_LAST 1001 len=476\nD > NAK 0x62 1001 MSN=0\n{REFUSED}\ncount drop_rkey 1"
    ));
    assert_eq!(dut.bytes(1024, REGION - 1024), message(77, REGION)[1024..]);
}

/// Nothing here can be invalidated. The peer learns it from the queue pair's end, not from a NAK.
#[test]
fn a_key_that_cannot_be_invalidated() {
    Dut::new().receives(3, 4096).run(
        "P >> SEND_ONLY 1000
         P > SEND_ONLY_WITH_INVALIDATE 1001
         D > ACK 1000 MSN=1
         D : recv 0 SUCCESS len=16
         D : recv 1 REM_INV_REQ_ERR
         D : recv 2 WR_FLUSH_ERR
         D ! QpRequestError
         count drop_invalidate 1",
    );
    Dut::new().receives(2, 4096).run(
        "P > SEND_FIRST 1000 len=1024 A=0
         P > SEND_LAST_WITH_INVALIDATE 1001
         D : recv 0 REM_INV_REQ_ERR
         D : recv 1 WR_FLUSH_ERR
         D ! QpRequestError",
    );
    Dut::new().run(
        "P > SEND_ONLY_WITH_INVALIDATE 1000
         D > RNR 12 1000 MSN=0",
    );
}

/// As a device that has never heard of them.
#[test]
fn operations_without_a_name_here_vanish() {
    let atomic_write = Operation::ATOMIC_WRITE.0;
    let mut dut = Dut::new();
    dut.run(&format!(
        "P > {atomic_write:#x} 1000 len=8
         P > {:#x} 1000
         P > 0x18 1000
         count drop_opcode 3
         P > RDMA_WRITE_ONLY 1000
         D > ACK 1000 MSN=1
         memory 0 len=16 tag=1000",
        Operation::FLUSH.0
    ));
}

#[test]
fn receives_with_scatter_lists() {
    let mut dut = Dut::new();
    let sg = |id, lens: &[usize]| RecvWr { id, sg: lens.iter().map(|len| Buf::unregistered(*len)).collect() };
    let mut work = VecDeque::from([sg(0, &[5, 0, 1, 2000]), sg(1, &[10, 5]), sg(2, &[1, 1, 1, 1, 1])]);
    let refused = dut.engine.post_recv(dut.qpn, &mut work);
    assert!(matches!(refused, Err(PostError::Limit { .. })));
    assert_eq!(work.len(), 1);
    dut.run(
        "P > SEND_FIRST 1000 len=1024 A=0
         P >> SEND_LAST 1001 len=976",
    );
    let mut completions = Vec::new();
    dut.engine.poll_cq(dut.cq(), &mut completions, 8);
    let parts: Vec<&[u8]> = completions[0].sg.iter().map(|buf| &buf[..]).collect();
    assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [5, 0, 1, 1994]);
    assert_eq!(parts.concat(), [&message(1000, 1024)[..], &message(1001, 976)].concat());
    dut.drain();
    dut.run(
        "D > ACK 1001 MSN=1
         P > SEND_ONLY 1002 len=16
         D > NAK 0x61 1002 MSN=1
         D : recv 1 LOC_LEN_ERR
         D ! QpRequestError
         count drop_too_long 1",
    );
}

#[derive(Debug, Clone)]
enum Request {
    Write { at: i64, len: usize, dma: usize },
    Read { at: i64, len: u32 },
    Add { at: i64 },
}

fn request() -> impl Strategy<Value = Request> {
    let at = || prop_oneof![8 => -20i64..120, 1 => any::<i64>()];
    let len = || prop_oneof![8 => 0usize..40, 1 => 0usize..200];
    prop_oneof![
        (at(), len(), len(), any::<bool>()).prop_map(|(at, len, dma, right)| Request::Write {
            at,
            len,
            dma: if right { len } else { dma }
        }),
        (at(), prop_oneof![8 => 0u32..40, 1 => any::<u32>()]).prop_map(|(at, len)| Request::Read { at, len }),
        (-3i64..16).prop_map(|word| Request::Add { at: 8 * word }),
        at().prop_map(|at| Request::Add { at }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Against an array. The memory has neighbours on both sides that no peer may touch.
    #[test]
    fn a_peer_reaches_its_region_and_nothing_else(requests in prop::collection::vec(request(), 1..12)) {
        const LEN: usize = 100;
        let mut dut = Dut::new();
        let base = dut.addr();
        let inside = SharedMemory::zeroed(LEN);
        let (rkey, addr) = dut.engine.register(DomainId::DEFAULT, inside.clone(), Access::all()).unwrap();
        let mut model = vec![0u8; LEN];
        for (psn, request) in (1000..).zip(requests) {
            let named = |at: i64| format!("key={:#x} va={:#x}", rkey.0, addr.wrapping_add_signed(at).wrapping_sub(base));
            let fits = |at: i64, len: u64| u64::try_from(at).is_ok_and(|at| u128::from(at) + u128::from(len) <= LEN as u128);
            let (line, expected) = match request {
                Request::Write { at, len, dma } => {
                    let is_right = len == dma && (len == 0 || fits(at, len as u64));
                    if is_right && len > 0 {
                        model[at as usize..][..len].copy_from_slice(&message(psn, len));
                    }
                    let line = format!("RDMA_WRITE_ONLY {psn} len={len} dma={dma} {}", named(at));
                    (line, if is_right { 0x1f } else if len == dma { 0x62 } else { 0x61 })
                }
                Request::Read { at, len } => {
                    let is_right = len == 0 || fits(at, len.into());
                    let line = format!("RDMA_READ_REQUEST {psn} dma={len} {}", named(at));
                    (line, if is_right { 0x1f } else if len > 1 << 31 { 0x61 } else { 0x62 })
                }
                Request::Add { at } => {
                    let (is_inside, is_aligned) = (fits(at, 8), at % 8 == 0);
                    if is_inside && is_aligned {
                        let word = &mut model[at as usize..][..8];
                        let sum = u64::from_ne_bytes((*word).try_into().unwrap()).wrapping_add(7);
                        word.copy_from_slice(&sum.to_ne_bytes());
                    }
                    let line = format!("FETCH_ADD {psn} add=7 {}", named(at));
                    (line, match (is_inside, is_aligned) { (false, _) => 0x62, (_, false) => 0x61, _ => 0x1f })
                }
            };
            let answers = dut.peer(&line);
            prop_assert_eq!(answers, [expected], "{}", line);
            let mut bytes = vec![0; LEN];
            inside.copy_to(0, &mut bytes).unwrap();
            prop_assert_eq!(&bytes, &model, "{}", line);
            if expected != 0x1f {
                break;
            }
        }
        dut.untouched();
    }
}
