//! Writing, reading and changing the peer's memory.

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{Exposed, Net, Result, SID};
use futures::future::try_join_all;
use ibcm::{Access, Buf, Connection, Domain, OpCause, OpError, RecvError, RemoteRegion, Status};

/// A buffer with these bytes.
async fn buf(net: &Net, bytes: &[u8]) -> Result<Buf> {
    let mut buf = net.client.alloc(bytes.len()).await?;
    buf.copy_from_slice(bytes);
    Ok(buf)
}

fn status(error: &OpError) -> Option<Status> {
    match error.cause {
        OpCause::Status(status) => Some(status),
        _ => None,
    }
}

/// Whether it was refused, and with these words.
fn refused<T: std::fmt::Debug>(result: std::result::Result<T, OpError>, words: &str) -> Option<Buf> {
    let error = result.expect_err("it is refused");
    assert_eq!(error.to_string(), words);
    error.buf
}

#[tokio::test(start_paused = true)]
async fn what_is_written_is_read_on_a_bad_network() -> Result {
    for seed in 0..3 {
        let net = Net::new(seed).await?;
        let Exposed { client, server, region, remote } =
            net.exposed(1 << 18, Access::REMOTE_READ | Access::REMOTE_WRITE).await?;
        net.net.faults().loss(0.02).duplicate(0.02).reorder(0.05);
        let data: Vec<u8> = (0..1 << 18).map(|i: u32| (i * 7 + i / 251) as u8).collect();
        let (client, net_ref) = (&client, &net);
        let pieces = [0, 1, 4095, 4096, 4097, 100_000, 1 << 18];
        let write = |range: std::ops::Range<usize>| {
            let bytes = &data[range.clone()];
            async move {
                let buf = buf(net_ref, bytes).await?;
                client.write(buf, remote.slice(range.start, range.len())?).await?;
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
            }
        };
        try_join_all(pieces.windows(2).map(|at| write(at[0]..at[1]))).await?;
        let mut seen = vec![0; 1 << 18];
        region.copy_to(0, &mut seen)?;
        assert!(seen == data);
        let read = |at: usize| async move {
            let buf = net_ref.client.alloc(1 << 15).await?;
            Ok::<_, ibcm::Error>(client.read(buf, remote.slice(at, 30_000)?).await?)
        };
        for (at, got) in [0, 77, 200_000].into_iter().zip(try_join_all([0, 77, 200_000].map(read)).await?) {
            assert!(got[..] == data[at..at + 30_000]);
        }
        let stats = client.stats();
        assert_eq!((stats.writes, stats.bytes_written), (6, 1 << 18));
        assert_eq!((stats.reads, stats.bytes_read), (3, 90_000));
        assert_eq!(net.client.stats().get("bytes_written"), Some(1 << 18));
        assert_eq!(server.stats().messages_received, 0);
        drop(region);
        drop(server);
        client.disconnect().await;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn atomics_of_several_connections_add_up() -> Result {
    let net = Net::new(1).await?;
    let Exposed { client, server, region, remote } = net.exposed(64, Access::REMOTE_ATOMIC).await?;
    let (client2, server2) = net.pair().await?;
    net.net.faults().loss(0.02).duplicate(0.05);
    let counter = remote.slice(8, 8)?;
    let adding = |conn| try_join_all((0..100).map(move |_| Connection::fetch_add(conn, counter, 3)));
    let (ours, theirs) = tokio::try_join!(adding(&client), adding(&client2))?;
    let mut seen: Vec<u64> = ours.into_iter().chain(theirs).collect();
    seen.sort_unstable();
    assert!(seen.into_iter().eq((0..200).map(|n| n * 3)));
    assert_eq!(region.atomic(8)?.load(Ordering::Relaxed), 600);

    assert_eq!(client.compare_swap(counter, 599, 1).await?, 600);
    assert_eq!(client.compare_swap(counter, 600, u64::MAX).await?, 600);
    assert_eq!(client.fetch_add(counter, 2).await?, u64::MAX);
    assert_eq!(region.atomic(8)?.load(Ordering::Relaxed), 1);
    assert_eq!(client.stats().atomics, 103);
    drop((client, server, region));
    drop((client2, server2));
    net.quiet().await
}

/// A write with immediate arrives as a message with an empty body, in order with what is sent.
#[tokio::test(start_paused = true)]
async fn writes_with_immediate_are_messages_in_order() -> Result {
    let net = Net::new(1).await?;
    let Exposed { client, server, region, remote } = net.exposed(64, Access::REMOTE_WRITE).await?;
    net.net.faults().loss(0.1).reorder(0.1);
    let posting = async {
        for n in 0..40u8 {
            client.send_copy(&[n]).post().await?.await?;
            let write = client.write(buf(&net, &[n; 16]).await?, remote.slice(n.into(), 16)?);
            drop(write.imm(n.into()).post().await?);
        }
        client.write(net.client.alloc(0).await?, remote.slice(0, 0)?).imm(99).await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    };
    let receiving = async {
        for n in 0..40u8 {
            let message = server.recv().await?.ok_or("closed")?;
            assert_eq!((&message[..], message.imm()), (&[n][..], None));
            let message = server.recv().await?.ok_or("closed")?;
            assert_eq!((&message[..], message.imm()), (&[][..], Some(n.into())));
            let mut seen = [0; 16];
            region.copy_to(n.into(), &mut seen)?;
            assert!(seen.iter().all(|byte| *byte >= n), "{n}: {seen:?}");
        }
        let message = server.recv().await?.ok_or("closed")?;
        assert_eq!((message.len(), message.imm()), (0, Some(99)));
        Ok(())
    };
    tokio::try_join!(posting, receiving)?;
    let stats = server.stats();
    assert_eq!((stats.messages_received, stats.bytes_received), (81, 40));
    drop((client, server, region));
    net.quiet().await
}

/// What is out of bounds is refused here; nothing is posted, and the connection goes on.
#[tokio::test(start_paused = true)]
async fn bounds_are_checked_before_anything_is_posted() -> Result {
    let net = Net::new(1).await?;
    let Exposed { client, server, region, remote } = net.exposed(64, Access::all()).await?;
    let slice = |at, len| remote.slice(at, len).unwrap();

    let words = "write length is 17, at most 16 is allowed";
    let back = refused(client.write(buf(&net, &[1; 17]).await?, slice(0, 16)).await, words);
    let back = back.ok_or("no buffer")?;
    assert_eq!(back[..], [1; 17]);
    let words = "read length is 18, at most 17 is allowed";
    let back = refused(client.read(back, slice(0, 18)).await, words).ok_or("no buffer")?;
    assert_eq!(back[..], [1; 17], "it was not touched");
    let words = "region of an atomic is 7, at least 8 is needed";
    assert!(refused(client.fetch_add(slice(8, 7), 1).await, words).is_none());
    let words = format!("address of an atomic is {}, it must be a multiple of 8", remote.addr() + 4);
    refused(client.compare_swap(slice(4, 8), 0, 1).await, &words);
    let error = client.fetch_add(slice(4, 8), 1).post().await.unwrap_err();
    assert!(matches!(error.cause, OpCause::Invalid(_)));
    let error: ibcm::Error = remote.slice(60, 5).unwrap_err().into();
    assert_eq!(error.to_string(), "5 bytes at 60, the region has 64");
    let error = std::io::Error::from(error);
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);

    assert_eq!(client.stats().operations_failed, 0);
    assert_eq!(client.write(back, slice(0, 64)).await?[..], [1; 17], "less than the region is fine");
    drop((client, server, region));
    net.quiet().await
}

/// What was agreed decides: 0 on either side means that there are none.
#[tokio::test(start_paused = true)]
async fn without_initiator_depth_there_are_no_reads_and_atomics() -> Result {
    for (passive, active) in [(Some(0), None), (None, Some(0)), (Some(2), None)] {
        let net = Net::new(1).await?;
        let region = net.server.expose(64, Access::all()).await?;
        let listener = net.listen().await?;
        let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
        let accepting = async {
            let accept = listener.accept().await?.accept();
            let accept = match passive {
                Some(count) => accept.responder_resources(count),
                None => accept,
            };
            Ok::<_, ibcm::Error>(accept.await?)
        };
        let connecting = async {
            let connect = Connection::connect(path);
            let connect = match active {
                Some(count) => connect.initiator_depth(count),
                None => connect,
            };
            Ok(connect.await?)
        };
        let (client, server) = tokio::try_join!(connecting, accepting)?;
        let remote = region.remote();
        if passive == Some(2) {
            // More than the peer serves at once: they wait for their turn.
            let reads = (0..10).map(|n| {
                let (net, client) = (&net, &client);
                async move {
                    Ok::<_, ibcm::Error>(client.read(net.client.alloc(8).await?, remote.slice(n, 8)?).await?)
                }
            });
            assert_eq!(try_join_all(reads).await?.len(), 10);
        } else {
            let words = "the connection's initiator depth is 0, at least 1 is needed";
            assert!(refused(client.read(net.client.alloc(64).await?, remote).await, words).is_some());
            refused(client.fetch_add(remote, 1).await, words);
        }
        client.write(net.client.alloc(8).await?, remote).await?;
        drop((client, server));
        drop(region);
        drop(listener);
        net.quiet().await?;
    }
    Ok(())
}

/// The peer refuses: the connection ends on both sides, and says why.
async fn access_is_refused(
    net: Net,
    conns: (Connection, Connection),
    operation: impl AsyncFnOnce(&Net, &Connection) -> Result<OpError>,
) -> Result<Net> {
    let (client, server) = conns;
    let error = operation(&net, &client).await?;
    assert_eq!(status(&error), Some(Status::REM_ACCESS_ERR), "{error:?}");
    assert_eq!(client.closed().await.to_string(), "broken: remote access error");
    assert_eq!(client.recv().await.expect_err("it is broken"), RecvError::Broken(Status::REM_ACCESS_ERR));
    assert_eq!(server.recv().await.expect_err("it is broken"), RecvError::Broken(Status::LOC_ACCESS_ERR));
    assert_eq!(server.closed().await.to_string(), "broken: local access error");
    let error = client.send_copy(b"more").await.expect_err("it is broken");
    assert_eq!(status(&error), Some(Status::REM_ACCESS_ERR));
    Ok(net)
}

#[tokio::test(start_paused = true)]
async fn a_region_that_was_dropped_is_out_of_reach() -> Result {
    let net = Net::new(1).await?;
    let Exposed { client, server, region, remote } = net.exposed(4096, Access::all()).await?;
    let buf = client.read(net.client.alloc(4096).await?, remote).await?;
    drop(region);
    access_is_refused(net, (client, server), async |_, client| {
        let error = client.read(buf, remote).await.unwrap_err();
        assert!(error.buf.as_ref().is_some_and(|buf| buf.is_empty() && buf.capacity() == 4096));
        Ok(error)
    })
    .await?
    .quiet()
    .await
}

#[tokio::test(start_paused = true)]
async fn a_region_gives_no_more_than_its_access() -> Result {
    let rights = [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC];
    for allowed in rights {
        for asked in rights {
            let net = Net::new(1).await?;
            let Exposed { client, server, region, remote } = net.exposed(64, allowed).await?;
            let operation = async |net: &Net, client: &Connection| {
                let buf = net.client.alloc(64).await?;
                let result = match asked {
                    Access::REMOTE_READ => client.read(buf, remote).await.map(drop),
                    Access::REMOTE_WRITE => client.write(buf, remote).await.map(drop),
                    _ => client.fetch_add(remote, 1).await.map(drop),
                };
                Ok::<_, ibcm::Error>(result)
            };
            let net = if asked == allowed {
                operation(&net, &client).await??;
                drop((client, server));
                net
            } else {
                access_is_refused(net, (client, server), async |net, client| {
                    Ok(operation(net, client).await?.unwrap_err())
                })
                .await?
            };
            drop(region);
            net.quiet().await?;
        }
    }
    Ok(())
}

/// Bytes beside the region, by a handle that was made up.
#[tokio::test(start_paused = true)]
async fn the_responder_checks_bounds_too() -> Result {
    let net = Net::new(1).await?;
    let Exposed { client, server, region, remote } = net.exposed(64, Access::all()).await?;
    let beyond = RemoteRegion::new(remote.addr() + 60, remote.rkey().0, 8);
    let net = access_is_refused(net, (client, server), async |net, client| {
        Ok(client.write(net.client.alloc(8).await?, beyond).await.unwrap_err())
    })
    .await?;
    let mut seen = [1; 64];
    region.copy_to(0, &mut seen)?;
    assert_eq!(seen, [0; 64]);
    drop(region);
    net.quiet().await
}

async fn connected_in(net: &Net, domain: &Domain) -> Result<(Connection, Connection)> {
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let passive = async { Ok::<_, ibcm::Error>(listener.accept().await?.accept().domain(domain).await?) };
    let active = async { Ok(Connection::connect(path).await?) };
    Ok(tokio::try_join!(active, passive)?)
}

/// An rkey serves the connections of its domain, and no others.
#[tokio::test(start_paused = true)]
async fn tenants_reach_their_own_memory_only() -> Result {
    let net = Net::new(1).await?;
    let (one, two) = (net.server.domain().await?, net.server.domain().await?);
    let (region, common) =
        (one.expose(64, Access::all()).await?, net.server.expose(64, Access::all()).await?);
    let of_one = connected_in(&net, &one).await?;
    let of_two = connected_in(&net, &two).await?;
    assert_eq!(of_one.0.fetch_add(region.remote(), 1).await?, 0);
    // Messages go both ways in a domain of its own.
    of_one.1.send(one.alloc(8).await?).await?;
    of_one.1.send_copy(b"a copy").await?;
    assert_eq!(of_one.0.recv().await?.ok_or("closed")?.len(), 8);
    of_one.0.send_copy(b"x").await?;
    assert!(of_one.1.recv().await?.is_some());
    let pool = one.pool(1, 16).await?;
    of_one.1.send(pool.get().await?).await?;

    let error = of_two.0.fetch_add(region.remote(), 1).await.unwrap_err();
    assert_eq!(status(&error), Some(Status::REM_ACCESS_ERR));
    assert_eq!(region.atomic(0)?.load(Ordering::Relaxed), 1);
    assert_eq!(of_two.1.recv().await.unwrap_err(), RecvError::Broken(Status::LOC_ACCESS_ERR));
    let error = of_one.0.fetch_add(common.remote(), 1).await.unwrap_err();
    assert_eq!(status(&error), Some(Status::REM_ACCESS_ERR));
    drop((of_one, of_two));
    drop((one, two, region, common, pool));
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn a_domain_of_another_hca_is_refused() -> Result {
    let net = Net::new(1).await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let other = net.server.domain().await?;
    let error = Connection::connect(path).domain(&other).await.unwrap_err();
    let words = format!("the HCA of the domain is {}, it must be the connection's", net.server.gid());
    assert_eq!(error.to_string(), words);
    assert!(net.client.expose(0, Access::all()).await.is_err());
    drop(other);
    net.quiet().await
}

/// A fence holds back what is posted behind a read until the read is complete.
#[tokio::test(start_paused = true)]
async fn a_fence_waits_for_reads() -> Result {
    let net = Net::new(1).await?;
    let Exposed { client, server, region, remote } = net.exposed(1 << 16, Access::all()).await?;
    net.net.faults().delay(Duration::from_millis(5)..=Duration::from_millis(5));
    let read = client.read(net.client.alloc(1 << 16).await?, remote).post().await?;
    let started = tokio::time::Instant::now();
    let send = client.send_copy(b"the read is over").fence().post().await?;
    let (received, ..) = tokio::join!(server.recv(), read, send);
    assert!(received?.is_some());
    // Two ways for the read, one for the message.
    assert!(started.elapsed() >= Duration::from_millis(15), "{:?}", started.elapsed());
    drop((client, server, region));
    net.quiet().await
}
