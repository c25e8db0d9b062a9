//! Subnets with subnet managers that start, end and change what ports are: what programs above see of that.

mod common;

use std::time::Duration;

use common::{Result, SID};
use futures::{Stream, StreamExt};
use ibcm::sa::{Group, Notice, SaError, Trap};
use ibcm::sim::{BuildSubnet, Mishap, Subnet};
use ibcm::{ConnectError, Connection, Gid, Hca, HcaEvent, Listener, PKey, PathSource, QueryError, sidr};
use tokio::time::{Instant, sleep, timeout};

/// Two switches with two links between them, and an HCA at each; a manager on the left one.
fn two_switches() -> BuildSubnet {
    Subnet::builder()
        .switch("left")
        .switch("right")
        .link("left/10", "right/10")
        .link("left/11", "right/11")
        .hca("a")
        .link("a", "left")
        .hca("b")
        .link("b", "right")
        .managed()
}

async fn hcas(net: &Subnet) -> Result<(Hca, Hca)> {
    Ok((Hca::open(net.device("a")).await?, Hca::open(net.device("b")).await?))
}

/// A connection from one to the other, and a message over it.
async fn hello(a: &Hca, b: &Hca) -> Result<(Connection, Connection)> {
    let listener = Listener::bind(SID).device(b).await?;
    let path = a.path_to(b.gid()).service_id(SID).await?;
    let accepting = async { Ok::<_, ibcm::Error>(listener.accept().await?.accept().await?) };
    let connecting = async { Ok(Connection::connect(path).await?) };
    let (conn, served) = tokio::try_join!(connecting, accepting)?;
    say(&conn, &served).await?;
    Ok((conn, served))
}

async fn say(from: &Connection, to: &Connection) -> Result {
    from.send_copy(b"hello").await?;
    assert!(timeout(Duration::from_secs(60), to.recv()).await??.is_some());
    Ok(())
}

/// Waits for something in a stream.
async fn until<T: PartialEq + std::fmt::Debug>(stream: &mut (impl Stream<Item = T> + Unpin), what: T) {
    let look = async { while stream.next().await.expect("the stream goes on") != what {} };
    timeout(Duration::from_secs(60), look).await.unwrap_or_else(|_| panic!("no {what:?}"));
}

