//! Receive buffers that many connections share.

mod common;

use std::time::Duration;

use common::{Net, Result, SID};
use futures::future::try_join_all;
use ibcm::{Connection, Error, OpCause, Recv, RecvError, SharedRecv, Status};

/// Both ends of a connection whose passive side has shared receives.
async fn connect(net: &Net, receives: &SharedRecv) -> Result<(Connection, Connection)> {
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let accepting =
        async { Ok::<_, Error>(listener.accept().await?.accept().recv(Recv::shared(receives)).await?) };
    let connecting = async { Ok(Connection::connect(path).await?) };
    Ok(tokio::try_join!(connecting, accepting)?)
}

async fn read_all(conn: &Connection) -> std::result::Result<Vec<u8>, RecvError> {
    let mut all = Vec::new();
    while let Some(message) = conn.recv().await? {
        all.extend_from_slice(&message);
    }
    Ok(all)
}

/// Ten connections with eight buffers: everyone's messages arrive, in order.
#[tokio::test(start_paused = true)]
async fn many_connections_with_few_buffers() -> Result {
    let net = Net::new(1).await?;
    let receives = net.server.shared_recv(8, 64).await?;
    let mut pairs = Vec::new();
    for _ in 0..10 {
        pairs.push(connect(&net, &receives).await?);
    }
    net.net.faults().loss(0.02).reorder(0.05);
    let sending = try_join_all(pairs.iter().zip(0u8..).map(|((client, _), i)| async move {
        for n in 0..50u8 {
            client.send_copy(&[i, n]).await?;
        }
        client.disconnect().await;
        Ok::<_, Error>(())
    }));
    let receiving = try_join_all(pairs.iter().zip(0u8..).map(|((_, server), i)| async move {
        let all = read_all(server).await?;
        assert!(all.into_iter().eq((0..50u8).flat_map(|n| [i, n])));
        Ok(())
    }));
    tokio::try_join!(sending, receiving)?;
    drop(pairs);
    // The last of them has given everything back: all eight can be taken again.
    let (client, server) = connect(&net, &receives).await?;
    for n in 0..8u8 {
        client.send_copy(&[n]).await?;
    }
    assert_eq!(server.stats().messages_waiting, 8);
    drop((client, server));
    drop(receives);
    net.quiet().await
}

/// One program does not read: the others wait when it holds all buffers, and that is told; when it goes, they go on.
#[tokio::test(start_paused = true)]
async fn a_slow_reader_holds_up_the_others_and_is_found() -> Result {
    let net = Net::new(1).await?;
    let receives = net.server.shared_recv(4, 64).await?;
    let (to_slow, slow) = connect(&net, &receives).await?;
    let (to_quick, quick) = connect(&net, &receives).await?;
    let exhausted = receives.exhausted();
    for n in 0..4u8 {
        to_slow.send_copy(&[n]).await?;
    }
    assert_eq!(receives.exhausted(), exhausted + 1);
    assert_eq!(net.server.stats().get("shared_receives_exhausted"), Some(exhausted + 1));
    assert_eq!((slow.stats().messages_waiting, quick.stats().messages_waiting), (4, 0));

    let waiting = to_quick.send_copy(b"wait").post().await?;
    assert!(tokio::time::timeout(Duration::from_secs(1), quick.recv()).await.is_err());
    // One message read is one buffer for whoever comes first.
    let message = slow.recv().await?.ok_or("closed")?;
    assert_eq!(message[..], [0]);
    drop(message);
    assert_eq!(&quick.recv().await?.ok_or("closed")?[..], b"wait");
    waiting.await?;
    // The last buffer is taken again, and nobody reads; the slow connection is dropped.
    to_slow.send_copy(b"x").await?;
    let waiting = to_quick.send_copy(b"more").post().await?;
    drop(slow);
    assert_eq!(&quick.recv().await?.ok_or("closed")?[..], b"more");
    waiting.await?;
    assert!(net.server.stats().get("messages_unread") >= Some(4));
    drop((to_slow, to_quick, quick));
    drop(receives);
    net.quiet().await
}

