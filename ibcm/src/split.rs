//! Halves of a connection.

use std::sync::Arc;

use ibdev::{Buf, RemoteRegion};

use crate::accessors::accessors;
use crate::disconnect::Disconnect;
use crate::error::{OpError, RecvError};
use crate::established::Established;
use crate::message::Message;
use crate::ops::{AtomicOp, ReadOp, SendOp, WriteOp};

/// The half of a [`Connection`](crate::Connection) that sends, and that reads and writes the peer's memory. Clones are
/// cheap, and are the same half.
///
/// The connection lives as long as any half: when the last one is dropped, it disconnects in the background as a dropped
/// connection does. There is no half-close: a peer learns nothing of a dropped half, and [`disconnect`](Self::disconnect)
/// on either half ends both.
///
/// ```
/// # use ibcm::{Connection, Hca, Listener, ServiceId};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (hca, sid) = (Hca::open("soft").await?, ServiceId::new(0x1000_0000_0000_0001));
/// # let listener = Listener::bind(sid).device(&hca).await?;
/// # let path = hca.path_to(hca.gid()).service_id(sid).await?;
/// # let accepting = async { Ok::<_, ibcm::Error>(listener.accept().await?.accept().await?) };
/// # let dialing = async { Ok(Connection::connect(path).await?) };
/// # let (conn, peer) = tokio::try_join!(dialing, accepting)?;
/// let (send, recv) = conn.into_split();
/// let printing = tokio::spawn(async move {
///     while let Some(message) = recv.recv().await? {
///         println!("{} bytes", message.len());
///     }
///     Ok::<_, ibcm::Error>(())
/// });
/// # peer.send_copy(b"for the other half").await?;
/// for part in ["one", "two"] {
///     let send = send.clone();
///     tokio::spawn(async move { send.send_copy(part.as_bytes()).await });
/// }
/// # for _ in 0..2 { peer.recv().await?.ok_or("closed")?; }
/// # peer.disconnect().await;
/// printing.await??; // until the peer disconnects
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct SendHalf {
    conn: Arc<Established>,
}

/// The half of a [`Connection`](crate::Connection) that receives.
///
/// Dropped while a [`SendHalf`] lives, nobody reads any more: messages fill the receive buffers, and then the peer waits
/// as for a slow reader. See there for the rest.
#[derive(Debug)]
pub struct RecvHalf {
    conn: Arc<Established>,
}

pub(crate) fn split(conn: Established) -> (SendHalf, RecvHalf) {
    let conn = Arc::new(conn);
    (SendHalf { conn: Arc::clone(&conn) }, RecvHalf { conn })
}

impl SendHalf {
    /// Sends the buffer as one message: [`Connection::send`](crate::Connection::send).
    pub fn send(&self, buf: Buf) -> SendOp<'_, Buf> {
        SendOp::of_buf(&self.conn, buf)
    }

    /// Sends a copy of the bytes as one message: [`Connection::send_copy`](crate::Connection::send_copy).
    pub fn send_copy<'a>(&'a self, data: &'a [u8]) -> SendOp<'a, ()> {
        SendOp::of_copy(&self.conn, data)
    }

    /// Writes the buffer to the peer's memory: [`Connection::write`](crate::Connection::write).
    pub fn write(&self, buf: Buf, to: RemoteRegion) -> WriteOp<'_> {
        WriteOp::new(&self.conn, buf, to)
    }

    /// Reads the peer's memory into the buffer: [`Connection::read`](crate::Connection::read).
    pub fn read(&self, buf: Buf, from: RemoteRegion) -> ReadOp<'_> {
        ReadOp::new(&self.conn, buf, from)
    }

    /// Adds to a word of the peer's memory: [`Connection::fetch_add`](crate::Connection::fetch_add).
    pub fn fetch_add(&self, at: RemoteRegion, add: u64) -> AtomicOp<'_> {
        AtomicOp::fetch_add(&self.conn, at, add)
    }

    /// Replaces a word of the peer's memory: [`Connection::compare_swap`](crate::Connection::compare_swap).
    pub fn compare_swap(&self, at: RemoteRegion, compare: u64, swap: u64) -> AtomicOp<'_> {
        AtomicOp::compare_swap(&self.conn, at, compare, swap)
    }
}

impl RecvHalf {
    /// The next message; `None` when the peer has disconnected and all that it had sent was read:
    /// [`Connection::recv`](crate::Connection::recv).
    ///
    /// # Errors
    /// [`RecvError`]: the connection broke, or this side has closed it. What came before is given first.
    ///
    /// # Cancel safety
    /// A dropped future loses no message.
    pub async fn recv(&self) -> Result<Option<Message>, RecvError> {
        self.conn.recv().await
    }

    /// Posts a buffer of the program's for one message: [`Connection::post_recv`](crate::Connection::post_recv).
    ///
    /// # Errors
    /// [`OpError`] with the buffer.
    pub fn post_recv(&self, buf: Buf) -> Result<(), OpError> {
        self.conn.post_recv(buf)
    }
}

/// What both halves have.
macro_rules! half {
    ($half:ty) => {
        accessors!($half);

        impl $half {
            /// Disconnects, and so ends both halves: [`Connection::disconnect`](crate::Connection::disconnect).
            pub fn disconnect(&self) -> Disconnect<'_> {
                Disconnect::new(self.conn.session())
            }
        }
    };
}

half!(SendHalf);
half!(RecvHalf);
