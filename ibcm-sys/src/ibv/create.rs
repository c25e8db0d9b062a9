//! Creating queue pairs.

use std::sync::Arc;

use ibdev::DeviceError;
use ibdev::qp::{OwnCqSpec, QpSpec, QpType};

use super::cq::{Need, Reservation, VerbsCq};
use super::domain::Domain;
use super::qp::{Qp, VerbsQp};
use super::srq::{Srq, VerbsSrq};
use super::{Hca, at_most};

/// What a queue pair is created with, beside its queues.
pub(super) struct Wants {
    pub(super) kind: QpType,
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_sge: u32,
}

impl Wants {
    /// If the device can have it.
    fn check(self, hca: &Hca, owns_receives: bool) -> Result<Self, DeviceError> {
        let device = hca.attr();
        at_most("send queue for", self.max_send_wr, device.max_qp_wr)?;
        if owns_receives {
            at_most("receive queue for", self.max_recv_wr, device.max_qp_wr)?;
        }
        at_most("buffers of a work request", self.max_sge, device.max_sge)?;
        hca.check_there()?;
        Ok(Self { max_sge: self.max_sge.max(1), ..self })
    }

    /// Places for receives.
    fn receives(&self, srq: Option<&Arc<Srq>>) -> Need {
        match srq {
            Some(srq) => Need::Shared { number: srq.number, max: srq.places.max() },
            None => Need::Own(self.max_recv_wr),
        }
    }
}

/// A queue pair in RESET.
pub(super) async fn queue_pair(domain: Arc<Domain>, spec: QpSpec) -> Result<VerbsQp, DeviceError> {
    let hca = domain.hca().clone();
    let QpSpec { kind, max_send_wr, max_recv_wr, max_sge, .. } = spec;
    let wants = Wants { kind, max_send_wr, max_recv_wr, max_sge }.check(&hca, spec.srq.is_none())?;
    let (send_cq, recv_cq) = (VerbsCq::of(&spec.send_cq, &hca)?, VerbsCq::of(&spec.recv_cq, &hca)?);
    let srq = spec.srq.as_ref().map(|srq| VerbsSrq::of(&**srq, &domain)).transpose()?;
    let send = Reservation::new(&send_cq, Need::Own(max_send_wr)).await?;
    let recv = Reservation::new(&recv_cq, wants.receives(srq.as_ref())).await?;
    let create = move || Ok(VerbsQp::new(Qp::new(domain, &wants, send, recv, srq)?));
    hca.slow("create a queue pair", create).await
}

/// A queue pair in RESET and a completion queue for it alone, by one slow call.
pub(super) async fn with_queue(
    domain: Arc<Domain>,
    spec: OwnCqSpec,
) -> Result<(VerbsQp, VerbsCq), DeviceError> {
    let hca = domain.hca().clone();
    let capacity = spec.capacity();
    VerbsCq::check(&hca, capacity)?;
    let OwnCqSpec { kind, max_send_wr, max_recv_wr, max_sge, srq } = spec;
    let wants = Wants { kind, max_send_wr, max_recv_wr, max_sge }.check(&hca, srq.is_none())?;
    let srq = srq.as_ref().map(|srq| VerbsSrq::of(&**srq, &domain)).transpose()?;
    let create = {
        let hca = hca.clone();
        move || {
            let cq = VerbsCq::new(&hca, capacity)?;
            let send = Reservation::of_new(cq.inner(), Need::Own(max_send_wr))?;
            let recv = Reservation::of_new(cq.inner(), wants.receives(srq.as_ref()))?;
            Ok((VerbsQp::new(Qp::new(domain, &wants, send, recv, srq)?), cq))
        }
    };
    hca.slow("create a queue pair and its completion queue", create).await
}
