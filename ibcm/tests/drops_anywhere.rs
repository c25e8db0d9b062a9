//! Whole programs that are dropped with all that they hold, at each of their polls, and each future by itself: nothing is
//! left behind, on a bad network too.

mod common;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use common::odd::Odd;
use common::{Net, Result, SID, drop_after, own_qp};
use futures::StreamExt;
use ibcm::sim::Subnet;
use ibcm::{Access, BufPool, Connection, Hca, HcaEvent, Listener, Recv, RemoteRegion, Retry, ServiceId};
use ibdev::Device;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// More polls than any program here takes.
const POLLS: usize = 2000;
/// Longer than anything of the protocol takes.
const LONG: Duration = Duration::from_secs(600);

/// A device whose slow calls are slow, so that they can be dropped.
fn slow(net: &Subnet, name: &str) -> Arc<dyn Device> {
    Odd::new(net.device(name), |_| {}).as_device()
}

/// Awaits a future that is there, and not polled yet, while its task waits once.
async fn later<F: Future>(future: F) -> F::Output {
    tokio::task::yield_now().await;
    future.await
}

/// Everything that a client does: of the calls that there are each at least once.
async fn client(net: Subnet, server: ibcm::Gid) -> Result {
    let hca = later(Hca::open(slow(&net, "client")).rng_seed([1; 32])).await?;
    let domain = later(hca.domain()).await?;
    let pool = later(domain.pool(2, 512)).await?;
    let shared = later(domain.shared_recv(4, 512)).await?;
    let path = later(hca.path_to(server).service_id(SID)).await?;
    let connect =
        Connection::connect(path).private_data(b"hello").recv(Recv::shared(&shared)).domain(&domain);
    let conn = later(connect.keepalive(Duration::from_secs(1)).deadline(LONG)).await?;
    let remote = RemoteRegion::from_bytes(conn.private_data())?;

    later(conn.send_copy(b"short")).await?;
    let mut buf = later(pool.get()).await?;
    buf.resize(512, 1);
    buf = later(conn.send(buf)).await?;
    later(conn.write(buf, remote.slice(0, 512)?).imm(7)).await?;
    // The third waits until one of the two others is back.
    let (first, second) = (pool.get().await?, pool.get().await?);
    let first = later(conn.read(first, remote.slice(0, 512)?).post()).await?;
    let second = later(conn.read(second, remote.slice(512, 512)?).fence().post()).await?;
    let third = later(pool.get());
    let (third, first) = tokio::join!(third, async { later(first).await.map(drop) });
    first?;
    drop(third?);
    drop(second);
    later(conn.fetch_add(remote, 1)).await?;
    later(conn.compare_swap(remote, 2, 3)).await?;
    for _ in 0..3 {
        let message = later(conn.recv()).await?.ok_or("closed")?;
        later(conn.send(message.into_buf())).await?;
    }
    let region = later(domain.expose(64, Access::REMOTE_WRITE)).await?;
    let spare = later(domain.alloc(64)).await?;
    let posted = later(conn.send(spare).post()).await?;
    let (send, receive) = conn.into_split();
    later(send.send_copy(b"half")).await?;
    later(posted).await?;
    later(send.disconnect().private_data(b"bye").deadline(LONG)).await;
    drop(send);
    later(receive.closed()).await;
    drop((region, receive));

    // Once more, over a stream.
    let mut stream = {
        let path = hca.path_to(server).service_id(SID).await?;
        later(Connection::connect(path).deadline(LONG)).await?.into_stream()
    };
    later(stream.write_all(&[5; 10_000])).await?;
    later(stream.flush()).await?;
    later(stream.shutdown()).await?;
    let mut rest = Vec::new();
    later(stream.read_to_end(&mut rest)).await?;
    drop(stream);
    later(hca.wait_idle()).await;
    later(hca.close()).await;
    Ok(())
}

