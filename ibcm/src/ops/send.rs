//! Sending messages.

use ibdev::{Buf, SendFlags};
use pin_project::pin_project;

use super::op::Op;
use super::operation;
use crate::connection::Connection;
use crate::data::Request;
use crate::established::Established;

/// A send operation: a builder that is itself the future of its completion. `T` is what it gives: the buffer,
/// or nothing for a copy.
///
/// It takes its place in the send queue when it is first polled; while the queue is full it waits, in order.
///
/// # Cancel safety
/// Dropped before it has its place, nothing happened and the buffer goes home. Later, it goes on; its buffer
/// goes home at the completion, and a failure ends the connection.
#[pin_project(!Unpin)]
#[must_use = "nothing is sent before it is awaited"]
pub struct SendOp<'a, T> {
    op: Op<'a, T>,
}

impl Connection {
    /// Sends the buffer as one message. Awaited, it gives the buffer back when the peer's device has the
    /// message.
    ///
    /// A peer that has no receive posted makes it wait (receiver-not-ready), by default for ever. A message longer
    /// than the peer's buffer breaks the connection.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError), with the buffer. [`OpCause::Invalid`](crate::OpCause::Invalid) for a message
    /// longer than the device can send: nothing was posted. [`OpCause::Status`](crate::OpCause::Status)
    /// [`REM_INV_REQ_ERR`](crate::Status::REM_INV_REQ_ERR) if it was too long for the peer,
    /// [`RNR_RETRY_EXC_ERR`](crate::Status::RNR_RETRY_EXC_ERR) if the peer had no receive for too long,
    /// [`RETRY_EXC_ERR`](crate::Status::RETRY_EXC_ERR) if it did not answer: the connection is broken.
    ///
    /// # Cancel safety
    /// Dropped before the message has its place in the send queue, nothing happened. Later, it is sent all the
    /// same; the buffer goes home when it is done, and a failure ends the connection.
    pub fn send(&self, buf: Buf) -> SendOp<'_, Buf> {
        SendOp::of_buf(self.held(), buf)
    }

    /// Sends a copy of the bytes as one message: inline if the device can, else by way of the connection's own
    /// buffers.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    ///
    /// # Cancel safety
    /// As [`send`](Self::send).
    pub fn send_copy<'a>(&'a self, data: &'a [u8]) -> SendOp<'a, ()> {
        SendOp::of_copy(self.held(), data)
    }
}

impl<'a> SendOp<'a, Buf> {
    pub(crate) fn of_buf(conn: &'a Established, buf: Buf) -> Self {
        Self { op: Op::with_buf(conn, Request::send(), buf, |done| done.buf) }
    }
}

impl<'a> SendOp<'a, ()> {
    pub(crate) fn of_copy(conn: &'a Established, data: &'a [u8]) -> Self {
        Self { op: Op::with_copy(conn, Request::send(), data, |_| Some(())) }
    }
}

impl<'a, T> SendOp<'a, T> {
    /// Sends these four bytes beside the message, as a number in network order.
    pub fn imm(mut self, imm: u32) -> Self {
        self.op.request().set_imm(imm);
        self
    }

    /// Wakes the peer even if it waits for solicited messages only.
    pub fn solicited(mut self) -> Self {
        self.op.request().set_flag(SendFlags::SOLICITED);
        self
    }
}

operation!(['a, T] SendOp<'a, T> => T);
