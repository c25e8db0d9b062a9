//! Keepalives: who notices that the peer is gone, when, and what that costs.

mod common;

use std::time::Duration;

use common::odd::Odd;
use common::{Net, Result, SID};
use ibcm::sim::Subnet;
use ibcm::{Config, Connection, Error, Hca, How, Invalid, Limit, OpCause, Recv, RecvError, Value};
use ibwire::RnrTimer;
use tokio::time::{Instant, sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

/// What the sides of a connection ask for.
#[derive(Debug, Clone, Copy, Default)]
struct Ask {
    client: Option<Duration>,
    server: Option<Duration>,
}

const BOTH: Ask = Ask { client: Some(SECOND), server: Some(SECOND) };
const CLIENT: Ask = Ask { client: Some(SECOND), server: None };
const SERVER: Ask = Ask { client: None, server: Some(SECOND) };

/// A net whose client does or does not tell when it has heard its peer.
async fn net(seed: u64, tells: bool) -> Result<Net> {
    let net = Subnet::star(["client", "server"]).seed(seed).await?;
    let client = match tells {
        true => Hca::open(net.device("client")).rng_seed([1; 32]).await?,
        false => Hca::open(Odd::new(net.device("client"), |_| {}).as_device()).rng_seed([1; 32]).await?,
    };
    // How long Linux makes a sender wait that finds no receive: 655 ms, the longest that there is.
    let mut config = Config::default();
    config.min_rnr_timer = RnrTimer::truncate(0);
    let server = Hca::open(net.device("server")).rng_seed([2; 32]).config(config).await?;
    Ok(Net { net, client, server })
}

/// Both ends of a connection; the server has one receive.
async fn pair(net: &Net, ask: Ask) -> Result<(Connection, Connection)> {
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let passive = async {
        let mut accept = listener.accept().await?.accept().recv(Recv::buffers(1, 64));
        if let Some(period) = ask.server {
            accept = accept.keepalive(period);
        }
        Ok::<_, Error>(accept.await?)
    };
    let active = async {
        let mut connect = Connection::connect(path);
        if let Some(period) = ask.client {
            connect = connect.keepalive(period);
        }
        Ok(connect.await?)
    };
    Ok(tokio::try_join!(active, passive)?)
}

fn keepalives(conn: &Connection) -> u64 {
    conn.stats().keepalives_sent
}

/// Without a keepalive an idle connection never notices, and one that sends only when the retries of its queue pair are
/// over.
#[tokio::test(start_paused = true)]
async fn without_one_a_dead_peer_is_noticed_late_or_never() -> Result {
    let net = net(1, true).await?;
    let (client, server) = pair(&net, Ask::default()).await?;
    net.net.partition(&["client"], &["server"]);
    assert!(timeout(1000 * SECOND, server.closed()).await.is_err());
    let start = Instant::now();
    assert!(client.send_copy(b"anyone?").await.is_err());
    assert!(start.elapsed() > 2 * SECOND, "{:?}", start.elapsed());
    net.net.heal();
    drop((client, server));
    net.quiet().await
}

/// A peer that is cut off is given up two periods after it was last heard, idle or not, whether the device tells when that
/// was or not.
#[tokio::test(start_paused = true)]
async fn a_dead_peer_is_given_up_within_two_periods() -> Result {
    for (tells, ask, sends) in [
        (true, CLIENT, false),
        (true, CLIENT, true),
        (true, BOTH, true),
        (false, CLIENT, false),
        (false, BOTH, false),
    ] {
        let net = net(7, tells).await?;
        let (client, server) = pair(&net, ask).await?;
        for _ in 0..3 {
            client.send_copy(b"here").await?;
            server.recv().await?;
            sleep(SECOND / 3).await;
        }
        // Two messages more: one is there and not read when the end comes.
        let last = Instant::now();
        server.send_copy(b"unread").await?;
        net.net.partition(&["client"], &["server"]);
        let sending = async { if sends { client.send_copy(b"anyone?").await.err() } else { None } };
        let posted = if sends { Some(client.send_copy(b"posted").post().await?) } else { None };
        let (closed, failed) = tokio::join!(client.closed(), sending);
        let took = last.elapsed();
        assert!(took > SECOND && took <= 2 * SECOND + SECOND / 100, "{tells} {ask:?} {sends}: {took:?}");
        let How::Silent(silence) = closed.how else { panic!("{closed}") };
        assert!(silence > SECOND && silence <= 2 * SECOND + SECOND / 100, "{silence:?}");
        let is_silent = |cause: &OpCause| matches!(cause, OpCause::Silent(of_op) if *of_op == silence);
        assert!(failed.is_none_or(|error| is_silent(&error.cause)));
        if let Some(posted) = posted {
            assert!(is_silent(&posted.await.expect_err("nobody is there").cause));
        }
        assert!(is_silent(&client.send_copy(b"late").await.expect_err("it is over").cause));
        assert!(is_silent(&client.post_recv(net.client.alloc(64).await?).expect_err("it is over").cause));
        assert_eq!(&client.recv().await?.ok_or("closed")?[..], b"unread");
        assert_eq!(client.recv().await.expect_err("it is over"), RecvError::Silent(silence));
        assert_eq!(std::io::Error::from(RecvError::Silent(silence)).kind(), std::io::ErrorKind::TimedOut);
        assert_eq!(client.disconnect().await, closed);
        assert_eq!(net.client.stats().get("connections_silent"), Some(1));
        net.net.heal();
        drop((client, server));
        net.quiet().await?;
    }
    Ok(())
}

/// Only the side that asks notices; the DREQ tells the other one when the net is whole again.
#[tokio::test(start_paused = true)]
async fn the_other_side_is_told_by_a_dreq() -> Result {
    let net = net(2, true).await?;
    let (client, server) = pair(&net, SERVER).await?;
    net.net.partition(&["client"], &["server"]);
    assert!(matches!(server.closed().await.how, How::Silent(_)));
    net.net.heal();
    assert_eq!(timeout(60 * SECOND, client.closed()).await?.how, How::ByPeer);
    assert!(client.recv().await?.is_none());
    drop((client, server));
    net.quiet().await
}

/// A receiver that posts nothing for minutes answers that it is not ready, which is a sign of life; the shortest period has
/// room for its longest wait, and for a packet that gets lost. The retries of the queue pair bound it if many are lost.
#[tokio::test(start_paused = true)]
async fn a_slow_receiver_stays_alive() -> Result {
    let shortest = Some(SECOND / 2);
    for (tells, loss, minutes) in [(true, 0.0, 10), (true, 0.02, 1), (false, 0.0, 10), (false, 0.02, 1)] {
        let net = net(3, tells).await?;
        let (client, server) = pair(&net, Ask { client: shortest, server: shortest }).await?;
        net.net.faults().loss(loss);
        client.send_copy(b"first").await?;
        // Nobody reads it, so its buffer stays away.
        let second = client.send_copy(b"second").post().await?;
        let third = client.send_copy(b"third").post().await?;
        let either = async {
            tokio::select! { closed = client.closed() => closed, closed = server.closed() => closed }
        };
        let closed = timeout(minutes * 60 * SECOND, either).await;
        assert!(closed.is_err(), "seed {}, {tells} {loss}: {closed:?}", net.net.seed());
        for text in ["first", "second", "third"] {
            assert_eq!(&server.recv().await?.ok_or("closed")?[..], text.as_bytes());
        }
        second.await?;
        third.await?;
        drop((client, server));
        net.quiet().await?;
    }
    Ok(())
}

/// Losses that a queue pair gets over do not end a connection.
#[tokio::test(start_paused = true)]
async fn lost_packets_are_not_a_dead_peer() -> Result {
    for tells in [true, false] {
        let net = net(5, tells).await?;
        let (client, server) = pair(&net, BOTH).await?;
        net.net.faults().loss(0.05).reorder(0.2);
        let either = async {
            tokio::select! { closed = client.closed() => closed, closed = server.closed() => closed }
        };
        let closed = timeout(300 * SECOND, either).await;
        assert!(closed.is_err(), "seed {}: {closed:?}", net.net.seed());
        drop((client, server));
        net.quiet().await?;
    }
    Ok(())
}

/// Whoever hears the peer anyway does not ask: neither the sender nor the receiver.
#[tokio::test(start_paused = true)]
async fn a_busy_connection_sends_none() -> Result {
    for tells in [true, false] {
        let net = net(4, tells).await?;
        let (client, server) = pair(&net, BOTH).await?;
        for _ in 0..200 {
            client.send_copy(b"busy").await?;
            server.recv().await?;
            sleep(SECOND / 3).await;
        }
        assert_eq!((keepalives(&client), keepalives(&server)), (0, 0));
        drop((client, server));
        net.quiet().await?;
    }
    Ok(())
}

/// An idle connection costs one write a period, whose answer tells the other side as well.
#[tokio::test(start_paused = true)]
async fn an_idle_connection_sends_one_a_period() -> Result {
    for (tells, ask) in [(true, CLIENT), (true, SERVER), (true, BOTH), (false, CLIENT)] {
        let net = net(6, tells).await?;
        let (client, server) = pair(&net, ask).await?;
        sleep(100 * SECOND + SECOND / 2).await;
        let sent = keepalives(&client) + keepalives(&server);
        // Two sides that ask at the same moment both do.
        let most = if ask.client.and(ask.server).is_some() { 200 } else { 100 };
        assert!((100..=most).contains(&sent), "{tells} {ask:?}: {sent}");
        assert_eq!(
            [&net.client, &net.server]
                .map(|hca| hca.stats().get("keepalives_sent").unwrap_or(0))
                .iter()
                .sum::<u64>(),
            sent
        );
        let closed = tokio::join!(client.disconnect(), server.closed());
        assert_eq!((closed.0.how, closed.1.how), (How::Confirmed, How::ByPeer));
        net.quiet().await?;
    }
    Ok(())
}

/// Neither a connection that has ended nor one that is ending asks, however its end came about.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_connection_ends_its_keepalives() -> Result {
    let net = net(8, true).await?;
    // Long periods: nothing may be left that waits for their end.
    let long = Some(24 * 3600 * SECOND);
    for how in 0..4 {
        let (client, server) = pair(&net, Ask { client: long, server: Some(SECOND) }).await?;
        match how {
            0 => drop(client),
            1 => drop(server),
            2 => assert_eq!(client.disconnect().await.how, How::Confirmed),
            _ => {
                net.net.partition(&["client"], &["server"]);
                // Its DREQs are not answered for longer than two periods, and that is what it says.
                let closed = server.disconnect().deadline(10 * SECOND).await;
                assert!(matches!(closed.how, How::Unconfirmed { .. }), "{closed}");
                net.net.heal();
            }
        }
        net.client.wait_idle().await;
        net.server.wait_idle().await;
        let sent = net.server.stats().get("keepalives_sent");
        sleep(10 * SECOND).await;
        assert_eq!(net.server.stats().get("keepalives_sent"), sent);
    }
    let (client, server) = pair(&net, BOTH).await?;
    tokio::join!(net.client.close(), net.server.close());
    assert_eq!((client.closed().await.how, server.closed().await.how), (How::HcaClosed, How::HcaClosed));
    drop((client, server));
    net.quiet().await
}

