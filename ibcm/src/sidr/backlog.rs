//! Requests that wait for the program. The engine bounds their number.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use super::{Answer, Status};
use crate::clock::now;
use crate::parked::Parked;
use crate::proto::{SidrRequest, SidrRequestHandle};
use crate::shared::Shared;
use crate::sync::lock;

/// A request without an answer.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) handle: SidrRequestHandle,
    pub(crate) request: Box<SidrRequest>,
}

impl Waiting {
    pub(super) fn answer(self, shared: &Shared, answer: &Answer) {
        let result = shared.command(|engine| engine.endpoint.sidr_answer(now(), self.handle, &answer.inner));
        let (service, status) = (self.request.req.service_id, answer.inner.status);
        match result {
            Ok(()) => tracing::debug!(%service, %status, "answered"),
            Err(error) => tracing::debug!(%service, %error, "not answered"),
        }
    }

    /// Says that the program did not want to.
    pub(crate) fn refuse(self, shared: &Shared) {
        self.answer(shared, &Answer::refusal(Status::REJECTED));
    }
}

/// The requests of a responder.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    pub(super) parked: Arc<Parked>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Waiting>,
    closed: bool,
}

impl Backlog {
    /// A request arrived.
    pub(crate) fn push(&self, shared: &Shared, waiting: Waiting) {
        let mut state = lock(&self.state);
        if state.closed {
            drop(state);
            return waiting.refuse(shared);
        }
        state.queue.push_back(waiting);
        drop(state);
        self.parked.wake_all();
    }

    /// The oldest request; `None` when closed.
    pub(super) fn pop(&self) -> Poll<Option<Waiting>> {
        let mut state = lock(&self.state);
        match state.queue.pop_front() {
            _ if state.closed => Poll::Ready(None),
            Some(waiting) => Poll::Ready(Some(waiting)),
            None => Poll::Pending,
        }
    }

    /// Refuses what waits and wakes those who wait for more.
    pub(crate) fn close(&self, shared: &Shared) {
        let queue = {
            let mut state = lock(&self.state);
            state.closed = true;
            std::mem::take(&mut state.queue)
        };
        queue.into_iter().for_each(|waiting| waiting.refuse(shared));
        self.parked.wake_all();
    }
}
