//! Many connections at once.

mod common;

use std::time::Duration;

use common::{Net, Result, SID};
use futures::future::try_join_all;
use ibcm::{Connection, Hca, Listener, Recv};

async fn storm(client: &Hca, server: &Hca, count: usize, deadline: Duration) -> Result {
    let listener = Listener::bind(SID).device(server).backlog(count).await?;
    let serving = tokio::spawn(async move {
        while let Ok(request) = listener.accept().await {
            tokio::spawn(async move {
                let conn = request.accept().recv(Recv::buffers(2, 256)).await?;
                while let Some(message) = conn.recv().await? {
                    conn.send(message.into_buf()).await?;
                }
                Ok::<_, ibcm::Error>(())
            });
        }
    });
    let path = client.path_to(server.gid()).service_id(SID).await?;
    let ask = |n: usize| {
        let connect = Connection::connect(path.clone()).recv(Recv::buffers(2, 256)).deadline(deadline);
        async move {
            let conn = connect.await?;
            conn.send_copy(&n.to_be_bytes()).await?;
            let answer = conn.recv().await?.ok_or(ibcm::RecvError::Closed)?;
            assert_eq!(answer[..], n.to_be_bytes());
            Ok::<_, ibcm::Error>(conn)
        }
    };
    let conns = try_join_all((0..count).map(ask)).await?;
    assert_eq!(conns.len(), count);
    futures::future::join_all(conns.iter().map(Connection::disconnect)).await;
    drop(conns);
    client.wait_idle().await;
    server.wait_idle().await;
    serving.abort();
    _ = serving.await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn two_hundred_on_a_bad_network() -> Result {
    let net = Net::new(1).await?;
    net.net.faults().loss(0.05).duplicate(0.02).reorder(0.1);
    storm(&net.client, &net.server, 200, Duration::from_secs(60)).await?;
    net.quiet().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_over_udp() -> Result {
    let (server, client) = (Hca::open("soft").await?, Hca::open("soft").await?);
    storm(&client, &server, 200, Duration::from_secs(30)).await?;
    client.close().await;
    server.close().await;
    Ok(())
}
