//! Completion queues: what was posted waits here for its completion.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Poll};

use ibdev::qp::QpType;
use ibdev::{
    AddressHandle, Completion, CompletionOp, CompletionQueue, DeviceError, DeviceEvent, SgList, Status,
};
use ibwire::Qpn;
use rdma_sys::{ibv_cq, ibv_wc, ibv_wc_flags, ibv_wc_opcode};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::channel::Bell;
use super::qp::Shared;
use super::table::Table;
use super::{Hca, Raw, at_most, datagram};
use crate::counters::{add, count};
use crate::pool::{DEADLINE, Deferred};

// rdma-sys writes it by hand: it has to be what libibverbs writes.
const _: () = assert!(size_of::<ibv_wc>() == 48);

/// Completions taken from libibverbs at a time.
const BATCH: usize = 32;

/// A completion queue of the contract. Dropped, the queue is destroyed once the last queue pair that uses it is.
#[derive(Debug)]
pub(crate) struct VerbsCq(Deferred<Arc<Cq>>);

impl VerbsCq {
    /// A queue for `capacity` completions. Slow.
    pub(crate) fn new(hca: &Arc<Hca>, capacity: u32) -> Result<Self, DeviceError> {
        let cq = Arc::new(Cq::new(hca.clone(), capacity)?);
        Ok(Self(Deferred::new(cq, hca.pool())))
    }

    /// # Errors
    /// [`DeviceError::Limit`].
    pub(crate) fn check(hca: &Hca, capacity: u32) -> Result<(), DeviceError> {
        at_most("completion queue for", capacity, hca.attr().max_cqe)
    }

    pub(super) fn inner(&self) -> &Arc<Cq> {
        &self.0
    }

    /// The queue behind the trait object, if it is of this device.
    pub(super) fn of(cq: &Arc<dyn CompletionQueue>, hca: &Arc<Hca>) -> Result<Arc<Cq>, DeviceError> {
        match cq.as_any().downcast_ref::<Self>() {
            Some(cq) if Arc::ptr_eq(&cq.0.hca, hca) => Ok(Arc::clone(&cq.0)),
            _ => Err(DeviceError::Unsupported { what: "a completion queue of another device" }),
        }
    }
}

impl CompletionQueue for VerbsCq {
    fn poll(&self, out: &mut Vec<Completion>, max: usize) -> usize {
        self.0.poll(out, max)
    }

    fn poll_notified(&self, cx: &mut TaskContext<'_>) -> Poll<()> {
        self.0.poll_notified(cx)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for VerbsCq {
    fn drop(&mut self) {
        self.0.bell.forget_reader();
    }
}

#[derive(Debug)]
pub(super) struct Cq {
    raw: Raw<ibv_cq>,
    number: usize,
    bell: Arc<Bell>,
    capacity: u32,
    state: Mutex<State>,
    /// Told when a queue pair has gone and left its places.
    room: Notify,
    hca: Arc<Hca>,
}

#[derive(Debug, Default)]
struct State {
    posted: Table<Work>,
    /// Taken from libibverbs and not yet polled.
    ready: VecDeque<(Completion, Arc<Shared>)>,
    /// Queue pairs that take receives from a shared queue and complete them here.
    sharers: HashMap<u32, Arc<Shared>>,
    /// Places promised to queue pairs.
    reserved: u32,
    /// How many promises are of queue pairs that nobody has any more and that are being destroyed.
    leaving: u32,
    /// Shared receive queues that complete here, by number, and by how many queue pairs.
    srqs: HashMap<u32, u32>,
}

/// A posted work request.
#[derive(Debug)]
pub(super) struct Work {
    /// The caller's id.
    pub(super) id: u64,
    pub(super) qp: Arc<Shared>,
    pub(super) op: CompletionOp,
    pub(super) sg: SgList,
    /// Whether it completes for the caller whatever comes of it. For libibverbs it always does: an unsignaled one would keep
    /// its place and its buffers until a later signaled one is complete.
    pub(super) is_signaled: bool,
    /// Of a datagram: it is there until that has left.
    pub(super) ah: Option<Arc<dyn AddressHandle>>,
}

/// What has to be done when the queue's mutex is free again: homes of buffers and wakers are code of others.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    works: Vec<Work>,
    handles: Vec<Arc<dyn AddressHandle>>,
    failed: Vec<Qpn>,
}

impl Leftovers {
    pub(super) fn settle(self, hca: &Hca) {
        for qpn in &self.failed {
            hca.events().push(DeviceEvent::QpError(*qpn));
        }
    }
}

impl Cq {
    fn new(hca: Arc<Hca>, capacity: u32) -> Result<Self, DeviceError> {
        let entries = i32::try_from(capacity.max(1)).unwrap_or(i32::MAX);
        let (number, bell) = hca.bells().add();
        let cookie = std::ptr::without_provenance_mut(number);
        // SAFETY: context and channel outlive the queue, which keeps the HCA; the queue's context is a number.
        let cq =
            unsafe { rdma_sys::ibv_create_cq(hca.context().raw(), entries, cookie, hca.channel().raw(), 0) };
        let raw = match Raw::new(cq, "create a completion queue") {
            Ok(raw) => raw,
            Err(error) => {
                hca.bells().remove(number);
                return Err(error);
            }
        };
        Ok(Self { raw, number, bell, capacity, state: Mutex::default(), room: Notify::new(), hca })
    }

    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.raw.get()
    }

