//! An operation's way into the send queue: a place in line, a buffer, the post.

use std::io::IoSlice;
use std::task::{Context, Poll, ready};

use futures::future::BoxFuture;
use ibdev::{Buf, DeviceError};

use crate::data::{CopyBuf, Kind, Place, Posting, Queues, Request, Shelf};
use crate::error::{OpCause, OpError};
use crate::established::Established;
use crate::handshake::poll_slot;
use crate::memory::Memory;
use crate::parked::Ticket;
use crate::slot::{Slot, SlotState};
use crate::sync::Exclusive;

/// An operation that is not in the send queue yet.
///
/// It takes its place when it is first polled; while the queue is full it waits in line. Who drops it has to call
/// [`Entry::abandon`] before.
pub(crate) struct Entry {
    pub(super) request: Request,
    step: Step,
    /// In the line for the send queue.
    place: Place,
    ticket: Ticket,
}

type Making = Exclusive<BoxFuture<'static, Result<Vec<Buf>, DeviceError>>>;

enum Step {
    /// To be copied into a buffer of the connection's own.
    Copy,
    /// The buffer for the copy is being made.
    Allocating {
        shelf: Shelf,
        making: Making,
    },
    /// To be posted. A buffer of the connection's own has its shelf.
    Buf(Buf, Option<Shelf>),
    Over,
}

/// What is to be copied: the first `len` bytes of the slices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) slices: &'a [IoSlice<'a>],
    pub(crate) len: usize,
}

/// What was found when looking at the queues.
enum Found {
    Copy(CopyBuf, Option<Memory>),
    Posted { key: usize, next: Option<std::task::Waker> },
    InLine,
    Refused(OpCause, Option<Buf>),
}

impl Entry {
    /// With the program's buffer, which is what is sent, or without: then a copy is.
    pub(crate) fn new(slot: &Slot, request: Request, buf: Option<Buf>) -> Self {
        let step = buf.map_or(Step::Copy, |buf| Step::Buf(buf, None));
        Self { request, step, place: None, ticket: Ticket::new(&slot.parked) }
    }

    /// Where the task is parked that polls it.
    pub(crate) fn ticket(&mut self) -> &mut Ticket {
        &mut self.ticket
    }

