//! Writing the peer's memory.

use ibdev::{Buf, RemoteRegion};
use pin_project::pin_project;

use super::op::Op;
use super::operation;
use crate::connection::Connection;
use crate::data::Request;

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
        WriteOp { op: Op::with_buf(self, Request::write(&to), buf, |done| done.buf) }
    }
}

impl<'a> WriteOp<'a> {
    /// Tells the peer when it is written: it receives a [`Message`](crate::Message) with these four bytes as a number
    /// in network order and an empty body, in order with what is sent. As with a send, the peer needs a
    /// receive posted for it.
    pub fn imm(mut self, imm: u32) -> Self {
        self.op.request.set_imm(imm);
        self
    }
}

operation!(['a] WriteOp<'a> => Buf);
