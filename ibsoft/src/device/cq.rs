//! Handles of completion queues.

use std::any::Any;
use std::sync::Arc;
use std::task::{Context, Poll};

use ibdev::{Completion, CompletionQueue};

use super::core::Core;
use crate::engine::CqId;

/// A completion queue. Its QPs hold it, so it is dropped last.
#[derive(Debug)]
pub(super) struct SoftCq {
    pub core: Arc<Core>,
    pub id: CqId,
}

impl CompletionQueue for SoftCq {
    fn poll(&self, out: &mut Vec<Completion>, max: usize) -> usize {
        self.core.lock().engine.poll_cq(self.id, out, max)
    }

    fn look(&self) -> bool {
        let waits = || self.core.lock().engine.cq_len(self.id) > 0;
        waits() || self.core.take_in() && waits()
    }

    fn poll_notified(&self, cx: &mut Context<'_>) -> Poll<()> {
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
