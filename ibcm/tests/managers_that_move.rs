//! What flows while a subnet manager sweeps, starts anew, moves to another switch and back, or is not there: LIDs stay, and so
//! does everything. With new LIDs connections end, and say so.

mod common;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use common::{Result, SID};
use futures::{Stream, StreamExt};
use ibcm::sim::{BuildSubnet, Subnet};
use ibcm::{
    Connection, ConnectionEvent, FailoverAccepted, Gid, Hca, HcaEvent, How, Listener, Mtu, Path, RecvError,
    ServiceId, Status, Transport, sidr, ud,
};
use tokio::time::{sleep, timeout};

/// Longer than any of the cases takes, in the subnet's time.
const LIMIT: Duration = Duration::from_secs(300);
/// Of the datagrams' service.
const UD_SID: ServiceId = ServiceId::new(0x1000_0000_0000_0002);

/// Two switches with two links between them, and a manager on the left one.
fn switches() -> BuildSubnet {
    let build = Subnet::builder().mtu(Mtu::B1024).switch("left").switch("right");
    build.link("left", "right").link("left", "right").managed()
}

/// With an HCA at each.
async fn two_hosts() -> Result<(Subnet, Hca, Hca)> {
    let net = switches().hca("a").link("a", "left").hca("b").link("b", "right").seed(1).await?;
    let (a, b) = (Hca::open(net.device("a")).await?, Hca::open(net.device("b")).await?);
    Ok((net, a, b))
}

async fn connected(a: &Hca, b: &Hca, transport: Transport) -> Result<(Connection, Connection)> {
    let listener = Listener::bind(SID).device(b).transport(transport).await?;
    let path = a.path_to(b.gid()).service_id(SID).await?;
    let accept = async {
        let accept = listener.accept().await?.accept();
        Ok::<_, ibcm::Error>(match transport {
            Transport::Rc => accept.keepalive(Duration::from_secs(1)).await?,
            _ => accept.await?,
        })
    };
    let connect = async { Ok(Connection::connect(path).transport(transport).await?) };
    Ok(tokio::try_join!(connect, accept)?)
}

/// The manager's state on each switch, by name.
fn states(net: &Subnet) -> [Option<String>; 2] {
    ["left", "right"].map(|switch| net.sm(switch).state().map(|state| state.to_string()))
}

fn counter(net: &Subnet, switch: &str, name: &str) -> u64 {
    let counters = net.sm(switch).counters();
    counters.into_iter().find(|(known, _)| *known == name).expect("a counter of that name").1
}

/// Sweeps of the manager, a new one in its place, its death and the standby in its place, and its return. `after` each.
async fn moved(net: &Subnet, mut after: impl AsyncFnMut() -> Result) -> Result {
    let looks = counter(net, "left", "light_sweeps");
    sleep(Duration::from_secs(25)).await;
    assert!(counter(net, "left", "light_sweeps") >= looks + 2);
    assert_eq!(counter(net, "left", "heavy_sweeps"), 1);
    after().await?;
    net.sm("left").restart();
    sleep(Duration::from_secs(5)).await;
    after().await?;
    net.sm("right").start(0);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(states(net), [Some("master".into()), Some("standby".into())]);
    net.sm("left").kill();
    sleep(Duration::from_secs(10)).await;
    assert_eq!(states(net), [None, Some("master".into())]);
    after().await?;
    net.sm("left").start(3);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(states(net), [Some("master".into()), Some("standby".into())]);
    after().await
}

/// Does something again and again until it is told to stop, every time within a moment, and says how often.
async fn again<F: Future<Output = Result>>(
    stop: Arc<AtomicBool>,
    mut what: impl FnMut() -> F,
) -> Result<usize> {
    let mut count = 0;
    while !stop.load(Relaxed) {
        timeout(Duration::from_millis(5), what()).await??;
        count += 1;
        sleep(Duration::from_millis(100)).await;
    }
    Ok(count)
}

