//! Operations on a connection: futures that post and complete a work request.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::future::BoxFuture;
use ibdev::{Buf, DeviceError};
use pin_project::{pin_project, pinned_drop};
use tokio::task::coop::poll_proceed;

use crate::connection::Connection;
use crate::data::{CopyBuf, Posting, Queues, Sent};
use crate::error::{OpCause, OpError};
use crate::handshake::poll_slot;
use crate::parked::Ticket;
use crate::shared::Unavailable;
use crate::slot::SlotState;

/// A send operation: a builder that is itself the future of its completion. `T` is what it gives: the buffer,
/// or nothing for a copy.
///
/// It takes its place in the send queue when it is first polled; while the queue is full it waits, in order.
///
/// # Cancel safety
/// Dropped before it has its place, nothing happened and the buffer goes home. Later, it goes on; its buffer
/// goes home at the completion, and a failure ends the connection.
#[pin_project(PinnedDrop, !Unpin)]
#[must_use = "nothing is sent before it is awaited"]
pub struct SendOp<'a, T> {
    conn: &'a Connection,
    step: Step<'a>,
    imm: Option<u32>,
    solicited: bool,
    copy: bool,
    /// In the line for the send queue.
    place: Option<u64>,
    ticket: Ticket,
    output: PhantomData<fn() -> T>,
}

enum Step<'a> {
    /// To be copied.
    Data(&'a [u8]),
    /// A buffer for the copy is being made; whether it stays with the connection.
    Allocating {
        data: &'a [u8],
        keep: bool,
        making: BoxFuture<'a, Result<Vec<Buf>, DeviceError>>,
    },
    /// To be posted.
    Buf(Buf),
    /// In the send queue.
    Posted(usize),
    Done,
}

impl<'a> SendOp<'a, Buf> {
    pub(crate) fn new(conn: &'a Connection, buf: Buf) -> Self {
        Self::with(conn, Step::Buf(buf), false)
    }
}

impl<'a> SendOp<'a, ()> {
    pub(crate) fn copy(conn: &'a Connection, data: &'a [u8]) -> Self {
        Self::with(conn, Step::Data(data), true)
    }
}

impl<'a, T> SendOp<'a, T> {
    fn with(conn: &'a Connection, step: Step<'a>, copy: bool) -> Self {
        let ticket = Ticket::new(&conn.slot().parked);
        Self { conn, step, imm: None, solicited: false, copy, place: None, ticket, output: PhantomData }
    }

    /// Sends these four bytes beside the message, as a number in network order.
    pub fn imm(mut self, imm: u32) -> Self {
        self.imm = Some(imm);
        self
    }

    /// Wakes the peer even if it waits for solicited messages only.
    pub fn solicited(mut self) -> Self {
        self.solicited = true;
        self
    }

