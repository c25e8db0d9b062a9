//! When `close` returns, nothing of the device is held any more.

mod common;
#[path = "../../ibsoft/tests/common/loopback.rs"]
mod loopback;

use std::net::{SocketAddrV4, UdpSocket};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Net, Result, SID};
use ibcm::{Connection, Error, Hca, Listener};
use ibdev::{Device, DeviceError};
use ibsoft::{SoftDevice, UdpConfig};
use loopback::Loopback;

async fn open(lo: Loopback) -> Result<Hca> {
    Ok(Hca::open(format!("soft:{}", lo.address(1))).await?)
}

async fn soon(close: impl Future<Output = ()>) -> Result {
    Ok(tokio::time::timeout(Duration::from_secs(30), close).await?)
}

/// The device's I/O task is busy on another thread, and all kinds of handles are left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_can_be_opened_again_at_once() -> Result {
    let lo = Loopback::claim();
    let goes_on = Arc::new(AtomicBool::new(true));
    let flood = std::thread::spawn({
        let (goes_on, to) = (goes_on.clone(), SocketAddrV4::new(lo.address(1), 4791));
        let socket = UdpSocket::bind((lo.address(2), 0))?;
        move || {
            while goes_on.load(Ordering::Relaxed) {
                // Between two devices nobody is there.
                _ = socket.send_to(&[0; 64], to);
            }
        }
    });
    let mut left = Vec::new();
    for n in 0..200 {
        let hca = open(lo).await?;
        let listener = Listener::bind(SID).device(&hca).await?;
        soon(hca.close()).await?;
        if n % 2 == 0 {
            left.push((hca, listener));
        }
    }
    let hca = open(lo).await?;
    goes_on.store(false, Ordering::Relaxed);
    flood.join().expect("the flood does not panic");
    for (hca, listener) in left {
        assert!(matches!(hca.alloc(1).await, Err(Error::Closed)));
        assert!(listener.accept().await.is_err());
    }
    soon(hca.close()).await
}

/// Whoever tries to connect meanwhile keeps no address.
#[tokio::test]
async fn an_attempt_that_nobody_pursues_does_not_hold_it_up() -> Result {
    let lo = Loopback::claim();
    let hca = open(lo).await?;
    let path = hca.path_to(lo.address(2).into()).service_id(SID).await?;
    let mut connecting = pin!(Connection::connect(path).deadline(Duration::from_millis(100)));
    // To nobody; then it is not polled any more.
    let once = tokio::time::timeout(Duration::ZERO, connecting.as_mut());
    assert!(once.await.is_err());
    soon(hca.close()).await?;
    open(lo).await?;
    assert!(connecting.await.is_err());
    Ok(())
}

#[tokio::test]
async fn closing_twice_at_once_and_again() -> Result {
    let lo = Loopback::claim();
    let hca = open(lo).await?;
    let other = hca.clone();
    tokio::try_join!(soon(hca.close()), soon(other.close()))?;
    soon(hca.close()).await?;
    // A future that is dropped goes on.
    let hca = open(lo).await?;
    assert!(futures::poll!(Box::pin(hca.close())).is_pending());
    soon(hca.close()).await?;
    open(lo).await?;
    Ok(())
}

/// A device that the program had opened itself is closed with its HCA; without `close` it stays.
#[tokio::test]
async fn a_device_that_was_given() -> Result {
    let lo = Loopback::claim();
    let bind = || SoftDevice::bind(UdpConfig::new([lo.address(1).into()]));
    let device = bind()?;
    drop(Hca::open(device.clone()).await?);
    tokio::task::yield_now().await;
    assert!(device.port(1).is_ok());
    let hca = Hca::open(device.clone()).await?;
    soon(hca.close()).await?;
    assert!(matches!(device.port(1), Err(DeviceError::Gone)));
    bind()?;
    Ok(())
}

