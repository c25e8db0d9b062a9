//! The active side: the REQ, the REP, then the RTU.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ibwire::{PathRecord, PrivateData, ServiceId};
use tracing::Span;

use super::guard::{Answer, Handshake};
use super::local_qp::LocalQp;
use super::passive::Offer;
use super::session::{Parts, Session};
use crate::clock::now;
use crate::closed::owned_area;
use crate::data::Queues;
use crate::error::{Attempts, ConnectError};
use crate::parked::Parked;
use crate::path::Path;
use crate::peer::Peer;
use crate::proto::message::Rep;
use crate::proto::{self, Attrs, CommandError, Effort, Invalid, Reject, Role, Transport};
use crate::shared::Shared;
use crate::slot::End;
use crate::timing::Timing;

/// What a REQ says of time and repetition.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) response_timeout: Option<Duration>,
    pub(crate) max_cm_retries: Option<u8>,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
}

/// What is left of the time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Left {
    pub(crate) left: Duration,
    /// What measures the waits between REQs.
    pub(crate) for_waits: Duration,
    pub(crate) deadline: Option<Instant>,
}

impl Terms {
    /// The REQ.
    pub(crate) fn request(
        &self,
        path: &Path,
        service_id: ServiceId,
        qp: &LocalQp,
        private_data: PrivateData<92>,
        Left { left, for_waits, deadline }: Left,
    ) -> Result<proto::Connect, Invalid> {
        let life_time = path.record().packet_life_time.time_code();
        let timing = Timing::derive(left, for_waits, life_time, self.response_timeout);
        Invalid::at_most("max CM retries", self.max_cm_retries.unwrap_or(0), 15u8)?;
        let mut connect = proto::Connect::new(path.inner(), service_id, qp.qpn);
        connect.response_timeout = timing.response_timeout;
        connect.local_response_timeout = timing.local_response_timeout;
        connect.jitter = timing.jitter;
        connect.max_cm_retries = self.max_cm_retries.unwrap_or(timing.max_cm_retries);
        connect.retry_count = self.retry_count;
        connect.rnr_retry_count = self.rnr_retry_count;
        connect.transport = qp.transport;
        connect.rd = qp.rd;
        connect.rdc = qp.rdc;
        connect.responder_resources = qp.responder_resources;
        connect.initiator_depth = qp.initiator_depth;
        connect.srq = qp.srq;
        connect.end_to_end_flow_control = qp.end_to_end_flow_control;
        connect.private_data = private_data;
        connect.deadline = deadline;
        Ok(connect)
    }
}

/// A REQ that is out.
#[derive(Debug)]
pub(crate) struct Asked {
    handshake: Handshake,
    record: PathRecord,
    service_id: ServiceId,
    transport: Transport,
    /// How a peer is accepted that asks, too.
    accept: proto::Accept,
    disconnect_data: PrivateData<224>,
}

/// Whom a REQ asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whom {
    /// One who listens.
    Listener,
    /// One who asks, too.
    Peer,
}

/// What answers the REQ to a peer: its REP, or its own REQ.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub(crate) enum Answered {
    Reply(Reply),
    Request(Offer),
}

impl Asked {
    /// Sends the REQ. The queue pair is in INIT; `data` is what moves it, if it is ours. `all` is told when.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        whom: Whom,
        connect: proto::Connect,
        disconnect_data: PrivateData<224>,
        data: Option<(Arc<Parked>, Queues)>,
        all: &mut Attempts,
    ) -> Result<Self, ConnectError> {
        let (path, service_id, transport) = (connect.path, connect.service_id, connect.transport);
        let mut accept = proto::Accept::new(connect.qpn);
        accept.srq = connect.srq;
        accept.end_to_end_flow_control = connect.end_to_end_flow_control;
        accept.rnr_retry_count = connect.rnr_retry_count;
        accept.private_data = area(&connect.private_data);
        accept.deadline = connect.deadline;
        let slot = shared.command(|engine| {
            engine.device()?;
            let now = now();
            let conn = match whom {
                Whom::Listener => engine.endpoint.connect(now, connect),
                Whom::Peer => engine.endpoint.connect_peer(now, connect),
            }?;
            all.first_sent.get_or_insert(now);
            if let Some((_, queues)) = &data {
                queues.attach(shared, conn);
            }
            // Dead or alive: it is the one that was just made.
            let _ = engine.endpoint.set_disconnect_data(conn, disconnect_data);
            Ok::<_, ConnectError>(engine.new_slot(conn, service_id, &path, data))
        })?;
        let handshake = Handshake::new(Arc::clone(shared), slot);
        Ok(Self { handshake, record: path.record, service_id, transport, accept, disconnect_data })
    }

    pub(crate) fn span(&self) -> &Span {
        &self.handshake.slot().span
    }

    /// Waits for the REP. What the REQ took is added to `all`.
    pub(crate) async fn reply(self, all: &mut Attempts) -> Result<Reply, ConnectError> {
        let reply = self.handshake.reply().await;
        all.add_of(&reply);
        let (rep, _) = reply?;
        self.replied(rep)
    }

    /// Waits for the peer's REP, or for its REQ. What ours took is added to `all`.
    pub(crate) async fn answer(self, all: &mut Attempts) -> Result<Answered, ConnectError> {
        let answer = self.handshake.answer().await;
        all.add_of(&answer);
        match answer? {
            (Answer::Reply(rep), _) => Ok(Answered::Reply(self.replied(rep)?)),
            (Answer::Request(request), _) => {
                let Self { handshake, accept, disconnect_data, .. } = self;
                Ok(Answered::Request(Offer::to_peer(handshake, request, accept, disconnect_data)?))
            }
        }
    }

    fn replied(self, rep: Box<Rep>) -> Result<Reply, ConnectError> {
        let Self { handshake, record, service_id, transport, .. } = self;
        let attrs = handshake.shared().engine().endpoint.attrs(handshake.slot().handle);
        let Some(attrs) = attrs else { return Err(ended(&handshake)) };
        let rtu_data = PrivateData::EMPTY;
        Ok(Reply { handshake, rep, attrs, record, service_id, transport, rtu_data })
    }
}

