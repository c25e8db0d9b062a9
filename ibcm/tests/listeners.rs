//! Listeners that share a service ID, and what they take.

mod common;

use std::time::Duration;

use common::{Net, Result, SID, drop_after};
use ibcm::{
    ConnectError, Connection, Hca, Lid, ListenError, Listener, OpCause, RecvError, RejReason, ServiceId,
};

/// Who of `listeners` gets a request for this service with this private data.
async fn asks(net: &Net, listeners: &[Listener], service_id: ServiceId, data: &[u8; 4]) -> Result<usize> {
    let path = net.client.path_to(net.server.gid()).service_id(service_id).await?;
    let dialing = tokio::spawn(Connection::connect(path).private_data(data));
    let accepts: Vec<_> = listeners.iter().map(|listener| Box::pin(listener.accept())).collect();
    let (request, who, _) = futures::future::select_all(accepts).await;
    let request = request?;
    assert_eq!((&request.private_data()[..4], request.service_id()), (&data[..], service_id));
    let conn = request.accept().await?;
    dialing.await??;
    conn.disconnect().await;
    Ok(who)
}

#[tokio::test(start_paused = true)]
async fn cm_t81_two_discriminators_and_a_plain_one() -> Result {
    let net = Net::new(1).await?;
    let bind = || Listener::bind(SID).device(&net.server);
    let listeners =
        [bind().await?, bind().discriminator(2, b"X").await?, bind().discriminator(2, b"Y").await?];
    for (data, who) in [(b"00X0", 1), (b"00Y0", 2), (b"00Z0", 0), (b"0X00", 0)] {
        assert_eq!(asks(&net, &listeners, SID, data).await?, who);
    }
    let again = bind().discriminator(2, b"X").await;
    assert!(matches!(again, Err(ListenError::InUse { service_id }) if service_id == SID), "{again:?}");
    let error = bind().discriminator(91, b"XY").await.unwrap_err();
    assert_eq!(error.to_string(), "end of the discriminator is 93, at most 92 is allowed");
    let error = bind().discriminator(0, b"").await.unwrap_err();
    assert_eq!(error.to_string(), "discriminator length is 0, at least 1 is needed");
    drop(listeners);
    net.quiet().await
}

