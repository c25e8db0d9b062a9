//! Messages over a connection.

mod common;

use std::time::Duration;

use common::{Net, Result, SID};
use futures::future::{join_all, try_join_all};
use ibcm::{Connection, OpCause, Recv, RecvError, Status};

#[tokio::test(start_paused = true)]
async fn in_order_and_whole_on_a_bad_network() -> Result {
    for seed in 0..5 {
        let net = Net::new(seed).await?;
        let (client, server) = net.pair().await?;
        net.net.faults().loss(0.05).duplicate(0.05).reorder(0.1);
        let sending = async {
            for n in 0..200usize {
                let message: Vec<u8> = (0..n * 20).map(|i| (i + n) as u8).collect();
                client.send_copy(&message).await?;
            }
            client.disconnect().await;
            Ok::<_, ibcm::Error>(())
        };
        let receiving = async {
            let mut n = 0usize;
            while let Some(message) = server.recv().await? {
                assert_eq!(message.len(), n * 20);
                assert!(message.iter().enumerate().all(|(i, byte)| *byte == (i + n) as u8));
                n += 1;
            }
            assert_eq!(n, 200);
            Ok(())
        };
        tokio::try_join!(sending, receiving)?;
        drop(client);
        drop(server);
        net.quiet().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn immediates_and_empty_messages() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    client.send_copy(b"").imm(0xdead_beef).await?;
    let buf = client.send(net.client.alloc(3).await?).solicited().await?;
    assert_eq!(buf.len(), 3);
    let message = server.recv().await?.ok_or("closed")?;
    assert_eq!((message.len(), message.imm()), (0, Some(0xdead_beef)));
    let message = server.recv().await?.ok_or("closed")?;
    assert_eq!((&message[..], message.imm()), (&[0; 3][..], None));
    let stats = server.stats();
    assert_eq!((stats.messages_received, stats.bytes_received), (2, 3));
    drop((client, server));
    net.quiet().await
}

/// More sends than the queue and the receiver have room for: they wait, in order.
#[tokio::test(start_paused = true)]
async fn a_thousand_sends_at_once() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    let numbers: Vec<[u8; 4]> = (0..1000u32).map(u32::to_be_bytes).collect();
    let sending = async {
        try_join_all(numbers.iter().map(|number| client.send_copy(number))).await?;
        client.disconnect().await;
        Ok::<_, ibcm::Error>(())
    };
    let receiving = async {
        let mut received = Vec::new();
        while let Some(message) = server.recv().await? {
            received.push(message.to_vec());
        }
        assert_eq!(received, numbers);
        Ok(())
    };
    tokio::try_join!(sending, receiving)?;
    drop(client);
    drop(server);
    net.quiet().await
}

/// Messages that are kept are buffers that are not posted; given back, wherever it is, they are.
#[tokio::test(start_paused = true)]
async fn a_receiver_that_keeps_its_buffers_stalls_the_sender() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    let numbers: Vec<[u8; 1]> = (0..40u8).map(|n| [n]).collect();
    let sending = async {
        try_join_all(numbers.iter().map(|number| client.send_copy(number))).await?;
        Ok::<_, ibcm::Error>(())
    };
    let receiving = async {
        let mut kept = Vec::new();
        for n in 0..16 {
            let message = server.recv().await?.ok_or(RecvError::Closed)?;
            assert_eq!(message[..], [n]);
            kept.push(message.into_buf());
        }
        let more = tokio::time::timeout(Duration::from_secs(1), server.recv()).await;
        assert!(more.is_err(), "there was no buffer for it");
        // Dropped while nobody is in `recv`: the driver posts them.
        drop(kept);
        tokio::time::sleep(Duration::from_millis(100)).await;
        for n in 16..40 {
            let message = server.recv().await?.ok_or(RecvError::Closed)?;
            assert_eq!(message[..], [n]);
        }
        Ok(())
    };
    tokio::try_join!(sending, receiving)?;
    drop((client, server));
    net.quiet().await
}

