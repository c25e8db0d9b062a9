//! What happens without being asked for: streams of events, and counters by name.

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::{Net, Result, SID};
use futures::{FutureExt, StreamExt};
use ibcm::sim::Subnet;
use ibcm::{Connection, ConnectionEvent, Gid, Hca, HcaEvent, Listener, PortState, QueryError};
use tokio::time::{Instant, sleep, timeout};

#[tokio::test(start_paused = true)]
async fn a_port_goes_down_and_up() -> Result {
    let net = Subnet::rails(2, ["here", "there"]).await?;
    let hca = Hca::open(net.device("here")).await?;
    let (mut all, ports) = (hca.events(), hca.ports());
    let mut of_first = ports[0].events();
    let mut of_second = ports[1].events();
    let waiting = tokio::spawn(async move { (all.next().await, all) });
    tokio::task::yield_now().await;
    net.port_down("here", 2);
    let (event, mut all) = waiting.await?;
    assert_eq!(event, Some(HcaEvent::PortDown { port: 2 }));
    // The port shows it already.
    assert_eq!((ports[0].state(), ports[1].state()), (PortState::Active, PortState::Down));
    net.port_up("here", 2);
    assert_eq!(all.next().await, Some(HcaEvent::PortUp { port: 2 }));
    assert_eq!(ports[1].state(), PortState::Active);
    assert_eq!(of_second.next().await, Some(HcaEvent::PortDown { port: 2 }));
    assert_eq!(of_second.next().await, Some(HcaEvent::PortUp { port: 2 }));
    assert_eq!(of_first.next().now_or_never(), None);

    // They end with the HCA, and do not keep it.
    net.remove("here");
    for events in [&mut all, &mut of_first, &mut of_second] {
        assert_eq!(events.next().await, Some(HcaEvent::Removed));
        assert_eq!(events.next().await, None);
    }
    assert_eq!(hca.events().next().await, None);
    Ok(())
}

/// A GID with another prefix than the subnet's first one.
fn other_gid(n: u8) -> Gid {
    Gid([0xfd, n, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])
}

#[tokio::test(start_paused = true)]
async fn a_gid_changes() -> Result {
    let Net { net, client, server } = Net::new(4).await?;
    let listener = Listener::bind(SID).device(&server).await?;
    let accept = async || Ok::<_, ibcm::Error>(listener.accept().await?.accept().await?);
    let connect = async |gid| {
        let path = client.path_to(gid).service_id(SID).await?;
        Ok(Connection::connect(path).await?)
    };
    let before = server.gid();
    let (old, served) = tokio::try_join!(connect(before), accept())?;

    let mut events = server.events();
    let (mut of_client, port) = (client.events(), server.ports().remove(0));
    net.set_gid("server", 1, other_gid(1));
    assert_eq!(events.next().await, Some(HcaEvent::GidChange { port: 1 }));
    // Port and HCA show it already; the connection goes on.
    assert_eq!((port.gid(), server.gid()), (other_gid(1), other_gid(1)));
    assert_eq!(of_client.next().now_or_never(), None);
    old.send_copy(b"still here").await?;
    assert!(served.recv().await?.is_some());
    // Who dials the old one learns that nobody has it, who dials the new one is connected.
    assert!(matches!(client.path_to(before).await, Err(QueryError::NoPath { .. })));
    let (new, new_served) = tokio::try_join!(connect(other_gid(1)), accept())?;
    assert_eq!(new.peer().gid, other_gid(1));
    old.disconnect().await;
    new.disconnect().await;

    drop((served, new_served, port, listener, server));
    assert_eq!(events.next().await, None);
    drop((old, new, client, of_client));
    Ok(net.quiet().await?)
}

