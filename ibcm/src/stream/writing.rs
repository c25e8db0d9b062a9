//! The sending side of a byte stream.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::BoxFuture;
use ibwire::PrivateData;
use tokio::task::coop::poll_proceed;

use crate::closed::Closed;
use crate::data::{Queues, Request};
use crate::disconnect::disconnect;
use crate::error::{OpCause, OpError};
use crate::established::Established;
use crate::handshake::poll_slot;
use crate::ops::{Entry, Source, detach};
use crate::slot::SlotState;
use crate::sync::Exclusive;

/// Bytes of one message, unless the program says otherwise: what the default receive buffers of a peer take.
const CHUNK: usize = 4096;

/// Messages in the send queue, at most: as many as a peer has receive buffers by default. More only meet a peer that is
/// not ready.
const DEPTH: usize = 16;

/// How long the DREQ exchange of a shutdown may take.
const DISCONNECT: Duration = Duration::from_secs(10);

/// What is written. Nobody else sends on the connection.
pub(super) struct Writing {
    chunk: usize,
    /// The way of the next message into the send queue.
    entry: Entry,
    sent: Sent,
    closing: Closing,
}

/// What is in the send queue.
#[derive(Default)]
struct Sent {
    /// Messages, the oldest first.
    posted: VecDeque<usize>,
    /// Why bytes that were taken did not arrive.
    failed: Option<OpCause>,
}

/// How far a shutdown is.
enum Closing {
    Open,
    /// Nothing more is written; what was is on its way.
    Flushing,
    Disconnecting(Exclusive<BoxFuture<'static, Closed>>),
    Over,
}

impl Writing {
    pub(super) fn new(conn: &Established) -> Self {
        let mut writing = Self {
            chunk: CHUNK,
            entry: Entry::new(conn.slot(), Request::send(), None),
            sent: Sent::default(),
            closing: Closing::Open,
        };
        writing.set_chunk(conn, CHUNK);
        writing
    }

    /// Messages are so long at most, and the connection's buffers for copies just as long.
    pub(super) fn set_chunk(&mut self, conn: &Established, len: usize) {
        // It may have a buffer of another length.
        self.entry.abandon(conn);
        self.entry.restart();
        self.chunk = len;
        conn.slot().with(conn.shared(), |state| {
            if let Some(queues) = &mut state.queues {
                queues.set_copy_len(len);
            }
        });
    }

    pub(super) fn is_closing(&self) -> bool {
        !matches!(self.closing, Closing::Open)
    }

    /// How many messages are in the send queue, as far as it is known.
    pub(super) fn posted(&self) -> usize {
        self.sent.posted.len()
    }

    /// Others may send; what is in the send queue goes on by itself.
    pub(super) fn leave(mut self, conn: &Established) {
        self.entry.abandon(conn);
        for key in self.sent.posted {
            detach(conn.shared(), conn.slot(), key);
        }
    }

    /// Sends the first bytes as one message.
    pub(super) fn poll_write(
        &mut self,
        conn: &Established,
        slices: &[IoSlice<'_>],
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.is_closing() {
            return Poll::Ready(Err(io_error(OpCause::Closed)));
        }
        let len = slices.iter().fold(0usize, |len, slice| len.saturating_add(slice.len())).min(self.chunk);
        if len == 0 {
            return Poll::Ready(Ok(0));
        }
        let budget = ready!(poll_proceed(cx));
        ready!(self.poll_depth(conn, cx))?;
        let Poll::Ready(posted) = self.entry.poll(conn, Source { slices, len }, cx) else {
            // The next call may bring other bytes.
            self.entry.put_back(conn);
            return Poll::Pending;
        };
        budget.made_progress();
        self.entry.ticket().leave();
        self.entry.restart();
        self.sent.posted.push_back(posted?);
        Poll::Ready(Ok(len))
    }

    /// Until one more message may be in the send queue.
    fn poll_depth(&mut self, conn: &Established, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { entry, sent, .. } = self;
        if sent.posted.len() >= DEPTH {
            let mut fewer = |state: &mut SlotState| {
                sent.take_done(state.queues.as_mut()?);
                (sent.posted.len() < DEPTH || sent.failed.is_some()).then_some(())
            };
            ready!(poll_slot(conn.shared(), conn.slot(), entry.ticket(), cx, &mut fewer));
        }
        Poll::Ready(sent.result())
    }

    /// Until the peer's device has all that was taken.
    pub(super) fn poll_flush(&mut self, conn: &Established, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { entry, sent, .. } = self;
        if !sent.posted.is_empty() {
            let budget = ready!(poll_proceed(cx));
            let mut all = |state: &mut SlotState| sent.take_done(state.queues.as_mut()?).then_some(());
            ready!(poll_slot(conn.shared(), conn.slot(), entry.ticket(), cx, &mut all));
            budget.made_progress();
            entry.ticket().leave();
        }
        Poll::Ready(sent.result())
    }

    /// Until what was taken has arrived or cannot any more, and the connection is disconnected.
    pub(super) fn poll_shutdown(&mut self, conn: &Established, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match &mut self.closing {
                Closing::Open => {
                    self.entry.abandon(conn);
                    self.closing = Closing::Flushing;
                }
                Closing::Flushing => {
                    // A failure is told when the connection has ended.
                    let _ = ready!(self.poll_flush(conn, cx));
                    let (shared, slot) = (Arc::clone(conn.shared()), Arc::clone(conn.slot()));
                    let ending = disconnect(shared, slot, PrivateData::EMPTY, DISCONNECT);
                    self.closing = Closing::Disconnecting(Exclusive::new(Box::pin(ending)));
                }
                Closing::Disconnecting(ending) => {
                    ready!(ending.get_mut().as_mut().poll(cx));
                    self.closing = Closing::Over;
                }
                Closing::Over => return self.poll_flush(conn, cx),
            }
        }
    }
}

impl Sent {
    /// Takes what has completed; true if that is all, or if something failed.
    fn take_done(&mut self, queues: &mut Queues) -> bool {
        while let Some(key) = self.posted.front()
            && let Some(done) = queues.take_done(*key)
        {
            self.posted.pop_front();
            if !done.status.is_ok() {
                let cause = queues.broken().map_or(OpCause::Closed, OpCause::from);
                self.failed.get_or_insert(cause);
            }
        }
        self.posted.is_empty() || self.failed.is_some()
    }

    fn result(&self) -> io::Result<()> {
        self.failed.clone().map_or(Ok(()), |cause| Err(io_error(cause)))
    }
}

fn io_error(cause: OpCause) -> io::Error {
    OpError { cause, buf: None }.into()
}