/// The other side of that.
async fn server(net: Subnet) -> Result {
    let hca = later(Hca::open(slow(&net, "server")).rng_seed([2; 32])).await?;
    let region = later(hca.expose(1024, Access::all())).await?;
    let listener = later(Listener::bind(SID).device(&hca).backlog(4)).await?;
    let request = later(listener.accept()).await?;
    let advert = region.remote().to_bytes();
    let accept = request.accept().private_data(&advert).recv(Recv::buffers(2, 512));
    let conn = later(accept.keepalive(Duration::from_secs(1))).await?;
    for _ in 0..3 {
        later(conn.recv()).await?.ok_or("closed")?;
    }
    for text in [&b"one"[..], b"two", b"three"] {
        later(conn.send_copy(text)).await?;
    }
    while let Some(message) = later(conn.recv()).await? {
        drop(message);
    }
    later(conn.closed()).await;
    later(conn.disconnect()).await;
    drop(conn);

    let request = later(listener.accept()).await?;
    let mut stream = later(request.accept()).await?.into_stream();
    let mut all = Vec::new();
    later(stream.read_to_end(&mut all)).await?;
    if all != [5; 10_000] {
        return Err("not what was written".into());
    }
    drop(stream);
    later(listener.close()).await;
    later(hca.close()).await;
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

/// Runs both programs, drops one of them after so many polls and looks for what is left; whether it was complete before.
async fn dropped(side: Side, polls: usize, loss: f64) -> Result<bool> {
    let net = Subnet::star(["client", "server"]).seed(polls as u64).await?;
    net.faults().loss(loss).reorder(loss);
    let gid = net.device("server").gids(1)?[0].gid;
    let (client, server) = (client(net.clone(), gid), server(net.clone()));
    let complete = match side {
        Side::Client => {
            // It waits for those who come, for ever if need be.
            let server = tokio::spawn(timeout(LONG, server));
            let complete = drop_after(polls, client).await.transpose()?.is_some();
            let other = server.await?;
            if complete {
                other??;
            }
            complete
        }
        Side::Server => {
            let client = tokio::spawn(timeout(LONG, client));
            let complete = drop_after(polls, server).await.transpose()?.is_some();
            let other = client.await?;
            if complete {
                other??;
            }
            complete
        }
    };
    net.quiet().await?;
    // The agents and ports are free again.
    for name in ["client", "server"] {
        let mut again = Hca::open(net.device(name)).await;
        while again.is_err() {
            // The driver may have to be polled once more.
            tokio::time::sleep(Duration::from_millis(1)).await;
            again = Hca::open(net.device(name)).await;
        }
    }
    Ok(complete)
}

async fn dropped_at_each_poll(side: Side, loss: f64) -> Result {
    for polls in 0..POLLS {
        let run = timeout(4 * LONG, dropped(side, polls, loss));
        let complete = match run.await {
            Ok(Ok(complete)) => complete,
            Ok(Err(error)) => {
                return Err(format!("{side:?}, loss {loss}, poll and seed {polls}: {error}").into());
            }
            Err(_) => return Err(format!("{side:?}, loss {loss}, poll and seed {polls}: hangs").into()),
        };
        if complete {
            assert!(polls > 30, "only {polls} polls");
            return Ok(());
        }
    }
    Err(format!("{side:?} takes more than {POLLS} polls").into())
}

#[tokio::test(start_paused = true)]
async fn a_client() -> Result {
    dropped_at_each_poll(Side::Client, 0.0).await
}

#[tokio::test(start_paused = true)]
async fn a_client_on_a_bad_network() -> Result {
    dropped_at_each_poll(Side::Client, 0.1).await
}

#[tokio::test(start_paused = true)]
async fn a_server() -> Result {
    dropped_at_each_poll(Side::Server, 0.0).await
}

#[tokio::test(start_paused = true)]
async fn a_server_on_a_bad_network() -> Result {
    dropped_at_each_poll(Side::Server, 0.1).await
}

/// A call of the API that a program can repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Open,
    Bind,
    BindIp,
    PathTo,
    Domain,
    Pool,
    Get,
    Alloc,
    Expose,
    SharedRecv,
    Connect,
    ConnectIp,
    ConnectAll,
    Handshake,
    Accept,
    Send,
    SendCopy,
    Post,
    Recv,
    Write,
    Read,
    FetchAdd,
    CompareSwap,
    ListenerClose,
    HcaEvents,
    ConnectionEvents,
    Disconnect,
    Closed,
    WaitIdle,
    Close,
}

