//! Posted work and what has completed.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use ibdev::{
    Buf, Completion, CompletionQueue, PostError, QueuePair, RecvWr, SendFlags, SendOp, SendWr, Status,
};
use slab::Slab;

use super::RecvPool;
use crate::error::OpCause;
use crate::proto::{Invalid, Limit, Value};
use crate::shared::Counters as Totals;

/// The id of every receive; a send's is its key in the slab.
pub(super) const RECV_ID: u64 = u64::MAX;

/// Completions taken from the device at once.
const BATCH: usize = 64;

thread_local! {
    /// Where completions go between the completion queue and their connection; empty in between.
    static SCRATCH: Cell<Vec<Completion>> = const { Cell::new(Vec::new()) };
}

/// The queue pair of one connection, the work that is posted to it and what has completed and was not fetched
/// yet.
///
/// Any task that waits polls the completion queue and sorts what it finds for all, so none depends on another
/// one being polled. Used under the connection's mutex; buffers that nobody wants any more are collected for
/// [`Queues::take_unwanted`], because dropping them runs code of their homes.
#[derive(Debug)]
pub(crate) struct Queues {
    qp: Option<Arc<dyn QueuePair>>,
    cq: Option<Arc<dyn CompletionQueue>>,
    /// Wakes all that wait on the connection.
    waker: Waker,
    sends: Slab<Send>,
    /// How many of `sends` the device holds.
    outstanding: u32,
    depth: u32,
    /// Who waits for a place in the send queue, in order. The first one is woken by completions; the others
    /// when they are the first.
    line: VecDeque<InLine>,
    next_in_line: u64,
    copies: Copies,
    recv_pool: Arc<RecvPool>,
    inbox: VecDeque<Arrived>,
    broken: Option<Status>,
    /// A receive has completed since the last [`Queues::take_news`].
    received: bool,
    newly_broken: bool,
    unwanted: Vec<Buf>,
    counters: Counters,
    /// The HCA's.
    totals: Arc<Totals>,
}

/// What went over one connection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    pub(crate) messages_sent: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) messages_received: u64,
    pub(crate) bytes_received: u64,
    pub(crate) sends_failed: u64,
}

/// One who waits for a place in the send queue.
#[derive(Debug)]
struct InLine {
    place: u64,
    waker: Option<Waker>,
}

/// A send operation's slot.
#[derive(Debug)]
enum Send {
    Posted {
        copy: bool,
        len: usize,
    },
    /// Nobody waits for it any more.
    Detached {
        copy: bool,
        len: usize,
    },
    Done(Sent),
}

/// A completed send operation.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) status: Status,
    /// The buffer, unless the operation copied.
    pub(crate) buf: Option<Buf>,
}

/// A message that was received and not read yet.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) buf: Buf,
    pub(crate) imm: Option<u32>,
}

/// The connection's own buffers for `send_copy`. They are made when first needed.
#[derive(Debug)]
struct Copies {
    free: Vec<Buf>,
    made: u32,
    max: u32,
    len: usize,
}

/// A buffer to copy a message into.
#[derive(Debug)]
pub(crate) enum CopyBuf {
    Ready(Buf),
    /// Allocate one of this length; it becomes the connection's if `keep`.
    Allocate {
        len: usize,
        keep: bool,
    },
    /// All are under way.
    Wait,
}

/// What became of the attempt to post.
#[derive(Debug)]
pub(crate) enum Posting {
    /// Posted.
    Posted {
        /// For [`Queues::take_sent`].
        key: usize,
        /// Who is the first in the line now, to be woken: it waits for completions itself from here on.
        next: Option<Waker>,
    },
    /// The queue is full, or others are before us; a completion makes room.
    Wait(SendWr),
    /// Never posted; its place in the line is still to be left.
    Refused(OpCause, Option<Buf>),
}

/// What to tell others after looking at completions.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// The connection broke.
    pub(crate) broken: bool,
    /// A message came.
    pub(crate) received: bool,
}

impl Drop for Queues {
    fn drop(&mut self) {
        Totals::add(&self.totals.messages_unread, self.inbox.len() as u64);
    }
}

