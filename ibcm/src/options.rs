//! What both [`Connect`](crate::Connect) and [`Accept`](crate::Accept) let a program choose for its own side.

use std::sync::Arc;
use std::time::Duration;

use ibdev::DeviceAttr;
use ibdev::qp::QpType;
use ibwire::{PrivateData, Qpn};

use crate::handshake::LocalQp;
use crate::memory::{Domain, Memory};
use crate::proto::{Invalid, Limit, Transport, Value};
use crate::recv::{Recv, Source};
use crate::shared::{Shared, Unavailable};
use crate::shared_recv::SharedRecv;
use crate::{busy_poll, keepalive};

/// One side's queue pair and what it offers.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) disconnect_data: PrivateData<224>,
    pub(crate) recv: Recv,
    pub(crate) domain: Option<Domain>,
    pub(crate) keepalive: Option<Duration>,
    pub(crate) busy_poll: Duration,
    pub(crate) responder_resources: Option<u8>,
    pub(crate) initiator_depth: Option<u8>,
    pub(crate) rnr_retry_count: u8,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            disconnect_data: PrivateData::EMPTY,
            recv: Recv::default(),
            domain: None,
            keepalive: None,
            busy_poll: Duration::ZERO,
            responder_resources: None,
            initiator_depth: None,
            rnr_retry_count: 7,
        }
    }
}

impl Options {
    /// What the peer is told of the queue pair.
    pub(crate) fn local_qp(&self, kind: QpType, qpn: Qpn) -> LocalQp {
        let qp = match kind {
            QpType::Uc => LocalQp::uc(qpn),
            _ => LocalQp::rc(qpn),
        };
        qp.srq(self.recv.is_shared())
            .responder_resources(self.responder_resources)
            .initiator_depth(self.initiator_depth)
    }

    /// The type of queue pair that a connection of this transport has.
    pub(crate) fn qp_type(&self, transport: Transport) -> Result<QpType, Invalid> {
        match (transport, self.keepalive) {
            (Transport::Rc, _) => Ok(QpType::Rc),
            (Transport::Uc, None) => Ok(QpType::Uc),
            (Transport::Uc, Some(period)) => {
                let must = Limit::Must("left out: nothing on an unreliable connection is answered");
                Err(Invalid::new("keepalive period", Value::Time(period), must))
            }
            (Transport::Rd | Transport::Xrc, _) => {
                let must = Limit::Must("RC or UC; only handshake has others");
                Err(Invalid::new("transport", Value::Transport(transport), must))
            }
        }
    }

    /// Checks receives and times, and finds the domain: the one that was named, else that of shared receives, else
    /// the common one.
    pub(crate) fn memory<E>(&self, shared: &Arc<Shared>, device: &DeviceAttr) -> Result<Memory, E>
    where
        E: From<Invalid> + From<Unavailable>,
    {
        self.recv.check(device)?;
        keepalive::check(self.keepalive)?;
        busy_poll::check(self.busy_poll)?;
        let named = match &self.domain {
            Some(domain) if !Arc::ptr_eq(domain.hca().shared(), shared) => {
                let (of, must) = (Value::Gid(domain.hca().gid()), Limit::Must("the connection's"));
                return Err(Invalid::new("the HCA of the domain", of, must).into());
            }
            named => named.as_ref().map(Domain::memory),
        };
        let wrong_queue = |queue: &SharedRecv, words| {
            let number = Value::Number(queue.queue().number().into());
            Invalid::new("the shared receive queue", number, Limit::Must(words)).into()
        };
        let of_queue = match self.recv.source() {
            Source::Own { .. } => None,
            Source::Shared(queue) if !queue.is_of(shared) => {
                return Err(wrong_queue(queue, "one of the same HCA"));
            }
            Source::Shared(queue) => Some((queue, queue.queue().memory())),
        };
        match (named, of_queue) {
            (Some(named), Some((queue, of_queue))) if !named.is_same(of_queue) => {
                Err(wrong_queue(queue, "one of the domain that was named"))
            }
            (Some(memory), _) | (None, Some((_, memory))) => Ok(memory.clone()),
            (None, None) => Ok(shared.memory()?),
        }
    }
}

/// The setters of [`Options`], for a builder whose method `option` changes them.
macro_rules! option_setters {
    () => {
        /// What goes to the peer's program in the DREP, should it disconnect first.
        pub fn disconnect_data(self, data: impl Into<ibwire::PrivateData<224>>) -> Self {
            self.option(|options| options.disconnect_data = data.into())
        }

        /// The receive buffers. Default: 16 of 4 KiB, the connection's own.
        pub fn recv(self, recv: crate::Recv) -> Self {
            self.option(|options| options.recv = recv)
        }

        /// The protection domain. The connection reaches memory of this domain only, and its peer regions of this
        /// domain only. Default: that of shared receives, if they are used; else the HCA's common one.
        pub fn domain(self, domain: &crate::Domain) -> Self {
            self.option(|options| options.domain = Some(domain.clone()))
        }

        /// Notices a peer that is gone although nothing is sent: when it was not heard for this period, this side asks
        /// by a zero-length RDMA write, and after two periods of silence the connection fails, whatever the retries of
        /// its queue pair: [`RecvError::Silent`](crate::RecvError::Silent), [`OpCause::Silent`](crate::OpCause::Silent),
        /// [`How::Silent`](crate::How::Silent). From 500 ms to a day. Default: none.
        ///
        /// Any packet of the peer is a sign of life, also that it is not ready to receive. Its queue pair has to
        /// allow remote writes, as those of this crate and of librdmacm do. A device that does not tell when it has
        /// heard the peer, as Linux's verbs do not, leaves it to the retries while operations of ours are under
        /// way.
        pub fn keepalive(self, period: std::time::Duration) -> Self {
            self.option(|options| options.keepalive = Some(period))
        }

        /// How long whoever waits for a message or for an operation looks again and again before it sleeps. What comes
        /// within this time is there without anybody being woken: a few microseconds earlier. Until 10 ms; default 0.
        ///
        /// The thread does nothing else meanwhile, in each of these waits: other tasks of a current-thread runtime wait,
        /// and so do this crate's own, which answer peers and keep times. The soft device receives in the place of its
        /// own task then. A time a little longer than the peer takes to answer is enough.
        pub fn busy_poll(self, time: std::time::Duration) -> Self {
            self.option(|options| options.busy_poll = time)
        }

        /// How many RDMA reads and atomics of the peer this side serves at once; 0 also closes its memory to them.
        /// Default: as many as the device can, and on the accepting side no more than the peer asks for.
        pub fn responder_resources(self, count: u8) -> Self {
            self.option(|options| options.responder_resources = Some(count))
        }

        /// How many RDMA reads and atomics this side will have outstanding; more wait in the send queue. With 0
        /// there are none: [`read`](crate::Connection::read) and the atomics are refused. Default: as many as the
        /// device can and the peer serves.
        pub fn initiator_depth(self, count: u8) -> Self {
            self.option(|options| options.initiator_depth = Some(count))
        }

        /// How often the peer repeats a message that finds no receive posted, 0..=7; 7, the default, is for ever.
        /// With less, a slow reader on this side breaks the connection: the peer's send fails with
        /// [`RNR_RETRY_EXC_ERR`](crate::Status::RNR_RETRY_EXC_ERR).
        pub fn rnr_retry_count(self, count: u8) -> Self {
            self.option(|options| options.rnr_retry_count = count)
        }
    };
}

pub(crate) use option_setters;