    /// Keeps each until its completion and gives the ids to post them with.
    pub(super) fn keep(&self, works: impl Iterator<Item = Work>, mut with_id: impl FnMut(u64)) {
        let mut state = self.state();
        for work in works {
            with_id(state.posted.insert(work));
        }
    }

    /// Takes back what was not posted after all.
    pub(super) fn take(&self, id: u64) -> Option<Work> {
        self.state().posted.remove(id)
    }

    /// Receives of a shared queue complete here from now on.
    pub(super) fn add_sharer(&self, qp: &Arc<Shared>) {
        self.state().sharers.insert(qp.qpn.get(), qp.clone());
    }

    /// Takes back all that is of a queue pair which completes nothing more, polled by nobody or not complete. Then its
    /// places are free.
    pub(super) fn take_all(&self, qp: &Arc<Shared>, is_destroyed: bool) -> Vec<SgList> {
        let mut left = Leftovers::default();
        let taken = {
            let mut state = self.state();
            // What the driver has not removed itself.
            self.reap(&mut state, usize::MAX, &mut left);
            let works = state.posted.remove_all(|work| Arc::ptr_eq(&work.qp, qp));
            let mut taken: Vec<_> = works
                .into_iter()
                .map(|work| {
                    qp.places(work.op).give();
                    left.handles.extend(work.ah);
                    work.sg
                })
                .collect();
            for (completion, of) in std::mem::take(&mut state.ready) {
                if Arc::ptr_eq(&of, qp) {
                    qp.places(completion.op).give();
                    taken.push(completion.sg);
                } else {
                    state.ready.push_back((completion, of));
                }
            }
            let number = qp.qpn.get();
            if is_destroyed && state.sharers.get(&number).is_some_and(|sharer| Arc::ptr_eq(sharer, qp)) {
                state.sharers.remove(&number);
            }
            taken
        };
        left.settle(&self.hca);
        taken
    }

    /// Ends all that is posted to a queue pair of a device that does not answer any more.
    pub(super) fn flush(&self, qp: &Arc<Shared>) {
        {
            let mut state = self.state();
            for work in state.posted.remove_all(|work| Arc::ptr_eq(&work.qp, qp)) {
                let Work { id, qp, op, sg, .. } = work;
                let completion = plain(id, qp.qpn, op, sg, Status::WR_FLUSH_ERR);
                state.ready.push_back((completion, qp));
            }
        }
        self.bell.ring();
    }

    /// Takes what has completed, so that places of unsignaled work are free.
    pub(super) fn collect(&self, left: &mut Leftovers) {
        self.reap(&mut self.state(), usize::MAX, left);
    }

    fn poll(&self, out: &mut Vec<Completion>, max: usize) -> usize {
        let mut left = Leftovers::default();
        let taken = {
            let mut state = self.state();
            self.reap(&mut state, max, &mut left);
            let taken = max.min(state.ready.len());
            out.extend(state.ready.drain(..taken).map(|(completion, qp)| {
                qp.places(completion.op).give();
                completion
            }));
            taken
        };
        left.settle(&self.hca);
        taken
    }

