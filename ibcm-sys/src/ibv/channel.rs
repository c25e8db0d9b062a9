//! The completion channel of an HCA: completion queues announce there that something has completed.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Poll, Waker};

use ibdev::DeviceError;
use rdma_sys::ibv_comp_channel;
use tokio::io::unix::AsyncFd;

use super::{Context, Raw};
use crate::fd::{READABLE_OR_BROKEN, set_nonblocking};

/// Announcements handled before others have their turn.
const BUDGET: usize = 64;

/// The channel.
#[derive(Debug)]
pub(super) struct Channel {
    raw: Raw<ibv_comp_channel>,
    /// Open until the channel is closed.
    _context: Arc<Context>,
}

impl Channel {
    /// Slow.
    pub(super) fn new(context: Arc<Context>) -> Result<Self, DeviceError> {
        // SAFETY: the context is open while its `Arc` lives, and the channel keeps that.
        let channel = unsafe { rdma_sys::ibv_create_comp_channel(context.raw()) };
        let channel = Self { raw: Raw::new(channel, "create a completion channel")?, _context: context };
        set_nonblocking(channel.fd())?;
        Ok(channel)
    }

    pub(super) fn raw(&self) -> *mut ibv_comp_channel {
        self.raw.get()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, and with it the descriptor, is open while `self` lives.
        unsafe { BorrowedFd::borrow_raw((*self.raw()).fd) }
    }

    /// Takes one announcement and gives the number of its queue. It is acknowledged here, because destroying the queue
    /// waits for that.
    fn next(&self) -> io::Result<usize> {
        let (mut cq, mut cookie) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is open during the borrow; the call writes the two pointers. The queue that it names is not freed
        // before this announcement is acknowledged: `ibv_destroy_cq` waits for all that were read.
        unsafe {
            if rdma_sys::ibv_get_cq_event(self.raw(), &raw mut cq, &raw mut cookie) != 0 {
                return Err(io::Error::last_os_error());
            }
            rdma_sys::ibv_ack_cq_events(cq, 1);
        }
        Ok(cookie as usize)
    }

    /// Rings the bells of the queues as announcements come. Ends when the device is gone.
    pub(super) async fn serve(channel: AsyncFd<Arc<Self>>, bells: Arc<Bells>) {
        while let Ok(mut guard) = channel.ready(READABLE_OR_BROKEN).await {
            for _ in 0..BUDGET {
                match guard.get_inner().next() {
                    Ok(number) => {
                        bells.ring(number);
                        // Then there is no other one, and a look for it can be spared.
                        if bells.none_is_armed() {
                            guard.clear_ready();
                            break;
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        if guard.ready().is_error() {
                            return;
                        }
                        guard.clear_ready();
                        break;
                    }
                    Err(_) => return,
                }
            }
            tokio::task::yield_now().await;
        }
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        self.fd().as_raw_fd()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: this is the last owner. Queues keep the HCA, which keeps the channel, so none uses it any more. Were there one,
        // the call would refuse and leave the channel open.
        unsafe { rdma_sys::ibv_destroy_comp_channel(self.raw()) };
    }
}

/// The bells of an HCA's completion queues, by the numbers that the queues were made with.
#[derive(Debug, Default)]
pub(super) struct Bells {
    bells: Mutex<HashMap<usize, Arc<Bell>>>,
    next: AtomicUsize,
    armed: Arc<AtomicUsize>,
    /// They were rung without announcements, which may still come.
    is_over: AtomicBool,
}

impl Bells {
    /// A bell and its number.
    pub(super) fn add(&self) -> (usize, Arc<Bell>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let bell = Arc::new(Bell { state: Mutex::default(), all_armed: self.armed.clone() });
        self.bells().insert(number, bell.clone());
        (number, bell)
    }

    /// Its queue was destroyed, and announces nothing any more.
    pub(super) fn remove(&self, number: usize) {
        let bell = self.bells().remove(&number);
        if let Some(bell) = bell {
            bell.disarm(&mut bell.state());
        }
    }

