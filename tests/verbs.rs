//! CM connections between rxe0, driven through verbs and umad, and the software HCA in network namespace b. Both ends are in
//! this process: a thread that has moved into the namespace runs the software HCA. Needs what tests/guest/setup-umad.sh
//! sets up, so everything is ignored but in the guest, which runs it with `--ignored --test-threads=1`.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test")]

mod verbs {
    mod beside_ib_cm;
    mod established;
    mod failures;
    mod unreliable;
}

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use ibcm::{
    ConnectError, Connection, Gid, Hca, How, Listener, OpCause, PrivateData, Recv, RejReason, Reject,
    ServiceId,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const SERVICE: ServiceId = ServiceId::new(0x1000_0000_0000_0077);
/// Nobody listens here.
const NO_SERVICE: ServiceId = ServiceId::new(0x1000_0000_0000_0078);
const SOFT: &str = "soft:10.77.0.2,fd77::2";
const PATIENCE: Duration = Duration::from_secs(50);
/// Nothing, within a packet, a whole one, one more, many.
const SIZES: [usize; 5] = [0, 5, 1024, 1025, 40_000];

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The addresses of rxe0 and of the software HCA.
#[derive(Debug, Clone, Copy)]
enum Family {
    V4,
    V6,
}

impl Family {
    fn rxe0(self) -> Gid {
        match self {
            Self::V4 => "10.77.0.1",
            Self::V6 => "fd77::1",
        }
        .parse()
        .unwrap()
    }

    fn soft(self) -> Gid {
        match self {
            Self::V4 => "10.77.0.2",
            Self::V6 => "fd77::2",
        }
        .parse()
        .unwrap()
    }
}

/// Runs `passive` with a listener's HCA and `active` with the other one, then closes both and looks at what is left of
/// rxe0 in the kernel.
fn between<P, A>(
    rxe0_is_active: bool,
    passive: impl FnOnce(Hca, Ready) -> P + Send + 'static,
    active: impl FnOnce(Hca) -> A + Send + 'static,
) where
    P: Future<Output = Result<(), Error>>,
    A: Future<Output = Result<(), Error>>,
{
    let (ready, listening) = tokio::sync::oneshot::channel();
    let serve = move |hca: Hca| async move { passive(hca, ready).await };
    let call = move |hca: Hca| async move {
        listening.await?;
        active(hca).await
    };
    if rxe0_is_active {
        let other = in_namespace_b(serve);
        on_rxe0(call);
        other.join().unwrap();
    } else {
        let other = in_namespace_b(call);
        on_rxe0(serve);
        other.join().unwrap();
    }
}

/// Told when the listener is there.
type Ready = tokio::sync::oneshot::Sender<()>;

fn on_rxe0<F: Future<Output = Result<(), Error>>>(run: impl FnOnce(Hca) -> F) {
    let before = resources();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(within(async {
        let hca = Hca::open("rxe0").await?;
        run(hca.clone()).await?;
        println!("rxe0: {:?}", hca.stats().device);
        hca.close().await;
        drop(hca);
        while resources() != before {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }));
}

fn in_namespace_b<F: Future<Output = Result<(), Error>>>(
    run: impl FnOnce(Hca) -> F + Send + 'static,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        enter_namespace_b();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(within(async {
            let hca = Hca::open(SOFT).await?;
            run(hca.clone()).await?;
            hca.close().await;
            Ok(())
        }));
    })
}

fn enter_namespace_b() {
    let namespace = File::open("/run/netns/b").unwrap();
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}

async fn within(run: impl Future<Output = Result<(), Error>>) {
    tokio::time::timeout(PATIENCE, run).await.unwrap().unwrap();
}