impl Queues {
    pub(crate) fn new(
        qp: Arc<dyn QueuePair>,
        cq: Arc<dyn CompletionQueue>,
        waker: Waker,
        depth: u32,
        copy_len: usize,
        recv_pool: Arc<RecvPool>,
        totals: Arc<Totals>,
    ) -> Self {
        Self {
            qp: Some(qp),
            cq: Some(cq),
            waker,
            sends: Slab::new(),
            outstanding: 0,
            depth,
            line: VecDeque::new(),
            next_in_line: 0,
            copies: Copies { free: Vec::new(), made: 0, max: depth, len: copy_len },
            recv_pool,
            inbox: VecDeque::new(),
            broken: None,
            received: false,
            newly_broken: false,
            unwanted: Vec::new(),
            counters: Counters::default(),
            totals,
        }
    }

    pub(crate) fn qp(&self) -> Option<&Arc<dyn QueuePair>> {
        self.qp.as_ref()
    }

    /// Lets go of the queue pair and the completion queue; what was received stays.
    pub(crate) fn release(&mut self) -> impl Sized + use<> {
        self.recv_pool.close();
        for buf in self.copies.free.drain(..) {
            self.recv_pool.retire([buf]);
        }
        self.flush_sends();
        self.outstanding = 0;
        (self.qp.take(), self.cq.take())
    }

