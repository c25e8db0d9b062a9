//! TCP in tokio.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::concurrently;
use super::ends::Ends;

/// Listeners, each on an address of its own: a pair of addresses has ports for half a second of connections only, then
/// TIME_WAIT holds them all.
const LISTENERS: u8 = 64;

/// Clients and listeners that accept whoever comes.
#[derive(Debug)]
pub(crate) struct Pair {
    listeners: Arc<[SocketAddr]>,
    next: Arc<AtomicUsize>,
}

impl Pair {
    pub(crate) fn open(ends: &Ends) -> io::Result<Self> {
        let listeners = ends.on_server(async {
            let mut listeners = Vec::new();
            for n in 1..=LISTENERS {
                let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 1, n), 0)).await?;
                listeners.push(listener.local_addr()?);
                tokio::spawn(accept(listener));
            }
            Ok::<_, io::Error>(listeners)
        })?;
        Ok(Self { listeners: listeners.into(), next: Arc::default() })
    }

    pub(crate) async fn run(&self, in_flight: u64, count: u64) {
        let (listeners, next) = (Arc::clone(&self.listeners), Arc::clone(&self.next));
        concurrently(in_flight, count, move || {
            let n = next.fetch_add(1, Ordering::Relaxed);
            connect(listeners[n % listeners.len()])
        })
        .await;
    }
}

async fn connect(listener: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(listener).await?;
    stream.shutdown().await?;
    match stream.read(&mut [0]).await? {
        0 => Ok(()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

async fn accept(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move { stream.read(&mut [0]).await });
    }
}
