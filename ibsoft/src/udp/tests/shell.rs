//! The I/O task with sockets that refuse: loopback is never full and never fails.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Mutex, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

use ibdev::qp::{Init, QpSpec, QpType, Transition};
use ibdev::{
    Access, AddressVector, AgentSpec, Buf, CompletionQueue, DatagramDest, Device, DeviceEvent, GlobalRoute,
    MAD_LEN, MadAddr, MadAgent, OutgoingMad, QueuePair, SendOp, SendWr,
};
use ibwire::mad::{Method, MgmtClass};

use super::backoff::GIVE_UP;
use super::task::LINGER;
use super::*;

/// A device at `lo.address(1)`, and its sockets while they are open.
fn device(lo: Loopback) -> (SoftDevice, Weak<[RoceSocket]>) {
    let io = Io::new(vec![socket(lo, 1)], None, UdpHeader::ROCE_PORT);
    let sockets = io.sockets();
    (SoftDevice::start(config(lo), io, Mtu::B1024, &tokio::runtime::Handle::current()), sockets)
}

fn config(lo: Loopback) -> Config {
    let own = LocalAddress::look_up(lo.address(1).into());
    Config::new(device_attr("soft", Guid(1), 1), vec![port(&[own], Mtu::B1024)], [1; 32])
}

fn cm_agent(device: &SoftDevice) -> Box<dyn MadAgent> {
    device
        .open_agent(AgentSpec { port: 1, class: MgmtClass::CM, class_version: 2, methods: &[Method::SEND] })
        .unwrap()
}

/// Whoever gets the MADs that these tests send.
fn peer(lo: Loopback) -> std::net::UdpSocket {
    let peer = std::net::UdpSocket::bind((lo.address(2), UdpHeader::ROCE_PORT)).unwrap();
    socket2::SockRef::from(&peer).set_recv_buffer_size(1 << 20).unwrap();
    peer.set_nonblocking(true).unwrap();
    peer
}

/// MADs with these numbers to the peer.
fn mads(lo: Loopback, numbers: std::ops::Range<u16>) -> VecDeque<OutgoingMad> {
    let grh = GlobalRoute {
        dgid: lo.address(2).into(),
        sgid_index: 0,
        flow_label: ibwire::FlowLabel::default(),
        hop_limit: 64,
        traffic_class: 0,
    };
    let av = AddressVector {
        port: 1,
        dlid: Lid::NONE,
        sl: ServiceLevel::default(),
        path_bits: 0,
        rate: Rate::PORT_CURRENT,
        grh: Some(grh),
    };
    let to = MadAddr { av, qpn: Qpn::GSI, qkey: ibwire::QKey::GSI, pkey_index: 0 };
    numbers.map(|n| OutgoingMad { to, mad: [n as u8; MAD_LEN] }).collect()
}

async fn arrive(peer: &tokio::net::UdpSocket, numbers: std::ops::Range<u16>) {
    for n in numbers {
        let mut datagram = [0; 512];
        let received = tokio::time::timeout(Duration::from_secs(10), peer.recv(&mut datagram));
        let len = received.await.expect("within 10 s").unwrap();
        assert_eq!((len, datagram[Bth::LEN + 8]), (Bth::LEN + 8 + MAD_LEN + Icrc::LEN, n as u8));
    }
}

fn refuse(sockets: &Weak<[RoceSocket]>, refuse: Option<socket::Refuse>) {
    *sockets.upgrade().unwrap()[0].refuse.lock().unwrap() = refuse;
}

fn full(_: &quinn_udp::Transmit<'_>) -> Option<io::Error> {
    Some(io::ErrorKind::WouldBlock.into())
}

/// The socket takes packets again, which the system reports once something has left.
fn has_room(sockets: &Weak<[RoceSocket]>, peer: &std::net::UdpSocket) {
    assert!(peer.recv(&mut [0; 512]).is_err(), "nothing came so far");
    refuse(sockets, None);
    let sockets = sockets.upgrade().unwrap();
    socket2::SockRef::from(&sockets[0].socket).send_to(b"x", &peer.local_addr().unwrap().into()).unwrap();
    assert_eq!(peer.recv(&mut [0; 512]).unwrap(), 1);
}

