//! Captured conversations of Linux's rdma_rxe as requester, played again with this engine in its place: it gets the same
//! answers and has to send the same bytes (spec/roce-captures/README.md names the probes).
//!
//! Its work requests follow from the captured requests. What differs on purpose: M is 1 here. Time is not that of the
//! captures: it passes when a request is due that only a timer can bring.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::ops::RangeInclusive;
use std::time::Instant;

use ibdev::qp::QpType;
use ibdev::{Completion, CompletionOp, RemoteAddr, SendFlags, SendOp};
use ibwire::packet::{Bth, Operation, TransportPacket};
use pcap_file::pcap::PcapReader;

use super::super::{CqId, QpCreate};
use super::*;

const RXE: &str = "10.77.0.1";
const PEER: &str = "10.77.0.2";

/// A captured packet, BTH through padding.
struct Frame {
    is_request: bool,
    bytes: Vec<u8>,
}

/// RoCEv2 over IPv4: Ethernet 14, IP 20, UDP 8 bytes in front, the ICRC behind.
fn frames(name: &str, numbers: RangeInclusive<usize>) -> Vec<Frame> {
    const IP: usize = 14;
    const BTH: usize = IP + 20 + 8;
    let path = format!("{}/../ibwire/tests/captures/{name}.pcap", env!("CARGO_MANIFEST_DIR"));
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet() {
        packets.push(packet.unwrap().data.into_owned());
    }
    let end = (*numbers.end()).min(packets.len());
    packets[numbers.start() - 1..end]
        .iter()
        .map(|frame| {
            let udp_len = usize::from(u16::from_be_bytes([frame[BTH - 4], frame[BTH - 3]]));
            Frame {
                is_request: frame[IP + 12..IP + 16] == [10, 77, 0, 1],
                bytes: frame[BTH..BTH - 8 + udp_len - 4].to_vec(),
            }
        })
        .collect()
}

/// The work requests that lead to these frames, each with the PSN of its first packet.
fn work(frames: &[Frame]) -> Vec<(Psn, SendWr)> {
    let mut work: Vec<(Psn, SendWr)> = Vec::new();
    let mut next = None;
    for frame in frames.iter().filter(|frame| frame.is_request) {
        let packet = TransportPacket::parse(&frame.bytes).unwrap();
        let (bth, imm) = (*packet.bth(), packet.immdt().map(|imm| imm.to_u32()));
        if next.is_some_and(|next| bth.psn.distance(next) < 0) {
            continue;
        }
        next = Some(bth.psn.offset(1));
        let mut buf = Buf::unregistered(packet.payload().len());
        buf.copy_from_slice(packet.payload());
        if bth.opcode.is_middle() || bth.opcode.is_last() {
            let (_, wr) = work.last_mut().unwrap();
            wr.sg.push(buf);
            wr.flags.set(SendFlags::SOLICITED, bth.solicited);
            if let SendOp::Send { imm: all } | SendOp::Write { imm: all, .. } = &mut wr.op {
                *all = imm;
            }
            continue;
        }
        let reth = packet.reth();
        let remote = reth.map(|reth| RemoteAddr { addr: reth.va, rkey: reth.rkey });
        let atomic = packet.atomic_eth();
        let op = match (bth.opcode.operation(), remote, atomic) {
            (Operation::RDMA_READ_REQUEST, Some(from), _) => {
                let len = reth.unwrap().len as usize;
                next = Some(bth.psn.offset(len.div_ceil(1024).max(1) as u32));
                buf = Buf::unregistered(len);
                SendOp::Read { from }
            }
            (operation, _, Some(eth)) => {
                buf = Buf::unregistered(8);
                let at = RemoteAddr { addr: eth.va, rkey: eth.rkey };
                match operation {
                    Operation::FETCH_ADD => SendOp::FetchAdd { at, add: eth.swap_or_add },
                    _ => SendOp::CompareSwap { at, compare: eth.compare, swap: eth.swap_or_add },
                }
            }
            (_, Some(to), _) => SendOp::Write { to, imm },
            _ => SendOp::Send { imm },
        };
        let mut wr = SendWr::new(work.len() as u64, op, buf);
        wr.flags.set(SendFlags::SOLICITED, bth.solicited);
        work.push((bth.psn, wr));
    }
    work
}

