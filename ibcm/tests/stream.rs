//! A connection as a stream of bytes.

mod common;

use std::io::{ErrorKind, IoSlice};
use std::time::Duration;

use common::{Net, Result, SID, drop_after};
use ibcm::{ByteStream, Connection, Recv};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);
/// What a stream has in its send queue, and what its peer has received unread, at most: by default.
const IN_FLIGHT: usize = (16 + 16) * 4096;

async fn streams(net: &Net) -> Result<(ByteStream, ByteStream)> {
    let (client, server) = net.pair().await?;
    Ok((client.into_stream(), server.into_stream()))
}

/// Bytes that tell where in a stream they belong.
fn bytes(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

#[tokio::test(start_paused = true)]
async fn one_side_shuts_down_and_the_other_reads_to_the_end() -> Result {
    let net = Net::new(1).await?;
    let (mut client, mut server) = streams(&net).await?;
    let data = bytes(0, 1 << 20);
    let writing = async {
        client.write_all(&data).await?;
        client.shutdown().await?;
        Ok::<_, std::io::Error>(client)
    };
    let reading = async {
        let mut read = Vec::new();
        server.read_to_end(&mut read).await?;
        Ok((server, read))
    };
    let (mut client, (mut server, read)) = tokio::try_join!(writing, reading)?;
    assert!(read == data);
    assert_eq!(client.stats().messages_sent, 256);
    assert_eq!(server.stats().bytes_received, 1 << 20);
    // The end of the stream stays, on both sides; nothing can be written.
    for stream in [&mut client, &mut server] {
        assert_eq!(stream.read(&mut [0; 8]).await?, 0);
        assert_eq!(stream.write(b"too late").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
        stream.flush().await?;
        stream.shutdown().await?;
    }
    assert_eq!(server.closed().await.to_string(), "disconnected by the peer");
    assert_eq!(client.closed().await.to_string(), "disconnected, the peer confirmed");
    drop((client, server));
    net.quiet().await
}

/// Nobody reads: the writer stops, for as long as that lasts, and then all arrives.
#[tokio::test(start_paused = true)]
async fn a_reader_that_does_not_read_stops_the_writer() -> Result {
    let net = Net::new(1).await?;
    let (client, mut server) = streams(&net).await?;
    let (mut read_half, mut client) = tokio::io::split(client);
    let data = bytes(0, 1 << 20);
    let mut written = 0;
    while let Ok(count) = timeout(SECOND, client.write(&data[written..])).await {
        written += count?;
    }
    assert!(written > 16 * 4096 && written <= IN_FLIGHT, "{written}");
    assert!(timeout(SECOND, client.flush()).await.is_err());
    assert!(timeout(SECOND, client.shutdown()).await.is_err());
    // It is alive, in both directions.
    server.write_all(b"patience").await?;
    server.flush().await?;
    let mut word = [0; 8];
    read_half.read_exact(&mut word).await?;
    assert_eq!(&word, b"patience");

    let reading = async {
        let mut read = Vec::new();
        server.read_to_end(&mut read).await.map(|_| read)
    };
    let (read, ()) = tokio::try_join!(reading, client.shutdown())?;
    assert!(read == data[..written]);
    drop((client, read_half, server));
    net.quiet().await
}

/// A stream that is dropped behind its last write loses nothing, unless the peer does not read at all.
#[tokio::test(start_paused = true)]
async fn dropped_behind_the_last_write() -> Result {
    for loss in [0.0, 0.1] {
        let net = Net::new(1).await?;
        let (mut client, mut server) = streams(&net).await?;
        net.net.faults().loss(loss);
        client.write_all(&bytes(0, 100_000)).await?;
        drop(client);
        let mut read = Vec::new();
        server.read_to_end(&mut read).await?;
        assert!(read == bytes(0, 100_000));
        drop(server);
        net.quiet().await?;
    }
    let net = Net::new(1).await?;
    let (mut client, mut server) = streams(&net).await?;
    client.write_all(&bytes(0, 100_000)).await?;
    drop(client);
    assert!(timeout(9 * SECOND, server.closed()).await.is_err());
    assert!(timeout(3 * SECOND, server.closed()).await.is_ok());
    let mut read = Vec::new();
    server.read_to_end(&mut read).await?;
    assert!(read == bytes(0, 16 * 4096));
    drop(server);
    net.quiet().await
}

/// Two tasks, one stream: a writer that waits and a reader that waits do not disturb each other.
#[tokio::test(start_paused = true)]
async fn halves_of_tokio() -> Result {
    let net = Net::new(1).await?;
    let (client, mut server) = streams(&net).await?;
    let (mut read_half, mut write_half) = tokio::io::split(client);
    let writing = tokio::spawn(async move {
        write_half.write_all(&bytes(0, 2 << 20)).await?;
        write_half.flush().await?;
        Ok::<_, std::io::Error>(write_half)
    });
    let reading = tokio::spawn(async move {
        let mut line = vec![0; 6];
        read_half.read_exact(&mut line).await?;
        Ok::<_, std::io::Error>((read_half, line))
    });
    let mut read = vec![0; 1 << 20];
    server.read_exact(&mut read).await?;
    sleep(SECOND).await;
    server.write_all(b"enough").await?;
    let (read_half, line) = reading.await??;
    assert_eq!(line, b"enough");
    let mut rest = vec![0; 1 << 20];
    server.read_exact(&mut rest).await?;
    assert!(read == bytes(0, 1 << 20) && rest == bytes(1 << 20, 1 << 20));
    let mut client = read_half.unsplit(writing.await??);
    client.shutdown().await?;
    drop((client, server));
    net.quiet().await
}

/// Messages of any program make a stream; empty ones are no end of it.
#[tokio::test(start_paused = true)]
async fn messages_are_read_as_bytes() -> Result {
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    let mut server = server.into_stream();
    for message in ["one\nt", "", "wo", "", "\n", "", "three"] {
        client.send_copy(message.as_bytes()).await?;
    }
    let mut line = String::new();
    server.read_line(&mut line).await?;
    assert_eq!((&line[..], server.buffer()), ("one\n", &b"t"[..]));
    server.read_line(&mut line).await?;
    assert_eq!((&line[..], server.buffer()), ("one\ntwo\n", &b""[..]));
    // From here on it is messages again.
    let server = server.into_inner();
    assert!(server.recv().await?.ok_or("closed")?.is_empty());
    assert_eq!(&server.recv().await?.ok_or("closed")?[..], b"three");
    server.send_copy(b"a message").await?;
    assert_eq!(&client.recv().await?.ok_or("closed")?[..], b"a message");
    drop((client, server));
    net.quiet().await
}

/// What was written goes on when the stream becomes a connection, in order with its messages.
#[tokio::test(start_paused = true)]
async fn a_connection_again_with_writes_under_way() -> Result {
    let net = Net::new(1).await?;
    let (mut client, mut server) = streams(&net).await?;
    let data = bytes(0, 1 << 20);
    let mut written = 0;
    while let Ok(count) = timeout(SECOND, client.write(&data[written..])).await {
        written += count?;
    }
    let client = client.into_inner();
    let sending = client.send_copy(b"a message");
    let reading = async {
        let mut read = vec![0; written];
        server.read_exact(&mut read).await?;
        Ok(read)
    };
    let ((), read) = tokio::try_join!(async { sending.await.map_err(std::io::Error::from) }, reading)?;
    assert!(read == data[..written]);
    assert_eq!(&server.into_inner().recv().await?.ok_or("closed")?[..], b"a message");
    drop(client);
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn a_chunk_is_a_message() -> Result {
    let net = Net::new(1).await?;
    let listener = net.listen().await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let accepting = async {
        Ok::<_, ibcm::Error>(listener.accept().await?.accept().recv(Recv::buffers(4, 20_000)).await?)
    };
    let connecting = async { Ok(Connection::connect(path).await?) };
    let (client, server) = tokio::try_join!(connecting, accepting)?;
    let error = client.into_stream().chunk(0).unwrap_err();
    assert_eq!(error.to_string(), "chunk is 0, at least 1 is needed");
    drop(server);

    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let accepting = async {
        Ok::<_, ibcm::Error>(listener.accept().await?.accept().recv(Recv::buffers(4, 20_000)).await?)
    };
    let connecting = async { Ok(Connection::connect(path).await?) };
    let (client, mut server) = tokio::try_join!(connecting, accepting)?;
    // Copies of the connection's, before and behind: the lengths of its buffers change.
    client.send_copy(&[1; 4000]).await?;
    assert_eq!(server.recv().await?.ok_or("closed")?.len(), 4000);
    let mut client = client.into_stream().chunk(20_000)?;
    for chunk in [20_000, 7, 9_999] {
        client = client.chunk(chunk)?;
        let (data, more) = (bytes(0, 15_000), bytes(15_000, 15_000));
        let slices = [IoSlice::new(&data), IoSlice::new(&[]), IoSlice::new(&more)];
        assert_eq!(client.write_vectored(&slices).await?, chunk);
        let message = server.recv().await?.ok_or("closed")?;
        assert!(message[..] == bytes(0, chunk));
    }
    assert_eq!(client.write(b"").await?, 0);
    assert_eq!(client.write_vectored(&[]).await?, 0);
    client.flush().await?;
    let client = client.into_inner();
    client.send_copy(&[1; 4000]).await?;
    assert_eq!(server.recv().await?.ok_or("closed")?.len(), 4000);

    // Longer than the peer's buffers: broken, which is not the end of a stream.
    let mut client = client.into_stream().chunk(20_001)?;
    client.write_all(&[1; 20_001]).await?;
    assert_eq!(client.flush().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(client.write(b"x").await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(client.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    let mut stream = server.into_stream();
    assert_eq!(stream.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(client.shutdown().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    server = stream.into_inner();
    drop((client, server, listener));
    net.quiet().await
}

/// What did not arrive is an error of flush and shutdown, again and again.
#[tokio::test(start_paused = true)]
async fn a_dead_peer() -> Result {
    let net = Net::new(1).await?;
    let (mut client, mut server) = streams(&net).await?;
    net.net.partition(&["client"], &["server"]);
    client.write_all(&[1; 10_000]).await?;
    assert_eq!(client.flush().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(client.flush().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(client.shutdown().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    net.net.heal();
    // This side knows of nothing before it tries.
    server.write_all(b"anyone?").await?;
    assert!(server.flush().await.is_err());
    drop((client, server));
    net.quiet().await
}

/// The peer disconnects with writes under way: they did not arrive, and that is told.
#[tokio::test(start_paused = true)]
async fn a_peer_that_leaves_without_reading() -> Result {
    let net = Net::new(1).await?;
    let (mut client, mut server) = streams(&net).await?;
    let data = bytes(0, 1 << 20);
    let mut written = 0;
    while let Ok(count) = timeout(SECOND, client.write(&data[written..])).await {
        written += count?;
    }
    let waiting = tokio::spawn(async move {
        let error = client.write_all(b"no room").await.unwrap_err();
        (client, error)
    });
    tokio::task::yield_now().await;
    server.shutdown().await?;
    let (mut client, error) = waiting.await?;
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    assert_eq!(client.flush().await.unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert_eq!(client.shutdown().await.unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert_eq!(client.read(&mut [0]).await?, 0);
    drop((client, server));
    net.quiet().await
}

#[tokio::test(start_paused = true)]
async fn an_hca_that_closes() -> Result {
    let net = Net::new(1).await?;
    let (mut client, mut server) = streams(&net).await?;
    client.write_all(b"before").await?;
    client.flush().await?;
    net.client.close().await;
    assert_eq!(client.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::NotConnected);
    assert_eq!(client.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
    let mut read = Vec::new();
    server.read_to_end(&mut read).await?;
    assert_eq!(read, b"before");
    drop((client, server));
    net.quiet().await
}

/// Drops each kind of future at each of its polls, then the stream: nothing is left, and what was taken arrives.
#[tokio::test(start_paused = true)]
async fn dropped_at_each_point() -> Result {
    for loss in [0.0, 0.1] {
        for polls in 0..12 {
            let net = Net::new(polls as u64).await?;
            let (mut client, mut server) = streams(&net).await?;
            net.net.faults().loss(loss);
            let reading = tokio::spawn(async move {
                sleep(SECOND).await;
                let mut read = Vec::new();
                server.read_to_end(&mut read).await.map(|_| read)
            });
            // More than goes in at once: some of it waits until the peer reads.
            let data = bytes(0, 300_000);
            let (mut written, mut expected) = (0, Vec::new());
            while let Ok(count) = timeout(Duration::from_millis(10), client.write(&data[written..])).await {
                written += count?;
            }
            expected.extend_from_slice(&data[..written]);
            // A write that waits is cancelled, and what comes behind it is something else.
            if let Some(count) = drop_after(polls.min(1), client.write(&[0xee; 5000])).await {
                expected.extend_from_slice(&[0xee; 5000][..count?]);
            }
            client.write_all(&data[written..]).await?;
            expected.extend_from_slice(&data[written..]);
            // Nothing comes, so nothing would wake it again.
            _ = drop_after(polls.min(1), client.read(&mut [0; 3])).await;
            _ = drop_after(polls, client.flush()).await;
            let shut_down = drop_after(polls, client.shutdown()).await.transpose()?;
            drop(client);
            let read = timeout(60 * SECOND, reading).await???;
            assert!(read == expected, "{polls} polls, {} bytes, shut down: {shut_down:?}", read.len());
            net.quiet().await?;
        }
    }
    Ok(())
}

/// Drops the stream of a pending shutdown at each of its polls.
#[tokio::test(start_paused = true)]
async fn a_shutdown_goes_on_when_it_is_called_again() -> Result {
    for polls in 1..10 {
        let net = Net::new(polls as u64).await?;
        let (mut client, mut server) = streams(&net).await?;
        net.net.faults().loss(0.2);
        client.write_all(&bytes(0, 20_000)).await?;
        _ = drop_after(polls, client.shutdown()).await;
        client.shutdown().await?;
        let mut read = Vec::new();
        server.read_to_end(&mut read).await?;
        assert!(read == bytes(0, 20_000));
        drop((client, server));
        net.quiet().await?;
    }
    Ok(())
}

mod random {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// What a writer does next.
    #[derive(Debug, Clone)]
    enum Act {
        Write(usize),
        Vectored(Vec<usize>),
        Flush,
        Sleep(u64),
    }

    /// What one side does.
    #[derive(Debug, Clone)]
    struct Side {
        chunk: usize,
        acts: Vec<Act>,
        /// Bytes that are asked for at once, and pauses in between.
        reads: Vec<(usize, u64)>,
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            6 => (1usize..20_000).prop_map(Act::Write),
            2 => vec(0usize..6000, 0..5).prop_map(Act::Vectored),
            1 => Just(Act::Flush),
            1 => (0u64..50).prop_map(Act::Sleep),
        ]
    }

    fn side() -> impl Strategy<Value = Side> {
        let pause = prop_oneof![4 => Just(0u64), 1 => 0u64..20];
        (1usize..=4096, vec(act(), 0..16), vec((1usize..10_000, pause), 1..8)).prop_map(
            |(chunk, acts, reads)| {
                // Chunks of few bytes make very many messages.
                Side { chunk: chunk.max(100), acts, reads }
            },
        )
    }

    impl Side {
        fn len(&self) -> usize {
            let written = self.acts.iter().map(|act| match act {
                Act::Write(len) => *len,
                Act::Vectored(lens) => lens.iter().sum(),
                Act::Flush | Act::Sleep(_) => 0,
            });
            written.sum()
        }

        async fn write(&self, mut to: impl AsyncWrite + Unpin) -> std::io::Result<()> {
            let mut at = 0;
            for act in &self.acts {
                match act {
                    Act::Write(len) => {
                        to.write_all(&bytes(at, *len)).await?;
                        at += len;
                    }
                    Act::Vectored(lens) => {
                        let mut parts = Vec::new();
                        for len in lens {
                            parts.push(bytes(at, *len));
                            at += len;
                        }
                        let mut slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
                        let mut rest = &mut slices[..];
                        while rest.iter().any(|slice| !slice.is_empty()) {
                            let count = to.write_vectored(rest).await?;
                            assert!(count > 0);
                            IoSlice::advance_slices(&mut rest, count);
                        }
                    }
                    Act::Flush => to.flush().await?,
                    Act::Sleep(ms) => sleep(Duration::from_millis(*ms)).await,
                }
            }
            to.flush().await
        }

        async fn read(&self, mut from: impl AsyncRead + Unpin, len: usize) -> std::io::Result<Vec<u8>> {
            let mut read = Vec::new();
            let mut plan = self.reads.iter().cycle();
            while read.len() < len {
                let (most, pause) = plan.next().copied().unwrap_or((1, 0));
                sleep(Duration::from_millis(pause)).await;
                let mut into = vec![0; most];
                let count = from.read(&mut into).await?;
                assert!(count > 0, "the end behind {} of {len} bytes", read.len());
                read.extend_from_slice(&into[..count]);
            }
            Ok(read)
        }
    }

    async fn both_ways(sides: [Side; 2], seed: u64, loss: f64) -> Result {
        let net = Net::new(seed).await?;
        let (client, server) = streams(&net).await?;
        net.net.faults().loss(loss).duplicate(loss).reorder(loss);
        let [a, b] = &sides;
        let (client, server) = (client.chunk(a.chunk)?, server.chunk(b.chunk)?);
        let (mut client_read, mut client_write) = tokio::io::split(client);
        let (mut server_read, mut server_write) = tokio::io::split(server);
        let (_, _, at_client, at_server) = tokio::try_join!(
            a.write(&mut client_write),
            b.write(&mut server_write),
            a.read(&mut client_read, b.len()),
            b.read(&mut server_read, a.len()),
        )?;
        assert!(at_server == bytes(0, a.len()) && at_client == bytes(0, b.len()));
        // One shuts down, or both at once, or both just go.
        let mut rest = Vec::new();
        match seed % 3 {
            0 => {
                client_write.shutdown().await?;
                server_read.read_to_end(&mut rest).await?;
            }
            1 => _ = tokio::join!(client_write.shutdown(), server_write.shutdown()),
            _ => {}
        }
        assert!(rest.is_empty());
        drop((client_read, client_write, server_read, server_write));
        net.quiet().await
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        /// Whatever is written arrives, once and in order, both ways at once on a bad network.
        #[test]
        fn bytes_arrive_once_and_in_order(
            sides in [side(), side()],
            seed in any::<u64>(),
            loss in prop_oneof![Just(0.0), 0.0..0.05f64],
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
            let result = runtime.expect("a runtime").block_on(both_ways(sides, seed, loss));
            prop_assert!(result.is_ok(), "{result:?}");
        }
    }
}
