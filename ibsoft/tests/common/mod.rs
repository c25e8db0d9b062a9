//! Two ends of a connection, whatever the link between them.
#![allow(dead_code, reason = "each test target uses its part")]

pub(crate) mod loopback;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use ibdev::qp::{Init, QpSpec, QpType, Rtr, Rts, Transition};
use ibdev::{
    Access, AddressVector, AgentSpec, Buf, Completion, CompletionQueue, Device, DeviceEvent, GlobalRoute,
    MAD_LEN, MadAddr, MadAgent, OutgoingMad, QueuePair, ReceivedMad, RecvWr, SendOp, SendWr,
};
use ibsoft::SoftDevice;
use ibwire::mad::{Method, MgmtClass};
use ibwire::{Gid, Mtu, Psn, QKey, Qpn, RnrTimer, TimeCode};

/// A device with one CQ and one RC QP.
pub(crate) struct End {
    pub(crate) qp: Arc<dyn QueuePair>,
    pub(crate) cq: Arc<dyn CompletionQueue>,
    pub(crate) device: SoftDevice,
    pub(crate) port: u8,
}

pub(crate) const DEPTH: u32 = 128;

/// What a test may want to differ.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    pub(crate) mtu: Mtu,
    pub(crate) grh: bool,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
}

impl Default for Options {
    fn default() -> Self {
        Self { mtu: Mtu::B1024, grh: true, timeout: 14, retry_count: 7, rnr_retry: 7, min_rnr_timer: 12 }
    }
}

impl End {
    pub(crate) async fn new(device: SoftDevice) -> Self {
        Self::on_port(device, 1).await
    }

    pub(crate) async fn on_port(device: SoftDevice, port: u8) -> Self {
        let cq = device.create_cq(2 * DEPTH).await.unwrap();
        let spec = QpSpec::new(QpType::Rc, &cq, DEPTH, DEPTH);
        let qp = device.domain().create_qp(spec).await.unwrap();
        Self { qp, cq, device, port }
    }

    pub(crate) fn gid(&self) -> Gid {
        self.device.gids(self.port).unwrap()[0].gid
    }

    /// Where the other end is, as the device resolves it.
    pub(crate) fn av(&self, dgid: Gid, grh: bool) -> AddressVector {
        address(&self.device, self.port, dgid, grh)
    }

    /// RESET to RTS, towards `peer`.
    pub(crate) async fn ready(&self, peer: &End, options: Options) {
        let access = Access::empty();
        let init = Init { port: self.port, pkey_index: 0, access, qkey: QKey::default() };
        let rtr = Rtr {
            av: self.av(peer.gid(), options.grh),
            path_mtu: options.mtu,
            dest_qpn: peer.qp.qpn(),
            rq_psn: psn_of(peer),
            max_dest_rd_atomic: 0,
            min_rnr_timer: RnrTimer::truncate(options.min_rnr_timer),
        };
        let rts = Rts {
            sq_psn: psn_of(self),
            timeout: TimeCode::truncate(options.timeout),
            retry_count: options.retry_count,
            rnr_retry: options.rnr_retry,
            max_rd_atomic: 0,
            alternate: None,
        };
        self.qp.modify(Transition::Init(init)).await.unwrap();
        self.qp.modify(Transition::Rtr(rtr)).await.unwrap();
        self.qp.modify(Transition::Rts(rts)).await.unwrap();
    }

    pub(crate) fn post_recv(&self, count: u64, len: usize) {
        let mut work = (0..count).map(|id| RecvWr::new(id, Buf::unregistered(len))).collect();
        self.qp.post_recv(&mut work).unwrap();
    }

    pub(crate) fn post_send(&self, id: u64, message: &[u8], imm: Option<u32>) {
        let mut buf = Buf::unregistered(message.len());
        buf.copy_from_slice(message);
        let wr = SendWr::new(id, SendOp::Send { imm }, buf);
        self.qp.post_send(&mut VecDeque::from([wr])).unwrap();
    }

    /// Waits for exactly `count` completions.
    pub(crate) async fn completions(&self, count: usize) -> Vec<Completion> {
        let mut out = Vec::new();
        while out.len() < count {
            let most = count - out.len();
            if self.cq.poll(&mut out, most) == 0 {
                poll_fn(|cx| self.cq.poll_notified(cx)).await;
            }
        }
        out
    }
}

