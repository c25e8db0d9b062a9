//! The passive side: a request, prepared with a queue pair, then the REP.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ibdev::DeviceError;
use ibwire::PrivateData;
use tracing::Instrument;

use super::guard::Handshake;
use super::local_qp::LocalQp;
use super::session::{Parts, Session};
use crate::backlog::Place;
use crate::clock::now;
use crate::closed::owned_area;
use crate::data::Queues;
use crate::error::{AcceptError, QpStep};
use crate::incoming::{IncomingRequest, Parts as Request, Waiting};
use crate::parked::Parked;
use crate::peer::Peer;
use crate::proto::message::{IpHeader, Req};
use crate::proto::{self, Attrs, CommandError, Invalid, Limit, Reject, Role, Value};
use crate::timing::DEADLINE;

/// A request that has been given a queue pair: what that has to be programmed with, before the REP goes out.
///
/// Move the queue pair to INIT and RTR with [`attrs`](Self::attrs), post its receives, [`reply`](Self::reply), then move it to
/// RTS. It may be in RTS before, too, but a device tells of data that comes before the RTU in RTR only. Nothing may be sent
/// before the reply is over: the peer may not be ready.
///
/// The peer is kept patient by MRAs meanwhile. Dropped, or [`reply`](Self::reply) dropped: it is rejected with reason 28.
#[derive(Debug)]
#[must_use = "dropped, the request is rejected"]
pub struct Offer {
    handshake: Handshake,
    /// In the window of its listener, if it came to one.
    place: Option<Place>,
    request: Box<proto::Request>,
    peer: Peer,
    by_ip: bool,
    accept: proto::Accept,
    attrs: Attrs,
    disconnect_data: PrivateData<224>,
    deadline: Duration,
}

impl IncomingRequest {
    /// Accepts with a queue pair of the program's own, step by step. It is in RESET; the [`Offer`] says what it has to be
    /// programmed with.
    ///
    /// # Errors
    /// [`AcceptError`]; the peer was rejected. [`AcceptError::Invalid`] for a number that no queue pair to be connected can
    /// have, for more reads at once than the device can or the peer offers, for a transport that the peer does not ask for;
    /// [`AcceptError::Qp`] if another connection has the number, TimeWait included.
    pub fn prepare(self, qp: LocalQp) -> Result<Offer, AcceptError> {
        if qp.transport != self.transport() {
            let must = Limit::Must("that of the request");
            let invalid = Invalid::new("transport of the queue pair", Value::Transport(qp.transport), must);
            return Err(invalid.into());
        }
        let Request { shared, waiting: Waiting { slot, request }, place, peer, by_ip } = self.into_parts();
        let _span = slot.span.clone().entered();
        let handshake = Handshake::new(Arc::clone(&shared), slot);
        let conn = handshake.slot().handle;
        let mut accept = proto::Accept::new(qp.qpn);
        accept.rd = qp.rd;
        accept.responder_resources = qp.responder_resources;
        accept.initiator_depth = qp.initiator_depth;
        accept.srq = qp.srq;
        accept.end_to_end_flow_control = qp.end_to_end_flow_control;
        accept.failover = qp.failover;
        let attrs = shared.engine().endpoint.accept_attrs(conn, &accept);
        let attrs = match attrs {
            Ok(attrs) => attrs,
            Err(error) => return Err(refused(&handshake, Some(place), error)),
        };
        let (place, disconnect_data, deadline) = (Some(place), PrivateData::EMPTY, DEADLINE);
        Ok(Offer { handshake, place, request, peer, by_ip, accept, attrs, disconnect_data, deadline })
    }
}

impl Offer {
    /// Takes the request of a peer that was asked, too.
    pub(super) fn to_peer(
        handshake: Handshake,
        request: Box<proto::Request>,
        accept: proto::Accept,
        disconnect_data: PrivateData<224>,
    ) -> Result<Self, AcceptError> {
        let conn = handshake.slot().handle;
        let attrs = handshake.shared().engine().endpoint.accept_attrs(conn, &accept);
        let attrs = match attrs {
            Ok(attrs) => attrs,
            Err(error) => return Err(refused(&handshake, None, error)),
        };
        let (peer, by_ip, deadline) = (Peer::of_request(&request), false, DEADLINE);
        Ok(Self { handshake, place: None, request, peer, by_ip, accept, attrs, disconnect_data, deadline })
    }

    /// What the queue pair has to be programmed with.
    pub const fn attrs(&self) -> Attrs {
        self.attrs
    }

