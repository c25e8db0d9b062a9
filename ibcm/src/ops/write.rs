//! Writing the peer's memory.

use ibdev::{Buf, RemoteRegion};
use pin_project::pin_project;

use super::op::Op;
use super::operation;
use crate::connection::Connection;
use crate::data::Request;
use crate::established::Established;

/// An RDMA write: a builder that is itself the future of its completion, and gives the buffer back.
///
/// # Cancel safety
/// As [`SendOp`](crate::SendOp): dropped before it has its place in the send queue, nothing happened; later, it goes
/// on by itself.
#[pin_project(!Unpin)]
#[must_use = "nothing is written before it is awaited"]
pub struct WriteOp<'a> {
    op: Op<'a, Buf>,
}

impl Connection {
    /// Writes the buffer to the front of the peer's memory `to`. Awaited, it gives the buffer back when the peer's
    /// device has the data; the peer's program learns nothing of it, unless [`imm`](WriteOp::imm) is set.
    ///
    /// What is posted behind it is seen behind it: a message that is received tells that what was written before it is
    /// there.
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
    /// let mut buf = hca.alloc(4).await?;
    /// buf.copy_from_slice(b"word");
    /// let buf = conn.write(buf, remote.slice(8, 4)?).await?; // in the peer's memory, and here again
    /// conn.write(buf, remote.slice(12, 4)?).imm(12).await?; // once more, and the peer's program is told
    /// # let message = peer.recv().await?.ok_or("closed")?;
    /// # assert_eq!((message.len(), message.imm()), (0, Some(12)));
    /// # let mut seen = [0; 8];
    /// # region.copy_to(8, &mut seen)?;
    /// # assert_eq!(&seen, b"wordword");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`OpError`](crate::OpError), with the buffer. [`OpCause::Invalid`](crate::OpCause::Invalid) for a buffer longer
    /// than `to` or than the device can write: nothing was posted. [`OpCause::Status`](crate::OpCause::Status)
    /// [`REM_ACCESS_ERR`](crate::Status::REM_ACCESS_ERR) if the peer does not expose that memory for writing: the
    /// connection is broken.
    ///
    /// # Cancel safety
    /// Dropped before it has its place in the send queue, nothing happened. Later, it is written all the same; the
    /// buffer goes home when it is done, and a failure ends the connection.
    pub fn write(&self, buf: Buf, to: RemoteRegion) -> WriteOp<'_> {
        WriteOp::new(self.held(), buf, to)
    }
}

impl<'a> WriteOp<'a> {
    pub(crate) fn new(conn: &'a Established, buf: Buf, to: RemoteRegion) -> Self {
        Self { op: Op::with_buf(conn, Request::write(&to), buf, |done| done.buf) }
    }

    /// Tells the peer when it is written: it receives a [`Message`](crate::Message) with these four bytes as a number
    /// in network order and an empty body, in order with what is sent. As with a send, the peer needs a
    /// receive posted for it.
    pub fn imm(mut self, imm: u32) -> Self {
        self.op.request().set_imm(imm);
        self
    }
}

operation!(['a] WriteOp<'a> => Buf);
