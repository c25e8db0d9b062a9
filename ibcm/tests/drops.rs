//! What a dropped future or handle leaves behind: nothing, wherever it is dropped, on a bad network too.

mod common;

use std::time::Duration;

use common::{Net, Result, SID, drop_after};
use ibcm::{AcceptError, ConnectError, Connection, RejReason};

/// More polls than any of the futures here takes.
const POLLS: usize = 40;

/// Drops the connecting future at each of its polls, with a server that accepts.
#[tokio::test(start_paused = true)]
async fn connecting() -> Result {
    for loss in [0.0, 0.2] {
        let mut finished = 0;
        for polls in 0..POLLS {
            let net = Net::new(polls as u64).await?;
            net.net.faults().loss(loss).reorder(loss);
            let listener = net.listen().await?;
            let serving = tokio::spawn(async move {
                while let Ok(request) = listener.accept().await {
                    if let Ok(conn) = request.accept().await {
                        conn.closed().await;
                    }
                }
            });
            let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
            let connect = Connection::connect(path).deadline(Duration::from_secs(60));
            let result = drop_after(polls, connect).await;
            finished += usize::from(result.is_some());
            drop(result);
            net.client.wait_idle().await;
            net.server.wait_idle().await;
            serving.abort();
            _ = serving.await;
            net.quiet().await?;
        }
        assert!(finished > 0 && finished < POLLS, "{finished} of {POLLS} were not dropped");
    }
    Ok(())
}

/// Drops the accepting future at each of its polls.
#[tokio::test(start_paused = true)]
async fn accepting() -> Result {
    for loss in [0.0, 0.2] {
        let mut finished = 0;
        for polls in 0..POLLS {
            let net = Net::new(polls as u64).await?;
            net.net.faults().loss(loss).reorder(loss);
            let listener = net.listen().await?;
            let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
            let connecting = tokio::spawn(Connection::connect(path).deadline(Duration::from_secs(30)));
            let request = tokio::time::timeout(Duration::from_secs(30), listener.accept()).await??;
            let accepted = drop_after(polls, request.accept()).await;
            let dropped = accepted.is_none();
            finished += usize::from(!dropped);
            let connected = connecting.await?;
            match (dropped, &connected) {
                // Dropped before the REP: rejected. Behind it: disconnected at once, or rejected.
                (true, Err(ConnectError::Rejected(no))) => assert_eq!(no.reason, RejReason::CONSUMER),
                (true, Ok(_)) | (true, Err(ConnectError::Disconnected)) | (false, Ok(_)) => {}
                (_, other) => assert!(loss > 0.0, "{polls}: {other:?}"),
            }
            drop((connected, accepted, listener));
            net.quiet().await?;
        }
        assert!(finished > 0 && finished < POLLS, "{finished} of {POLLS} were not dropped");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn builders_that_were_never_polled() -> Result {
    let net = Net::new(1).await?;
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    drop(Connection::connect(path.clone()));
    let connecting = tokio::spawn(Connection::connect(path));
    drop(listener.accept().await?.accept());
    match connecting.await? {
        Err(ConnectError::Rejected(no)) => assert_eq!(no.reason, RejReason::CONSUMER),
        other => panic!("{other:?}"),
    }
    assert_eq!(net.client.stats().cm.mads_sent, 1);
    net.quiet().await
}

/// Drops a send at each of its polls: the message goes out whole or not at all, and those behind it are not
/// held up.
#[tokio::test(start_paused = true)]
async fn sending() -> Result {
    for polls in 0..6 {
        let net = Net::new(polls as u64).await?;
        let (client, server) = net.pair().await?;
        let first = drop_after(polls, client.send_copy(b"first")).await;
        client.send_copy(b"second").await?;
        let message = server.recv().await?.ok_or("closed")?;
        match &message[..] {
            b"first" => {
                assert!(polls > 0, "sent without being polled");
                drop(message);
                let second = server.recv().await?.ok_or("closed")?;
                assert_eq!(&second[..], b"second");
            }
            other => {
                assert_eq!(other, b"second");
                assert!(first.is_none());
            }
        }
        drop((client, server));
        net.quiet().await?;
    }
    Ok(())
}

/// Drops receives before and while they wait: no message is lost.
#[tokio::test(start_paused = true)]
async fn receiving() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    for n in 0u8..50 {
        assert!(futures::poll!(Box::pin(server.recv())).is_pending());
        client.send_copy(&[n]).await?;
        drop(server.recv());
        let message = server.recv().await?.ok_or("closed")?;
        assert_eq!(message[..], [n]);
    }
    drop((client, server));
    net.quiet().await
}

/// Another waiter gets the completion that a dropped one was woken for.
#[tokio::test(start_paused = true)]
async fn a_dropped_waiter_takes_no_wake_up_away() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    let server = std::sync::Arc::new(server);
    // Polled once, then kept and never polled again.
    let mut idle = Box::pin(server.recv());
    assert!(futures::poll!(idle.as_mut()).is_pending());
    let receiving = tokio::spawn({
        let server = server.clone();
        async move { server.recv().await.map(|message| message.map(|message| message.to_vec())) }
    });
    tokio::task::yield_now().await;
    client.send_copy(b"for someone").await?;
    let received = tokio::time::timeout(Duration::from_secs(1), receiving).await???;
    assert_eq!(received.as_deref(), Some(&b"for someone"[..]));
    drop(idle);
    drop((client, server));
    net.quiet().await
}