    /// Takes completions from libibverbs until `enough` are ready or there is none.
    fn reap(&self, state: &mut State, enough: usize, left: &mut Leftovers) {
        let mut raw = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
        while state.ready.len() < enough {
            // SAFETY: the queue lives while `self` does; at most as many completions as there is room for are written.
            let found = unsafe { rdma_sys::ibv_poll_cq(self.raw(), BATCH as i32, raw.as_mut_ptr().cast()) };
            let Ok(found) = usize::try_from(found) else {
                count(&self.hca.counters().queue_failures);
                return;
            };
            add(&self.hca.counters().completions, found);
            for wc in &raw[..found.min(BATCH)] {
                // SAFETY: the call has written the first `found` completions, and its fields are integers.
                let wc = unsafe { wc.assume_init_ref() };
                match state.find(wc) {
                    Some(work) => self.complete(wc, work, state, left),
                    None => count(&self.hca.counters().completions_late),
                }
            }
            if found < BATCH {
                return;
            }
        }
    }

    fn complete(&self, wc: &ibv_wc, mut work: Work, state: &mut State, left: &mut Leftovers) {
        left.handles.extend(work.ah.take());
        if wc.status != 0 && !work.qp.note_failed() {
            left.failed.push(work.qp.qpn);
        }
        if wc.status == 0 && !work.is_signaled {
            work.qp.places(work.op).give();
            left.works.push(work);
            return;
        }
        let qp = work.qp.clone();
        state.ready.push_back((completion(wc, work, &self.hca), qp));
    }

    fn poll_notified(&self, cx: &mut TaskContext<'_>) -> Poll<()> {
        if !self.state().ready.is_empty() {
            return Poll::Ready(());
        }
        self.bell.poll(cx, || {
            // SAFETY: the queue lives while `self` does.
            if unsafe { rdma_sys::ibv_req_notify_cq(self.raw(), 0) } != 0 {
                count(&self.hca.counters().queue_failures); // the device is gone: what is posted is flushed
            }
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: this is the last owner: queue pairs keep an `Arc` of their queues. All announcements are acknowledged when
        // they are read.
        if unsafe { rdma_sys::ibv_destroy_cq(self.raw()) } != 0 {
            count(&self.hca.counters().destroy_failures);
        }
        self.hca.bells().remove(self.number);
    }
}

impl State {
    /// The work request that a completion is of, if it is still wanted.
    fn find(&mut self, wc: &ibv_wc) -> Option<Work> {
        if wc.wr_id & Table::<Work>::SPARE_BIT == 0 {
            return self.posted.remove(wc.wr_id);
        }
        let qp = self.sharers.get(&wc.qp_num)?.clone();
        let (id, sg) = qp.srq.as_ref()?.take(wc.wr_id & !Table::<Work>::SPARE_BIT)?;
        Some(Work { id, qp, op: CompletionOp::Recv, sg, is_signaled: true, ah: None })
    }
}

fn plain(id: u64, qpn: Qpn, op: CompletionOp, sg: SgList, status: Status) -> Completion {
    Completion { id, qpn, status, op, len: 0, imm: None, sg, from: None, raw: None }
}

fn completion(wc: &ibv_wc, work: Work, hca: &Hca) -> Completion {
    let Work { id, qp, op, sg, .. } = work;
    let status = Status(u8::try_from(wc.status).unwrap_or(Status::GENERAL_ERR.0));
    let mut done = plain(id, qp.qpn, op, sg, status);
    if !status.is_ok() {
        return done;
    }
    match op {
        CompletionOp::Recv => received(wc, &mut done, &qp, hca),
        CompletionOp::Read => done.len = done.sg.iter().map(|buf| buf.len() as u32).sum(),
        CompletionOp::FetchAdd | CompletionOp::CompareSwap => done.len = size_of::<u64>() as u32,
        _ => {}
    }
    done
}

fn received(wc: &ibv_wc, done: &mut Completion, qp: &Shared, hca: &Hca) {
    done.len = wc.byte_len;
    let mut left = wc.byte_len as usize;
    if wc.opcode == ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM {
        done.op = CompletionOp::RecvWrite;
        left = 0;
    }
    for buf in &mut done.sg {
        let part = left.min(buf.capacity());
        buf.set_filled(part);
        left -= part;
    }
    if wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0 {
        // SAFETY: both fields of the union are 32-bit numbers.
        done.imm = Some(u32::from_be(unsafe { wc.imm_data_invalidated_rkey_union.imm_data }));
    }
    if qp.kind == QpType::Ud {
        done.from = Some(datagram::source(wc, &done.sg, qp.port(), hca));
    }
}

/// Who needs places in a completion queue.
#[derive(Debug, Clone, Copy)]
pub(super) enum Need {
    /// So many work requests.
    Own(u32),
    /// The receives of a shared queue with this number, once for all queue pairs that bring them here.
    Shared { number: u32, max: u32 },
}

/// Places in a completion queue for a queue pair, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    need: Need,
    is_leaving: AtomicBool,
    cq: Arc<Cq>,
}

impl Reservation {
    /// Promises places in a queue that nobody else has yet.
    pub(super) fn of_new(cq: &Arc<Cq>, need: Need) -> Result<Self, DeviceError> {
        cq.state().reserve(need, cq.capacity).map_err(|(refused, _)| refused)?;
        Ok(Self { need, is_leaving: AtomicBool::new(false), cq: cq.clone() })
    }

