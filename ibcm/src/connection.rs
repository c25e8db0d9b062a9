//! A reliable connection.

use ibdev::Buf;

use crate::accessors::accessors;
use crate::disconnect::Disconnect;
use crate::error::{OpError, PathError, RecvError};
use crate::established::Established;
use crate::handshake::Session;
use crate::message::Message;
use crate::path::Path;
use crate::split::{RecvHalf, SendHalf, split};
use crate::stream::ByteStream;

/// A reliable connection: messages arrive once, in order and whole. If both sides have chosen
/// [`Transport::Uc`](crate::Transport::Uc), some may not arrive at all.
///
/// All methods take `&self`, so one task may send while another receives.
///
/// ```
/// use ibcm::{Connection, Hca, Listener, ServiceId};
/// const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (server, client) = (Hca::open("soft").await?, Hca::open("soft").await?);
/// let listener = Listener::bind(SID).device(&server).await?;
/// let echo = tokio::spawn(async move {
///     let conn = listener.accept().await?.accept().await?;
///     while let Some(message) = conn.recv().await? {
///         conn.send(message.into_buf()).await?;
///     }
///     Ok::<_, ibcm::Error>(())
/// });
/// let path = client.path_to(server.gid()).service_id(SID).await?;
/// let conn = Connection::connect(path).await?;
/// conn.send_copy(b"hello").await?;
/// let reply = conn.recv().await?.ok_or("closed before the echo")?;
/// assert_eq!(&reply[..], b"hello");
/// conn.disconnect().await;
/// # Ok(echo.await??)
/// # }
/// ```
///
/// Dropped, it disconnects in the background: the whole DREQ exchange, without waiting for sends that have not
/// completed. Messages that were not read are lost and counted.
#[derive(Debug)]
pub struct Connection {
    conn: Established,
}

impl Connection {
    pub(crate) const fn new(session: Session) -> Self {
        Self { conn: Established::new(session) }
    }

    pub(crate) const fn from_held(conn: Established) -> Self {
        Self { conn }
    }

    pub(crate) const fn held(&self) -> &Established {
        &self.conn
    }

    /// Two halves, for two owners: one sends, one receives. The connection disconnects when the last of them is
    /// dropped.
    pub fn into_split(self) -> (SendHalf, RecvHalf) {
        split(self.conn)
    }

    /// A stream of bytes, which reads and writes as a socket of tokio does. Over an unreliable connection each read and write
    /// fails with [`Unsupported`](std::io::ErrorKind::Unsupported).
    pub fn into_stream(self) -> ByteStream {
        ByteStream::new(self.conn)
    }

    /// The next message; `None` when the peer has disconnected and all that it had sent was read.
    ///
    /// # Errors
    /// [`RecvError`]: the connection broke, or this side has closed it. What came before is given first.
    ///
    /// # Cancel safety
    /// A dropped future loses no message.
    pub async fn recv(&self) -> Result<Option<Message>, RecvError> {
        self.conn.recv().await
    }

    /// Posts a buffer of the program's for one message, behind the receives that are posted already: messages take
    /// buffers in the order in which they were posted. The [`Message`] that comes in it gives it back; dropped,
    /// it goes to its own pool, or is freed.
    ///
    /// As many may be posted at once as the connection has receive buffers of its own, `n`, but no more than the device's
    /// `max_qp_wr` leaves room for behind those: `min(2 * n, max_qp_wr) - n`.
    ///
    /// ```
    /// # use ibcm::{Connection, Hca, Listener, Recv, ServiceId};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (hca, sid) = (Hca::open("soft").await?, ServiceId::new(0x1000_0000_0000_0001));
    /// # let listener = Listener::bind(sid).device(&hca).await?;
    /// # let path = hca.path_to(hca.gid()).service_id(sid).await?;
    /// # let accepting = async { Ok::<_, ibcm::Error>(listener.accept().await?.accept().recv(Recv::buffers(1, 64)).await?) };
    /// # let dialing = async { Ok(Connection::connect(path).await?) };
    /// # let (peer, conn) = tokio::try_join!(dialing, accepting)?;
    /// let pool = hca.pool(4, 1 << 20).await?;
    /// conn.post_recv(pool.get().await?)?; // for the message behind the first one
    /// # peer.send_copy(b"header").await?;
    /// # peer.send_copy(&[7; 100_000]).await?;
    /// let header = conn.recv().await?.ok_or("closed")?; // in the connection's only buffer
    /// let body = conn.recv().await?.ok_or("closed")?.into_buf(); // in the pool's
    /// # assert_eq!((header.len(), body.len(), body.capacity()), (6, 100_000, 1 << 20));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`OpError`] with the buffer: [`OpCause::Invalid`](crate::OpCause::Invalid) if as many are posted,
    /// [`OpCause::Device`](crate::OpCause::Device) with a shared receive queue,
    /// [`OpCause::Closed`](crate::OpCause::Closed) once the connection has ended.
    pub fn post_recv(&self, buf: Buf) -> Result<(), OpError> {
        self.conn.post_recv(buf)
    }

    /// Active side: loads another path to the same peer, which the connection goes by if the one that it uses fails. Both
    /// queue pairs have it when this returns: the peer is asked (LAP, APR), then this side's follows.
    ///
    /// One is loaded at a time, and is used up when the connection migrates to it
    /// ([`ConnectionEvent::Migrated`](crate::ConnectionEvent)): then the next one can be loaded, the old path for instance.
    /// From the moment on at which a message has gone each way both queue pairs are ready to migrate.
    ///
    /// The peer has a second to answer, then it is asked again, as often as the REQ allowed retries; a Linux peer never
    /// answers.
    ///
    /// # Errors
    /// [`PathError`]: this device cannot have the path, the peer refused, or did not answer. The connection stays.
    ///
    /// # Cancel safety
    /// Dropped, it goes on in the background.
    pub async fn load_alternate_path(&self, path: &Path) -> Result<(), PathError> {
        self.conn.session().load_alternate_path(path).await.map(drop)
    }

    /// Disconnects: no new sends, then the posted ones complete, then the DREQ exchange. Gives a report and
    /// can't fail; may be repeated, and gives the same report.
    pub fn disconnect(&self) -> Disconnect<'_> {
        Disconnect::new(self.conn.session())
    }
}

accessors!(Connection);
