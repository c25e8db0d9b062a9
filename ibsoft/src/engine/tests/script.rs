//! A scripted peer. P talks to D, the device under test, in the notation of spec/softhca.md section 7.
//!
//! ```text
//! P > SEND_ONLY 1000 A=0          P sends; defaults: A=1, len=16, and what a correct packet has
//! P >> SEND_ONLY 1001             the same, and another packet follows in the same batch
//! P > ACK 5001 | P > NAK 0x60 5001 | P > RNR 26 5001
//! D > ACK 1001 MSN=2              D sends exactly this, and nothing before it
//! D > SEND_ONLY 5000 A=1 len=16
//! D : recv 0 SUCCESS len=16       the next completion
//! D ! CommEstablished             the next asynchronous event
//! P > RDMA_WRITE_ONLY 1000 va=8   to D's region from byte 8 on; dma=, key=, add=, compare=, swap= likewise
//! memory 8 len=16 tag=1000        D's region has the bytes of P's packet 1000 there
//! word 8 105                      D's region has this number there
//! read 0 len=3000                 the READ responses since the last such line are these bytes of D's region
//! send 7 len=16                   D posts work request 7; `recv` likewise. Of sends: imm=, SE=1, FENCE=1, SIGNALED=0,
//!                                 sge=3,0,1022 instead of len=
//! get 7 len=3000 va=8             D posts an RDMA read from byte 8 of P's memory; `put` writes there
//! add 7 add=5                     D posts a fetch-and-add; `cas 7 compare=1 swap=2` likewise
//! P > RDMA_READ_RESPONSE_ONLY 5000 len=16 at=8    P answers with its memory from byte 8 on
//! P > ATOMIC_ACKNOWLEDGE 5000 original=100
//! D : read 7 SUCCESS len=3000     the read brought what P has in its memory
//! P > SEND_ONLY 1000 M=0 via=2    without the migration bit, by the alternate path; D's packets likewise
//! modify RTS                      `modify alternate` loads the alternate path, `modify migrate` migrates
//! wait 16.8ms
//! count drop_pkey 1
//! ```
//!
//! Whatever D sends, completes or reports without being expected fails the test.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ibdev::qp::{AlternatePath, QpType, Rtr, Rts, Transition};
use ibdev::{
    Completion, CompletionOp, DeviceEvent, PostError, RemoteAddr, SendFlags, SendOp, SendWr, SharedMemory,
};
use ibwire::packet::{
    Aeth, AtomicAckEth, AtomicEth, Bth, ImmDt, Opcode, Reth, Syndrome, SyndromeKind, TransportPacket,
};
use ibwire::{Msn, PKey, Psn, Qpn, RKey};

use super::super::{CqId, DomainId, Engine, EngineEvent, QpCreate};
use super::*;

pub(super) const D: &str = "10.77.0.2";
pub(super) const P: &str = "10.77.0.1";
/// The ends of the alternate path, from D's port 2.
pub(super) const D2: &str = "10.78.0.2";
pub(super) const P2: &str = "10.78.0.1";
/// P's QP.
pub(super) const P_QPN: Qpn = Qpn::truncate(0x11);

/// Length of D's region, and what is in it at first.
pub(super) const REGION: usize = 4096;
pub(super) const REGION_TAG: u64 = 77;

/// Where P's memory begins, its key, and what is in it.
const P_MEMORY: RemoteAddr = RemoteAddr { addr: 0x10_0000, rkey: RKey(0xabcd_ef01) };
const P_TAG: u64 = 55;

/// The device under test with one connected QP: PMTU 1024, it expects PSN 1000 and sends from 5000.
pub(super) struct Dut {
    pub(super) engine: Engine,
    pub(super) qpn: Qpn,
    pub(super) now: Instant,
    cq: CqId,
    rts: Rts,
    pub(super) memory: SharedMemory,
    pub(super) rkey: RKey,
    addr: u64,
    /// Payloads of READ responses.
    read: Vec<u8>,
    /// Where D's own reads begin in P's memory, by the work requests' ids.
    gets: BTreeMap<u64, u64>,
    packets: VecDeque<String>,
    completions: VecDeque<Completion>,
    events: VecDeque<DeviceEvent>,
}

