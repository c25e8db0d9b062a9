//! What the shell keeps of one connection.

use std::fmt;
use std::sync::{Arc, Mutex};

use ibdev::Status;
use ibdev::qp::Transition;
use tracing::Span;

use crate::closed::Closed;
use crate::data::{News, Queues};
use crate::error::PathError;
use crate::events::{ConnectionEvent, History};
use crate::migration::Paths;
use crate::parked::Parked;
use crate::proto::message::Rep;
use crate::proto::{ConnHandle, Disconnect, Effort, Event, Rejection, Request};
use crate::shared::Shared;
use crate::sync::lock;
use ibwire::{Qpn, RejReason};

/// One connection of the engine, from the request to the end of TimeWait: what happened to it, its queues, and
/// who waits.
pub(crate) struct Slot {
    pub(crate) handle: ConnHandle,
    pub(crate) parked: Arc<Parked>,
    pub(crate) span: Span,
    pub(crate) events: Arc<History<ConnectionEvent>>,
    state: Mutex<SlotState>,
}

/// What happened to a connection so far.
#[derive(Debug, Default)]
pub(crate) struct SlotState {
    /// Active side: the REP and what the REQ took, until it is taken.
    pub(crate) reply: Option<(Box<Rep>, Effort)>,
    /// The peer's REQ, to which ours has given way, and what ours took, until it is taken.
    pub(crate) peer_request: Option<(Box<Request>, Effort)>,
    /// Both sides may send.
    pub(crate) established: bool,
    /// How it ended.
    pub(crate) end: Option<End>,
    /// From here on this side refuses new sends.
    pub(crate) disconnecting: bool,
    /// No completion will come any more.
    pub(crate) flushed: bool,
    /// TimeWait is over: nothing of the connection is on the wire any more.
    pub(crate) released: bool,
    pub(crate) queues: Option<Queues>,
    pub(crate) paths: Option<Box<Paths>>,
}

/// How a connection, or the attempt at one, ended.
#[derive(Debug, Clone)]
pub(crate) enum End {
    Withdrawn,
    /// With what our REQ or REP had taken, unless a REP had come.
    Rejected(Box<Rejection>, Option<Effort>),
    ReplyRefused(RejReason, Effort),
    Timeout(Effort),
    Disconnected(Closed),
    DeviceRemoved,
    /// Given up on this side without waiting, or the HCA's driver is gone.
    Closed,
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("handle", &self.handle).finish_non_exhaustive()
    }
}

impl End {
    /// What our REQ or REP had taken, if it was not answered before.
    pub(crate) const fn effort(&self) -> Option<Effort> {
        match self {
            Self::Timeout(effort) | Self::ReplyRefused(_, effort) => Some(*effort),
            Self::Rejected(_, effort) => *effort,
            Self::Withdrawn | Self::Disconnected(_) | Self::DeviceRemoved | Self::Closed => None,
        }
    }
}

impl Slot {
    pub(crate) fn new(handle: ConnHandle, span: Span, data: Option<(Arc<Parked>, Queues)>) -> Arc<Self> {
        let (parked, queues) = data.unzip();
        let state = Mutex::new(SlotState { queues, ..SlotState::default() });
        Arc::new(Self { handle, parked: parked.unwrap_or_default(), span, events: Arc::default(), state })
    }

    /// Looks at the state or changes it, then tells others what the completions that were seen meanwhile mean
    /// to them.
    pub(crate) fn with<R>(&self, shared: &Shared, f: impl FnOnce(&mut SlotState) -> R) -> R {
        let mut state = lock(&self.state);
        let result = f(&mut state);
        let (news, unwanted) = match &mut state.queues {
            Some(queues) => (queues.take_news(), queues.take_unwanted()),
            None => (News::default(), Vec::new()),
        };
        let early = (news.received || news.broken) && !state.established;
        let qpn = early.then(|| state.queues.as_ref()?.qp().map(|qp| qp.qpn())).flatten();
        drop(state);
        drop(unwanted);
        if let Some(qpn) = qpn {
            shared.comm_established(qpn);
        }
        if news.broken {
            // A peer that still listens shall know; one that is dead costs the retries.
            shared.disconnect(self.handle, Disconnect::default());
            self.wake_all(shared);
        }
        result
    }

    /// Wakes whoever waits for anything of the connection.
    pub(crate) fn wake_all(&self, shared: &Shared) {
        let line =
            self.with(shared, |state| state.queues.as_mut().map(Queues::take_line).unwrap_or_default());
        for waker in line {
            waker.wake();
        }
        self.parked.wake_all();
    }

