//! Operations on devices whose memory takes its time, and on devices that lack something.

mod common;

use common::odd::Odd;
use common::own_qp::ask;
use common::{Net, Result, SID, drop_after};
use futures::future::join;
use futures::{FutureExt, StreamExt};
use ibcm::sim::Subnet;
use ibcm::{
    AcceptError, Access, ConnectError, Connection, DeviceError, Error, Hca, How, Listener, OpCause, QpStep,
    Recv, RejReason,
};
use ibdev::{DeviceAttr, DeviceEvent};
use tokio::time::{Duration, Instant, sleep};

/// A client on an odd device.
async fn net(change: impl FnOnce(&mut DeviceAttr)) -> Result<(Net, Odd)> {
    let net = Subnet::star(["client", "server"]).seed(1).await?;
    let odd = Odd::new(net.device("client"), change);
    let client = Hca::open(odd.as_device()).await?;
    let server = Hca::open(net.device("server")).await?;
    Ok((Net { net, client, server }, odd))
}

/// Copies that need a buffer which is still being made keep their place.
#[tokio::test(start_paused = true)]
async fn the_order_stays_while_buffers_are_made() -> Result {
    for inline in [0, 256] {
        let (net, _) = net(|attr| attr.max_inline_data = inline).await?;
        let (client, server) = net.pair().await?;
        let (own, long) = (net.client.alloc(1).await?, [2; 3000]);
        let first = join(client.send_copy(&long), client.send(own));
        let second = join(client.send_copy(b"short"), client.send_copy(&long));
        let (first, second) = join(first, second).await;
        _ = (first.0?, first.1?, second.0?, second.1?);
        for len in [3000, 1, 5, 3000] {
            assert_eq!(server.recv().await?.ok_or("closed")?.len(), len);
        }
        drop((client, server));
        net.quiet().await?;
    }
    Ok(())
}

/// Dropped while its buffer is made, an operation leaves its place to the next one, and the buffer can be made again.
#[tokio::test(start_paused = true)]
async fn dropped_while_its_buffer_is_made() -> Result {
    let (net, _) = net(|_| {}).await?;
    let (client, server) = net.pair().await?;
    let remote = net.server.expose(8, Access::REMOTE_ATOMIC).await?;
    for _ in 0..200 {
        let copy = drop_after(1, client.send_copy(&[1; 1000]));
        let atomic = drop_after(1, client.fetch_add(remote.remote(), 1).post());
        let longer = drop_after(1, client.send_copy(&[1; 100_000]));
        let ((copy, atomic), longer) = join(join(copy, atomic), longer).await;
        assert!(copy.is_none() && atomic.is_none() && longer.is_none());
    }
    assert_eq!(client.fetch_add(remote.remote(), 1).await?, 0);
    client.send_copy(&[1; 1000]).await?;
    assert_eq!(server.recv().await?.ok_or("closed")?.len(), 1000);
    drop((client, server, remote));
    net.quiet().await
}

