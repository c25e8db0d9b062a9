//! What a device does on its own: ports that go down, removal, a peer that is gone.

mod common;

use std::time::Duration;

use common::{Net, Result, SID};
use ibcm::{ConnectError, Connection, DeviceError, Hca, ListenError, OpCause, RecvError, Status};

#[tokio::test(start_paused = true)]
async fn cm_t85_removal() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let waiting = tokio::spawn(async move { listener.accept().await.map(drop) });
    tokio::task::yield_now().await;
    net.net.remove("server");
    assert_eq!(server.recv().await.unwrap_err(), RecvError::Gone);
    assert!(server.send_copy(b"x").await.is_err());
    assert_eq!(server.disconnect().await.to_string(), "the device is gone");
    assert!(matches!(waiting.await?, Err(ListenError::Device(DeviceError::Gone) | ListenError::Closed)));
    // To the other side it is silence.
    let error = Connection::connect(path).deadline(Duration::from_secs(2)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    assert!(Hca::open(net.net.device("server")).await.is_err());
    drop((client, server));
    net.quiet().await
}

/// More sends than the queue takes, and then it takes none at all: those that wait behind the first are told
/// too.
#[tokio::test(start_paused = true)]
async fn removal_while_sends_wait_in_line() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    // A task of its own, so that it sees the removal before the HCA's own task does.
    let sending = tokio::spawn(async move {
        let sends = (0..100).map(|_| async { client.send_copy(b"too many").await });
        futures::future::join_all(sends).await.into_iter().filter(std::result::Result::is_ok).count()
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    net.net.remove("client");
    let sent = tokio::time::timeout(Duration::from_secs(1), sending).await??;
    assert_eq!(sent, 16, "the receiver's buffers");
    drop(server);
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn the_subnet_goes_away() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    let Net { net, client: client_hca, server: server_hca } = net;
    drop(net);
    assert_eq!(server.recv().await.unwrap_err(), RecvError::Gone);
    assert_eq!(client.recv().await.unwrap_err(), RecvError::Gone);
    client_hca.close().await;
    server_hca.wait_idle().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_send_to_a_peer_that_is_gone() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    net.net.partition(&["client"], &["server"]);
    let error = client.send_copy(b"anyone?").await.unwrap_err();
    assert!(matches!(error.cause, OpCause::Status(Status::RETRY_EXC_ERR)), "{error:?}");
    assert_eq!(client.recv().await.unwrap_err(), RecvError::Broken(Status::RETRY_EXC_ERR));
    // The DREQ of the broken connection finds its peer once there is a way again.
    net.net.heal();
    assert!(server.recv().await?.is_none());
    drop((client, server));
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn a_port_that_is_down_and_comes_back() -> Result {
    let net = Net::new(1).await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    net.net.link_down("client");
    tokio::time::sleep(Duration::from_millis(1)).await;
    let error = Connection::connect(path).await.unwrap_err();
    assert!(matches!(error, ConnectError::PortDown { port: 1 }) && error.is_retryable(), "{error:?}");
    net.net.link_up("client");
    tokio::time::sleep(Duration::from_millis(1)).await;
    let (client, server) = net.pair().await?;
    drop((client, server));
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn a_disconnect_that_nobody_answers() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    net.net.partition(&["client"], &["server"]);
    let start = tokio::time::Instant::now();
    let report = client.disconnect().deadline(Duration::from_secs(3)).await;
    assert!(report.to_string().starts_with("disconnected without an answer to"), "{report}");
    assert!(start.elapsed() <= Duration::from_millis(3010), "{:?}", start.elapsed());
    net.net.heal();
    // The other side never heard of it.
    assert!(server.send_copy(b"hello?").await.is_err());
    drop((client, server));
    net.quiet().await
}

#[test]
fn the_end_of_the_runtime_cuts_all_short() -> Result {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let first = runtime()?;
    let (net, client, server) = first.block_on(async {
        let net = Net::new(1).await?;
        let (client, server) = net.pair().await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>((net, client, server))
    })?;
    drop(first);
    runtime()?.block_on(async {
        assert_eq!(client.recv().await.unwrap_err(), RecvError::Closed);
        assert!(server.send_copy(b"x").await.is_err());
        assert_eq!(server.closed().await.to_string(), "the HCA was closed");
        net.client.close().await;
        assert!(net.client.path_to(net.server.gid()).await.is_err());
    });
    drop((client, server));
    Ok(())
}
