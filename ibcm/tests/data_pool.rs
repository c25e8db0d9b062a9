//! Pools of buffers.

mod common;

use std::time::Duration;

use common::{Net, Result, drop_after};
use futures::{FutureExt, poll};
use ibcm::{Error, Hca};

#[tokio::test(start_paused = true)]
async fn a_pool_bounds_what_is_under_way() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    let pool = net.client.pool(4, 1000).await?;
    net.net.faults().loss(0.1);
    let sending = async {
        for n in 0..100u8 {
            let mut buf = pool.clone().get().await?;
            assert!(buf.is_empty() && buf.capacity() == 1000);
            buf.resize(1000, n);
            drop(client.send(buf).post().await?);
        }
        client.disconnect().await;
        Ok::<_, Error>(())
    };
    let receiving = async {
        let mut n = 0u8;
        while let Some(message) = server.recv().await? {
            assert_eq!(message[..], [n; 1000]);
            n += 1;
        }
        assert_eq!(n, 100);
        Ok(())
    };
    tokio::try_join!(sending, receiving)?;
    drop((client, server));
    net.quiet().await
}

/// First come, first served; who gives up loses his place and nothing else.
#[tokio::test(start_paused = true)]
async fn buffers_go_to_those_who_have_waited_longest() -> Result {
    let net = Net::new(1).await?;
    let pool = net.client.pool(1, 16).await?;
    let held = pool.get().await?;
    assert!(pool.try_get().is_none());
    let (mut first, mut second, mut third) =
        (Box::pin(pool.get()), Box::pin(pool.get()), Box::pin(pool.get()));
    assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
    assert!(poll!(&mut third).is_pending());
    drop(held);
    assert!(pool.try_get().is_none(), "those who wait come first");
    assert!(poll!(&mut third).is_pending() && poll!(&mut second).is_pending());
    // It has the buffer in hand, and gives it up.
    drop(first);
    assert!(poll!(&mut third).is_pending());
    let got = (&mut second).now_or_never().ok_or("the second is the first now")??;
    drop(second);
    drop(third);
    drop(got);
    assert!(pool.try_get().is_some());
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn getting_is_cancel_safe() -> Result {
    for polls in 0..4 {
        let net = Net::new(1).await?;
        let pool = net.client.pool(1, 16).await?;
        let held = pool.get().await?;
        let waiting = tokio::spawn({
            let pool = pool.clone();
            async move { drop_after(polls, pool.get()).await.is_some() }
        });
        tokio::task::yield_now().await;
        drop(held);
        _ = waiting.await?;
        assert!(pool.try_get().is_some());
        net.quiet().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn buffers_outlive_their_pool() -> Result {
    let net = Net::new(1).await?;
    let pool = net.client.pool(2, 16).await?;
    let held = pool.get().await?;
    drop(pool);
    drop(held);
    assert!(matches!(net.client.pool(0, 16).await, Err(Error::Invalid(_))));
    net.quiet().await
}

#[tokio::test]
async fn a_pool_outlives_its_hca() -> Result {
    let hca = Hca::open("soft").await?;
    let pool = hca.pool(1, 16).await?;
    let held = pool.get().await?;
    let waiting = tokio::spawn({
        let pool = pool.clone();
        async move { pool.get().await.map(drop) }
    });
    tokio::task::yield_now().await;
    hca.close().await;
    let waited = tokio::time::timeout(Duration::from_secs(1), waiting).await??;
    assert!(matches!(waited, Err(Error::Closed)), "{waited:?}");
    assert!(matches!(pool.get().await, Err(Error::Closed)));
    drop(held);
    assert!(pool.get().await.is_ok(), "what is here can be had");
    assert!(matches!(hca.pool(1, 16).await, Err(Error::Closed)));
    Ok(())
}