/// A buffer received here goes out over another connection and comes back to its own.
#[tokio::test(start_paused = true)]
async fn a_proxy_sends_on_what_it_receives() -> Result {
    let net = Net::new(1).await?;
    let (front, proxy_in) = net.pair().await?;
    let (proxy_out, back) = net.pair().await?;
    let proxying = async {
        while let Some(message) = proxy_in.recv().await? {
            proxy_out.send(message.into_buf()).await?;
        }
        proxy_out.disconnect().await;
        Ok::<_, ibcm::Error>(())
    };
    let sending = async {
        for n in 0..100u8 {
            front.send_copy(&[n; 100]).await?;
        }
        front.disconnect().await;
        Ok(())
    };
    let receiving = async {
        let mut n = 0u8;
        while let Some(message) = back.recv().await? {
            assert_eq!(message[..], [n; 100]);
            n += 1;
        }
        assert_eq!(n, 100);
        Ok(())
    };
    tokio::try_join!(proxying, sending, receiving)?;
    drop((front, proxy_in));
    drop((proxy_out, back));
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn a_message_longer_than_the_receivers_buffers() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    let error = client.send_copy(&[1; 5000]).await.unwrap_err();
    assert!(matches!(error.cause, OpCause::Status(Status::REM_INV_REQ_ERR)), "{error:?}");
    assert_eq!(server.recv().await.unwrap_err(), RecvError::Broken(Status::LOC_LEN_ERR));
    assert_eq!(client.recv().await.unwrap_err(), RecvError::Broken(Status::REM_INV_REQ_ERR));
    let error = client.send_copy(b"more").await.unwrap_err();
    assert!(matches!(error.cause, OpCause::Status(Status::REM_INV_REQ_ERR)), "{error:?}");
    assert_eq!(client.closed().await.to_string(), "broken: remote invalid request");
    drop((client, server));
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn a_buffer_comes_back_and_goes_out_again() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    let mut long = client.send(net.client.alloc(8).await?).await?;
    long.resize(8, 1);
    client.send(long).await?;
    assert!(server.recv().await?.is_some());
    drop((client, server));
    net.quiet().await
}

/// What was sent before the DREQ is read after it.
#[tokio::test(start_paused = true)]
async fn messages_before_the_dreq_stay_readable() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    for n in 0..10u8 {
        client.send_copy(&[n]).await?;
    }
    let report = client.disconnect().private_data(b"done").await;
    assert_eq!(report.to_string(), "disconnected, the peer confirmed");
    tokio::time::sleep(Duration::from_secs(60)).await;
    for n in 0..10u8 {
        assert_eq!(server.recv().await?.ok_or("closed")?[..], [n]);
    }
    assert!(server.recv().await?.is_none() && server.recv().await?.is_none());
    let report = server.closed().await;
    assert_eq!(
        (report.to_string().as_str(), &report.private_data()[..4]),
        ("disconnected by the peer", &b"done"[..])
    );
    assert_eq!(server.disconnect().await, report);
    assert!(matches!(server.send_copy(b"x").await.unwrap_err().cause, OpCause::Closed));
    assert!(matches!(client.recv().await, Err(RecvError::Closed)));
    drop((client, server));
    net.quiet().await
}

/// `disconnect` waits for the sends that are posted.
#[tokio::test(start_paused = true)]
async fn disconnecting_drains_the_send_queue() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    net.net.faults().loss(0.3);
    let mut sends: Vec<_> = (0..10u8).map(|_| Box::pin(client.send_copy(b"on its way"))).collect();
    for send in &mut sends {
        assert!(futures::poll!(send.as_mut()).is_pending());
    }
    drop(sends);
    let report = client.disconnect().await;
    assert_eq!(report.to_string(), "disconnected, the peer confirmed");
    let mut received = 0;
    while server.recv().await?.is_some() {
        received += 1;
    }
    assert_eq!(received, 10);
    drop((client, server));
    net.quiet().await
}

/// Both sides disconnect at once.
#[tokio::test(start_paused = true)]
async fn cm_t14_crossing_disconnects() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    let delay = Duration::from_millis(5);
    net.net.faults().delay(delay..=delay);
    let reports = join_all([client.disconnect(), server.disconnect()]).await;
    assert!(reports.iter().all(|report| !report.to_string().contains("without an answer")), "{reports:?}");
    drop((client, server));
    net.quiet().await
}

/// Both ends on one HCA.
#[tokio::test(start_paused = true)]
async fn cm_t31_both_ends_on_one_hca() -> Result {
    let net = Net::new(1).await?;
    let listener = net.listen().await?;
    let path = net.server.path_to(net.server.gid()).service_id(SID).await?;
    let connecting = tokio::spawn(Connection::connect(path).recv(Recv::buffers(1, 100)));
    let server = listener.accept().await?.accept().private_data(b"welcome").await?;
    let client = connecting.await??;
    assert_eq!(&client.private_data()[..7], b"welcome");
    assert_eq!(
        (client.peer().qpn, server.peer().qpn),
        (server.local_qpn().unwrap(), client.local_qpn().unwrap())
    );
    server.send_copy(b"to the other end").await?;
    assert_eq!(&client.recv().await?.ok_or("closed")?[..], b"to the other end");
    client.disconnect().await;
    drop((client, server));
    drop(listener);
    net.quiet().await
}

/// A reader that sleeps: by default the peer waits for ever, and nothing is lost.
#[tokio::test(start_paused = true)]
async fn a_slow_reader_never_kills_the_connection() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    let numbers: Vec<[u8; 1]> = (0..40u8).map(|n| [n]).collect();
    let sending = async {
        try_join_all(numbers.iter().map(|number| client.send_copy(number))).await?;
        client.disconnect().await;
        Ok::<_, ibcm::Error>(())
    };
    let receiving = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(server.stats().messages_waiting, 16);
        let mut received = Vec::new();
        while let Some(message) = server.recv().await? {
            received.push(message.to_vec());
        }
        assert_eq!(received, numbers);
        Ok(())
    };
    tokio::try_join!(sending, receiving)?;
    drop((client, server));
    net.quiet().await
}

