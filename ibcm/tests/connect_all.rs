//! Connections to many peers: one outcome for each, a bounded number in flight, a common deadline.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use common::odd::Odd;
use common::{Result, SID};
use futures::future::join_all;
use futures::{Stream as _, StreamExt as _};
use ibcm::sim::Subnet;
use ibcm::{
    Attempt, Connect, ConnectError, Connection, Gid, Hca, Listener, Overflow, Recv, RejReason, Retry,
    ServiceId, SharedRecv,
};
use tokio::task::JoinHandle;
use tokio::time::Instant;

const NOBODY: ServiceId = ServiceId::new(0x1000_0000_0000_0002);
const SECOND: Duration = Duration::from_secs(1);

/// A client, a server that takes everything, and a host that nothing reaches.
struct World {
    net: Subnet,
    client: Hca,
    server: Hca,
    dead: Hca,
    receives: SharedRecv,
    serving: JoinHandle<()>,
}

impl World {
    async fn new() -> Result<Self> {
        let net = Subnet::star(["client", "server", "dead"]).await?;
        let open = async |name| Hca::open(net.device(name)).rng_seed([1; 32]).await;
        let (client, server, dead) = (open("client").await?, open("server").await?, open("dead").await?);
        net.partition(&["dead"], &["client", "server"]);
        let listener = Listener::bind(SID).device(&server).await?;
        let receives = server.shared_recv(16, 64).await?;
        let serving = tokio::spawn(serve(listener, receives));
        let receives = client.shared_recv(16, 64).await?;
        Ok(Self { net, client, server, dead, receives, serving })
    }

    fn served(&self) -> (Gid, ServiceId) {
        (self.server.gid(), SID)
    }

    fn unreachable(&self) -> (Gid, ServiceId) {
        (self.dead.gid(), SID)
    }

    /// Whatever is up disconnects, and nothing is left.
    async fn end(self, attempts: Vec<Attempt>) -> Result {
        let conns: Vec<_> = attempts.into_iter().filter_map(|attempt| attempt.result.ok()).collect();
        join_all(conns.iter().map(Connection::disconnect)).await;
        let Self { net, receives, serving, .. } = self;
        drop((conns, receives));
        net.heal();
        serving.abort();
        _ = serving.await;
        Ok(net.quiet().await?)
    }
}

async fn serve(listener: Listener, receives: SharedRecv) {
    while let Ok(request) = listener.accept().await {
        let accept = request.accept().recv(Recv::shared(&receives));
        tokio::spawn(async move { Ok::<_, ibcm::Error>(accept.await?.closed().await) });
    }
}

fn is_up(attempt: &Attempt) -> bool {
    attempt.result.is_ok()
}

fn indices(attempts: &[Attempt]) -> BTreeSet<usize> {
    attempts.iter().map(|attempt| attempt.index).collect()
}

#[tokio::test(start_paused = true)]
async fn each_peer_has_one_outcome_and_few_are_in_flight() -> Result {
    let world = World::new().await?;
    let taken = Arc::new(AtomicUsize::new(0));
    let (served, counter) = (world.served(), Arc::clone(&taken));
    let peers = (0..100).map(move |n| {
        counter.fetch_add(1, Ordering::Relaxed);
        if n % 10 == 7 { (served.0, NOBODY) } else { served }
    });
    let receives = world.receives.clone();
    let mut all = world
        .client
        .connect_all(peers)
        .concurrency(8)
        .each(move |_, connect| connect.recv(Recv::shared(&receives)));
    assert_eq!(all.progress().to_string(), "0 of 100 up, 0 failed, 0 in flight, 100 waiting");
    assert_eq!((taken.load(Ordering::Relaxed), all.size_hint()), (0, (100, Some(100))));
    let mut attempts = Vec::new();
    while let Some(attempt) = all.next().await {
        attempts.push(attempt);
        let progress = all.progress();
        assert!(progress.in_flight < 8, "{progress}");
        assert_eq!((progress.done(), progress.total()), (attempts.len(), Some(100)));
        assert_eq!(taken.load(Ordering::Relaxed), progress.done() + progress.in_flight);
        assert_eq!(all.size_hint(), (100 - attempts.len(), Some(100 - attempts.len())));
    }
    assert!(all.next().await.is_none());
    assert_eq!(all.progress().to_string(), "90 of 100 up, 10 failed, 0 in flight, 0 waiting");
    assert_eq!(indices(&attempts), (0..100).collect());
    for attempt in &attempts {
        assert_eq!(attempt.tries, 1);
        let refused = matches!(attempt.result, Err(ConnectError::Rejected(_)));
        let expected = if refused { NOBODY } else { SID };
        assert_eq!((attempt.gid, attempt.service_id), (world.server.gid(), expected));
        assert_eq!(refused, attempt.index % 10 == 7);
    }
    drop(all);
    world.end(attempts).await
}

