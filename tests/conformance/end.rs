//! One end of a connection: a device with a completion queue and a queue pair.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;

use ibdev::qp::{AlternatePath, Init, OwnCqSpec, QpSpec, QpType, Rtr, Rts, Transition};
use ibdev::{
    Access, AddressVector, Buf, Completion, CompletionQueue, Device, GidEntry, GidKind, GlobalRoute,
    LinkLayer, PostError, ProtectionDomain, QueuePair, RecvWr, Region, RemoteAddr, SendFlags, SendOp, SendWr,
    SharedMemory, SharedReceiveQueue,
};
use ibwire::{FlowLabel, Mtu, Psn, QKey, RKey, RnrTimer, ServiceLevel, TimeCode};

use super::bench::Bench;

/// What a case may want to differ.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub kind: QpType,
    pub port: u8,
    /// What the peer may do by way of the QP.
    pub access: Access,
    /// Work requests in each queue.
    pub depth: u32,
    /// Buffers of a work request.
    pub sge: u32,
    pub mtu: Mtu,
    pub grh: bool,
    /// Code of the ACK timeout: 14 is 67 ms.
    pub timeout: u8,
    pub retry_count: u8,
    pub rnr_retry: u8,
    /// Code of the RNR timer: 12 is 0.64 ms.
    pub min_rnr_timer: u8,
    /// Reads and atomics that we may have outstanding.
    pub initiator_depth: u8,
    /// Reads and atomics that the peer may have outstanding.
    pub responder_resources: u8,
    pub qkey: QKey,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kind: QpType::Rc,
            port: 1,
            access: Access::all(),
            depth: 32,
            sge: 1,
            mtu: Mtu::B1024,
            grh: true,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            initiator_depth: 4,
            responder_resources: 4,
            qkey: QKey(0x1111_1111),
        }
    }
}

/// A device with a domain, a CQ for both directions and a QP.
#[derive(Debug)]
pub struct End {
    pub device: Arc<dyn Device>,
    pub domain: Arc<dyn ProtectionDomain>,
    pub cq: Arc<dyn CompletionQueue>,
    pub qp: Arc<dyn QueuePair>,
    pub options: Options,
    /// The first PSN that it sends: any number, as long as both ends agree.
    psn: Cell<Psn>,
}

impl End {
    /// With a QP in RESET.
    pub async fn new(device: &Arc<dyn Device>, options: Options) -> Self {
        Self::in_domain(device, device.domain(), options, None).await
    }

    pub async fn in_domain(
        device: &Arc<dyn Device>,
        domain: Arc<dyn ProtectionDomain>,
        options: Options,
        srq: Option<Arc<dyn SharedReceiveQueue>>,
    ) -> Self {
        let spec = OwnCqSpec { max_sge: options.sge, srq, ..own_cq(options) };
        let (qp, cq) = domain.create_qp_with_cq(&**device, spec).await.unwrap();
        Self::of(device, domain, cq, qp, options)
    }

    pub fn of(
        device: &Arc<dyn Device>,
        domain: Arc<dyn ProtectionDomain>,
        cq: Arc<dyn CompletionQueue>,
        qp: Arc<dyn QueuePair>,
        options: Options,
    ) -> Self {
        let psn = Cell::new(Psn::truncate(qp.qpn().get().wrapping_mul(0x9e37_79b1)));
        Self { device: device.clone(), domain, cq, qp, options, psn }
    }

    /// Takes another PSN, so that nothing of the connection before is taken for one of the next.
    pub fn renew(&self) {
        self.psn.set(self.psn.get().offset(1 << 20));
    }

    pub fn init(&self) -> Init {
        let Options { port, access, qkey, .. } = self.options;
        Init { port, pkey_index: 0, access, qkey }
    }

    pub fn rtr(&self, peer: &End) -> Rtr {
        Rtr {
            av: way(&self.device, &peer.device, self.options.port, self.options.grh),
            path_mtu: self.options.mtu,
            dest_qpn: peer.qp.qpn(),
            rq_psn: peer.psn.get(),
            max_dest_rd_atomic: self.options.responder_resources,
            min_rnr_timer: RnrTimer::truncate(self.options.min_rnr_timer),
        }
    }

    /// A path to the peer from this port of ours, to its port with the same number.
    pub fn alternate(&self, peer: &End, port: u8) -> AlternatePath {
        AlternatePath {
            av: way(&self.device, &peer.device, port, self.options.grh),
            pkey_index: 0,
            timeout: TimeCode::truncate(self.options.timeout),
        }
    }

    pub fn rts(&self) -> Rts {
        Rts {
            sq_psn: self.psn.get(),
            timeout: TimeCode::truncate(self.options.timeout),
            retry_count: self.options.retry_count,
            rnr_retry: self.options.rnr_retry,
            max_rd_atomic: self.options.initiator_depth,
            alternate: None,
        }
    }

    pub async fn modify(&self, transition: Transition) {
        self.qp.modify(transition).await.unwrap();
    }

    /// RESET to RTR.
    pub async fn ready_to_receive(&self, peer: &End) {
        self.modify(Transition::Init(self.init())).await;
        self.modify(Transition::Rtr(self.rtr(peer))).await;
    }

    /// RESET to RTS.
    pub async fn ready(&self, peer: &End) {
        self.ready_to_receive(peer).await;
        self.modify(Transition::Rts(self.rts())).await;
    }

    /// A buffer with these bytes.
    pub async fn buf(&self, bytes: &[u8]) -> Buf {
        let mut buf = self.room(bytes.len()).await;
        buf.clear();
        buf.put_slice(bytes);
        buf
    }

