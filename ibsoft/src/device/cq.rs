//! Handles of completion queues.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use ibdev::{Completion, CompletionQueue};

use super::core::Core;
use crate::engine::CqId;

/// A completion queue. Its QPs hold it, so it is dropped last.
#[derive(Debug)]
pub(super) struct SoftCq {
    pub core: Arc<Core>,
    pub id: CqId,
    /// How often it was looked at and empty since somebody began to wait.
    spins: AtomicU32,
}

/// So often may a program look that is about to wait.
const SPINS: u32 = 8;

impl SoftCq {
    pub(super) const fn new(core: Arc<Core>, id: CqId) -> Self {
        Self { core, id, spins: AtomicU32::new(0) }
    }
}

impl CompletionQueue for SoftCq {
    fn poll(&self, out: &mut Vec<Completion>, max: usize) -> usize {
        let poll = |out: &mut Vec<Completion>| self.core.lock().engine.poll_cq(self.id, out, max);
        let count = poll(out);
        if count > 0 {
            return count;
        }
        // Who looks again and again instead of waiting wants it faster than the link's task, which has to be woken first.
        let spins = self.spins.fetch_add(1, Ordering::Relaxed);
        if spins >= SPINS && self.core.take_in() { poll(out) } else { 0 }
    }

    fn poll_notified(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.spins.store(0, Ordering::Relaxed);
        let mut state = self.core.lock();
        if state.engine.cq_len(self.id) > 0 {
            return Poll::Ready(());
        }
        let replaced = state.waiters.wait_cq(self.id, cx);
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for SoftCq {
    fn drop(&mut self) {
        let mut state = self.core.lock();
        let waiting = state.waiters.forget_cq(self.id);
        // No QP completes here any more, so nothing is in it and nothing refuses.
        _ = state.engine.destroy_cq(self.id);
        drop(state);
        drop(waiting);
    }
}
