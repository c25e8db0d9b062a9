//! Packets in runs are the same packets.

use std::time::{Duration, Instant};

use ibdev::qp::QpType;
use ibdev::{Access, RemoteAddr, SharedMemory};
use ibwire::packet::{Bth, Opcode, Operation, Reth, Transport};
use proptest::prelude::*;

use super::super::{CqId, DomainId, Engine, QpCreate};
use super::script::{D, Dut, P};
use super::*;

const ADDRESSES: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const ROOM: usize = 4;

/// How packets leave one engine and arrive at the other: one by one, or in runs.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Taking {
    Singly,
    InRuns,
}

/// A device, its completion queue and its queue pair.
struct End {
    engine: Engine,
    cq: CqId,
    qpn: Qpn,
}

/// All packets between two ends that write, send and read messages of this length at once, with this window, and the
/// longest run.
fn traffic(len: usize, window: u16, loss: bool, taking: Taking) -> (Vec<Vec<u8>>, usize) {
    let mut now = Instant::now();
    let mut ends = ADDRESSES.map(|address| {
        let mut config = Config::new(device_attr("soft", Guid(1), 1), vec![roce_port(address)], [1; 32]);
        config.window = [window; 5];
        let mut engine = Engine::new(config);
        let cq = engine.create_cq(8).unwrap();
        let qpn = engine.create_qp(&QpCreate::new(QpType::Rc, cq, 6, 2)).unwrap();
        End { engine, cq, qpn }
    });
    let (qpns, access) = ([ends[1].qpn, ends[0].qpn], Access::all());
    let memory = ends
        .each_mut()
        .map(|end| end.engine.register(DomainId::DEFAULT, SharedMemory::zeroed(2 * len), access).unwrap());
    for (n, end) in ends.iter_mut().enumerate() {
        let init = Init { access, ..INIT };
        let mut rtr = rtr(roce_av(ADDRESSES[1 - n]), qpns[n], 0xff_fff0);
        rtr.max_dest_rd_atomic = 2;
        let rts = Rts { max_rd_atomic: 2, ..rts(0xff_fff0) };
        for transition in [Transition::Init(init), Transition::Rtr(rtr), Transition::Rts(rts)] {
            end.engine.modify(end.qpn, transition).unwrap();
        }
        end.engine.post_recv(end.qpn, &mut VecDeque::from([recv(1, len), recv(2, len)])).unwrap();
        let (rkey, addr) = memory[1 - n];
        let at = RemoteAddr { addr, rkey };
        let read = || SendWr::new(3, SendOp::Read { from: at }, Buf::unregistered(len));
        let write = SendWr::new(1, SendOp::Write { to: at, imm: None }, message(1, len));
        let mut work = VecDeque::from([write, read(), send(2, len, Some(7)), read(), send(4, len, None)]);
        end.engine.post_send(end.qpn, &mut work).unwrap();
    }

    let (mut packets, mut longest, mut done, mut completions) = (Vec::new(), 0, 0, Vec::new());
    while done < 14 {
        assert!(packets.len() < 100_000, "it does not end");
        for n in [0, 1] {
            let mut out = Vec::new();
            loop {
                let engine = &mut ends[n].engine;
                let (egress, room) = match taking {
                    Taking::Singly => (engine.poll_transmit(now, &mut out), 0),
                    Taking::InRuns => (engine.poll_run(now, &mut out, ROOM), ROOM),
                };
                let Some((len, count)) = egress.map(|egress| (egress.len, egress.packets)) else { break };
                assert_eq!(out.len(), count * (len + room));
                longest = longest.max(count);
                let (net, peer) = (roce_net(ADDRESSES[n], ADDRESSES[1 - n]), &mut ends[1 - n].engine);
                let mut arrived = Vec::new();
                for bytes in out.chunks_exact(len + room) {
                    let (packet, room) = bytes.split_at(len);
                    assert!(room.iter().all(|byte| *byte == 0));
                    packets.push(packet.to_vec());
                    match taking {
                        _ if loss && packets.len() % 97 == 96 => {}
                        Taking::Singly => peer.handle_packet(now, 1, &net, packet),
                        Taking::InRuns => arrived.extend_from_slice(bytes),
                    }
                }
                peer.handle_run(now, 1, &net, &arrived, (len, room));
                out.clear();
            }
        }
        for end in &mut ends {
            done += end.engine.poll_cq(end.cq, &mut completions, usize::MAX);
            while end.engine.poll_event().is_some() {}
        }
        now += Duration::from_millis(if loss { 100 } else { 1 });
        ends.iter_mut().for_each(|end| end.engine.handle_timeout(now));
    }
    assert!(completions.iter().all(|completion| completion.status.is_ok()), "{completions:?}");
    for end in &ends {
        let counters = end.engine.counters();
        packets.push(format!("{counters:?}").into_bytes());
    }
    (packets, longest)
}