/// A message that is too long ends its connection alone; no buffer is lost, whenever connections end.
#[tokio::test(start_paused = true)]
async fn connections_that_end_lose_no_buffers() -> Result {
    let net = Net::new(1).await?;
    let receives = net.server.shared_recv(2, 64).await?;
    let (client, server) = connect(&net, &receives).await?;
    for round in 0..10 {
        let (to_bad, bad) = connect(&net, &receives).await?;
        match round % 3 {
            0 => {
                let error = to_bad.send_copy(&[1; 65]).await.unwrap_err();
                assert!(matches!(error.cause, OpCause::Status(Status::REM_INV_REQ_ERR)), "{error:?}");
                assert_eq!(bad.recv().await.unwrap_err(), RecvError::Broken(Status::LOC_LEN_ERR));
            }
            1 => {
                to_bad.send_copy(b"never read").await?;
                drop(bad);
            }
            _ => {
                to_bad.send_copy(b"read and kept").await?;
                let kept = bad.recv().await?.ok_or("closed")?;
                drop((to_bad, bad));
                drop(kept);
            }
        }
    }
    for n in 0..20u8 {
        client.send_copy(&[n]).await?;
        assert_eq!(server.recv().await?.ok_or("closed")?[..], [n]);
    }
    drop((client, server));
    drop(receives);
    net.quiet().await
}

/// Buffers outlive their queue, queue and connections each other.
#[tokio::test(start_paused = true)]
async fn drop_orders() -> Result {
    let net = Net::new(1).await?;
    let receives = net.server.shared_recv(2, 64).await?;
    let (client, server) = connect(&net, &receives).await?;
    drop(receives);
    for n in 0..5u8 {
        client.send_copy(&[n]).await?;
        assert_eq!(server.recv().await?.ok_or("closed")?[..], [n]);
    }
    client.send_copy(b"kept").await?;
    let kept = server.recv().await?.ok_or("closed")?;
    drop((client, server));
    net.client.wait_idle().await;
    net.server.wait_idle().await;
    assert_eq!(&kept[..], b"kept");
    drop(kept);
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_is_refused() -> Result {
    let net = Net::new(1).await?;
    assert!(matches!(net.server.shared_recv(0, 64).await, Err(Error::Invalid(_))));
    let error = net.server.shared_recv(1 << 20, 64).await.unwrap_err();
    assert_eq!(error.to_string(), "shared receive buffers is 1048576, at most 16384 is allowed");
    assert!(matches!(net.server.shared_recv(1, 1 << 40).await, Err(Error::Invalid(_))));

    let receives = net.client.shared_recv(2, 64).await?;
    let (own, other) = (net.client.domain().await?, net.server.shared_recv(2, 64).await?);
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let connect = || Connection::connect(path.clone());
    let error = connect().recv(Recv::shared(&other)).await.unwrap_err().to_string();
    assert!(error.ends_with("it must be one of the same HCA"), "{error}");
    let error = connect().recv(Recv::shared(&receives)).domain(&own).await.unwrap_err().to_string();
    assert!(error.ends_with("it must be one of the domain that was named"), "{error}");

    // In a domain of its own: no domain has to be named.
    let of_domain = own.shared_recv(2, 64).await?;
    let listener = net.listen().await?;
    let accepting = async { Ok::<_, Error>(listener.accept().await?.accept().await?) };
    let connecting = async { Ok(connect().recv(Recv::shared(&of_domain)).await?) };
    let (client, server) = tokio::try_join!(connecting, accepting)?;
    server.send_copy(b"hello").await?;
    assert_eq!(&client.recv().await?.ok_or("closed")?[..], b"hello");
    client.send(own.alloc(3).await?).await?;
    let error = client.post_recv(own.alloc(3).await?).unwrap_err();
    assert_eq!(error.to_string(), "a receive beside a shared receive queue is not supported by this device");
    drop((client, server, listener));
    drop((receives, other, of_domain, own));
    net.quiet().await
}