    /// Posts and waits for the completion. Whatever comes of it, nobody waits behind it in the line then.
    fn poll_op(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Option<Buf>, OpError>> {
        let budget = ready!(poll_proceed(cx));
        let polled = self.as_mut().poll_steps(cx);
        if polled.is_ready() {
            budget.made_progress();
            let this = self.project();
            leave_line(this.conn, this.place);
        }
        polled
    }

    fn poll_steps(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Option<Buf>, OpError>> {
        let this = self.project();
        let (shared, slot) = (this.conn.shared(), this.conn.slot());
        loop {
            match std::mem::replace(this.step, Step::Done) {
                Step::Data(data) => {
                    let mut next = |state: &mut SlotState| match open(state) {
                        Ok(queues) => match queues.copy_buf(this.place, data.len()) {
                            CopyBuf::Wait if queues.wait_in_line(*this.place, cx.waker()) => None,
                            found => Some(Ok(found)),
                        },
                        Err(cause) => Some(Err(cause)),
                    };
                    let Poll::Ready(found) = poll_slot(shared, slot, this.ticket, cx, &mut next) else {
                        *this.step = Step::Data(data);
                        return Poll::Pending;
                    };
                    match found {
                        Ok(CopyBuf::Ready(buf)) => *this.step = Step::Buf(filled(buf, data)),
                        Ok(CopyBuf::Allocate { len, keep }) => match shared.device() {
                            Ok(device) => {
                                let making = Box::pin(async move { device.domain().alloc(1, len).await });
                                *this.step = Step::Allocating { data, keep, making };
                            }
                            Err(unavailable) => {
                                if keep {
                                    give_back(this.conn, None);
                                }
                                return Poll::Ready(Err(OpError { cause: unavailable.into(), buf: None }));
                            }
                        },
                        Ok(CopyBuf::Wait) => {
                            *this.step = Step::Data(data);
                            return Poll::Pending;
                        }
                        Err(cause) => return Poll::Ready(Err(OpError { cause, buf: None })),
                    }
                }
                Step::Allocating { data, keep, mut making } => {
                    let Poll::Ready(made) = making.as_mut().poll(cx) else {
                        *this.step = Step::Allocating { data, keep, making };
                        return Poll::Pending;
                    };
                    match made.map(|mut bufs| bufs.pop()) {
                        Ok(Some(buf)) => *this.step = Step::Buf(filled(buf, data)),
                        failed => {
                            if keep {
                                give_back(this.conn, None);
                            }
                            let gone = DeviceError::Unsupported { what: "so long a buffer" };
                            let cause = OpCause::Device(failed.err().unwrap_or(gone));
                            return Poll::Ready(Err(OpError { cause, buf: None }));
                        }
                    }
                }
                Step::Buf(buf) => {
                    let mut held = Some(buf);
                    let mut next = |state: &mut SlotState| {
                        let queues = match open(state) {
                            Ok(queues) => queues,
                            Err(cause) => return Some(Err((cause, held.take()))),
                        };
                        let buf = held.take()?;
                        match queues.post_send(this.place, *this.imm, buf, *this.solicited, *this.copy) {
                            Posting::Posted { key, next } => Some(Ok(Some((key, next)))),
                            Posting::Wait(wr) => {
                                held = wr.sg.into_iter().next();
                                let first = queues.wait_in_line(*this.place, cx.waker());
                                if first { None } else { Some(Ok(None)) }
                            }
                            Posting::Refused(cause, buf) => Some(Err((cause, buf))),
                        }
                    };
                    match poll_slot(shared, slot, this.ticket, cx, &mut next) {
                        Poll::Ready(Ok(Some((key, next)))) => {
                            *this.step = Step::Posted(key);
                            if let Some(next) = next {
                                next.wake();
                            }
                        }
                        Poll::Ready(Err((cause, buf))) => {
                            let buf = match *this.copy {
                                true => {
                                    give_back(this.conn, buf);
                                    None
                                }
                                false => buf,
                            };
                            return Poll::Ready(Err(OpError { cause, buf }));
                        }
                        Poll::Ready(Ok(None)) | Poll::Pending => {
                            if let Some(buf) = held {
                                *this.step = Step::Buf(buf);
                            }
                            return Poll::Pending;
                        }
                    }
                }
                Step::Posted(key) => {
                    *this.step = Step::Posted(key);
                    let mut next = |state: &mut SlotState| {
                        let queues = state.queues.as_mut()?;
                        let sent = queues.take_sent(key)?;
                        Some((sent, queues.broken()))
                    };
                    let (Sent { status, buf }, broken) =
                        ready!(poll_slot(shared, slot, this.ticket, cx, &mut next));
                    *this.step = Step::Done;
                    if status.is_ok() {
                        return Poll::Ready(Ok(buf));
                    }
                    let cause = broken.map_or(OpCause::Closed, OpCause::Status);
                    return Poll::Ready(Err(OpError { cause, buf }));
                }
                Step::Done => unreachable!("polled after it was ready"),
            }
        }
    }
}

/// The queues, if new sends are taken.
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
fn give_back(conn: &Connection, buf: Option<Buf>) {
    conn.slot().with(conn.shared(), |state| {
        if let Some(queues) = &mut state.queues {
            queues.return_copy_buf(buf);
        }
    });
}

/// Lets the next one go first.
fn leave_line(conn: &Connection, place: &mut Option<u64>) {
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

impl Future for SendOp<'_, Buf> {
    type Output = Result<Buf, OpError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let sent = ready!(self.poll_op(cx))?;
        Poll::Ready(sent.ok_or(OpError { cause: OpCause::Closed, buf: None }))
    }
}

impl Future for SendOp<'_, ()> {
    type Output = Result<(), OpError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_op(cx).map_ok(drop)
    }
}

#[pinned_drop]
impl<T> PinnedDrop for SendOp<'_, T> {
    fn drop(self: Pin<&mut Self>) {
        let this = self.project();
        leave_line(this.conn, this.place);
        match std::mem::replace(this.step, Step::Done) {
            Step::Posted(key) => this.conn.slot().with(this.conn.shared(), |state| {
                if let Some(queues) = &mut state.queues {
                    queues.detach(key);
                }
            }),
            Step::Allocating { keep: true, .. } => give_back(this.conn, None),
            Step::Buf(buf) if *this.copy => give_back(this.conn, Some(buf)),
            _ => {}
        }
    }
}

impl<T> std::fmt::Debug for SendOp<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendOp").field("imm", &self.imm).field("copy", &self.copy).finish_non_exhaustive()
    }
}