/// Many connections cost what they send, and each notices for itself.
#[tokio::test(start_paused = true)]
async fn many_connections() -> Result {
    let net = net(9, true).await?;
    let mut pairs = Vec::new();
    for _ in 0..200 {
        pairs.push(pair(&net, CLIENT).await?);
    }
    sleep(10 * SECOND).await;
    assert!(pairs.iter().all(|(client, _)| (9..=10).contains(&keepalives(client))));
    net.net.partition(&["client"], &["server"]);
    let start = Instant::now();
    for (client, _) in &pairs {
        assert!(matches!(client.closed().await.how, How::Silent(_)));
    }
    assert!(start.elapsed() <= 2 * SECOND + SECOND / 100, "{:?}", start.elapsed());
    net.net.heal();
    drop(pairs);
    net.quiet().await
}

/// What is out of range is refused, and nothing is sent.
#[tokio::test(start_paused = true)]
async fn periods_that_are_refused() -> Result {
    let net = net(10, true).await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let millis = |millis| Value::Time(Duration::from_millis(millis));
    for (period, limit) in [
        (0, Limit::AtLeast(millis(500))),
        (499, Limit::AtLeast(millis(500))),
        (86_400_001, Limit::AtMost(millis(86_400_000))),
    ] {
        let connect = Connection::connect(path.clone()).keepalive(Duration::from_millis(period));
        match connect.await {
            Err(ibcm::ConnectError::Invalid(Invalid { field, value, limit: refused, .. })) => {
                assert_eq!((field, value, refused), ("keepalive period", millis(period), limit));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(net.client.stats().cm.mads_sent, 0);
    net.quiet().await
}

/// A device that does not tell when it has heard its peer, and a message that waits for the peer's program: what asks waits
/// behind it, and is no more than a few.
#[tokio::test(start_paused = true)]
async fn what_asks_behind_a_message_that_waits_is_bounded() -> Result {
    let net = net(9, false).await?;
    let (client, server) = pair(&net, CLIENT).await?;
    client.send_copy(b"the only receive").await?;
    let mut waiting = Box::pin(client.send_copy(b"no receive is posted"));
    assert!(timeout(30 * SECOND, &mut waiting).await.is_err());
    assert!((1..=4).contains(&client.stats().keepalives_sent), "{:?}", client.stats());
    assert!(server.recv().await?.is_some());
    waiting.await?;
    drop((client, server));
    net.quiet().await
}