impl Dut {
    /// In RTS.
    pub(super) fn new() -> Self {
        Self::with(|_, _| {})
    }

    /// In RTS with other attributes.
    pub(super) fn with(change: impl FnOnce(&mut Rtr, &mut Rts)) -> Self {
        let mut dut = Self::in_rtr(change);
        dut.run("modify RTS");
        dut
    }

    /// In RTR.
    pub(super) fn in_rtr(change: impl FnOnce(&mut Rtr, &mut Rts)) -> Self {
        Self::made(|_, _| {}, Access::all(), change)
    }

    /// In RTS, with a peer that may do this.
    pub(super) fn allowing(access: Access) -> Self {
        let mut dut = Self::made(|_, _| {}, access, |_, _| {});
        dut.run("modify RTS");
        dut
    }

    /// In RTR, with a QP that is created otherwise.
    pub(super) fn made(
        create: impl FnOnce(&mut Engine, &mut QpCreate),
        access: Access,
        change: impl FnOnce(&mut Rtr, &mut Rts),
    ) -> Self {
        let attr = device_attr("soft", Guid(1), 2);
        let mut engine = Engine::new(Config::new(attr, vec![roce_port(D), roce_port(D2)], [1; 32]));
        let cq = engine.create_cq(1024).unwrap();
        let mut spec = QpCreate { max_sge: 4, ..QpCreate::new(QpType::Rc, cq, 512, 512) };
        create(&mut engine, &mut spec);
        let qpn = engine.create_qp(&spec).unwrap();
        let (mut rtr, mut rts) = (rtr(roce_av(P), P_QPN, 1000), rts(5000));
        change(&mut rtr, &mut rts);
        engine.modify(qpn, Transition::Init(Init { access, ..INIT })).unwrap();
        engine.modify(qpn, Transition::Rtr(rtr)).unwrap();
        let memory = SharedMemory::zeroed(REGION);
        memory.copy_from(0, &message(REGION_TAG, REGION)).unwrap();
        let (rkey, addr) = engine.register(spec.domain, memory.clone(), Access::all()).unwrap();
        Self {
            memory,
            rkey,
            addr,
            read: Vec::new(),
            gets: BTreeMap::new(),
            engine,
            qpn,
            now: Instant::now(),
            cq,
            rts,
            packets: VecDeque::new(),
            completions: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Posts receives 0..`count` of `len` bytes.
    pub(super) fn receives(mut self, count: u64, len: usize) -> Self {
        self.engine.post_recv(self.qpn, &mut (0..count).map(|id| recv(id, len)).collect()).unwrap();
        self
    }

    /// Runs a script and checks that nothing is left over.
    pub(super) fn run(&mut self, script: &str) {
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            self.step(line);
        }
        self.no_packet("the end");
        assert!(self.completions.is_empty(), "unexpected {:?}", self.completions);
        assert!(self.events.is_empty(), "unexpected {:?}", self.events);
    }

    fn step(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["P", ">", ..] => {
                self.no_packet(line);
                self.peer_sends(&words[2..]);
                self.drain();
            }
            ["P", ">>", ..] => self.peer_sends(&words[2..]),
            ["D", ">", ..] => assert_eq!(self.packets.pop_front().as_deref(), Some(&line[4..]), "at {line}"),
            ["D", ":", ..] => {
                let got = self.completions.pop_front().map(|completion| self.describe(completion));
                assert_eq!(got.as_deref(), Some(&line[4..]), "at {line}");
            }
            ["D", "!", event] => {
                let expected = match event {
                    "CommEstablished" => DeviceEvent::CommEstablished(self.qpn),
                    "QpError" => DeviceEvent::QpError(self.qpn),
                    "SqDrained" => DeviceEvent::SqDrained(self.qpn),
                    "QpAccessError" => DeviceEvent::QpAccessError(self.qpn),
                    "QpRequestError" => DeviceEvent::QpRequestError(self.qpn),
                    "PathMigrated" => DeviceEvent::PathMigrated(self.qpn),
                    "PathMigrationFailed" => DeviceEvent::PathMigrationFailed(self.qpn),
                    "LastWqeReached" => DeviceEvent::LastWqeReached(self.qpn),
                    _ => panic!("event in {line}"),
                };
                assert_eq!(self.events.pop_front(), Some(expected), "at {line}");
            }
            [op @ ("send" | "put" | "get" | "add" | "cas"), id, ..] => {
                let wr = self.request(op, number(id), &Args::new(&words[2..]));
                self.engine
                    .post_send(self.qpn, &mut one(wr))
                    .unwrap_or_else(|error| panic!("{line}: {error}"));
                self.drain();
            }
            ["recv", id, ..] => {
                let len = Args::new(&words[2..]).number("len").unwrap_or(4096) as usize;
                self.engine.post_recv(self.qpn, &mut one(recv(number(id), len))).unwrap();
                self.drain();
            }
            ["memory", at, ..] => {
                let args = Args::new(&words[2..]);
                let len = args.number("len").unwrap() as usize;
                let bytes = self.bytes(number(at) as usize, len);
                assert!(bytes == message(args.number("tag").unwrap(), len)[..], "at {line}: {bytes:?}");
            }
            ["word", at, value] => {
                let bytes = self.bytes(number(at) as usize, 8);
                assert_eq!(u64::from_ne_bytes(bytes.try_into().unwrap()), number(value), "at {line}");
            }
            ["read", at, ..] => {
                let len = Args::new(&words[2..]).number("len").unwrap() as usize;
                assert!(self.bytes(number(at) as usize, len) == std::mem::take(&mut self.read), "at {line}");
            }
            ["modify", state] => {
                let transition = match state {
                    "RTS" => Transition::Rts(self.rts),
                    "ERR" => Transition::Error,
                    "RESET" => Transition::Reset,
                    "SQD" => Transition::SqDrain,
                    "resume" => Transition::SqResume,
                    "alternate" => Transition::LoadPath(alternate()),
                    "migrate" => Transition::Migrate,
                    _ => panic!("state in {line}"),
                };
                drop(self.engine.modify(self.qpn, transition).unwrap());
                self.drain();
            }
            ["wait", time] => {
                self.no_packet(line);
                self.wait(parse_duration(time));
            }
            ["count", name, count] => {
                let counted = self.engine.counters().named().find(|&(n, _)| n == name);
                assert_eq!(counted.map(|(_, n)| n), Some(number(count)), "at {line}");
            }
            _ => panic!("not understood: {line}"),
        }
    }