const CALLS: [Call; 30] = {
    use Call::*;
    [
        Open,
        Bind,
        BindIp,
        PathTo,
        Domain,
        Pool,
        Get,
        Alloc,
        Expose,
        SharedRecv,
        Connect,
        ConnectIp,
        ConnectAll,
        Handshake,
        Accept,
        Send,
        SendCopy,
        Post,
        Recv,
        Write,
        Read,
        FetchAdd,
        CompareSwap,
        ListenerClose,
        HcaEvents,
        ConnectionEvents,
        Disconnect,
        Closed,
        WaitIdle,
        Close,
    ]
};

/// What the calls are made on.
struct Scene {
    net: Net,
    listener: Listener,
    client: Connection,
    server: Connection,
    pool: BufPool,
    remote: RemoteRegion,
}

impl Scene {
    /// One call, which leaves no handle behind.
    async fn call(&self, call: Call) -> Result {
        let Self { net, listener, client, server, pool, remote } = self;
        let hca = &net.client;
        match call {
            Call::Open => {
                // The one that was dropped may still be closing.
                let mut open = Hca::open(net.net.device("third")).await;
                while open.is_err() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    open = Hca::open(net.net.device("third")).await;
                }
            }
            Call::Bind => drop(Listener::bind(ServiceId::new(7)).device(hca).await?),
            Call::BindIp => drop(Listener::bind_ip((hca.gid().to_ip(), 7174)).device(hca).await?),
            Call::PathTo => drop(hca.path_to(net.server.gid()).await?),
            Call::Domain => drop(hca.domain().await?),
            Call::Pool => drop(hca.pool(3, 64).await?),
            Call::Get => drop((pool.get().await?, pool.get().await?)),
            Call::Alloc => drop(hca.alloc(64).await?),
            Call::Expose => drop(hca.expose(64, Access::all()).await?),
            Call::SharedRecv => drop(hca.shared_recv(3, 64).await?),
            Call::Connect => {
                let path = hca.path_to(net.server.gid()).service_id(SID).await?;
                let answering = async { listener.accept().await?.accept().await.map_err(ibcm::Error::from) };
                let connecting = async { Ok(Connection::connect(path).deadline(LONG).await?) };
                drop(tokio::try_join!(connecting, answering)?);
            }
            Call::ConnectIp => {
                let address = (net.server.gid().to_ip(), 7174);
                let listener = Listener::bind_ip(address).device(&net.server).await?;
                let answering = async { listener.accept().await?.accept().await.map_err(ibcm::Error::from) };
                let connecting =
                    async { Ok(Connection::connect_ip(address).device(hca).deadline(LONG).await?) };
                drop(tokio::try_join!(connecting, answering)?);
            }
            Call::ConnectAll => {
                let peers = std::iter::repeat_n((net.server.gid(), SID), 5);
                let all = hca.connect_all(peers).concurrency(3).deadline(LONG).retry(Retry::backoff());
                let all = all.each(|_, connect| connect.recv(Recv::buffers(1, 64)));
                let answering = async {
                    let mut conns = Vec::new();
                    loop {
                        // That one client gave up is its affair.
                        conns.extend(listener.accept().await?.accept().await.ok());
                    }
                };
                let attempts = tokio::select! {
                    attempts = all.collect::<Vec<_>>() => attempts,
                    closed = answering => return closed,
                };
                for attempt in attempts {
                    attempt.result?;
                }
            }
            Call::Handshake => {
                let path = hca.path_to(net.server.gid()).service_id(SID).await?;
                let connecting = own_qp::connect(hca, &path);
                let answering = own_qp::accept(&net.server, listener);
                let ((_ours, asked), (_theirs, answered)) = tokio::try_join!(connecting, answering)?;
                drop(tokio::join!(asked.finish(), answered.finish()));
            }
            Call::Accept => {
                let path = hca.path_to(net.server.gid()).service_id(SID).await?;
                let connecting = Connection::connect(path).deadline(LONG);
                let rejecting = async { listener.accept().await.map(drop) };
                let (refused, request) = tokio::join!(connecting, rejecting);
                assert!(refused.is_err());
                request?;
            }
            Call::Send => drop(client.send(hca.alloc(64).await?).await?),
            Call::SendCopy => client.send_copy(&[1; 64]).await?,
            Call::Post => client.send_copy(&[1; 64]).post().await?.await?,
            Call::Recv => {
                let (sent, received) = tokio::join!(server.send_copy(b"for you"), client.recv());
                sent?;
                assert_eq!(&received?.ok_or("closed")?[..], b"for you");
            }
            Call::Write => drop(client.write(hca.alloc(64).await?, remote.slice(0, 64)?).await?),
            Call::Read => drop(client.read(hca.alloc(64).await?, remote.slice(0, 64)?).await?),
            Call::FetchAdd => drop(client.fetch_add(*remote, 1).await?),
            Call::CompareSwap => drop(client.compare_swap(*remote, 1, 1).await?),
            Call::ListenerClose => listener.close().await,
            Call::HcaEvents => {
                let (mut all, mut of_port) = (hca.events(), hca.ports().remove(0).events());
                net.net.port_down("client", 1);
                net.net.port_up("client", 1);
                for event in [HcaEvent::PortDown { port: 1 }, HcaEvent::PortUp { port: 1 }] {
                    assert_eq!((all.next().await, of_port.next().await), (Some(event), Some(event)));
                }
            }
            Call::ConnectionEvents => {
                let events = client.events().count();
                drop(tokio::join!(events, client.disconnect().deadline(LONG)));
            }
            Call::Disconnect => drop(client.disconnect().deadline(LONG).await),
            Call::Closed => {
                drop(tokio::join!(client.closed(), server.disconnect().deadline(LONG)));
            }
            Call::WaitIdle => {
                drop(tokio::join!(
                    client.disconnect().deadline(LONG),
                    net.server.wait_idle(),
                    hca.wait_idle()
                ));
            }
            Call::Close => hca.close().await,
        }
        Ok(())
    }
}

