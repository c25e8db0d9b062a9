//! The whole API over two switches, with a subnet manager and without: connections of both kinds, datagrams found by their
//! service, groups, paths that migrate from one switch to the other, and many queries at once.

mod common;

use std::future::Future;
use std::time::Duration;

use common::{Result, SID};
use futures::StreamExt;
use futures::future::try_join_all;
use ibcm::sa::{PathRecord, Template};
use ibcm::sim::Subnet;
use ibcm::{
    Connection, ConnectionEvent, FailoverAccepted, Gid, Hca, How, Listener, Path, Transport, sidr, ud,
};
use tokio::time::{Instant, sleep, timeout};

/// Longer than any of the cases takes, in the subnet's time.
const LIMIT: Duration = Duration::from_secs(120);

/// Two switches with two cables between them, `a` at one, `b` and `c` at the other. A manager would be on the latter.
async fn net(managed: bool) -> Result<Subnet> {
    let net = Subnet::builder().seed(1).switch("right").switch("left");
    let net = net.link("left/9", "right/9").link("left/10", "right/10");
    let net = net.hca("a").link("a", "left").hca("b").link("b", "right").hca("c").link("c", "right");
    Ok(if managed { net.managed().await? } else { net.await? })
}

async fn open(net: &Subnet, name: &str) -> Result<Hca> {
    Ok(Hca::open(net.device(name)).await?)
}

/// Each case with a manager and without.
async fn both<F: Future<Output = Result>>(case: impl Fn(bool) -> F) -> Result {
    for managed in [false, true] {
        timeout(LIMIT, case(managed)).await??;
    }
    Ok(())
}

async fn connected(transport: Transport, managed: bool) -> Result {
    let net = net(managed).await?;
    let (a, b) = (open(&net, "a").await?, open(&net, "b").await?);
    let listener = Listener::bind(SID).device(&b).transport(transport).await?;
    let path = a.path_to(b.gid()).service_id(SID).await?;
    let accepting = async { Ok::<_, ibcm::Error>(listener.accept().await?.accept().await?) };
    let connecting = async { Ok(Connection::connect(path).transport(transport).await?) };
    let (here, there) = tokio::try_join!(connecting, accepting)?;
    assert_eq!(here.transport(), transport);
    // Longer than a packet.
    let message = vec![7; 4000];
    for _ in 0..20 {
        here.send_copy(&message).await?;
        let heard = there.recv().await?.ok_or("closed")?;
        there.send(heard.into_buf()).await?;
        assert_eq!(here.recv().await?.ok_or("closed")?[..], message);
    }
    assert_eq!(here.disconnect().await.how, How::Confirmed);
    drop((here, there, listener));
    Ok(net.quiet().await?)
}

#[tokio::test(start_paused = true)]
async fn reliable_connections() -> Result {
    both(|managed| connected(Transport::Rc, managed)).await
}

#[tokio::test(start_paused = true)]
async fn unreliable_connections() -> Result {
    both(|managed| connected(Transport::Uc, managed)).await
}

async fn found(managed: bool) -> Result {
    let net = net(managed).await?;
    let (a, b) = (open(&net, "a").await?, open(&net, "b").await?);
    let (socket, served) = (ud::Socket::open(&a).await?, ud::Socket::open(&b).await?);
    let published = sidr::publish(SID, &served).private_data(b"v1").await?;
    let reply = sidr::query(a.path_to(b.gid()).service_id(SID).await?).await?;
    assert_eq!(reply.private_data().trimmed(), b"v1");
    socket.send_copy(&reply.peer(), b"tick").await?;
    let heard = served.recv().await?;
    served.send_copy(&heard.from(), &heard).await?;
    assert_eq!(socket.recv().await?[..], b"tick"[..]);
    drop((heard, published, served, socket));
    Ok(net.quiet().await?)
}

#[tokio::test(start_paused = true)]
async fn datagrams_to_a_service_that_was_found() -> Result {
    both(found).await
}

