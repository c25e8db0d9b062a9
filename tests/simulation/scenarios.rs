//! Scenarios of the fact sheets that want whole HCAs and minutes of virtual time.

use std::time::Duration;

use futures::future::{join, join_all};
use ibcm::sim::Subnet;
use ibcm::{
    AcceptError, ConnectError, Connection, DeviceError, Error, Hca, How, ListenError, Listener, QueryError,
    RecvError, ServiceId,
};
use tokio::time::{Instant, sleep};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);
const SECOND: Duration = Duration::from_secs(1);

/// A connection with a service of its own, from one HCA to another.
async fn pair(client: &Hca, server: &Hca) -> Result<(Connection, Connection)> {
    pair_by(client, server, SID, |connect| connect).await
}

async fn pair_by(
    client: &Hca,
    server: &Hca,
    service: ServiceId,
    set: impl FnOnce(ibcm::Connect<92>) -> ibcm::Connect<92>,
) -> Result<(Connection, Connection)> {
    let listener = Listener::bind(service).device(server).await?;
    let path = client.path_to(server.gid()).service_id(service).await?;
    let passive = async { Ok::<_, Error>(listener.accept().await?.accept().await?) };
    let active = async { Ok(set(Connection::connect(path)).await?) };
    Ok(tokio::try_join!(active, passive)?)
}

/// How often a dead peer is asked and how long that takes is what the REQ agreed on, or less if the caller wants so; in
/// the meantime the call waits, behind it nothing is left. With Linux's parameters it is 77 s.
#[tokio::test(start_paused = true)]
async fn cm_t18_a_dreq_that_is_never_answered() -> Result {
    let response = Duration::from_millis(4_294); // code 20
    for (retries, deadline, sent, waited) in [
        (15, 100_000, 16, 77_310..77_400),
        (3, 100_000, 4, 19_320..19_400),
        (0, 100_000, 1, 4_830..4_900),
        (15, 6_000, 2, 6_000..6_010),
        (15, 10, 1, 10..12),
    ] {
        let net = Subnet::star(["client", "server"]).await?;
        let (client, server) =
            (Hca::open(net.device("client")).await?, Hca::open(net.device("server")).await?);
        let set = |connect: ibcm::Connect<92>| connect.response_timeout(response).max_cm_retries(retries);
        let (active, passive) = pair_by(&client, &server, SID, set).await?;
        net.remove("server");
        let start = Instant::now();
        let closed = active.disconnect().deadline(Duration::from_millis(deadline)).await;
        let How::Unconfirmed { sent: times, waited: time } = closed.how else {
            return Err(format!("{closed}").into());
        };
        assert_eq!(times, sent, "{retries} retries, {deadline} ms");
        assert!(waited.contains(&(time.as_millis() as u64)), "{time:?} is not in {waited:?} ms");
        assert!(start.elapsed() <= time + Duration::from_millis(20), "{:?}", start.elapsed());
        assert_eq!(active.recv().await.unwrap_err(), RecvError::Closed);
        drop((active, passive));
        let start = Instant::now();
        net.quiet().await?;
        // TimeWait: twice the packet life time of 268 ms.
        assert!(start.elapsed() <= SECOND, "{:?}", start.elapsed());
        client.wait_idle().await;
    }
    Ok(())
}

