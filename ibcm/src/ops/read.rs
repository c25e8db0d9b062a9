//! Reading the peer's memory.

use ibdev::{Buf, RemoteRegion};
use pin_project::pin_project;

use super::op::Op;
use super::operation;
use crate::connection::Connection;
use crate::data::Request;
use crate::established::Established;

/// An RDMA read: a builder that is itself the future of its completion, and gives the buffer with the data.
///
/// # Cancel safety
/// As [`SendOp`](crate::SendOp): dropped before it has its place in the send queue, nothing happened; later, it goes
/// on by itself.
#[pin_project(!Unpin)]
#[must_use = "nothing is read before it is awaited"]
pub struct ReadOp<'a> {
    op: Op<'a, Buf>,
}

impl Connection {
    /// Reads the whole of the peer's memory `from` into the buffer. Awaited, it gives the buffer, as long as `from` is;
    /// the peer's program learns nothing of it.
    ///
    /// As many reads and atomics are under way at once as both sides have agreed on when they connected; more wait in
    /// the send queue, and what is posted behind them waits, too.
    ///
    /// ```
    /// # use ibcm::{Access, Connection, Hca, Listener, RemoteRegion, ServiceId};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (hca, sid) = (Hca::open("soft").await?, ServiceId::new(0x1000_0000_0000_0001));
    /// # let listener = Listener::bind(sid).device(&hca).await?;
    /// # let path = hca.path_to(hca.gid()).service_id(sid).await?;
    /// # let region = hca.expose(4096, Access::REMOTE_READ | Access::REMOTE_WRITE).await?;
    /// # region.copy_from(64, b"key")?;
    /// # let advert = region.remote().to_bytes();
    /// # let accepting = async { Ok::<_, ibcm::Error>(listener.accept().await?.accept().private_data(&advert).await?) };
    /// # let dialing = async { Ok(Connection::connect(path).await?) };
    /// # let (conn, peer) = tokio::try_join!(dialing, accepting)?;
    /// let remote = RemoteRegion::from_bytes(conn.private_data())?; // the peer's program sent it along
    /// let data = conn.read(hca.alloc(512).await?, remote.slice(64, 3)?).await?;
    /// assert_eq!(&data[..], b"key");
    /// # drop(peer);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`OpError`](crate::OpError), with the buffer. [`OpCause::Invalid`](crate::OpCause::Invalid) if `from` is longer
    /// than the buffer's capacity, or if the peer serves no reads (its responder resources, or this side's
    /// [`initiator_depth`](crate::Connect::initiator_depth), are 0): nothing was posted.
    /// [`OpCause::Status`](crate::OpCause::Status) [`REM_ACCESS_ERR`](crate::Status::REM_ACCESS_ERR) if the peer does
    /// not expose that memory for reading: the connection is broken, and the buffer empty.
    ///
    /// # Cancel safety
    /// Dropped before it has its place in the send queue, nothing happened. Later, it is read all the same; the
    /// buffer goes home when it is done, and a failure ends the connection.
    pub fn read(&self, buf: Buf, from: RemoteRegion) -> ReadOp<'_> {
        ReadOp::new(self.held(), buf, from)
    }
}

impl<'a> ReadOp<'a> {
    pub(crate) fn new(conn: &'a Established, buf: Buf, from: RemoteRegion) -> Self {
        Self { op: Op::with_buf(conn, Request::read(&from), buf, |done| done.buf) }
    }
}

operation!(['a] ReadOp<'a> => Buf);
