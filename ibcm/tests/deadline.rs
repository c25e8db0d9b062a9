//! Peers that do not answer, and values that are refused.

mod common;

use std::future::Future;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::{Net, Result, SID};
use ibcm::{
    AcceptError, Connect, ConnectError, Connection, Gid, Hca, Invalid, Path, PathRecord, Recv, Retry,
};
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn a_dead_peer_is_given_up_at_the_deadline() -> Result {
    for (secs, sent) in [(1, 2), (5, 6), (10, 8), (60, 8)] {
        let net = Net::new(secs).await?;
        let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
        net.net.partition(&["client"], &["server"]);
        let start = Instant::now();
        let deadline = Duration::from_secs(secs);
        let error = Connection::connect(path).deadline(deadline).await.unwrap_err();
        let ConnectError::Unreachable { sent: tried, waited, busy: false, .. } = error else {
            return Err(format!("{error:?}").into());
        };
        assert!(error.is_retryable() && !error.is_local());
        assert!(waited <= deadline && waited + Duration::from_millis(2) >= deadline, "{waited:?}");
        // A timer of the runtime is up to 1 ms late.
        assert!(start.elapsed() <= deadline + Duration::from_millis(1), "{:?}", start.elapsed());
        assert!(u64::from(tried) >= sent, "{tried} requests in {secs} s");
        net.quiet().await?;
    }
    Ok(())
}

/// Response timeout, max CM retries and local response timeout in the REQ that `set` brings.
async fn codes(net: &Net, set: impl FnOnce(Connect<92>) -> Connect<92>) -> Result<(u8, u8, u8)> {
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let life_time = path.record().packet_life_time.time_code();
    assert_eq!(life_time.get(), 16, "as on RoCE");
    let connecting = tokio::spawn(set(Connection::connect(path)));
    let request = listener.accept().await?;
    let req = request.req();
    let local = req.local_cm_response_timeout.get();
    let codes = (req.remote_cm_response_timeout.get(), req.max_cm_retries.get(), local);
    drop(request);
    assert!(matches!(connecting.await?, Err(ConnectError::Rejected(_))));
    Ok(codes)
}

