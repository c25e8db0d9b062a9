//! The order of operations, and what a dropped one leaves behind.

mod common;

use std::time::Duration;

use common::{Exposed, Net, Result, drop_after};
use futures::future::{join_all, try_join_all};
use ibcm::{Access, BufPool, Connection, OpCause, OpError, RecvError, RemoteRegion, Status};

/// More polls than any of the operations here takes.
const POLLS: usize = 12;
const LEN: usize = 4000;

/// Each kind of operation, by number.
async fn operate(
    kind: usize,
    conn: &Connection,
    pool: &BufPool,
    remote: RemoteRegion,
) -> std::result::Result<(), ibcm::Error> {
    let mut buf = pool.get().await?;
    buf.resize(LEN, 7);
    match kind {
        0 => drop(conn.send(buf).await?),
        1 => conn.send_copy(&[7; LEN]).await?,
        2 => conn.send_copy(b"short enough to be inline").await?,
        3 => drop(conn.write(buf, remote).imm(1).await?),
        4 => drop(conn.read(buf, remote).await?),
        5 => drop(conn.fetch_add(remote, 1).await?),
        6 => drop(conn.compare_swap(remote, 1, 2).post().await?.await?),
        7 => drop(conn.read(buf, remote).post().await?.await?),
        _ => conn.send_copy(&[7; LEN]).post().await?.await?,
    }
    Ok(())
}

/// Dropped at each of its polls, with an idle queue and with a full one, an operation leaves the connection as usable
/// as before, and its buffer comes home.
#[tokio::test(start_paused = true)]
async fn dropped_at_every_poll() -> Result {
    for kind in 0..9 {
        for full in [false, true] {
            let mut finished = 0;
            for polls in 0..POLLS {
                let net = Net::new(polls as u64).await?;
                let Exposed { client, server, region, remote } = net.exposed(LEN, Access::all()).await?;
                net.net.faults().loss(0.05);
                let pool = net.client.pool(1, LEN).await?;
                let reading = async {
                    while let Some(message) = server.recv().await? {
                        drop(message);
                    }
                    Ok::<_, ibcm::Error>(())
                };
                let operating = async {
                    let mut before = Vec::new();
                    while full && before.len() < 64 {
                        before.push(client.send_copy(&[before.len() as u8]).post().await?);
                    }
                    let done = drop_after(polls, operate(kind, &client, &pool, remote)).await;
                    finished += usize::from(done.transpose()?.is_some());
                    // Home it comes, however far it was.
                    let home = tokio::time::timeout(Duration::from_secs(100), pool.get());
                    let buf = home.await.map_err(|_| ibcm::Error::Closed)??;
                    try_join_all(before).await?;
                    client.write(buf, remote).await?;
                    client.send_copy(b"still usable").await?;
                    client.disconnect().await;
                    Ok(())
                };
                tokio::try_join!(reading, operating)?;
                assert_eq!(client.stats().operations_failed, 0);
                drop((client, server));
                drop((region, pool));
                net.quiet().await?;
            }
            assert!(finished > 0 && finished < POLLS, "{kind}: {finished} of {POLLS} were not dropped");
        }
    }
    Ok(())
}

/// Whoever has its place first is carried out first, whatever is awaited first and whatever was dropped.
#[tokio::test(start_paused = true)]
async fn posted_in_order_is_carried_out_in_order() -> Result {
    let net = Net::new(1).await?;
    let Exposed { client, server, region, remote } = net.exposed(1000, Access::all()).await?;
    net.net.faults().loss(0.05).reorder(0.1);
    let posting = async {
        let mut posted = Vec::new();
        for n in 0..300u32 {
            let mut buf = net.client.alloc(4).await?;
            buf.copy_from_slice(&n.to_ne_bytes());
            let write = client.write(buf, remote.slice(0, 4)?).post().await?;
            let word = client.send_copy(&n.to_be_bytes()).post().await?;
            match n % 3 {
                0 => drop((write, word)),
                1 => drop((word.await?, write.await?)),
                _ => posted.push((write, word)),
            }
        }
        for (write, word) in posted.into_iter().rev() {
            word.await?;
            write.await?;
        }
        client.disconnect().await;
        Ok::<_, ibcm::Error>(())
    };
    let receiving = async {
        let mut n = 0u32;
        while let Some(message) = server.recv().await? {
            assert_eq!(message[..], n.to_be_bytes());
            let mut seen = [0; 4];
            region.copy_to(0, &mut seen)?;
            assert!(u32::from_ne_bytes(seen) >= n, "what was written before is there");
            n += 1;
        }
        assert_eq!(n, 300);
        Ok(())
    };
    tokio::try_join!(posting, receiving)?;
    drop((client, server, region));
    net.quiet().await
}

