//! Handles of shared receive queues.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

use ibdev::{DeviceError, PostError, RecvWr, SharedReceiveQueue};

use super::core::Core;
use super::domain::Domain;
use crate::engine::SrqId;

/// A shared receive queue. Its QPs hold it, so it is dropped last; its buffers go home then.
#[derive(Debug)]
pub(super) struct SoftSrq {
    pub domain: Arc<Domain>,
    pub id: SrqId,
}

impl SoftSrq {
    pub(super) fn core(&self) -> &Arc<Core> {
        &self.domain.core
    }
}

impl SharedReceiveQueue for SoftSrq {
    fn number(&self) -> u32 {
        self.id.number()
    }

    fn post_recv(&self, work: &mut VecDeque<RecvWr>) -> Result<(), PostError> {
        // No QP has anything to send because of it: peers ask again by themselves.
        let mut state = self.core().lock();
        if state.gone {
            return Err(PostError::Gone);
        }
        state.engine.post_srq_recv(self.id, work)
    }

    fn set_limit(&self, limit: u32) -> Result<(), DeviceError> {
        self.core().with_live(|state| state.engine.set_srq_limit(self.id, limit))?
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for SoftSrq {
    fn drop(&mut self) {
        let homeless = self.core().lock().engine.destroy_srq(self.id);
        // Not under the mutex: a buffer's home may post it again.
        drop(homeless);
    }
}
