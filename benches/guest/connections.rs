//! Connections of our connection manager on one device, which is both ends; as cmtime makes them, all at once.

use std::time::{Duration, Instant};

use benches::traffic::Result;
use futures::future::{join_all, try_join_all};
use ibcm::handshake::{self, LocalQp};
use ibcm::{Connection, Hca, IncomingRequest, Listener, ServiceId};
use tokio::sync::mpsc::{Receiver, Sender, channel};

const SERVICE: ServiceId = ServiceId::new(0x1000_0000_0000_0001);
/// Work requests of a queue pair in each direction: as many as cmtime's have.
const DEPTH: u32 = 1;
/// Emulated processors are slow, and REQs of many stand in line.
const DEADLINE: Duration = Duration::from_secs(60);

/// Step by step: a step begins when all connections have the one before behind them. Queue pairs are programmed by hand.
pub(crate) async fn by_steps(device: &str, count: usize) -> Result {
    let hca = Hca::open(device).await?;
    let mut up = serve(&hca, count, answer_by_steps).await?;

    let begun = Instant::now();
    let paths = try_join_all((0..count).map(|_| async { hca.path_to(hca.gid()).service_id(SERVICE).await }));
    let paths = paths.await?;
    let resolved = Instant::now();
    let qps = paths.iter().map(async |path| {
        let qp = hca.verbs().depth(DEPTH).create_rc_qp().await?;
        qp.modify(path.qp_init()?).await?;
        Ok::<_, ibcm::Error>(qp)
    });
    let qps = try_join_all(qps).await?;
    let created = Instant::now();
    let sessions = qps.iter().zip(paths).map(async |(qp, path)| {
        let reply = handshake::connect(path, LocalQp::rc(qp.qpn())).deadline(DEADLINE).await?;
        let attrs = reply.attrs();
        qp.modify_all(&[attrs.rtr.into(), attrs.rts.into()]).await?;
        reply.ready().await.map_err(ibcm::Error::from)
    });
    let sessions = try_join_all(sessions).await?;
    established(&mut up, count).await?;
    let connected = Instant::now();
    join_all(sessions.iter().map(|session| async { session.disconnect().await })).await;
    let disconnected = Instant::now();
    drop((sessions, qps));
    let destroyed = Instant::now();

    for (step, took) in [
        ("path", resolved - begun),
        ("queue pair", created - resolved),
        ("connect", connected - created),
        ("all three", connected - begun),
        ("disconnect", disconnected - connected),
        ("destroy", destroyed - disconnected),
    ] {
        sample(&format!("steps {step}"), took, count);
    }
    close(&hca).await;
    Ok(())
}

/// As programs do: path, queue pair, receives and handshake are one call.
pub(crate) async fn whole(device: &str, count: usize) -> Result {
    let hca = Hca::open(device).await?;
    let mut up = serve(&hca, count, answer).await?;
    let begun = Instant::now();
    let connections = try_join_all((0..count).map(|_| async {
        let path = hca.path_to(hca.gid()).service_id(SERVICE).await?;
        Connection::connect(path).deadline(DEADLINE).await.map_err(ibcm::Error::from)
    }));
    let connections = connections.await?;
    established(&mut up, count).await?;
    sample("sdk all three", begun.elapsed(), count);
    join_all(connections.iter().map(|connection| async { connection.disconnect().await })).await;
    drop(connections);
    close(&hca).await;
    Ok(())
}

/// Tells what it took besides time.
async fn close(hca: &Hca) {
    let stats = hca.stats();
    let counts: Vec<_> = stats.named().filter(|(_, count)| *count > 0).collect();
    println!(
        "{}",
        counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
    );
    hca.close().await;
}

fn sample(what: &str, took: Duration, count: usize) {
    println!("sample {what} {}", took.as_secs_f64() * 1e9 / count as f64);
}

/// Takes requests from now on, with room for all of them. Each is answered in a task of its own, which says when its
/// connection is established.
async fn serve<F>(
    hca: &Hca,
    count: usize,
    answer: impl Fn(Hca, IncomingRequest, Sender<()>) -> F + Send + 'static,
) -> Result<Receiver<()>>
where
    F: Future<Output = Result> + Send + 'static,
{
    let (said, up) = channel(count);
    let listener = Listener::bind(SERVICE).device(hca).window(count).backlog(count).await?;
    let hca = hca.clone();
    tokio::spawn(async move {
        while let Ok(request) = listener.accept().await {
            let answered = answer(hca.clone(), request, said.clone());
            tokio::spawn(async move {
                if let Err(error) = answered.await {
                    eprintln!("a request: {error}");
                }
            });
        }
    });
    Ok(up)
}

async fn answer_by_steps(hca: Hca, request: IncomingRequest, up: Sender<()>) -> Result {
    let qp = hca.verbs().depth(DEPTH).create_rc_qp().await?;
    let offer = request.prepare(LocalQp::rc(qp.qpn()))?.deadline(DEADLINE);
    let attrs = offer.attrs();
    qp.modify_all(&[attrs.init.into(), attrs.rtr.into(), attrs.rts.into()]).await?;
    let session = offer.reply().await?;
    up.send(()).await?;
    session.closed().await;
    Ok(())
}

async fn answer(_: Hca, request: IncomingRequest, up: Sender<()>) -> Result {
    let connection = request.accept().deadline(DEADLINE).await?;
    up.send(()).await?;
    connection.closed().await;
    Ok(())
}

/// Waits until the other end has all of them, too.
async fn established(up: &mut Receiver<()>, count: usize) -> Result {
    for _ in 0..count {
        tokio::time::timeout(DEADLINE, up.recv()).await?.ok_or("the other end is gone")?;
    }
    Ok(())
}
