//! A device with a QP of each kind, and what an observer knows of it.

use std::any::Any;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ibdev::qp::{AlternatePath, Init, QpType, Rtr, Rts, Transition};
use ibdev::{
    Access, AddressHandle, AddressVector, AgentSpec, Completion, DatagramDest, GidEntry, GidKind,
    GlobalRoute, LinkLayer, MAD_LEN, MadAddr, OutgoingMad, PortAttr, PortState, RecvWr, RemoteAddr,
    SendFlags, SendOp, SendWr, SgList, SharedMemory, Status,
};
use ibsoft::engine::{
    AgentId, Config, Counters, CqId, DomainId, Engine, NetHeader, NetRoute, PortConfig, QpCreate, SrqId,
    device_attr,
};
use ibwire::mad::{Method, MgmtClass};
use ibwire::packet::{Bth, Opcode};
use ibwire::{
    FlowLabel, Gid, Guid, Lid, Mtu, PKey, Psn, QKey, Qpn, RKey, Rate, RnrTimer, ServiceLevel, TimeCode,
};

/// Two reliable connections, of which the second takes its receives from a shared queue, an unreliable one, datagrams.
pub(super) const KINDS: [QpType; 4] = [QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud];
pub(super) const QPS: usize = KINDS.len();
/// The QP that uses the shared queue, and the number that stands for that queue.
const SHARED: usize = 1;
pub(super) const QKEY: QKey = QKey(0x1234);

const PEER: [u8; 4] = [10, 77, 0, 1];
const HERE: [u8; 4] = [10, 77, 0, 2];
const OTHER: [u8; 4] = [10, 77, 0, 3];
/// First PSNs: the peer's, ours.
const PSNS: [Psn; 2] = [Psn::truncate(0xff_fff0), Psn::truncate(0xff_fffd)];
const DEPTH: u32 = 16;
/// More than all answers together can be, with a window of requests.
const MOST_PACKETS: usize = 50_000;

pub(super) const REGIONS: usize = 4;
const REGION_LEN: usize = 9000;
/// Their rights. The last one is of a domain that has no QP.
const ACCESS: [Access; REGIONS] =
    [Access::all(), Access::REMOTE_READ, Access::REMOTE_READ.union(Access::REMOTE_ATOMIC), Access::all()];
/// Those that nobody may write to.
const READ_ONLY: [usize; 2] = [1, 3];

#[derive(Debug)]
struct Ah(AddressVector);

impl AddressHandle for Ah {
    fn av(&self) -> &AddressVector {
        &self.0
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A QP and its work that has not completed.
#[derive(Debug)]
struct Qp {
    qpn: Qpn,
    sends: VecDeque<(u64, bool)>,
    receives: VecDeque<u64>,
    /// The PSN behind the last request that was answered, and that of the last one we sent.
    expected: Psn,
    sent: Psn,
}

#[derive(Debug)]
struct Region {
    memory: SharedMemory,
    domain: DomainId,
    at: RemoteAddr,
    is_registered: bool,
}

pub(super) struct World {
    engine: Engine,
    now: Instant,
    cq: CqId,
    srq: SrqId,
    agent: AgentId,
    qps: Vec<Qp>,
    shared: BTreeSet<u64>,
    regions: Vec<Region>,
    next_id: u64,
    /// Whether packets that came together are handed in one by one all the same.
    singly: bool,
    /// Whether there were any.
    pub(super) had_runs: bool,
}

/// What a world comes to: the counters of its engine, and what is in the memory.
#[derive(Debug, PartialEq)]
pub(super) struct End {
    pub(super) counters: Counters,
    memory: Vec<Vec<u8>>,
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7) as u8).collect()
}