    /// Promises places in `cq`. Waits for queue pairs that are being destroyed, if that may help.
    pub(super) async fn new(cq: &Arc<Cq>, need: Need) -> Result<Self, DeviceError> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let mut room = pin!(cq.room.notified());
            room.as_mut().enable();
            let refused = match cq.state().reserve(need, cq.capacity) {
                Ok(()) => return Ok(Self { need, is_leaving: AtomicBool::new(false), cq: cq.clone() }),
                Err((refused, 0)) => return Err(refused),
                Err((refused, _)) => refused,
            };
            if tokio::time::timeout_at(deadline, room).await.is_err() {
                return Err(refused);
            }
        }
    }

    pub(super) fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    /// The queue pair is about to be destroyed.
    pub(super) fn leave(&self) {
        if !self.is_leaving.swap(true, Ordering::Relaxed) {
            self.cq.state().leaving += 1;
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        {
            let mut state = self.cq.state();
            state.release(self.need);
            if *self.is_leaving.get_mut() {
                state.leaving -= 1;
            }
        }
        self.cq.room.notify_waiters();
    }
}

impl State {
    /// # Errors
    /// With the number of those who are about to leave.
    fn reserve(&mut self, need: Need, capacity: u32) -> Result<(), (DeviceError, u32)> {
        let places = match need {
            Need::Own(places) => places,
            Need::Shared { number, max } => match self.srqs.get_mut(&number) {
                Some(users) => {
                    *users += 1;
                    return Ok(());
                }
                None => max,
            },
        };
        let free = capacity - self.reserved;
        if places > free {
            let what = "work requests for the rest of the completion queue";
            return Err((
                DeviceError::Limit { what, value: places.into(), limit: free.into() },
                self.leaving,
            ));
        }
        self.reserved += places;
        if let Need::Shared { number, .. } = need {
            self.srqs.insert(number, 1);
        }
        Ok(())
    }

    fn release(&mut self, need: Need) {
        match need {
            Need::Own(places) => self.reserved -= places,
            Need::Shared { number, max } => {
                if let Some(users) = self.srqs.get_mut(&number) {
                    *users -= 1;
                    if *users == 0 {
                        self.srqs.remove(&number);
                        self.reserved -= max;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(result: Result<(), (DeviceError, u32)>) -> (u64, u64) {
        match result {
            Err((DeviceError::Limit { value, limit, .. }, _)) => (value, limit),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn places_are_promised_once() {
        let mut state = State::default();
        state.reserve(Need::Own(6), 10).unwrap();
        assert_eq!(limit(state.reserve(Need::Own(5), 10)), (5, 4));
        let shared = Need::Shared { number: 1, max: 3 };
        for _ in 0..3 {
            state.reserve(shared, 10).unwrap();
        }
        assert_eq!(limit(state.reserve(Need::Shared { number: 2, max: 3 }, 10)), (3, 1));
        for _ in 0..2 {
            state.release(shared);
            assert_eq!(limit(state.reserve(Need::Own(2), 10)), (2, 1));
        }
        state.release(shared);
        state.reserve(Need::Own(4), 10).unwrap();
        state.release(Need::Own(6));
        assert_eq!(state.reserved, 4);
    }
}
