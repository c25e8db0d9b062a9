//! Devices over UDP, through the device contract alone.
#![allow(clippy::unwrap_used, reason = "test helpers outside #[test] functions")]

mod common;
#[path = "udp/follow.rs"]
mod follow;
#[path = "udp/wakers.rs"]
mod wakers;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4, UdpSocket};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use common::loopback::Loopback;
use common::*;
use ibdev::qp::{Init, Transition};
use ibdev::{
    Buf, Device, DeviceError, DeviceEvent, GidKind, LinkLayer, OutgoingMad, PostError, RecvWr, Status,
};
use ibsoft::{SoftDevice, UdpConfig};
use ibwire::icrc::{Icrc, Ipv4Pseudo};
use ibwire::packet::{Bth, Deth, Opcode};
use ibwire::{DecodeError, Lid, Mtu, PKey, PacketLifeTime, Psn, QKey, Qpn, Rate};
use pcap_file::pcap::PcapReader;

fn device(lo: Loopback, host: u8) -> SoftDevice {
    bind(lo.address(host).into())
}

fn bind(ip: IpAddr) -> SoftDevice {
    SoftDevice::bind(UdpConfig::new([ip])).unwrap()
}

fn counter(device: &SoftDevice, name: &str) -> u64 {
    device.counters().into_iter().find(|(n, _)| *n == name).expect("a counter").1
}

