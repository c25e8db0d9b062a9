//! Attempts to connect after one that failed.

mod common;

use std::time::Duration;

use common::odd::Odd;
use common::{Net, Result, SID, drop_after};
use futures::future::poll_immediate;
use ibcm::sim::Subnet;
use ibcm::{
    ConnectError, Connection, Hca, Listener, PrivateData, RejReason, Reject, Rejection, Retry, ServicePath,
};
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

async fn path(net: &Net) -> Result<ServicePath> {
    Ok(net.client.path_to(net.server.gid()).service_id(SID).await?)
}

/// What identifies an attempt on the wire: ID, QP, PSN.
type Marks = (u32, u32, u32);

/// Rejects so many requests for this reason and accepts the next. Tells when each came, and its marks.
async fn rejecting(listener: Listener, reason: RejReason, times: usize) -> Result<Vec<(Instant, Marks)>> {
    let mut seen = Vec::new();
    loop {
        let request = listener.accept().await?;
        let req = request.req();
        seen.push((Instant::now(), (req.local_comm_id.0, req.local_qpn.get(), req.starting_psn.get())));
        if seen.len() > times {
            request.accept().await?.closed().await;
            return Ok(seen);
        }
        request.reject(reason);
    }
}

fn rejection(result: std::result::Result<Connection, ConnectError>) -> Result<Box<Rejection>> {
    match result {
        Err(ConnectError::Rejected(no)) => Ok(no),
        other => Err(format!("{other:?}").into()),
    }
}

