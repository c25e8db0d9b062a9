//! The guard of a handshake that is under way.

use std::sync::Arc;

use super::wait::wait;
use crate::clock::now;
use crate::proto::message::Rep;
use crate::proto::{Effort, Reject, Request};
use crate::shared::Shared;
use crate::slot::{End, Slot, SlotState};

/// A connection that is being made. Dropped, it is given up: REJ 4 if a REQ is out, REJ 28 if an answer is
/// owed, the whole DREQ exchange if it is established.
#[derive(Debug)]
pub(crate) struct Handshake {
    shared: Arc<Shared>,
    /// `None` once it is a connection, or answered.
    slot: Option<Arc<Slot>>,
}

/// What answers the REQ to a peer.
#[derive(Debug)]
pub(super) enum Answer {
    Reply(Box<Rep>),
    Request(Box<Request>),
}

impl Handshake {
    pub(crate) fn new(shared: Arc<Shared>, slot: Arc<Slot>) -> Self {
        Self { shared, slot: Some(slot) }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn slot(&self) -> &Arc<Slot> {
        self.slot.as_ref().expect("it is taken only by value")
    }

    /// It has become a connection, whose drop takes over.
    pub(crate) fn finish(mut self) -> (Arc<Shared>, Arc<Slot>) {
        let slot = self.slot.take().expect("it is taken only by value");
        (Arc::clone(&self.shared), slot)
    }

    /// Rejects the peer's request or reply.
    pub(super) fn reject(self, reject: Reject) {
        let (shared, slot) = self.finish();
        let _span = slot.span.enter();
        tracing::debug!(reason = %reject.reason, "rejected");
        let result = shared.command(|engine| engine.endpoint.reject(now(), slot.handle, reject));
        if let Err(error) = result {
            tracing::debug!(%error, "no rejection sent");
        }
        slot.end(&shared, End::Closed);
    }

    /// Waits for the REP, or for the end. With the REP comes what the REQ took.
    pub(crate) async fn reply(&self) -> Result<(Box<Rep>, Effort), End> {
        self.until(|state| state.reply.take()).await
    }

    /// Waits for the REP, for the REQ of a peer that has asked at the same time, or for the end. With either comes what our
    /// REQ took.
    pub(super) async fn answer(&self) -> Result<(Answer, Effort), End> {
        self.until(|state| {
            let reply = state.reply.take().map(|(rep, effort)| (Answer::Reply(rep), effort));
            reply.or_else(|| {
                let (request, effort) = state.peer_request.take()?;
                Some((Answer::Request(request), effort))
            })
        })
        .await
    }

    /// Passive side: waits until both sides may send, or for the end. A connection that breaks with the peer's
    /// first message was established; its receiver is told what broke it.
    pub(crate) async fn established(&self) -> Result<(), End> {
        self.until(|state| {
            let broken = state.queues.as_ref().is_some_and(|queues| queues.broken().is_some());
            (state.established || broken).then_some(())
        })
        .await
    }

    async fn until<T>(&self, mut done: impl FnMut(&mut SlotState) -> Option<T>) -> Result<T, End> {
        wait(&self.shared, self.slot(), move |state| match done(state) {
            Some(value) => Some(Ok(value)),
            None => state.end.clone().map(Err),
        })
        .await
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.shared.abort(&slot);
        }
    }
}