/// With fewer RNR retries it does, and both sides are told.
#[tokio::test(start_paused = true)]
async fn receiver_not_ready_for_too_long() -> Result {
    let net = Net::new(1).await?;
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let accepting = async {
        let accept = listener.accept().await?.accept().recv(Recv::buffers(1, 64));
        Ok::<_, ibcm::Error>(accept.rnr_retry_count(2).await?)
    };
    let connecting = async { Ok(Connection::connect(path).await?) };
    let (client, server) = tokio::try_join!(connecting, accepting)?;
    client.send_copy(b"the only buffer").await?;
    let error = client.send_copy(b"no buffer").await.unwrap_err();
    assert!(matches!(error.cause, OpCause::Status(Status::RNR_RETRY_EXC_ERR)), "{error:?}");
    assert_eq!(client.closed().await.to_string(), "broken: receiver-not-ready retries exceeded");
    // The peer disconnects: what it had sent is there, and then nothing more.
    assert_eq!(&server.recv().await?.ok_or("closed")?[..], b"the only buffer");
    assert!(server.recv().await?.is_none());
    drop((client, server));
    drop(listener);
    net.quiet().await
}

/// Buffers of the program stand behind those of the connection, and go back to their own pool.
#[tokio::test(start_paused = true)]
async fn messages_take_buffers_in_the_order_of_their_posting() -> Result {
    let net = Net::new(1).await?;
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let accepting =
        async { Ok::<_, ibcm::Error>(listener.accept().await?.accept().recv(Recv::buffers(2, 64)).await?) };
    let connecting = async { Ok(Connection::connect(path).await?) };
    let (client, server) = tokio::try_join!(connecting, accepting)?;
    let pool = net.server.pool(3, 1 << 20).await?;
    server.post_recv(pool.get().await?)?;
    server.post_recv(pool.get().await?)?;
    let error = server.post_recv(pool.get().await?).unwrap_err();
    assert_eq!(error.to_string(), "receives posted is 3, at most 2 is allowed");
    assert!(error.buf.is_some());
    drop(error);
    assert!(pool.try_get().is_some(), "it came home");

    client.send_copy(b"one").await?;
    client.send_copy(b"two").await?;
    client.send_copy(&[3; 100_000]).await?;
    let mut kept = Vec::new();
    for len in [3, 3, 100_000] {
        let message = server.recv().await?.ok_or("closed")?;
        assert_eq!(message.len(), len);
        kept.push(message.into_buf());
    }
    assert_eq!(kept[2].capacity(), 1 << 20);
    assert!(pool.try_get().is_some() && kept.pop().is_some() && pool.try_get().is_some());
    // What was never used comes home with the end of the connection.
    drop(kept);
    drop((client, server));
    net.server.wait_idle().await;
    let all = [pool.try_get(), pool.try_get(), pool.try_get()];
    assert!(all.iter().all(Option::is_some));
    drop((listener, all));
    net.quiet().await
}

/// Buffers for copies that come home are for who has waited longest, though others ask first.
#[tokio::test(start_paused = true)]
async fn copies_wait_for_their_buffers_in_line() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    let delay = Duration::from_millis(5);
    net.net.faults().delay(delay..=delay);
    let sending = async {
        // As many as there are buffers, and they all are under way.
        let mut under_way = Vec::new();
        for _ in 0..64 {
            under_way.push(client.send_copy(&[1; 1000]).post().await?);
        }
        let mut first = Box::pin(client.send_copy(&[2; 1000]));
        assert!(futures::poll!(first.as_mut()).is_pending());
        tokio::time::sleep(Duration::from_secs(1)).await;
        // All have come home, and the first has not been polled since.
        assert_eq!(client.stats().messages_sent, 64);
        let mut others: Vec<_> = (0..64).map(|_| Box::pin(client.send_copy(&[3; 1000]))).collect();
        for other in &mut others {
            assert!(futures::poll!(other.as_mut()).is_pending());
        }
        tokio::time::timeout(Duration::from_secs(10), first).await.expect("a buffer is left")?;
        try_join_all(others).await?;
        client.disconnect().await;
        Ok::<_, ibcm::Error>(())
    };
    let receiving = async {
        let mut received = Vec::new();
        while let Some(message) = server.recv().await? {
            received.push(message.to_vec());
        }
        Ok(received)
    };
    let ((), received) = tokio::try_join!(sending, receiving)?;
    assert_eq!((received.len(), &received[64][..]), (129, &[2; 1000][..]));
    drop((client, server));
    net.quiet().await
}
