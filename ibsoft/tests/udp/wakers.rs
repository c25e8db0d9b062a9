//! Who is woken is not to be trusted: a waker that panics, or the home of a buffer, harms nobody else.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use ibdev::qp::{Init, QpSpec, QpType, Transition};
use ibdev::{
    Access, Buf, BufHome, CompletionQueue, DatagramDest, Device, DeviceEvent, QueuePair, SendFlags, SendOp,
    SendWr,
};
use ibsoft::SoftDevice;
use ibwire::{Gid, Psn, QKey};

use crate::common::loopback::Loopback;
use crate::common::{Options, address, pair, soon};
use crate::{counter, device};

const QKEY: QKey = QKey(0x11);

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("as it is meant to");
    }
}

fn panicking() -> Waker {
    Waker::from(Arc::new(Panics))
}

#[derive(Default)]
struct Counts(AtomicU32);

impl Wake for Counts {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A datagram queue pair that sends to a place where nobody answers.
struct Sender {
    device: SoftDevice,
    cq: Arc<dyn CompletionQueue>,
    qp: Arc<dyn QueuePair>,
    to: DatagramDest,
    _peer: UdpSocket,
}

impl Sender {
    async fn new() -> Self {
        let lo = Loopback::claim();
        let (device, peer) = (device(lo, 1), UdpSocket::bind((lo.address(2), 4791)).unwrap());
        let cq = device.create_cq(102).await.unwrap();
        let qp = device.domain().create_qp(QpSpec::new(QpType::Ud, &cq, 100, 2)).await.unwrap();
        let init = Init { port: 1, pkey_index: 0, access: Access::empty(), qkey: QKEY };
        let rts = Transition::DatagramRts { sq_psn: Psn::truncate(7) };
        for transition in [Transition::Init(init), Transition::DatagramRtr, rts] {
            qp.modify(transition).await.unwrap();
        }
        let av = address(&device, 1, Gid::from_ip(lo.address(2).into()), true);
        let ah = device.domain().create_ah(av).await.unwrap();
        let to = DatagramDest { ah, qpn: qp.qpn(), qkey: QKEY };
        Self { device, cq, qp, to, _peer: peer }
    }

    /// Datagrams are complete when they leave.
    fn post(&self, bufs: impl IntoIterator<Item = Buf>, flags: SendFlags) {
        let op = || SendOp::Datagram { to: self.to.clone(), imm: None };
        let work = bufs.into_iter().zip(0..).map(|(buf, id)| SendWr { flags, ..SendWr::new(id, op(), buf) });
        self.qp.post_send(&mut work.collect()).unwrap();
    }

    fn post_plain(&self, count: usize, len: usize) {
        self.post((0..count).map(|_| Buf::unregistered(len)), SendFlags::SIGNALED);
    }

    fn waits(&self, waker: &Waker) {
        while self.cq.poll(&mut Vec::new(), 100) > 0 {}
        assert!(self.cq.poll_notified(&mut Context::from_waker(waker)).is_pending());
    }

    fn sent(&self) -> u64 {
        counter(&self.device, "link_tx_datagrams")
    }
}

#[tokio::test]
async fn a_waker_that_panics_keeps_nothing_from_leaving() {
    let sender = Sender::new().await;
    sender.waits(&panicking());
    sender.post_plain(1, 8);
    assert_eq!(sender.sent(), 1);
    sender.post_plain(1, 8);
    assert_eq!(sender.sent(), 2);
    // More than the link takes at once: the rest follows without another call.
    sender.waits(&panicking());
    sender.post_plain(99, 4096);
    let all = async {
        while sender.sent() < 101 {
            tokio::task::yield_now().await;
        }
    };
    soon(all).await;
}

#[tokio::test]
async fn a_waker_that_panics_keeps_nobody_from_being_woken() {
    let lo = Loopback::claim();
    let (a, b) = pair(device(lo, 1), device(lo, 2), Options::default()).await;
    let counts = Arc::new(Counts::default());
    let good = Waker::from(counts.clone());
    // Closing completes the receive, reports that the device is gone, and tells its followers.
    a.post_recv(1, 8);
    let agent = a.device.open_agent(crate::common::CM).unwrap();
    assert!(a.cq.poll_notified(&mut Context::from_waker(&panicking())).is_pending());
    assert!(a.device.poll_event(&mut Context::from_waker(&good)).is_pending());
    assert!(agent.poll_recv(&mut Context::from_waker(&good), &mut Vec::new(), 1).is_pending());
    soon(a.device.close()).await;
    assert_eq!(counts.0.load(Ordering::Relaxed), 2);
    drop(b);
}

/// Whoever looks calls wakers in the place of the I/O task: what it has received is acknowledged all the same, though it
/// never looks again.
#[tokio::test]
async fn who_looks_and_meets_a_waker_that_panics_has_acknowledged() {
    let lo = Loopback::claim();
    let (a, b) = pair(device(lo, 1), device(lo, 2), Options { timeout: 20, ..Options::default() }).await;
    b.post_recv(1, 16);
    assert!(b.cq.poll_notified(&mut Context::from_waker(&panicking())).is_pending());
    a.post_send(7, b"hello", None);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !b.cq.look() {
        assert!(std::time::Instant::now() < until, "nothing comes");
    }
    assert!(soon(a.completions(1)).await[0].status.is_ok());
    assert_eq!(counter(&a.device, "timeouts"), 0);
}

#[tokio::test]
async fn the_io_task_outlives_a_waker_that_panics() {
    let lo = Loopback::claim();
    let (a, b) = pair(device(lo, 1), device(lo, 2), Options::default()).await;
    b.post_recv(2, 16);
    for n in 0..2 {
        assert!(b.cq.poll_notified(&mut Context::from_waker(&panicking())).is_pending());
        a.post_send(n, b"hello", None);
        assert!(soon(a.completions(1)).await[0].status.is_ok());
        assert_eq!(soon(b.completions(1)).await[0].id, n);
    }
    assert!(b.device.port(1).is_ok());
    let event = b.device.poll_event(&mut Context::from_waker(Waker::noop()));
    assert_ne!(event, std::task::Poll::Ready(DeviceEvent::Gone));
}

/// A home that panics for the first buffer.
#[derive(Debug, Default)]
struct Home(Mutex<u32>);

impl BufHome for Home {
    fn give_back(&self, _: Buf) {
        let count = {
            let mut count = self.0.lock().unwrap();
            *count += 1;
            *count
        };
        assert!(count > 1, "as it is meant to");
    }
}

#[tokio::test]
async fn a_home_that_panics_keeps_nothing_from_leaving() {
    let sender = Sender::new().await;
    let home = Arc::new(Home::default());
    let as_home: Arc<dyn BufHome> = home.clone();
    let counts = Arc::new(Counts::default());
    sender.waits(&Waker::from(counts.clone()));
    let bufs = (0..3).map(|_| Buf::unregistered(8).with_home(Arc::downgrade(&as_home)));
    sender.post(bufs, SendFlags::empty());
    assert_eq!((sender.sent(), *home.0.lock().unwrap()), (3, 3));
    sender.post_plain(1, 8);
    assert_eq!((sender.sent(), counts.0.load(Ordering::Relaxed)), (4, 1));
}
