//! Devices in a subnet, through the device contract alone.
#![allow(clippy::unwrap_used, reason = "test helpers outside #[test] functions")]

mod common;

use std::fs::File;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use ibdev::qp::{Init, QpSpec, QpType, Transition};
use ibdev::{
    Access, Buf, DatagramDest, Device, DeviceError, DeviceEvent, OutgoingMad, PortState, PostError, SendOp,
    SendWr, SharedMemory, Status,
};
use ibsoft::sim::{Held, Probe, Subnet};
use ibwire::packet::{Lrh, NextHeader};
use ibwire::{Gid, Psn, QKey};
use pcap_file::pcap::PcapReader;

async fn star(seed: u64) -> Subnet {
    Subnet::star(["a", "b"]).seed(seed).await.unwrap()
}

async fn connected(net: &Subnet, options: Options) -> (End, End) {
    pair(net.device("a"), net.device("b"), options).await
}

#[tokio::test(start_paused = true)]
async fn messages_pass_with_and_without_grh() {
    let net = star(1).await;
    for grh in [false, true] {
        let (a, b) = connected(&net, Options { grh, ..Options::default() }).await;
        soon(exchange(&a, &b, 3)).await;
    }
    net.quiet().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn mads_pass_and_are_answered() {
    let net = star(1).await;
    let (a, b) = (net.device("a"), net.device("b"));
    let (agent_a, agent_b) = (a.open_agent(CM).unwrap(), b.open_agent(CM).unwrap());
    let to = to_gsi(&a, b.gids(1).unwrap()[0].gid);
    send_all(&*agent_a, (0..1000).map(|n| OutgoingMad { to, mad: mad(n) })).await;
    let received = soon(receive(&*agent_b, 1000)).await;
    assert!(received.iter().zip(0..).all(|(got, n)| got.mad == mad(n)));
    let answer = OutgoingMad { to: received[0].from.reply(), mad: mad(7) };
    send_all(&*agent_b, [answer]).await;
    assert_eq!(soon(receive(&*agent_a, 1)).await[0].mad, mad(7));
    net.quiet().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_device_talks_to_itself() {
    let net = star(1).await;
    let (a, b) = pair(net.device("a"), net.device("a"), Options::default()).await;
    soon(exchange(&a, &b, 2)).await;
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_is_not_ready_delays_and_then_fails_the_sender() {
    let net = star(1).await;
    let (a, b) = connected(&net, Options { min_rnr_timer: 26, ..Options::default() }).await;
    let start = tokio::time::Instant::now();
    a.post_send(1, b"early", None);
    tokio::time::sleep(Duration::from_millis(200)).await;
    b.post_recv(1, 16);
    assert!(soon(a.completions(1)).await[0].status.is_ok());
    // Code 26: every 82 ms another try, the fourth finds a receive.
    assert!((245..260).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());

    let (a, b) = connected(&net, Options { rnr_retry: 0, ..Options::default() }).await;
    a.post_send(1, b"too early", None);
    assert_eq!(soon(a.completions(1)).await[0].status, Status::RNR_RETRY_EXC_ERR);
    assert_eq!(soon(event(&a.device)).await, DeviceEvent::QpError(a.qp.qpn()));
    drop(b);
}

#[tokio::test(start_paused = true)]
async fn hca_t62_t63_nothing_is_lost_over_a_bad_network() {
    for seed in 0..20 {
        let net = star(seed).await;
        let delay = Duration::from_micros(2)..=Duration::from_millis(3);
        net.faults().loss(0.1).duplicate(0.05).corrupt(0.01).reorder(0.1).delay(delay);
        let (a, b) = connected(&net, Options::default()).await;
        tokio::time::timeout(Duration::from_secs(600), exchange(&a, &b, 3)).await.unwrap();
        drop((a, b));
        net.quiet().await.unwrap();
        let counter = |name| net.counters().into_iter().find(|(n, _)| *n == name).expect("a counter").1;
        assert!(counter("drop_damaged") > 0 && counter("drop_damaged") >= counter("corrupted"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subnet_works_in_real_time_and_between_threads() {
    let net = star(1).await;
    net.faults().loss(0.02).delay(Duration::ZERO..=Duration::from_micros(500));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let (a, b) = connected(&net, Options::default()).await;
        tasks.push(tokio::spawn(async move { exchange(&a, &b, 2).await }));
    }
    for task in tasks {
        soon(task).await.unwrap();
    }
    net.quiet().await.unwrap();
}

/// One run under faults, and what passed.
fn trace(seed: u64) -> Vec<String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let net = star(seed).await;
        net.faults().loss(0.1).reorder(0.2).delay(Duration::ZERO..=Duration::from_millis(1));
        let (a, b) = connected(&net, Options::default()).await;
        exchange(&a, &b, 2).await;
        net.log()
    })
}

#[test]
fn the_same_seed_gives_the_same_packets_at_the_same_times() {
    let first = trace(3);
    assert!(first.len() > 100);
    assert_eq!(first, trace(3));
    assert_ne!(first, trace(4));
}

#[tokio::test(start_paused = true)]
async fn a_partition_lasts_until_it_is_healed() {
    let net = star(1).await;
    let (a, b) = connected(&net, Options::default()).await;
    b.post_recv(1, 16);
    net.partition(&["a"], &["b"]);
    a.post_send(1, b"hello", None);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(net.log().iter().all(|line| line.ends_with("partitioned")), "{:#?}", net.log());
    net.heal();
    assert_eq!(&soon(b.completions(1)).await[0].sg[0][..], b"hello");
    assert!(soon(a.completions(1)).await[0].status.is_ok());
}

#[tokio::test(start_paused = true)]
async fn ports_go_down_and_come_back() {
    let net = star(1).await;
    let (a, b) = connected(&net, Options { retry_count: 1, ..Options::default() }).await;
    b.post_recv(2, 16);
    net.link_down("b");
    assert_eq!(soon(event(&b.device)).await, DeviceEvent::PortDown(1));
    assert_eq!(b.device.port(1).unwrap().state, PortState::Down);
    a.post_send(1, b"nobody hears", None);
    assert_eq!(soon(a.completions(1)).await[0].status, Status::RETRY_EXC_ERR);

    // Of a port that flaps while nobody looks, the last state is read last.
    net.link_up("b");
    net.link_down("b");
    net.link_up("b");
    assert_eq!(soon(event(&b.device)).await, DeviceEvent::PortDown(1));
    assert_eq!(soon(event(&b.device)).await, DeviceEvent::PortUp(1));
    drop((a, b));
    let (a, b) = connected(&net, Options::default()).await;
    soon(exchange(&a, &b, 1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_port_gets_another_gid() {
    let net = star(1).await;
    let (a, b) = connected(&net, Options::default()).await;
    let (old, new) = (b.device.gids(1).unwrap()[0].gid, Gid([0xfd; 16]));
    net.set_gid("b", 1, new);
    assert_eq!(soon(event(&b.device)).await, DeviceEvent::GidChange(1));
    assert_eq!(b.device.gids(1).unwrap()[0].gid, new);
    // The connection stays; paths lead to the new one only.
    soon(exchange(&a, &b, 1)).await;
    assert!(a.device.resolve(1, old).is_none() && a.device.resolve(1, new).is_some());
    for (port, gid, why) in [
        (1, new, "another port of the subnet has that GID"),
        (2, Gid([0xfe; 16]), "the HCA has no such port"),
    ] {
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| net.set_gid("a", port, gid)));
        let text = *refused.unwrap_err().downcast::<String>().unwrap();
        assert!(text.ends_with(why), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn rails_are_apart() {
    let net = Subnet::rails(2, ["a", "b"]).await.unwrap();
    let (a, b) = (net.device("a"), net.device("b"));
    assert_eq!((a.attr().ports, a.port(2).unwrap().number), (2, 2));
    let far = b.gids(2).unwrap()[0].gid;
    assert!(a.resolve(1, far).is_none() && a.resolve(2, far).is_some() && a.resolve(3, far).is_none());

    let (a, b) = (End::on_port(a, 2).await, End::on_port(b, 2).await);
    a.ready(&b, Options::default()).await;
    b.ready(&a, Options::default()).await;
    soon(exchange(&a, &b, 1)).await;
    net.port_down("b", 1);
    soon(exchange(&a, &b, 1)).await;
    let mut events = Vec::new();
    while !events.contains(&DeviceEvent::PortDown(1)) {
        events.push(soon(event(&b.device)).await);
    }
    assert!(!events.contains(&DeviceEvent::PortDown(2)));
}

#[tokio::test(start_paused = true)]
async fn a_removed_device_flushes_and_answers_gone() {
    let net = star(1).await;
    let (a, b) = connected(&net, Options { retry_count: 0, ..Options::default() }).await;
    let agent = b.device.open_agent(CM).unwrap();
    b.post_recv(3, 16);
    let waiting = tokio::spawn(async move {
        let flushed = b.completions(3).await;
        (b, flushed)
    });
    tokio::task::yield_now().await;
    net.remove("b");
    let (b, flushed) = soon(waiting).await.unwrap();
    assert!(flushed.iter().all(|c| c.status == Status::WR_FLUSH_ERR));
    while soon(event(&b.device)).await != DeviceEvent::Gone {}
    assert_eq!(soon(event(&b.device)).await, DeviceEvent::Gone);
    assert!(matches!(b.device.port(1), Err(DeviceError::Gone)));
    assert!(matches!(b.device.create_cq(1).await, Err(DeviceError::Gone)));
    assert!(matches!(b.qp.modify(Transition::Reset).await, Err(DeviceError::Gone)));
    assert_eq!(b.qp.post_send(&mut Default::default()), Err(PostError::Gone));
    assert!(matches!(agent.send(&mut Default::default()), Err(DeviceError::Gone)));
    let received = std::future::poll_fn(|cx| agent.poll_recv(cx, &mut Vec::new(), 1));
    assert!(matches!(soon(received).await, Err(DeviceError::Gone)));

    a.post_send(1, b"nobody there", None);
    assert_eq!(soon(a.completions(1)).await[0].status, Status::RETRY_EXC_ERR);
    // Handles of a device that is gone can go in any order.
    drop(b.cq);
    drop(b.device);
    drop(agent);
    drop(b.qp);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_hears_that_the_device_is_gone() {
    let net = star(1).await;
    let device = net.device("a");
    let agent = device.open_agent(CM).unwrap();
    let cq = device.create_cq(1).await.unwrap();
    let reader = tokio::spawn(async move { event(&device).await });
    let received =
        tokio::spawn(async move { std::future::poll_fn(|cx| agent.poll_recv(cx, &mut Vec::new(), 1)).await });
    let notified = Arc::new(Mutex::new(0));
    let count = notified.clone();
    let completed = tokio::spawn(std::future::poll_fn(move |cx| {
        *count.lock().unwrap() += 1;
        cq.poll_notified(cx)
    }));
    tokio::task::yield_now().await;
    net.remove("a");
    assert_eq!(soon(reader).await.unwrap(), DeviceEvent::Gone);
    assert!(matches!(soon(received).await.unwrap(), Err(DeviceError::Gone)));
    // Nothing completes, but who waits for completions gets to look.
    assert_eq!(*notified.lock().unwrap(), 2);
    completed.abort();
}

#[tokio::test(start_paused = true)]
async fn a_dropped_subnet_takes_its_devices_away() {
    let net = star(1).await;
    let (a, b) = connected(&net, Options::default()).await;
    a.post_recv(1, 16);
    drop(net);
    assert_eq!(soon(a.completions(1)).await[0].status, Status::WR_FLUSH_ERR);
    assert_eq!(soon(event(&b.device)).await, DeviceEvent::Gone);
    tokio::task::yield_now().await;
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}

#[test]
fn the_end_of_the_runtime_is_the_end_of_the_devices() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (net, a) = runtime.block_on(async {
        let net = star(1).await;
        let a = End::new(net.device("a")).await;
        tokio::task::yield_now().await;
        (net, a)
    });
    drop(runtime);
    assert!(matches!(a.device.port(1), Err(DeviceError::Gone)));
    assert_eq!(a.qp.post_recv(&mut Default::default()), Err(PostError::Gone));
    drop(net);
}

#[tokio::test(start_paused = true)]
async fn handles_are_dropped_in_any_order() {
    let net = star(1).await;
    for order in 0..6 {
        let (a, b) = connected(&net, Options::default()).await;
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
    }
    net.quiet().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn quiet_names_what_is_left() {
    let net = star(5).await;
    let (a, b) = connected(&net, Options::default()).await;
    b.post_recv(3, 16);
    drop(a);
    let error = net.quiet().await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("seed 5"), "{text}");
    let qp = format!("b: QP {} with 0 sends and 3 receives posted", b.qp.qpn());
    assert!(text.contains(&qp), "{text}");
    drop(b);
    net.quiet().await.unwrap();

    let domain = net.device("a").domain();
    let region = domain.register(SharedMemory::zeroed(64), Access::REMOTE_READ).await.unwrap();
    let srq = domain.create_srq(4, 1).await.unwrap();
    let held: Vec<_> = net.quiet().await.unwrap_err().held.into_iter().map(|held| held.what).collect();
    let expected = [
        format!("a: memory region with key {:#x}", region.remote().rkey().0),
        format!("a: shared receive queue {:#x}", srq.number()),
    ];
    assert_eq!(held, expected);
    drop((region, srq));
    net.quiet().await.unwrap();
}

/// What one call gives the device to send leaves in turns, without time passing.
#[tokio::test(start_paused = true)]
async fn much_to_send_leaves_in_turns() {
    const MANY: u32 = 1000;
    let net = star(1).await;
    let (a, b) = (net.device("a"), net.device("b"));
    let cq = a.create_cq(MANY + 1).await.unwrap();
    let qp = a.domain().create_qp(QpSpec::new(QpType::Ud, &cq, MANY, 1)).await.unwrap();
    let qkey = QKey(0x11);
    let init = Init { port: 1, pkey_index: 0, access: Access::empty(), qkey };
    let rts = Transition::DatagramRts { sq_psn: Psn::truncate(7) };
    for transition in [Transition::Init(init), Transition::DatagramRtr, rts] {
        qp.modify(transition).await.unwrap();
    }
    let ah = a.domain().create_ah(address(&a, 1, b.gids(1).unwrap()[0].gid, false)).await.unwrap();
    let to = DatagramDest { ah, qpn: qp.qpn(), qkey };
    let datagram = |id| SendWr::new(id, SendOp::Datagram { to: to.clone(), imm: None }, Buf::unregistered(8));
    let sent = || net.counters().into_iter().find(|(name, _)| *name == "sent").expect("a counter").1;

    let start = tokio::time::Instant::now();
    qp.post_send(&mut (0..u64::from(MANY)).map(datagram).collect()).unwrap();
    assert!((1..=256).contains(&sent()), "{} in one go", sent());
    while sent() < u64::from(MANY) {
        tokio::task::yield_now().await;
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    let mut done = Vec::new();
    assert_eq!(cq.poll(&mut done, MANY as usize + 1), MANY as usize);

    // Of what is left when the device goes a part leaves.
    qp.post_send(&mut (0..u64::from(MANY)).map(datagram).collect()).unwrap();
    let before = sent();
    net.remove("a");
    assert!((1..=256).contains(&(sent() - before)), "{} at the end", sent() - before);
}

#[derive(Debug)]
struct TimeWait(Mutex<Option<tokio::time::Instant>>);

impl Probe for TimeWait {
    fn held(&self) -> Vec<Held> {
        let until = self.0.lock().unwrap().filter(|until| tokio::time::Instant::now() < *until);
        until.map(|_| Held { what: "a connection in TimeWait".into(), ends: true }).into_iter().collect()
    }
}

#[tokio::test(start_paused = true)]
async fn quiet_waits_for_what_ends_by_itself() {
    let net = star(1).await;
    let start = tokio::time::Instant::now();
    let probe = Arc::new(TimeWait(Mutex::new(Some(start + Duration::from_secs(90)))));
    let weak: std::sync::Weak<dyn Probe> = Arc::downgrade(&(probe.clone() as Arc<dyn Probe>));
    net.device("a").add_probe(weak);
    net.quiet().await.unwrap();
    assert!((90..92).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    *probe.0.lock().unwrap() = Some(start + Duration::from_secs(86_400));
    let error = net.quiet().await.unwrap_err();
    assert_eq!(error.held[0].what, "a: a connection in TimeWait");
}

#[tokio::test(start_paused = true)]
async fn hca_t64_every_packet_is_a_whole_frame_and_in_the_pcap() {
    for (grh, next) in [(false, NextHeader::Bth), (true, NextHeader::Grh)] {
        let net = star(1).await;
        let (a, b) = connected(&net, Options { grh, ..Options::default() }).await;
        soon(exchange(&a, &b, 1)).await;
        let file = std::env::temp_dir().join(format!("ibsoft-subnet-{}.pcap", std::process::id()));
        net.write_pcap(&file).unwrap();
        let mut reader = PcapReader::new(File::open(&file).unwrap()).unwrap();
        let mut packets = 0;
        while let Some(packet) = reader.next_packet() {
            let packet = packet.unwrap();
            let (covered, vcrc) = packet.data[16..].split_last_chunk().unwrap();
            let (frame, icrc) = covered.split_last_chunk().unwrap();
            assert_eq!(ibwire::vcrc::of(covered).0, *vcrc);
            assert_eq!(ibwire::icrc::of_ib_frame(frame).unwrap().0, *icrc);
            let lrh = Lrh::parse(frame).unwrap();
            assert_eq!((lrh.next, usize::from(lrh.words) * 4), (next, covered.len()));
            packets += 1;
        }
        assert_eq!(packets, net.log().len());
        std::fs::remove_file(&file).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn time_within_a_millisecond_is_kept() {
    let net = star(1).await;
    net.faults().delay(Duration::from_micros(10)..=Duration::from_micros(10));
    let (a, b) = connected(&net, Options::default()).await;
    b.post_recv(1, 100_000);
    a.post_send(1, &message(1, 100_000), None);
    soon(a.completions(1)).await;
    // The window is 64 of 98 packets: the second batch leaves when the first is acknowledged.
    let log = net.log();
    assert!(log[0].starts_with("0ns a > b RC_SEND_FIRST"), "{}", log[0]);
    assert!(log.last().unwrap().ends_with("at 40µs"), "{}", log.last().unwrap());
}

#[test]
fn without_a_runtime_it_is_an_error() {
    let building = Subnet::star(["a"]);
    let cx = &mut std::task::Context::from_waker(std::task::Waker::noop());
    let built = std::pin::pin!(building).poll(cx);
    assert!(matches!(built, std::task::Poll::Ready(Err(DeviceError::NoRuntime))));
}

#[tokio::test]
async fn names_are_unique_and_known() {
    let twice = Subnet::star(["a", "a"]).await.unwrap_err();
    assert!(matches!(twice, DeviceError::InUse { .. }));
    assert!(matches!(Subnet::rails(0, ["a"]).await.unwrap_err(), DeviceError::Limit { .. }));
    let net = star(0).await;
    let unknown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| net.device("c")));
    let text = *unknown.unwrap_err().downcast::<String>().unwrap();
    assert_eq!(text, "no HCA \"c\" in the subnet, there are [\"a\", \"b\"]");
}