fn group() -> Gid {
    "ff15:a01b::7".parse().expect("a GID")
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_starts_anew_is_told_everything_again() -> Result {
    let net = two_switches().await?;
    let (a, b) = hcas(&net).await?;
    assert_eq!(a.path_to(b.gid()).await?.source(), PathSource::Sa);
    let (conn, served) = hello(&a, &b).await?;
    let mut events = a.events();
    let mut notices = b.sa().subscribe([Trap::GID_OUT]).await?;
    let mut member = a.sa().join(group()).or_create(Group::new(7)).await?;
    let mut service = a.sa().register(SID, "kv").await?;
    let lids = (a.ports()[0].lid(), b.ports()[0].lid());
    net.sm("left").restart();
    until(&mut events, HcaEvent::ClientReregister { port: 1 }).await;
    timeout(Duration::from_secs(60), async { (member.changed().await, service.changed().await) }).await?.0?;
    until(&mut notices, Notice::Resubscribed).await;
    assert_eq!(b.sa().resolve(SID).await?.len(), 1);
    // LIDs and with them connections stay.
    assert_eq!((a.ports()[0].lid(), b.ports()[0].lid()), lids);
    say(&conn, &served).await
}

/// A path that is known needs no SA unless a fresh one is wanted, and who asks says how long.
#[tokio::test(start_paused = true)]
async fn a_fresh_path_is_asked_for_within_its_deadline() -> Result {
    let net = two_switches().await?;
    let (a, b) = hcas(&net).await?;
    let second = Duration::from_secs(1);
    assert_eq!(a.path_to(b.gid()).await?.source(), PathSource::Sa);
    assert!(matches!(a.path_to(b.gid()).await?.source(), PathSource::Cache { .. }));
    assert_eq!(a.path_to(b.gid()).fresh().await?.source(), PathSource::Sa);
    net.sa().silent();
    assert!(matches!(a.path_to(b.gid()).deadline(second).await?.source(), PathSource::Cache { .. }));
    for deadline in [second / 2, 3 * second] {
        let started = Instant::now();
        let late = a.path_to(b.gid()).fresh().deadline(deadline).await.expect_err("silence");
        assert!(matches!(late, QueryError::Sa(_)), "{late:?}");
        let waited = started.elapsed();
        assert!((deadline..deadline + second / 100).contains(&waited), "{waited:?} instead of {deadline:?}");
    }
    let refused = a.path_to(b.gid()).deadline(Duration::ZERO).await.expect_err("no time");
    assert_eq!(refused.to_string(), "deadline is 0ns, it must be more than zero");
    Ok(())
}

/// Two rails, each with a manager of its own: where one rail's SA is silent, the other's is asked, within one deadline.
#[tokio::test(start_paused = true)]
async fn a_port_whose_sa_is_silent_holds_up_no_other() -> Result {
    let net = Subnet::builder().switch("left").switch("right").hca_with_ports("a", 2).hca_with_ports("b", 2);
    let net = net.link("a/1", "left").link("a/2", "right").link("b/1", "left").link("b/2", "right");
    let net = net.managed().await?;
    net.sm("right").start(0);
    let (a, b) = hcas(&net).await?;
    let gid = b.ports()[1].gid();
    while a.path_to(gid).fresh().await.is_err() {
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(a.path_to(gid).await?.port().number(), 2);
    net.sm("left").kill();
    let path = a.path_to(gid).fresh().await?;
    assert_eq!((path.port().number(), path.source()), (2, PathSource::Sa));
    // The first has used it up, and is who is told of, with the whole time.
    let (deadline, started) = (Duration::from_secs(2), Instant::now());
    let late = a.path_to(gid).fresh().deadline(deadline).await.expect_err("no time is left");
    assert!(
        matches!(&late, QueryError::Sa(late) if matches!(**late, SaError::Late(time) if time == deadline)),
        "{late:?}"
    );
    assert!(started.elapsed() < deadline + deadline / 100, "{:?}", started.elapsed());
    Ok(())
}

/// What the SA said of the way to somebody who does not answer may be of before.
#[tokio::test(start_paused = true)]
async fn a_path_over_which_nobody_answers_is_asked_for_again() -> Result {
    let net = two_switches().await?;
    let (a, b) = hcas(&net).await?;
    let (gid, second) = (b.gid(), Duration::from_secs(1));
    net.partition(&["a"], &["b"]);
    assert_eq!(a.path_to(gid).await?.source(), PathSource::Sa);
    let path = a.path_to(gid).service_id(SID).await?;
    assert!(matches!(path.source(), PathSource::Cache { .. }));
    let silence = Connection::connect(path.clone()).deadline(second).await.expect_err("a partition");
    assert!(matches!(silence, ConnectError::Unreachable { .. }), "{silence:?}");
    assert_eq!(a.path_to(gid).await?.source(), PathSource::Sa);
    let silence = sidr::query(path).deadline(second).await.expect_err("a partition");
    assert!(matches!(silence, sidr::QueryError::Unreachable { .. }), "{silence:?}");
    // That was a path of before, too.
    assert_eq!(a.path_to(gid).await?.source(), PathSource::Sa);
    assert!(matches!(a.path_to(gid).await?.source(), PathSource::Cache { .. }));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn new_lids_end_connections_and_new_ones_use_them() -> Result {
    let net = two_switches().lmc(1).await?;
    let (a, b) = hcas(&net).await?;
    let (conn, _served) = hello(&a, &b).await?;
    let mut events = a.events();
    for _ in 0..3 {
        let before = a.ports()[0].lid();
        net.sm("left").restart_with_new_lids();
        until(&mut events, HcaEvent::LidChange { port: 1 }).await;
        assert_ne!(a.ports()[0].lid(), before);
        net.sweep().await?;
        assert_eq!(a.sa().path(b.gid()).await?.dlid, b.ports()[0].lid());
    }
    // Nobody has the LID that its packets go to.
    conn.send_copy(b"anyone?").await.expect_err("no way");
    drop(hello(&a, &b).await?);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_standby_takes_over_and_hands_back() -> Result {
    let net = two_switches().await?;
    let (a, b) = hcas(&net).await?;
    net.sm("right").start(0);
    sleep(Duration::from_secs(1)).await;
    let states = || [net.sm("left"), net.sm("right")].map(|sm| sm.state().map(|state| state.to_string()));
    assert_eq!(states(), [Some("master".into()), Some("standby".into())]);
    let (mut events, mut member) = (a.events(), b.sa().join(group()).or_create(Group::new(7)).await?);
    net.sm("left").kill();
    let killed = Instant::now();
    until(&mut events, HcaEvent::SmChange { port: 1 }).await;
    assert!(killed.elapsed() < Duration::from_secs(6), "{:?}", killed.elapsed());
    timeout(Duration::from_secs(60), member.changed()).await??;
    assert_eq!(states(), [None, Some("master".into())]);
    drop(hello(&a, &b).await?);

    // One of higher priority is given the mastership, one of lower is not.
    net.sm("left").start(3);
    until(&mut events, HcaEvent::SmChange { port: 1 }).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(states(), [Some("master".into()), Some("standby".into())]);
    timeout(Duration::from_secs(60), member.changed()).await??;
    drop(hello(&a, &b).await?);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_sa_that_is_busy_silent_or_slow() -> Result {
    let net = two_switches().await?;
    let (a, b) = hcas(&net).await?;
    let ask = || a.sa().path(b.gid()).uncached();
    net.sa().slow(Duration::from_millis(300));
    let start = Instant::now();
    ask().await?;
    assert!((300..310).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    net.sa().silent();
    let error = ask().await.expect_err("nobody answers").to_string();
    assert!(error.starts_with("no answer"), "{error}");
    net.sa().busy();
    // Another one that starts behaves as this one.
    net.sm("left").restart();
    let asking = tokio::spawn(ask().all());
    sleep(Duration::from_secs(1)).await;
    assert!(!asking.is_finished());
    net.sa().normal();
    assert_eq!(timeout(Duration::from_secs(60), asking).await???.len(), 1);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn links_and_hcas_that_go_and_come_back_are_told_to_subscribers() -> Result {
    let net = two_switches().await?;
    let (a, b) = hcas(&net).await?;
    let (conn, served) = hello(&a, &b).await?;
    let mut notices = a.sa().subscribe([Trap::GID_IN, Trap::GID_OUT]).await?;
    // One of two links: packets go by the other one as soon as the switches' traps have made the manager sweep.
    for port in [10, 11] {
        net.port_down("left", port);
        say(&conn, &served).await?;
        net.port_up("left", port);
        net.sweep().await?;
    }
    drop((conn, served));
    for gone in [true, false] {
        match gone {
            true => net.remove("b"),
            false => net.link_down("b"),
        }
        until(&mut notices, Notice::GidOut(b.gid())).await;
        assert_eq!(a.sa().path(b.gid()).uncached().all().await?, []);
        let b = match gone {
            true => Hca::open(net.put_back("b")).await?,
            false => {
                net.link_up("b");
                Hca::open(net.device("b")).await?
            }
        };
        until(&mut notices, Notice::GidIn(b.gid())).await;
        drop(hello(&a, &b).await?);
        b.close().await;
    }
    net.put_back("b");
    net.remove_switch("right");
    until(&mut notices, Notice::GidOut(b.gid())).await;
    net.put_switch_back("right");
    until(&mut notices, Notice::GidIn(b.gid())).await;
    drop(hello(&a, &Hca::open(net.device("b")).await?).await?);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn partitions_of_ports_can_be_changed() -> Result {
    let net = two_switches().await?;
    let (a, b) = hcas(&net).await?;
    let (mut events, key) = (a.events(), PKey(0x8005));
    let paths = || a.sa().path(b.gid()).p_key(key).uncached().all();
    assert_eq!(paths().await?, []);
    for name in ["a", "b"] {
        net.set_p_keys(name, &[PKey::DEFAULT, key]);
    }
    until(&mut events, HcaEvent::PkeyChange { port: 1 }).await;
    net.sweep().await?;
    assert_eq!(paths().await?.len(), 1);
    net.set_p_keys("b", &[PKey::DEFAULT]);
    net.sweep().await?;
    assert_eq!(paths().await?, []);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn sweeps_go_on_until_they_are_whole() -> Result {
    let net = two_switches().seed(5).await?;
    let (a, b) = hcas(&net).await?;
    net.faults().loss(0.2).reorder(0.2).delay(Duration::ZERO..=Duration::from_millis(20));
    net.sm("left").restart_with_new_lids();
    net.sweep().await?;
    let count = |name| net.sm("left").counters().into_iter().find(|(n, _)| *n == name).expect("a counter").1;
    assert!(count("smps_unanswered") > 0 && count("heavy_sweeps") > 1, "{:?}", net.sm("left").counters());
    net.faults().clear();
    assert_eq!(a.sa().path(b.gid()).uncached().await?.dlid, b.ports()[0].lid());
    drop(hello(&a, &b).await?);
    Ok(())
}

/// All packets of a subnet on which everything happens, as a capture.
async fn capture(seed: u64) -> Result<Vec<u8>> {
    let net = two_switches().seed(seed).await?;
    net.sm("right").start(0);
    let (every, lasting) =
        (Duration::from_secs(1)..=Duration::from_secs(4), Duration::ZERO..=Duration::from_secs(3));
    let mut faults = net.faults().loss(0.05).duplicate(0.02).reorder(0.1);
    for what in [Mishap::Link, Mishap::Hca, Mishap::Switch, Mishap::Partition, Mishap::Manager] {
        faults = faults.happen(what, every.clone(), lasting.clone());
    }
    for _ in 0..6 {
        let a = Hca::open(net.device("a")).rng_seed([1; 32]).await;
        if let Ok(a) = &a {
            // It comes, or not: that is the seed's affair.
            _ = timeout(Duration::from_secs(2), a.sa().join(group()).or_create(Group::new(7))).await;
        }
        sleep(Duration::from_secs(1)).await;
    }
    let file = std::env::temp_dir().join(format!("ibcm-managed-{}-{seed}.pcap", std::process::id()));
    net.write_pcap(&file)?;
    let bytes = std::fs::read(&file)?;
    std::fs::remove_file(file)?;
    Ok(bytes)
}

#[test]
fn the_same_seed_gives_the_same_capture() -> Result {
    let run = |seed| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().start_paused(true).build()?.block_on(capture(seed))
    };
    let first = run(7)?;
    assert!(first.len() > 10_000);
    assert!(first == run(7)?, "two runs with one seed differ");
    assert!(first != run(8)?, "two seeds give the same run");
    Ok(())
}
