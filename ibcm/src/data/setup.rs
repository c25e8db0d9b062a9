//! A new queue pair with its completion queue and receive buffers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use ibdev::qp::{Init, OwnCqSpec, QpType, Rtr, Rts, Transition};
use ibdev::{Device, DeviceError, QueuePair, RecvWr};
use ibwire::Qpn;

use super::queues::DeviceSide;
use super::receives::{RECV_ID, Receives, Source};
use super::recv_pool::RecvPool;
use super::{Limits, Queues};
use crate::error::{QpStep, not_posted};
use crate::keepalive;
use crate::memory::Memory;
use crate::options::Options;
use crate::parked::Parked;
use crate::recv;
use crate::shared::Shared;

/// Operations that a connection has posted at once, and buffers for its copies, at most.
const SEND_DEPTH: u32 = 64;

/// A queue pair that serves no connection yet. Dropped, it is destroyed.
#[derive(Debug)]
pub(crate) struct Fresh {
    device: DeviceSide,
    receives: Receives,
    first: VecDeque<RecvWr>,
    copy_len: usize,
    limits: Limits,
    depth: u32,
    busy_poll: Duration,
}

/// Why a queue pair was not made ready.
#[derive(Debug)]
pub(crate) struct SetupError {
    pub(crate) step: QpStep,
    pub(crate) source: DeviceError,
}

impl QpStep {
    fn failed(self, source: DeviceError) -> SetupError {
        SetupError { step: self, source }
    }
}

impl Fresh {
    /// Creates a completion queue, a queue pair in RESET and the receive buffers. `options` have been checked.
    pub(crate) async fn create(
        device: &dyn Device,
        kind: QpType,
        memory: Memory,
        options: &Options,
    ) -> Result<Self, SetupError> {
        let (attr, recv) = (device.attr(), &options.recv);
        let keepalives = options.keepalive.map_or(0, |_| keepalive::MOST_WRITES);
        let depth = SEND_DEPTH.min(attr.max_qp_wr.saturating_sub(keepalives)).max(1);
        let send_depth = depth + keepalives;
        let (recv_depth, srq, count) = match recv.source() {
            // As many again, for buffers that the program posts.
            recv::Source::Own { count, .. } => {
                let count = *count as u32;
                (count.saturating_mul(2).min(attr.max_qp_wr), None, count)
            }
            recv::Source::Shared(queue) => (queue.queue().count(), Some(queue.queue().srq()), 0),
        };
        let spec = OwnCqSpec { srq, ..OwnCqSpec::new(kind, send_depth, recv_depth) };
        let created = memory.domain.create_qp_with_cq(device, spec).await;
        let (qp, cq) = created.map_err(|source| QpStep::Create.failed(source))?;
        let first = memory.receives(RECV_ID, count as usize, recv.len()).await;
        let first = first.map_err(|source| QpStep::Alloc.failed(source))?;
        let source = match recv.source() {
            recv::Source::Own { .. } => Source::Own(RecvPool::new(count, Arc::clone(&memory.spares))),
            recv::Source::Shared(queue) => Source::Shared(Arc::clone(queue.queue())),
        };
        Ok(Self {
            device: DeviceSide { qp, cq, memory },
            receives: Receives::new(source, recv_depth - count),
            first,
            copy_len: recv.len(),
            limits: Limits::of(attr),
            depth,
            busy_poll: options.busy_poll,
        })
    }

    pub(crate) fn qpn(&self) -> Qpn {
        self.device.qp.qpn()
    }

    pub(crate) fn qp(&self) -> Arc<dyn QueuePair> {
        Arc::clone(&self.device.qp)
    }

    /// Moves the queue pair to INIT and posts the receives: before the peer can know of it.
    pub(crate) async fn init(
        self,
        init: Init,
        parked: &Arc<Parked>,
        shared: &Shared,
    ) -> Result<Queues, SetupError> {
        let modified = self.device.qp.modify(Transition::Init(init)).await;
        modified.map_err(|source| QpStep::Init.failed(source))?;
        self.post(parked, shared)
    }

    /// Moves the queue pair to RTS and posts the receives: before the peer can know that it may send.
    pub(crate) async fn into_rts(
        self,
        init: Init,
        rtr: Rtr,
        rts: Rts,
        parked: &Arc<Parked>,
        shared: &Shared,
    ) -> Result<Queues, SetupError> {
        let all = [Transition::Init(init), Transition::Rtr(rtr), Transition::Rts(rts)];
        modify_all(&*self.device.qp, &all, &[QpStep::Init, QpStep::Rtr, QpStep::Rts]).await?;
        self.post(parked, shared)
    }

    fn post(self, parked: &Arc<Parked>, shared: &Shared) -> Result<Queues, SetupError> {
        let waker = Waker::from(Arc::clone(parked));
        let totals = Arc::clone(&shared.counters);
        let Self { device, receives, first, copy_len, limits, depth, busy_poll } = self;
        let mut queues = Queues::new(device, waker, limits, (depth, busy_poll), copy_len, receives, totals);
        let posted = queues.post_first_recv(first);
        posted.map_err(|error| QpStep::PostRecv.failed(not_posted(error)))?;
        Ok(queues)
    }
}

/// Moves a queue pair from INIT to RTS.
pub(crate) async fn to_rts(qp: &dyn QueuePair, rtr: Rtr, rts: Rts) -> Result<(), SetupError> {
    modify_all(qp, &[Transition::Rtr(rtr), Transition::Rts(rts)], &[QpStep::Rtr, QpStep::Rts]).await
}

async fn modify_all(qp: &dyn QueuePair, all: &[Transition], steps: &[QpStep]) -> Result<(), SetupError> {
    let modified = qp.modify_all(all).await;
    modified.map_err(|(place, source)| steps[place.min(steps.len() - 1)].failed(source))
}
