//! Connections addressed by IP.

mod common;

use common::Result;
use ibcm::proto::message::IpHeader;
use ibcm::{ConnectError, Connection, Hca, ListenError, Listener, RejReason, ServiceId};

async fn two() -> Result<(Hca, Hca)> {
    Ok((Hca::open("soft").await?, Hca::open("soft").await?))
}

#[tokio::test]
async fn by_address_and_port() -> Result {
    let (server, client) = two().await?;
    let address = (server.gid().to_ip(), 7174);
    let listener = Listener::bind_ip(address).device(&server).await?;
    assert_eq!(listener.local_addr(), Some(address.into()));
    assert_eq!(listener.service_id(), ServiceId::tcp_port(7174));
    let connecting = tokio::spawn(Connection::connect_ip(address).device(&client).private_data(&[9; 56]));
    let request = listener.accept().await?;
    assert_eq!(request.private_data(), [9; 56]);
    let ip = *request.ip().ok_or("no header")?;
    assert_eq!((ip.source().ip(), ip.destination()), (client.gid().to_ip(), server.gid().to_ip()));
    assert!(ip.source().port() >= 0xc000);
    let conn = request.accept().private_data(&[8; 196]).await?;
    assert_eq!(conn.private_data(), [9; 56]);
    assert_eq!(connecting.await??.private_data(), [8; 196]);
    Ok(())
}

#[tokio::test]
async fn every_address_of_the_hca() -> Result {
    let (server, client) = two().await?;
    let listener = Listener::bind_ip(([0, 0, 0, 0], 7175)).device(&server).await?;
    let connecting = tokio::spawn(Connection::connect_ip((server.gid().to_ip(), 7175)).device(&client));
    listener.accept().await?.accept().await?;
    connecting.await??;
    Ok(())
}

#[tokio::test]
async fn an_address_that_is_not_ours() -> Result {
    let (server, _) = two().await?;
    let error = Listener::bind_ip(([192, 0, 2, 1], 7174)).device(&server).await.unwrap_err();
    assert_eq!(error.to_string(), "192.0.2.1 is not an address of this HCA");
    let error = Listener::bind_ip((server.gid().to_ip(), 0)).device(&server).await.unwrap_err();
    assert!(matches!(error, ListenError::Invalid(_)), "{error:?}");
    Ok(())
}

#[tokio::test]
async fn cm_t57_a_header_of_another_version() -> Result {
    let (server, client) = two().await?;
    let listener = Listener::bind_ip((server.gid().to_ip(), 7174)).device(&server).await?;
    let header = IpHeader::new((client.gid().to_ip(), 1).into(), server.gid().to_ip()).ok_or("families")?;
    let good = *header.private_data::<92>(b"")?.as_bytes();
    for (byte, value) in [(0, 0x10), (0, 0x01), (1, 0x50)] {
        let mut private_data = good;
        private_data[byte] = value;
        let path = client.path_to(server.gid()).service_id(ServiceId::tcp_port(7174)).await?;
        match Connection::connect(path).private_data(&private_data).await {
            Err(ConnectError::Rejected(no)) => assert_eq!(no.reason, RejReason::CONSUMER),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(server.stats().get("requests_malformed"), Some(3));
    // The listener goes on.
    let connecting = tokio::spawn(Connection::connect_ip((server.gid().to_ip(), 7174)).device(&client));
    listener.accept().await?.accept().await?;
    connecting.await??;
    Ok(())
}

#[tokio::test]
async fn addresses_of_two_families() -> Result {
    let (_, client) = two().await?;
    let error =
        Connection::connect_ip("[fd00::1]:7174".parse::<std::net::SocketAddr>()?).device(&client).await;
    assert!(matches!(error, Err(ConnectError::Path(_))), "{error:?}");
    Ok(())
}