    /// Ends operations whose completions will never come.
    fn flush_sends(&mut self) {
        self.sends.retain(|_, send| match send {
            Send::Posted { .. } => {
                *send = Send::Done(Sent { status: Status::WR_FLUSH_ERR, buf: None });
                true
            }
            Send::Detached { .. } => false,
            Send::Done(_) => true,
        });
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    pub(crate) fn broken(&self) -> Option<Status> {
        self.broken
    }

    /// Whether posted sends have yet to complete.
    pub(crate) fn is_sending(&self) -> bool {
        self.outstanding > 0
    }

    /// The oldest message that was not read.
    pub(crate) fn next_message(&mut self) -> Option<Arrived> {
        self.inbox.pop_front()
    }

    /// The queue pair has gone to the error state by itself.
    pub(crate) fn qp_error(&mut self) {
        self.drain();
        self.failed(Status::GENERAL_ERR);
    }

    /// Posts receive buffers: the first ones, and those that came home.
    pub(crate) fn post_recv(&mut self, mut work: VecDeque<RecvWr>) -> Result<(), PostError> {
        let Some(qp) = &self.qp else { return Ok(()) };
        if work.is_empty() {
            return Ok(());
        }
        let before = work.len();
        // Counted first: a completion may be there before the call returns.
        self.recv_pool.add_posted(before as u32);
        let result = qp.post_recv(&mut work);
        work.iter().for_each(|_| self.recv_pool.sub_posted());
        for wr in work {
            self.recv_pool.retire(wr.sg);
        }
        result
    }

    /// The first receive buffers, as work requests.
    pub(crate) fn recv_work(bufs: Vec<Buf>) -> VecDeque<RecvWr> {
        bufs.into_iter().map(|buf| RecvWr::new(RECV_ID, buf)).collect()
    }

    /// Posts the buffers that came home.
    pub(crate) fn repost(&mut self) {
        let returned = self.recv_pool.take_returned();
        if let Err(error) = self.post_recv(returned) {
            tracing::debug!(%error, "receive buffers not posted");
        }
    }

    /// Looks at completions and arms the waker; pending when there were none left.
    pub(crate) fn poll(&mut self) -> Poll<()> {
        let Some(cq) = self.cq.clone() else { return Poll::Pending };
        self.sort_completions(&*cq);
        match cq.poll_notified(&mut Context::from_waker(&self.waker)) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Takes everything that has completed.
    pub(crate) fn drain(&mut self) {
        if let Some(cq) = self.cq.clone() {
            while self.sort_completions(&*cq) > 0 {}
        }
    }

    fn sort_completions(&mut self, cq: &dyn CompletionQueue) -> usize {
        let mut scratch = SCRATCH.take();
        let taken = cq.poll(&mut scratch, BATCH);
        for completion in scratch.drain(..) {
            match completion.id {
                RECV_ID => self.received(completion),
                id => self.sent(id as usize, completion),
            }
        }
        SCRATCH.set(scratch);
        taken
    }

    fn received(&mut self, completion: Completion) {
        self.recv_pool.sub_posted();
        if completion.status.is_ok() {
            self.received = true;
            let len = u64::from(completion.len);
            self.counters.messages_received += 1;
            self.counters.bytes_received += len;
            Totals::add(&self.totals.messages_received, 1);
            Totals::add(&self.totals.bytes_received, len);
            let imm = completion.imm;
            if let Some(buf) = completion.into_buf() {
                self.inbox.push_back(Arrived { buf: self.recv_pool.lend(buf), imm });
            }
        } else {
            self.failed(completion.status);
            self.recv_pool.retire(completion.sg);
        }
    }

    fn sent(&mut self, key: usize, completion: Completion) {
        let status = completion.status;
        if !status.is_ok() {
            self.failed(status);
        }
        let Some(send) = self.sends.get_mut(key) else {
            debug_assert!(false, "a completion for a send that was never posted");
            self.unwanted.extend(completion.sg);
            return;
        };
        let (Send::Posted { copy, len } | Send::Detached { copy, len }) = *send else {
            debug_assert!(false, "a second completion for one send");
            self.unwanted.extend(completion.sg);
            return;
        };
        self.outstanding -= 1;
        if status.is_ok() {
            self.counters.messages_sent += 1;
            self.counters.bytes_sent += len as u64;
            Totals::add(&self.totals.messages_sent, 1);
            Totals::add(&self.totals.bytes_sent, len as u64);
        } else {
            self.counters.sends_failed += 1;
            Totals::add(&self.totals.sends_failed, 1);
        }
        let detached = matches!(send, Send::Detached { .. });
        let mut buf = completion.into_buf();
        if copy && let Some(copied) = buf.take() {
            if copied.capacity() == self.copies.len {
                self.copies.free.push(copied);
            } else {
                self.unwanted.push(copied);
            }
        }
        if detached {
            self.sends.remove(key);
            if !status.is_ok() {
                tracing::debug!(%status, "a detached send failed");
            }
            self.unwanted.extend(buf);
        } else {
            *send = Send::Done(Sent { status, buf });
        }
    }

    /// The first failure that is not a consequence of another one breaks the connection.
    fn failed(&mut self, status: Status) {
        if status != Status::WR_FLUSH_ERR && self.broken.is_none() {
            self.broken = Some(status);
            self.newly_broken = true;
        }
    }

    /// What happened since the last call that others have to know.
    pub(crate) fn take_news(&mut self) -> News {
        News { broken: std::mem::take(&mut self.newly_broken), received: std::mem::take(&mut self.received) }
    }

    /// Buffers to drop once the mutex is free.
    pub(crate) fn take_unwanted(&mut self) -> Vec<Buf> {
        std::mem::take(&mut self.unwanted)
    }

    /// Posts a send, after those that have waited longer. `place` is the operation's place in the line.
    pub(crate) fn post_send(
        &mut self,
        place: &mut Option<u64>,
        imm: Option<u32>,
        buf: Buf,
        solicited: bool,
        copy: bool,
    ) -> Posting {
        let Some(qp) = &self.qp else { return Posting::Refused(OpCause::Closed, Some(buf)) };
        let len = buf.len();
        let entry = self.sends.vacant_entry();
        let id = entry.key() as u64;
        let mut wr = SendWr::new(id, SendOp::Send { imm }, buf);
        wr.flags.set(SendFlags::SOLICITED, solicited);
        let turn = self.line.front().is_none_or(|first| Some(first.place) == *place);
        if !turn || self.outstanding >= self.depth {
            self.stand_in_line(place);
            return Posting::Wait(wr);
        }
        let mut work = VecDeque::with_capacity(1);
        work.push_back(wr);
        let result = qp.post_send(&mut work);
        match (result, work.pop_front()) {
            (Ok(()), _) | (Err(_), None) => {
                entry.insert(Send::Posted { copy, len });
                self.outstanding += 1;
                let next = self.leave_line(place);
                Posting::Posted { key: id as usize, next }
            }
            (Err(PostError::Full), Some(wr)) if self.outstanding > 0 => {
                self.stand_in_line(place);
                Posting::Wait(wr)
            }
            (Err(error), Some(wr)) => Posting::Refused(self.refusal(error), wr.sg.into_iter().next()),
        }
    }

    fn refusal(&self, error: PostError) -> OpCause {
        let must = |words| OpCause::Invalid(Invalid::new("buffer", Value::Number(0), Limit::Must(words)));
        match error {
            PostError::TooLong { len, limit } => {
                match Invalid::at_most("message length", len as u64, limit as u64) {
                    Err(invalid) => OpCause::Invalid(invalid),
                    Ok(()) => must("a message that the queue pair can carry"),
                }
            }
            PostError::Invalid { why } => must(why),
            _ => self.broken.map_or(OpCause::Closed, OpCause::Status),
        }
    }

    fn stand_in_line(&mut self, place: &mut Option<u64>) {
        if place.is_none() {
            *place = Some(self.next_in_line);
            self.line.push_back(InLine { place: self.next_in_line, waker: None });
            self.next_in_line += 1;
        }
    }

    /// Keeps the waker of one in the line; true if it is the first, for which completions count.
    pub(crate) fn wait_in_line(&mut self, place: Option<u64>, waker: &Waker) -> bool {
        let first = self.line.front().is_none_or(|first| Some(first.place) == place);
        if !first && let Some(entry) = place.and_then(|place| self.in_line(place)) {
            self.line[entry].waker = Some(waker.clone());
        }
        first
    }

    /// Gives up a place in the line; gives the waker of the one who is the first now.
    pub(crate) fn leave_line(&mut self, place: &mut Option<u64>) -> Option<Waker> {
        let place = place.take()?;
        let was_first = self.line.front().is_some_and(|first| first.place == place);
        let index = self.in_line(place)?;
        self.line.remove(index);
        self.line.front_mut().filter(|_| was_first)?.waker.take()
    }

    /// Where in the line a place is. Places only grow.
    fn in_line(&self, place: u64) -> Option<usize> {
        self.line.binary_search_by_key(&place, |entry| entry.place).ok()
    }

    /// Everyone in the line: there is nothing to wait for any more.
    pub(crate) fn take_line(&mut self) -> Vec<Waker> {
        self.line.iter_mut().filter_map(|entry| entry.waker.take()).collect()
    }

    /// A buffer for a copy of `len` bytes; waits in the same line as posting does.
    pub(crate) fn copy_buf(&mut self, place: &mut Option<u64>, len: usize) -> CopyBuf {
        if len > self.copies.len {
            return CopyBuf::Allocate { len, keep: false };
        }
        // Only the first in line takes one: it must never wait for buffers that those behind it hold.
        if self.line.front().is_some_and(|first| Some(first.place) != *place) {
            self.stand_in_line(place);
            return CopyBuf::Wait;
        }
        if let Some(buf) = self.copies.free.pop() {
            return CopyBuf::Ready(buf);
        }
        if self.copies.made < self.copies.max {
            self.copies.made += 1;
            return CopyBuf::Allocate { len: self.copies.len, keep: true };
        }
        self.stand_in_line(place);
        CopyBuf::Wait
    }

    /// Takes back a buffer of [`Queues::copy_buf`] that was not posted, or notes that it was never made.
    pub(crate) fn return_copy_buf(&mut self, buf: Option<Buf>) {
        match buf {
            Some(buf) if buf.capacity() == self.copies.len => self.copies.free.push(buf),
            Some(buf) => self.unwanted.push(buf),
            None => self.copies.made -= 1,
        }
    }

    /// The result of a posted send, if it is there.
    pub(crate) fn take_sent(&mut self, key: usize) -> Option<Sent> {
        match self.sends.get(key) {
            Some(Send::Done(_)) => match self.sends.remove(key) {
                Send::Done(sent) => Some(sent),
                Send::Posted { .. } | Send::Detached { .. } => None,
            },
            _ => None,
        }
    }

    /// Nobody waits for this send any more.
    pub(crate) fn detach(&mut self, key: usize) {
        match self.sends.get_mut(key) {
            Some(Send::Posted { copy, len }) => {
                let (copy, len) = (*copy, *len);
                self.sends[key] = Send::Detached { copy, len };
            }
            Some(_) => {
                if let Send::Done(sent) = self.sends.remove(key) {
                    self.unwanted.extend(sent.buf);
                }
            }
            None => {}
        }
    }
}