fn counter(device: &SoftDevice, name: &str) -> u64 {
    device.counters().into_iter().find(|(n, _)| *n == name).expect("a counter").1
}

/// The I/O task waits for room and sends what was posted meanwhile, in order.
#[tokio::test]
async fn a_full_socket_delays_packets() {
    let lo = Loopback::claim();
    let peer = peer(lo);
    let (device, sockets) = device(lo);
    let agent = cm_agent(&device);
    // The task rests.
    tokio::task::yield_now().await;

    refuse(&sockets, Some(full));
    // A window of them waits in the link, another one in the engine; there is no room, though none was refused.
    let (mut batch, mut rest) = (mads(lo, 0..256), mads(lo, 256..260));
    agent.send(&mut batch).unwrap();
    assert!(batch.is_empty());
    let rest = tokio::spawn(async move {
        poll_fn(|cx| agent.poll_ready(cx)).await.unwrap();
        agent.send(&mut rest).unwrap();
        assert!(rest.is_empty());
        agent
    });
    tokio::task::yield_now().await;
    has_room(&sockets, &peer);
    let peer = tokio::net::UdpSocket::from_std(peer).unwrap();
    arrive(&peer, 0..260).await;
    drop(rest.await.unwrap());
}

/// Datagrams that [`send_many`] sends, of a kibibyte each.
const SENDS: usize = 1000;

/// Posts many datagrams; their queue pair and their completions.
async fn send_many(lo: Loopback, device: &SoftDevice) -> (Arc<dyn QueuePair>, Arc<dyn CompletionQueue>) {
    let (domain, qkey) = (device.domain(), ibwire::QKey(7));
    let cq = device.create_cq(SENDS as u32 + 1).await.unwrap();
    let qp = domain.create_qp(QpSpec::new(QpType::Ud, &cq, SENDS as u32, 1)).await.unwrap();
    let init = Init { port: 1, pkey_index: 0, access: Access::empty(), qkey };
    for step in [init.into(), Transition::DatagramRtr, Transition::DatagramRts { sq_psn: Psn::default() }] {
        qp.modify(step).await.unwrap();
    }
    let ah = domain.create_ah(mads(lo, 0..1)[0].to.av).await.unwrap();
    let to = DatagramDest { ah, qpn: Qpn::truncate(0x100), qkey };
    let datagram = |id| {
        let op = SendOp::Datagram { to: to.clone(), imm: None };
        SendWr::new(id as u64, op, Buf::unregistered(1024))
    };
    qp.post_send(&mut (0..SENDS).map(datagram).collect()).unwrap();
    (qp, cq)
}

/// While a socket is full the link holds so much and no more; the rest stays with its queue pair, whose sends complete when they
/// have left.
#[tokio::test]
async fn a_full_socket_holds_back_queue_pairs() {
    let lo = Loopback::claim();
    let peer = peer(lo);
    let (device, sockets) = device(lo);
    refuse(&sockets, Some(full));
    let (_qp, cq) = send_many(lo, &device).await;
    let mut completed = Vec::new();
    let left = cq.poll(&mut completed, SENDS);
    assert!(left > 0 && left * 1024 <= link::OUTBOX_BYTES + (64 << 10), "{left} have left");
    tokio::task::yield_now().await;
    assert_eq!(cq.poll(&mut completed, SENDS), 0, "without room nothing more");
    has_room(&sockets, &peer);
    let all = async {
        while completed.len() < SENDS {
            poll_fn(|cx| cq.poll_notified(cx)).await;
            cq.poll(&mut completed, SENDS);
        }
    };
    tokio::time::timeout(Duration::from_secs(10), all).await.expect("within 10 s");
    assert!(completed.iter().all(|completion| completion.status.is_ok()));
}