#[test]
fn packets_in_runs_are_those_that_come_one_by_one() {
    for len in [0, 1000, 1024, 3000, 4096, 70_000, 200 * 1024] {
        for (window, loss) in [(1, false), (2, false), (5, false), (64, false), (64, true), (300, false)] {
            let (singly, one) = traffic(len, window, loss, Taking::Singly);
            let (in_runs, most) = traffic(len, window, loss, Taking::InRuns);
            assert_eq!(singly.len(), in_runs.len(), "{len} bytes, window {window}, loss {loss}");
            assert!(singly == in_runs, "{len} bytes, window {window}, loss {loss}");
            assert_eq!(one, 1);
            if len > 65_536 && window >= 64 {
                assert!((30..=64).contains(&most), "{most}");
            }
        }
    }
}

/// What a responder that expects this PSN does with packets of these kinds, handed in together and one by one: what its memory
/// and its receives hold then, what it counts and completes, and what it answers.
fn both_ways(
    kind: QpType,
    first: u32,
    packets: &[Vec<u8>],
    net: NetHeader,
) -> [(Vec<u8>, String, Vec<Vec<u8>>); 2] {
    let now = Instant::now();
    [Taking::Singly, Taking::InRuns].map(|taking| {
        let config = Config::new(device_attr("soft", Guid(1), 1), vec![roce_port(ADDRESSES[0])], [1; 32]);
        let mut engine = Engine::new(config);
        let cq = engine.create_cq(8).unwrap();
        let qpn = engine.create_qp(&QpCreate::new(kind, cq, 4, 4)).unwrap();
        let (memory, access) = (SharedMemory::zeroed(1 << 16), Access::all());
        let (rkey, addr) = engine.register(DomainId::DEFAULT, memory.clone(), access).unwrap();
        let rtr = rtr(roce_av(ADDRESSES[1]), Qpn::truncate(9), first);
        for transition in [Transition::Init(Init { access, ..INIT }), Transition::Rtr(rtr)] {
            engine.modify(qpn, transition).unwrap();
        }
        engine.post_recv(qpn, &mut VecDeque::from([recv(1, 5 * 1024)])).unwrap();
        let mut bytes = Vec::new();
        for packet in packets {
            let mut packet = packet.clone();
            packet[5..8].copy_from_slice(&qpn.get().to_be_bytes()[1..]);
            if Opcode(packet[0]).has_reth() {
                let reth = Reth { va: addr, rkey, len: Reth::parse(&packet[Bth::LEN..]).unwrap().len };
                packet[Bth::LEN..Bth::LEN + Reth::LEN].copy_from_slice(&reth.to_bytes());
            }
            let whole = bytes.first().is_none_or(|first: &Vec<u8>| first.len() == packet.len());
            if taking == Taking::InRuns && whole {
                bytes.push(packet);
                continue;
            }
            hand_in(&mut engine, now, &net, &mut bytes);
            bytes.push(packet);
        }
        hand_in(&mut engine, now, &net, &mut bytes);
        let (mut written, mut answers, mut out) = (vec![0; 1 << 16], Vec::new(), Vec::new());
        memory.copy_to(0, &mut written).unwrap();
        while let Some(len) = engine.poll_transmit(now, &mut out).map(|egress| egress.len) {
            answers.push(out[out.len() - len..].to_vec());
        }
        let mut completions = Vec::new();
        engine.poll_cq(cq, &mut completions, usize::MAX);
        for buf in completions.iter_mut().flat_map(|completion| &mut completion.sg) {
            written.extend_from_slice(buf.memory_mut());
        }
        let events: Vec<_> = std::iter::from_fn(|| engine.poll_event()).collect();
        // Each engine has other numbers.
        let statuses: Vec<_> = completions.iter().map(|it| (it.id, it.status, it.len)).collect();
        (written, format!("{:?} {statuses:?} {}", engine.counters(), events.len()), answers)
    })
}

