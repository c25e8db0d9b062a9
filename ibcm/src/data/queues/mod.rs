//! Posted work and what has completed.

mod copies;
mod keepalive;
mod line;
mod operations;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use ibdev::{
    Buf, Completion, CompletionQueue, DeviceError, PostError, QueuePair, RecvWr, SendFlags, SendWr, SgList,
    Status,
};

pub(crate) use self::copies::{CopyBuf, Shelf};
pub(crate) use self::line::Place;
pub(crate) use self::operations::Done;

use self::copies::Copies;
use self::keepalive::Asked;
use self::line::Line;
use self::operations::{Operations, Pending};
use super::detached::DetachedWatch;
use super::receives::{Arrived, KEEPALIVE_ID, Received, Receives, is_recv};
use super::request::{Kind, Limits, Request};
use crate::data::Fault;
use crate::error::{OpCause, not_posted};
use crate::memory::Memory;
use crate::parked::Parked;
use crate::proto::{ConnHandle, Invalid};
use crate::shared::{Counters as Totals, Shared};

/// Completions taken from the device at once.
const BATCH: usize = 64;

/// What is on its way from a completion queue; empty in between.
#[derive(Default)]
struct Scratch {
    completions: Vec<Completion>,
    /// Buffers of the connection's own receives that failed.
    retired: Vec<Buf>,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = const { Cell::new(Scratch { completions: Vec::new(), retired: Vec::new() }) };
}

/// The queue pair of one connection, the work that is posted to it and what has completed and was not fetched
/// yet.
///
/// Any task that waits polls the completion queue and sorts what it finds for all, so none depends on another
/// one being polled. Used under the connection's mutex; buffers that nobody wants any more are collected for
/// [`Queues::take_unwanted`], because dropping them runs code of their homes.
#[derive(Debug)]
pub(crate) struct Queues {
    /// `None` once it is let go of.
    device: Option<DeviceSide>,
    /// Wakes all that wait on the connection.
    waker: Waker,
    limits: Limits,
    /// The most operations that the device holds.
    depth: u32,
    busy_poll: Duration,
    operations: Operations,
    line: Line,
    copies: Copies,
    receives: Receives,
    /// Looks after operations that nobody waits for, while there are any.
    detached_watch: Option<DetachedWatch>,
    asked: Asked,
    broken: Option<Fault>,
    /// A receive has completed since the last [`Queues::take_news`].
    received: bool,
    newly_broken: bool,
    unwanted: Vec<Buf>,
    counters: Counters,
    /// The HCA's.
    totals: Arc<Totals>,
}

/// What a connection has of its device.
#[derive(Debug, Clone)]
pub(super) struct DeviceSide {
    pub(super) qp: Arc<dyn QueuePair>,
    pub(super) cq: Arc<dyn CompletionQueue>,
    /// Where its buffers are made.
    pub(super) memory: Memory,
}

/// What went over one connection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    pub(crate) messages_sent: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) messages_received: u64,
    pub(crate) bytes_received: u64,
    pub(crate) messages_waiting: u64,
    pub(crate) writes: u64,
    pub(crate) bytes_written: u64,
    pub(crate) reads: u64,
    pub(crate) bytes_read: u64,
    pub(crate) atomics: u64,
    pub(crate) operations_failed: u64,
    pub(crate) keepalives_sent: u64,
}

/// What became of the attempt to post.
#[derive(Debug)]
pub(crate) enum Posting {
    /// Posted.
    Posted {
        /// For [`Queues::take_done`].
        key: usize,
        /// Who is the first in the line now, to be woken: it waits for completions itself from here on.
        next: Option<Waker>,
    },
    /// The queue is full, or others are before us; a completion makes room.
    Wait(Buf),
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
        Totals::add(&self.totals.messages_unread, self.receives.waiting() as u64);
    }
}

impl Queues {
    /// The sends' depth is `depth`, and copies are `copy_len` bytes long at most, unless they are made one by one.
    pub(super) fn new(
        device: DeviceSide,
        waker: Waker,
        limits: Limits,
        (depth, busy_poll): (u32, Duration),
        copy_len: usize,
        receives: Receives,
        totals: Arc<Totals>,
    ) -> Self {
        Self {
            device: Some(device),
            waker,
            limits,
            depth,
            busy_poll,
            operations: Operations::default(),
            line: Line::default(),
            copies: Copies::new(depth, limits.inline as usize, copy_len),
            receives,
            detached_watch: None,
            asked: Asked::default(),
            broken: None,
            received: false,
            newly_broken: false,
            unwanted: Vec::new(),
            counters: Counters::default(),
            totals,
        }
    }