#[tokio::test]
async fn messages_pass() {
    let lo = Loopback::claim();
    let (a, b) = pair(device(lo, 1), device(lo, 2), Options::default()).await;
    soon(exchange(&a, &b, 20)).await;
    assert_eq!(counter(&a.device, "link_drop_icrc") + counter(&b.device, "link_drop_icrc"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_pass_between_threads() {
    let lo = Loopback::claim();
    // One thread may have to wait for its processor for a second, while the other one goes on and counts the time.
    let options = Options { timeout: 22, ..Options::default() };
    let (a, b) = pair(device(lo, 1), device(lo, 2), options).await;
    let (a, b) = (Arc::new(a), Arc::new(b));
    let mut tasks = Vec::new();
    for (from, to) in [(a.clone(), b.clone()), (b.clone(), a.clone())] {
        to.post_recv(32, 65_536);
        tasks.push(tokio::spawn(async move {
            for n in 0..32 {
                from.post_send(n, &message(n, 65_536), None);
            }
            from.completions(64).await
        }));
    }
    for task in tasks {
        let done = soon(task).await.unwrap();
        assert!(done.iter().all(|c| c.status.is_ok()), "{done:?}");
        let received = done.iter().filter(|c| c.op == ibdev::CompletionOp::Recv);
        assert!(received.zip(0..).all(|(c, n)| c.sg[0][..] == message(n, 65_536)[..]));
    }
    // Nobody has slept over what was there.
    assert_eq!(counter(&a.device, "timeouts") + counter(&b.device, "timeouts"), 0);
}

#[tokio::test]
async fn mads_pass_and_are_answered() {
    let lo = Loopback::claim();
    let (a, b) = (device(lo, 1), device(lo, 2));
    let (agent_a, agent_b) = (a.open_agent(CM).unwrap(), b.open_agent(CM).unwrap());
    let to = to_gsi(&a, b.gids(1).unwrap()[0].gid);
    send_all(&*agent_a, (0..1000).map(|n| OutgoingMad { to, mad: mad(n) })).await;
    let received = soon(receive(&*agent_b, 1000)).await;
    assert!(received.iter().zip(0..).all(|(got, n)| got.mad == mad(n)));
    let answer = OutgoingMad { to: received[0].from.reply(), mad: mad(7) };
    send_all(&*agent_b, [answer]).await;
    assert_eq!(soon(receive(&*agent_a, 1)).await[0].mad, mad(7));
    // Equal lengths to one peer: few calls.
    assert!(counter(&a, "link_tx_batches") < 100, "{}", counter(&a, "link_tx_batches"));
}

#[tokio::test]
async fn a_device_talks_to_itself_over_ipv6() {
    let mut config = UdpConfig::new([IpAddr::V6(Ipv6Addr::LOCALHOST)]);
    config.port = Loopback::claim().port();
    let file = std::env::temp_dir().join(format!("ibsoft-udp6-{}.pcap", std::process::id()));
    config.pcap = Some(file.clone());
    let device = SoftDevice::bind(config).unwrap();
    let (a, b) = pair(device.clone(), device, Options { mtu: Mtu::B4096, ..Options::default() }).await;
    soon(exchange(&a, &b, 5)).await;
    // The last acknowledgements may still be under way.
    let count = |name| counter(&a.device, name);
    let arrive = async {
        while count("link_rx_datagrams") < count("link_tx_datagrams") {
            tokio::task::yield_now().await;
        }
    };
    soon(arrive).await;
    check_pcap(&file, ibwire::icrc::of_ipv6_frame, count("link_tx_datagrams") * 2);
}

/// Each message and the acknowledgement of the one before: two packets, one call.
#[tokio::test]
async fn an_acknowledgement_leaves_with_the_answer_of_the_program() {
    const ROUNDS: u64 = 50;
    // Nothing is sent twice, however busy the machine is.
    let lo = Loopback::claim();
    let options = Options { timeout: 20, ..Options::default() };
    let (a, b) = pair(device(lo, 1), device(lo, 2), options).await;
    for end in [&a, &b] {
        end.post_recv(ROUNDS, 64);
    }
    a.post_send(0, b"ping", None);
    for n in 0..ROUNDS {
        // The first of them is the receive; what it answers is acknowledged on the way.
        let expected = if n == 0 { 1 } else { 2 };
        soon(b.completions(expected)).await;
        b.post_send(n, b"pong", None);
        soon(a.completions(2)).await;
        if n + 1 < ROUNDS {
            a.post_send(n + 1, b"ping", None);
        }
    }
    let datagrams = counter(&b.device, "link_tx_datagrams");
    let batches = counter(&b.device, "link_tx_batches");
    assert_eq!(datagrams, 2 * ROUNDS);
    assert!(batches < ROUNDS + ROUNDS / 2, "{batches} calls for {datagrams} packets");
}

#[tokio::test]
async fn the_nak_of_a_failed_queue_pair_has_left_when_its_program_learns_of_it() {
    let lo = Loopback::claim();
    let (a, b) = pair(device(lo, 1), device(lo, 2), Options::default()).await;
    b.post_recv(1, 4);
    a.post_send(7, b"too long", None);
    assert_eq!(soon(b.completions(1)).await[0].status, Status::LOC_LEN_ERR);
    assert_eq!(counter(&b.device, "link_tx_datagrams"), 1);
    assert_eq!(soon(a.completions(1)).await[0].status, Status::REM_INV_REQ_ERR);
}

/// Nothing here is awaited: the I/O tasks never run.
#[tokio::test]
async fn who_looks_again_and_again_receives_by_himself() {
    let lo = Loopback::claim();
    let (a, b) = pair(device(lo, 1), device(lo, 2), Options::default()).await;
    b.post_recv(1, 65_536);
    let sent = message(7, 65_536);
    a.post_send(7, &sent, None);
    let (mut at_a, mut at_b) = (Vec::new(), Vec::new());
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while at_a.is_empty() || at_b.is_empty() {
        assert!(std::time::Instant::now() < until);
        for (cq, done) in [(&a.cq, &mut at_a), (&b.cq, &mut at_b)] {
            if cq.look() {
                assert_eq!(cq.poll(done, 1), 1);
            }
        }
    }
    assert!(at_a[0].status.is_ok() && at_b[0].status.is_ok());
    assert_eq!(at_b[0].sg[0][..], sent[..]);
}

#[tokio::test]
async fn who_looks_and_goes_away_has_acknowledged() {
    let lo = Loopback::claim();
    let (a, b) = pair(device(lo, 1), device(lo, 2), Options::default()).await;
    b.post_recv(1, 16);
    a.post_send(7, b"hello", None);
    let mut at_b = Vec::new();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !b.cq.look() {
        assert!(std::time::Instant::now() < until, "nothing comes");
    }
    assert_eq!(b.cq.poll(&mut at_b, 1), 1);
    assert!(soon(a.completions(1)).await[0].status.is_ok());
    assert_eq!(counter(&a.device, "timeouts"), 0);
}

#[tokio::test]
async fn a_receiver_that_is_not_ready_delays_the_sender() {
    let lo = Loopback::claim();
    let (a, b) = pair(device(lo, 1), device(lo, 2), Options::default()).await;
    a.post_send(1, b"early", None);
    soon(async {
        while counter(&b.device, "rnr_naks_sent") == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    b.post_recv(1, 16);
    assert!(soon(a.completions(1)).await[0].status.is_ok());
}

#[tokio::test]
async fn a_peer_that_is_gone_ends_the_connection() {
    let lo = Loopback::claim();
    let options = Options { timeout: 10, retry_count: 2, ..Options::default() };
    let (a, b) = pair(device(lo, 1), device(lo, 2), options).await;
    drop(b);
    // The I/O task rests: what is posted now has to wake it for the ack timeout.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    a.post_send(1, b"nobody there", None);
    assert_eq!(soon(a.completions(1)).await[0].status, Status::RETRY_EXC_ERR);
}

/// A packet for QP1 as a peer sends it whose socket has another port, and whose kernel counts its packets.
#[tokio::test]
async fn hca_t06_any_source_port_and_any_identification_will_do() {
    let lo = Loopback::claim();
    let here = device(lo, 1);
    let agent = here.open_agent(CM).unwrap();
    let to = SocketAddrV4::new(lo.address(1), 4791);
    let peer = UdpSocket::bind((lo.address(2), 51_515)).unwrap();
    let src = SocketAddrV4::new(lo.address(2), 51_515);
    for (n, id) in [(1, 0), (2, 0x71a0), (3, 0x71a1)] {
        let bth = Bth { pkey: PKey(0x7fff), mig_req: true, reserved4: 0x3f, ..gsi(n) };
        let datagram = datagram(Ipv4Pseudo { id, ..Ipv4Pseudo::new(src, to) }, bth, n);
        peer.send_to(&datagram, to).unwrap();
        assert_eq!(soon(receive(&*agent, 1)).await[0].mad, mad(n.into()));
    }
    let class = |name| counter(&here, name);
    assert_eq!(
        (class("link_icrc_full"), class("link_icrc_solved_id"), class("link_icrc_predicted_id")),
        (1, 1, 1)
    );
}

#[tokio::test]
async fn hca_t05_what_is_wrong_is_dropped_and_counted() {
    let lo = Loopback::claim();
    let here = device(lo, 1);
    let agent = here.open_agent(CM).unwrap();
    let (src, to) = (SocketAddrV4::new(lo.address(2), 4791), SocketAddrV4::new(lo.address(1), 4791));
    let peer = UdpSocket::bind(src).unwrap();
    let good = |bth, n| datagram(Ipv4Pseudo::new(src, to), bth, n);
    let mut damaged = good(gsi(0), 0);
    damaged[50] ^= 4;
    let wrong = [
        (damaged, "link_drop_icrc"),
        (vec![0; 15], "link_drop_too_short"),
        (vec![], "link_drop_too_short"),
        (good(Bth { pkey: PKey(0x8001), ..gsi(0) }, 0), "drop_pkey"),
        (good(Bth { version: 1, ..gsi(0) }, 0), "drop_version"),
        (good(Bth { dest_qp: Qpn::truncate(0x1234), ..gsi(0) }, 0), "drop_unknown_qp"),
        (good(Bth { opcode: Opcode(0x15), ..gsi(0) }, 0), "drop_opcode"),
        (good(Bth { opcode: Opcode(0x81), ..gsi(0) }, 0), "drop_cnp"),
    ];
    for (datagram, _) in &wrong {
        peer.send_to(datagram, to).unwrap();
    }
    peer.send_to(&good(gsi(1), 1), to).unwrap();
    assert_eq!(soon(receive(&*agent, 1)).await[0].mad, mad(1));
    for (_, cause) in &wrong {
        let times = wrong.iter().filter(|(_, other)| other == cause).count();
        assert_eq!(counter(&here, cause), times as u64, "{cause}");
    }
    peer.set_nonblocking(true).unwrap();
    assert!(peer.recv(&mut [0; 512]).is_err(), "no answer");
}

fn gsi(psn: u32) -> Bth {
    Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::truncate(psn))
}

fn datagram(pseudo: Ipv4Pseudo, bth: Bth, number: u32) -> Vec<u8> {
    let deth = Deth::new(QKey::GSI, Qpn::GSI).to_bytes();
    let mut bytes = [&bth.to_bytes()[..], &deth, &mad(number.into())].concat();
    let Icrc(icrc) = pseudo.icrc(&bytes);
    bytes.extend_from_slice(&icrc);
    bytes
}

#[tokio::test]
async fn hca_t65_a_port_that_is_taken_is_an_error_that_says_what_to_do() {
    let lo = Loopback::claim();
    let first = device(lo, 1);
    let second = SoftDevice::bind(UdpConfig::new([lo.address(1).into()]));
    let text = second.unwrap_err().to_string();
    for part in ["UDP port 4791 is taken", "rdma_rxe", "rmmod", "another process", "another soft device"] {
        assert!(text.contains(part), "{text}");
    }
    // The address is free again at once when the last handle is gone.
    let (agent, cq) = (first.open_agent(CM).unwrap(), first.create_cq(1).await.unwrap());
    drop(first);
    drop(agent);
    assert!(SoftDevice::bind(UdpConfig::new([lo.address(1).into()])).is_err());
    drop(cq);
    device(lo, 1);
}

/// Keeps the I/O task of a device busy, from a thread of its own.
struct Flood {
    goes_on: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Flood {
    fn start(from: Ipv4Addr, to: SocketAddrV4) -> Self {
        let socket = UdpSocket::bind((from, 4791)).unwrap();
        let goes_on = Arc::new(AtomicBool::new(true));
        let flag = goes_on.clone();
        let thread = std::thread::spawn(move || {
            while flag.load(Ordering::Relaxed) {
                // Between two devices nobody is there.
                _ = socket.send_to(&[0; 64], to);
            }
        });
        Self { goes_on, thread: Some(thread) }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.goes_on.store(false, Ordering::Relaxed);
        self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// Whatever the I/O task does on another thread at that moment, and whoever still has handles.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_device_can_be_opened_again_at_once() {
    let lo = Loopback::claim();
    let flood = Flood::start(lo.address(2), SocketAddrV4::new(lo.address(1), 4791));
    let mut handles = Vec::new();
    for n in 0..200 {
        let here = device(lo, 1);
        let (agent, end) = (here.open_agent(CM).unwrap(), End::new(here.clone()).await);
        soon(async {
            while counter(&here, "link_rx_batches") < n % 4 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        if n % 2 == 0 {
            handles.push((agent, end));
        }
        soon(here.close()).await;
        assert!(matches!(here.open_agent(CM), Err(DeviceError::Gone)));
    }
    device(lo, 1);
    drop(flood);
    for (agent, end) in &handles {
        assert!(matches!(agent.send(&mut Default::default()), Err(DeviceError::Gone)));
        assert_eq!(end.qp.post_recv(&mut Default::default()), Err(PostError::Gone));
    }
}

#[tokio::test]
async fn closing_flushes_and_may_be_repeated() {
    let lo = Loopback::claim();
    let (a, b) = pair(device(lo, 1), device(lo, 2), Options::default()).await;
    a.post_recv(2, 16);
    tokio::join!(soon(a.device.close()), soon(a.device.close()));
    assert!(soon(a.completions(2)).await.iter().all(|c| c.status == Status::WR_FLUSH_ERR));
    assert_eq!(event(&a.device).await, DeviceEvent::Gone);
    soon(a.device.close()).await;
    // Once polled, it goes on without its future.
    let close = b.device.close();
    assert!(poll_once(close).is_pending());
    assert_eq!(event(&b.device).await, DeviceEvent::Gone);
    soon(b.device.close()).await;
    device(lo, 2);
}

fn poll_once(future: impl Future<Output = ()>) -> Poll<()> {
    pin!(future).as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test]
async fn addresses_that_cannot_be_bound_are_errors() {
    let lo = Loopback::claim();
    let open = |ip: &str| SoftDevice::bind(UdpConfig::new([ip.parse().unwrap()])).unwrap_err();
    let text = open("192.0.2.77").to_string();
    assert!(text.starts_with("cannot bind an address that is not one of this machine"), "{text}");
    for ip in ["0.0.0.0", "::", "239.1.1.1", "ff02::1"] {
        assert!(matches!(open(ip), DeviceError::Unsupported { .. }), "{ip}");
    }
    let ports = |ports: &[&[u8]]| {
        let port = |hosts: &&[u8]| hosts.iter().map(|&host| lo.address(host).into()).collect();
        SoftDevice::bind(UdpConfig::with_ports(ports.iter().map(port).collect())).unwrap_err()
    };
    for refused in [ports(&[&[1], &[]]), ports(&[&[1], &[2, 1]])] {
        assert!(matches!(refused, DeviceError::Unsupported { .. }), "{refused}");
    }
    assert!(matches!(ports(&[&[1][..]; 9]), DeviceError::Limit { value: 9, limit: 8, .. }));
    let mut config = UdpConfig::new([lo.address(1).into()]);
    config.pcap = Some("/nonexistent/file.pcap".into());
    let text = SoftDevice::bind(config).unwrap_err().to_string();
    assert!(text.starts_with("cannot create the pcap file"), "{text}");
}

#[test]
fn without_a_runtime_it_is_an_error() {
    let error = SoftDevice::bind(UdpConfig::default()).unwrap_err();
    assert!(matches!(error, DeviceError::NoRuntime));
}

#[tokio::test(start_paused = true)]
async fn udp_under_a_paused_clock_is_refused() {
    let lo = Loopback::claim();
    let error = SoftDevice::bind(UdpConfig::default()).unwrap_err();
    assert!(matches!(error, DeviceError::Unsupported { .. }));
    tokio::time::resume();
    SoftDevice::bind(UdpConfig::new([lo.address(1).into()])).unwrap();
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn without_addresses_it_takes_free_ones_of_loopback() {
    let (a, b) =
        (SoftDevice::bind(UdpConfig::default()).unwrap(), SoftDevice::bind(UdpConfig::default()).unwrap());
    let [ip_a, ip_b] = [&a, &b].map(|device| device.gids(1).unwrap()[0].gid.to_ip());
    assert!(ip_a != ip_b && ip_a.is_loopback() && ip_b.is_loopback());
    assert_eq!(a.attr().name, format!("soft:{ip_a}"));
    let (a, b) = pair(a, b, Options::default()).await;
    soon(exchange(&a, &b, 1)).await;
}

#[tokio::test]
async fn each_port_has_its_addresses() {
    let lo = Loopback::claim();
    let ports = vec![vec![lo.address(1).into()], vec![lo.address(2).into(), lo.address(3).into()]];
    let device = SoftDevice::bind(UdpConfig::with_ports(ports)).unwrap();
    let [a, b, c] = [1, 2, 3].map(|host| lo.address(host));
    assert_eq!((device.attr().ports, &*device.attr().name), (2, &*format!("soft:{a}+{b},{c}")));
    let gids = |port| device.gids(port).unwrap().iter().map(|entry| entry.gid).collect::<Vec<_>>();
    assert_eq!((gids(1), gids(2)), (vec![a.into()], vec![b.into(), c.into()]));
    let source = |port| device.resolve(port, lo.address(9).into()).map(|path| path.sgid);
    assert_eq!([1, 2, 3].map(source), [Some(a.into()), Some(b.into()), None]);
}

#[tokio::test]
async fn the_gid_table_is_the_addresses() {
    let lo = Loopback::claim();
    let ips = [IpAddr::V4(lo.address(1)), lo.address(2).into(), lo.address(1).into()];
    let device = SoftDevice::bind(UdpConfig::new(ips)).unwrap();
    let gids = device.gids(1).unwrap();
    assert_eq!(gids.len(), 2);
    assert!(gids.iter().zip(0..).all(|(gid, n)| gid.index == n && gid.kind == GidKind::RoceV2));
    let port = device.port(1).unwrap();
    assert_eq!((port.link_layer, port.lid), (LinkLayer::Ethernet, Lid::NONE));
    assert!(matches!(device.port(2), Err(DeviceError::Limit { what: "port", value: 2, limit: 1 })));
    assert_eq!(device.pkeys(1).unwrap(), [PKey::DEFAULT]);

    let path = device.resolve(1, lo.address(9).into()).unwrap();
    assert_eq!((path.sgid, path.dgid), (gids[0].gid, lo.address(9).into()));
    assert_eq!((path.mtu, path.rate, path.hop_limit), (port.active_mtu, Rate::PORT_CURRENT, 64));
    assert_eq!(path.packet_life_time, PacketLifeTime::truncate(16));
    assert!(device.resolve(1, "fd00::1".parse().unwrap()).is_none());
    assert!(device.resolve(2, lo.address(9).into()).is_none());

    // Both addresses work.
    let peer = self::device(lo, 3);
    let agent = device.open_agent(CM).unwrap();
    let sender = peer.open_agent(CM).unwrap();
    for gid in gids {
        let to = to_gsi(&peer, gid.gid);
        send_all(&*sender, [OutgoingMad { to, mad: mad(1) }]).await;
        let from = soon(receive(&*agent, 1)).await[0].from;
        assert_eq!(from.grh.unwrap().sgid_index, gid.index);
    }
}

#[tokio::test]
async fn handles_are_dropped_in_any_order_and_the_task_ends() {
    let lo = Loopback::claim();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for order in 0..6 {
        let (a, b) = pair(device(lo, 1), device(lo, 2), Options::default()).await;
        assert_eq!(tasks(), 2);
        for end in [a, b] {
            end.post_recv(2, 16);
            let End { qp, cq, device, .. } = end;
            let mut handles: Vec<Box<dyn Send>> = vec![Box::new(qp), Box::new(cq), Box::new(device)];
            handles.rotate_left(order % 3);
            if order >= 3 {
                handles.swap(0, 1);
            }
            for handle in handles {
                drop(handle);
            }
        }
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(tasks(), 0);
    }
}

#[tokio::test]
async fn the_pcap_holds_every_packet_with_the_headers_that_the_icrc_covers() {
    let lo = Loopback::claim();
    let file = std::env::temp_dir().join(format!("ibsoft-udp-{}.pcap", std::process::id()));
    let mut config = UdpConfig::new([lo.address(1).into()]);
    config.pcap = Some(file.clone());
    let (a, b) = pair(SoftDevice::bind(config).unwrap(), device(lo, 2), Options::default()).await;
    soon(exchange(&a, &b, 2)).await;
    let passed = counter(&a.device, "link_tx_datagrams") + counter(&a.device, "link_rx_datagrams");
    check_pcap(&file, ibwire::icrc::of_ipv4_frame, passed);
}

/// The file is complete while the device is open, and the headers in it are those that the ICRC covers.
fn check_pcap(file: &Path, icrc_of: fn(&[u8]) -> Result<Icrc, DecodeError>, expected: u64) {
    let mut reader = PcapReader::new(std::fs::File::open(file).unwrap()).unwrap();
    let mut packets = 0;
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        let (frame, icrc) = packet.data[14..].split_last_chunk().unwrap();
        assert_eq!(icrc_of(frame).unwrap(), Icrc(*icrc));
        packets += 1;
    }
    assert_eq!(packets, expected);
    std::fs::remove_file(file).unwrap();
}

#[tokio::test]
async fn with_a_seed_the_numbers_are_the_same() {
    let lo = Loopback::claim();
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let mut config = UdpConfig::new([lo.address(1).into()]);
        config.rng_seed = Some([7; 32]);
        config.name = Some("seeded".into());
        let device = SoftDevice::bind(config).unwrap();
        numbers.push((End::new(device.clone()).await.qp.qpn(), device.attr().node_guid));
        assert_eq!(device.attr().name, "seeded");
    }
    assert_eq!(numbers[0], numbers[1]);
}

/// The sender has to keep what the link does not take.
#[tokio::test]
async fn posting_before_the_task_ever_ran_loses_nothing() {
    let lo = Loopback::claim();
    let (a, b) = pair(device(lo, 1), device(lo, 2), Options::default()).await;
    b.post_recv(100, 2000);
    for n in 0..100 {
        a.post_send(n, &message(n, 2000), None);
    }
    let done = soon(b.completions(100)).await;
    assert!(done.iter().zip(0..).all(|(c, n)| c.sg[0][..] == message(n, 2000)[..]));
}

/// Before the runtime had its turn it does not know yet that the socket takes packets.
#[tokio::test]
async fn what_was_sent_leaves_although_the_device_goes_at_once() {
    let lo = Loopback::claim();
    let peer = UdpSocket::bind((lo.address(2), 4791)).unwrap();
    peer.set_read_timeout(Some(std::time::Duration::from_secs(2))).unwrap();
    let here = device(lo, 1);
    let agent = here.open_agent(CM).unwrap();
    let to = to_gsi(&here, lo.address(2).into());
    agent.send(&mut [OutgoingMad { to, mad: mad(1) }].into()).unwrap();
    drop((here, agent));
    assert!(peer.recv(&mut [0; 512]).is_ok());
}

#[test]
fn the_end_of_the_runtime_is_the_end_of_the_device() {
    let lo = Loopback::claim();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (end, agent) = runtime.block_on(async {
        let end = End::new(device(lo, 1)).await;
        let agent = end.device.open_agent(CM).unwrap();
        (end, agent)
    });
    drop(runtime);
    assert!(matches!(end.device.port(1), Err(DeviceError::Gone)));
    assert!(matches!(agent.send(&mut Default::default()), Err(DeviceError::Gone)));
    assert_eq!(end.qp.post_recv(&mut Default::default()), Err(PostError::Gone));
}

/// A buffer's home that uses the device when a buffer comes back, as a shared receive pool does.
#[derive(Debug)]
struct Reposting(Arc<dyn ibdev::QueuePair>);

impl ibdev::BufHome for Reposting {
    fn give_back(&self, buf: Buf) {
        _ = self.0.post_recv(&mut [RecvWr::new(9, buf)].into());
    }
}

#[tokio::test]
async fn buffers_go_home_while_the_device_is_free() {
    let lo = Loopback::claim();
    let device = device(lo, 1);
    let (first, second) = (End::new(device.clone()).await, End::new(device).await);
    for end in [&first, &second] {
        let access = Default::default();
        let init = Init { port: 1, pkey_index: 0, access, qkey: QKey::default() };
        end.qp.modify(Transition::Init(init)).await.unwrap();
    }
    let home: Arc<dyn ibdev::BufHome> = Arc::new(Reposting(second.qp.clone()));
    let buf = Buf::unregistered(8).with_home(Arc::downgrade(&home));
    first.qp.post_recv(&mut [RecvWr::new(1, buf)].into()).unwrap();
    first.qp.modify(Transition::Reset).await.unwrap();
    second.qp.modify(Transition::Error).await.unwrap();
    assert_eq!(soon(second.completions(1)).await[0].id, 9);
}
