//! Programs as users write them: a storage target that stops cleanly, its client that tells refusals from silence, and a
//! test of a program's own.

mod common;

use std::time::Duration;

use common::{Net, Result, SID};
use ibcm::ConnectError::{Rejected, Unreachable};
use ibcm::sim::Subnet;
use ibcm::{Connection, Gid, Hca, IncomingRequest, Listener, Recv, RejReason, Reject, Retry, ServiceId};
use tokio::sync::watch;

async fn serve(request: IncomingRequest, depth: usize, mut stop: watch::Receiver<bool>) -> Result<()> {
    let conn = request.accept().private_data(b"BD\x02").recv(Recv::buffers(depth, 8192)).await?;
    loop {
        let message = tokio::select! {
            message = conn.recv() => message?,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let Some(command) = message else { return Ok(()) }; // a DREQ, after every message before it
        conn.send(command.into_buf()).await?;
    }
    conn.disconnect().private_data(b"maintenance").await;
    Ok(())
}

async fn target(hca: Hca, mut stop: watch::Receiver<bool>) -> Result<()> {
    let listener = Listener::bind(SID).device(&hca).backlog(256).await?;
    loop {
        let request = tokio::select! {
            request = listener.accept() => request?,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        match *request.private_data() {
            [b'B', b'D', 1..=2, depth, ..] if depth > 0 => {
                tokio::spawn(serve(request, depth.into(), stop.clone()));
            }
            _ => request.reject(Reject::new(RejReason::CONSUMER).private_data(b"V\x02")),
        }
    }
    listener.close().await;
    _ = tokio::time::timeout(Duration::from_secs(10), hca.wait_idle()).await;
    hca.close().await;
    Ok(())
}

/// What the client makes of a target: one line.
async fn ask(hca: &Hca, server: Gid, sid: ServiceId, version: u8) -> Result<String> {
    let path = hca.path_to(server).service_id(sid).await?;
    let connect = Connection::connect(path).private_data(&[b'B', b'D', version, 0x20]);
    Ok(match connect.deadline(Duration::from_secs(5)).retry(Retry::backoff()).await {
        Ok(conn) => conn.disconnect().await.to_string(),
        Err(Rejected(no)) => match (no.reason, &no.private_data[..2]) {
            (RejReason::CONSUMER, [b'V', newest]) => format!("it speaks versions up to {newest}"),
            (RejReason::INVALID_SERVICE_ID, _) => "nothing is served there".to_owned(),
            _ => format!("{no}; it suggests {:?}", no.info),
        },
        Err(Unreachable { busy: true, waited, .. }) => format!("alive, undecided for {waited:?}"),
        Err(Unreachable { sent, waited, .. }) => format!("{sent} REQs, silence for {waited:.1?}"),
        Err(here) => return Err(here.into()),
    })
}

#[tokio::test(start_paused = true)]
async fn a_storage_target_and_its_clients() -> Result {
    let net = Net::new(1).await?;
    let (stop, stopped) = watch::channel(false);
    let target = tokio::spawn(target(net.server.clone(), stopped));
    tokio::task::yield_now().await;
    let server = net.server.gid();

    assert_eq!(ask(&net.client, server, SID, 2).await?, "disconnected, the peer confirmed");
    assert_eq!(ask(&net.client, server, SID, 3).await?, "it speaks versions up to 2");
    assert_eq!(ask(&net.client, server, ServiceId::new(9), 2).await?, "nothing is served there");
    net.net.partition(&["client"], &["server"]);
    let silence = ask(&net.client, server, SID, 2).await?;
    assert!(silence.ends_with(" REQs, silence for 5.0s"), "{silence}");
    net.net.heal();

    // A client that is connected while the target is stopped.
    let path = net.client.path_to(server).service_id(SID).await?;
    let conn = Connection::connect(path).private_data(b"BD\x02\x20").await?;
    assert_eq!(&conn.private_data()[..3], b"BD\x02");
    conn.send_copy(b"read block 7").await?;
    assert_eq!(&conn.recv().await?.ok_or("closed")?[..], b"read block 7");
    stop.send(true)?;
    assert!(conn.recv().await?.is_none());
    assert_eq!(&conn.closed().await.private_data()[..11], b"maintenance");
    drop(conn);
    target.await??;
    net.quiet().await
}

async fn consult(
    hca: Hca,
    server: Gid,
    question: &'static [u8],
) -> std::result::Result<Vec<u8>, ibcm::Error> {
    let path = hca.path_to(server).service_id(SID).await?;
    let connect = Connection::connect(path).retry(Retry::backoff()).deadline(Duration::from_secs(60));
    // A server that has lost the connection may not be able to say so.
    let conn = connect.keepalive(Duration::from_secs(1)).await?;
    conn.send_copy(question).await?;
    Ok(conn.recv().await?.map(|message| message.to_vec()).unwrap_or_default())
}

async fn answer(listener: Listener) {
    while let Ok(request) = listener.accept().await {
        tokio::spawn(async move {
            let conn = request.accept().await?; // fails if that client has given up meanwhile: its affair alone
            let question = conn.recv().await?.ok_or(ibcm::RecvError::Closed)?;
            conn.send(question.into_buf()).await.map_err(ibcm::Error::from)
        });
    }
}

/// The network is cut before the first REQ, or at some later moment of the handshake.
#[tokio::test(start_paused = true)]
async fn a_partition_delays_the_answer() -> Result<()> {
    for seed in 0..20 {
        let net = Subnet::star(["client", "server"]).seed(seed).await?;
        let flight = Duration::from_micros(2)..=Duration::from_millis(3);
        net.faults().loss(0.05).reorder(0.1).delay(flight);
        let (client, server) =
            (Hca::open(net.device("client")).await?, Hca::open(net.device("server")).await?);
        let answering = tokio::spawn(answer(Listener::bind(SID).device(&server).await?));
        let asking = tokio::spawn(consult(client, server.gid(), b"who leads?"));
        tokio::time::sleep(Duration::from_micros(500) * seed as u32).await;
        net.partition(&["client"], &["server"]);
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(seed > 0 || !asking.is_finished());
        net.heal();
        let answered = asking.await?;
        // Data that is under way when the network goes for good breaks the connection: its QP gives up first.
        assert!(seed > 0 || answered.is_ok(), "{answered:?}");
        match answered {
            Ok(answer) => assert!(answer == b"who leads?" || answer.is_empty(), "{seed}: {answer:?}"),
            Err(error) => assert!(!matches!(error, ibcm::Error::Connect(_)), "{seed}: {error}"),
        }
        answering.abort();
        _ = answering.await;
        net.quiet().await?;
    }
    Ok(())
}