/// To and fro, a message of four packets.
async fn echo(here: &Connection, there: &Connection) -> Result {
    here.send_copy(&[7; 4000]).await?;
    let heard = there.recv().await?.ok_or("closed")?;
    there.send(heard.into_buf()).await?;
    assert_eq!(here.recv().await?.ok_or("closed")?[..], [7; 4000]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn connections_datagrams_and_queries_go_on_while_the_manager_moves() -> Result {
    timeout(LIMIT, async {
        let (net, a, b) = two_hosts().await?;
        let (rc, uc) = (connected(&a, &b, Transport::Rc).await?, connected(&a, &b, Transport::Uc).await?);
        let (near, far) = (ud::Socket::open(&a).await?, ud::Socket::open(&b).await?);
        let published = sidr::publish(UD_SID, &far).await?;
        let path = a.path_to(b.gid()).service_id(UD_SID).await?;
        let peer = sidr::query(path.clone()).await?.peer();
        let stop = Arc::new(AtomicBool::new(false));
        let moving = async {
            moved(&net, async || Ok(())).await?;
            stop.store(true, Relaxed);
            Ok(())
        };
        let datagrams = again(stop.clone(), async || {
            near.send_copy(&peer, b"tick").await?;
            let heard = far.recv().await?;
            far.send_copy(&heard.from(), &heard).await?;
            assert_eq!(near.recv().await?[..], b"tick"[..]);
            Ok(())
        });
        let queries = again(stop.clone(), async || {
            sidr::query(path.clone()).await?;
            Ok(())
        });
        let (rc_echo, uc_echo) = (async || echo(&rc.0, &rc.1).await, async || echo(&uc.0, &uc.1).await);
        let (reliable, unreliable) = (again(stop.clone(), rc_echo), again(stop.clone(), uc_echo));
        let ((), reliable, unreliable, datagrams, queries) =
            tokio::try_join!(moving, reliable, unreliable, datagrams, queries)?;
        for count in [reliable, unreliable, datagrams, queries] {
            assert!(count > 300, "{count}");
        }
        for (here, there) in [&rc, &uc] {
            assert_eq!(here.disconnect().await.how, How::Confirmed);
            assert_eq!(there.closed().await.how, How::ByPeer);
        }
        drop((rc, uc, published, near, far));
        Ok(net.quiet().await?)
    })
    .await?
}

#[tokio::test(start_paused = true)]
async fn groups_are_heard_again_after_each_move_of_the_manager() -> Result {
    timeout(LIMIT, async {
        let (net, a, b) = two_hosts().await?;
        let (near, far) = (ud::Socket::open(&a).await?, ud::Socket::open(&b).await?);
        let mgid: Gid = "ff15:a01b::7".parse()?;
        tokio::try_join!(near.join(mgid), far.join(mgid))?;
        let mut turn = 0u8;
        let heard = async || {
            turn += 1;
            near.send_copy(&near.group(mgid)?, &[turn]).await?;
            for socket in [&near, &far] {
                assert_eq!(timeout(Duration::from_secs(1), socket.recv()).await??[..], [turn]);
            }
            Ok(())
        };
        moved(&net, heard).await?;
        drop((near, far));
        Ok(net.quiet().await?)
    })
    .await?
}

/// Waits for something in a stream.
async fn until<T: PartialEq>(stream: &mut (impl Stream<Item = T> + Unpin), what: T) -> Result {
    while stream.next().await.ok_or("the stream ended")? != what {}
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn new_lids_end_connections_which_say_so_and_new_ones_use_them() -> Result {
    timeout(LIMIT, async {
        let (net, a, b) = two_hosts().await?;
        let (rc, uc) = (connected(&a, &b, Transport::Rc).await?, connected(&a, &b, Transport::Uc).await?);
        let (near, far) = (ud::Socket::open(&a).await?, ud::Socket::open(&b).await?);
        let published = sidr::publish(UD_SID, &far).await?;
        let find = async || sidr::query(a.path_to(b.gid()).service_id(UD_SID).await?).await;
        let before = find().await?.peer();
        let mut events = [a.events(), b.events()];
        net.sm("left").restart_with_new_lids();
        for events in &mut events {
            until(events, HcaEvent::LidChange { port: 1 }).await?;
        }
        net.sweep().await?;

        // Who sends hears nothing of the peer, nor does who looks after it.
        rc.0.send_copy(b"anyone?").await.expect_err("nobody has that LID");
        assert_eq!(rc.0.closed().await.how, How::Broken(Status::RETRY_EXC_ERR));
        assert!(matches!(rc.1.recv().await, Err(RecvError::Silent(_))));
        assert!(matches!(rc.1.closed().await.how, How::Silent(_)));
        // What nobody acknowledges is lost, which only the end tells.
        uc.0.send_copy(b"anyone?").await?;
        near.send_copy(&before, b"anyone?").await?;
        let heard = async {
            tokio::select! {
                heard = uc.1.recv() => format!("{heard:?}"),
                heard = far.recv() => format!("{heard:?}"),
            }
        };
        timeout(Duration::from_secs(10), heard).await.expect_err("both are lost");
        assert!(matches!(uc.0.disconnect().await.how, How::Unconfirmed { .. }));
        drop((rc, uc));

        let again = find().await?.peer();
        assert_ne!(again.lid(), before.lid());
        near.send_copy(&again, b"tick").await?;
        assert_eq!(far.recv().await?[..], b"tick"[..]);
        for transport in [Transport::Rc, Transport::Uc] {
            let (here, there) = connected(&a, &b, transport).await?;
            echo(&here, &there).await?;
        }
        drop((published, near, far));
        Ok(net.quiet().await?)
    })
    .await?
}

async fn path(from: &Hca, to: &Hca, port: usize) -> Result<Path> {
    Ok(from.ports()[port - 1].path_to(to.ports()[port - 1].gid()).await?)
}

/// Where a connection goes from now on.
fn port(event: ConnectionEvent) -> Option<u8> {
    match event {
        ConnectionEvent::Migrated { port, .. } => Some(port),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_path_migrates_while_nobody_manages_and_back_under_another_manager() -> Result {
    timeout(LIMIT, async {
        let net = switches().hca_with_ports("a", 2).link("a/1", "left").link("a/2", "right");
        let net = net.hca_with_ports("b", 2).link("b/1", "left").link("b/2", "right").seed(1).await?;
        let (a, b) = (Hca::open(net.device("a")).await?, Hca::open(net.device("b")).await?);
        let listener = Listener::bind(SID).device(&b).await?;
        let spare = path(&a, &b, 2).await?;
        let connect = Connection::connect(path(&a, &b, 1).await?.with_service(SID));
        let connect = connect.retry_count(1).alternate_path(&spare);
        let accept = async { Ok::<_, ibcm::Error>(listener.accept().await?.accept().failover(true).await?) };
        let (here, there) = tokio::try_join!(async { Ok(connect.await?) }, accept)?;
        assert_eq!(here.failover(), Some(FailoverAccepted::ACCEPTED));
        let mut events = here.events();
        echo(&here, &there).await?;
        net.sm("left").kill();
        net.port_down("a", 1);
        echo(&here, &there).await?;
        assert_eq!(events.next().await.and_then(port), Some(2));

        net.sm("right").start(0);
        net.port_up("a", 1);
        net.sweep().await?;
        here.load_alternate_path(&path(&a, &b, 1).await?).await?;
        assert_eq!(events.next().await, Some(ConnectionEvent::AlternateLoaded));
        echo(&here, &there).await?;
        net.port_down("b", 2);
        echo(&here, &there).await?;
        assert_eq!(events.next().await.and_then(port), Some(1));
        assert_eq!(here.disconnect().await.how, How::Confirmed);
        drop((here, there, listener));
        Ok(net.quiet().await?)
    })
    .await?
}
