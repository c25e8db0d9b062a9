//! The machine that all operations are: a way into the send queue, then the completion.

use std::fmt;
use std::io::IoSlice;
use std::task::{Context, Poll, ready};

use ibdev::{Buf, DeviceError};
use tokio::task::coop::poll_proceed;

use super::entry::{Entry, Source};
use crate::data::{Done, Request};
use crate::error::{OpCause, OpError};
use crate::established::Established;
use crate::handshake::poll_slot;
use crate::parked::Ticket;
use crate::shared::{Hungry, Shared, Unavailable};
use crate::slot::{Slot, SlotState};

/// An operation on its way: into the send queue, then to its completion, which `finish` makes a `T` of.
///
/// Dropped before it has its place in the queue, nothing happened and the buffer goes home. Later, it goes on by
/// itself; its buffer goes home at the completion, and a failure ends the connection.
pub(crate) struct Op<'a, T> {
    conn: &'a Established,
    /// What is copied, if the program gave no buffer.
    data: &'a [u8],
    entry: Entry,
    /// In the send queue, under this key.
    posted: Option<usize>,
    finish: Finish<T>,
}

/// What an operation gives; `None` if its buffer is lost.
pub(super) type Finish<T> = fn(Done) -> Option<T>;

impl<'a, T> Op<'a, T> {
    /// With the program's buffer.
    pub(super) fn with_buf(conn: &'a Established, request: Request, buf: Buf, finish: Finish<T>) -> Self {
        let entry = Entry::new(conn.slot(), request, Some(buf));
        Self { conn, data: &[], entry, posted: None, finish }
    }

    /// With a buffer of the connection's own, which has `data` in it.
    pub(super) fn with_copy(
        conn: &'a Established,
        request: Request,
        data: &'a [u8],
        finish: Finish<T>,
    ) -> Self {
        Self { conn, data, entry: Entry::new(conn.slot(), request, None), posted: None, finish }
    }

    pub(super) fn request(&mut self) -> &mut Request {
        &mut self.entry.request
    }

    /// Posts and waits for the completion.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, OpError>> {
        let budget = ready!(poll_proceed(cx));
        let key = match self.posted {
            Some(key) => key,
            None => match ready!(self.poll_entry(cx)) {
                Ok(key) => *self.posted.insert(key),
                Err(error) => {
                    budget.made_progress();
                    return Poll::Ready(Err(error));
                }
            },
        };
        let (shared, slot) = (self.conn.shared(), self.conn.slot());
        let done = ready!(poll_done(shared, slot, self.entry.ticket(), key, cx));
        budget.made_progress();
        self.posted = None;
        Poll::Ready(finish(done, self.finish))
    }

    /// Posts; gives the key of the operation, which is no longer this one's affair then.
    pub(super) fn poll_post(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, OpError>> {
        let budget = ready!(poll_proceed(cx));
        let posted = ready!(self.poll_entry(cx));
        budget.made_progress();
        Poll::Ready(posted)
    }

    fn poll_entry(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, OpError>> {
        let source = Source { slices: &[IoSlice::new(self.data)], len: self.data.len() };
        self.entry.poll(self.conn, source, cx)
    }

    pub(super) fn connection(&self) -> &'a Established {
        self.conn
    }

    pub(super) fn finish(&self) -> Finish<T> {
        self.finish
    }

    pub(super) fn fmt(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = name.split(['<', ' ']).next().unwrap_or(name);
        f.debug_struct(name).field("request", &self.entry.request).finish_non_exhaustive()
    }
}

impl<T> Drop for Op<'_, T> {
    fn drop(&mut self) {
        match self.posted {
            Some(key) => detach(self.conn.shared(), self.conn.slot(), key),
            None => self.entry.abandon(self.conn),
        }
    }
}

/// Waits for the completion of a posted operation. A failure comes with what broke the connection.
pub(super) fn poll_done(
    shared: &Shared,
    slot: &Slot,
    ticket: &mut Ticket,
    key: usize,
    cx: &mut Context<'_>,
) -> Poll<Result<Done, OpError>> {
    let mut next = |state: &mut SlotState| {
        let queues = state.queues.as_mut()?;
        let done = queues.take_done(key)?;
        Some((done, queues.broken()))
    };
    let (done, broken) = ready!(poll_slot(shared, slot, ticket, cx, &mut next));
    if done.status.is_ok() {
        return Poll::Ready(Ok(done));
    }
    let cause = broken.map_or(OpCause::Closed, OpCause::from);
    Poll::Ready(Err(OpError { cause, buf: done.buf }))
}

/// What a completed operation gives.
pub(super) fn finish<T>(done: Result<Done, OpError>, finish: Finish<T>) -> Result<T, OpError> {
    finish(done?).ok_or(OpError { cause: OpCause::Closed, buf: None })
}

/// Nobody waits for a posted operation any more.
pub(crate) fn detach(shared: &Shared, slot: &Slot, key: usize) {
    let untended = slot.with(shared, |state| Some(state.queues.as_mut()?.detach(key)));
    if untended == Some(true) {
        shared.feed(Hungry::Connection(slot.handle));
    }
}

impl From<Unavailable> for OpCause {
    fn from(unavailable: Unavailable) -> Self {
        match unavailable {
            Unavailable::Gone => Self::Device(DeviceError::Gone),
            Unavailable::Closed => Self::Closed,
        }
    }
}
