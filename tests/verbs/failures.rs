//! What ends connections, and what is left of rxe0 then: processes that are killed, a link that goes down, addresses that go
//! away, a device that is removed.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use futures::StreamExt;
use ibcm::{DeviceError, HcaEvent, ListenError, PortState, QueryError, RecvError};

use super::super::*;

/// The service of the example `echo`.
const ECHO: ServiceId = ServiceId::new(0x1000_0000_0000_0001);
const KEEPALIVE: Duration = Duration::from_millis(500);

/// The example `echo`, beside this program, as a process of its own.
struct Echo {
    process: Child,
    /// Open, so that it can go on talking.
    _says: std::io::Lines<BufReader<ChildStdout>>,
}

/// Starts it, and waits until it serves.
fn echo(device: &str) -> Echo {
    let program = std::env::current_exe().unwrap().with_file_name("echo");
    let mut child =
        Command::new(program).args(["serve", "--device", device]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while !lines.next().expect("echo serves").unwrap().starts_with("connect to") {}
    Echo { process: child, _says: lines }
}

/// Connects to `echo`, kills it, and is told within two periods of the keepalive and a bit.
async fn outlives(hca: Hca, to: Gid, mut server: Echo) -> Result<(), Error> {
    let path = hca.path_to(to).service_id(ECHO).await?;
    let connect = Connection::connect(path).keepalive(KEEPALIVE);
    let conn = connect.response_timeout(Duration::from_millis(50)).max_cm_retries(3).await?;
    conn.send_copy(b"there?").await?;
    assert!(conn.recv().await?.is_some_and(|message| message[..] == *b"there?"));
    server.process.kill()?;
    server.process.wait()?;
    let closed = tokio::time::timeout(Duration::from_secs(5), conn.closed()).await?;
    assert!(matches!(closed.how, How::Silent(_)), "{closed}");
    Ok(())
}

/// Nothing of the process is left in the kernel, and the CM's class is free again.
#[test]
#[ignore = "needs rxe0"]
fn killed_on_rxe0() {
    let before = resources();
    let server = echo("rxe0");
    in_namespace_b(move |hca| outlives(hca, Family::V4.rxe0(), server)).join().unwrap();
    while resources() != before {
        std::thread::sleep(Duration::from_millis(20));
    }
    on_rxe0(|hca| async move { Ok(Listener::bind(ECHO).device(&hca).await.map(drop)?) });
}

#[test]
#[ignore = "needs rxe0"]
fn killed_on_the_soft_hca() {
    let start = || {
        enter_namespace_b();
        echo(SOFT)
    };
    let server = std::thread::spawn(start).join().unwrap();
    on_rxe0(move |hca| outlives(hca, Family::V4.soft(), server));
}

fn shell(commands: &str) {
    let status = Command::new("bash").args(["-eu", "-c", commands]).status().unwrap();
    assert!(status.success(), "{commands}");
}

/// A link that is down is told, ends what was on it, and is no way to a peer; up again it is.
#[test]
#[ignore = "needs rxe0"]
fn link_goes_down_and_comes_back() {
    // What `link_up` of tests/guest/cases/lib.sh says.
    const UP: &str = "ip link set veth0 up; ip address replace fd77::1/64 dev veth0 nodad; \
        for peer in 10.77.0.2 fd77::2; do ip neighbour replace $peer lladdr 02:00:00:00:00:02 dev veth0 nud permanent; done";
    between(
        false,
        |hca, ready| async move {
            let mut events = hca.port(1).ok_or("no port")?.events();
            let listener = Listener::bind(SERVICE).device(&hca).await?;
            ready.send(()).unwrap();
            let conn = listener.accept().await?.accept().keepalive(KEEPALIVE).await?;
            shell("ip link set veth0 down");
            while events.next().await.ok_or("no event")? != (HcaEvent::PortDown { port: 1 }) {}
            assert_eq!(hca.port(1).map(|port| port.state()), Some(PortState::Down));
            let way = hca.path_to(Family::V4.soft()).await;
            assert!(matches!(way, Err(QueryError::PortDown { port: 1 })), "{way:?}");
            let closed = conn.closed().await;
            assert!(matches!(closed.how, How::Silent(_) | How::Broken(_)), "{closed}");
            shell(UP);
            while events.next().await.ok_or("no event")? != (HcaEvent::PortUp { port: 1 }) {}
            while hca.path_to(Family::V6.soft()).await.is_err() {
                events.next().await;
            }
            let conn = listener.accept().await?.accept().await?;
            assert_eq!(conn.closed().await.how, How::ByPeer);
            Ok(())
        },
        |hca| async move {
            let path = || hca.path_to(Family::V4.rxe0()).service_id(SERVICE);
            let conn = Connection::connect(path().await?).keepalive(KEEPALIVE).await?;
            let closed = conn.closed().await;
            assert!(matches!(closed.how, How::Silent(_)), "{closed}");
            let again = Connection::connect(path().await?).deadline(Duration::from_secs(30)).await?;
            assert_eq!(again.disconnect().await.how, How::Confirmed);
            Ok(())
        },
    );
}

/// An address that comes is a GID to connect from; one that went away is none, and the error names it.
#[test]
#[ignore = "needs rxe0"]
fn gids_come_and_vanish() {
    on_rxe0(|hca| async move {
        let sgid: Gid = "10.78.0.1".parse()?;
        let mut events = hca.events();
        let path =
            || hca.path_to("10.78.0.2".parse().unwrap_or(Gid::UNSPECIFIED)).sgid(sgid).service_id(SERVICE);
        shell("ip address add 10.78.0.1/24 dev veth0");
        let path = loop {
            match path().await {
                Ok(path) => break path,
                Err(_) => assert_eq!(events.next().await, Some(HcaEvent::GidChange { port: 1 })),
            }
        };
        shell("ip address del 10.78.0.1/24 dev veth0");
        let error = loop {
            match path.qp_init() {
                Ok(_) => assert_eq!(events.next().await, Some(HcaEvent::GidChange { port: 1 })),
                Err(_) => break Connection::connect(path.clone()).await.unwrap_err(),
            }
        };
        assert!(
            matches!(error, ConnectError::Invalid(_)) && error.to_string().contains("10.78.0.1"),
            "{error}"
        );
        Ok(())
    });
}

/// `rdma link delete` under a connection: both ends are told, and a device of the same name that comes later can be used.
#[test]
#[ignore = "needs rxe0"]
fn removed_while_connected() {
    let (tell, told) = std::sync::mpsc::channel();
    between(
        false,
        move |hca, ready| async move {
            let mut events = hca.events();
            let listener = Listener::bind(SERVICE).device(&hca).await?;
            ready.send(()).unwrap();
            let conn = listener.accept().await?.accept().await?;
            // The driver of rxe waits until the last program has let go, so this ends when the device here is closed. Then
            // all is as it was, for `between` to compare, and for those who come later.
            let replace = || shell("rdma link delete rxe0; rdma link add rxe0 type rxe netdev veth0");
            tell.send(std::thread::spawn(replace))?;
            let (received, accepted) = tokio::join!(conn.recv(), listener.accept());
            assert!(matches!(received, Err(RecvError::Gone)), "{received:?}");
            assert!(matches!(accepted, Err(ListenError::Device(DeviceError::Gone))), "{accepted:?}");
            assert_eq!(conn.closed().await.how, How::DeviceGone);
            while events.next().await.ok_or("no event")? != HcaEvent::Removed {}
            Ok(())
        },
        |hca| async move {
            let path = hca.path_to(Family::V4.rxe0()).service_id(SERVICE).await?;
            let connect = Connection::connect(path).keepalive(KEEPALIVE);
            let conn = connect.response_timeout(Duration::from_millis(50)).max_cm_retries(3).await?;
            let closed = conn.closed().await;
            assert!(matches!(closed.how, How::Silent(_)), "{closed}");
            Ok(())
        },
    );
    told.recv().unwrap().join().unwrap();
    connection(false, Family::V6);
}
