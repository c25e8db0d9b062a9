//! Peer to peer: `Connection::connect_peer` on both sides.

mod common;

use std::time::Duration;

use common::{Net, Result, SID, drop_after};
use futures::future::join_all;
use ibcm::{ConnectError, Connection, Hca, Listener, RejReason, Retry, Role};

/// Messages both ways, then the end.
async fn talk(one: Connection, other: Connection) -> Result {
    assert_ne!(one.role(), other.role());
    for (from, to) in [(&one, &other), (&other, &one)] {
        from.send_copy(b"hello").await?;
        let message = to.recv().await?.ok_or("closed before the message")?;
        assert_eq!(&message[..], b"hello");
    }
    one.disconnect().await;
    assert!(other.recv().await?.is_none());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn cm_t79_both_at_once() -> Result {
    let net = Net::new(1).await?;
    let to_server = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let to_client = net.server.path_to(net.client.gid()).service_id(SID).await?;
    let one = Connection::connect_peer(to_server).private_data(b"rank 0");
    let other = Connection::connect_peer(to_client).private_data(b"rank 1");
    let (one, other) = tokio::try_join!(one, other)?;
    // Whoever became active: each sees what the other sent.
    assert_eq!((&one.private_data()[..6], &other.private_data()[..6]), (&b"rank 1"[..], &b"rank 0"[..]));
    assert_eq!((one.peer().gid, other.peer().gid), (net.server.gid(), net.client.gid()));
    talk(one, other).await?;
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn cm_t80_either_side_late() -> Result {
    for late in [false, true] {
        let net = Net::new(1).await?;
        let (first, second) = match late {
            false => (&net.client, &net.server),
            true => (&net.server, &net.client),
        };
        let path = first.path_to(second.gid()).service_id(SID).await?;
        let back = second.path_to(first.gid()).service_id(SID).await?;
        let one = tokio::spawn(Connection::connect_peer(path));
        tokio::time::sleep(Duration::from_secs(7)).await;
        let other = Connection::connect_peer(back).await?;
        talk(one.await??, other).await?;
        net.quiet().await?;
    }
    Ok(())
}

/// Over UDP, on one HCA.
#[tokio::test]
async fn cm_t79_both_on_one_hca() -> Result {
    let hca = Hca::open("soft").await?;
    let path = hca.path_to(hca.gid()).service_id(SID).await?;
    let calls = (0..6).map(|_| tokio::spawn(Connection::connect_peer(path.clone())));
    let mut conns = Vec::new();
    for call in join_all(calls).await {
        conns.push(call??);
    }
    // Each has one of the others.
    for (at, one) in conns.iter().enumerate() {
        one.send_copy(&[at as u8]).await?;
    }
    let mut heard = vec![None; conns.len()];
    for (at, conn) in conns.iter().enumerate() {
        heard[at] = conn.recv().await?.map(|message| usize::from(message[0]));
    }
    for (at, peer) in heard.iter().enumerate() {
        let peer = peer.ok_or("closed before the message")?;
        assert_eq!(heard[peer], Some(at));
        assert_ne!(conns[at].role(), conns[peer].role());
    }
    join_all(conns.iter().map(Connection::disconnect)).await;
    drop(conns);
    hca.close().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn nobody_asks_back() -> Result {
    let net = Net::new(1).await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let error = Connection::connect_peer(path).deadline(Duration::from_secs(3)).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(matches!(error, ConnectError::Unreachable { busy: false, .. }), "{error:?}");
    assert!(net.client.stats().cm.absent_peers > 1);
    net.quiet().await
}

/// Where nobody asks, a listener takes the REQ.
#[tokio::test(start_paused = true)]
async fn a_listener_instead_of_a_peer() -> Result {
    let net = Net::new(1).await?;
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let asking = tokio::spawn(Connection::connect_peer(path));
    let conn = listener.accept().await?.accept().await?;
    let asked = asking.await??;
    assert_eq!((asked.role(), conn.role()), (Role::Active, Role::Passive));
    talk(asked, conn).await?;
    net.quiet().await
}

/// The side that is to answer cannot: its peer learns why.
#[tokio::test(start_paused = true)]
async fn one_side_fails() -> Result {
    let net = Net::new(1).await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let listener = Listener::bind(SID).device(&net.server).await?;
    let asking = tokio::spawn(Connection::connect_peer(path));
    listener.accept().await?.reject(RejReason::NO_RESOURCES);
    match asking.await? {
        Err(ConnectError::Rejected(no)) => assert_eq!(no.reason, RejReason::NO_RESOURCES),
        other => return Err(format!("{other:?}").into()),
    }
    net.quiet().await
}

/// One side is dropped after each of its polls: the other ends, too, and nothing is left.
#[tokio::test(start_paused = true)]
async fn one_side_dropped_at_each_poll() -> Result {
    for (polls, server_drops) in (1..12).flat_map(|polls| [(polls, false), (polls, true)]) {
        let net = Net::new(1).await?;
        let to_server = net.client.path_to(net.server.gid()).service_id(SID).await?;
        let to_client = net.server.path_to(net.client.gid()).service_id(SID).await?;
        let (kept, dropped) = match server_drops {
            false => (to_client, to_server),
            true => (to_server, to_client),
        };
        let kept = Connection::connect_peer(kept).deadline(Duration::from_secs(3)).retry(Retry::never());
        let kept = tokio::spawn(kept);
        let made = drop_after(polls, Connection::connect_peer(dropped)).await;
        match (kept.await?, made) {
            (Ok(one), Some(other)) => talk(one, other?).await?,
            // It was established, or nearly so, when the other side was dropped.
            (Ok(conn), None) => assert!(conn.recv().await?.is_none()),
            (Err(error), None) => assert!(!error.is_local(), "{polls}: {error:?}"),
            (Err(error), Some(made)) => return Err(format!("{polls}: {error:?}, {made:?}").into()),
        }
        net.quiet().await?;
    }
    Ok(())
}

/// Two hundred ranks on two hosts, each with one on the other.
#[tokio::test(start_paused = true)]
async fn many_ranks() -> Result {
    let net = Net::new(1).await?;
    net.net.faults().loss(0.02).reorder(0.1);
    let to_server = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let to_client = net.server.path_to(net.client.gid()).service_id(SID).await?;
    let calls = (0..200).map(|n| {
        let path = if n % 2 == 0 { to_server.clone() } else { to_client.clone() };
        let call = Connection::connect_peer(path).deadline(Duration::from_secs(60));
        tokio::spawn(call.recv(ibcm::Recv::buffers(1, 64)))
    });
    let mut active = 0;
    let mut conns = Vec::new();
    for call in join_all(calls).await {
        let conn = call??;
        active += usize::from(conn.role() == Role::Active);
        conns.push(conn);
    }
    assert_eq!(active, 100);
    net.net.faults().clear();
    join_all(conns.iter().map(Connection::disconnect)).await;
    drop(conns);
    net.quiet().await
}
