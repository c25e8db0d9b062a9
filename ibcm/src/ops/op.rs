//! The machine that all operations are: a place in line, the post, the completion.

use std::fmt;
use std::task::{Context, Poll, ready};

use futures::future::BoxFuture;
use ibdev::{Buf, DeviceError};
use tokio::task::coop::poll_proceed;

use crate::connection::Connection;
use crate::data::{CopyBuf, Done, Kind, Place, Posting, Queues, Request, Shelf};
use crate::error::{OpCause, OpError};
use crate::handshake::poll_slot;
use crate::parked::Ticket;
use crate::shared::{Hungry, Shared, Unavailable};
use crate::slot::{Slot, SlotState};

/// An operation on its way: into the send queue, then to its completion, which `finish` makes a `T` of.
///
/// It takes its place when it is first polled; while the queue is full it waits in line. Dropped before it has its
/// place, nothing happened and the buffer goes home. Later, it goes on by itself; its buffer goes home at the
/// completion, and a failure ends the connection.
pub(crate) struct Op<'a, T> {
    conn: &'a Connection,
    pub(super) request: Request,
    step: Step<'a>,
    /// In the line for the send queue.
    place: Place,
    ticket: Ticket,
    finish: Finish<T>,
}

/// What an operation gives; `None` if its buffer is lost.
pub(super) type Finish<T> = fn(Done) -> Option<T>;

enum Step<'a> {
    /// To be copied into a buffer of the connection's own.
    Copy(&'a [u8]),
    /// The buffer for the copy is being made.
    Allocating {
        data: &'a [u8],
        shelf: Shelf,
        making: BoxFuture<'static, Result<Vec<Buf>, DeviceError>>,
    },
    /// To be posted. A buffer of the connection's own has its shelf.
    Buf(Buf, Option<Shelf>),
    /// In the send queue.
    Posted(usize),
    Over,
}

/// What was found when looking at the queues.
enum Found {
    Copy(CopyBuf, Option<crate::memory::Memory>),
    Posted { key: usize, next: Option<std::task::Waker> },
    InLine,
    Refused(OpCause, Option<Buf>),
}

impl<'a, T> Op<'a, T> {
    /// With the program's buffer.
    pub(super) fn with_buf(conn: &'a Connection, request: Request, buf: Buf, finish: Finish<T>) -> Self {
        Self::new(conn, request, Step::Buf(buf, None), finish)
    }

    /// With a buffer of the connection's own, which has `data` in it.
    pub(super) fn with_copy(
        conn: &'a Connection,
        request: Request,
        data: &'a [u8],
        finish: Finish<T>,
    ) -> Self {
        Self::new(conn, request, Step::Copy(data), finish)
    }

    fn new(conn: &'a Connection, request: Request, step: Step<'a>, finish: Finish<T>) -> Self {
        let ticket = Ticket::new(&conn.slot().parked);
        Self { conn, request, step, place: None, ticket, finish }
    }