/// The peer's REP: what the queue pair has to be programmed with, before the RTU goes out.
///
/// Post the receives, move the queue pair to RTR and RTS with [`attrs`](Self::attrs), then say [`ready`](Self::ready). The
/// peer is kept patient by an MRA meanwhile. Dropped: the peer is rejected with reason 28.
#[derive(Debug)]
#[must_use = "dropped, the peer is rejected"]
pub struct Reply {
    handshake: Handshake,
    rep: Box<Rep>,
    attrs: Attrs,
    record: PathRecord,
    service_id: ServiceId,
    transport: Transport,
    rtu_data: PrivateData<224>,
}

impl Reply {
    /// What the queue pair has to be programmed with.
    pub const fn attrs(&self) -> Attrs {
        self.attrs
    }

    /// What the peer's program sent along, zero-padded: 196 bytes.
    pub fn private_data(&self) -> &[u8] {
        self.rep.private_data.as_bytes()
    }

    /// The whole reply as it came.
    pub fn rep(&self) -> &Rep {
        &self.rep
    }

    /// The other end.
    pub fn peer(&self) -> Peer {
        Peer {
            gid: self.record.dgid,
            lid: self.record.dlid,
            ca_guid: self.rep.local_ca_guid,
            // With XRC the target's number is elsewhere in the REP.
            qpn: match self.transport {
                Transport::Xrc => self.attrs.rtr.dest_qpn,
                _ => self.rep.local_qpn,
            },
            comm_id: self.rep.local_comm_id,
        }
    }

    /// What goes to the peer's program in the RTU.
    pub fn rtu_data(mut self, data: impl Into<PrivateData<224>>) -> Self {
        self.rtu_data = data.into();
        self
    }

    /// The queue pair is in RTS: sends the RTU. Both sides may send.
    ///
    /// # Errors
    /// [`ConnectError`]: the peer has given up meanwhile, or the HCA was closed.
    ///
    /// # Cancel safety
    /// It does not wait. Dropped before it is polled: as the reply itself.
    pub async fn ready(self) -> Result<Session, ConnectError> {
        let (shared, slot) = (self.handshake.shared(), self.handshake.slot());
        match shared.command(|engine| engine.endpoint.ready(now(), slot.handle, self.rtu_data)) {
            Ok(()) => {}
            Err(CommandError::Invalid(invalid)) => return Err(invalid.into()),
            Err(_) => return Err(ended(&self.handshake)),
        }
        slot.with(shared, |state| {
            state.established = true;
            if let Some(queues) = &mut state.queues {
                queues.set_initiator_depth(self.attrs.rts.max_rd_atomic);
            }
        });
        slot.span.in_scope(|| tracing::debug!("established"));
        let parts = Parts {
            role: Role::Active,
            transport: self.transport,
            peer: self.peer(),
            service_id: self.service_id,
            private_data: owned_area(&self.rep.private_data),
        };
        Ok(Session::new(self.handshake, parts))
    }

    /// Rejects the peer's reply. The same REJ meets its repetitions for a while.
    pub fn reject(self, reject: impl Into<Reject>) {
        self.handshake.reject(reject.into());
    }
}

impl Attempts {
    /// Adds what the REQ of one took, if that is known.
    fn add_of<T>(&mut self, answer: &Result<(T, Effort), End>) {
        if let Some(effort) = answer.as_ref().map_or_else(End::effort, |(_, effort)| Some(*effort)) {
            self.add(effort);
        }
    }
}

/// What goes along in the REQ, as it goes along in the REP that takes its place.
fn area(data: &PrivateData<92>) -> PrivateData<196> {
    let mut area = [0; 196];
    area[..data.len()].copy_from_slice(data);
    PrivateData::from_area(area)
}

/// Why a command was refused: the connection had ended.
fn ended(handshake: &Handshake) -> ConnectError {
    let end = handshake.slot().with(handshake.shared(), |state| state.end.clone());
    end.map_or(ConnectError::Disconnected, ConnectError::from)
}
