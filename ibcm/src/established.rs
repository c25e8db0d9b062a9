//! A connection as its handles hold it, whichever they are.

use std::borrow::Cow;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ibdev::{Buf, Status};
use ibwire::{PrivateData, Qpn, ServiceId};
use tokio::task::coop::cooperative;

use crate::closed::{Closed, How};
use crate::disconnect::disconnect;
use crate::error::{OpCause, OpError, RecvError};
use crate::handshake::{Handshake, poll_slot, wait};
use crate::message::Message;
use crate::parked::Ticket;
use crate::peer::Peer;
use crate::proto::Role;
use crate::shared::Shared;
use crate::slot::{End, Slot, SlotState};
use crate::stats::ConnectionStats;

/// What [`Connection`](crate::Connection), its halves and [`ByteStream`](crate::ByteStream) are handles of. Dropped, it
/// disconnects in the background.
#[derive(Debug)]
pub(crate) struct Established {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    parts: Parts,
    on_drop: OnDrop,
}

/// What a connection knows of itself.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) role: Role,
    pub(crate) peer: Peer,
    pub(crate) service_id: ServiceId,
    pub(crate) private_data: Cow<'static, [u8]>,
}

/// How long sends may take behind a drop that lets them, and the DREQ exchange with them.
const DRAIN_ON_DROP: Duration = Duration::from_secs(10);

/// What happens to sends that have not completed when the connection is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnDrop {
    /// The DREQ goes out at once.
    Abandon,
    /// The DREQ goes out behind them.
    Drain,
}

impl Established {
    pub(crate) fn new(handshake: Handshake, parts: Parts) -> Self {
        let (shared, slot) = handshake.finish();
        Self { shared, slot, parts, on_drop: OnDrop::Abandon }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    pub(crate) fn set_on_drop(&mut self, on_drop: OnDrop) {
        self.on_drop = on_drop;
    }

    pub(crate) async fn recv(&self) -> Result<Option<Message>, RecvError> {
        let mut ticket = Ticket::new(&self.slot.parked);
        cooperative(poll_fn(|cx| self.poll_recv(&mut ticket, cx))).await
    }

    /// Polls for the next message; `None` when the peer has disconnected and all that it had sent was read.
    pub(crate) fn poll_recv(
        &self,
        ticket: &mut Ticket,
        cx: &Context<'_>,
    ) -> Poll<Result<Option<Message>, RecvError>> {
        poll_slot(&self.shared, &self.slot, ticket, cx, &mut next_message)
    }

    pub(crate) fn post_recv(&self, buf: Buf) -> Result<(), OpError> {
        let result = self.slot.with(&self.shared, |state| match &mut state.queues {
            Some(queues) => match (queues.broken(), &state.end) {
                (Some(fault), _) => Err((fault.into(), buf)),
                (None, None) => queues.post_recv(buf),
                (None, Some(_)) => Err((OpCause::Closed, buf)),
            },
            None => Err((OpCause::Closed, buf)),
        });
        result.map_err(|(cause, buf)| OpError { cause, buf: Some(buf) })
    }

    pub(crate) async fn closed(&self) -> Closed {
        closed(&self.shared, &self.slot).await
    }

    pub(crate) fn local_qpn(&self) -> Option<Qpn> {
        self.slot.with(&self.shared, |state| Some(state.queues.as_ref()?.qp()?.qpn()))
    }

    pub(crate) fn stats(&self) -> ConnectionStats {
        self.slot.with(&self.shared, |state| {
            let counters = state.queues.as_mut().map(|queues| {
                queues.drain();
                queues.counters()
            });
            ConnectionStats::from(counters.unwrap_or_default())
        })
    }
}

/// Waits until a connection has ended, and tells how.
pub(crate) async fn closed(shared: &Arc<Shared>, slot: &Arc<Slot>) -> Closed {
    wait(shared, slot, |state| {
        let broken = state.queues.as_ref().and_then(|queues| queues.broken());
        state.end.as_ref().map(|end| Closed::new(end, broken))
    })
    .await
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

impl Drop for Established {
    fn drop(&mut self) {
        let (over, drains) = self.slot.with(&self.shared, |state| {
            let first = !std::mem::replace(&mut state.disconnecting, true);
            let sending = state.queues.as_mut().is_some_and(|queues| {
                queues.discard_messages();
                queues.is_sending() && queues.broken().is_none()
            });
            (state.end.is_some(), first && sending && self.on_drop == OnDrop::Drain)
        });
        if over {
            return;
        }
        let _span = self.slot.span.enter();
        if drains {
            tracing::debug!("dropped: sends complete and then it disconnects, in the background");
            let draining = disconnect(
                Arc::clone(&self.shared),
                Arc::clone(&self.slot),
                PrivateData::EMPTY,
                DRAIN_ON_DROP,
            );
            self.shared.begin(async move {
                draining.await;
            });
            return;
        }
        // A future of `disconnect` that was dropped may have left it anywhere before the DREQ or behind it.
        tracing::debug!("dropped: disconnecting in the background");
        self.shared.abort(&self.slot);
    }
}