struct Replay {
    engine: Engine,
    qpn: Qpn,
    cq: CqId,
    now: Instant,
    sent: VecDeque<Vec<u8>>,
    /// What a read has to bring, by the work request's id.
    reads: BTreeMap<u64, Vec<u8>>,
}

impl Replay {
    /// Plays these frames of a file. `change` is what the QP's attributes and the work requests are to be.
    fn play(
        name: &str,
        numbers: RangeInclusive<usize>,
        change: impl FnOnce(&mut Rtr, &mut Rts, &mut [(Psn, SendWr)]),
    ) -> Self {
        let frames = frames(name, numbers);
        let mut work = work(&frames);
        let peer = TransportPacket::parse(&frames[0].bytes).unwrap().bth().dest_qp;
        let mut rtr = rtr(roce_av(PEER), peer, 1000);
        let mut rts = Rts { max_rd_atomic: 4, retry_count: 3, ..rts(work[0].0.get()) };
        change(&mut rtr, &mut rts, &mut work);

        let mut config = Config::new(device_attr("soft", Guid(1), 1), vec![roce_port(RXE)], [1; 32]);
        // Acknowledgements are asked for every 66 packets, as rxe does.
        config.window = [132; 5];
        // A message is posted as one buffer a packet.
        config.device.max_sge = 256;
        let mut engine = Engine::new(config);
        let cq = engine.create_cq(256).unwrap();
        let create = QpCreate { max_sge: 256, ..QpCreate::new(QpType::Rc, cq, 64, 1) };
        let qpn = engine.create_qp(&create).unwrap();
        connect(&mut engine, qpn, rtr, rts);

        let payloads: BTreeMap<Psn, &[u8]> = frames
            .iter()
            .filter(|frame| !frame.is_request)
            .map(|frame| TransportPacket::parse(&frame.bytes).unwrap())
            .map(|packet| (packet.bth().psn, packet.payload()))
            .collect();
        let reads = work.iter().filter(|(_, wr)| matches!(wr.op, SendOp::Read { .. })).map(|(psn, wr)| {
            let packets = wr.message_len().div_ceil(1024) as u32;
            (
                wr.id,
                (0..packets)
                    .flat_map(|n| *payloads.get(&psn.offset(n)).unwrap_or(&&[][..]))
                    .copied()
                    .collect(),
            )
        });
        let mut replay =
            Self { reads: reads.collect(), engine, qpn, cq, now: Instant::now(), sent: VecDeque::new() };
        let mut work = work.into_iter().map(|(_, wr)| wr).collect();
        replay.engine.post_send(qpn, &mut work).unwrap();
        replay.drain();
        for (number, frame) in frames.iter().enumerate() {
            replay.step(number, frame);
        }
        assert!(replay.sent.is_empty(), "{name}: more requests than in the capture");
        replay
    }

    fn step(&mut self, number: usize, frame: &Frame) {
        if !frame.is_request {
            let mut bth = Bth::parse(&frame.bytes).unwrap();
            bth.dest_qp = self.qpn;
            let bytes = [&bth.to_bytes()[..], &frame.bytes[Bth::LEN..]].concat();
            self.engine.handle_packet(self.now, 1, &roce_net(PEER, RXE), &bytes);
            return self.drain();
        }
        self.fire();
        let mut ours = self.sent.pop_front().unwrap_or_else(|| panic!("frame {number} is not sent"));
        let mut bth = Bth::parse(&ours).unwrap();
        bth.mig_req = false;
        ours[..Bth::LEN].copy_from_slice(&bth.to_bytes());
        assert!(ours == frame.bytes, "frame {number}: {:?}", TransportPacket::parse(&ours));
    }