/// A sender that is not in the group, one copy for each that is, on both sides.
async fn spread(managed: bool) -> Result {
    let net = net(managed).await?;
    let (a, b, c) = (open(&net, "a").await?, open(&net, "b").await?, open(&net, "c").await?);
    let (near, far, other) =
        (ud::Socket::open(&a).await?, ud::Socket::open(&b).await?, ud::Socket::open(&c).await?);
    let mgid: Gid = "ff15:a01b::7".parse()?;
    let group = near.join(mgid).await?;
    assert_eq!((far.join(mgid).await?.lid(), other.join(mgid).await?.lid()), (group.lid(), group.lid()));
    sleep(Duration::from_secs(1)).await; // the switches learn of it
    near.send_copy(&group, b"to all").await?;
    for socket in [&near, &far, &other] {
        assert_eq!(socket.recv().await?[..], b"to all"[..]);
    }
    other.leave(mgid).await?;
    net.port_down("left", 9); // the tree goes by the other cable
    sleep(Duration::from_secs(30)).await;
    near.send_copy(&group, b"again").await?;
    for socket in [&near, &far] {
        assert_eq!(socket.recv().await?[..], b"again"[..]);
    }
    let nothing = timeout(Duration::from_secs(1), other.recv()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    drop((near, far, other));
    Ok(net.quiet().await?)
}

#[tokio::test(start_paused = true)]
async fn groups_over_both_cables() -> Result {
    both(spread).await
}

/// Two HCAs with a port at each switch.
async fn two_ports(managed: bool) -> Result<Subnet> {
    let net = Subnet::builder().seed(1).switch("right").switch("left").link("left", "right");
    let net = net.hca_with_ports("client", 2).link("client/1", "left").link("client/2", "right");
    let net = net.hca_with_ports("server", 2).link("server/1", "left").link("server/2", "right");
    Ok(if managed { net.managed().await? } else { net.await? })
}

async fn path(from: &Hca, to: &Hca, port: usize) -> Result<Path> {
    Ok(from.ports()[port - 1].path_to(to.ports()[port - 1].gid()).await?)
}

/// The path from the first ports once they are in service again.
async fn path_again(from: &Hca, to: &Hca) -> Result<Path> {
    for _ in 0..60 {
        if let Ok(Ok(path)) = timeout(Duration::from_secs(5), path(from, to, 1)).await {
            return Ok(path);
        }
        sleep(Duration::from_secs(1)).await;
    }
    Err("the first ports do not come back".into())
}

/// Data goes on while a switch is gone, and, when it is back and its path is loaded again, while a port of the other goes
/// down.
async fn migrated(managed: bool) -> Result {
    let net = two_ports(managed).await?;
    let (client, server) = (open(&net, "client").await?, open(&net, "server").await?);
    let listener = Listener::bind(SID).device(&server).await?;
    let (primary, spare) = (path(&client, &server, 1).await?, path(&client, &server, 2).await?);
    let connect = Connection::connect(primary.with_service(SID)).retry_count(1).alternate_path(&spare);
    let accept = async { Ok::<_, ibcm::Error>(listener.accept().await?.accept().failover(true).await?) };
    let (here, there) = tokio::try_join!(async { Ok(connect.await?) }, accept)?;
    assert_eq!(here.failover(), Some(FailoverAccepted::ACCEPTED));
    let echo = tokio::spawn(async move {
        while let Some(message) = there.recv().await? {
            there.send(message.into_buf()).await?;
        }
        Ok::<_, ibcm::Error>(there)
    });
    for n in 0..300u32 {
        match n {
            100 => net.remove_switch("left"),
            200 => {
                net.put_switch_back("left");
                here.load_alternate_path(&path_again(&client, &server).await?).await?;
            }
            210 => net.port_down("client", 2),
            _ => {}
        }
        here.send_copy(&n.to_be_bytes()).await?;
        assert_eq!(here.recv().await?.ok_or("closed")?[..], n.to_be_bytes());
    }
    let seen: Vec<_> = here.events().take(3).collect().await;
    let port = |event: &ConnectionEvent| match event {
        ConnectionEvent::Migrated { port, .. } => Some(*port),
        _ => None,
    };
    assert_eq!(seen.iter().map(port).collect::<Vec<_>>(), [Some(2), None, Some(1)], "{seen:?}");
    assert_eq!(here.disconnect().await.how, How::Confirmed);
    drop((here, echo.await??, listener));
    tokio::join!(client.close(), server.close());
    Ok(net.quiet().await?)
}

#[tokio::test(start_paused = true)]
async fn a_path_migrates_from_switch_to_switch_and_back() -> Result {
    both(migrated).await
}

/// 10,000 a second: the SA answers at the speed of whoever asks.
#[tokio::test(start_paused = true)]
async fn a_thousand_queries_within_a_tenth_of_a_second() -> Result {
    timeout(LIMIT, async {
        let net = net(true).await?;
        let (a, b) = (open(&net, "a").await?, open(&net, "b").await?);
        let (sa, before) = (a.sa(), Instant::now());
        for _ in 0..100 {
            let wanted = || Template::<PathRecord>::new().sgid(a.gid()).dgid(b.gid());
            let answers = try_join_all((0..10).map(|_| sa.get(wanted()))).await?;
            assert!(answers.iter().all(|path| path.dgid == b.gid()));
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(before.elapsed(), Duration::from_millis(100));
        assert_eq!(sa.stats().requests, 1000);
        Ok(())
    })
    .await?
}

/// A large subnet leaves nothing behind.
#[tokio::test(start_paused = true)]
async fn a_thousand_hcas_come_and_go() -> Result {
    timeout(LIMIT, async {
        let names: Vec<String> = (0..1000).map(|hca| format!("hca{hca}")).collect();
        let net = Subnet::star(names).await?;
        let (first, last) = (open(&net, "hca0").await?, open(&net, "hca999").await?);
        let path = first.path_to(last.gid()).service_id(SID).await?;
        assert_ne!(path.record().dlid, path.record().slid);
        drop((path, first, last));
        net.quiet().await?;
        let last = net.device("hca999");
        drop(net);
        assert!(
            matches!(ibdev::Device::port(&last, 1), Err(ibdev::DeviceError::Gone)),
            "it went with its subnet"
        );
        Ok(())
    })
    .await?
}