#[tokio::test(start_paused = true)]
async fn the_codes_in_the_req_follow_from_the_deadline() -> Result {
    let net = Net::new(1).await?;
    for (secs, expected) in [(1, (12, 4, 18)), (5, (14, 8, 18)), (10, (17, 9, 18)), (60, (20, 12, 21))] {
        let codes = codes(&net, |connect| connect.deadline(Duration::from_secs(secs))).await?;
        assert_eq!(codes, expected, "{secs} s");
    }
    assert_eq!(codes(&net, |connect| connect).await?, (17, 9, 18), "10 s is the default");
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn setters_override_the_rule() -> Result {
    let net = Net::new(1).await?;
    let millis = Duration::from_millis;
    assert_eq!(codes(&net, |connect| connect.response_timeout(millis(2_000))).await?, (19, 4, 20));
    assert_eq!(codes(&net, |connect| connect.max_cm_retries(1)).await?, (17, 1, 18));
    let both = codes(&net, |connect| connect.response_timeout(millis(1)).max_cm_retries(15)).await?;
    assert_eq!(both, (8, 15, 18));
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn an_acceptance_ends_at_its_deadline_whatever_the_peer_asks_for() -> Result {
    for (set, secs) in [(None, 10), (Some(2), 2), (Some(100), 100)] {
        let net = Net::new(1).await?;
        let listener = net.listen().await?;
        let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
        let minute = Duration::from_secs(60);
        let patient = Connection::connect(path).response_timeout(minute).max_cm_retries(15);
        let connecting = tokio::spawn(patient.deadline(60 * minute));
        let request = listener.accept().await?;
        assert!(request.req().local_cm_response_timeout.duration() >= minute);
        net.net.partition(&["client"], &["server"]);
        let start = Instant::now();
        let accept = match set {
            None => request.accept(),
            Some(secs) => request.accept().deadline(Duration::from_secs(secs)),
        };
        let error = accept.await.unwrap_err();
        assert!(matches!(error, AcceptError::Unconfirmed { .. }), "{error:?}");
        let (took, deadline) = (start.elapsed(), Duration::from_secs(secs));
        assert!(took >= deadline && took <= deadline + Duration::from_millis(1), "{took:?}");
        connecting.abort();
        _ = connecting.await;
        drop(listener);
        net.quiet().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn retries_can_be_used_up_before_the_deadline() -> Result {
    let net = Net::new(1).await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    net.net.partition(&["client"], &["server"]);
    let connect = Connection::connect(path).response_timeout(Duration::from_millis(200)).max_cm_retries(2);
    let error = connect.await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { sent: 3, .. }), "{error:?}");
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_asks_for_patience_is_busy() -> Result {
    let net = Net::new(1).await?;
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let connecting = tokio::spawn(Connection::connect(path).deadline(Duration::from_secs(20)));
    let request = listener.accept().await?;
    let error = connecting.await?.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { busy: true, .. }), "{error:?}");
    drop(request);
    net.quiet().await
}

fn invalid(error: ConnectError) -> Result<Invalid> {
    match error {
        ConnectError::Invalid(invalid) => Ok(invalid),
        other => Err(format!("{other:?}").into()),
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_out_of_range_is_refused_before_anything_is_sent() -> Result {
    let net = Net::new(1).await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let connect = || Connection::connect(path.clone());
    let mut refused = Vec::new();
    for connect in [
        connect().deadline(Duration::ZERO),
        connect().retry(Retry::backoff().attempts(0)),
        connect().retry(Retry::backoff().pause(Duration::ZERO..=Duration::ZERO)),
        connect().retry_count(8),
        connect().rnr_retry_count(8),
        connect().max_cm_retries(16),
        connect().responder_resources(200),
        connect().initiator_depth(200),
        connect().recv(Recv::buffers(0, 4096)),
        connect().recv(Recv::buffers(1_000_000, 4096)),
        connect().recv(Recv::buffers(1, 1 << 40)),
        connect().device(&net.server),
    ] {
        refused.push(invalid(connect.await.unwrap_err())?.to_string());
    }
    let foreign = PathRecord { sgid: net.server.gid(), ..*path.record() };
    let foreign = Path::from_record(path.port(), foreign).with_service(SID);
    refused.push(invalid(Connection::connect(foreign).await.unwrap_err())?.to_string());
    for expected in [
        "deadline is 0ns, it must be more than zero",
        "retry count is 8, at most 7 is allowed",
        "receive buffers is 0, at least 1 is needed",
    ] {
        assert!(refused.iter().any(|text| text == expected), "{expected:?} is not in {refused:#?}");
    }
    assert_eq!(net.client.stats().cm.mads_sent, 0);
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn paths_that_do_not_exist() -> Result {
    let net = Net::new(1).await?;
    let unknown: Gid = "fe80::1234".parse()?;
    let error = net.client.path_to(unknown).await.unwrap_err();
    assert_eq!(error.to_string(), "no path to fe80::1234");
    let error = net.client.path_to(net.server.gid()).sgid(unknown).await.unwrap_err();
    assert_eq!(error.to_string(), "SGID is fe80::1234, it must be a GID of the HCA's port");
    net.client.path_to(Gid::UNSPECIFIED).await.unwrap_err();
    net.net.link_down("client");
    tokio::time::sleep(Duration::from_millis(1)).await;
    let error = net.client.path_to(net.server.gid()).await.unwrap_err();
    assert_eq!(error.to_string(), "port 1 is down");
    net.quiet().await
}

#[test]
fn without_a_runtime_opening_says_so() {
    for open in [Hca::open("soft"), Hca::open_default()] {
        let mut open = std::pin::pin!(open);
        let Poll::Ready(Err(error)) = open.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("it waits for a runtime, or has found one");
        };
        assert!(error.to_string().starts_with("no tokio runtime"), "{error}");
    }
}

#[tokio::test]
async fn a_taken_udp_port_names_who_may_hold_it() -> Result {
    let hca = Hca::open("soft").await?;
    let error = Hca::open(hca.gid().to_ip()).await.unwrap_err();
    let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(cause.contains("4791"), "{error}: {cause}");
    hca.close().await;
    // Closed, the address is free.
    let again = Hca::open(hca.gid().to_ip()).await?;
    assert_eq!(again.gid(), hca.gid());
    Ok(())
}