    /// Posts and waits for the completion.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, OpError>> {
        let budget = ready!(poll_proceed(cx));
        let key = match ready!(self.poll_steps(cx)) {
            Ok(key) => key,
            Err(error) => {
                budget.made_progress();
                return Poll::Ready(Err(error));
            }
        };
        let (shared, slot) = (self.conn.shared(), self.conn.slot());
        let done = ready!(poll_done(shared, slot, &mut self.ticket, key, cx));
        budget.made_progress();
        self.step = Step::Over;
        Poll::Ready(finish(done, self.finish))
    }

    /// Posts; gives the key of the operation, which is no longer this one's affair then.
    pub(super) fn poll_post(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, OpError>> {
        let budget = ready!(poll_proceed(cx));
        let posted = ready!(self.poll_steps(cx));
        budget.made_progress();
        self.step = Step::Over;
        Poll::Ready(posted)
    }

    pub(super) fn connection(&self) -> &'a Connection {
        self.conn
    }

    pub(super) fn finish(&self) -> Finish<T> {
        self.finish
    }

    /// Until it is in the send queue, or refused: then nobody waits behind it in the line.
    fn poll_steps(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, OpError>> {
        loop {
            match std::mem::replace(&mut self.step, Step::Over) {
                Step::Copy(data) => {
                    match self.look(cx, |queues, place, request| {
                        match queues.copy_buf(place, request, data.len()) {
                            Ok(CopyBuf::Wait) => None,
                            Ok(found) => Some(Found::Copy(found, queues.memory().cloned())),
                            Err(cause) => Some(Found::Refused(cause, None)),
                        }
                    }) {
                        Some(Found::Copy(CopyBuf::Ready(buf, shelf), _)) => {
                            self.step = Step::Buf(filled(buf, data), Some(shelf));
                        }
                        Some(Found::Copy(CopyBuf::Allocate(len, shelf), Some(memory))) => {
                            let making = Box::pin(async move { memory.take(1, len).await });
                            self.step = Step::Allocating { data, shelf, making };
                        }
                        Some(Found::Refused(cause, _)) => return Poll::Ready(Err(self.refused(cause, None))),
                        _ => {
                            self.step = Step::Copy(data);
                            return Poll::Pending;
                        }
                    }
                }
                Step::Allocating { data, shelf, mut making } => {
                    let Poll::Ready(made) = making.as_mut().poll(cx) else {
                        self.step = Step::Allocating { data, shelf, making };
                        return Poll::Pending;
                    };
                    match made.map(|mut bufs| bufs.pop()) {
                        Ok(Some(buf)) => self.step = Step::Buf(filled(buf, data), Some(shelf)),
                        failed => {
                            give_back(self.conn, shelf, None);
                            let gone = DeviceError::Unsupported { what: "so long a buffer" };
                            let cause = OpCause::Device(failed.err().unwrap_or(gone));
                            return Poll::Ready(Err(self.refused(cause, None)));
                        }
                    }
                }
                Step::Buf(buf, own) => {
                    let mut held = Some(buf);
                    let found = self.look(cx, |queues, place, request| {
                        match queues.post(place, request, held.take()?, own) {
                            Posting::Posted { key, next } => Some(Found::Posted { key, next }),
                            Posting::Wait(buf) => {
                                held = Some(buf);
                                None
                            }
                            Posting::Refused(cause, buf) => Some(Found::Refused(cause, buf)),
                        }
                    });
                    match found {
                        Some(Found::Posted { key, next }) => {
                            self.step = Step::Posted(key);
                            if let Some(next) = next {
                                next.wake();
                            }
                        }
                        Some(Found::Refused(cause, buf)) => {
                            let buf = match (own, buf.or(held)) {
                                (Some(shelf), buf) => {
                                    give_back(self.conn, shelf, buf);
                                    None
                                }
                                (None, buf) => buf,
                            };
                            return Poll::Ready(Err(self.refused(cause, buf)));
                        }
                        _ => {
                            if let Some(buf) = held {
                                self.step = Step::Buf(buf, own);
                            }
                            return Poll::Pending;
                        }
                    }
                }
                Step::Posted(key) => {
                    self.step = Step::Posted(key);
                    return Poll::Ready(Ok(key));
                }
                Step::Over => unreachable!("polled after it was ready"),
            }
        }
    }

    /// Tries something with the queues; `None` if it has to be tried again later. The task is woken then: by a
    /// completion if it is the first in the line, else by the one before it.
    fn look(
        &mut self,
        cx: &mut Context<'_>,
        mut attempt: impl FnMut(&mut Queues, &mut Place, &Request) -> Option<Found>,
    ) -> Option<Found> {
        let (shared, slot) = (self.conn.shared(), self.conn.slot());
        let (place, request) = (&mut self.place, &self.request);
        let mut next = |state: &mut SlotState| {
            let queues = match open(state) {
                Ok(queues) => queues,
                Err(cause) => return Some(Found::Refused(cause, None)),
            };
            match attempt(queues, place, request) {
                None if queues.wait_in_line(*place, cx.waker()) => None,
                None => Some(Found::InLine),
                found => found,
            }
        };
        match poll_slot(shared, slot, &mut self.ticket, cx, &mut next) {
            Poll::Ready(Found::InLine) | Poll::Pending => None,
            Poll::Ready(found) => Some(found),
        }
    }

    /// It will not be posted: the next one in line goes first.
    fn refused(&mut self, cause: OpCause, mut buf: Option<Buf>) -> OpError {
        leave_line(self.conn, &mut self.place);
        if let Some(buf) = &mut buf
            && self.request.kind() == Kind::Read
            && !matches!(cause, OpCause::Invalid(_))
        {
            buf.clear();
        }
        OpError { cause, buf }
    }

    pub(super) fn fmt(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = name.split(['<', ' ']).next().unwrap_or(name);
        f.debug_struct(name).field("request", &self.request).finish_non_exhaustive()
    }
}

impl<T> Drop for Op<'_, T> {
    fn drop(&mut self) {
        leave_line(self.conn, &mut self.place);
        match std::mem::replace(&mut self.step, Step::Over) {
            Step::Posted(key) => detach(self.conn.shared(), self.conn.slot(), key),
            Step::Allocating { shelf, .. } => give_back(self.conn, shelf, None),
            Step::Buf(buf, Some(shelf)) => give_back(self.conn, shelf, Some(buf)),
            Step::Buf(_, None) | Step::Copy(_) | Step::Over => {}
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
    let cause = broken.map_or(OpCause::Closed, OpCause::Status);
    Poll::Ready(Err(OpError { cause, buf: done.buf }))
}

/// What a completed operation gives.
pub(super) fn finish<T>(done: Result<Done, OpError>, finish: Finish<T>) -> Result<T, OpError> {
    finish(done?).ok_or(OpError { cause: OpCause::Closed, buf: None })
}

/// Nobody waits for a posted operation any more.
pub(super) fn detach(shared: &Shared, slot: &Slot, key: usize) {
    let untended = slot.with(shared, |state| Some(state.queues.as_mut()?.detach(key)));
    if untended == Some(true) {
        shared.feed(Hungry::Connection(slot.handle));
    }
}

/// The queues, if new operations are taken.
fn open(state: &mut SlotState) -> Result<&mut Queues, OpCause> {
    let closed = state.disconnecting || state.end.is_some();
    match &mut state.queues {
        Some(queues) => match queues.broken() {
            Some(status) => Err(OpCause::Status(status)),
            None if closed => Err(OpCause::Closed),
            None => Ok(queues),
        },
        None => Err(OpCause::Closed),
    }
}

fn filled(mut buf: Buf, data: &[u8]) -> Buf {
    buf.clear();
    buf.put_slice(data);
    buf
}

/// Returns a buffer of the connection's own, or says that it was not made.
fn give_back(conn: &Connection, shelf: Shelf, buf: Option<Buf>) {
    conn.slot().with(conn.shared(), |state| {
        if let Some(queues) = &mut state.queues {
            queues.return_copy_buf(shelf, buf);
        }
    });
}

/// Lets the next one go first.
fn leave_line(conn: &Connection, place: &mut Place) {
    if place.is_none() {
        return;
    }
    let next = conn.slot().with(conn.shared(), |state| state.queues.as_mut()?.leave_line(place));
    if let Some(next) = next {
        next.wake();
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