    /// From here on the driver posts receive buffers that come home, if nobody else does.
    pub(crate) fn attach(&self, shared: &Arc<Shared>, conn: ConnHandle) {
        self.receives.attach(shared, conn);
    }

    /// How many reads and atomics the peer serves at once, as agreed.
    pub(crate) fn set_initiator_depth(&mut self, depth: u8) {
        self.limits.initiator_depth = depth;
    }

    pub(crate) fn qp(&self) -> Option<&Arc<dyn QueuePair>> {
        self.device.as_ref().map(|device| &device.qp)
    }

    /// Where the connection's buffers are made.
    pub(crate) fn memory(&self) -> Option<&Memory> {
        self.device.as_ref().map(|device| &device.memory)
    }

    /// Lets go of the queue pair and the completion queue; what was received stays.
    pub(crate) fn release(&mut self) -> impl Sized + use<> {
        let receives = self.receives.release();
        let copies = self.copies.release();
        if let Some(device) = &self.device {
            device.memory.spares.keep(copies);
        }
        self.operations.flush();
        self.detached_watch = None;
        (self.device.take(), receives)
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters { messages_waiting: self.receives.waiting() as u64, ..self.counters }
    }

    pub(crate) fn broken(&self) -> Option<Fault> {
        self.broken
    }

    /// Whether posted operations have yet to complete.
    pub(crate) fn is_sending(&self) -> bool {
        self.operations.outstanding() > 0
    }

    /// The oldest message that was not read.
    pub(crate) fn next_message(&mut self) -> Option<Arrived> {
        self.receives.next_message()
    }

    /// Nobody reads any more: what arrives only gives its buffers back.
    pub(crate) fn discard_messages(&mut self) {
        let before = self.unwanted.len();
        self.unwanted.extend(self.receives.discard());
        Totals::add(&self.totals.messages_unread, (self.unwanted.len() - before) as u64);
    }

    /// The queue pair has gone to the error state by itself, for this reason.
    pub(crate) fn qp_error(&mut self, status: Status) {
        self.drain();
        self.failed(status);
    }

    /// Posts the first receive buffers.
    pub(super) fn post_first_recv(&mut self, work: VecDeque<RecvWr>) -> Result<(), PostError> {
        match &self.device {
            Some(device) => self.receives.post_first(&*device.qp, work),
            None => Ok(()),
        }
    }

    /// Posts the buffers that came home.
    pub(crate) fn repost(&mut self) {
        if let Some(device) = &self.device {
            self.receives.repost(&*device.qp);
        }
    }

    /// Posts a buffer of the program for one message.
    pub(crate) fn post_recv(&mut self, buf: Buf) -> Result<(), (OpCause, Buf)> {
        let Some(device) = &self.device else { return Err((OpCause::Closed, buf)) };
        let Some(max) = self.receives.max_given() else {
            let what = "a receive beside a shared receive queue";
            return Err((OpCause::Device(DeviceError::Unsupported { what }), buf));
        };
        if let Err(invalid) =
            Invalid::at_most("receive buffer length", buf.capacity() as u64, self.limits.message)
        {
            return Err((invalid.into(), buf));
        }
        self.receives.post_given(&*device.qp, buf).map_err(|(error, buf)| match error {
            PostError::Full => {
                let invalid = Invalid::at_most("receives posted", u64::from(max) + 1, max);
                (invalid.map_or_else(OpCause::from, |()| OpCause::Closed), buf)
            }
            error => (self.refusal(error), buf),
        })
    }

    /// Where whoever waits looks again and again before it sleeps, and for how long; `None` if it does not.
    pub(crate) fn busy_poll(&self) -> Option<(Arc<dyn CompletionQueue>, Duration)> {
        if self.busy_poll.is_zero() { None } else { Some((self.cq()?, self.busy_poll)) }
    }

    /// Looks at completions; whether there may be more.
    pub(crate) fn look(&mut self) -> bool {
        self.cq().is_some_and(|cq| self.sort_completions(&*cq) == BATCH)
    }

    /// Looks at completions, if there are any; else the next one calls the waker. Whether there may be more.
    pub(crate) fn watch(&mut self) -> bool {
        let Some(cq) = self.cq() else { return false };
        let ready = cq.poll_notified(&mut Context::from_waker(&self.waker)).is_ready();
        if ready {
            self.sort_completions(&*cq);
        }
        ready
    }

