//! Handles of MAD agents.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use ibdev::{DeviceError, MadAgent, OutgoingMad, ReceivedMad};

use super::core::Core;
use crate::engine::AgentId;

/// The right to a management class on a port.
#[derive(Debug)]
pub(super) struct SoftAgent {
    pub core: Arc<Core>,
    pub id: AgentId,
}

impl MadAgent for SoftAgent {
    fn send(&self, batch: &mut VecDeque<OutgoingMad>) -> Result<(), DeviceError> {
        loop {
            let before = batch.len();
            self.core.with_live(|state| state.engine.send_mads(self.id, batch))?;
            // What has left made room for more, unless the link is full.
            if batch.is_empty() || batch.len() == before {
                return Ok(());
            }
        }
    }

    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), DeviceError>> {
        let mut state = self.core.lock();
        if state.gone {
            return Poll::Ready(Err(DeviceError::Gone));
        }
        if state.engine.mad_room(self.id) > 0 {
            return Poll::Ready(Ok(()));
        }
        let replaced = state.waiters.wait_room(self.id, cx);
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        out: &mut Vec<ReceivedMad>,
        max: usize,
    ) -> Poll<Result<(), DeviceError>> {
        let mut state = self.core.lock();
        if state.engine.poll_mads(self.id, out, max) > 0 {
            return Poll::Ready(Ok(()));
        }
        if state.gone {
            return Poll::Ready(Err(DeviceError::Gone));
        }
        let replaced = state.waiters.wait_mad(self.id, cx);
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for SoftAgent {
    fn drop(&mut self) {
        let mut state = self.core.lock();
        let waiting = state.waiters.forget_agent(self.id);
        state.engine.close_agent(self.id);
        drop(state);
        drop(waiting);
    }
}