/// What was sent before the last handle is dropped goes out, though the socket is full at that moment.
#[tokio::test]
async fn packets_that_wait_are_sent_after_the_device() {
    let lo = Loopback::claim();
    let peer = peer(lo);
    let (device, sockets) = device(lo);
    let agent = cm_agent(&device);
    refuse(&sockets, Some(full));
    agent.send(&mut mads(lo, 0..256)).unwrap();
    drop((agent, device));
    tokio::task::yield_now().await;
    has_room(&sockets, &peer);
    let peer = tokio::net::UdpSocket::from_std(peer).unwrap();
    arrive(&peer, 0..256).await;
    // The sockets go with the last of them.
    while sockets.strong_count() > 0 {
        tokio::task::yield_now().await;
    }
    socket(lo, 1);
}

/// The same for a device that is closed while it has handles.
#[tokio::test]
async fn closing_sends_what_waits() {
    let lo = Loopback::claim();
    let peer = peer(lo);
    let (device, sockets) = device(lo);
    let agent = cm_agent(&device);
    refuse(&sockets, Some(full));
    agent.send(&mut mads(lo, 0..256)).unwrap();
    let mut close = pin!(device.close());
    assert!(close.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    tokio::task::yield_now().await;
    has_room(&sockets, &peer);
    close.await;
    socket(lo, 1);
    let peer = tokio::net::UdpSocket::from_std(peer).unwrap();
    arrive(&peer, 0..256).await;
    assert_eq!(counter(&device, "link_drop_tx_closed"), 0);
    assert_eq!(counter(&device, "link_tx_datagrams"), 256);
}

/// Lines of log.
#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn subscribe() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// A socket that stays full keeps the addresses for a bounded time; what is lost is counted and reported.
#[tokio::test(start_paused = true)]
async fn packets_that_cannot_be_sent_are_counted_and_reported() {
    let lo = Loopback::claim();
    let (log, _guard) = Log::subscribe();
    for close in [true, false] {
        let (device, sockets) = device(lo);
        let agent = cm_agent(&device);
        refuse(&sockets, Some(full));
        agent.send(&mut mads(lo, 0..256)).unwrap();
        if close {
            let started = tokio::time::Instant::now();
            tokio::join!(device.close(), device.close());
            let took = started.elapsed();
            assert!((LINGER..LINGER + Duration::from_millis(2)).contains(&took), "{took:?}");
            assert_eq!(counter(&device, "link_drop_tx_closed"), 256);
        } else {
            drop((agent, device));
            tokio::time::sleep(LINGER - Duration::from_millis(2)).await;
            assert_eq!(sockets.strong_count(), 1);
            tokio::time::sleep(Duration::from_millis(4)).await;
        }
        assert_eq!(sockets.strong_count(), 0);
        socket(lo, 1);
    }
    let (text, own) = (log.text(), format!("addresses=[{}]", lo.address(1)));
    let reports: Vec<_> = text.lines().filter(|line| line.contains("closed before")).collect();
    assert_eq!(reports.len(), 2, "{text}");
    for report in reports {
        assert!(
            report.contains(" WARN ") && report.contains("packets=256") && report.contains(&own),
            "{report}"
        );
    }
}

/// A device that closes takes all MADs from its engine, and of what queue pairs send no more than it holds at once.
#[tokio::test(start_paused = true)]
async fn closing_takes_a_bounded_amount_from_queue_pairs() {
    let lo = Loopback::claim();
    let (device, sockets) = device(lo);
    let agent = cm_agent(&device);
    refuse(&sockets, Some(full));
    let (_qp, _cq) = send_many(lo, &device).await;
    agent.send(&mut mads(lo, 0..256)).unwrap();
    device.close().await;
    // What waited for room, the MADs, and once more what leaves at once.
    let unsent = counter(&device, "link_drop_tx_closed") as usize;
    let most = 2 * (link::OUTBOX_BYTES + (64 << 10)) / 1024;
    assert!((256..=256 + most).contains(&unsent), "{unsent} of {}", SENDS + 256);
}

/// The end of the runtime is no time to wait.
#[test]
fn packets_that_wait_when_the_runtime_ends_are_counted() {
    let lo = Loopback::claim();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (device, agent) = runtime.block_on(async {
        let (device, sockets) = device(lo);
        let agent = cm_agent(&device);
        refuse(&sockets, Some(full));
        agent.send(&mut mads(lo, 0..256)).unwrap();
        (device, agent)
    });
    drop(runtime);
    assert_eq!(counter(&device, "link_drop_tx_closed"), 256);
    drop((device, agent));
}

/// A socket that cannot be read is left alone for longer and longer, and then read again.
#[tokio::test(start_paused = true)]
async fn receive_errors_are_waited_for() {
    let lo = Loopback::claim();
    let (device, sockets) = device(lo);
    let agent = cm_agent(&device);
    let from = socket(lo, 2);
    let errors = || counter(&device, "link_rx_errors");
    *sockets.upgrade().unwrap()[0].fail_receive.lock().unwrap() = Some(|| io::Error::other("no memory"));
    let datagram = |n: u32| {
        let (std::net::SocketAddr::V4(src), std::net::SocketAddr::V4(dst)) =
            (from.local, sockets.upgrade().unwrap()[0].local)
        else {
            panic!("IPv4 sockets")
        };
        let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::truncate(n));
        let deth = ibwire::packet::Deth::new(ibwire::QKey::GSI, Qpn::GSI).to_bytes();
        let mut mad = [n as u8; MAD_LEN];
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        let mut bytes = [&bth.to_bytes()[..], &deth, &mad].concat();
        let icrc = Ipv4Pseudo::new(src, dst).icrc(&bytes);
        bytes.extend_from_slice(&icrc.0);
        bytes
    };
    let to = sockets.upgrade().unwrap()[0].local;
    socket2::SockRef::from(&from.socket).send_to(&datagram(1), &to.into()).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    // Eight at once, then after 1, 2, 4 … 512 ms.
    assert!((10..=18).contains(&errors()), "{}", errors());
    // Timers go on meanwhile, sending works, and the device is there.
    agent.send(&mut mads(lo, 0..1)).unwrap();
    assert_eq!(counter(&device, "link_tx_datagrams"), 1);
    *sockets.upgrade().unwrap()[0].fail_receive.lock().unwrap() = None;
    let mut received = Vec::new();
    poll_fn(|cx| agent.poll_recv(cx, &mut received, 1)).await.unwrap();
    let before = errors();
    socket2::SockRef::from(&from.socket).send_to(&datagram(2), &to.into()).unwrap();
    poll_fn(|cx| agent.poll_recv(cx, &mut received, 1)).await.unwrap();
    assert_eq!((received.len(), errors(), counter(&device, "link_rx_failed_sockets")), (2, before, 0));
}

