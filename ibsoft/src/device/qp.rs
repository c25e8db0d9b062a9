//! Handles of queue pairs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use ibdev::qp::Transition;
use ibdev::{
    CompletionQueue, DeviceError, PostError, QueuePair, RawCounters, RawFilter, RecvWr, SendOp, SendWr,
    SharedReceiveQueue,
};
use ibwire::{Gid, Lid, Qpn};

use super::core::Core;
use super::domain::{Domain, SoftAh};

/// A queue pair; dropped, it is destroyed.
#[derive(Debug)]
pub(super) struct SoftQp {
    pub core: Arc<Core>,
    pub qpn: Qpn,
    /// Dropped behind the QP itself.
    pub _cqs: [Arc<dyn CompletionQueue>; 2],
    pub _srq: Option<Arc<dyn SharedReceiveQueue>>,
    pub domain: Arc<Domain>,
}

#[async_trait]
impl QueuePair for SoftQp {
    fn qpn(&self) -> Qpn {
        self.qpn
    }

    async fn modify(&self, transition: Transition) -> Result<(), DeviceError> {
        // What the QP has received it has acknowledged, whatever becomes of it.
        self.core.catch_up();
        // The buffers of a QP that was reset go home here, behind the mutex.
        self.core.with_live(|state| state.engine.modify(self.qpn, transition))?.map(drop)
    }

    async fn attach(&self, mgid: Gid, mlid: Lid) -> Result<(), DeviceError> {
        self.core.with_live(|state| {
            let (group, first) = state.engine.attach(self.qpn, mgid, mlid)?;
            if first && let Err(error) = state.link.join(&self.core, group) {
                state.engine.detach(self.qpn, mgid, mlid);
                return Err(error);
            }
            Ok(())
        })?
    }

    async fn detach(&self, mgid: Gid, mlid: Lid) -> Result<(), DeviceError> {
        self.core.with_live(|state| {
            if let Some(group) = state.engine.detach(self.qpn, mgid, mlid) {
                state.link.leave(group);
            }
        })
    }

    async fn set_raw_filter(&self, filter: RawFilter) -> Result<(), DeviceError> {
        self.core.with_live(|state| state.engine.set_raw_filter(self.qpn, filter))?
    }

    fn raw_counters(&self) -> Result<RawCounters, DeviceError> {
        let counters = self.core.lock_live()?.engine.raw_counters(self.qpn);
        counters.ok_or(DeviceError::Unsupported { what: "counters of a QP that is not raw" })
    }

    fn post_send(&self, work: &mut VecDeque<SendWr>) -> Result<(), PostError> {
        let post = |work: &mut VecDeque<SendWr>| {
            let result = self.core.with_live(|state| state.engine.post_send(self.qpn, work));
            result.unwrap_or(Err(PostError::Gone))
        };
        let Some(foreign) = work.iter().position(|wr| !self.owns_address(wr)) else { return post(work) };
        let mut rest = work.split_off(foreign);
        let result = post(work);
        work.append(&mut rest);
        result.and(Err(PostError::Invalid { why: "an address handle of another protection domain" }))
    }

    fn post_recv(&self, work: &mut VecDeque<RecvWr>) -> Result<(), PostError> {
        // Peers that found no receive ask again by themselves.
        self.core.with_silently(|state| match state.gone {
            true => Err(PostError::Gone),
            false => state.engine.post_recv(self.qpn, work),
        })
    }

    fn last_heard(&self) -> Result<Option<Instant>, DeviceError> {
        Ok(self.core.lock_live()?.engine.last_heard(self.qpn))
    }
}

impl SoftQp {
    /// Whether the address handle of a datagram is of the QP's protection domain.
    fn owns_address(&self, wr: &SendWr) -> bool {
        let SendOp::Datagram { to, .. } = &wr.op else { return true };
        let ah = to.ah.as_any().downcast_ref::<SoftAh>();
        ah.is_some_and(|ah| Arc::ptr_eq(&ah.domain, &self.domain))
    }
}

impl Drop for SoftQp {
    fn drop(&mut self) {
        self.core.catch_up();
        let homeless = self.core.with(|state| {
            for group in state.engine.detach_all(self.qpn) {
                state.link.leave(group);
            }
            state.engine.destroy_qp(self.qpn)
        });
        // Not under the mutex: a buffer's home may post it again.
        drop(homeless);
    }
}
