//! The first program of the documentation, over UDP and in a subnet.

use std::error::Error;

use ibcm::sim::Subnet;
use ibcm::{Connection, Hca, Listener, ServiceId};

const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

async fn echo(listener: Listener) -> std::result::Result<(), ibcm::Error> {
    let conn = listener.accept().await?.accept().await?;
    while let Some(message) = conn.recv().await? {
        conn.send(message.into_buf()).await?;
    }
    Ok(())
}

async fn hello(client: &Hca, server: &Hca) -> Result {
    let listener = Listener::bind(SID).device(server).await?;
    let echo = tokio::spawn(echo(listener));
    let path = client.path_to(server.gid()).service_id(SID).await?;
    let conn = Connection::connect(path).await?;
    conn.send_copy(b"hello").await?;
    let reply = conn.recv().await?.ok_or("closed before the echo")?;
    assert_eq!(&reply[..], b"hello");
    conn.disconnect().await;
    Ok(echo.await??)
}

#[tokio::test]
async fn over_udp() -> Result {
    let (server, client) = (Hca::open("soft").await?, Hca::open("soft").await?);
    hello(&client, &server).await?;
    client.wait_idle().await;
    server.close().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn in_a_subnet() -> Result {
    let net = Subnet::star(["client", "server"]).await?;
    let (client, server) = (Hca::open(net.device("client")).await?, Hca::open(net.device("server")).await?);
    hello(&client, &server).await?;
    Ok(net.quiet().await?)
}
