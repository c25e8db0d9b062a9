//! Completion queues: what was posted waits here for its completion.

use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Poll};

use ibdev::{Completion, CompletionOp, CompletionQueue, DeviceError, SgList, Status};
use ibwire::Qpn;
use rdma_sys::{ibv_comp_channel, ibv_cq, ibv_wc, ibv_wc_flags};
use tokio::io::unix::AsyncFd;

use super::{Context, Deferred, Raw};
use crate::counters::{Counters, count};
use crate::fd::{readable, set_nonblocking};

// rdma-sys writes it by hand: it has to be what libibverbs writes.
const _: () = assert!(size_of::<ibv_wc>() == 48);

/// Completions taken from libibverbs at a time.
const BATCH: usize = 32;

/// A completion queue of the contract. Dropped, the queue is destroyed once the last queue pair that uses it is.
#[derive(Debug)]
pub(crate) struct VerbsCq(Deferred<Arc<Cq>>);

impl VerbsCq {
    /// A queue for `capacity` completions, waited for in the runtime of the caller. Slow.
    pub(crate) fn new(
        context: Arc<Context>,
        capacity: u32,
        counters: Arc<Counters>,
    ) -> Result<Self, DeviceError> {
        Cq::new(context, capacity, counters).map(|cq| Self(Deferred::new(Arc::new(cq))))
    }

    pub(super) fn inner(&self) -> &Arc<Cq> {
        &self.0
    }
}

impl CompletionQueue for VerbsCq {
    fn poll(&self, out: &mut Vec<Completion>, max: usize) -> usize {
        self.inner().poll(out, max)
    }