/// Those who wait for a place get it in the order in which they were first polled, whatever they want it for.
#[tokio::test(start_paused = true)]
async fn all_kinds_wait_in_one_line() -> Result {
    let net = Net::new(1).await?;
    let Exposed { client, server, region, remote } = net.exposed(8, Access::all()).await?;
    let bufs = join_all((0..200).map(|_| net.client.alloc(8))).await;
    let mut bufs = bufs.into_iter();
    let operations = (0..200u32).map(|n| {
        let (client, buf) = (&client, bufs.next());
        async move {
            match n % 4 {
                0 => client.send_copy(&n.to_be_bytes()).await?,
                1 => client.write(buf.ok_or(ibcm::Error::Closed)??, remote).imm(n).await.map(drop)?,
                2 => client.send(buf.ok_or(ibcm::Error::Closed)??).imm(n).await.map(drop)?,
                _ => client.fetch_add(remote, 1).await.map(drop)?,
            }
            Ok::<_, ibcm::Error>(())
        }
    });
    let receiving = async {
        for n in (0..200u32).filter(|n| n % 4 != 3) {
            let message = server.recv().await?.ok_or(RecvError::Closed)?;
            let got = message.imm().or_else(|| Some(u32::from_be_bytes(message[..].try_into().ok()?)));
            assert_eq!(got, Some(n));
        }
        Ok(())
    };
    tokio::try_join!(async { try_join_all(operations).await }, receiving)?;
    drop((client, server));
    drop(region);
    net.quiet().await
}

/// `post` waits for room; what nobody awaits makes room all the same.
#[tokio::test(start_paused = true)]
async fn posting_waits_for_room() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    net.net.partition(&["client"], &["server"]);
    let mut posted = Vec::new();
    let full = tokio::time::timeout(Duration::from_millis(10), async {
        loop {
            posted.push(client.send_copy(b"x").post().await);
        }
    });
    assert!(full.await.is_err());
    assert_eq!(posted.len(), 64);
    let posted = posted.into_iter().collect::<std::result::Result<Vec<_>, OpError>>()?;
    net.net.heal();
    let next = client.send_copy(b"y").post();
    let reading = async {
        let mut n = 0;
        while n < 65 {
            n += usize::from(server.recv().await?.is_some());
        }
        Ok::<_, ibcm::Error>(())
    };
    let (next, ()) = tokio::try_join!(async { Ok(next.await?) }, reading)?;
    next.await?;
    for posted in posted {
        posted.await?;
    }
    drop((client, server));
    net.quiet().await
}

/// A detached operation that fails ends the connection, and the others say why.
#[tokio::test(start_paused = true)]
async fn a_detached_failure_ends_the_connection() -> Result {
    let net = Net::new(1).await?;
    let Exposed { client, server, region, remote } = net.exposed(64, Access::REMOTE_READ).await?;
    let pool = net.client.pool(2, 64).await?;
    let mut buf = pool.get().await?;
    buf.resize(64, 7);
    drop(client.write(buf, remote).post().await?);
    let behind = client.send_copy(b"behind it").post().await?;
    let error = behind.await.unwrap_err();
    assert!(matches!(error.cause, OpCause::Status(Status::REM_ACCESS_ERR)), "{error:?}");
    assert_eq!(client.closed().await.to_string(), "broken: remote access error");
    assert!(pool.try_get().is_some() && server.recv().await.is_err());
    assert_eq!(client.stats().operations_failed, 2);
    drop((client, server));
    drop(region);
    net.quiet().await
}

/// The connection's handle is gone, what was posted over it still has its end.
#[tokio::test(start_paused = true)]
async fn a_posted_operation_outlives_its_connection() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    net.net.partition(&["client"], &["server"]);
    let pool = net.client.pool(1, 64).await?;
    let posted = client.send(pool.get().await?).post().await?;
    drop(client);
    let error = posted.await.unwrap_err();
    assert!(matches!(error.cause, OpCause::Closed), "{error:?}");
    drop(error);
    assert!(pool.try_get().is_some());
    net.net.heal();
    drop(server);
    net.quiet().await
}
