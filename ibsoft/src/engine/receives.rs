//! Receives: those of a QP alone, or of a queue that many QPs share (spec/softhca.md 2.11, 4).

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use ibdev::{Buf, DeviceError, DeviceEvent, PostError, RecvWr};

use super::Engine;
use super::limit::{at_most, one_more};
use super::memory::DomainId;
use super::shared::Shared;
use super::table::Number;

/// Names a shared receive queue of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SrqId(u32);

impl SrqId {
    /// The number by which [`DeviceEvent::SrqLimit`] names it, 24 bits.
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl Number for SrqId {
    const GIVEN: RangeInclusive<u32> = 1..=0xff_ffff;

    fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    fn raw(self) -> u32 {
        self.0
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub(super) struct Srq {
    pub(super) domain: DomainId,
    pub(super) max: u32,
    max_sge: usize,
    queue: VecDeque<RecvWr>,
    /// Receives posted whose completions have not been polled.
    used: u32,
    /// Fewer receives than this are to be reported; 0 if not.
    limit: u32,
    /// How many QPs take from it.
    pub(super) users: u32,
}

impl Srq {
    pub(super) fn new(domain: DomainId, max: u32, max_sge: u32) -> Self {
        Self { domain, max, max_sge: max_sge as usize, queue: VecDeque::new(), used: 0, limit: 0, users: 0 }
    }

    /// Posts receives from the front of `work`.
    pub(super) fn post(&mut self, work: &mut VecDeque<RecvWr>) -> Result<(), PostError> {
        while let Some(wr) = work.front() {
            fits(wr, self.max_sge)?;
            if self.used >= self.max {
                return Err(PostError::Full);
            }
            self.used += 1;
            self.queue.extend(work.pop_front());
        }
        Ok(())
    }

    /// So many completions of its receives were polled, or are gone.
    pub(super) fn release(&mut self, receives: u32) {
        self.used -= receives;
    }

    /// Sets the limit, and returns whether there are fewer receives already.
    pub(super) fn set_limit(&mut self, limit: u32) -> Result<bool, DeviceError> {
        at_most("limit of a shared receive queue", limit, self.max)?;
        self.limit = limit;
        Ok(self.reaches_limit())
    }

    /// Whether there are fewer receives than the limit, which is then none any more.
    fn reaches_limit(&mut self) -> bool {
        let reached = self.queue.len() < self.limit as usize;
        if reached {
            self.limit = 0;
        }
        reached
    }

    pub(super) fn into_bufs(self) -> Vec<Buf> {
        self.queue.into_iter().flat_map(|wr| wr.sg).collect()
    }
}

/// # Errors
/// [`PostError::Limit`] for a receive with too many buffers.
pub(super) fn fits(wr: &RecvWr, max_sge: usize) -> Result<(), PostError> {
    let (value, limit) = (wr.sg.len() as u64, max_sge as u64);
    if value > limit {
        return Err(PostError::Limit { what: "number of buffers", value, limit });
    }
    Ok(())
}

/// Where the messages for a QP go.
#[derive(Debug)]
pub(super) struct Receives {
    own: VecDeque<RecvWr>,
    srq: Option<SrqId>,
    /// The receive that a message is being placed into, or that a message did not use after all.
    held: Option<RecvWr>,
}

impl Receives {
    pub(super) fn new(srq: Option<SrqId>) -> Self {
        Self { own: VecDeque::new(), srq, held: None }
    }

    pub(super) fn srq(&self) -> Option<SrqId> {
        self.srq
    }

    /// The queue of the QP alone.
    pub(super) fn own(&mut self) -> &mut VecDeque<RecvWr> {
        &mut self.own
    }

    /// What the next message goes to, or the one that is coming in.
    pub(super) fn peek<'a>(&'a self, shared: &'a Shared) -> Option<&'a RecvWr> {
        self.held.as_ref().or_else(|| match self.srq {
            Some(srq) => shared.srqs.get(srq)?.queue.front(),
            None => self.own.front(),
        })
    }

    /// The same, taken out of the queue, for the packets of a message.
    pub(super) fn hold(&mut self, shared: &mut Shared) -> Option<&mut RecvWr> {
        if self.held.is_none() {
            self.held = self.pop(shared);
        }
        self.held.as_mut()
    }

    /// The same for good.
    pub(super) fn take(&mut self, shared: &mut Shared) -> Option<RecvWr> {
        self.held.take().or_else(|| self.pop(shared))
    }

    /// The receive that is in use.
    pub(super) fn take_held(&mut self) -> Option<RecvWr> {
        self.held.take()
    }

    fn pop(&mut self, shared: &mut Shared) -> Option<RecvWr> {
        let Some(id) = self.srq else { return self.own.pop_front() };
        let srq = shared.srqs.get_mut(id)?;
        let wr = srq.queue.pop_front()?;
        if srq.reaches_limit() {
            shared.device_event(DeviceEvent::SrqLimit(id.number()));
        }
        Some(wr)
    }

    /// All that the QP has, the one in use first. What others can still take stays.
    pub(super) fn drain(&mut self) -> impl ExactSizeIterator<Item = RecvWr> + use<> {
        let mut all = std::mem::take(&mut self.own);
        if let Some(held) = self.held.take() {
            all.push_front(held);
        }
        all.into_iter()
    }
}

impl Engine {
    /// Creates a shared receive queue for up to `max_wr` receives of up to `max_sge` buffers each. A place is taken from
    /// when a receive is posted until its completion has been polled.
    ///
    /// # Errors
    /// [`DeviceError::Limit`] if there are too many or it is too long, [`DeviceError::Gone`] for a domain that was
    /// destroyed.
    pub fn create_srq(&mut self, domain: DomainId, max_wr: u32, max_sge: u32) -> Result<SrqId, DeviceError> {
        let device = &self.shared.device;
        at_most("shared receive queue for", max_wr, device.max_srq_wr)?;
        at_most("buffers of a work request", max_sge, device.max_sge)?;
        one_more("shared receive queues", self.shared.srqs.len(), self.max_srqs)?;
        self.shared.memory.enter(domain)?;
        Ok(self.shared.srqs.insert(&mut self.rng, |_, _| Srq::new(domain, max_wr, max_sge)))
    }

    /// Destroys a shared receive queue and returns its buffers.
    ///
    /// # Errors
    /// [`DeviceError::InUse`] while QPs take from it.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<Vec<Buf>, DeviceError> {
        if self.shared.srqs.get(srq).is_some_and(|srq| srq.users > 0) {
            let what = "the shared receive queue";
            return Err(DeviceError::InUse { what, holder: "a QP: destroy that first" });
        }
        let Some(srq) = self.shared.srqs.remove(srq) else { return Ok(Vec::new()) };
        self.shared.memory.leave(srq.domain);
        Ok(srq.into_bufs())
    }

    /// Posts receives from the front of `work` in order; what remains after an error was not posted.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_srq_recv(&mut self, srq: SrqId, work: &mut VecDeque<RecvWr>) -> Result<(), PostError> {
        self.shared.srqs.get_mut(srq).ok_or(PostError::Gone)?.post(work)
    }

    /// Asks for one [`DeviceEvent::SrqLimit`] when fewer than `limit` receives are left, which may be at once; 0 asks for
    /// none.
    ///
    /// # Errors
    /// [`DeviceError::Limit`] for more than the queue holds.
    pub fn set_srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<(), DeviceError> {
        if self.shared.srqs.get_mut(srq).ok_or(DeviceError::Gone)?.set_limit(limit)? {
            self.shared.device_event(DeviceEvent::SrqLimit(srq.number()));
        }
        Ok(())
    }

    /// The shared receive queues that there are.
    pub fn srqs(&self) -> Vec<SrqId> {
        self.shared.srqs.numbers().collect()
    }

    /// Whether there is such a shared receive queue, by its number.
    pub fn has_srq(&self, number: u32) -> bool {
        self.shared.srqs.contains(SrqId(number))
    }
}