    /// Lets time pass until a request is due, if any is.
    fn fire(&mut self) {
        while let Some(at) = self.engine.poll_timeout().filter(|_| self.sent.is_empty()) {
            self.now = at;
            self.engine.handle_timeout(at);
            self.drain();
        }
    }

    fn drain(&mut self) {
        let mut out = Vec::new();
        while self.engine.poll_transmit(self.now, &mut out).is_some() {
            self.sent.push_back(std::mem::take(&mut out));
        }
    }

    /// How the work requests ended, in the order of their ends.
    fn ends(&mut self) -> Vec<String> {
        let mut completions = Vec::new();
        self.engine.poll_cq(self.cq, &mut completions, 256);
        completions.iter().map(|completion| self.end(completion)).collect()
    }

    fn end(&self, completion: &Completion) -> String {
        let bytes: Vec<u8> = completion.sg.iter().flat_map(|buf| buf.iter().copied()).collect();
        let mut text = format!("{} {:?}", completion.id, completion.status);
        match completion.op {
            _ if !completion.status.is_ok() => {}
            CompletionOp::Read => assert_eq!(bytes, self.reads[&completion.id]),
            CompletionOp::FetchAdd | CompletionOp::CompareSwap => {
                text += &format!(" {:#x}", u64::from_ne_bytes(bytes.try_into().unwrap()));
            }
            _ => {}
        }
        text
    }
}

/// Frames of capture 31 with a peer that answers by hand.
fn probe(numbers: RangeInclusive<usize>) -> Vec<String> {
    Replay::play("31-rxe-requester-vs-raw-responder", numbers, |_, _, _| {}).ends()
}

fn all_ok(count: usize) -> Vec<String> {
    (0..count).map(|id| format!("{id} SUCCESS")).collect()
}

/// A whole capture in which all goes well but for what the peer refuses for a while.
fn whole(name: &str) -> Vec<String> {
    Replay::play(name, 1..=1000, |_, _, _| {}).ends()
}

#[test]
fn sends_writes_and_reads_between_two_rxe() {
    assert_eq!(whole("01-rc-send"), all_ok(5));
    assert_eq!(whole("02-rc-write"), all_ok(5));
    assert_eq!(whole("03-rc-read"), all_ok(5));
    assert_eq!(whole("07-rc-rnr"), all_ok(1));
    let long = Replay::play("13-rc-write-200pkt", 1..=1000, |rtr, _, _| rtr.path_mtu = Mtu::B256).ends();
    assert_eq!(long, all_ok(1));
}

#[test]
fn atomics_between_two_rxe() {
    assert_eq!(
        whole("04-rc-atomic"),
        ["0 SUCCESS 0x1000", "1 SUCCESS 0x1005", "2 SUCCESS 0x1122334455667788"]
    );
}

#[test]
fn naks_between_two_rxe() {
    assert_eq!(whole("09-rc-nak-access"), ["0 REM_ACCESS_ERR"]);
    assert_eq!(whole("10-rc-recv-too-small"), ["0 REM_OP_ERR"]);
    assert_eq!(whole("11-rc-invalid-op"), ["0 REM_INV_REQ_ERR"]);
    let mut rnr = Replay::play("08-rc-rnr-exceeded", 1..=1000, |_, rts, _| rts.rnr_retry = 1);
    assert_eq!(rnr.ends(), ["0 RNR_RETRY_EXC_ERR", "1 WR_FLUSH_ERR"]);
}

#[test]
fn timeouts() {
    let mut dead = Replay::play("12-rc-timeout", 1..=1000, |_, rts, _| rts.retry_count = 2);
    assert!(dead.ends().is_empty());
    dead.fire();
    assert_eq!(dead.ends(), ["0 RETRY_EXC_ERR"]);
    let mut r1 = Replay::play("31-rxe-requester-vs-raw-responder", 1..=4, |_, _, _| {});
    r1.fire();
    assert_eq!(r1.ends(), ["0 RETRY_EXC_ERR"]);
}