/// The last handle is dropped, and the same device is opened again at once: by its name, as one that was given, and after a
/// connection, whose TimeWait is waited for. What closes does so on another thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_hca_makes_room_for_the_next() -> Result {
    let (lo, other) = (Loopback::claim(), Loopback::claim());
    let device = SoftDevice::bind(UdpConfig::new([lo.address(1).into()]))?;
    for _ in 0..50 {
        let given = Hca::open(device.clone()).await?;
        let named = open(other).await?;
        drop((Listener::bind(SID).device(&given).await?, given));
        drop((Listener::bind(SID).device(&named).await?, named));
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_dropped_hca_whose_connections_rest_is_waited_for() -> Result {
    let net = Net::new(2).await?;
    drop(net.pair().await?);
    let Net { net, client, server } = net;
    drop((client, server));
    let server = Hca::open(net.device("server")).await?;
    Listener::bind(SID).device(&server).await?;
    drop(server);
    net.quiet().await?;
    Ok(())
}

/// A device of another subnet has the same name, and its HCA stays.
#[tokio::test(start_paused = true)]
async fn a_dropped_hca_is_waited_for_whatever_others_of_its_name_do() -> Result {
    let (others, net) = (Net::new(4).await?, Net::new(5).await?);
    let _kept = others.pair().await?;
    let Net { net: _others, client, server } = others;
    drop((client, server));
    drop(net.pair().await?);
    let Net { net, client, server } = net;
    drop((client, server));
    let server = Hca::open(net.device("server")).await?;
    Listener::bind(SID).device(&server).await?;
    Ok(())
}

/// One that stays, because a connection of it does, is not waited for without end.
#[tokio::test(start_paused = true)]
async fn a_dropped_hca_that_is_in_use_keeps_the_device() -> Result {
    let net = Net::new(3).await?;
    let (kept, other) = net.pair().await?;
    let Net { net, client, server } = net;
    drop((client, server));
    let started = tokio::time::Instant::now();
    let second = Hca::open(net.device("server")).await?;
    assert_eq!(started.elapsed(), Duration::from_secs(2));
    assert!(Listener::bind(SID).device(&second).await.is_err());
    kept.send_copy(b"still here").await?;
    assert_eq!(&other.recv().await?.ok_or("closed")?[..], b"still here");
    Ok(())
}

/// A subnet's device is the subnet's.
#[tokio::test(start_paused = true)]
async fn a_device_of_a_subnet_stays() -> Result {
    let net = Net::new(1).await?;
    net.server.close().await;
    let server = Hca::open(net.net.device("server")).await?;
    let listener = Listener::bind(SID).device(&server).await?;
    let path = net.client.path_to(server.gid()).service_id(SID).await?;
    let accepting = tokio::spawn(async move { listener.accept().await?.accept().await.map_err(Error::from) });
    let client = Connection::connect(path).await?;
    drop((client, accepting.await??));
    net.quiet().await
}

/// A device that goes by itself is waited for as well.
#[tokio::test]
async fn a_device_that_is_gone() -> Result {
    let lo = Loopback::claim();
    let bind = || SoftDevice::bind(UdpConfig::new([lo.address(1).into()]));
    let device = bind()?;
    let hca = Hca::open(device.clone()).await?;
    device.close().await;
    bind()?;
    soon(hca.close()).await?;
    assert!(matches!(hca.alloc(1).await, Err(Error::Device(DeviceError::Gone))));
    Ok(())
}

/// With the runtime everything ends, and whoever waits elsewhere is told.
#[test]
fn the_end_of_the_runtime() -> Result {
    let lo = Loopback::claim();
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let (first, second) = (runtime()?, runtime()?);
    let hca = first.block_on(open(lo))?;
    let closing = second.spawn({
        let hca = hca.clone();
        async move { soon(hca.close()).await }
    });
    drop(first);
    second.block_on(closing)??;
    second.block_on(soon(hca.close()))
}