/// Who looks again and again is no reason to try a broken socket as often.
#[tokio::test(start_paused = true)]
async fn receive_errors_are_waited_for_by_those_who_look() {
    let lo = Loopback::claim();
    let (device, sockets) = device(lo);
    *sockets.upgrade().unwrap()[0].fail_receive.lock().unwrap() = Some(|| io::Error::other("no memory"));
    let cq = device.create_cq(1).await.unwrap();
    let look = || (0..1000).for_each(|_| assert!(!cq.look()));
    look();
    assert_eq!(counter(&device, "link_rx_errors"), 9);
    tokio::time::advance(Duration::from_millis(1)).await;
    look();
    assert_eq!(counter(&device, "link_rx_errors"), 10);
    tokio::time::advance(Duration::from_millis(2)).await;
    *sockets.upgrade().unwrap()[0].fail_receive.lock().unwrap() = None;
    look();
    assert_eq!((counter(&device, "link_rx_errors"), counter(&device, "link_rx_failed_sockets")), (10, 0));
}

#[tokio::test(start_paused = true)]
async fn a_socket_that_gives_only_errors_is_the_end_of_the_device() {
    let lo = Loopback::claim();
    let (log, _guard) = Log::subscribe();
    let (device, sockets) = device(lo);
    let from = socket(lo, 2);
    *sockets.upgrade().unwrap()[0].fail_receive.lock().unwrap() = Some(|| io::Error::other("broken"));
    let to = sockets.upgrade().unwrap()[0].local;
    socket2::SockRef::from(&from.socket).send_to(b"anything", &to.into()).unwrap();
    let started = tokio::time::Instant::now();
    assert_eq!(poll_fn(|cx| device.poll_event(cx)).await, DeviceEvent::Gone);
    let took = started.elapsed();
    assert!((GIVE_UP..GIVE_UP + Duration::from_secs(2)).contains(&took), "{took:?}");
    assert!(matches!(device.port(1), Err(DeviceError::Gone)));
    assert_eq!(counter(&device, "link_rx_failed_sockets"), 1);
    assert!(counter(&device, "link_rx_errors") < 40);
    assert!(log.text().contains("the device is gone"), "{}", log.text());
    device.close().await;
    socket(lo, 1);
}

