//! Requests that are not accepted.

mod common;

use common::{Net, Result, SID};
use ibcm::proto::message::{MessageId, RejectInfo};
use ibcm::{ConnectError, Connection, Gid, Listener, RejReason, Reject, Rejection, ServiceId};

fn rejection(result: std::result::Result<Connection, ConnectError>) -> Result<Box<Rejection>> {
    match result {
        Err(ConnectError::Rejected(rejection)) => Ok(rejection),
        other => Err(format!("not rejected: {other:?}").into()),
    }
}

#[tokio::test(start_paused = true)]
async fn with_private_data() -> Result {
    let net = Net::new(1).await?;
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let serving = tokio::spawn(async move {
        let request = listener.accept().await?;
        assert_eq!(request.private_data().len(), 92);
        assert_eq!(&request.private_data()[..8], b"may I in");
        request.reject(Reject::new(RejReason::CONSUMER).private_data(&[7; 148]));
        Ok::<_, ibcm::Error>(())
    });
    let no = rejection(Connection::connect(path).private_data(b"may I in").await)?;
    assert_eq!((no.reason, no.message, no.info), (RejReason::CONSUMER, MessageId::REQ, RejectInfo::None));
    assert_eq!(no.private_data[..], [7; 148]);
    serving.await??;
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn with_a_suggestion() -> Result {
    let net = Net::new(1).await?;
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let elsewhere: Gid = "fe80::77".parse()?;
    let serving = tokio::spawn(async move {
        listener.accept().await?.reject(Reject::acceptable_gid(elsewhere));
        Ok::<_, ibcm::Error>(())
    });
    let no = rejection(Connection::connect(path).await)?;
    assert_eq!((no.reason, no.info), (RejReason::PRIMARY_GID, RejectInfo::Gid(elsewhere)));
    assert_eq!(no.to_string(), "primary remote port GID rejected (12), it suggests GID fe80::77");
    serving.await??;
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn nobody_listens() -> Result {
    let net = Net::new(1).await?;
    let _listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(ServiceId::new(2)).await?;
    let error = Connection::connect(path).await.unwrap_err();
    assert!(!error.is_retryable() && !error.is_local());
    assert_eq!(rejection(Err(error))?.reason, RejReason::INVALID_SERVICE_ID);
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn a_dropped_request() -> Result {
    let net = Net::new(1).await?;
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let serving = tokio::spawn(async move { listener.accept().await.map(drop) });
    assert_eq!(rejection(Connection::connect(path).await)?.reason, RejReason::CONSUMER);
    serving.await??;
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn cm_t82_a_dropped_listener_rejects_what_waits() -> Result {
    let net = Net::new(1).await?;
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let (first, second) = (Connection::connect(path.clone()), Connection::connect(path));
    let (first, second) = (tokio::spawn(first), tokio::spawn(second));
    let taken = listener.accept().await?;
    // The second one waits in the backlog.
    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    drop(listener);
    assert_eq!(rejection(second.await?)?.reason, RejReason::CONSUMER);
    let conn = taken.accept().await?;
    drop((conn, first.await??));
    // The service ID is free again.
    drop(net.listen().await?);
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn a_closed_listener_says_so() -> Result {
    let net = Net::new(1).await?;
    let listener = std::sync::Arc::new(net.listen().await?);
    let waiting = tokio::spawn({
        let listener = listener.clone();
        async move { listener.accept().await.map(drop) }
    });
    tokio::task::yield_now().await;
    listener.close().await;
    assert!(matches!(waiting.await?, Err(ibcm::ListenError::Closed)));
    assert!(matches!(listener.accept().await, Err(ibcm::ListenError::Closed)));
    listener.close().await;
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn a_service_id_has_one_listener() -> Result {
    let net = Net::new(1).await?;
    let _first = net.listen().await?;
    let error = Listener::bind(SID).device(&net.server).await.unwrap_err();
    assert_eq!(error.to_string(), "service ID 0x1000000000000001 already has a listener");
    // Another HCA is another matter.
    Listener::bind(SID).device(&net.client).await?;
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn ignored_a_request_comes_again() -> Result {
    let net = Net::new(1).await?;
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let connecting = tokio::spawn(Connection::connect(path));
    for _ in 0..3 {
        listener.accept().await?.ignore();
    }
    let conn = listener.accept().await?.accept().await?;
    drop((conn, connecting.await??));
    let sent = net.client.stats().cm;
    assert_eq!((sent.resent, sent.rejections_received), (3, 0));
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn undecided_for_long() -> Result {
    let net = Net::new(1).await?;
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let connect = Connection::connect(path).deadline(std::time::Duration::from_secs(60));
    let connecting = tokio::spawn(connect);
    let request = listener.accept().await?;
    tokio::time::sleep(std::time::Duration::from_secs(50)).await;
    let conn = request.accept().await?;
    drop((conn, connecting.await??));
    assert!(net.server.stats().cm.mras_sent > 0);
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn withdrawn_before_it_was_taken() -> Result {
    let net = Net::new(1).await?;
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let second = std::time::Duration::from_secs(1);
    let silence = Connection::connect(path.clone()).deadline(second).await.unwrap_err();
    assert!(matches!(silence, ConnectError::Unreachable { waited, .. } if waited >= second), "{silence:?}");
    let connecting = tokio::spawn(Connection::connect(path));
    let conn = listener.accept().await?.accept().await?;
    drop((conn, connecting.await??));
    assert_eq!(net.server.stats().get("requests_withdrawn"), Some(1));
    net.quiet().await
}

/// Requests that come and are withdrawn, with nobody at `accept`, do not pile up.
#[tokio::test(start_paused = true)]
async fn withdrawn_again_and_again() -> Result {
    const LIMIT: u64 = 4;
    let net = Net::new(1).await?;
    let listener = Listener::bind(SID).device(&net.server).window(1).backlog(LIMIT as usize - 1).await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    for _ in 0..50 {
        let connect = Connection::connect(path.clone());
        assert!(tokio::time::timeout(std::time::Duration::from_millis(10), connect).await.is_err());
    }
    tokio::time::sleep(std::time::Duration::from_millis(10)).await; // for the last withdrawal to arrive
    let dropped = net.server.stats().get("requests_withdrawn");
    assert!(dropped >= Some(50 - 2 * LIMIT), "{dropped:?}");
    let connecting = tokio::spawn(Connection::connect(path));
    drop((listener.accept().await?.accept().await?, connecting.await??));
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn withdrawn_while_it_was_decided() -> Result {
    let net = Net::new(1).await?;
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let second = std::time::Duration::from_secs(1);
    let connecting = tokio::spawn(Connection::connect(path).deadline(second));
    let request = listener.accept().await?;
    assert!(connecting.await?.is_err());
    tokio::time::sleep(second).await;
    assert!(matches!(request.accept().await, Err(ibcm::AcceptError::Withdrawn)));
    net.quiet().await
}
