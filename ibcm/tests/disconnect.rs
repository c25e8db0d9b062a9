//! The orderly end: of one connection, of a listener, of a whole HCA.

mod common;

use std::time::Duration;

use common::{Net, Result, SID};
use futures::future::join_all;
use ibcm::{ConnectError, Connection, Error, How, ListenError, OpCause, RejReason, Retry};
use tokio::time::{Instant, timeout};

const SECOND: Duration = Duration::from_secs(1);

/// A receiver that takes nothing holds up a disconnect until its deadline, no longer: then the DREQ goes out, and what had
/// arrived is read behind it.
#[tokio::test(start_paused = true)]
async fn the_deadline_bounds_what_is_drained() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    let mut posted = Vec::new();
    // The receiver has posted 16 buffers.
    for n in 0..20u8 {
        posted.push(client.send_copy(&[n]).post().await?);
    }
    let start = Instant::now();
    let closed = client.disconnect().deadline(2 * SECOND).await;
    assert_eq!(closed.how, How::Confirmed);
    let took = start.elapsed();
    assert!(took >= 2 * SECOND && took < 2 * SECOND + SECOND / 10, "{took:?}");
    for (n, posted) in (0u8..).zip(posted) {
        match posted.await {
            Ok(()) => assert!(n < 16),
            Err(error) => assert!(n >= 16 && matches!(error.cause, OpCause::Closed), "{n}: {error}"),
        }
    }
    for n in 0..16 {
        assert_eq!(server.recv().await?.ok_or("closed")?[..], [n]);
    }
    assert!(server.recv().await?.is_none());
    drop((client, server));
    net.quiet().await
}

/// What is in the send queue goes out; what waits for a place in it does not.
#[tokio::test(start_paused = true)]
async fn what_waits_in_line_is_refused() -> Result {
    let net = Net::new(2).await?;
    let (client, server) = net.pair().await?;
    net.net.faults().loss(0.05).delay(SECOND / 1000..=SECOND / 100);
    let sending = join_all((0..100u8).map(|n| {
        let client = &client;
        async move { client.send_copy(&[n]).await }
    }));
    let receiving = async {
        let mut count = 0;
        while server.recv().await?.is_some() {
            count += 1;
        }
        Ok::<_, Error>(count)
    };
    let disconnecting = async {
        tokio::task::yield_now().await;
        client.disconnect().await
    };
    let (sent, closed, received) = tokio::join!(sending, disconnecting, receiving);
    assert_eq!(closed.how, How::Confirmed);
    let refused = sent.iter().position(|sent| sent.is_err()).ok_or("all were sent")?;
    assert!((1..100).contains(&refused));
    assert!(sent[refused..].iter().all(|sent| matches!(sent, Err(e) if matches!(e.cause, OpCause::Closed))));
    assert_eq!(received?, refused);
    drop((client, server));
    net.quiet().await
}

/// A peer that disconnects ends sends that wait for it, and what it had sent is read first.
#[tokio::test(start_paused = true)]
async fn the_peers_dreq_ends_what_is_under_way() -> Result {
    let net = Net::new(3).await?;
    let (client, server) = net.pair().await?;
    server.send_copy(b"last words").await?;
    let mut posted = Vec::new();
    for _ in 0..20 {
        posted.push(client.send_copy(b"not taken").post().await?);
    }
    tokio::time::sleep(SECOND).await;
    let dropped = client.send_copy(b"not taken either").post().await?;
    drop(dropped);
    drop(server);
    assert_eq!(&client.recv().await?.ok_or("closed")?[..], b"last words");
    assert!(client.recv().await?.is_none());
    assert_eq!(client.closed().await.how, How::ByPeer);
    for posted in posted.drain(16..) {
        assert!(matches!(posted.await.expect_err("nobody took it").cause, OpCause::Closed));
    }
    assert_eq!(client.disconnect().await.how, How::ByPeer);
    drop((client, posted));
    net.quiet().await
}

/// A peer that is gone is asked as often as the REQ allowed, and no longer, however late the deadline is.
#[tokio::test(start_paused = true)]
async fn dreqs_are_as_many_as_the_req_allowed() -> Result {
    let net = Net::new(6).await?;
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let connecting = Connection::connect(path).retry(Retry::backoff()).deadline(60 * SECOND);
    let accepting = async { listener.accept().await?.accept().await.map_err(Error::from) };
    let (client, server) = tokio::try_join!(async { connecting.await.map_err(Error::from) }, accepting)?;
    net.net.link_down("server");
    let How::Unconfirmed { sent, waited } = client.disconnect().deadline(60 * SECOND).await.how else {
        panic!("nobody confirms")
    };
    assert_eq!(sent, 16);
    assert!(waited > 8 * SECOND && waited < 11 * SECOND, "{waited:?}");
    drop((client, server));
    Ok(())
}

/// A server stops in steps, under load and on a bad network: first nobody new comes in, then everyone leaves, then all is
/// over, and nothing is left when `close` returns.
#[tokio::test(start_paused = true)]
async fn a_server_stops_in_steps() -> Result {
    for loss in [0.0, 0.1] {
        let net = Net::new(4).await?;
        net.net.faults().loss(loss);
        let listener = net.listen().await?;
        let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
        let connect = || tokio::spawn(Connection::connect(path.clone()).deadline(60 * SECOND));
        let (mut clients, mut servers) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let connecting = connect();
            servers.push(listener.accept().await?.accept().await?);
            clients.push(connecting.await??);
        }
        let waiting = [connect(), connect(), connect()];
        let held = timeout(60 * SECOND, listener.accept()).await??;
        tokio::time::sleep(10 * SECOND).await;

        listener.close().await;
        listener.close().await;
        assert!(matches!(listener.accept().await, Err(ListenError::Closed)));
        // The one that was handed out lives on.
        let accepted = held.accept().await?;
        let mut in_time = 0;
        for connecting in waiting {
            match connecting.await? {
                Ok(_) => in_time += 1,
                Err(ConnectError::Rejected(no)) => assert_eq!(no.reason, RejReason::CONSUMER),
                // Its REJ is lost again and again.
                Err(other) => assert!(loss > 0.0, "{other}"),
            }
        }
        assert_eq!(in_time, 1);
        drop(accepted);

        let idle = net.server.wait_idle();
        let leaving = async {
            let (staying, leaving) = servers.split_at(10);
            let closed = join_all(leaving.iter().map(Connection::disconnect)).await;
            assert!(closed.iter().all(|closed| matches!(closed.how, How::Confirmed)), "{closed:?}");
            staying
        };
        let staying =
            tokio::select! { staying = leaving => staying, () = idle => return Err("not idle yet".into()) };
        assert!(timeout(100 * SECOND, net.server.wait_idle()).await.is_err());
        for (server, client) in staying.iter().zip(&clients) {
            client.send_copy(b"still here").await?;
            assert_eq!(&server.recv().await?.ok_or("closed")?[..], b"still here");
        }

        net.server.close().await;
        assert!(staying.iter().all(|server| server.local_qpn().is_none()));
        for client in &clients {
            assert_eq!(client.closed().await.how, How::ByPeer);
        }
        net.client.wait_idle().await;
        let start = Instant::now();
        net.net.quiet().await?;
        assert!(start.elapsed() < SECOND / 100, "{:?}", start.elapsed());
        for server in &servers {
            assert!(server.recv().await.is_err() && server.send_copy(b"late").await.is_err());
        }
        drop((clients, servers));
        net.quiet().await?;
    }
    Ok(())
}