#[tokio::test]
async fn what_a_device_that_is_gone_does_not_take_is_counted() {
    let lo = Loopback::claim();
    let (device, _sockets) = device(lo);
    let (from, to) = (socket(lo, 2), socket(lo, 3));
    let (_, _, mut receiver) = send(&from, &to, &[64; 5]).await;
    device.0.remove();
    receiver.hand_in(&device.0);
    let counters = receiver.counters;
    assert_eq!((counters.datagrams, counters.drop_gone), (5, receiver.batch().count() as u64));
    assert!(counters.drop_gone > 0);
}

/// One poll handles a bounded number of packets and bytes, however many are waiting.
async fn flood(lo: Loopback, datagram: &[u8], most: u64) {
    let io = Arc::new(Io::new(vec![socket(lo, 1)], None, UdpHeader::ROCE_PORT));
    let sockets = io.sockets();
    let (open, closed) = watch::channel(());
    let link = UdpLink::new(io.clone(), Mtu::B1024, closed, tokio::runtime::Handle::current());
    let core = Arc::new(Core::new(Engine::new(config(lo)), Box::new(link), Instant::now()));
    let mut task = pin!(task::run(Arc::downgrade(&core), io, open));
    let device = SoftDevice::new(core);
    let from = std::net::UdpSocket::bind((lo.address(2), UdpHeader::ROCE_PORT)).unwrap();
    let sent = 3 * most;
    for _ in 0..sent {
        from.send_to(datagram, sockets.upgrade().unwrap()[0].local).unwrap();
    }
    let waiting = sockets.upgrade().unwrap();
    poll_fn(|cx| waiting[0].socket.poll_recv_ready(cx)).await.unwrap();
    drop(waiting);
    let (mut polls, mut before) = (0, 0);
    loop {
        assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let received = counter(&device, "link_rx_datagrams");
        assert!(received - before <= most + 64, "{} in one poll", received - before);
        if received == before {
            break;
        }
        (polls, before) = (polls + 1, received);
    }
    // The system may have held fewer, if it grants small buffers only.
    assert!(polls > before / (most + 88), "{before} in {polls}");
    assert!(before > most / 5 && before <= sent, "{before}");
}

#[tokio::test]
async fn a_flood_leaves_other_tasks_their_turn() {
    let lo = Loopback::claim();
    flood(lo, b"short", 512).await;
}

/// Who posts receives again has to come before the messages of half a mebibyte are acknowledged.
#[tokio::test]
async fn a_flood_of_long_packets_leaves_other_tasks_their_turn() {
    let lo = Loopback::claim();
    flood(lo, &[0; 4096], 128).await;
}