    /// Takes everything that has completed.
    pub(crate) fn drain(&mut self) {
        if let Some(cq) = self.cq() {
            while self.sort_completions(&*cq) > 0 {}
        }
    }

    fn cq(&self) -> Option<Arc<dyn CompletionQueue>> {
        self.device.as_ref().map(|device| Arc::clone(&device.cq))
    }

    fn sort_completions(&mut self, cq: &dyn CompletionQueue) -> usize {
        let mut scratch = SCRATCH.take();
        let Scratch { completions, retired } = &mut scratch;
        let taken = cq.poll(completions, BATCH);
        for completion in completions.drain(..) {
            match completion.id {
                KEEPALIVE_ID => self.keepalive_completed(&completion),
                id if is_recv(id) => self.recv_completed(completion, retired),
                _ => self.send_completed(completion),
            }
        }
        if !retired.is_empty() {
            self.receives.retire(retired.drain(..));
        }
        SCRATCH.set(scratch);
        taken
    }

    fn recv_completed(&mut self, completion: Completion, retired: &mut Vec<Buf>) {
        let len = match self.receives.complete(completion) {
            Received::Message(len) => len,
            Received::Unread(len, buf) => {
                self.unwanted.push(buf);
                Totals::add(&self.totals.messages_unread, 1);
                len
            }
            Received::Failed(status, sg) => {
                self.failed(status);
                retired.extend(sg);
                return;
            }
            Received::GivenFailed(status, sg) => {
                self.failed(status);
                self.unwanted.extend(sg);
                return;
            }
        };
        self.received = true;
        self.counters.messages_received += 1;
        self.counters.bytes_received += len;
        Totals::add(&self.totals.messages_received, 1);
        Totals::add(&self.totals.bytes_received, len);
    }

    fn send_completed(&mut self, completion: Completion) {
        let status = completion.status;
        if !status.is_ok() {
            self.failed(status);
        }
        match self.operations.complete(completion) {
            Ok(ended) => {
                self.count(ended.pending, status);
                if let Some((shelf, buf)) = ended.own {
                    self.unwanted.extend(self.copies.put(shelf, Some(buf)));
                }
                self.unwanted.extend(ended.unwanted);
            }
            Err(sg) => {
                debug_assert!(false, "a completion for an operation that is not posted");
                self.unwanted.extend(sg);
            }
        }
    }

    fn count(&mut self, Pending { kind, len, .. }: Pending, status: Status) {
        let (ours, totals, len) = (&mut self.counters, &*self.totals, len as u64);
        let add = |ours: &mut u64, total, n| {
            *ours += n;
            Totals::add(total, n);
        };
        match kind {
            _ if !status.is_ok() => add(&mut ours.operations_failed, &totals.operations_failed, 1),
            Kind::Send => {
                add(&mut ours.messages_sent, &totals.messages_sent, 1);
                add(&mut ours.bytes_sent, &totals.bytes_sent, len);
            }
            Kind::Write => {
                add(&mut ours.writes, &totals.writes, 1);
                add(&mut ours.bytes_written, &totals.bytes_written, len);
            }
            Kind::Read => {
                add(&mut ours.reads, &totals.reads, 1);
                add(&mut ours.bytes_read, &totals.bytes_read, len);
            }
            Kind::Atomic => add(&mut ours.atomics, &totals.atomics, 1),
        }
    }

