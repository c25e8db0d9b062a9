//! Two HCAs that say all there is to say, for a capture.

use std::time::Duration;

use futures::future::try_join_all;
use ibcm::{ConnectError, Connection, Hca, Listener, OpCause, OpError, Recv, RejReason, Reject, ServiceId};
use tokio::time::{sleep, timeout};

type Error = Box<dyn std::error::Error + Send + Sync>;

const SERVED: ServiceId = ServiceId::new(0x1000_0000_0000_0001);
const NOT_SERVED: ServiceId = ServiceId::new(0x1000_0000_0000_0002);

/// Three packets of the largest MTU, the last one padded.
const LONG: usize = 3 * 4096 - 5;
const SHORT: usize = 33;

/// Receives on the server's side; with more messages than these under way it is not ready.
const RECEIVES: usize = 4;

/// Every packet kind goes over the wire at least once: REQ, REJ, REP, RTU, DREQ, DREP, MRA if the server `hesitates` long
/// enough, each form of a SEND, acknowledgements, RNR NAK and a fatal NAK. Sequence NAKs are for the wire to provoke.
///
/// # Errors
///
/// What a step did that it should not.
pub async fn all_kinds(server: &Hca, client: &Hca, hesitates: Duration) -> Result<(), Error> {
    let listener = Listener::bind(SERVED).device(server).await?;
    let path = client.path_to(server.gid()).await?;

    let refused = Connection::connect(path.with_service(NOT_SERVED)).await;
    expect_reason(refused, RejReason::INVALID_SERVICE_ID)?;

    let connect = || {
        let connect = Connection::connect(path.with_service(SERVED)).deadline(Duration::from_secs(30));
        connect.private_data(b"request").rtu_data(b"ready").recv(Recv::buffers(RECEIVES, LONG))
    };
    let refuse = async {
        let request = listener.accept().await?;
        request.reject(Reject::new(RejReason::CONSUMER).private_data(b"no"));
        Ok::<_, Error>(())
    };
    let (refused, refusing) = tokio::join!(connect(), refuse);
    refusing?;
    expect_reason(refused, RejReason::CONSUMER)?;

    let accept = async {
        let request = listener.accept().await?;
        sleep(hesitates).await;
        let accept = request.accept().private_data(b"reply").recv(Recv::buffers(RECEIVES, LONG));
        Ok::<_, Error>(accept.await?)
    };
    let connect = async { Ok::<_, Error>(connect().await?) };
    let (active, passive) = tokio::try_join!(connect, accept)?;

    let (short, long) = (message(SHORT), message(LONG));
    for (data, imm) in [(&short, None), (&short, Some(7)), (&long, None), (&long, Some(8))] {
        let send = active.send_copy(data);
        match imm {
            None => send.await?,
            Some(imm) => send.imm(imm).await?,
        }
        let received = passive.recv().await?.ok_or("closed too early")?;
        if received[..] != data[..] || received.imm() != imm {
            return Err("another message than was sent".into());
        }
    }

    // More messages than the server has receives for, which it takes only once it had to say so.
    let sending = try_join_all((0..2 * RECEIVES).map(|_| async { active.send_copy(&short).await }));
    let receiving = async {
        counted(server, "rnr_naks_sent").await?;
        for _ in 0..2 * RECEIVES {
            passive.recv().await.map_err(Error::from)?.ok_or("closed too early")?;
        }
        Ok(())
    };
    tokio::try_join!(async { sending.await.map_err(Error::from) }, receiving)?;

    // A message too long for the other side ends the connection, whose DREQ goes out all the same.
    let too_long = message(LONG + 1);
    match passive.send_copy(&too_long).await {
        Err(OpError { cause: OpCause::Status(_), .. }) => {}
        other => return Err(format!("a message too long for its receive: {other:?}").into()),
    }
    active.disconnect().await;
    passive.disconnect().await;
    Ok(())
}

/// Waits until a counter of the device is no longer 0.
async fn counted(hca: &Hca, counter: &str) -> Result<(), Error> {
    let changed = async {
        while hca.stats().get(counter).is_none_or(|count| count == 0) {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(30), changed).await.map_err(|_| format!("{counter} stays 0").into())
}

fn expect_reason(result: Result<Connection, ConnectError>, reason: RejReason) -> Result<(), Error> {
    match result {
        Err(ConnectError::Rejected(no)) if no.reason == reason => Ok(()),
        other => Err(format!("{other:?} instead of a rejection for {reason}").into()),
    }
}

fn message(len: usize) -> Vec<u8> {
    (0..len).map(|at| at as u8).collect()
}