/// The first PSN of an end: any number, as long as both sides agree.
fn psn_of(end: &End) -> Psn {
    Psn::truncate(end.qp.qpn().get().wrapping_mul(0x9e37_79b1))
}

pub(crate) fn address(device: &SoftDevice, port: u8, dgid: Gid, grh: bool) -> AddressVector {
    let path = device.resolve(port, dgid).expect("a path");
    let gids = device.gids(port).unwrap();
    let sgid_index = gids.iter().find(|entry| entry.gid == path.sgid).expect("one of ours").index;
    AddressVector {
        port,
        dlid: path.dlid,
        sl: path.sl,
        path_bits: 0,
        rate: path.rate,
        grh: grh.then_some(GlobalRoute {
            dgid,
            sgid_index,
            flow_label: path.flow_label,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
        }),
    }
}

pub(crate) async fn pair(a: SoftDevice, b: SoftDevice, options: Options) -> (End, End) {
    let (a, b) = (End::new(a).await, End::new(b).await);
    a.ready(&b, options).await;
    b.ready(&a, options).await;
    (a, b)
}

/// A message of `len` bytes that tells which one it is.
pub(crate) fn message(n: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (n as usize * 31 + at * 7 + at / 251) as u8).collect()
}

/// Messages of all lengths around the MTU, with and without immediate, both ways at once.
pub(crate) async fn exchange(a: &End, b: &End, rounds: u64) {
    const LENGTHS: [usize; 9] = [0, 1, 3, 255, 1023, 1024, 1025, 4096, 20_000];
    for end in [a, b] {
        end.post_recv(64, 20_000);
    }
    for round in 0..rounds {
        for end in [a, b] {
            for (id, len) in (0u64..).zip(LENGTHS) {
                end.post_send(id, &message(round + id, len), (id % 2 == 0).then_some(id as u32));
            }
        }
        for end in [a, b] {
            let done = end.completions(2 * LENGTHS.len()).await;
            let (received, sent): (Vec<_>, Vec<_>) =
                done.into_iter().partition(|c| c.op == ibdev::CompletionOp::Recv);
            assert!(sent.iter().zip(0..).all(|(c, id)| c.id == id && c.status.is_ok()), "{sent:?}");
            for ((id, len), c) in (0u64..).zip(LENGTHS).zip(&received) {
                assert!(c.status.is_ok(), "{c:?}");
                assert_eq!((&c.sg[0][..], c.len as usize), (&message(round + id, len)[..], len));
                assert_eq!(c.imm, (id % 2 == 0).then_some(id as u32));
            }
            end.post_recv(LENGTHS.len() as u64, 20_000);
        }
    }
}

pub(crate) const CM: AgentSpec =
    AgentSpec { port: 1, class: MgmtClass::CM, class_version: 2, methods: &[Method::SEND] };

/// A MAD that an agent of class 7 takes, with a number in it.
pub(crate) fn mad(number: u64) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[8..16].copy_from_slice(&number.to_be_bytes());
    mad[17] = 0x10;
    mad
}

pub(crate) fn to_gsi(device: &SoftDevice, dgid: Gid) -> MadAddr {
    let grh = device.port(1).unwrap().lid == ibwire::Lid::NONE;
    MadAddr { av: address(device, 1, dgid, grh), qpn: Qpn::GSI, qkey: QKey::GSI, pkey_index: 0 }
}

pub(crate) async fn send_all(agent: &dyn MadAgent, mads: impl IntoIterator<Item = OutgoingMad>) {
    let mut batch: VecDeque<_> = mads.into_iter().collect();
    loop {
        agent.send(&mut batch).unwrap();
        if batch.is_empty() {
            return;
        }
        poll_fn(|cx| agent.poll_ready(cx)).await.unwrap();
    }
}

pub(crate) async fn receive(agent: &dyn MadAgent, count: usize) -> Vec<ReceivedMad> {
    let mut out = Vec::new();
    while out.len() < count {
        let most = count - out.len();
        poll_fn(|cx| agent.poll_recv(cx, &mut out, most)).await.unwrap();
    }
    out
}

pub(crate) async fn event(device: &SoftDevice) -> DeviceEvent {
    poll_fn(|cx| device.poll_event(cx)).await
}

/// Fails the test instead of hanging it.
pub(crate) async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("within 30 s")
}