    fn poll_notified(&self, cx: &mut TaskContext<'_>) -> Poll<()> {
        self.inner().poll_notified(cx)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[derive(Debug)]
pub(super) struct Cq {
    raw: Raw<ibv_cq>,
    channel: AsyncFd<Channel>,
    /// Whether the next completion makes the channel readable.
    armed: Mutex<bool>,
    posted: Mutex<Posted>,
    counters: Arc<Counters>,
    context: Arc<Context>,
}

/// What is posted, by the id that libibverbs knows it by. Ids are never used twice, so a completion that comes after its
/// queue pair was reset or destroyed finds nothing.
#[derive(Debug, Default)]
struct Posted {
    next: u64,
    work: HashMap<u64, Work>,
}

/// A posted work request.
#[derive(Debug)]
pub(super) struct Work {
    /// The caller's id.
    pub(super) id: u64,
    pub(super) qpn: Qpn,
    pub(super) op: CompletionOp,
    pub(super) sg: SgList,
}

impl Cq {
    fn new(context: Arc<Context>, capacity: u32, counters: Arc<Counters>) -> Result<Self, DeviceError> {
        let entries = i32::try_from(capacity.max(1)).unwrap_or(i32::MAX);
        let channel = Channel::new(context.clone())?;
        let raw_channel = channel.raw.get();
        set_nonblocking(channel.fd())?;
        // SAFETY: the channel keeps its descriptor.
        let channel = unsafe { readable(channel) }?;
        // SAFETY: context and channel outlive the queue, which keeps both; there is no queue context.
        let cq =
            unsafe { rdma_sys::ibv_create_cq(context.raw(), entries, std::ptr::null_mut(), raw_channel, 0) };
        let raw = Raw::new(cq, "create a completion queue")?;
        Ok(Self { raw, channel, armed: Mutex::default(), posted: Mutex::default(), counters, context })
    }

    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.raw.get()
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Keeps `work` until its completion and gives the id to post it with.
    pub(super) fn keep(&self, work: Work) -> u64 {
        let mut posted = self.posted();
        let id = posted.next;
        posted.next += 1;
        posted.work.insert(id, work);
        id
    }

    /// Takes back what was not posted after all.
    pub(super) fn take(&self, id: u64) -> Option<Work> {
        self.posted().work.remove(&id)
    }

    /// Takes back all that was posted to a queue pair which completes nothing more.
    pub(super) fn take_all(&self, qpn: Qpn) -> Vec<Work> {
        self.posted().work.extract_if(|_, work| work.qpn == qpn).map(|(_, work)| work).collect()
    }

    fn poll(&self, out: &mut Vec<Completion>, max: usize) -> usize {
        let before = out.len();
        let mut raw = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
        loop {
            let room = BATCH.min(max - (out.len() - before));
            // SAFETY: the queue lives while `self` does; at most `room` completions are written.
            let found = unsafe { rdma_sys::ibv_poll_cq(self.raw(), room as i32, raw.as_mut_ptr().cast()) };
            let Ok(found) = usize::try_from(found) else {
                count(&self.counters.cq_failures);
                break;
            };
            let mut posted = self.posted();
            for wc in &raw[..found.min(room)] {
                // SAFETY: the call has written the first `found` completions, and its fields are integers.
                let wc = unsafe { wc.assume_init_ref() };
                match posted.work.remove(&wc.wr_id) {
                    Some(work) => out.push(completion(wc, work)),
                    None => count(&self.counters.completions_late),
                }
            }
            if found < room || room == 0 {
                break;
            }
        }
        out.len() - before
    }

    fn poll_notified(&self, cx: &mut TaskContext<'_>) -> Poll<()> {
        let mut armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        if !*armed {
            // SAFETY: the queue lives while `self` does.
            if unsafe { rdma_sys::ibv_req_notify_cq(self.raw(), 0) } != 0 {
                count(&self.counters.cq_failures); // the device is gone: nothing will complete
            }
            *armed = true;
            return Poll::Ready(()); // completions that came before it was armed make no event
        }
        loop {
            let mut guard = match self.channel.poll_read_ready(cx) {
                Poll::Ready(Ok(guard)) => guard,
                // The runtime is ending: nobody will be woken.
                Poll::Ready(Err(_)) | Poll::Pending => return Poll::Pending,
            };
            let mut events = 0;
            while let Ok(Ok(())) = guard.try_io(|channel| self.next_event(channel.get_ref())) {
                events += 1;
            }
            if events > 0 {
                // SAFETY: as many events as were taken; destroying the queue waits for the acknowledgement.
                unsafe { rdma_sys::ibv_ack_cq_events(self.raw(), events) };
                *armed = false;
                return Poll::Ready(());
            }
        }
    }

    /// Takes one event of the channel, which only this queue uses.
    fn next_event(&self, channel: &Channel) -> io::Result<()> {
        let (mut cq, mut cookie) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is open during the borrow; the call writes the two pointers.
        match unsafe { rdma_sys::ibv_get_cq_event(channel.raw.get(), &raw mut cq, &raw mut cookie) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn posted(&self) -> MutexGuard<'_, Posted> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: this is the last owner: queue pairs keep an `Arc` of their queues. All events are acknowledged.
        if unsafe { rdma_sys::ibv_destroy_cq(self.raw()) } != 0 {
            count(&self.counters.destroy_failures);
        }
    }
}

fn completion(wc: &ibv_wc, work: Work) -> Completion {
    let Work { id, qpn, op, mut sg } = work;
    let status = Status(u8::try_from(wc.status).unwrap_or(Status::GENERAL_ERR.0));
    let received = status.is_ok() && op == CompletionOp::Recv;
    if received {
        let mut left = wc.byte_len as usize;
        for buf in &mut sg {
            let part = left.min(buf.capacity());
            buf.set_filled(part);
            left -= part;
        }
    }
    let with_imm = received && wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
    // SAFETY: both fields of the union are 32-bit numbers.
    let imm = with_imm.then(|| u32::from_be(unsafe { wc.imm_data_invalidated_rkey_union.imm_data }));
    let len = if received { wc.byte_len } else { 0 };
    Completion { id, qpn, status, op, len, imm, sg, from: None }
}

/// The channel on which one queue announces completions.
#[derive(Debug)]
struct Channel {
    raw: Raw<ibv_comp_channel>,
    /// Open until the channel is closed.
    _context: Arc<Context>,
}

impl Channel {
    fn new(context: Arc<Context>) -> Result<Self, DeviceError> {
        // SAFETY: the context is open while its `Arc` lives, and the channel keeps that.
        let channel = unsafe { rdma_sys::ibv_create_comp_channel(context.raw()) };
        Ok(Self { raw: Raw::new(channel, "create a completion channel")?, _context: context })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, and with it the descriptor, is open while `self` lives.
        unsafe { BorrowedFd::borrow_raw((*self.raw.get()).fd) }
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        self.fd().as_raw_fd()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: this is the last owner. Its queue is destroyed before: `Cq` drops it first. Were it not, the call would
        // refuse and leave the channel open.
        unsafe { rdma_sys::ibv_destroy_comp_channel(self.raw.get()) };
    }
}