fn hand_in(engine: &mut Engine, now: Instant, net: &NetHeader, packets: &mut Vec<Vec<u8>>) {
    let Some(len) = packets.first().map(Vec::len) else { return };
    engine.handle_run(now, 1, net, &packets.concat(), (len, 0));
    packets.clear();
}

#[test]
fn what_does_not_follow_is_not_taken_with_the_rest() {
    let bth = |opcode, psn| Bth::new(opcode, Qpn::truncate(0), Psn::truncate(psn));
    let first = |len| {
        let reth = Reth { va: 0, rkey: ibwire::RKey(0), len }.to_bytes();
        [&bth(Opcode::RC_RDMA_WRITE_FIRST, 5).to_bytes()[..], &reth, &[1; 1024]].concat()
    };
    let packet = |bth: Bth| [&bth.to_bytes()[..], &[bth.psn.get() as u8; 1024]].concat();
    let middle = |psn| bth(Opcode::RC_RDMA_WRITE_MIDDLE, psn);
    let here = roce_net(ADDRESSES[1], ADDRESSES[0]);
    let elsewhere = roce_net("192.0.2.3", ADDRESSES[0]);
    let asks = |psn| Bth { ack_req: true, ..middle(psn) };
    let sends = |psn| bth(Opcode::RC_SEND_MIDDLE, psn);
    let padded = |psn| Bth { pad: 1, ..middle(psn) };
    let cases: [(&str, u32, Vec<Bth>, NetHeader); 11] = [
        ("all follow", 8 * 1024, vec![middle(6), asks(7), middle(8)], here),
        ("from elsewhere", 8 * 1024, vec![middle(6), middle(7), middle(8)], elsewhere),
        ("one is missing", 8 * 1024, vec![middle(6), middle(8), middle(9)], here),
        ("one comes twice", 8 * 1024, vec![middle(6), middle(6), middle(7)], here),
        ("all come twice", 8 * 1024, vec![middle(6), middle(7), middle(6), middle(7), middle(8)], here),
        ("too many", 3 * 1024, vec![middle(6), middle(7), middle(8)], here),
        ("as many as fit before the last", 4 * 1024 + 1, vec![middle(6), middle(7), middle(8)], here),
        ("another kind", 8 * 1024, vec![middle(6), sends(7), middle(8)], here),
        ("another partition", 8 * 1024, vec![middle(6), Bth { pkey: PKey(7), ..middle(7) }], here),
        ("padded", 8 * 1024, vec![padded(6), padded(7)], here),
        ("padded, behind one that comes again", 8 * 1024, vec![middle(6), padded(6), padded(7)], here),
    ];
    for (what, len, rest, net) in cases {
        let mut packets = vec![first(len)];
        packets.extend(rest.into_iter().map(packet));
        let [singly, in_runs] = both_ways(QpType::Rc, 5, &packets, net);
        assert!(singly.0 == in_runs.0, "{what}: memory");
        assert_eq!((&singly.1, &singly.2), (&in_runs.1, &in_runs.2), "{what}");
    }
    // A message that is longer than its receive.
    let sends: Vec<_> = (6..12).map(|psn| packet(sends(psn))).collect();
    let first = packet(bth(Opcode::RC_SEND_FIRST, 5));
    let [singly, in_runs] = both_ways(QpType::Rc, 5, &[vec![first], sends].concat(), here);
    assert_eq!((&singly.1, &singly.2), (&in_runs.1, &in_runs.2));
    assert!(singly.1.contains("drop_too_long: 1"), "{}", singly.1);
}

