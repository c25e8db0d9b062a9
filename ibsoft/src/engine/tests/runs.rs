//! Packets in runs are the same packets.

use std::time::{Duration, Instant};

use ibdev::qp::QpType;
use ibdev::{Access, RemoteAddr, SharedMemory};

use super::super::{CqId, DomainId, Engine, QpCreate};
use super::*;

const ADDRESSES: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const ROOM: usize = 4;

/// Who takes the packets of an engine: one by one, or in runs.
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
                for packet in out.chunks_exact(len + room) {
                    let (packet, room) = packet.split_at(len);
                    assert!(room.iter().all(|byte| *byte == 0));
                    packets.push(packet.to_vec());
                    if !(loss && packets.len() % 97 == 96) {
                        let net = roce_net(ADDRESSES[n], ADDRESSES[1 - n]);
                        ends[1 - n].engine.handle_packet(now, 1, &net, packet);
                    }
                }
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
