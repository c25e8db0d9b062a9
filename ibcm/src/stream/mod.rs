//! A connection as a stream of bytes.

mod reading;
mod writing;

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use self::reading::Reading;
use self::writing::Writing;
use crate::accessors::accessors;
use crate::connection::Connection;
use crate::established::Established;
use crate::handshake::OnDrop;
use crate::proto::{Invalid, Transport};

/// A connection as a stream of bytes: tokio's [`AsyncRead`], [`AsyncBufRead`] and [`AsyncWrite`].
///
/// What is written is cut into messages of at most 4 KiB (see [`chunk`](Self::chunk)), what is read is the peer's messages
/// one behind the other. The peer may be any program that sends messages; empty ones, and the words of writes with
/// immediate data, are passed over.
///
/// ```
/// # use ibcm::{Connection, Hca, Listener, ServiceId};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (hca, sid) = (Hca::open("soft").await?, ServiceId::new(0x1000_0000_0000_0001));
/// # let listener = Listener::bind(sid).device(&hca).await?;
/// # let path = hca.path_to(hca.gid()).service_id(sid).await?;
/// use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, copy_buf};
/// let echo = tokio::spawn(async move {
///     let mut stream = listener.accept().await?.accept().await?.into_stream();
///     let mut line = String::new();
///     stream.read_line(&mut line).await?;
///     stream.write_all(line.to_uppercase().as_bytes()).await?;
///     stream.shutdown().await
/// });
/// let mut stream = Connection::connect(path).await?.into_stream();
/// stream.write_all(b"hello\n").await?;
/// let mut answer = String::new();
/// stream.read_to_string(&mut answer).await?;
/// assert_eq!(answer, "HELLO\n");
/// # Ok(echo.await??)
/// # }
/// ```
///
/// # Back-pressure and memory
/// Reading holds the connection's receive buffers, by default 16 of 4 KiB, and nothing else: bytes are copied out of
/// them, or lent by [`AsyncBufRead`]. Writing copies into at most 16 buffers as long as a chunk, 64 KiB, which are made
/// when first needed and kept. When the reader of one side does not read, the buffers of both sides fill, and then the
/// writer waits; a slow reader never ends the connection, unless a
/// [`rnr_retry_count`](crate::Connect::rnr_retry_count) below 7 was set. Each write is a message at least: collect small
/// ones (`BufWriter`, a codec), because each takes one of the peer's receive buffers.
///
/// # The end
/// `flush` ends when the peer's device has all that was written. `shutdown` flushes, however long that takes, and then
/// disconnects. There is no half-close: what the peer has not sent by then is lost, and reading gives what has come and
/// then the end of the stream. When the peer disconnects, reading gives what it had sent and then the end of the stream,
/// and writing fails with [`BrokenPipe`](io::ErrorKind::BrokenPipe). A connection that breaks is an error on both
/// ([`ConnectionReset`](io::ErrorKind::ConnectionReset)), never an end of the stream.
///
/// Dropped, it sends what was written for up to 10 s in the background, and then disconnects. Only `shutdown` tells
/// whether it arrived.
///
/// # Cancel safety
/// `read`, `write`, `fill_buf` and `flush` are cancel-safe: a dropped future has read or written nothing. A `shutdown` whose future
/// is dropped goes on when it is called again, or in the background when the stream is dropped.
pub struct ByteStream {
    conn: Established,
    read: Reading,
    write: Writing,
}

impl ByteStream {
    pub(crate) fn new(mut conn: Established) -> Self {
        conn.set_on_drop(OnDrop::Drain);
        let (read, write) = (Reading::new(&conn), Writing::new(&conn));
        Self { conn, read, write }
    }

    /// The most bytes of one message. Default 4096. The peer's receive buffers must be at least as long: a
    /// longer message breaks the connection.
    ///
    /// # Errors
    /// [`Invalid`] for 0, and for more than the device can send.
    pub fn chunk(mut self, len: usize) -> Result<Self, Invalid> {
        if len == 0 {
            return Err(Invalid::at_least("chunk", 0, 1));
        }
        let longest = self
            .conn
            .slot()
            .with(self.conn.shared(), |state| state.queues.as_ref().map(|queues| queues.longest_message()));
        if let Some(longest) = longest {
            Invalid::at_most("chunk", len as u64, longest)?;
        }
        self.write.set_chunk(&self.conn, len);
        Ok(self)
    }

    /// What has come and was not read yet of the message that is being read.
    pub fn buffer(&self) -> &[u8] {
        self.read.rest()
    }

    /// The connection. What [`buffer`](Self::buffer) shows is lost; what was written and not flushed goes on.
    pub fn into_inner(self) -> Connection {
        let Self { mut conn, write, .. } = self;
        write.leave(&conn);
        conn.set_on_drop(OnDrop::Abandon);
        Connection::from_held(conn)
    }
}

accessors!(ByteStream);

/// What is lost on an unreliable connection leaves no gap that a stream could show.
fn check_reliable(conn: &Established) -> io::Result<()> {
    match conn.session().transport() {
        Transport::Rc => Ok(()),
        other => {
            let words = format!("a byte stream needs a reliable connection, this one is {other}");
            Err(io::Error::new(io::ErrorKind::Unsupported, words))
        }
    }
}

impl AsyncBufRead for ByteStream {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let Self { conn, read, write } = self.get_mut();
        check_reliable(conn)?;
        ready!(read.poll_fill(conn, write.is_closing(), cx))?;
        Poll::Ready(Ok(read.rest()))
    }

    fn consume(self: Pin<&mut Self>, count: usize) {
        self.get_mut().read.consume(count);
    }
}

impl AsyncRead for ByteStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let bytes = ready!(self.as_mut().poll_fill_buf(cx))?;
        let count = bytes.len().min(into.remaining());
        into.put_slice(&bytes[..count]);
        self.consume(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ByteStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self { conn, write, .. } = self.get_mut();
        check_reliable(conn)?;
        write.poll_write(conn, slices, cx)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { conn, write, .. } = self.get_mut();
        write.poll_flush(conn, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { conn, write, .. } = self.get_mut();
        write.poll_shutdown(conn, cx)
    }
}

impl fmt::Debug for ByteStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteStream")
            .field("peer", &self.peer())
            .field("unread", &self.buffer().len())
            .field("unacknowledged", &self.write.posted())
            .finish_non_exhaustive()
    }
}