/// No memory is one operation's failure.
#[tokio::test(start_paused = true)]
async fn no_memory_for_a_copy() -> Result {
    let (net, odd) = net(|_| {}).await?;
    let (client, server) = net.pair().await?;
    odd.fail_next();
    let (failed, next) = join(client.send_copy(&[1; 1000]), client.send_copy(&[2; 1000])).await;
    let cause = failed.unwrap_err().cause;
    assert!(matches!(cause, OpCause::Device(DeviceError::Unsupported { what: "memory" })), "{cause:?}");
    next?;
    assert_eq!(server.recv().await?.ok_or("closed")?[..], [2; 1000]);
    odd.fail_next();
    assert!(matches!(net.client.pool(1, 8).await, Err(Error::Device(_))));
    drop((client, server));
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn a_device_with_short_messages_and_without_atomics_and_shared_receives() -> Result {
    let change = |attr: &mut DeviceAttr| {
        (attr.max_message, attr.atomics, attr.max_srq_wr) = (5000, false, 0);
    };
    let (net, _) = net(change).await?;
    let (client, server) = net.pair().await?;
    let region = net.server.expose(10_000, Access::all()).await?;

    let error = client.send_copy(&[0; 5001]).await.unwrap_err();
    assert_eq!(error.to_string(), "message length is 5001, at most 5000 is allowed");
    let error = client.send(net.client.alloc(5001).await?).await.unwrap_err();
    assert!(matches!(error.cause, OpCause::Invalid(_)) && error.buf.is_some_and(|buf| buf.len() == 5001));
    let error = client.write(net.client.alloc(5001).await?, region.remote()).await.unwrap_err();
    assert_eq!(error.to_string(), "write length is 5001, at most 5000 is allowed");
    let error = client.read(net.client.alloc(10_000).await?, region.remote()).await.unwrap_err();
    assert_eq!(error.to_string(), "read length is 10000, at most 5000 is allowed");
    let error = client.fetch_add(region.remote(), 1).await.unwrap_err();
    assert_eq!(error.to_string(), "an atomic operation is not supported by this device");
    assert!(matches!(net.client.shared_recv(4, 64).await, Err(Error::Device(_))));
    assert!(client.post_recv(net.client.alloc(5001).await?).is_err());

    client.send_copy(b"the connection goes on").await?;
    assert!(server.recv().await?.is_some());
    drop((client, server, region));
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let recv = Recv::buffers(1, 5001);
    assert!(Connection::connect(path).recv(recv).await.is_err());
    net.quiet().await
}

/// The first message stands for a lost RTU also where the device does not tell of a first packet.
#[tokio::test(start_paused = true)]
async fn a_message_stands_for_a_lost_rtu() -> Result {
    let (net, odd) = net(|_| {}).await?;
    odd.tell_no_first_packets();
    let listener = Listener::bind(SID).device(&net.client).await?;
    let path = net.server.path_to(net.client.gid()).service_id(SID).await?;
    let accepting = async { Ok(listener.accept().await?.accept().await?) };
    let connecting = async {
        let (qp, reply) = ask(&net.server, &path).await?;
        net.net.faults().loss(1.0);
        let session = reply.ready().await?;
        sleep(Duration::from_millis(1)).await;
        net.net.faults().clear();
        qp.post_send(net.server.alloc(64).await?)?;
        Result::Ok((qp, session, Instant::now()))
    };
    let ((qp, session, at), conn) = tokio::try_join!(connecting, accepting)?;
    assert!(at.elapsed() < Duration::from_millis(50), "{:?}", at.elapsed());
    assert_eq!(conn.recv().await?.ok_or("closed")?.len(), 64);
    drop((conn, session, qp, listener, path));
    net.quiet().await
}

/// A queue pair that the device does not make is told to the peer, which may come again.
#[tokio::test(start_paused = true)]
async fn a_peer_hears_that_there_is_no_queue_pair() -> Result {
    let (net, _) = net(|attr| attr.max_qp_wr = 60_000).await?; // more than the device takes
    let listener = Listener::bind(SID).device(&net.client).await?;
    let path = net.server.path_to(net.client.gid()).service_id(SID).await?;
    let accepting = async {
        let accept = listener.accept().await?.accept().recv(Recv::buffers(50_000, 8));
        Ok::<_, Error>(accept.await)
    };
    let (dialed, accepted) = join(Connection::connect(path), accepting).await;
    let accepted = accepted?;
    assert!(matches!(accepted, Err(AcceptError::Qp { step: QpStep::Create, .. })), "{accepted:?}");
    let Err(error) = dialed else { return Err("not rejected".into()) };
    assert!(matches!(&error, ConnectError::Rejected(no) if no.reason == RejReason::NO_QP), "{error}");
    assert!(error.is_retryable());
    drop(listener);
    net.quiet().await
}

/// What comes behind the peer's DREQ while the queue pair is being stopped is read before the end is told.
#[tokio::test(start_paused = true)]
async fn what_comes_while_the_queue_pair_is_stopped_is_read() -> Result {
    let mut late = 0;
    for seed in 0..8 {
        let net = Subnet::star(["client", "server"]).seed(seed).await?;
        let client = Hca::open(Odd::new(net.device("client"), |_| {}).as_device()).await?;
        let server = Hca::open(net.device("server")).await?;
        let net = Net { net, client, server };
        let (here, there) = net.pair().await?;
        net.net.faults().delay(Duration::ZERO..=Duration::from_millis(5)).reorder(0.5);
        for n in 0..4u8 {
            drop(there.send_copy(&[n]).post().await?);
        }
        drop(there);
        let ended = async {
            while here.events().next().await.is_some() {}
            here.stats().messages_received
        };
        let reading = async {
            let mut count = 0;
            while here.recv().await?.is_some() {
                count += 1;
            }
            Result::Ok(count)
        };
        let (at_end, read) = join(ended, reading).await;
        let (read, received) = (read?, here.stats().messages_received);
        assert_eq!(read, received, "seed {seed}");
        late += received - at_end;
        drop(here);
        net.quiet().await?;
    }
    assert!(late > 0, "no DREQ has overtaken a message");
    Ok(())
}

/// A queue pair that fails once its connection has ended changes nothing of how that ended.
#[tokio::test(start_paused = true)]
async fn a_queue_pair_that_fails_after_the_end() -> Result {
    let (net, odd) = net(|_| {}).await?;
    let (client, server) = net.pair().await?;
    let qpn = client.local_qpn().ok_or("no queue pair")?;
    drop(server);
    assert_eq!(client.closed().await.how, How::ByPeer);
    odd.report(DeviceEvent::QpError(qpn));
    sleep(Duration::from_millis(1)).await;
    assert_eq!(client.local_qpn(), Some(qpn), "TimeWait is not over");
    assert!(client.recv().await?.is_none());
    assert_eq!(client.closed().await.how, How::ByPeer);
    drop(client);
    net.quiet().await
}

/// Who reads gives back what was read before, and needs nobody else for it.
#[tokio::test(start_paused = true)]
async fn reading_posts_what_came_home() -> Result {
    let (net, odd) = net(|_| {}).await?;
    let (listener, count) = (Listener::bind(SID).device(&net.client).await?, 8);
    let path = net.server.path_to(net.client.gid()).service_id(SID).await?;
    let accepting = async {
        let accept = listener.accept().await?.accept().recv(Recv::buffers(count, 64));
        Ok::<_, Error>(accept.await?)
    };
    let (server, client) = tokio::try_join!(async { Ok(Connection::connect(path).await?) }, accepting)?;
    for n in 0..3u8 {
        server.send_copy(&[n]).await?;
    }
    assert_eq!((odd.receives(), client.stats().messages_waiting), (count, 3));
    for n in 0..3 {
        let message = client.recv().now_or_never().ok_or("it is there")??.ok_or("closed")?;
        assert_eq!((&message[..], odd.receives()), (&[n][..], count + usize::from(n)));
    }
    drop((client, server, listener));
    net.quiet().await
}