#[tokio::test(start_paused = true)]
async fn peers_that_do_not_answer_keep_nobody_waiting_for_long() -> Result {
    let world = World::new().await?;
    let dead = std::iter::repeat_n(world.unreachable(), 8);
    let peers = dead.chain(std::iter::repeat_n(world.served(), 20));
    let all = world.client.connect_all(peers.collect::<Vec<_>>()).concurrency(4);
    let all = all.deadline(25 * SECOND).retry(Retry::backoff());
    let start = Instant::now();
    let mut times = Vec::new();
    let attempts: Vec<_> = all.inspect(|_| times.push(start.elapsed())).collect().await;
    assert_eq!(indices(&attempts), (0..28).collect());
    // Two rounds of four that are silent, then the others at once, then the silent ones until the end.
    assert!(attempts[..20].iter().all(is_up) && times[19] < 21 * SECOND, "{times:?}");
    for (attempt, at) in attempts[20..].iter().zip(&times[20..]) {
        let Err(ConnectError::Unreachable { attempts: tries, sent, .. }) = attempt.result else {
            return Err(format!("{attempt:?}").into());
        };
        assert!(attempt.tries == tries && (1..=2).contains(&tries) && sent > tries, "{attempt:?}");
        assert!(*at >= 25 * SECOND && *at < 25 * SECOND + Duration::from_millis(10), "{at:?}");
    }
    assert!(attempts[20..].iter().any(|attempt| attempt.tries == 2));
    world.end(attempts).await
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_comes_late_is_tried_again() -> Result {
    let world = World::new().await?;
    let listener = Listener::bind(SID).device(&world.dead).await?;
    let late = tokio::spawn(serve(listener, world.dead.shared_recv(16, 64).await?));
    let peers = std::iter::repeat_n(world.unreachable(), 3);
    let all = world.client.connect_all(peers).deadline(60 * SECOND).retry(Retry::backoff());
    let healing = async {
        tokio::time::sleep(25 * SECOND).await;
        world.net.heal();
    };
    let (attempts, ()) = tokio::join!(all.collect::<Vec<_>>(), healing);
    for attempt in &attempts {
        assert!(is_up(attempt) && attempt.tries == 3, "{attempt:?}");
        assert!(attempt.took > 25 * SECOND && attempt.took < 30 * SECOND, "{attempt:?}");
    }
    late.abort();
    _ = late.await;
    world.end(attempts).await
}

#[tokio::test(start_paused = true)]
async fn without_a_common_deadline_each_has_its_own() -> Result {
    let world = World::new().await?;
    let all = world.client.connect_all([world.unreachable(), world.unreachable()]);
    let all = all.concurrency(1).retry(Retry::backoff());
    let all = all.each(|index, connect| if index == 0 { connect } else { connect.deadline(SECOND) });
    let start = Instant::now();
    let attempts: Vec<_> = all.collect().await;
    assert!(attempts.iter().all(|a| matches!(a.result, Err(ConnectError::Unreachable { .. }))));
    let took = |secs: u32| secs * SECOND..secs * SECOND + Duration::from_millis(10);
    assert!(took(10).contains(&attempts[0].took) && took(1).contains(&attempts[1].took), "{attempts:?}");
    assert!(took(11).contains(&start.elapsed()));
    world.end(attempts).await
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_the_end_cuts_short_does_not_hide_what_was_met_before() -> Result {
    let millis = Duration::from_millis;
    // Making a queue pair takes some 30 ms on this device, so that for some of these deadlines it is not ready in time.
    for deadline in (200..260).step_by(4) {
        let net = Subnet::star(["client", "server"]).seed(deadline).await?;
        let odd = Odd::new(net.device("client"), |_| {}).as_device();
        let (client, server) = (Hca::open(odd).await?, Hca::open(net.device("server")).await?);
        let listener = Listener::bind(SID).device(&server).await?;
        let refusing = tokio::spawn(async move {
            while let Ok(request) = listener.accept().await {
                request.reject(RejReason::NO_RESOURCES);
            }
        });
        let all = client.connect_all([(server.gid(), SID)]).deadline(millis(deadline));
        let all = all.retry(Retry::backoff().pause(millis(1)..=millis(8)));
        let attempts: Vec<_> = all.each(move |_, connect| connect.deadline(millis(70))).collect().await;
        let [Attempt { result: Err(ConnectError::Rejected(no)), tries, took, .. }] = &attempts[..] else {
            return Err(format!("{deadline} ms: {attempts:?}").into());
        };
        assert!(no.reason == RejReason::NO_RESOURCES && no.attempts == *tries && *tries > 3, "{attempts:?}");
        assert!(*took <= millis(deadline + 2), "{took:?}");
        refusing.abort();
        _ = refusing.await;
        net.quiet().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn each_may_have_a_rule_of_its_own_for_other_attempts() -> Result {
    let world = World::new().await?;
    let peers = || std::iter::repeat_n(world.unreachable(), 2);
    let (once, often) = (Retry::never, Retry::backoff);
    for (common, first) in [(often(), once()), (once(), often())] {
        let all = world.client.connect_all(peers()).deadline(10 * SECOND).retry(common);
        let all = all.each(move |index, connect| {
            let connect = connect.deadline(SECOND);
            if index == 0 { connect.retry(first.clone()) } else { connect }
        });
        let attempts: Vec<_> = all.collect().await;
        for attempt in &attempts {
            assert!(matches!(attempt.result, Err(ConnectError::Unreachable { .. })), "{attempt:?}");
        }
        // As they end: that with one attempt first.
        let [one, many] = &attempts[..] else { return Err(format!("{attempts:?}").into()) };
        assert!(one.tries == 1 && one.took < SECOND + Duration::from_millis(10), "{one:?}");
        assert!(many.tries > 3 && many.took > 8 * SECOND, "{many:?}");
    }
    world.end(Vec::new()).await
}

#[tokio::test(start_paused = true)]
async fn a_value_out_of_range_from_each_is_not_tried_again() -> Result {
    let world = World::new().await?;
    let always = Retry::backoff().when(|_| true);
    for spoil in [
        |connect: Connect<92>| connect.deadline(Duration::ZERO),
        |connect: Connect<92>| {
            connect.retry(Retry::backoff().pause(Duration::ZERO..=Duration::ZERO).when(|_| true))
        },
    ] {
        let all = world.client.connect_all([world.served()]).deadline(10 * SECOND).retry(always.clone());
        let attempts: Vec<_> = all.each(move |_, connect| spoil(connect)).collect().await;
        let [Attempt { result: Err(ConnectError::Invalid(_)), tries: 0, .. }] = &attempts[..] else {
            return Err(format!("{attempts:?}").into());
        };
    }
    world.end(Vec::new()).await
}

#[tokio::test(start_paused = true)]
async fn those_whose_turn_did_not_come_are_told_too() -> Result {
    let world = World::new().await?;
    let peers = std::iter::repeat_n(world.unreachable(), 6);
    let start = Instant::now();
    let all = world.client.connect_all(peers).concurrency(2).deadline(5 * SECOND);
    let attempts: Vec<_> = all.collect().await;
    assert!(start.elapsed() < 5 * SECOND + Duration::from_millis(10));
    assert_eq!(indices(&attempts), (0..6).collect());
    for attempt in &attempts {
        match (&attempt.result, attempt.tries) {
            (Err(ConnectError::Unreachable { .. }), 1) => assert!(attempt.index < 2),
            (Err(ConnectError::Deadline { waited }), 0) => {
                assert!(attempt.index >= 2 && *waited >= 5 * SECOND && attempt.took.is_zero());
            }
            _ => return Err(format!("{attempt:?}").into()),
        }
    }
    world.end(attempts).await
}

#[tokio::test(start_paused = true)]
async fn dropped_at_any_time_it_leaves_nothing_behind() -> Result {
    for taken in [0, 1, 5] {
        let world = World::new().await?;
        let peers = std::iter::repeat_n(world.unreachable(), 3);
        let peers = peers.chain(std::iter::repeat(world.served())); // without an end
        let mut all = world.client.connect_all(peers).concurrency(6);
        let mut attempts = Vec::new();
        for _ in 0..taken {
            attempts.extend(all.next().await);
        }
        // Until there is nothing to take, so that some are half way.
        while let Poll::Ready(attempt) = futures::poll!(all.next()) {
            attempts.extend(attempt);
        }
        assert_eq!(all.progress().to_string(), format!("{} up, 0 failed, 6 in flight", attempts.len()));
        drop(all);
        assert!(attempts.len() >= taken && attempts.iter().all(is_up));
        world.end(attempts).await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn what_is_out_of_range_fails_for_every_peer() -> Result {
    let world = World::new().await?;
    let peers = || std::iter::repeat_n(world.served(), 2);
    for (all, text) in [
        (world.client.connect_all(peers()).concurrency(0), "concurrency is 0, at least 1 is needed"),
        (
            world.client.connect_all(peers()).deadline(Duration::ZERO),
            "deadline is 0ns, it must be more than zero",
        ),
        (
            world.client.connect_all(peers()).retry(Retry::backoff().attempts(0)),
            "attempts is 0, at least 1 is needed",
        ),
    ] {
        let attempts: Vec<_> = all.collect().await;
        assert_eq!(indices(&attempts), (0..2).collect());
        for attempt in attempts {
            assert_eq!(attempt.result.unwrap_err().to_string(), text);
            assert_eq!((attempt.tries, attempt.took), (0, Duration::ZERO));
        }
    }
    assert_eq!(world.client.stats().cm.mads_sent, 0);
    world.end(Vec::new()).await
}

#[tokio::test(start_paused = true)]
async fn private_data_and_index_go_together_through_a_narrow_door() -> Result {
    let net = Subnet::star(["client", "server"]).await?;
    net.faults().loss(0.02);
    let (client, server) = (Hca::open(net.device("client")).await?, Hca::open(net.device("server")).await?);
    let listener = Listener::bind(SID).device(&server).window(2).backlog(2).overflow(Overflow::Drop);
    let listener = listener.await?;
    let receives = server.shared_recv(16, 64).await?;
    let serving = tokio::spawn(async move {
        while let Ok(request) = listener.accept().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let rank = request.private_data()[0];
            let accept = request.accept().private_data(&[rank + 1]).recv(Recv::shared(&receives));
            tokio::spawn(async move { Ok::<_, ibcm::Error>(accept.await?.closed().await) });
        }
    });
    let all = client.connect_all(std::iter::repeat_n((server.gid(), SID), 60)).concurrency(30);
    let all = all.retry(Retry::backoff()).deadline(60 * SECOND);
    let mut all = all.each(|rank, connect| connect.private_data(&[rank as u8]).recv(Recv::buffers(1, 64)));
    let mut conns = Vec::new();
    while let Some(Attempt { index, result, .. }) = all.next().await {
        let conn = result?;
        assert_eq!(usize::from(conn.private_data()[0]), index + 1);
        conns.push(conn);
    }
    assert_eq!(conns.len(), 60);
    assert!(server.stats().cm.dropped_backlog > 0);
    join_all(conns.iter().map(Connection::disconnect)).await;
    drop(conns);
    serving.abort();
    _ = serving.await;
    Ok(net.quiet().await?)
}