/// Drops a call after so many polls, then makes it again; whether it was complete before.
async fn dropped_and_repeated(call: Call, polls: usize, loss: f64) -> Result<bool> {
    let net = Subnet::star(["client", "server", "third"]).seed(polls as u64).await?;
    let client = Hca::open(slow(&net, "client")).rng_seed([1; 32]).await?;
    let server = Hca::open(slow(&net, "server")).rng_seed([2; 32]).await?;
    let net = Net { net, client, server };
    let pool = net.client.pool(2, 64).await?;
    let common::Exposed { client, server, region, remote } = net.exposed(64, Access::all()).await?;
    let listener = net.listen().await?;
    net.net.faults().loss(loss).reorder(loss);
    let scene = Scene { net, listener, client, server, pool, remote };
    let complete = drop_after(polls, scene.call(call)).await.transpose()?.is_some();
    scene.call(call).await?;
    let Scene { net, listener, client, server, pool, .. } = scene;
    drop((listener, client, server, pool, region));
    net.quiet().await?;
    Ok(complete)
}

#[tokio::test(start_paused = true)]
async fn each_call_by_itself() -> Result {
    for loss in [0.0, 0.1] {
        for call in CALLS {
            let mut polls = 0;
            let mut complete = false;
            while !complete {
                let run = timeout(4 * LONG, dropped_and_repeated(call, polls, loss));
                complete = match run.await {
                    Ok(Ok(complete)) => complete,
                    Ok(Err(error)) => {
                        return Err(format!("{call:?}, loss {loss}, poll and seed {polls}: {error}").into());
                    }
                    Err(_) => {
                        return Err(format!("{call:?}, loss {loss}, poll and seed {polls}: hangs").into());
                    }
                };
                polls += 1;
                assert!(polls < POLLS, "{call:?}");
            }
        }
    }
    Ok(())
}