impl World {
    pub(super) fn new(singly: bool) -> Self {
        let mut config = Config::new(device_attr("fuzz", Guid(1), 1), vec![port(PortState::Active)], [9; 32]);
        config.mad_recv_queue = 8;
        let mut engine = Engine::new(config);
        let cq = engine.create_cq(2 * DEPTH * (QPS as u32 + 1)).expect("within the limits");
        let srq = engine.create_srq(DomainId::DEFAULT, DEPTH, 2).expect("within the limits");
        let domains = [DomainId::DEFAULT; REGIONS - 1];
        let foreign = engine.create_domain().expect("within the limits");
        let regions = domains.into_iter().chain([foreign]).map(|domain| Region {
            memory: SharedMemory::zeroed(REGION_LEN),
            domain,
            at: RemoteAddr { addr: 0, rkey: RKey(0) },
            is_registered: false,
        });
        let regions = regions.collect();
        let spec = AgentSpec { port: 1, class: MgmtClass::CM, class_version: 2, methods: &[Method::SEND] };
        let agent = engine.open_agent(spec).expect("the first");
        let mut world = Self {
            engine,
            now: Instant::now(),
            cq,
            srq,
            agent,
            qps: Vec::new(),
            shared: BTreeSet::new(),
            regions,
            next_id: 0,
            singly,
            had_runs: false,
        };
        for (i, kind) in KINDS.into_iter().enumerate() {
            let srq = (i == SHARED).then_some(srq);
            let create = QpCreate { srq, max_sge: 3, ..QpCreate::new(kind, cq, DEPTH, DEPTH) };
            let qpn = world.engine.create_qp(&create).expect("within the limits");
            let [expected, sent] = PSNS;
            let (sends, receives) = (VecDeque::new(), VecDeque::new());
            world.qps.push(Qp { qpn, sends, receives, expected, sent });
            world.connect(i);
        }
        for region in 0..REGIONS {
            world.regions[region].memory.copy_from(0, &pattern(REGION_LEN)).expect("inside");
            world.toggle_region(region);
        }
        world
    }

    pub(super) fn qpn(&self, qp: usize) -> Qpn {
        self.qps[qp].qpn
    }

    pub(super) fn remote(&self, region: usize) -> RemoteAddr {
        self.regions[region].at
    }

    pub(super) fn start_psn(&self, opcode: Opcode) -> Psn {
        PSNS[usize::from(opcode.is_response())]
    }

    pub(super) fn next_psn(&self, qp: usize, opcode: Opcode) -> Psn {
        let qp = &self.qps[qp];
        if opcode.is_response() { qp.sent } else { qp.expected }
    }

    pub(super) fn datagram_dest(&self) -> DatagramDest {
        DatagramDest { ah: Arc::new(Ah(av())), qpn: Qpn::truncate(9), qkey: QKEY }
    }

    pub(super) fn deliver(&mut self, is_foreign: bool, bytes: &[u8]) {
        self.engine.handle_packet(self.now, 1, &net(is_foreign), bytes);
    }

    /// Packets of one length, `room` bytes behind each; some are missing behind the last.
    pub(super) fn deliver_together(
        &mut self,
        is_foreign: bool,
        packets: &[Vec<u8>],
        room: usize,
        missing: usize,
    ) {
        let Some(len) = packets.first().map(Vec::len) else { return };
        let mut bytes = Vec::new();
        for packet in packets {
            bytes.extend_from_slice(packet);
            bytes.resize(bytes.len() + room, 0xa5);
        }
        bytes.truncate(bytes.len().saturating_sub(missing));
        self.had_runs = true;
        let before = self.engine.counters().rx_packets;
        if self.singly {
            for bytes in bytes.chunks((len + room).max(1)) {
                self.engine.handle_packet(self.now, 1, &net(is_foreign), &bytes[..len.min(bytes.len())]);
            }
        } else {
            self.engine.handle_run(self.now, 1, &net(is_foreign), &bytes, (len, room));
        }
        let handled = self.engine.counters().rx_packets - before;
        assert_eq!(handled, bytes.len().div_ceil((len + room).max(1)) as u64, "each is handled once");
    }

    pub(super) fn post_send(&mut self, qp: usize, op: SendOp, flags: SendFlags, sg: SgList) {
        let id = self.next_id;
        let Qp { qpn, sends, .. } = &mut self.qps[qp];
        let mut work = VecDeque::from([SendWr { id, op, sg, flags }]);
        if self.engine.post_send(*qpn, &mut work).is_ok() {
            assert!(work.is_empty());
            sends.push_back((id, flags.contains(SendFlags::SIGNALED)));
            self.next_id += 1;
        }
    }

    /// To a QP, or to the shared queue.
    pub(super) fn post_recv(&mut self, to: usize, sg: SgList) {
        let id = self.next_id;
        let mut work = VecDeque::from([RecvWr { id, sg }]);
        let posted = match self.qps.get_mut(to) {
            Some(qp) => self.engine.post_recv(qp.qpn, &mut work).map(|()| qp.receives.push_back(id)).is_ok(),
            None => self.engine.post_srq_recv(self.srq, &mut work).map(|()| self.shared.insert(id)).is_ok(),
        };
        self.next_id += u64::from(posted);
    }