    pub(super) fn cq(&self) -> CqId {
        self.cq
    }

    /// Registers D's memory anew.
    pub(super) fn expose(&mut self, domain: DomainId, access: Access) {
        (self.rkey, self.addr) = self.engine.register(domain, self.memory.clone(), access).unwrap();
    }

    /// The address of D's region.
    pub(super) fn addr(&self) -> u64 {
        self.addr
    }

    /// P sends a packet, whatever comes of it. Returns the syndromes of the answers.
    pub(super) fn peer(&mut self, packet: &str) -> Vec<u8> {
        self.peer_sends(&packet.split_whitespace().collect::<Vec<_>>());
        let (mut out, mut syndromes) = (Vec::new(), Vec::new());
        while self.engine.poll_transmit(self.now, &mut out).is_some() {
            let aeth = TransportPacket::parse(&out).unwrap().aeth();
            syndromes.extend(aeth.map(|aeth| aeth.syndrome.0));
            out.clear();
        }
        syndromes
    }

    /// Bytes of D's region.
    pub(super) fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.copy_to(at, &mut bytes).unwrap();
        bytes
    }

    /// D's region has never been written to.
    pub(super) fn untouched(&self) {
        assert!(self.bytes(0, REGION) == message(REGION_TAG, REGION)[..]);
    }

    fn no_packet(&self, line: &str) {
        assert!(self.packets.is_empty(), "unexpected before {line}: {:?}", self.packets);
    }

    fn request(&mut self, op: &str, id: u64, args: &Args<'_>) -> SendWr {
        let imm = args.number("imm").map(|imm| imm as u32);
        let va = args.number("va").unwrap_or(0);
        let remote = RemoteAddr { addr: P_MEMORY.addr.wrapping_add(va), ..P_MEMORY };
        let value = |key| args.number(key).unwrap_or(0);
        let (op, len) = match op {
            "send" => (SendOp::Send { imm }, 16),
            "put" => (SendOp::Write { to: remote, imm }, 16),
            "get" => {
                self.gets.insert(id, va);
                (SendOp::Read { from: remote }, 16)
            }
            "add" => (SendOp::FetchAdd { at: remote, add: value("add") }, 8),
            _ => (SendOp::CompareSwap { at: remote, compare: value("compare"), swap: value("swap") }, 8),
        };
        let mut wr = SendWr { op, ..send(id, args.number("len").unwrap_or(len) as usize, None) };
        if let Some(sge) = args.text("sge") {
            wr.sg = sge.split(',').map(|len| message(id, number(len) as usize)).collect();
        }
        wr.flags.set(SendFlags::SOLICITED, args.number("SE") == Some(1));
        wr.flags.set(SendFlags::FENCE, args.number("FENCE") == Some(1));
        wr.flags.set(SendFlags::SIGNALED, args.number("SIGNALED") != Some(0));
        wr
    }

    pub(super) fn post_send(&mut self, id: u64) -> Result<(), PostError> {
        self.engine.post_send(self.qpn, &mut one(send(id, 16, None)))
    }

    /// Lets time pass, calling in when the engine asks for it.
    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.engine.poll_timeout().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.engine.handle_timeout(self.now);
            self.drain();
        }
        self.now = end;
    }

    /// `OPCODE PSN key=value …`
    fn peer_sends(&mut self, words: &[&str]) {
        let (opcode, aeth, psn, rest) = match words {
            ["ACK", psn, rest @ ..] => {
                let credits = Args::new(rest).number("credits").unwrap_or(31) as u8;
                (Opcode::RC_ACKNOWLEDGE, Some(Syndrome(credits)), psn, rest)
            }
            ["NAK", syndrome, psn, rest @ ..] => {
                (Opcode::RC_ACKNOWLEDGE, Some(Syndrome(number(syndrome) as u8)), psn, rest)
            }
            ["RNR", timer, psn, rest @ ..] => {
                (Opcode::RC_ACKNOWLEDGE, Some(Syndrome(0x20 | number(timer) as u8)), psn, rest)
            }
            [name, psn, rest @ ..] => (opcode(name), None, psn, rest),
            _ => panic!("no packet: {words:?}"),
        };
        let args = Args::new(rest);
        let is_bare =
            opcode.is_response() || opcode == Opcode::RC_RDMA_READ_REQUEST || opcode.has_atomic_eth();
        let len = if is_bare { 0 } else { 16 };
        let len = args.number("len").map_or(len, |len| len as usize);
        let payload = match args.number("at") {
            Some(at) => p_memory(at as usize, len),
            None => message(number(psn), len).to_vec(),
        };
        let bth = Bth {
            ack_req: args.number("A") != Some(0) && !opcode.is_response(),
            mig_req: args.number("M") != Some(0),
            pkey: args.number("pkey").map_or(PKey::DEFAULT, |pkey| PKey(pkey as u16)),
            version: args.number("tver").unwrap_or(0) as u8,
            reserved4: args.number("byte4").unwrap_or(0) as u8 & 0x3f,
            fecn: args.number("byte4").unwrap_or(0) & 0x80 != 0,
            pad: Bth::pad_for(payload.len()),
            ..Bth::new(opcode, args.number("qpn").map_or(self.qpn, qpn), Psn::truncate(number(psn) as u32))
        };
        let mut bytes = bth.to_bytes().to_vec();
        let mut extended = vec![0; opcode.headers_len()];
        if let Some(syndrome) = args.number("syndrome") {
            extended[0] = syndrome as u8;
        }
        if let Some(syndrome) = aeth {
            let msn = Msn::truncate(args.number("MSN").unwrap_or(0) as u32);
            extended = Aeth::new(syndrome, msn).to_bytes().to_vec();
        }
        let va = self.addr.wrapping_add(args.number("va").unwrap_or(0));
        let rkey = args.number("key").map_or(self.rkey, |key| RKey(key as u32));
        if opcode.has_reth() {
            let len = args.number("dma").map_or(payload.len() as u32, |len| len as u32);
            extended[..Reth::LEN].copy_from_slice(&Reth { va, rkey, len }.to_bytes());
        }
        if opcode.has_atomic_eth() {
            let swap_or_add = args.number("add").or(args.number("swap")).unwrap_or(0);
            let compare = args.number("compare").unwrap_or(0);
            extended = AtomicEth { va, rkey, swap_or_add, compare }.to_bytes().to_vec();
        }
        if opcode.has_atomic_ack() {
            let original = args.number("original").unwrap();
            extended[Aeth::LEN..].copy_from_slice(&AtomicAckEth { original }.to_bytes());
        }
        if let Some(imm) = args.number("imm") {
            let at = extended.len() - ImmDt::LEN;
            extended[at..].copy_from_slice(&ImmDt::from_u32(imm as u32).to_bytes());
        }
        bytes.extend_from_slice(&extended);
        bytes.extend_from_slice(&payload);
        bytes.resize(bytes.len() + usize::from(bth.pad), 0);
        let (port, from, to) = match args.number("via") {
            Some(2) => (2, P2, D2),
            _ => (1, P, D),
        };
        let net = roce_net(args.text("from").unwrap_or(from), args.text("to").unwrap_or(to));
        self.engine.handle_packet(self.now, port, &net, &bytes);
    }

    /// Takes what D has: packets, completions, events.
    pub(super) fn drain(&mut self) {
        const ROOM: usize = 4;
        let mut out = Vec::new();
        while let Some(egress) = self.engine.poll_run(self.now, &mut out, ROOM) {
            let stride = egress.len + ROOM;
            assert_eq!(egress.packets * stride, out.len());
            let route = egress.net.route.unwrap();
            let (ends, via) = match egress.port {
                2 => ((gid(D2), gid(P2)), " via=2"),
                _ => ((gid(D), gid(P)), ""),
            };
            assert_eq!((egress.qpn, route.sgid, route.dgid), (self.qpn, ends.0, ends.1));
            for bytes in out.chunks_exact(stride) {
                let (bytes, room) = bytes.split_at(egress.len);
                assert_eq!(room, [0; ROOM]);
                let packet = TransportPacket::parse(bytes).unwrap();
                if packet.bth().opcode.is_response() {
                    self.read.extend_from_slice(packet.payload());
                }
                self.packets.push_back(describe_packet(bytes) + via);
            }
            out.clear();
        }
        while let Some(event) = self.engine.poll_event() {
            match event {
                EngineEvent::Device(event) => self.events.push_back(event),
                EngineEvent::CqReady(cq) => assert_eq!(cq, self.cq),
                other => panic!("{other:?}"),
            }
        }
        let mut completions = Vec::new();
        while self.engine.poll_cq(self.cq, &mut completions, 3) > 0 {}
        self.completions.extend(completions);
    }

    fn describe(&self, completion: Completion) -> String {
        assert_eq!(completion.qpn, self.qpn);
        let mut text =
            format!("{:?} {} {:?}", completion.op, completion.id, completion.status).to_lowercase();
        let status = text.split_off(text.rfind(' ').unwrap()).to_uppercase();
        text.push_str(&status);
        let bytes = || completion.sg.iter().flat_map(|buf| buf.iter().copied()).collect::<Vec<u8>>();
        match completion.op {
            _ if !completion.status.is_ok() => {}
            CompletionOp::Read => {
                let from = self.gets[&completion.id] as usize;
                assert!(
                    bytes() == p_memory(from, completion.len as usize),
                    "what was read by {}",
                    completion.id
                );
                text.push_str(&format!(" len={}", completion.len));
            }
            CompletionOp::FetchAdd | CompletionOp::CompareSwap => {
                let original = u64::from_ne_bytes(bytes()[..8].try_into().unwrap());
                assert_eq!(completion.len, 8);
                text.push_str(&format!(" original={original}"));
            }
            _ => {}
        }
        if completion.status.is_ok() && completion.op.is_recv() {
            let filled: usize = completion.sg.iter().map(|buf| buf.len()).sum();
            let placed = if completion.op == CompletionOp::Recv { completion.len } else { 0 };
            assert_eq!(filled, placed as usize);
            text.push_str(&format!(" len={}", completion.len));
            if let Some(imm) = completion.imm {
                text.push_str(&format!(" imm={imm:#x}"));
            }
        }
        text
    }
}

