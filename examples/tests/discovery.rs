//! The discovery example finds its service, and udaddy talks to a socket of another process.

mod common;

use common::{Program, Result, example};
use ibcm::{Hca, sidr, ud};

#[tokio::test]
async fn it_finds_the_service() -> Result {
    let ended = Program::start(&mut example("discovery")?)?.ended().await?.well()?;
    let text = ended.stdout;
    assert!(text.contains("the service is QP ") && text.ends_with("it answers\n"), "{text}");
    Ok(())
}

#[tokio::test]
async fn udaddy_gets_its_datagrams_back() -> Result {
    let hca = Hca::open("soft").await?;
    let socket = ud::Socket::open(&hca).await?;
    let _published = sidr::publish_ip(([0, 0, 0, 0], 7174), &socket).await?;
    let echo = tokio::spawn(async move {
        while let Ok(datagram) = socket.recv().await {
            socket.send_copy(&datagram.from(), &datagram).await.ok();
        }
    });
    let mut command = example("udaddy")?;
    command.env("IBCM_DEVICE", "soft").args(["call", &hca.gid().to_ip().to_string()]);
    let ended = Program::start(&mut command)?.ended().await?.well()?;
    assert!(ended.stdout.contains("datagram 10 of 100 bytes"), "{}", ended.stdout);
    echo.abort();
    Ok(())
}