/// Drops the disconnecting future at each of its polls; the connection's drop does the rest.
#[tokio::test(start_paused = true)]
async fn disconnecting() -> Result {
    for polls in 0..8 {
        let net = Net::new(polls as u64).await?;
        net.net.faults().loss(0.1);
        let (client, server) = net.pair().await?;
        drop_after(polls, client.disconnect()).await;
        assert!(client.send_copy(b"too late").await.is_err() || polls == 0);
        drop(client);
        assert!(server.recv().await.is_ok_and(|message| message.is_none()) || polls == 0);
        drop(server);
        net.quiet().await?;
    }
    Ok(())
}

/// The same while sends have not completed: no DREQ is out yet.
#[tokio::test(start_paused = true)]
async fn disconnecting_with_sends_under_way() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    // The receiver posts 16 buffers and reads nothing: the last send waits.
    for _ in 0..16 {
        client.send_copy(b"in time").await?;
    }
    assert!(drop_after(1, client.send_copy(b"too late")).await.is_none());
    let second = Duration::from_secs(1);
    assert!(tokio::time::timeout(second, client.disconnect()).await.is_err());
    drop(client);
    assert!(tokio::time::timeout(second, server.closed()).await.is_ok());
    drop(server);
    net.quiet().await
}

/// A dropped connection disconnects, although DREQs are lost.
#[tokio::test(start_paused = true)]
async fn cm_t19_a_connection() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    net.net.faults().loss(0.7);
    drop(client);
    assert!(server.recv().await?.is_none());
    drop(server);
    net.quiet().await
}

/// The last handle closes the HCA once its last connection has ended.
#[tokio::test(start_paused = true)]
async fn the_last_handle() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    let Net { net, client: client_hca, server: server_hca } = net;
    drop((client_hca, server_hca));
    tokio::time::sleep(Duration::from_secs(1)).await;
    client.send_copy(b"still here").await?;
    assert!(server.recv().await?.is_some());
    drop((client, server));
    net.quiet().await?;
    // The agents are free again: the device can be opened once more.
    tokio::time::sleep(Duration::from_millis(1)).await;
    ibcm::Hca::open(net.device("client")).await?;
    Ok(())
}

/// `close` ends everything, and all handles say so.
#[tokio::test(start_paused = true)]
async fn closing_an_hca() -> Result {
    let net = Net::new(1).await?;
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let connecting = tokio::spawn(Connection::connect(path.clone()));
    let server = listener.accept().await?.accept().await?;
    let client = connecting.await??;
    let undecided = tokio::spawn(Connection::connect(path.clone()));
    let request = listener.accept().await?;
    net.server.close().await;
    assert!(matches!(listener.accept().await, Err(ibcm::ListenError::Closed)));
    assert!(matches!(request.accept().await, Err(AcceptError::Closed | AcceptError::Withdrawn)));
    assert!(matches!(undecided.await?, Err(ConnectError::Rejected(_))));
    assert!(matches!(server.recv().await, Err(ibcm::RecvError::Closed)));
    assert!(client.recv().await?.is_none());
    let path = net.server.path_to(net.client.gid()).await;
    assert!(matches!(path, Err(ibcm::QueryError::Closed)));
    net.server.close().await;
    drop(client);
    net.quiet().await
}

/// Messages that nobody has read when their connection is dropped are lost, and counted.
#[tokio::test(start_paused = true)]
async fn messages_that_nobody_has_read_are_counted() -> Result {
    let net = Net::new(9).await?;
    let (client, server) = net.pair().await?;
    for _ in 0..3 {
        client.send_copy(b"unread").await?;
    }
    assert_eq!(server.stats().messages_waiting, 3);
    drop(server);
    client.closed().await;
    drop(client);
    net.net.quiet().await?;
    assert_eq!(net.server.stats().get("messages_unread"), Some(3));
    Ok(())
}

/// So are those that came before there was a connection: the peer may send once it has the REP, and the accepting future is
/// dropped then.
#[tokio::test(start_paused = true)]
async fn messages_for_a_dropped_accept_are_counted() -> Result {
    let (mut came, moment) = (0, Duration::from_millis(1));
    for polls in 0..6 {
        let net = Net::new(polls).await?;
        let listener = net.listen().await?;
        let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
        let connecting = tokio::spawn(async move {
            let conn = Connection::connect(path).await?;
            conn.send_copy(b"early").await?;
            Ok::<_, ibcm::Error>(conn)
        });
        let mut accepting = Box::pin(listener.accept().await?.accept());
        for _ in 0..polls {
            let accepted = futures::poll!(accepting.as_mut());
            tokio::time::sleep(moment).await;
            if accepted.is_ready() {
                break;
            }
        }
        drop((accepting, listener));
        drop(connecting.await?);
        net.net.quiet().await?;
        let stats = net.server.stats();
        assert_eq!(stats.get("messages_unread"), stats.get("messages_received"), "{polls} polls");
        came += stats.get("messages_received").unwrap_or(0);
    }
    assert!(came > 0, "the peer never sent in time");
    Ok(())
}
