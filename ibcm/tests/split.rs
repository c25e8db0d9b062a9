//! Halves of a connection.

mod common;

use std::time::Duration;

use common::{Net, Result, drop_after};
use ibcm::{Access, OpCause, RecvError};
use tokio::time::timeout;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn two_tasks_and_clones() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    let (qpn, peer, role) = (client.local_qpn(), client.peer(), client.role());
    let (send, recv) = client.into_split();
    assert_eq!((send.local_qpn(), recv.peer(), recv.role()), (qpn, peer, role));
    assert_eq!((send.service_id(), recv.private_data()), (server.service_id(), send.private_data()));
    let echo = tokio::spawn(async move {
        while let Some(message) = server.recv().await? {
            server.send(message.into_buf()).await?;
        }
        Ok::<_, ibcm::Error>(())
    });
    let reading = tokio::spawn(async move {
        let mut seen = [0u8; 4];
        while seen.iter().any(|count| *count < 100) {
            let message = recv.recv().await?.ok_or(RecvError::Closed)?;
            // The order of each sender is kept.
            let [who, n] = message[..] else { panic!("{message:?}") };
            assert_eq!(std::mem::replace(&mut seen[usize::from(who)], n + 1), n);
        }
        Ok::<_, ibcm::Error>(recv)
    });
    let senders = (0..4u8).map(|who| {
        let send = send.clone();
        tokio::spawn(async move {
            for n in 0..100 {
                send.send_copy(&[who, n]).await?;
            }
            Ok::<_, ibcm::Error>(())
        })
    });
    for sender in senders.collect::<Vec<_>>() {
        sender.await??;
    }
    let recv = reading.await??;
    assert_eq!((recv.stats().messages_sent, send.stats().messages_received), (400, 400));
    // Either half ends both.
    assert_eq!(recv.disconnect().await, send.closed().await);
    assert!(matches!(send.send_copy(b"x").await.unwrap_err().cause, OpCause::Closed));
    assert_eq!(recv.recv().await.unwrap_err(), RecvError::Closed);
    echo.await??;
    drop((send, recv));
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn the_peers_memory() -> Result {
    let net = Net::new(1).await?;
    let ends = net.exposed(64, Access::all()).await?;
    let (send, recv) = ends.client.into_split();
    drop(recv);
    let mut buf = net.client.alloc(8).await?;
    buf.copy_from_slice(&7u64.to_ne_bytes());
    let buf = send.write(buf, ends.remote.slice(0, 8)?).await?;
    assert_eq!(send.fetch_add(ends.remote, 1).await?, 7);
    assert_eq!(send.compare_swap(ends.remote, 8, 9).await?, 8);
    let read = send.read(buf, ends.remote.slice(0, 8)?).await?;
    assert_eq!(read[..], 9u64.to_ne_bytes());
    let posted = send.send_copy(b"posted").post().await?;
    // Its result outlives the handle.
    drop(send);
    _ = timeout(SECOND, posted).await?;
    drop((read, ends.server, ends.region));
    net.quiet().await
}

/// The connection lives as long as any half; the last one disconnects it.
#[tokio::test(start_paused = true)]
async fn the_last_half_disconnects() -> Result {
    for order in 0..3 {
        let net = Net::new(1).await?;
        net.net.faults().loss(0.2);
        let (client, server) = net.pair().await?;
        let (send, recv) = client.into_split();
        let clone = send.clone();
        match order {
            0 => {
                drop((send, recv));
                assert!(timeout(SECOND, server.closed()).await.is_err());
                clone.send_copy(b"still here").await?;
                assert_eq!(&server.recv().await?.ok_or("closed")?[..], b"still here");
                drop(clone);
            }
            1 => {
                drop((send, clone));
                server.send_copy(b"for the other half").await?;
                assert_eq!(&recv.recv().await?.ok_or("closed")?[..], b"for the other half");
                drop(recv);
            }
            _ => drop((clone, recv, send)),
        }
        assert!(server.recv().await?.is_none());
        assert_eq!(server.closed().await.to_string(), "disconnected by the peer");
        drop(server);
        net.quiet().await?;
    }
    Ok(())
}

/// Without a reader the peer waits as for a slow one; it is told when the connection ends.
#[tokio::test(start_paused = true)]
async fn nobody_reads_any_more() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    let (send, recv) = client.into_split();
    drop(recv);
    for _ in 0..16 {
        server.send_copy(b"unread").await?;
    }
    let mut waiting = Box::pin(server.send_copy(b"no room"));
    assert!(timeout(5 * SECOND, &mut waiting).await.is_err());
    assert_eq!(send.stats().messages_waiting, 16);
    send.send_copy(b"and yet").await?;
    assert_eq!(&server.recv().await?.ok_or("closed")?[..], b"and yet");
    drop(send);
    assert!(matches!(waiting.await.unwrap_err().cause, OpCause::Closed));
    assert_eq!(net.client.stats().get("messages_unread"), Some(16));
    drop(server);
    net.quiet().await
}

/// Drops each half with a future of it at each of its polls.
#[tokio::test(start_paused = true)]
async fn dropped_at_each_point() -> Result {
    for polls in 0..8 {
        for first_send in [true, false] {
            let net = Net::new(polls as u64).await?;
            net.net.faults().loss(0.1);
            let (client, server) = net.pair().await?;
            let (send, recv) = client.into_split();
            server.send_copy(b"message").await?;
            let sent = drop_after(polls, send.send_copy(b"message")).await;
            let received = drop_after(polls, recv.recv()).await;
            let ended = match first_send {
                true => {
                    let ended = drop_after(polls, send.disconnect()).await;
                    drop(send);
                    _ = drop_after(polls, recv.recv()).await;
                    drop(recv);
                    ended
                }
                false => {
                    drop(recv);
                    let ended = drop_after(polls, send.disconnect()).await;
                    drop(send);
                    ended
                }
            };
            assert!(polls > 0 || (sent.is_none() && received.is_none() && ended.is_none()));
            while server.recv().await?.is_some() {}
            drop(server);
            net.quiet().await?;
        }
    }
    Ok(())
}
