//! A connection as its handles hold it, whichever they are.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use ibdev::{Buf, Status};
use ibwire::Qpn;
use tokio::task::coop::cooperative;

use crate::closed::How;
use crate::error::{OpCause, OpError, RecvError};
use crate::handshake::{OnDrop, Session, poll_slot};
use crate::message::Message;
use crate::parked::Ticket;
use crate::shared::Shared;
use crate::slot::{End, Slot, SlotState};
use crate::stats::ConnectionStats;

/// What [`Connection`](crate::Connection), its halves and [`ByteStream`](crate::ByteStream) are handles of: a session whose
/// queue pair is its own.
#[derive(Debug)]
pub(crate) struct Established {
    session: Session,
}

impl Established {
    pub(crate) const fn new(session: Session) -> Self {
        Self { session }
    }

    pub(crate) const fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        self.session.shared()
    }

    pub(crate) fn slot(&self) -> &Arc<Slot> {
        self.session.slot()
    }

    pub(crate) fn set_on_drop(&mut self, on_drop: OnDrop) {
        self.session.set_on_drop(on_drop);
    }

    pub(crate) async fn recv(&self) -> Result<Option<Message>, RecvError> {
        let mut ticket = Ticket::new(&self.slot().parked);
        cooperative(poll_fn(|cx| self.poll_recv(&mut ticket, cx))).await
    }

    /// Polls for the next message; `None` when the peer has disconnected and all that it had sent was read.
    pub(crate) fn poll_recv(
        &self,
        ticket: &mut Ticket,
        cx: &Context<'_>,
    ) -> Poll<Result<Option<Message>, RecvError>> {
        poll_slot(self.shared(), self.slot(), ticket, cx, &mut next_message)
    }

    pub(crate) fn post_recv(&self, buf: Buf) -> Result<(), OpError> {
        let result = self.slot().with(self.shared(), |state| match &mut state.queues {
            Some(queues) => match (queues.broken(), &state.end) {
                (Some(fault), _) => Err((fault.into(), buf)),
                (None, None) => queues.post_recv(buf),
                (None, Some(_)) => Err((OpCause::Closed, buf)),
            },
            None => Err((OpCause::Closed, buf)),
        });
        result.map_err(|(cause, buf)| OpError { cause, buf: Some(buf) })
    }

    pub(crate) fn local_qpn(&self) -> Option<Qpn> {
        self.slot().with(self.shared(), |state| Some(state.queues.as_ref()?.qp()?.qpn()))
    }

    pub(crate) fn stats(&self) -> ConnectionStats {
        self.slot().with(self.shared(), |state| {
            let counters = state.queues.as_mut().map(|queues| {
                queues.drain();
                queues.counters()
            });
            ConnectionStats::from(counters.unwrap_or_default())
        })
    }
}

/// What `recv` gives, if there is anything to give.
fn next_message(state: &mut SlotState) -> Option<Result<Option<Message>, RecvError>> {
    let queues = state.queues.as_mut()?;
    if let Some(arrived) = queues.next_message() {
        queues.repost();
        return Some(Ok(Some(Message::new(arrived.buf, arrived.imm))));
    }
    if let Some(fault) = queues.broken() {
        return Some(Err(fault.into()));
    }
    if let Some(end) = &state.end {
        // A message may be in the completion queue until the queue pair is stopped.
        return state.flushed.then(|| ended(end, state.disconnecting));
    }
    queues.repost();
    None
}

fn ended(end: &End, here: bool) -> Result<Option<Message>, RecvError> {
    match end {
        _ if here => Err(RecvError::Closed),
        End::Disconnected(closed) if closed.how == How::ByPeer => Ok(None),
        End::Disconnected(_) | End::Rejected(..) => Err(RecvError::Broken(Status::GENERAL_ERR)),
        End::DeviceRemoved => Err(RecvError::Gone),
        _ => Err(RecvError::Closed),
    }
}