    /// Whether all announcements have been taken: there is one at most for a bell that was armed.
    fn none_is_armed(&self) -> bool {
        self.armed.load(Ordering::Acquire) == 0 && !self.is_over.load(Ordering::Acquire)
    }

    fn ring(&self, number: usize) {
        let bell = self.bells().get(&number).cloned();
        if let Some(bell) = bell {
            bell.ring();
        }
    }

    /// The device is gone.
    pub(super) fn ring_all(&self) {
        self.is_over.store(true, Ordering::Release);
        let bells: Vec<_> = self.bells().values().cloned().collect();
        for bell in bells {
            bell.ring();
        }
    }

    fn bells(&self) -> MutexGuard<'_, HashMap<usize, Arc<Bell>>> {
        self.bells.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What tells a completion queue's reader that something has completed.
#[derive(Debug)]
pub(super) struct Bell {
    state: Mutex<BellState>,
    /// How many bells of the HCA are armed.
    all_armed: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct BellState {
    /// Whether the next completion is announced.
    armed: bool,
    rung: bool,
    reader: Option<Waker>,
}

impl Bell {
    pub(super) fn ring(&self) {
        let reader = {
            let mut state = self.state();
            self.disarm(&mut state);
            state.rung = true;
            state.reader.take()
        };
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Ready when the bell has rung since the last time, or when it has to be armed first, by `arm`.
    pub(super) fn poll(&self, cx: &TaskContext<'_>, arm: impl FnOnce()) -> Poll<()> {
        let mut state = self.state();
        if std::mem::take(&mut state.rung) {
            return Poll::Ready(());
        }
        if !state.armed {
            self.all_armed.fetch_add(1, Ordering::AcqRel); // before an announcement can come
            arm();
            state.armed = true;
            return Poll::Ready(()); // completions that came before it was armed are not announced
        }
        let before = match &state.reader {
            Some(reader) if reader.will_wake(cx.waker()) => None,
            _ => state.reader.replace(cx.waker().clone()),
        };
        drop(state);
        drop(before); // it may be the last of a task, and that the owner of this queue
        Poll::Pending
    }

    /// Nobody waits any more.
    pub(super) fn forget_reader(&self) {
        let reader = self.state().reader.take();
        drop(reader);
    }

    fn disarm(&self, state: &mut BellState) {
        if std::mem::take(&mut state.armed) {
            self.all_armed.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn state(&self) -> MutexGuard<'_, BellState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_is_armed_and_rings_once() {
        let (bells, mut armed) = (Bells::default(), 0);
        let (number, bell) = bells.add();
        let cx = TaskContext::from_waker(Waker::noop());
        let mut poll = |bell: &Bell| bell.poll(&cx, || armed += 1).is_ready();
        assert_eq!((poll(&bell), poll(&bell)), (true, false));
        bells.ring(number);
        assert_eq!((poll(&bell), poll(&bell), poll(&bell)), (true, true, false));
        bells.remove(number);
        bells.ring(number);
        assert!(!bell.state().rung, "its queue is destroyed");
        assert_eq!(armed, 2);
    }

    #[test]
    fn it_is_known_when_no_announcement_can_be_left() {
        let bells = Bells::default();
        let (one, other) = (bells.add(), bells.add());
        let cx = TaskContext::from_waker(Waker::noop());
        let arm = |(_, bell): &(usize, Arc<Bell>)| while bell.poll(&cx, || ()).is_ready() {};
        assert!(bells.none_is_armed());
        arm(&one);
        arm(&other);
        arm(&other);
        bells.ring(one.0);
        bells.ring(one.0);
        assert!(!bells.none_is_armed());
        bells.ring(other.0);
        assert!(bells.none_is_armed());
        arm(&one);
        bells.remove(one.0);
        assert!(bells.none_is_armed());
        // Rung by nothing that came by the channel: it may come yet.
        arm(&other);
        bells.ring_all();
        assert!(!bells.none_is_armed());
    }
}