    /// An empty-handed buffer of `len` bytes.
    pub async fn room(&self, len: usize) -> Buf {
        let mut buf = self.domain.alloc(1, len.max(8)).await.unwrap().remove(0);
        buf.resize(len, 0);
        buf
    }

    /// Memory for the peer.
    pub async fn expose(&self, len: usize, access: Access) -> Region {
        self.domain.register(SharedMemory::zeroed(len), access).await.unwrap()
    }

    /// Posts `count` receives of `len` bytes, with ids from `first` on.
    pub async fn receives(&self, first: u64, count: usize, len: usize) {
        let buffers = self.domain.alloc(count, len).await.unwrap();
        let mut work = (first..).zip(buffers).map(|(id, buf)| RecvWr::new(id, buf)).collect();
        self.qp.post_recv(&mut work).unwrap();
    }

    pub fn post(&self, wr: SendWr) -> Result<(), PostError> {
        self.qp.post_send(&mut VecDeque::from([wr]))
    }

    /// Posts a message.
    pub async fn send(&self, id: u64, message: &[u8]) {
        self.start(id, SendOp::Send { imm: None }, message).await;
    }

    /// Posts a signaled work request with one buffer, which has these bytes.
    pub async fn start(&self, id: u64, op: SendOp, bytes: &[u8]) {
        self.post(SendWr::new(id, op, self.buf(bytes).await)).unwrap();
    }

    /// The same with flags.
    pub async fn start_with(&self, id: u64, op: SendOp, bytes: &[u8], flags: SendFlags) {
        let sg = std::iter::once(self.buf(bytes).await).collect();
        self.post(SendWr { id, op, sg, flags }).unwrap();
    }

    /// Posts a signaled work request and waits for it; there is nothing else to wait for.
    pub async fn carry_out(&self, op: SendOp, bytes: &[u8]) -> Completion {
        self.start(0, op, bytes).await;
        self.completion().await
    }

    /// Waits for exactly `count` completions.
    pub async fn completions(&self, count: usize) -> Vec<Completion> {
        completions(&self.cq, count).await
    }

    pub async fn completion(&self) -> Completion {
        self.completions(1).await.remove(0)
    }

    /// The completions that wait.
    pub fn completed(&self) -> Vec<Completion> {
        let mut out = Vec::new();
        self.cq.poll(&mut out, usize::MAX);
        out
    }
}

pub async fn completions(cq: &Arc<dyn CompletionQueue>, count: usize) -> Vec<Completion> {
    let mut out = Vec::new();
    while out.len() < count {
        let most = count - out.len();
        if cq.poll(&mut out, most) == 0 {
            poll_fn(|cx| cq.poll_notified(cx)).await;
        }
    }
    out
}

pub fn spec(options: Options, cq: &Arc<dyn CompletionQueue>) -> QpSpec {
    QpSpec::new(options.kind, cq, options.depth, options.depth)
}

pub fn own_cq(options: Options) -> OwnCqSpec {
    OwnCqSpec::new(options.kind, options.depth, options.depth)
}

/// Two connected ends, one on each device.
pub async fn pair(bench: &Bench, options: Options) -> (End, End) {
    let (a, b) = (End::new(&bench.a, options).await, End::new(&bench.b, options).await);
    connect(&a, &b).await;
    (a, b)
}

pub async fn connect(a: &End, b: &End) {
    a.ready(b).await;
    b.ready(a).await;
}

/// The address of a port as seen from the port with the same number of another device, by the contract alone.
pub fn way(from: &Arc<dyn Device>, to: &Arc<dyn Device>, port: u8, grh: bool) -> AddressVector {
    let (here, there) = (from.port(port).unwrap(), to.port(port).unwrap());
    let is_ethernet = here.link_layer == LinkLayer::Ethernet;
    let is_usable = |entry: &&GidEntry| match entry.kind {
        GidKind::RoceV2 => !entry.gid.is_link_local(),
        GidKind::RoceV1 => false,
        _ => true,
    };
    let dgid = to.gids(port).unwrap().iter().find(is_usable).expect("a GID").gid;
    let is_family = |entry: &&GidEntry| !is_ethernet || entry.gid.to_ip().is_ipv4() == dgid.to_ip().is_ipv4();
    let gids = from.gids(port).unwrap();
    let source = gids.iter().filter(is_usable).find(is_family).expect("a GID of that family");
    AddressVector {
        port,
        dlid: there.lid,
        sl: ServiceLevel::default(),
        path_bits: 0,
        rate: here.rate,
        grh: (grh || is_ethernet).then_some(GlobalRoute {
            dgid,
            sgid_index: source.index,
            flow_label: FlowLabel::default(),
            hop_limit: 64,
            traffic_class: 0,
        }),
    }
}

/// Where a region's byte `at` is, for its peers.
pub fn remote(region: &Region, at: usize) -> RemoteAddr {
    let remote = region.remote();
    RemoteAddr { addr: remote.addr().wrapping_add(at as u64), rkey: remote.rkey() }
}

/// A key that nobody gave.
pub fn no_rkey(region: &Region) -> RKey {
    RKey(region.remote().rkey().0 ^ 0x0101_0101)
}

pub fn write(to: RemoteAddr) -> SendOp {
    SendOp::Write { to, imm: None }
}

/// A message of `len` bytes that tells which one it is.
pub fn message(n: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (n as usize * 31 + at * 7 + at / 251 + 1) as u8).collect()
}

/// All bytes of a region.
pub fn bytes(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.copy_to(0, &mut bytes).unwrap();
    bytes
}