    pub(super) fn poll(&mut self, max: usize) {
        let mut completions = Vec::new();
        self.engine.poll_cq(self.cq, &mut completions, max);
        for completion in completions {
            self.complete(&completion);
        }
    }

    fn complete(&mut self, completion: &Completion) {
        let at = self.qps.iter().position(|qp| qp.qpn == completion.qpn).expect("a QP of this device");
        let qp = &mut self.qps[at];
        if !completion.op.is_recv() {
            loop {
                let (id, is_signaled) = qp.sends.pop_front().expect("it was posted, and has not completed");
                if id == completion.id {
                    assert!(is_signaled || completion.status != Status::SUCCESS, "{completion:?}");
                    return;
                }
                assert!(!is_signaled, "{completion:?} before {id}");
            }
        }
        if at == SHARED {
            assert!(self.shared.remove(&completion.id), "{completion:?}");
        } else {
            assert_eq!(qp.receives.pop_front(), Some(completion.id), "{completion:?}");
        }
    }

    pub(super) fn wait(&mut self, ms: u16) {
        self.now = match self.engine.poll_timeout() {
            Some(at) if ms & 1 != 0 => at.max(self.now),
            _ => self.now + Duration::from_millis(ms.into()),
        };
        self.engine.handle_timeout(self.now);
    }

    pub(super) fn transition(&mut self, qp: usize, transition: Transition) {
        if let Ok(bufs) = self.engine.modify(self.qps[qp].qpn, transition) {
            assert!(bufs.is_empty());
        }
    }

    pub(super) fn reset(&mut self, qp: usize) {
        self.poll(usize::MAX);
        // What its messages held of the shared queue is gone with it.
        let Qp { qpn, sends, receives, .. } = &mut self.qps[qp];
        _ = self.engine.modify(*qpn, Transition::Reset).expect("from any state");
        sends.clear();
        receives.clear();
        assert_eq!(self.engine.outstanding(*qpn).map(|(sends, _)| sends), Some(0));
    }

    /// To RTS, as far as its state allows.
    pub(super) fn connect(&mut self, qp: usize) {
        let [rq_psn, sq_psn] = PSNS;
        let init = Init { port: 1, pkey_index: 0, access: Access::all(), qkey: QKEY };
        let rtr = Rtr {
            av: av(),
            path_mtu: Mtu::B1024,
            dest_qpn: Qpn::truncate(5),
            rq_psn,
            max_dest_rd_atomic: 2,
            min_rnr_timer: RnrTimer::truncate(12),
        };
        let rts = Rts {
            sq_psn,
            timeout: TimeCode::truncate(14),
            retry_count: 3,
            rnr_retry: 3,
            max_rd_atomic: 2,
            alternate: None,
        };
        let is_datagram = KINDS[qp] == QpType::Ud;
        for transition in [
            Transition::Init(init),
            if is_datagram { Transition::DatagramRtr } else { Transition::Rtr(rtr) },
            if is_datagram { Transition::DatagramRts { sq_psn } } else { Transition::Rts(rts) },
        ] {
            if self.engine.modify(self.qps[qp].qpn, transition).is_err() {
                return;
            }
        }
        (self.qps[qp].expected, self.qps[qp].sent) = (rq_psn, sq_psn);
    }

    pub(super) fn toggle_region(&mut self, region: usize) {
        let Region { memory, domain, at, is_registered } = &mut self.regions[region];
        if *is_registered {
            self.engine.deregister(at.rkey);
        } else {
            let (rkey, addr) =
                self.engine.register(*domain, memory.clone(), ACCESS[region]).expect("within the limits");
            *at = RemoteAddr { addr, rkey };
        }
        *is_registered = !*is_registered;
    }

    pub(super) fn toggle_port(&mut self) {
        let is_up = self.engine.port(1).is_some_and(|port| port.state == PortState::Active);
        let state = if is_up { PortState::Down } else { PortState::Active };
        self.engine.set_port(port(state).attr);
    }