    /// The whole request as it came.
    pub fn req(&self) -> &Req {
        &self.request.req
    }

    /// Who asks.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// What goes to the peer's program in the REP.
    pub fn private_data(mut self, data: impl Into<PrivateData<196>>) -> Self {
        self.accept.private_data = data.into();
        self
    }

    /// What goes to the peer's program in the DREP, should it disconnect first.
    pub fn disconnect_data(mut self, data: impl Into<PrivateData<224>>) -> Self {
        self.disconnect_data = data.into();
        self
    }

    /// How often the peer repeats a message that finds no receive posted, 0..=7; 7, the default, is for ever.
    pub fn rnr_retry_count(mut self, count: u8) -> Self {
        self.accept.rnr_retry_count = count;
        self
    }

    /// How long it may take from the first poll of the reply until the peer has confirmed. More than zero; default 10 s.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sends the REP and waits until both sides may send: for the RTU, or for the peer's first data if the device, or
    /// [`Hca::comm_established`](crate::Hca::comm_established), tells of it.
    ///
    /// # Errors
    /// [`AcceptError`]. If no confirmation came, the queue pair's number stays in use until TimeWait is over.
    ///
    /// # Cancel safety
    /// Dropped, the peer is rejected with reason 28; if it had confirmed already, it is disconnected in the background. The
    /// queue pair's number is in use until TimeWait is over.
    pub async fn reply(self) -> Result<Session, AcceptError> {
        Invalid::more_than_zero("deadline", self.deadline)?;
        let deadline = now().checked_add(self.deadline);
        let span = self.handshake.slot().span.clone();
        self.reply_until(deadline).instrument(span).await
    }

    /// The same, with a deadline that runs already.
    pub(crate) async fn reply_until(mut self, deadline: Option<Instant>) -> Result<Session, AcceptError> {
        let shared = self.handshake.shared();
        let conn = self.handshake.slot().handle;
        self.accept.deadline = deadline;
        let replied = shared.command(|engine| {
            engine.endpoint.set_disconnect_data(conn, self.disconnect_data)?;
            engine.endpoint.accept(now(), conn, self.accept)
        });
        match replied {
            Ok(()) => {
                if let Some(place) = self.place {
                    place.accepted();
                }
            }
            Err(error) => return Err(refused(&self.handshake, self.place, error)),
        }
        self.handshake.established().await?;
        let req = &self.request.req;
        let private_data = match self.by_ip {
            true => &req.private_data[IpHeader::LEN..],
            false => &req.private_data[..],
        };
        let parts = Parts {
            role: Role::Passive,
            transport: self.request.transport,
            peer: self.peer,
            service_id: req.service_id,
            private_data: owned_area(private_data),
        };
        Ok(Session::new(self.handshake, parts))
    }

    /// Rejects after all. The same REJ meets the peer's repetitions for a while.
    pub fn reject(self, reject: impl Into<Reject>) {
        self.handshake.reject(reject.into());
    }

    /// Who waits for something of the connection.
    pub(crate) fn parked(&self) -> &Arc<Parked> {
        &self.handshake.slot().parked
    }

    /// What the queue pair moves belongs to the connection from here on.
    pub(crate) fn attach(&self, mut queues: Queues) {
        let (shared, slot) = (self.handshake.shared(), self.handshake.slot());
        queues.attach(shared, slot.handle);
        queues.set_initiator_depth(self.attrs.rts.max_rd_atomic);
        slot.with(shared, |state| state.queues = Some(queues));
    }

    /// The same with queues that belong to it already.
    pub(crate) fn set_initiator_depth(&self) {
        self.handshake.slot().with(self.handshake.shared(), |state| {
            if let Some(queues) = &mut state.queues {
                queues.set_initiator_depth(self.attrs.rts.max_rd_atomic);
            }
        });
    }
}

fn refused(handshake: &Handshake, place: Option<Place>, error: CommandError) -> AcceptError {
    match error {
        CommandError::Invalid(invalid) => invalid.into(),
        CommandError::QpInUse(_) => {
            let what = "the queue pair's number";
            let source = DeviceError::InUse { what, holder: "another connection, maybe in TimeWait" };
            AcceptError::Qp { step: QpStep::Create, source }
        }
        _ => {
            if let Some(place) = place
                && matches!(error, CommandError::Gone)
            {
                place.withdrawn();
            }
            let end = handshake.slot().with(handshake.shared(), |state| state.end.clone());
            end.map_or(AcceptError::Withdrawn, AcceptError::from)
        }
    }
}