/// Behind an IP header the program counts from its own first byte.
#[tokio::test]
async fn a_discriminator_behind_an_ip_header() -> Result {
    let (server, client) = (Hca::open("soft").await?, Hca::open("soft").await?);
    let address = std::net::SocketAddr::new(server.gid().to_ip(), 7471);
    let plain = Listener::bind_ip(address).device(&server).await?;
    let with = Listener::bind_ip(address).device(&server).discriminator(0, b"new").await?;
    let dialing = Connection::connect_ip(address).device(&client).private_data(b"new");
    let dialing = tokio::spawn(dialing);
    let request = with.accept().await?;
    assert_eq!(&request.private_data()[..3], b"new");
    let conn = request.accept().await?;
    drop(dialing.await??);
    conn.disconnect().await;
    drop(plain);
    let error = Listener::bind_ip(address).device(&server).discriminator(54, b"new").await.unwrap_err();
    assert_eq!(error.to_string(), "end of the discriminator is 57, at most 56 is allowed");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_range_of_service_ids() -> Result {
    let net = Net::new(1).await?;
    let many = Listener::bind(ServiceId::new(0x7000)).mask(!0xff).device(&net.server).await?;
    let one = Listener::bind(ServiceId::new(0x7042)).device(&net.server).await?;
    let listeners = [many, one];
    for (id, who) in [(0x7000, 0), (0x7042, 1), (0x70ff, 0)] {
        assert_eq!(asks(&net, &listeners, ServiceId::new(id), b"data").await?, who);
    }
    let path = net.client.path_to(net.server.gid()).service_id(ServiceId::new(0x7100)).await?;
    match Connection::connect(path).await {
        Err(ConnectError::Rejected(no)) => assert_eq!(no.reason, RejReason::INVALID_SERVICE_ID),
        other => return Err(format!("{other:?}").into()),
    }
    let error = Listener::bind(SID).mask(0xff).device(&net.server).await.unwrap_err();
    assert!(error.to_string().ends_with("it must be 0 where the service mask is"), "{error}");
    drop(listeners);
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn a_lid_of_its_own() -> Result {
    let net = Net::new(1).await?;
    let lid = net.server.ports()[0].lid();
    let bind = || Listener::bind(SID).device(&net.server);
    let listeners = [bind().await?, bind().local_lid(lid).await?];
    assert_eq!(asks(&net, &listeners, SID, b"data").await?, 1);
    let error = bind().local_lid(Lid::NONE).await.unwrap_err();
    assert_eq!(error.to_string(), "local LID is 0x0000, it must be the LID of a port");
    drop(listeners);
    net.quiet().await
}

/// A program that says how slow it is: its peers ask once and wait.
#[tokio::test(start_paused = true)]
async fn a_slow_program_with_patient_peers() -> Result {
    let net = Net::new(1).await?;
    let slow = Duration::from_secs(20);
    let listener = Listener::bind(SID).device(&net.server).turnaround(slow).mra_data(b"thinking").await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let dialing = tokio::spawn(Connection::connect(path).deadline(2 * slow));
    let request = listener.accept().await?;
    tokio::time::sleep(slow).await;
    let conn = request.accept().await?;
    drop(dialing.await??);
    conn.disconnect().await;
    assert_eq!((net.client.stats().cm.resent, net.server.stats().cm.mras_sent), (0, 1));
    let error = Listener::bind(SID).device(&net.server).turnaround(Duration::ZERO).await.unwrap_err();
    assert_eq!(error.to_string(), "turnaround is 0ns, it must be more than zero");
    net.quiet().await
}

/// Binding given up at each of its polls leaves the service ID free, or the listener bound and then gone.
#[tokio::test(start_paused = true)]
async fn binding_and_accepting_dropped_at_each_poll() -> Result {
    let net = Net::new(1).await?;
    for polls in 0..4 {
        let bind = Listener::bind(SID).device(&net.server).discriminator(0, b"x");
        drop(drop_after(polls, bind).await);
        let again = Listener::bind(SID).device(&net.server).discriminator(0, b"x").await?;
        // An accept that is dropped has lost no request.
        let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
        let dialing = tokio::spawn(Connection::connect(path).private_data(b"x"));
        let taken = drop_after(polls, again.accept()).await;
        let was_taken = taken.is_some();
        drop(taken);
        if polls > 0 {
            tokio::task::yield_now().await;
        }
        match tokio::time::timeout(Duration::from_secs(1), again.accept()).await {
            Ok(request) => drop(request?.accept().await?),
            Err(_) => assert!(was_taken, "a request is lost"),
        }
        drop(dialing.await?);
    }
    net.quiet().await
}

/// What is left of a connection and of a listener when both are over: handles that say so.
#[tokio::test(start_paused = true)]
async fn handles_that_outlive_what_they_are_of() -> Result {
    let net = Net::new(1).await?;
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let dialing = tokio::spawn(Connection::connect(path));
    let conn = listener.accept().await?.accept().await?;
    let dialed = dialing.await??;
    dialed.disconnect().await;
    net.client.wait_idle().await;
    net.server.wait_idle().await;
    for gone in [&conn, &dialed] {
        let error = gone.send_copy(b"late").await.err().ok_or("sent on a connection that is over")?;
        assert!(matches!(error.cause, OpCause::Closed), "{error:?}");
        assert_eq!(gone.local_qpn(), None);
        let first = gone.disconnect().await;
        assert_eq!(first.to_string(), gone.closed().await.to_string());
    }
    assert!(conn.recv().await?.is_none());
    assert!(matches!(dialed.recv().await, Err(RecvError::Closed)));
    net.server.close().await;
    assert!(matches!(listener.accept().await, Err(ListenError::Closed)));
    listener.close().await;
    assert!(matches!(Listener::bind(SID).device(&net.server).await, Err(ListenError::Closed)));
    Ok(())
}
