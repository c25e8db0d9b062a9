//! A new queue pair with its completion queue and receive buffers.

use std::sync::Arc;
use std::task::Waker;

use ibdev::qp::{Init, QpSpec, QpType, Rtr, Rts, Transition};
use ibdev::{Buf, CompletionQueue, Device, DeviceError, PostError, QueuePair};
use ibwire::Qpn;

use super::{Queues, RecvPool, Spares};
use crate::error::QpStep;
use crate::message::Recv;
use crate::parked::Parked;
use crate::shared::Shared;

/// Sends that a connection has posted at once, and buffers for `send_copy`, at most.
const SEND_DEPTH: u32 = 64;

/// A queue pair that serves no connection yet. Dropped, it is destroyed.
#[derive(Debug)]
pub(crate) struct Fresh {
    qp: Arc<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
    bufs: Vec<Buf>,
    recv: Recv,
    depth: u32,
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
    /// Creates a completion queue, a queue pair in RESET and the receive buffers. `recv` has been checked.
    pub(crate) async fn create(device: &dyn Device, spares: &Spares, recv: Recv) -> Result<Self, SetupError> {
        let depth = SEND_DEPTH.min(device.attr().max_qp_wr);
        let domain = device.domain();
        let create = async {
            let cq = device.create_cq(depth + recv.count()).await?;
            let spec = QpSpec::new(QpType::Rc, &cq, depth, recv.count());
            Ok((domain.create_qp(spec).await?, cq))
        };
        let (qp, cq) = create.await.map_err(|source| QpStep::Create.failed(source))?;
        let mut bufs = spares.take(recv.count() as usize, recv.len());
        let missing = recv.count() as usize - bufs.len();
        if missing > 0 {
            let made = domain.alloc(missing, recv.len()).await;
            bufs.extend(made.map_err(|source| QpStep::Alloc.failed(source))?);
        }
        Ok(Self { qp, cq, bufs, recv, depth })
    }

    pub(crate) fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    pub(crate) fn qp(&self) -> Arc<dyn QueuePair> {
        Arc::clone(&self.qp)
    }

    /// Moves the queue pair to INIT and posts the receives: before the peer can know of it.
    pub(crate) async fn init(
        self,
        init: Init,
        parked: &Arc<Parked>,
        shared: &Shared,
    ) -> Result<(Queues, Arc<RecvPool>), SetupError> {
        let modified = self.qp.modify(Transition::Init(init)).await;
        modified.map_err(|source| QpStep::Init.failed(source))?;
        let pool = RecvPool::new(self.recv.count(), Arc::clone(&shared.spares));
        let waker = Waker::from(Arc::clone(parked));
        let mut queues = Queues::new(
            self.qp,
            self.cq,
            waker,
            self.depth,
            self.recv.len(),
            Arc::clone(&pool),
            Arc::clone(&shared.counters),
        );
        let posted = queues.post_recv(Queues::recv_work(self.bufs));
        posted.map_err(|error| QpStep::PostRecv.failed(post_error(error)))?;
        Ok((queues, pool))
    }
}

/// Moves a queue pair from INIT to RTS.
pub(crate) async fn to_rts(qp: &dyn QueuePair, rtr: Rtr, rts: Rts) -> Result<(), SetupError> {
    qp.modify(Transition::Rtr(rtr)).await.map_err(|source| QpStep::Rtr.failed(source))?;
    qp.modify(Transition::Rts(rts)).await.map_err(|source| QpStep::Rts.failed(source))
}

fn post_error(error: PostError) -> DeviceError {
    match error {
        PostError::State { state } => DeviceError::State { state },
        PostError::TooLong { len, limit } => {
            DeviceError::Limit { what: "receive buffer", value: len as u64, limit: limit as u64 }
        }
        PostError::Invalid { why } => DeviceError::Unsupported { what: why },
        PostError::Gone => DeviceError::Gone,
        _ => DeviceError::Unsupported { what: "so many posted receives" },
    }
}
