//! Raw queue pairs: packets without a transport header (spec/raw.md 3, 4).
//!
//! Nothing of a raw packet names a queue pair. Those that may take it stand in [`Raws`]; each one whose filter lets a
//! packet in gets a copy.

mod ingress;
mod raws;
mod send;

use std::collections::VecDeque;

use ibdev::qp::QpType;
use ibdev::{CompletionOp, DeviceError, DeviceEvent, RawCounters, RawSource, RecvWr, Status};
use ibwire::Qpn;
use ibwire::packet::NextHeader;

use super::Engine;
use super::post::Work;
use super::qp::{Kind, Qp, State};
use super::sg;
use super::shared::{Arrival, Shared};

pub(super) use raws::Raws;
pub(super) use send::{Local, RawAddress};

/// What makes a QP a raw one.
#[derive(Debug)]
pub(super) struct Raw {
    /// What follows the LRH of its packets.
    next: NextHeader,
    work: VecDeque<(Work, RawAddress)>,
    counters: RawCounters,
    /// Packets lost since the last completion of a receive.
    lost: u32,
}

/// Why a raw QP stops, in the classes of IBTA (spec/raw.md 3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RawFailure {
    /// Class A: the receive that a packet was to go to cannot be carried out.
    Receive,
    /// Class C: of the device itself.
    Device,
    /// Classes F and G: there is no room for a completion.
    Completion,
}

impl Raw {
    /// Nothing for a QP type that is not raw.
    pub(super) fn new(kind: QpType) -> Option<Self> {
        let next = match kind {
            QpType::RawIpv6 => NextHeader::RawIpv6,
            QpType::RawEtherType => NextHeader::RawEtherType,
            _ => return None,
        };
        Some(Self { next, work: VecDeque::new(), counters: RawCounters::default(), lost: 0 })
    }

    /// As new.
    pub(super) fn reset(&mut self) {
        *self = Self { next: self.next, work: VecDeque::new(), counters: RawCounters::default(), lost: 0 };
    }

    pub(super) fn next(&self) -> NextHeader {
        self.next
    }

    pub(super) fn counters(&self) -> RawCounters {
        self.counters
    }

    fn lose(&mut self) {
        self.lost = self.lost.saturating_add(1);
    }
}

impl Qp {
    pub(super) fn raw(&self) -> Option<&Raw> {
        match &self.kind {
            Kind::Raw(raw) => Some(raw),
            Kind::Rc(_) | Kind::Uc(_) | Kind::Ud(_) => None,
        }
    }

    fn raw_mut(&mut self) -> Option<&mut Raw> {
        match &mut self.kind {
            Kind::Raw(raw) => Some(raw),
            Kind::Rc(_) | Kind::Uc(_) | Kind::Ud(_) => None,
        }
    }

    /// Takes a packet into the first receive if it fits, else it is lost and the receive stays (class D).
    fn receive_raw(&mut self, data: &[u8], mut source: RawSource, shared: &mut Shared) {
        let receives =
            self.state == State::ReadyToReceive || self.state.sends() || self.state == State::SendError;
        if !receives {
            shared.counters.drop_state += 1;
            return;
        }
        let Some(receive) = self.receives.peek(shared) else {
            shared.counters.drop_raw_no_receive += 1;
            if let Some(raw) = self.raw_mut() {
                raw.counters.no_receive += 1;
                raw.lose();
            }
            return;
        };
        if receive.sg.iter().any(|buf| buf.memory_key().is_some()) {
            self.fail_raw(RawFailure::Receive, shared);
            return;
        }
        if data.len() > sg::capacity(&receive.sg) {
            shared.counters.drop_raw_too_long += 1;
            if let Some(raw) = self.raw_mut() {
                raw.counters.too_long += 1;
                raw.lose();
            }
            return;
        }
        if !shared.has_room(self.rq.cq) {
            self.fail_raw(RawFailure::Completion, shared);
            return;
        }
        let Some(RecvWr { id, mut sg }) = self.receives.take(shared) else { return };
        sg::scatter(&mut sg, 0, data);
        sg::set_filled(&mut sg, data.len());
        if let Some(raw) = self.raw_mut() {
            raw.counters.received += 1;
            source.lost_before = std::mem::take(&mut raw.lost);
        }
        let (op, len) = (CompletionOp::Recv, data.len() as u32);
        let arrival = Arrival { op, len, imm: None, from: None, raw: Some(source) };
        self.rq.complete(shared, id, sg, Status::SUCCESS, arrival);
    }

    /// To SQE: the failed send first, then the rest as flushed. Receiving goes on (class B).
    fn fail_send_queue(&mut self, status: Status, shared: &mut Shared) {
        self.state = State::SendError;
        let mut status = Some(status);
        while let Some(work) = self.kind.pop_send() {
            work.fail(status.take().unwrap_or(Status::WR_FLUSH_ERR), &self.sq, shared);
        }
    }

    /// To ERR.
    fn fail_raw(&mut self, failure: RawFailure, shared: &mut Shared) {
        if self.state == State::Error {
            return;
        }
        tracing::debug!(qpn = %self.qpn, ?failure, "raw QP failed");
        shared.counters.qp_errors += 1;
        match failure {
            RawFailure::Receive => {
                if let Some(RecvWr { id, sg }) = self.receives.take(shared) {
                    self.rq.plain(shared, CompletionOp::Recv, id, sg, Status::LOC_QP_OP_ERR);
                }
            }
            RawFailure::Device => shared.device_event(DeviceEvent::QpError(self.qpn)),
            RawFailure::Completion => {
                for cq in [self.sq.cq, self.rq.cq] {
                    if let Some(cq) = shared.cq(cq).filter(|cq| !cq.has_room()) {
                        cq.fail();
                    }
                }
                shared.device_event(DeviceEvent::CqError(self.qpn));
            }
        }
        self.flush(shared);
    }
}

impl Engine {
    /// What has become of packets for a raw QP; `None` if there is no such QP or it is none.
    pub fn raw_counters(&self, qpn: Qpn) -> Option<RawCounters> {
        Some(self.qps.get(qpn)?.raw()?.counters())
    }

    /// Lets a raw QP fail as if the device did: a fault for tests of what is above it (class C of IBTA).
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] for another QP.
    pub fn break_raw_qp(&mut self, qpn: Qpn) -> Result<(), DeviceError> {
        let qp = self.qps.get_mut(qpn).filter(|qp| qp.raw().is_some());
        let qp = qp.ok_or(DeviceError::Unsupported { what: "a fault of a QP that is not raw" })?;
        if qp.state != State::Reset {
            qp.fail_raw(RawFailure::Device, &mut self.shared);
        }
        Ok(())
    }
}
