//! More requests than a program can decide: the window of a listener, its backlog, and what does not fit.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Net, Result, SID};
use futures::future::{join_all, poll_immediate};
use ibcm::{
    Bind, ConnectError, Connection, IncomingRequest, Listener, ListenerStats, Overflow, Recv, RejReason,
};
use tokio::task::JoinHandle;

const SECOND: Duration = Duration::from_secs(1);

fn bind(net: &Net) -> Bind {
    Listener::bind(SID).device(&net.server)
}

type Dialing = JoinHandle<std::result::Result<Connection, ConnectError>>;

/// So many clients ask, each with a deadline of 60 s, and their requests have arrived.
async fn dial(net: &Net, clients: usize) -> Result<Vec<Dialing>> {
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let connect = || Connection::connect(path.clone()).recv(Recv::buffers(1, 64)).deadline(60 * SECOND);
    let dialing = (0..clients).map(|_| tokio::spawn(connect())).collect();
    tokio::time::sleep(Duration::from_millis(10)).await;
    Ok(dialing)
}

/// The next request, if there is one now.
async fn next(listener: &Listener) -> Result<Option<IncomingRequest>> {
    Ok(poll_immediate(listener.accept()).await.transpose()?)
}

/// All that was received is somewhere.
#[track_caller]
fn adds_up(stats: &ListenerStats) {
    let ListenerStats { received, in_window, waiting, accepted, rejected, .. } = *stats;
    let ListenerStats { ignored, withdrawn, malformed, dropped, refused, .. } = *stats;
    let decided = accepted + rejected + ignored + withdrawn + malformed;
    assert_eq!(received, in_window + waiting + decided + dropped + refused, "{stats:?}");
}