#[tokio::test(start_paused = true)]
async fn each_attempt_has_an_id_a_queue_pair_and_a_psn_of_its_own() -> Result {
    for reason in [RejReason::NO_QP, RejReason::NO_RESOURCES, RejReason::STALE_CONNECTION] {
        let net = Net::new(1).await?;
        let serving = tokio::spawn(rejecting(net.listen().await?, reason, 4));
        let conn = Connection::connect(path(&net).await?).retry(Retry::backoff()).await?;
        conn.disconnect().await;
        drop(conn);
        let seen = serving.await??;
        assert_eq!(seen.len(), 5);
        for (n, (_, (id, qpn, psn))) in seen.iter().enumerate() {
            for (_, other) in &seen[..n] {
                assert!(*id != other.0 && *qpn != other.1 && *psn != other.2, "{seen:?}");
            }
        }
        net.quiet().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn pauses_double_and_are_random_within_half() -> Result {
    let net = Net::new(1).await?;
    let serving = tokio::spawn(rejecting(net.listen().await?, RejReason::NO_RESOURCES, 9));
    let connect = Connection::connect(path(&net).await?).retry(Retry::backoff());
    let conn = connect.deadline(60 * SECOND).await?;
    drop(conn);
    let seen = serving.await??;
    for (n, times) in seen.windows(2).enumerate() {
        let pause = Duration::from_millis(20 << n).min(2 * SECOND);
        let waited = times[1].0 - times[0].0;
        // Flight times and the granularity of the runtime's timers come on top.
        let most = pause + Duration::from_millis(2);
        assert!((pause / 2..=most).contains(&waited), "{waited:?} instead of {pause:?}");
    }
    net.quiet().await
}

/// When the attempts arrive, with these seeds of the client's HCA.
async fn arrivals(seed: u8) -> Result<Vec<Duration>> {
    let net = Subnet::star(["client", "server"]).seed(1).await?;
    let client = Hca::open(net.device("client")).rng_seed([seed; 32]).await?;
    let server = Hca::open(net.device("server")).rng_seed([2; 32]).await?;
    let start = Instant::now();
    let listener = Listener::bind(SID).device(&server).await?;
    let serving = tokio::spawn(rejecting(listener, RejReason::NO_RESOURCES, 6));
    let path = client.path_to(server.gid()).service_id(SID).await?;
    drop(Connection::connect(path).retry(Retry::backoff()).await?);
    let seen = serving.await??;
    net.quiet().await?;
    Ok(seen.into_iter().map(|(at, _)| at - start).collect())
}

#[tokio::test(start_paused = true)]
async fn jitter_comes_from_the_seed_of_the_hca() -> Result {
    let first = arrivals(7).await?;
    assert_eq!(first, arrivals(7).await?);
    assert_ne!(first, arrivals(8).await?);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_no_of_the_program_is_final() -> Result {
    let net = Net::new(1).await?;
    let serving = tokio::spawn(rejecting(net.listen().await?, RejReason::CONSUMER, 1));
    let no = rejection(Connection::connect(path(&net).await?).retry(Retry::backoff()).await)?;
    assert_eq!((no.reason, no.attempts, no.sent), (RejReason::CONSUMER, 1, 1));
    assert_eq!(no.to_string(), RejReason::CONSUMER.to_string());
    serving.abort();
    _ = serving.await;
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn the_last_rejection_tells_of_all_attempts() -> Result {
    let net = Net::new(1).await?;
    let listener = net.listen().await?;
    let connect = Connection::connect(path(&net).await?).retry(Retry::backoff().attempts(3));
    let start = Instant::now();
    let connecting = tokio::spawn(connect);
    for n in 1..=3u8 {
        // The second attempt has to ask twice.
        if n == 2 {
            listener.accept().await?.ignore();
        }
        let request = listener.accept().await?;
        request.reject(Reject::new(RejReason::NO_RESOURCES).private_data(PrivateData::new(&[n])?));
    }
    let no = rejection(connecting.await?)?;
    assert_eq!((no.attempts, no.sent, no.private_data[0]), (3, 4, 3));
    let took = start.elapsed();
    assert!(no.waited <= took && no.waited + Duration::from_millis(1) >= took, "{:?}", no.waited);
    let told = format!("no resources (3), after 3 attempts and 4 requests in {:?}", no.waited);
    assert!(no.to_string().ends_with(&told[told.find(',').unwrap_or(0)..]), "{no}");
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn without_a_word_there_is_one_more_after_a_stale_connection() -> Result {
    for (rejects, retry, attempts) in [
        (1, Retry::default(), None),
        (2, Retry::default(), Some(2)),
        (1, Retry::never(), Some(1)),
        (2, Retry::backoff(), None),
    ] {
        let net = Net::new(1).await?;
        let serving = tokio::spawn(rejecting(net.listen().await?, RejReason::STALE_CONNECTION, rejects));
        let result = Connection::connect(path(&net).await?).retry(retry).await;
        match attempts {
            None => drop(result?),
            Some(attempts) => assert_eq!(rejection(result)?.attempts, attempts),
        }
        serving.abort();
        _ = serving.await;
        net.quiet().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn silence_is_met_again_and_again_until_the_deadline() -> Result {
    let net = Net::new(1).await?;
    let path = path(&net).await?;
    net.net.partition(&["client"], &["server"]);
    let start = Instant::now();
    let connect = Connection::connect(path).response_timeout(Duration::from_millis(100)).max_cm_retries(1);
    let error = connect.retry(Retry::backoff()).await.unwrap_err();
    let ConnectError::Unreachable { attempts, sent, waited, busy: false } = error else {
        return Err(format!("{error:?}").into());
    };
    // Two REQs an attempt, 671 ms from one to the next, and pauses of 20 ms and more.
    assert!((6..=7).contains(&attempts), "{attempts}");
    assert!((2 * attempts - 1..=2 * attempts).contains(&sent), "{sent} REQs in {attempts} attempts");
    let took = start.elapsed();
    assert!(waited <= took && took <= 10 * SECOND + Duration::from_millis(1), "{waited:?} of {took:?}");
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn a_port_that_is_down_comes_up() -> Result {
    let net = Net::new(1).await?;
    let listener = net.listen().await?;
    let path = path(&net).await?;
    net.net.link_down("client");
    tokio::time::sleep(Duration::from_millis(1)).await;
    let once = Connection::connect(path.clone()).await.unwrap_err();
    assert!(matches!(once, ConnectError::PortDown { port: 1 }), "{once:?}");
    let connecting = tokio::spawn(Connection::connect(path).retry(Retry::backoff()));
    tokio::time::sleep(3 * SECOND).await;
    net.net.link_up("client");
    let (active, passive) =
        (connecting, async { Ok::<_, ibcm::Error>(listener.accept().await?.accept().await?) });
    let (active, passive) = tokio::join!(active, passive);
    drop((active??, passive?));
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_cannot_begin_in_time_is_not_waited_for() -> Result {
    let net = Net::new(1).await?;
    let serving = tokio::spawn(rejecting(net.listen().await?, RejReason::NO_RESOURCES, 9));
    for pause in [20 * SECOND, Duration::MAX] {
        let start = Instant::now();
        let retry = Retry::backoff().pause(pause..=Duration::MAX);
        let no = rejection(Connection::connect(path(&net).await?).retry(retry).await)?;
        assert_eq!(no.attempts, 1);
        assert!(start.elapsed() < SECOND);
    }
    serving.abort();
    _ = serving.await;
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn the_program_decides_what_is_worth_another_attempt() -> Result {
    let net = Net::new(1).await?;
    let retry = Retry::backoff().when(|error| match error {
        ConnectError::Rejected(no) => no.reason == RejReason::INVALID_SERVICE_ID,
        other => other.is_retryable(),
    });
    let connecting = tokio::spawn(Connection::connect(path(&net).await?).retry(retry));
    tokio::time::sleep(3 * SECOND).await;
    let serving = tokio::spawn(rejecting(net.listen().await?, RejReason::CONSUMER, 0));
    drop(connecting.await??);
    serving.await??;
    net.quiet().await
}

/// Drops the connecting future at each of its polls, those in the pauses included.
#[tokio::test(start_paused = true)]
async fn dropped_between_attempts_nothing_is_left() -> Result {
    let mut finished = 0;
    for polls in 0..40 {
        let net = Net::new(polls as u64).await?;
        let serving = tokio::spawn(rejecting(net.listen().await?, RejReason::NO_RESOURCES, 3));
        let result = drop_after(polls, Connection::connect(path(&net).await?).retry(Retry::backoff())).await;
        finished += usize::from(result.is_some());
        drop(result);
        net.client.wait_idle().await;
        net.server.wait_idle().await;
        serving.abort();
        _ = serving.await;
        net.quiet().await?;
    }
    assert!(finished > 0 && finished < 40, "{finished} of 40 were not dropped");
    // In the very pause, too.
    let net = Net::new(1).await?;
    let serving = tokio::spawn(rejecting(net.listen().await?, RejReason::NO_RESOURCES, 3));
    let retry = Retry::backoff().pause(SECOND..=SECOND);
    let mut connect = Box::pin(Connection::connect(path(&net).await?).retry(retry));
    while net.client.stats().cm.rejections_received == 0 {
        assert!(poll_immediate(&mut connect).await.is_none());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(poll_immediate(&mut connect).await.is_none());
    drop(connect);
    assert_eq!(net.client.stats().cm.mads_sent, 1);
    serving.abort();
    _ = serving.await;
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn a_later_attempt_is_timed_by_what_is_left() -> Result {
    let net = Net::new(1).await?;
    let listener = net.listen().await?;
    let minute = 60 * SECOND;
    // Between 27.5 and 55 s.
    let retry = Retry::backoff().attempts(2).pause(55 * SECOND..=55 * SECOND);
    let start = Instant::now();
    let connecting = tokio::spawn(Connection::connect(path(&net).await?).retry(retry).deadline(minute));
    let request = listener.accept().await?;
    // Another attempt may follow, so this one's waits are short.
    let codes = (request.req().remote_cm_response_timeout.get(), request.req().max_cm_retries.get());
    assert_eq!(codes, (12, 15));
    request.reject(RejReason::NO_RESOURCES);
    let request = listener.accept().await?;
    let (left, req) = (minute - start.elapsed(), request.req());
    let period = req.remote_cm_response_timeout.duration() + Duration::from_nanos(2 * (4096 << 16));
    assert!(req.remote_cm_response_timeout.get() < 20 && period * 8 <= left, "{req:?}");
    let retries = u32::from(req.max_cm_retries.get());
    assert!(period * retries < left && period * (retries + 1) >= left, "{retries} x {period:?} in {left:?}");
    drop(request.accept().await?);
    drop(connecting.await??);
    net.quiet().await
}

/// Making a queue pair takes this device 10 ms a step, so whatever the deadline is some attempt gets no further.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_the_deadline_cuts_short_does_not_hide_what_the_one_before_met() -> Result {
    for millis in (200..300).step_by(7) {
        let net = Subnet::star(["client", "server"]).seed(millis).await?;
        let odd = Odd::new(net.device("client"), |_| {});
        let (client, server) = (Hca::open(odd.as_device()).await?, Hca::open(net.device("server")).await?);
        let listener = Listener::bind(SID).device(&server).await?;
        let serving = tokio::spawn(rejecting(listener, RejReason::NO_RESOURCES, usize::MAX));
        let path = client.path_to(server.gid()).service_id(SID).await?;
        let retry = Retry::backoff().pause(SECOND / 50..=SECOND / 50);
        let connect = Connection::connect(path).retry(retry).deadline(Duration::from_millis(millis));
        assert_eq!(rejection(connect.await)?.reason, RejReason::NO_RESOURCES, "{millis} ms");
        serving.abort();
    }
    Ok(())
}