/// The device is removed while there is a connection in each state that lasts. All who wait are told, each once; nothing
/// leaves any more; the peers find out by themselves.
#[tokio::test(start_paused = true)]
async fn cm_t85_a_device_with_connections_in_every_state() -> Result {
    let net = Subnet::star(["here", "there", "mute"]).await?;
    let (here, there) = (Hca::open(net.device("here")).await?, Hca::open(net.device("there")).await?);
    let sid = |n| ServiceId::new(SID.0 + n);
    let minute = 60 * SECOND;

    // ReqSent: nobody uses the other device. ReqMraRcvd: the other program does not decide.
    let mute = Hca::open(net.device("mute")).await?;
    mute.close().await;
    let req_sent = Connection::connect(here.path_to(mute.gid()).service_id(SID).await?).deadline(minute);
    let req_sent = tokio::spawn(req_sent);
    let slow = Listener::bind(sid(1)).device(&there).await?;
    let req_mra_rcvd =
        Connection::connect(here.path_to(there.gid()).service_id(sid(1)).await?).deadline(minute);
    let req_mra_rcvd = tokio::spawn(req_mra_rcvd);
    let undecided = slow.accept().await?;

    // ReqMraSent: this program does not decide; one request waits in its hands, one in the backlog.
    let listener = Listener::bind(sid(2)).device(&here).await?;
    let path = there.path_to(here.gid()).service_id(sid(2)).await?;
    let dial = || tokio::spawn(Connection::connect(path.clone()).deadline(minute));
    let mut dialing = vec![dial(), dial()];
    let req_mra_sent = listener.accept().await?;
    sleep(10 * SECOND).await;
    assert!(here.stats().cm.mras_sent >= 2 && there.stats().cm.mras_sent >= 1);

    // Established, on both sides; then TimeWait.
    let (active, of_active) = pair_by(&here, &there, sid(3), |connect| connect).await?;
    let (of_passive, passive) = pair_by(&there, &here, sid(3), |connect| connect).await?;
    let (time_wait, of_time_wait) = pair_by(&here, &there, sid(3), |connect| connect).await?;
    let (dreq_sent, of_dreq_sent) = pair_by(&here, &there, sid(3), |connect| connect).await?;
    assert_eq!(time_wait.disconnect().await.how, How::Confirmed);

    // ReqRcvd: it has just arrived. RepSent and DreqSent: no answer comes through.
    let rep_listener = Listener::bind(sid(4)).device(&here).await?;
    let path = there.path_to(here.gid()).service_id(sid(4)).await?;
    dialing.extend((0..2).map(|_| tokio::spawn(Connection::connect(path.clone()).deadline(minute))));
    let (req_rcvd, rep_sent) = (rep_listener.accept().await?, rep_listener.accept().await?);
    net.partition(&["here"], &["there"]);
    let rep_sent = tokio::spawn(rep_sent.accept());
    let disconnecting = tokio::spawn(async move {
        let closed = dreq_sent.disconnect().await;
        (closed, dreq_sent.closed().await)
    });
    let receiving = tokio::spawn(async move { (active.recv().await.map(drop), active.closed().await) });
    sleep(Duration::from_millis(100)).await;

    net.remove("here");
    let removed = Instant::now();
    assert!(matches!(req_sent.await?, Err(ConnectError::Device(DeviceError::Gone))));
    assert!(matches!(req_mra_rcvd.await?, Err(ConnectError::Device(DeviceError::Gone))));
    for request in [req_mra_sent, req_rcvd] {
        assert!(matches!(request.accept().await, Err(AcceptError::Device(DeviceError::Gone))));
    }
    assert!(matches!(rep_sent.await?, Err(AcceptError::Device(DeviceError::Gone))));
    assert!(matches!(listener.accept().await, Err(ListenError::Device(DeviceError::Gone))));
    let (closed, again) = disconnecting.await?;
    assert_eq!((closed.how, again.how), (How::DeviceGone, How::DeviceGone));
    let (received, closed) = receiving.await?;
    assert_eq!((received, closed.how), (Err(RecvError::Gone), How::DeviceGone));
    assert_eq!(passive.recv().await.map(drop), Err(RecvError::Gone));
    assert_eq!(passive.disconnect().await.how, How::DeviceGone);
    // That one had ended before.
    assert_eq!(time_wait.closed().await.how, How::Confirmed);
    assert!(matches!(
        here.path_to(there.gid()).await,
        Err(QueryError::Device(DeviceError::Gone) | QueryError::Closed)
    ));
    here.wait_idle().await;
    here.close().await;
    assert!(removed.elapsed() < Duration::from_millis(10), "{:?}", removed.elapsed());

    let sent = |net: &Subnet| net.log().iter().filter(|line| line.contains(" here > ")).count();
    let before = sent(&net);
    for dialing in dialing {
        let error = dialing.await?.err().ok_or("connected to a device that is gone")?;
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    }
    drop(undecided);
    assert_eq!(of_time_wait.closed().await.how, How::ByPeer);
    for peer in [of_active, of_passive, of_dreq_sent] {
        assert!(peer.send_copy(b"still there?").await.is_err());
    }
    drop(of_time_wait);
    net.quiet().await?;
    assert_eq!(sent(&net), before, "packets of a device that is gone");
    Ok(())
}

/// So many messages of any length, several at once, by several connections in both directions. Each arrives, once and in
/// order, whatever the network does.
async fn ten_thousand_messages(net: Subnet) -> Result {
    const CONNECTIONS: usize = 4;
    const MESSAGES: usize = 1_250;
    let (a, b) = (Hca::open(net.device("a")).await?, Hca::open(net.device("b")).await?);
    let mut tasks = Vec::new();
    for n in 0..CONNECTIONS {
        let (client, server) = if n % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let ends = pair(client, server).await?;
        tasks.push(tokio::spawn(async move {
            let (client, server) = ends;
            let each = join(both_ways(&client, &server, n), both_ways(&server, &client, n + CONNECTIONS));
            let (there, back) = each.await;
            there.and(back)?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    net.quiet().await?;

    /// What `from` sends, eight at once, and `to` receives.
    async fn both_ways(from: &Connection, to: &Connection, salt: usize) -> Result {
        let content =
            |n: usize| (0..n * n * 31 % 4_097).map(move |i| (i * 7 + n + salt) as u8).collect::<Vec<_>>();
        let sending = async {
            for first in (0..MESSAGES).step_by(8) {
                let sends = (first..MESSAGES.min(first + 8)).map(|n| async move {
                    let data = content(n);
                    from.send_copy(&data).imm(n as u32).await
                });
                join_all(sends).await.into_iter().collect::<std::result::Result<Vec<()>, _>>()?;
            }
            Ok::<_, Error>(())
        };
        let receiving = async {
            for n in 0..MESSAGES {
                let message = to.recv().await?.ok_or(Error::Closed)?;
                assert_eq!(message.imm(), Some(n as u32));
                assert!(message[..] == content(n), "message {n} has come as {message:?}");
            }
            Ok::<_, Error>(())
        };
        let (sent, received) = join(sending, receiving).await;
        sent?;
        Ok(received?)
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn hca_t62_ten_thousand_messages_and_one_packet_in_a_hundred_lost() -> Result {
    let net = Subnet::star(["a", "b"]).seed(62).await?;
    net.faults().loss(0.01);
    ten_thousand_messages(net).await
}

#[tokio::test(start_paused = true)]
async fn hca_t63_ten_thousand_messages_reordered_repeated_and_delayed() -> Result {
    let net = Subnet::star(["a", "b"]).seed(63).await?;
    net.faults().duplicate(0.02).reorder(0.02).delay(Duration::from_micros(2)..=Duration::from_millis(1));
    ten_thousand_messages(net).await
}