#[tokio::test(start_paused = true)]
async fn the_window_is_what_the_program_holds_undecided() -> Result {
    let net = Net::new(1).await?;
    let listener = bind(&net).window(2).backlog(8).await?;
    let dialing = dial(&net, 6).await?;
    let held = |stats: ListenerStats| (stats.in_window, stats.waiting);
    assert_eq!(held(listener.stats()), (0, 6));

    let first = next(&listener).await?.ok_or("none")?;
    let second = next(&listener).await?.ok_or("none")?;
    assert_eq!(held(listener.stats()), (2, 4));
    assert!(next(&listener).await?.is_none(), "the window is full");

    // Each way of deciding makes room for one more, and wakes who waits for it.
    let listener = Arc::new(listener);
    let waiting = tokio::spawn({
        let listener = Arc::clone(&listener);
        async move { listener.accept().await }
    });
    tokio::task::yield_now().await;
    first.reject(RejReason::CONSUMER);
    let third = waiting.await??;
    assert_eq!(held(listener.stats()), (2, 3));
    second.ignore();
    let fourth = next(&listener).await?.ok_or("none")?;
    drop(third);
    let fifth = next(&listener).await?.ok_or("none")?;
    assert!(next(&listener).await?.is_none());
    let accepted = fourth.accept().await?;
    let stats = listener.stats();
    assert_eq!((stats.received, stats.rejected, stats.ignored, stats.accepted), (6, 2, 1, 1));
    assert_eq!(held(stats), (1, 1));
    adds_up(&stats);

    drop((fifth, accepted, dialing, listener));
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn a_request_leaves_the_window_when_its_rep_is_sent() -> Result {
    let net = Net::new(1).await?;
    let listener = bind(&net).window(1).await?;
    let dialing = dial(&net, 2).await?;
    let request = next(&listener).await?.ok_or("none")?;
    let mut accept = Box::pin(request.accept());
    assert!(next(&listener).await?.is_none(), "not answered before it is polled");
    net.net.partition(&["client"], &["server"]);
    assert!(poll_immediate(&mut accept).await.is_none(), "the RTU is missing");
    assert_eq!((listener.stats().accepted, listener.stats().in_window), (1, 0));
    let second = next(&listener).await?.ok_or("none")?;
    net.net.heal();
    let (first, second) = tokio::try_join!(accept, second.accept())?;
    for client in dialing {
        client.await??.disconnect().await;
    }
    drop((first, second));
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn a_dropped_acceptance_leaves_the_window() -> Result {
    let net = Net::new(1).await?;
    let listener = bind(&net).window(1).await?;
    let dialing = dial(&net, 2).await?;
    drop(next(&listener).await?.ok_or("none")?.accept());
    let second = next(&listener).await?.ok_or("none")?;
    assert_eq!((listener.stats().rejected, listener.stats().in_window), (1, 1));
    drop(second.accept().await?);
    drop((dialing, listener));
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn behind_the_window_mras_keep_the_peers_patient() -> Result {
    let net = Net::new(1).await?;
    let listener = bind(&net).window(1).backlog(3).await?;
    let dialing = dial(&net, 4).await?;
    for _ in 0..4 {
        let request = listener.accept().await?;
        tokio::time::sleep(10 * SECOND).await;
        request.accept().await?;
    }
    for client in join_all(dialing).await {
        client??;
    }
    assert!(net.server.stats().cm.mras_sent >= 4);
    let stats = listener.stats();
    assert_eq!((stats.received, stats.accepted), (4, 4), "no request was lost or made twice");
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_is_dropped_and_comes_again() -> Result {
    let net = Net::new(1).await?;
    let listener = bind(&net).window(1).backlog(1).await?;
    let dialing = dial(&net, 4).await?;
    let stats = listener.stats();
    assert_eq!((stats.received, stats.waiting, stats.dropped, stats.refused), (4, 2, 2, 0));
    assert_eq!(net.server.stats().cm.dropped_backlog, 2);
    for _ in 0..4 {
        listener.accept().await?.accept().await?;
    }
    for client in join_all(dialing).await {
        client??;
    }
    let stats = listener.stats();
    assert_eq!((stats.accepted, stats.dropped), (4, 2));
    adds_up(&stats);
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_is_rejected_if_the_listener_says_so() -> Result {
    let net = Net::new(1).await?;
    let overflow = Overflow::Reject(RejReason::NO_RESOURCES);
    let listener = bind(&net).window(1).backlog(0).overflow(overflow).await?;
    let mut dialing = dial(&net, 3).await?.into_iter();
    let fits = dialing.next().ok_or("none")?;
    for client in dialing {
        let error = client.await?.unwrap_err();
        assert!(error.is_retryable());
        let ConnectError::Rejected(no) = error else { return Err(format!("{error:?}").into()) };
        assert_eq!((no.reason, no.sent), (RejReason::NO_RESOURCES, 1));
    }
    drop(listener.accept().await?.accept().await?);
    drop(fits.await??);
    listener.close().await;
    let stats = listener.stats();
    assert_eq!((stats.received, stats.accepted, stats.refused, stats.dropped), (3, 1, 2, 0));
    adds_up(&stats);
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn withdrawn_requests_make_room() -> Result {
    let net = Net::new(1).await?;
    let listener = bind(&net).window(1).backlog(1).await?;
    let mut dialing = dial(&net, 2).await?;
    let in_hand = next(&listener).await?.ok_or("none")?;
    for client in dialing.drain(..) {
        client.abort();
        _ = client.await;
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    // What the program holds it holds, withdrawn or not; what waited is gone.
    let stats = listener.stats();
    assert_eq!((stats.in_window, stats.waiting, stats.withdrawn), (1, 0, 1));
    dialing = dial(&net, 2).await?;
    assert_eq!((listener.stats().waiting, listener.stats().dropped), (2, 0));
    assert!(in_hand.accept().await.is_err());
    assert_eq!(listener.stats().withdrawn, 2);
    for _ in 0..2 {
        listener.accept().await?.accept().await?;
    }
    for client in join_all(dialing).await {
        client??;
    }
    adds_up(&listener.stats());
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn a_closed_listener_still_tells() -> Result {
    for close_hca in [false, true] {
        let net = Net::new(1).await?;
        let listener = bind(&net).window(1).backlog(2).await?;
        let dialing = dial(&net, 5).await?;
        let in_hand = listener.accept().await?;
        if close_hca {
            net.server.close().await;
        } else {
            listener.close().await;
        }
        drop(in_hand);
        let stats = listener.stats();
        assert_eq!((stats.received, stats.rejected, stats.dropped), (5, 3, 2));
        assert_eq!((stats.in_window, stats.waiting), (0, 0));
        adds_up(&stats);
        drop((dialing, listener));
        net.quiet().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_window_of_nothing_is_refused() -> Result {
    let net = Net::new(1).await?;
    let error = bind(&net).window(0).await.unwrap_err();
    assert_eq!(error.to_string(), "window is 0, at least 1 is needed");
    drop(bind(&net).window(usize::MAX).backlog(usize::MAX).await?);
    net.quiet().await
}

/// A hundred clients, a program that decides one request every 20 ms, a bad network: all get in, the bounds hold all
/// the time, and the counters account for each request.
#[tokio::test(start_paused = true)]
async fn a_small_window_serves_a_storm() -> Result {
    const CLIENTS: usize = 100;
    let net = Net::new(1).await?;
    net.net.faults().loss(0.05).duplicate(0.02).reorder(0.1);
    let listener = Arc::new(bind(&net).window(4).backlog(8).await?);
    let serving = tokio::spawn({
        let listener = Arc::clone(&listener);
        async move {
            while let Ok(request) = listener.accept().await {
                tokio::time::sleep(Duration::from_millis(20)).await;
                tokio::spawn(async move {
                    let conn = request.accept().recv(Recv::buffers(1, 64)).await?;
                    Ok::<_, ibcm::Error>(conn.closed().await)
                });
            }
        }
    });
    let dialing = dial(&net, CLIENTS).await?;
    let watching = tokio::spawn({
        let listener = Arc::clone(&listener);
        async move {
            loop {
                let stats = listener.stats();
                adds_up(&stats);
                assert!(stats.in_window <= 4 && stats.in_window + stats.waiting <= 12, "{stats:?}");
                tokio::time::sleep(Duration::from_millis(7)).await;
            }
        }
    });
    let mut conns = Vec::new();
    for client in join_all(dialing).await {
        conns.push(client??);
    }
    join_all(conns.iter().map(Connection::disconnect)).await;
    let stats = listener.stats();
    assert!(stats.accepted >= CLIENTS as u64 && stats.dropped > 0, "{stats:?}");
    assert!(!watching.is_finished());
    for task in [serving, watching] {
        task.abort();
        _ = task.await;
    }
    drop((conns, listener));
    net.quiet().await
}