    /// The first failure that is not a consequence of another one breaks the connection.
    fn failed(&mut self, status: Status) {
        if status != Status::WR_FLUSH_ERR && self.broken.is_none() {
            self.broken = Some(Fault::Operation(status));
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

    /// Posts an operation, after those that have waited longer. `place` is its place in the line, `own` tells where
    /// a buffer of the connection's own goes. A read leaves the buffer as long as what it reads.
    pub(crate) fn post(
        &mut self,
        place: &mut Place,
        request: &Request,
        mut buf: Buf,
        own: Option<Shelf>,
    ) -> Posting {
        let Some(device) = &self.device else { return Posting::Refused(OpCause::Closed, Some(buf)) };
        if let Err(cause) = request.check(buf.len(), buf.capacity(), &self.limits) {
            return Posting::Refused(cause, Some(buf));
        }
        if !self.line.is_turn(*place) || self.operations.outstanding() >= self.depth {
            self.line.stand(place);
            return Posting::Wait(buf);
        }
        let kind = request.kind();
        if kind == Kind::Read {
            buf.set_filled(request.remote_len());
        }
        let pending = Pending { kind, own, len: buf.len() };
        let mut flags = request.flags();
        flags.set(SendFlags::INLINE, own == Some(Shelf::Inline));
        let id = self.operations.next_key() as u64;
        let wr = SendWr { id, op: request.op(), sg: SgList::from_iter([buf]), flags };
        let mut work = VecDeque::with_capacity(1);
        work.push_back(wr);
        let result = device.qp.post_send(&mut work);
        let left = work.pop_front().and_then(|wr| wr.sg.into_iter().next());
        match (result, left) {
            (Ok(()), _) | (Err(_), None) => {
                let key = self.operations.posted(pending);
                Posting::Posted { key, next: self.line.leave(place) }
            }
            (Err(PostError::Full), Some(buf)) if self.operations.outstanding() > 0 => {
                self.line.stand(place);
                Posting::Wait(buf)
            }
            (Err(error), buf) => Posting::Refused(self.refusal(error), buf),
        }
    }

    fn refusal(&self, error: PostError) -> OpCause {
        match error {
            PostError::TooLong { len, limit } => Invalid::above("message length", len, limit).into(),
            PostError::Invalid { .. } => OpCause::Device(not_posted(error)),
            _ => self.broken.map_or(OpCause::Closed, OpCause::from),
        }
    }

    /// Keeps the waker of one in the line; true if it is the first, for which completions count.
    pub(crate) fn wait_in_line(&mut self, place: Place, waker: &Waker) -> bool {
        self.line.wait(place, waker)
    }

    /// Gives up a place in the line; gives the waker of the one who is the first now.
    pub(crate) fn leave_line(&mut self, place: &mut Place) -> Option<Waker> {
        self.line.leave(place)
    }

    /// Everyone in the line: there is nothing to wait for any more.
    pub(crate) fn take_line(&mut self) -> Vec<Waker> {
        self.line.take_wakers()
    }

    /// A buffer of the connection's own for `len` bytes of a request; waits in the same line as posting does.
    pub(crate) fn copy_buf(
        &mut self,
        place: &mut Place,
        request: &Request,
        len: usize,
    ) -> Result<CopyBuf, OpCause> {
        request.check(len, len, &self.limits)?;
        // Only the first in line takes one: it must never wait for buffers that those behind it hold.
        if !self.line.is_turn(*place) {
            self.line.stand(place);
            return Ok(CopyBuf::Wait);
        }
        let shelf = self.copies.shelf(len, request.can_be_inline(len, &self.limits));
        let found = self.copies.take(shelf, len);
        if !matches!(found, CopyBuf::Ready(..)) {
            // The order stays while a buffer is made, too.
            self.line.stand(place);
        }
        Ok(found)
    }

    /// Copies are so long at most, unless they are made one by one.
    pub(crate) fn set_copy_len(&mut self, len: usize) {
        self.unwanted.extend(self.copies.set_registered_len(len));
    }

    /// The most bytes of a message.
    pub(crate) fn longest_message(&self) -> u32 {
        self.limits.message
    }

    /// Takes back a buffer of [`Queues::copy_buf`] that was not posted, or notes that it was never made.
    pub(crate) fn return_copy_buf(&mut self, shelf: Shelf, buf: Option<Buf>) {
        self.unwanted.extend(self.copies.put(shelf, buf));
    }

    /// The result of a posted operation, if it is there.
    pub(crate) fn take_done(&mut self, key: usize) -> Option<Done> {
        self.operations.take_done(key)
    }

    /// Nobody waits for this operation any more; whether the driver has to look after it, which is to be asked by
    /// [`Shared::feed`].
    pub(crate) fn detach(&mut self, key: usize) -> bool {
        self.unwanted.extend(self.operations.detach(key));
        self.operations.has_detached() && self.detached_watch.is_none()
    }

    /// What the driver does for a connection: posts what came home, and looks at completions that nobody waits for.
    pub(crate) fn tend(&mut self, shared: &Arc<Shared>, conn: ConnHandle, parked: &Arc<Parked>) {
        if self.operations.has_detached() {
            self.detached_watch.get_or_insert_with(|| DetachedWatch::new(shared, conn, parked)).answered();
            while self.watch() {}
        }
        if !self.operations.has_detached() {
            self.detached_watch = None;
        }
        self.repost();
    }
}