    /// Takes note of an event. Events are applied in their order, by the driver.
    pub(crate) fn apply(self: &Arc<Self>, shared: &Arc<Shared>, event: Event) {
        let _span = self.span.enter();
        let end = match event {
            Event::Reply { rep, effort, .. } => {
                self.span.record("remote", tracing::field::display(rep.local_comm_id));
                self.with(shared, |state| state.reply = Some((rep, effort)));
                self.wake_all(shared);
                return;
            }
            Event::PeerRequest { request, effort, .. } => {
                self.span.record("remote", tracing::field::display(request.req.local_comm_id));
                tracing::debug!("the peer's request counts");
                self.with(shared, |state| state.peer_request = Some((request, effort)));
                self.wake_all(shared);
                return;
            }
            Event::Established { .. } => {
                tracing::debug!("established");
                self.with(shared, |state| state.established = true);
                self.wake_all(shared);
                return;
            }
            Event::Busy { mra, until, .. } => {
                tracing::debug!(service_timeout = %mra.service_timeout, "the peer asks for patience");
                self.events.push(ConnectionEvent::PeerBusy { until });
                return;
            }
            Event::Released { .. } => return self.release(shared),
            Event::Withdrawn { .. } => End::Withdrawn,
            Event::Rejected { rejection, effort, .. } => End::Rejected(rejection, effort),
            Event::ReplyRefused { reason, effort, .. } => End::ReplyRefused(reason, effort),
            Event::Timeout { effort, .. } => End::Timeout(effort),
            Event::Disconnected { cause, .. } => End::Disconnected(Closed::disconnected(&cause)),
            Event::DeviceRemoved { .. } => End::DeviceRemoved,
            Event::AlternateLoaded { path, .. } => return self.alternate_loaded(shared, *path),
            Event::AlternateRefused { status, info, private_data, .. } => {
                return self
                    .alternate_answered(shared, Err(PathError::Refused { status, info, private_data }));
            }
            Event::AlternateTimeout { effort, .. } => {
                return self.alternate_answered(shared, Err(effort.into()));
            }
            Event::AlternateRequest { request, .. } => return self.alternate_requested(shared, request),
            Event::Migrated { primary, .. } => return self.migrated(&primary),
            Event::Request { .. } => return,
        };
        match &end {
            End::Disconnected(closed) => tracing::debug!(how = %closed, "ended"),
            end => tracing::debug!(how = ?end, "ended"),
        }
        self.end(shared, end);
    }

    /// The connection is over: its queue pair goes to the error state, which gives back what is posted.
    pub(crate) fn end(self: &Arc<Self>, shared: &Arc<Shared>, end: End) {
        let qp = self.with(shared, |state| {
            state.end.get_or_insert(end);
            let qp = state.queues.as_ref().and_then(|queues| queues.qp().cloned());
            state.flushed |= qp.is_none();
            qp
        });
        shared.keepalives.stop(self.handle);
        self.events.end();
        self.wake_all(shared);
        let Some(qp) = qp else { return };
        let (hca, slot, shared) = (shared, Arc::clone(self), Arc::clone(shared));
        let stop = async move {
            if let Err(error) = qp.modify(Transition::Error).await {
                tracing::debug!(%error, "queue pair not stopped");
            }
            slot.with(&shared, |state| {
                if let Some(queues) = &mut state.queues {
                    queues.drain();
                }
                state.flushed = true;
            });
            slot.wake_all(&shared);
        };
        hca.begin(stop);
    }

    /// The queue pair with this number has gone to the error state by itself, for this reason.
    pub(crate) fn qp_error(&self, shared: &Shared, qpn: Qpn, status: Status) {
        self.with(shared, |state| match &mut state.queues {
            Some(queues) if state.end.is_none() && queues.qp().is_some_and(|qp| qp.qpn() == qpn) => {
                queues.qp_error(status);
            }
            _ => {}
        });
    }

    /// Nothing of the connection is on the wire any more: lets go of the queue pair. What was received stays
    /// readable.
    pub(crate) fn release(&self, shared: &Shared) {
        let device_side = self.with(shared, |state| {
            state.end.get_or_insert(End::Closed);
            (state.flushed, state.released) = (true, true);
            state.queues.as_mut().map(|queues| {
                queues.drain();
                queues.release()
            })
        });
        drop(device_side);
        shared.keepalives.stop(self.handle);
        self.events.end();
        self.wake_all(shared);
    }
}