    /// Until it is in the send queue: then it has the key of the operation and is over. Or it is refused: then nobody
    /// waits behind it in the line.
    pub(crate) fn poll(
        &mut self,
        conn: &Established,
        source: Source<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<usize, OpError>> {
        loop {
            let next = match std::mem::replace(&mut self.step, Step::Over) {
                Step::Copy => self.find_buf(conn, source, cx),
                Step::Allocating { shelf, making } => self.allocate(conn, source, cx, shelf, making),
                Step::Buf(buf, own) => return self.post(conn, cx, buf, own),
                Step::Over => unreachable!("polled after it was ready"),
            };
            self.step = ready!(next)?;
        }
    }

    /// A buffer of the connection's own for the copy, or the making of one.
    fn find_buf(
        &mut self,
        conn: &Established,
        source: Source<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Step, OpError>> {
        let found =
            self.look(conn, cx, |queues, place, request| match queues.copy_buf(place, request, source.len) {
                Ok(CopyBuf::Wait) => None,
                Ok(found) => Some(Found::Copy(found, queues.memory().cloned())),
                Err(cause) => Some(Found::Refused(cause, None)),
            });
        match found {
            Some(Found::Copy(CopyBuf::Ready(buf, shelf), _)) => {
                Poll::Ready(Ok(Step::Buf(source.copy(buf), Some(shelf))))
            }
            Some(Found::Copy(CopyBuf::Allocate(len, shelf), Some(memory))) => {
                let making: BoxFuture<'static, _> = Box::pin(async move { memory.take(1, len).await });
                Poll::Ready(Ok(Step::Allocating { shelf, making: Exclusive::new(making) }))
            }
            Some(Found::Refused(cause, _)) => Poll::Ready(Err(self.refused(conn, cause, None))),
            _ => {
                self.step = Step::Copy;
                Poll::Pending
            }
        }
    }

    /// Waits for the buffer that is being made.
    fn allocate(
        &mut self,
        conn: &Established,
        source: Source<'_>,
        cx: &mut Context<'_>,
        shelf: Shelf,
        mut making: Making,
    ) -> Poll<Result<Step, OpError>> {
        let Poll::Ready(made) = making.get_mut().as_mut().poll(cx) else {
            self.step = Step::Allocating { shelf, making };
            return Poll::Pending;
        };
        Poll::Ready(match made.map(|mut bufs| bufs.pop()) {
            Ok(Some(buf)) => Ok(Step::Buf(source.copy(buf), Some(shelf))),
            failed => {
                give_back(conn, shelf, None);
                let none = DeviceError::Unsupported { what: "so long a buffer" };
                let cause = OpCause::Device(failed.err().unwrap_or(none));
                Err(self.refused(conn, cause, None))
            }
        })
    }

    /// Posts the buffer, which is the program's or has its shelf, when it is its turn.
    fn post(
        &mut self,
        conn: &Established,
        cx: &mut Context<'_>,
        buf: Buf,
        own: Option<Shelf>,
    ) -> Poll<Result<usize, OpError>> {
        let mut held = Some(buf);
        let found = self.look(conn, cx, |queues, place, request| {
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
                if let Some(next) = next {
                    next.wake();
                }
                Poll::Ready(Ok(key))
            }
            Some(Found::Refused(cause, buf)) => {
                let buf = match (own, buf.or(held)) {
                    (Some(shelf), buf) => {
                        give_back(conn, shelf, buf);
                        None
                    }
                    (None, buf) => buf,
                };
                Poll::Ready(Err(self.refused(conn, cause, buf)))
            }
            _ => {
                if let Some(buf) = held {
                    self.step = Step::Buf(buf, own);
                }
                Poll::Pending
            }
        }
    }

    /// Tries something with the queues; `None` if it has to be tried again later. The task is woken then: by a
    /// completion if it is the first in the line, else by the one before it.
    fn look(
        &mut self,
        conn: &Established,
        cx: &mut Context<'_>,
        mut attempt: impl FnMut(&mut Queues, &mut Place, &Request) -> Option<Found>,
    ) -> Option<Found> {
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
        match poll_slot(conn.shared(), conn.slot(), &mut self.ticket, cx, &mut next) {
            Poll::Ready(Found::InLine) | Poll::Pending => None,
            Poll::Ready(found) => Some(found),
        }
    }

    /// It will not be posted: the next one in line goes first.
    fn refused(&mut self, conn: &Established, cause: OpCause, mut buf: Option<Buf>) -> OpError {
        leave_line(conn, &mut self.place);
        if let Some(buf) = &mut buf
            && self.request.kind() == Kind::Read
            && !matches!(cause, OpCause::Invalid(_))
        {
            buf.clear();
        }
        OpError { cause, buf }
    }

    /// Takes nothing of the source as long as it is pending: the next poll may bring another one.
    pub(crate) fn put_back(&mut self, conn: &Established) {
        match std::mem::replace(&mut self.step, Step::Copy) {
            Step::Buf(buf, Some(shelf)) => give_back(conn, shelf, Some(buf)),
            step => self.step = step,
        }
    }

    /// Begins with another operation of the same kind, which is copied.
    pub(crate) fn restart(&mut self) {
        self.step = Step::Copy;
    }

    /// It is not pursued any more: nothing happened, and the next one in line goes first.
    pub(crate) fn abandon(&mut self, conn: &Established) {
        leave_line(conn, &mut self.place);
        match std::mem::replace(&mut self.step, Step::Over) {
            Step::Allocating { shelf, .. } => give_back(conn, shelf, None),
            Step::Buf(buf, Some(shelf)) => give_back(conn, shelf, Some(buf)),
            Step::Buf(_, None) | Step::Copy | Step::Over => {}
        }
    }
}

impl Source<'_> {
    fn copy(self, mut buf: Buf) -> Buf {
        buf.clear();
        let mut left = self.len;
        for slice in self.slices {
            let part = left.min(slice.len());
            buf.put_slice(&slice[..part]);
            left -= part;
        }
        buf
    }
}

/// The queues, if new operations are taken.
fn open(state: &mut SlotState) -> Result<&mut Queues, OpCause> {
    let closed = state.disconnecting || state.end.is_some();
    match &mut state.queues {
        Some(queues) => match queues.broken() {
            Some(fault) => Err(fault.into()),
            None if closed => Err(OpCause::Closed),
            None => Ok(queues),
        },
        None => Err(OpCause::Closed),
    }
}

/// Returns a buffer of the connection's own, or says that it was not made.
fn give_back(conn: &Established, shelf: Shelf, buf: Option<Buf>) {
    conn.slot().with(conn.shared(), |state| {
        if let Some(queues) = &mut state.queues {
            queues.return_copy_buf(shelf, buf);
        }
    });
}

/// Lets the next one go first.
fn leave_line(conn: &Established, place: &mut Place) {
    if place.is_none() {
        return;
    }
    let next = conn.slot().with(conn.shared(), |state| state.queues.as_mut()?.leave_line(place));
    if let Some(next) = next {
        next.wake();
    }
}
