//! Completion queues.

use ibdev::{Buf, Completion, DeviceError};
use ibwire::Qpn;

use super::completions::{Completions, Room};
use super::limit::at_most;
use super::receives::SrqId;

/// Names a completion queue of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CqId(pub(super) u32);

impl CqId {
    /// A number as low as can be: one that was destroyed leaves its own to the next.
    #[cfg(feature = "runtime")]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A completion queue. Work requests reserve their places when their QP is created, so it never overflows, unless it is one of raw
/// QPs. The places of
/// a shared receive queue are reserved once, however many QPs bring its receives here: it never has more receives under
/// way than that, wherever they complete.
#[derive(Debug)]
pub(super) struct Cq {
    capacity: u32,
    /// Sum of the work requests of the queues that complete here.
    reserved: u32,
    /// How many queues complete here.
    users: u32,
    /// The shared receive queues that complete here, and by how many QPs.
    srqs: Vec<(SrqId, u32)>,
    /// A QP was flushed since the queue was last empty.
    flushed: bool,
    /// Of raw QPs: they reserve nothing, so it may overflow.
    is_raw: bool,
    /// It has overflowed: nothing completes here any more.
    failed: bool,
    queue: Completions,
}

/// Memory of completion queues that need none any more: connections come and go.
#[derive(Debug, Default)]
pub(super) struct Spares(Vec<Room>);

impl Spares {
    const MOST: usize = 256;
    const LONGEST: usize = 64;

    fn keep(&mut self, room: Room) {
        if room.capacity() <= Self::LONGEST && self.0.len() < Self::MOST {
            self.0.push(room);
        }
    }
}

impl Cq {
    /// A queue with the memory of another one, if there is some to spare.
    pub(super) fn new(capacity: u32, spares: &mut Spares) -> Self {
        Self {
            capacity,
            reserved: 0,
            users: 0,
            srqs: Vec::new(),
            flushed: false,
            is_raw: false,
            failed: false,
            queue: Completions::new(spares.0.pop().unwrap_or_default()),
        }
    }

    /// Leaves the memory of a queue whose QP was flushed to others once it is empty: a connection in TimeWait has
    /// nothing to complete any more.
    pub(super) fn retire(&mut self, spares: &mut Spares) {
        if self.flushed && self.queue.len() == 0 {
            self.flushed = false;
            spares.keep(std::mem::take(&mut self.queue).into_room());
        }
    }

    /// Whether a raw QP, or another one, may complete here; what is said first holds as long as there is one.
    pub(super) fn may_serve(&mut self, is_raw: bool) -> Result<(), DeviceError> {
        if self.users > 0 && self.is_raw != is_raw {
            return Err(DeviceError::Unsupported { what: "a completion queue of raw and other queue pairs" });
        }
        self.is_raw = is_raw;
        Ok(())
    }

    /// Whether one more completion fits. Always, if all QPs have reserved places.
    pub(super) fn has_room(&self) -> bool {
        !self.is_raw || !self.failed && self.queue.len() < self.capacity as usize
    }

    /// It has overflowed.
    pub(super) fn fail(&mut self) {
        self.failed = true;
    }

    /// Reserves places for the work requests of one queue.
    pub(super) fn reserve(&mut self, work_requests: u32) -> Result<(), DeviceError> {
        let free = self.capacity - self.reserved;
        at_most("work requests for the rest of the completion queue", work_requests, free)?;
        self.reserved += work_requests;
        self.users += 1;
        Ok(())
    }

    /// Gives the places of one queue back.
    pub(super) fn release(&mut self, work_requests: u32) {
        self.reserved -= work_requests;
        self.users -= 1;
    }

    /// Reserves places for the receives of a shared queue that has `max` of them, unless another QP has.
    pub(super) fn reserve_shared(&mut self, srq: SrqId, max: u32) -> Result<(), DeviceError> {
        if let Some((_, qps)) = self.srqs.iter_mut().find(|(id, _)| *id == srq) {
            *qps += 1;
            return Ok(());
        }
        self.reserve(max)?;
        self.srqs.push((srq, 1));
        Ok(())
    }

    /// Gives the places of a shared queue back, if no other QP needs them.
    pub(super) fn release_shared(&mut self, srq: SrqId, max: u32) {
        let Some(at) = self.srqs.iter().position(|(id, _)| *id == srq) else { return };
        self.srqs[at].1 -= 1;
        if self.srqs[at].1 == 0 {
            self.srqs.swap_remove(at);
            self.release(max);
        }
    }

    pub(super) fn in_use(&self) -> bool {
        self.users > 0
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// So many completions are about to be added, because a QP is flushed.
    pub(super) fn expect_flush(&mut self, completions: usize) {
        self.queue.reserve(completions);
        self.flushed = true;
    }

    /// Adds a completion and returns whether the queue was empty.
    pub(super) fn push(&mut self, slot: u32, completion: Completion) -> bool {
        self.queue.push(slot, completion);
        self.queue.len() == 1
    }

    pub(super) fn pop(&mut self) -> Option<(u32, Completion)> {
        self.queue.pop()
    }

    /// Takes out the completions of one QP, and returns how many of them were receives.
    pub(super) fn purge(&mut self, qpn: Qpn, into: &mut Vec<Buf>) -> u32 {
        self.queue.purge(qpn, into)
    }
}