    pub(super) fn mad(&mut self, byte: u8) {
        let to = MadAddr { av: av(), qpn: Qpn::GSI, qkey: QKey::GSI, pkey_index: u16::from(byte & 1) };
        self.engine.send_mads(self.agent, &mut VecDeque::from([OutgoingMad { to, mad: [byte; MAD_LEN] }]));
        self.engine.poll_mads(self.agent, &mut Vec::new(), (byte >> 4).into());
        assert!(self.engine.mad_len(self.agent) <= 8);
    }

    /// Takes all that the engine has to say.
    pub(super) fn drain(&mut self) {
        let mut out = Vec::new();
        for sent in 0.. {
            assert!(sent < MOST_PACKETS, "it sends for ever");
            out.clear();
            let Some(egress) = self.engine.poll_transmit(self.now, &mut out) else { break };
            assert_eq!(egress.len, out.len());
            assert!(out.len().is_multiple_of(4));
            let bth = Bth::parse(&out).expect("a packet");
            let Some(qp) = self.qps.iter_mut().find(|qp| qp.qpn == egress.qpn) else {
                assert_eq!(egress.qpn, Qpn::GSI);
                continue;
            };
            if bth.opcode.is_response() {
                // A NAK names the request that is missing, other answers one that was executed.
                let is_nak = bth.opcode == Opcode::RC_ACKNOWLEDGE && out[Bth::LEN] >= 0x20;
                qp.expected = if is_nak { bth.psn } else { bth.psn.offset(1) };
            } else {
                qp.sent = bth.psn;
            }
        }
        while self.engine.poll_event().is_some() {}
        drop(self.engine.take_released());
    }

    /// After all QPs went to ERR no work is left over, and nobody has written where nobody may.
    pub(super) fn end(mut self) -> End {
        for qp in 0..QPS {
            self.transition(qp, Transition::Error);
        }
        self.drain();
        self.poll(usize::MAX);
        for qp in &self.qps {
            assert!(qp.receives.is_empty(), "{qp:?}");
            assert!(qp.sends.iter().all(|(_, is_signaled)| !is_signaled), "{qp:?}");
            assert_eq!(self.engine.outstanding(qp.qpn), Some((0, 0)));
        }
        let memory = self.regions.iter().map(|region| {
            let mut bytes = vec![0; REGION_LEN];
            region.memory.copy_to(0, &mut bytes).expect("inside");
            bytes
        });
        let memory: Vec<_> = memory.collect();
        for region in READ_ONLY {
            assert!(memory[region] == pattern(REGION_LEN), "region {region} was written to");
        }
        End { counters: *self.engine.counters(), memory }
    }
}

/// What stands in front of the BTH.
fn net(is_foreign: bool) -> NetHeader {
    NetHeader::roce(NetRoute {
        sgid: gid(if is_foreign { OTHER } else { PEER }),
        dgid: gid(HERE),
        flow_label: FlowLabel::default(),
        traffic_class: 0,
        hop_limit: 64,
        ip_id: 0,
    })
}

fn gid(ip: [u8; 4]) -> Gid {
    Gid::from_ip(ip.into())
}

/// Another way to the peer.
pub(super) fn alternate() -> AlternatePath {
    AlternatePath { av: av_to(OTHER), pkey_index: 0, timeout: TimeCode::truncate(14) }
}

fn av() -> AddressVector {
    av_to(PEER)
}

fn av_to(ip: [u8; 4]) -> AddressVector {
    AddressVector {
        port: 1,
        dlid: Lid::NONE,
        sl: ServiceLevel::default(),
        path_bits: 0,
        rate: Rate::PORT_CURRENT,
        grh: Some(GlobalRoute {
            dgid: gid(ip),
            sgid_index: 0,
            flow_label: FlowLabel::default(),
            hop_limit: 64,
            traffic_class: 0,
        }),
    }
}

fn port(state: PortState) -> PortConfig {
    PortConfig {
        attr: PortAttr {
            number: 1,
            state,
            link_layer: LinkLayer::Ethernet,
            active_mtu: Mtu::B1024,
            lid: Lid::NONE,
            lmc: 0,
            sm_lid: Lid::NONE,
            sm_sl: ServiceLevel::default(),
            rate: Rate::GBPS_10,
        },
        gids: vec![GidEntry { index: 0, gid: gid(HERE), kind: GidKind::RoceV2 }],
        pkeys: vec![PKey::DEFAULT],
    }
}
