//! Queue pairs without a connection manager: the device contract with one buffer a work request.
//!
//! A [`RcQp`] stands for a queue pair that a program has from elsewhere, rdma-sys or rust-ibverbs, in tests and where there
//! is no RDMA hardware. [`handshake`](crate::handshake) connects either.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use ibdev::qp::{OwnCqSpec, QpType, Transition};
use ibdev::{Buf, CompletionQueue, DeviceError, QueuePair, RecvWr, RemoteAddr, SendOp, SendWr};
use ibwire::{Qpn, RKey};

pub use ibdev::{Completion, CompletionOp};

use crate::error::{Error, not_posted};
use crate::hca::Hca;
use crate::proto::{Invalid, Limit, Value};

/// Work requests that a queue pair holds in each direction, unless told otherwise.
const DEPTH: u32 = 64;

/// Makes queue pairs: [`Hca::verbs`].
#[derive(Debug)]
pub struct Verbs<'a> {
    hca: &'a Hca,
    depth: Option<u32>,
}

/// A queue pair of a reliable connection with a completion queue of its own, in RESET at first. It reaches buffers of
/// [`Hca::alloc`] and [`Hca::pool`]. Dropped, it is destroyed: what is posted never completes.
pub struct RcQp {
    qp: Arc<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
}

impl Hca {
    /// The device's queue pairs, for programs that connect them by [`handshake`](crate::handshake).
    pub const fn verbs(&self) -> Verbs<'_> {
        Verbs { hca: self, depth: None }
    }
}

impl Verbs<'_> {
    /// Room for so many work requests in each direction. Default: 64, or as many as the device can.
    #[must_use]
    pub const fn depth(self, work_requests: u32) -> Self {
        Self { depth: Some(work_requests), ..self }
    }

    /// Creates a queue pair.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no work request or more than the device has room for; [`Error::Device`]; [`Error::Closed`] once the
    /// HCA is closed.
    ///
    /// # Cancel safety
    /// Dropped, nothing is left behind.
    pub async fn create_rc_qp(&self) -> Result<RcQp, Error> {
        let device = self.hca.shared().device()?;
        // Both directions complete on one queue.
        let max = device.attr().max_qp_wr.min(device.attr().max_cqe / 2);
        let depth = self.depth.unwrap_or(DEPTH.min(max));
        Invalid::at_most("depth", depth, max)?;
        if depth == 0 {
            return Err(Invalid::new("depth", Value::Number(0), Limit::AtLeast(Value::Number(1))).into());
        }
        let spec = OwnCqSpec::new(QpType::Rc, depth, depth);
        let (qp, cq) = device.domain().create_qp_with_cq(&*device, spec).await?;
        Ok(RcQp { qp, cq })
    }
}

impl RcQp {
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// Changes its state: takes [`Attrs`](crate::qp::Attrs) step by step, or any [`Transition`].
    ///
    /// # Errors
    /// [`DeviceError::State`] if the state table has no such change, [`DeviceError::Limit`] for an attribute out of range.
    ///
    /// # Cancel safety
    /// Dropped, the change may or may not have happened.
    pub async fn modify(&self, step: impl Into<Transition>) -> Result<(), DeviceError> {
        self.qp.modify(step.into()).await
    }

    /// Changes its state several times, in this order, up to the first change that fails. Where a change is a slow call this is one
    /// for all: `qp.modify_all(&[attrs.init.into(), attrs.rtr.into(), attrs.rts.into()])`.
    ///
    /// # Errors
    /// As [`modify`](Self::modify), of the change that failed.
    ///
    /// # Cancel safety
    /// Dropped, any of the changes may have happened.
    pub async fn modify_all(&self, steps: &[Transition]) -> Result<(), DeviceError> {
        self.qp.modify_all(steps).await.map_err(|(_, error)| error)
    }

    /// Posts a buffer for one message, from INIT on.
    ///
    /// # Errors
    /// [`DeviceError::InUse`] while the queue is full, whose places [`completion`](Self::completion) frees; others for the wrong state
    /// or a buffer of another device. The buffer goes home.
    pub fn post_recv(&self, buf: Buf) -> Result<(), DeviceError> {
        self.qp.post_recv(&mut VecDeque::from([RecvWr::new(0, buf)])).map_err(not_posted)
    }

    /// Posts a message, in RTS.
    ///
    /// # Errors
    /// As [`post_recv`](Self::post_recv).
    pub fn post_send(&self, buf: Buf) -> Result<(), DeviceError> {
        let work = SendWr::new(0, SendOp::Send { imm: None }, buf);
        self.qp.post_send(&mut VecDeque::from([work])).map_err(not_posted)
    }

    /// Posts an RDMA write of no length, in RTS: it completes well when the peer's device has answered it, and takes no
    /// receive and no memory of the peer. For a connection that may be idle: a queue pair that sends nothing never learns
    /// that its peer is gone.
    ///
    /// # Errors
    /// As [`post_recv`](Self::post_recv).
    pub fn post_probe(&self) -> Result<(), DeviceError> {
        let to = RemoteAddr { addr: 0, rkey: RKey(0) };
        let work = SendWr::new(0, SendOp::Write { to, imm: None }, Buf::unregistered(0));
        self.qp.post_send(&mut VecDeque::from([work])).map_err(not_posted)
    }

    /// The next completion, of either direction, well or ill ([`Completion::status`]). One task at a time can wait.
    ///
    /// # Cancel safety
    /// A dropped future loses no completion.
    pub async fn completion(&self) -> Completion {
        let mut done = Vec::with_capacity(1);
        poll_fn(|cx| {
            loop {
                self.cq.poll(&mut done, 1);
                match done.pop() {
                    Some(completion) => return Poll::Ready(completion),
                    None if self.cq.poll_notified(cx).is_pending() => return Poll::Pending,
                    None => {}
                }
            }
        })
        .await
    }
}

impl fmt::Debug for RcQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RcQp").field("qpn", &self.qpn()).finish_non_exhaustive()
    }
}