/// The path from D's port 2.
pub(super) fn alternate() -> AlternatePath {
    let av = AddressVector { port: 2, ..roce_av(P2) };
    AlternatePath { av, pkey_index: 0, timeout: TimeCode::truncate(15) }
}

/// Bytes of P's memory.
fn p_memory(at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|i| pattern(P_TAG, i)).collect()
}

/// A packet of D in the notation, after checks that hold for all of them.
fn describe_packet(bytes: &[u8]) -> String {
    let packet = TransportPacket::parse(bytes).unwrap();
    let bth = packet.bth();
    assert_eq!((bth.dest_qp, bth.pkey), (P_QPN, PKey::DEFAULT));
    describe(&packet, bytes) + if bth.mig_req { "" } else { " M=0" }
}

fn describe(packet: &TransportPacket<'_>, bytes: &[u8]) -> String {
    let bth = packet.bth();
    assert_eq!(bth.pad, Bth::pad_for(packet.payload().len()));
    assert_eq!(bytes.len() % 4, 0);
    let psn = bth.psn.get();
    if let Some(Aeth { syndrome, msn }) = packet.aeth() {
        assert!(!bth.ack_req && !bth.solicited);
        if bth.opcode != Opcode::RC_ACKNOWLEDGE {
            assert_eq!(syndrome, Syndrome::ACK);
            let name = &bth.opcode.to_string()[3..];
            return match packet.atomic_ack() {
                Some(ack) => format!("{name} {psn} MSN={msn} original={}", ack.original),
                None => format!("{name} {psn} MSN={msn} len={}", packet.payload().len()),
            };
        }
        assert!(packet.payload().is_empty());
        return match syndrome.kind() {
            SyndromeKind::Rnr(timer) => format!("RNR {} {psn} MSN={msn}", timer.get()),
            SyndromeKind::Ack(_) => {
                assert_eq!(syndrome, Syndrome::ACK);
                format!("ACK {psn} MSN={msn}")
            }
            _ => format!("NAK {:#x} {psn} MSN={msn}", syndrome.0),
        };
    }
    let mut text = format!(
        "{} {psn} A={} len={}",
        &bth.opcode.to_string()[3..],
        u8::from(bth.ack_req),
        packet.payload().len()
    );
    if bth.pad > 0 {
        text.push_str(&format!(" pad={}", bth.pad));
    }
    if bth.solicited {
        text.push_str(" SE=1");
    }
    if let Some(Reth { va, rkey, len }) = packet.reth() {
        assert_eq!(rkey, P_MEMORY.rkey);
        text.push_str(&format!(" va={} dma={len}", va.wrapping_sub(P_MEMORY.addr)));
    }
    if let Some(AtomicEth { va, rkey, swap_or_add, compare }) = packet.atomic_eth() {
        assert_eq!(rkey, P_MEMORY.rkey);
        let va = va.wrapping_sub(P_MEMORY.addr);
        text.push_str(&format!(" va={va} swap_or_add={swap_or_add} compare={compare}"));
    }
    if let Some(imm) = packet.immdt() {
        text.push_str(&format!(" imm={:#x}", imm.to_u32()));
    }
    text
}

/// The opcode with this number, or with this name in RC.
fn opcode(name: &str) -> Opcode {
    if name.starts_with("0x") {
        return Opcode(number(name) as u8);
    }
    let full = format!("RC_{name}");
    (0..=255)
        .map(Opcode)
        .find(|opcode| opcode.name() == Some(&full))
        .unwrap_or_else(|| panic!("opcode {name}"))
}

fn qpn(number: u64) -> Qpn {
    Qpn::new(number as u32).unwrap()
}

fn number(text: &str) -> u64 {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    number.unwrap_or_else(|| panic!("number {text}"))
}

fn parse_duration(text: &str) -> Duration {
    let (text, scale) = match text.strip_suffix("ms") {
        Some(text) => (text, 1e-3),
        None => (text.strip_suffix('s').unwrap(), 1.0),
    };
    Duration::from_nanos((text.parse::<f64>().unwrap() * scale * 1e9).round() as u64)
}

struct Args<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Args<'a> {
    fn new(words: &[&'a str]) -> Self {
        Self(words.iter().map(|word| word.split_once('=').unwrap_or_else(|| panic!("{word}"))).collect())
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        self.0.get(key).copied()
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.text(key).map(number)
    }
}