#[tokio::test(start_paused = true)]
async fn who_does_not_read_learns_how_much_was_missed() -> Result {
    let net = Subnet::star(["here"]).await?;
    let hca = Hca::open(net.device("here")).await?;
    let (mut idle, mut keen) = (hca.events(), hca.events());
    for n in 0..1000u32 {
        net.set_gid("here", 1, other_gid(n as u8));
        assert_eq!(keen.next().await, Some(HcaEvent::GidChange { port: 1 }));
    }
    assert_eq!(idle.next().await, Some(HcaEvent::Lagged(1000 - 64)));
    hca.close().await;
    assert_eq!(idle.collect::<Vec<_>>().await.len(), 64);
    Ok(())
}

/// The peer's program takes its time; its connection manager says so.
#[tokio::test(start_paused = true)]
async fn a_busy_peer() -> Result {
    let net = Net::new(5).await?;
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let start = Instant::now();
    let accept = async {
        let request = listener.accept().await?;
        sleep(Duration::from_secs(20)).await;
        Ok::<_, ibcm::Error>(request.accept().await?)
    };
    let connect = async { Ok(Connection::connect(path).deadline(Duration::from_secs(60)).await?) };
    let (client, server) = tokio::try_join!(connect, accept)?;
    // It was told while the connection was being made.
    let mut events = client.events();
    let Some(ConnectionEvent::PeerBusy { until }) = events.next().await else { panic!("not told") };
    assert!(until > start.into_std() && until < start.into_std() + Duration::from_secs(20));
    assert_eq!(events.next().now_or_never(), None);
    assert_eq!(server.events().next().now_or_never(), None);

    // The end of the connection is the end of its events, whoever waits for them.
    let waiting = tokio::spawn(async move { events.next().await });
    let dropped = server.events();
    drop(server);
    client.closed().await;
    assert_eq!(waiting.await?, None);
    assert_eq!(client.events().count().await, 1);
    assert_eq!(dropped.count().await, 0);
    drop((client, listener));
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn each_counter_has_one_name() -> Result {
    let net = Net::new(6).await?;
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let accept = async { Ok::<_, ibcm::Error>(listener.accept().await?.accept().await?) };
    let connect = async { Ok(Connection::connect(path).await?) };
    let (client, server) = tokio::try_join!(connect, accept)?;
    client.send_copy(b"hello").await?;
    assert_eq!(&server.recv().await?.ok_or("closed")?[..], b"hello");

    let all = net.client.stats();
    let names: BTreeSet<_> = all.named().map(|(name, _)| name).collect();
    assert_eq!(names.len(), all.named().count());
    assert_eq!((all.get("messages_sent"), all.hca.messages_sent), (Some(1), 1));
    assert_eq!((all.get("established"), all.cm.established), (Some(1), 1));
    assert!(all.get("tx_packets").is_some_and(|packets| packets >= 3));
    let of = |name| client.stats().named().find(|(known, _)| *known == name);
    assert_eq!(
        (of("messages_sent"), of("bytes_sent")),
        (Some(("messages_sent", 1)), Some(("bytes_sent", 5)))
    );
    assert_eq!(
        server.stats().named().find(|(name, _)| *name == "bytes_received"),
        Some(("bytes_received", 5))
    );
    let of_listener: u64 = listener.stats().named().map(|(_, value)| value).sum();
    assert_eq!(of_listener, 2, "received and accepted");
    drop((client, server, listener));
    net.quiet().await
}

/// Events of a connection end with it, and not with its TimeWait.
#[tokio::test(start_paused = true)]
async fn events_end_with_their_connection() -> Result {
    let net = Net::new(7).await?;
    let (client, server) = net.pair().await?;
    let (mut ours, mut theirs) = (client.events(), server.events());
    client.disconnect().await;
    let none = async { (ours.next().await, theirs.next().await) };
    assert_eq!(timeout(Duration::from_secs(60), none).await?, (None, None));
    assert_eq!(net.client.wait_idle().now_or_never(), None, "TimeWait goes on");
    drop((client, server));
    net.quiet().await
}