/// Objects of the kernel's devices: "rxe0: pd 1 cq 1 …". A device that went away and came back has another number before.
fn resources() -> Vec<String> {
    let output = Command::new("rdma").args(["resource", "show"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| Some(line.split_once(": ")?.1.to_owned())).collect()
}

/// Takes `connections` requests, sends back every message, waits for the disconnects. Where the last acknowledgement is lost the
/// disconnect ends that send: the peer has the message, or it would not have disconnected.
async fn echo(hca: Hca, ready: Ready, connections: usize, sizes: &[usize]) -> Result<(), Error> {
    let listener = Listener::bind(SERVICE).device(&hca).await?;
    ready.send(()).unwrap();
    let mut serving = tokio::task::JoinSet::new();
    for _ in 0..connections {
        let request = listener.accept().await?;
        assert_eq!(&request.private_data()[..6], b"hello\0");
        serving.spawn(async move {
            let conn = request.accept().private_data(b"welcome").recv(Recv::buffers(8, 40_000)).await?;
            while let Some(message) = conn.recv().await? {
                match conn.send(message.into_buf()).await {
                    Err(error) if matches!(error.cause, OpCause::Closed) => break,
                    sent => sent.map(drop)?,
                }
            }
            assert_eq!(conn.closed().await.how, How::ByPeer);
            Ok::<_, Error>(conn)
        });
    }
    while let Some(served) = serving.join_next().await {
        assert_eq!(served??.stats().messages_received as usize, sizes.len());
    }
    Ok(())
}

/// Connects, sends a message of each size and has it sent back, disconnects.
async fn call(hca: Hca, to: Gid, sizes: &[usize]) -> Result<(), Error> {
    let path = hca.path_to(to).service_id(SERVICE).await?;
    let conn = Connection::connect(path)
        .private_data(b"hello")
        .recv(Recv::buffers(8, 40_000))
        .deadline(Duration::from_secs(30))
        .await?;
    assert_eq!(&conn.private_data()[..8], b"welcome\0");
    for &size in sizes {
        let message: Vec<u8> = (0..size).map(|at| (at + size) as u8).collect();
        conn.send_copy(&message).await?;
        let answer = conn.recv().await?.ok_or("closed before the answer")?;
        assert!(answer[..] == message[..], "{size} bytes");
    }
    conn.disconnect().await;
    Ok(())
}

fn connection(rxe0_is_active: bool, family: Family) {
    let to = if rxe0_is_active { family.soft() } else { family.rxe0() };
    between(rxe0_is_active, |hca, ready| echo(hca, ready, 1, &SIZES), move |hca| call(hca, to, &SIZES));
}

#[test]
#[ignore = "needs rxe0"]
fn soft_hca_connects_to_rxe0_v4() {
    connection(false, Family::V4);
}

#[test]
#[ignore = "needs rxe0"]
fn soft_hca_connects_to_rxe0_v6() {
    connection(false, Family::V6);
}

#[test]
#[ignore = "needs rxe0"]
fn rxe0_connects_to_soft_hca_v4() {
    connection(true, Family::V4);
}

#[test]
#[ignore = "needs rxe0"]
fn rxe0_connects_to_soft_hca_v6() {
    connection(true, Family::V6);
}

/// Several at once: their MADs share the agent, and umad changes their transaction IDs.
fn many(rxe0_is_active: bool) {
    const CONNECTIONS: usize = 20;
    /// Short, so that on a bad wire most of the packets are those of the connection management.
    const SIZE: [usize; 1] = [100];
    let to = if rxe0_is_active { Family::V4.soft() } else { Family::V4.rxe0() };
    between(
        rxe0_is_active,
        |hca, ready| echo(hca, ready, CONNECTIONS, &SIZE),
        move |hca| async move {
            futures::future::try_join_all((0..CONNECTIONS).map(|_| call(hca.clone(), to, &SIZE))).await?;
            Ok(())
        },
    );
}

#[test]
#[ignore = "needs rxe0"]
fn many_connections_at_once_to_rxe0() {
    many(false);
}

#[test]
#[ignore = "needs rxe0"]
fn many_connections_at_once_from_rxe0() {
    many(true);
}

/// The active side asks again and again whether the other one is there, which answers.
fn kept_alive(rxe0_is_active: bool) {
    let to = if rxe0_is_active { Family::V4.soft() } else { Family::V4.rxe0() };
    between(
        rxe0_is_active,
        |hca, ready| async move {
            let listener = Listener::bind(SERVICE).device(&hca).await?;
            ready.send(()).unwrap();
            let conn = listener.accept().await?.accept().await?;
            assert_eq!(conn.closed().await.how, How::ByPeer);
            Ok(())
        },
        move |hca| async move {
            let path = hca.path_to(to).service_id(SERVICE).await?;
            let conn = Connection::connect(path).keepalive(Duration::from_secs(1)).await?;
            while conn.stats().keepalives_sent < 5 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            assert_eq!(conn.disconnect().await.how, How::Confirmed);
            Ok(())
        },
    );
}

#[test]
#[ignore = "needs rxe0"]
fn rxe0_is_kept_alive() {
    kept_alive(true);
}

#[test]
#[ignore = "needs rxe0"]
fn soft_hca_is_kept_alive() {
    kept_alive(false);
}

/// Refusals carry reason and private data; a service that nobody serves is reason 8.
fn refusals(rxe0_is_active: bool) {
    let to = if rxe0_is_active { Family::V4.soft() } else { Family::V4.rxe0() };
    between(
        rxe0_is_active,
        |hca, ready| async move {
            let listener = Listener::bind(SERVICE).device(&hca).await?;
            ready.send(()).unwrap();
            let request = listener.accept().await?;
            request.reject(Reject::new(RejReason::CONSUMER).private_data(PrivateData::new(b"no")?));
            Ok(())
        },
        move |hca| async move {
            for (service, reason, data) in
                [(NO_SERVICE, RejReason::INVALID_SERVICE_ID, b"\0\0"), (SERVICE, RejReason::CONSUMER, b"no")]
            {
                match Connection::connect(hca.path_to(to).service_id(service).await?).await {
                    Err(ConnectError::Rejected(no)) => {
                        assert_eq!((no.reason, &no.private_data[..2]), (reason, &data[..]));
                    }
                    other => return Err(format!("{other:?}").into()),
                }
            }
            Ok(())
        },
    );
}

#[test]
#[ignore = "needs rxe0"]
fn rxe0_refuses_soft_hca() {
    refusals(false);
}

#[test]
#[ignore = "needs rxe0"]
fn soft_hca_refuses_rxe0() {
    refusals(true);
}
