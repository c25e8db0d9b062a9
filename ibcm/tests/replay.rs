//! One seed decides everything.

mod common;

use common::{Result, SID};
use futures::future::join_all;
use ibcm::sim::Subnet;
use ibcm::{Connection, Hca, Listener};

/// Connects ten times over a bad network and exchanges messages; gives every packet that passed.
async fn run(seed: u64) -> Result<Vec<String>> {
    let net = Subnet::star(["client", "server"]).seed(seed).await?;
    net.faults().loss(0.1).duplicate(0.1).reorder(0.2);
    let (client, server) = (Hca::open(net.device("client")).await?, Hca::open(net.device("server")).await?);
    let listener = Listener::bind(SID).device(&server).await?;
    let serving = tokio::spawn(async move {
        while let Ok(request) = listener.accept().await {
            tokio::spawn(async move {
                let conn = request.accept().await?;
                while let Some(message) = conn.recv().await? {
                    conn.send(message.into_buf()).await?;
                }
                Ok::<_, ibcm::Error>(())
            });
        }
    });
    let path = client.path_to(server.gid()).service_id(SID).await?;
    let ask = async || {
        let conn = Connection::connect(path.clone()).await?;
        conn.send_copy(b"again").await?;
        conn.recv().await?;
        conn.disconnect().await;
        Ok::<_, ibcm::Error>(())
    };
    for result in join_all((0..10).map(|_| ask())).await {
        result?;
    }
    drop(path);
    client.close().await;
    serving.abort();
    _ = serving.await;
    server.close().await;
    net.quiet().await?;
    Ok(net.log())
}

fn replay(seed: u64) -> Result<Vec<String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    runtime.block_on(run(seed))
}

#[test]
fn the_same_seed_gives_the_same_packets() -> Result {
    let first = replay(7)?;
    assert!(first.len() > 100, "{} packets", first.len());
    assert_eq!(first, replay(7)?);
    assert_ne!(first, replay(8)?);
    Ok(())
}