/// The answer to a read that has not left comes from no one who has received it.
#[test]
fn a_response_before_its_request_is_not_taken_with_an_old_one() {
    let mut dut = Dut::new();
    dut.run(
        "get 1 len=2048
         D > RDMA_READ_REQUEST 5000 A=1 len=0 va=0 dma=2048
         P > RDMA_READ_RESPONSE_FIRST 5000 len=1024 at=0
         P > RDMA_READ_RESPONSE_LAST 5001 len=1024 at=1024
         D : read 1 SUCCESS len=2048
         modify SQD
         D ! SqDrained
         get 2 len=3000",
    );
    let packet = |psn| {
        let bth = Bth::new(Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, dut.qpn, Psn::truncate(psn));
        [&bth.to_bytes()[..], &[0; 1024]].concat()
    };
    let mut packets = vec![packet(5001), packet(5002)];
    hand_in(&mut dut.engine, dut.now, &roce_net(P, D), &mut packets);
    dut.run(
        "count drop_stale_response 1
         count drop_future_response 1
         modify resume
         D > RDMA_READ_REQUEST 5002 A=1 len=0 va=0 dma=3000
         P > RDMA_READ_RESPONSE_FIRST 5002 len=1024 at=0
         P > RDMA_READ_RESPONSE_MIDDLE 5003 len=1024 at=1024
         P > RDMA_READ_RESPONSE_LAST 5004 len=952 at=2048
         D : read 2 SUCCESS len=3000",
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever comes: messages that are broken off, gaps, packets that come again, of both transports and where PSNs wrap.
    #[test]
    fn any_packets_together_are_those_that_come_one_by_one(
        (is_reliable, sends) in any::<(bool, bool)>(),
        first in prop_oneof![Just(5), Just(0xff_fff0)],
        steps in prop::collection::vec((0u8..32, 0u8..16, prop::bool::weighted(0.05)), 1..60),
    ) {
        let (kind, transport) =
            if is_reliable { (QpType::Rc, Transport::RC) } else { (QpType::Uc, Transport::UC) };
        let (mut psn, mut writes, mut packets) = (Psn::truncate(first), !sends, Vec::new());
        for (what, jump, ack_req) in steps {
            psn = match jump {
                0 => psn.offset(1),
                1 => psn.prev(),
                _ => psn,
            };
            let what = if packets.is_empty() { u8::from(sends) } else { what };
            if what < 2 {
                writes = what == 0;
            }
            let operation = match (what, writes) {
                (0, _) => Operation::RDMA_WRITE_FIRST,
                (1, _) => Operation::SEND_FIRST,
                (2, true) => Operation::RDMA_WRITE_LAST,
                (2, false) => Operation::SEND_LAST,
                (_, true) => Operation::RDMA_WRITE_MIDDLE,
                (_, false) => Operation::SEND_MIDDLE,
            };
            let bth = Bth { ack_req, ..Bth::new(Opcode::new(transport, operation), Qpn::truncate(0), psn) };
            let mut packet = bth.to_bytes().to_vec();
            if operation == Operation::RDMA_WRITE_FIRST {
                packet.extend(Reth { va: 0, rkey: ibwire::RKey(0), len: 8 * 1024 }.to_bytes());
            }
            packet.extend([packets.len() as u8; 1024]);
            packets.push(packet);
            psn = psn.offset(1);
        }
        let [singly, in_runs] = both_ways(kind, first, &packets, roce_net(ADDRESSES[1], ADDRESSES[0]));
        prop_assert!(singly.0 == in_runs.0, "memory");
        prop_assert_eq!((singly.1, singly.2), (in_runs.1, in_runs.2));
    }
}