#[test]
fn acknowledgements_of_a_raw_responder() {
    // R2, R3, R4, R5
    assert_eq!(probe(5..=10), all_ok(5));
    assert_eq!(probe(11..=17), all_ok(5));
    assert_eq!(probe(18..=27), all_ok(5));
    assert_eq!(probe(28..=35), all_ok(3));
    // R8, R15, S1
    assert_eq!(probe(52..=56)[..], all_ok(3)[..]);
    assert!(probe(213..=215).is_empty(), "rxe takes an ACK of what was not sent; we do not");
    assert_eq!(Replay::play("33-keys-read-length-uc", 1..=2, |_, _, _| {}).ends(), all_ok(1));
}

#[test]
fn naks_of_a_raw_responder() {
    // R6, R7; of the reserved ones nothing follows (rxe: errors, and one success).
    assert_eq!(probe(36..=39), ["0 SUCCESS", "1 REM_ACCESS_ERR", "2 WR_FLUSH_ERR"]);
    assert_eq!(probe(40..=41), ["0 REM_INV_REQ_ERR"]);
    assert_eq!(probe(42..=43), ["0 REM_OP_ERR"]);
    for reserved in [44, 46, 48, 50] {
        assert!(probe(reserved..=reserved + 1).is_empty());
    }
    // R14
    let mut r14 = Replay::play("31-rxe-requester-vs-raw-responder", 210..=212, |_, rts, _| rts.rnr_retry = 0);
    assert_eq!(r14.ends(), ["0 RNR_RETRY_EXC_ERR", "1 WR_FLUSH_ERR"]);
}

#[test]
fn reads_from_a_raw_responder() {
    // R10, R11, R12, R13, R16
    let mut r10 =
        Replay::play("31-rxe-requester-vs-raw-responder", 184..=193, |_, rts, _| rts.max_rd_atomic = 2);
    assert_eq!(r10.ends(), all_ok(5));
    assert_eq!(probe(194..=199), all_ok(1));
    assert_eq!(probe(200..=202), all_ok(2));
    assert!(probe(203..=209).is_empty());
    let mut r16 = Replay::play("31-rxe-requester-vs-raw-responder", 216..=219, |_, _, work| {
        work[1].1.flags |= SendFlags::FENCE;
    });
    assert_eq!(r16.ends(), all_ok(2));
    // S6, S7: rxe hangs at the first.
    for short_or_long in [10..=11, 12..=13] {
        let mut read = Replay::play("33-keys-read-length-uc", short_or_long, |_, _, _| {});
        assert_eq!(read.ends(), ["0 LOC_LEN_ERR"]);
    }
}

#[test]
fn unsignaled_work_and_scattered_buffers() {
    // R17, R18, S8
    let silent = |count: usize| {
        move |_: &mut Rtr, _: &mut Rts, work: &mut [(Psn, SendWr)]| {
            work[..count].iter_mut().for_each(|(_, wr)| wr.flags -= SendFlags::SIGNALED);
        }
    };
    let r17 = Replay::play("31-rxe-requester-vs-raw-responder", 220..=224, silent(3)).ends();
    assert_eq!(r17, ["3 SUCCESS"]);
    let r18 = Replay::play("31-rxe-requester-vs-raw-responder", 225..=227, silent(2)).ends();
    assert_eq!(r18, ["0 REM_ACCESS_ERR", "1 WR_FLUSH_ERR"]);
    let s8 = Replay::play("33-keys-read-length-uc", 14..=16, |_, _, work| {
        let message: Vec<u8> = work[0].1.sg.iter().flat_map(|buf| buf.iter().copied()).collect();
        let parts = [&message[..3], &[], &message[3..]];
        work[0].1.sg = parts.map(Vec::from).into_iter().map(buf_of).collect();
    })
    .ends();
    assert_eq!(s8, all_ok(1));
}

fn buf_of(bytes: Vec<u8>) -> Buf {
    let mut buf = Buf::unregistered(bytes.len());
    buf.copy_from_slice(&bytes);
    buf
}
