//! The requests of a listener: those that wait, and the window of those that the program has in its hands.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use ibwire::{RejReason, ServiceId};

use crate::incoming::Waiting;
use crate::parked::Parked;
use crate::proto::message::IpHeader;
use crate::proto::{Overflow, Reject};
use crate::shared::{Counters, Shared};
use crate::slot::{End, Slot};
use crate::stats::ListenerStats;
use crate::sync::lock;

/// The undecided requests of a listener. The engine bounds their number.
pub(crate) struct Backlog {
    pub(crate) service_id: ServiceId,
    /// Whether requests carry the IP header.
    by_ip: bool,
    pub(crate) parked: Arc<Parked>,
    /// How many the program may have in its hands.
    window: usize,
    /// How many there may be in all: the engine's bound.
    limit: usize,
    overflow: Overflow,
    state: Mutex<State>,
    /// How many found no room, once the engine does not know it any more.
    overflowed: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<(Waiting, Option<IpHeader>)>,
    closed: bool,
    /// How many the program has in its hands.
    held: usize,
    counts: Counts,
}

/// What became of requests.
#[derive(Debug, Default)]
struct Counts {
    taken_in: u64,
    accepted: u64,
    rejected: u64,
    ignored: u64,
    withdrawn: u64,
    malformed: u64,
}

/// What became of a request that the program had in its hands.
#[derive(Debug, Clone, Copy)]
enum Outcome {
    Accepted,
    Rejected,
    Ignored,
    Withdrawn,
}

/// A request that the program took.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) waiting: Waiting,
    pub(crate) ip: Option<IpHeader>,
    pub(crate) place: Place,
}

impl fmt::Debug for Backlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backlog").field("service_id", &self.service_id).finish_non_exhaustive()
    }
}

impl State {
    fn take_withdrawn(&mut self, shared: &Shared) -> Vec<Waiting> {
        let (waiting, withdrawn): (VecDeque<_>, VecDeque<_>) =
            self.queue.drain(..).partition(|(waiting, _)| waiting.is_undecided(shared));
        self.queue = waiting;
        self.counts.withdrawn += withdrawn.len() as u64;
        withdrawn.into_iter().map(|(waiting, _)| waiting).collect()
    }
}

impl Backlog {
    pub(crate) fn new(
        service_id: ServiceId,
        by_ip: bool,
        window: usize,
        limit: usize,
        overflow: Overflow,
    ) -> Arc<Self> {
        Arc::new(Self {
            service_id,
            by_ip,
            parked: Arc::default(),
            window,
            limit,
            overflow,
            state: Mutex::default(),
            overflowed: AtomicU64::new(0),
        })
    }

    /// A request arrived.
    pub(crate) fn push(&self, shared: &Arc<Shared>, waiting: Waiting) {
        let ip = match self.by_ip.then(|| IpHeader::split(&waiting.request.req.private_data)) {
            None => None,
            Some(Ok((header, _))) => Some(header),
            Some(Err(error)) => {
                waiting.slot.span.in_scope(|| tracing::debug!(%error, "request without a proper IP header"));
                Counters::add(&shared.counters.requests_malformed, 1);
                self.count(|counts| {
                    counts.taken_in += 1;
                    counts.malformed += 1;
                });
                waiting.reject(shared, Reject::new(RejReason::CONSUMER));
                return;
            }
        };
        let mut state = lock(&self.state);
        state.counts.taken_in += 1;
        if state.closed {
            state.counts.rejected += 1;
            drop(state);
            return shared.abort(&waiting.slot);
        }
        // Withdrawn requests count no more in the engine, so here they go, too, before they outnumber the others.
        let withdrawn = if state.queue.len() >= self.limit.saturating_mul(2) {
            state.take_withdrawn(shared)
        } else {
            Vec::new()
        };
        state.queue.push_back((waiting, ip));
        drop(state);
        Counters::add(&shared.counters.requests_withdrawn, withdrawn.len() as u64);
        self.parked.wake_all();
    }

    /// The oldest request that its peer has not withdrawn, if there is room for it in the window; `None` when closed.
    pub(crate) fn pop(self: &Arc<Self>, shared: &Arc<Shared>) -> Poll<Option<Taken>> {
        let mut withdrawn = Vec::new();
        let mut state = lock(&self.state);
        let found = loop {
            if state.closed {
                break Poll::Ready(None);
            }
            if state.held >= self.window {
                break Poll::Pending;
            }
            let Some((waiting, ip)) = state.queue.pop_front() else { break Poll::Pending };
            if waiting.is_undecided(shared) {
                state.held += 1;
                let place = Place {
                    shared: Arc::clone(shared),
                    backlog: Arc::clone(self),
                    slot: Arc::clone(&waiting.slot),
                    outcome: None,
                };
                break Poll::Ready(Some(Taken { waiting, ip, place }));
            }
            state.counts.withdrawn += 1;
            withdrawn.push(waiting);
        };
        drop(state);
        Counters::add(&shared.counters.requests_withdrawn, withdrawn.len() as u64);
        found
    }

    /// Rejects what waits and wakes those who wait for more.
    pub(crate) fn close(&self, shared: &Arc<Shared>) {
        let queue = {
            let mut state = lock(&self.state);
            state.closed = true;
            std::mem::take(&mut state.queue)
        };
        for (waiting, _) in queue {
            let rejected = waiting.reject(shared, Reject::new(RejReason::CONSUMER));
            self.count(|counts| match rejected {
                true => counts.rejected += 1,
                false => counts.withdrawn += 1,
            });
        }
        self.parked.wake_all();
    }

    /// The engine is about to forget the listener, and with it how many requests found no room.
    pub(crate) fn keep_overflowed(&self, overflowed: u64) {
        self.overflowed.store(overflowed, Ordering::Relaxed);
    }

    /// The counters; `overflowed` is the engine's, as long as it has it.
    pub(crate) fn stats(&self, shared: &Shared, overflowed: Option<u64>) -> ListenerStats {
        let overflowed = overflowed.unwrap_or_else(|| self.overflowed.load(Ordering::Relaxed));
        let (dropped, refused) = match self.overflow {
            Overflow::Drop => (overflowed, 0),
            Overflow::Reject(_) => (0, overflowed),
        };
        let mut state = lock(&self.state);
        let withdrawn = state.take_withdrawn(shared);
        let counts = &state.counts;
        let stats = ListenerStats {
            received: counts.taken_in + overflowed,
            in_window: state.held as u64,
            waiting: state.queue.len() as u64,
            accepted: counts.accepted,
            rejected: counts.rejected,
            ignored: counts.ignored,
            withdrawn: counts.withdrawn,
            malformed: counts.malformed,
            dropped,
            refused,
        };
        drop(state);
        Counters::add(&shared.counters.requests_withdrawn, withdrawn.len() as u64);
        stats
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut lock(&self.state).counts);
    }
}

/// A request's place in the window of its listener. Dropped when the request is decided, it makes room for the next.
#[derive(Debug)]
pub(crate) struct Place {
    shared: Arc<Shared>,
    backlog: Arc<Backlog>,
    slot: Arc<Slot>,
    /// If it is known, and not to be seen in how the request ended.
    outcome: Option<Outcome>,
}

impl Place {
    /// The REP is out.
    pub(crate) fn accepted(mut self) {
        self.outcome = Some(Outcome::Accepted);
    }

    /// The request is forgotten.
    pub(crate) fn ignored(mut self) {
        self.outcome = Some(Outcome::Ignored);
    }

    /// The peer was faster.
    pub(crate) fn withdrawn(mut self) {
        self.outcome = Some(Outcome::Withdrawn);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What is dropped undecided is rejected.
        let outcome = self.outcome.unwrap_or_else(|| {
            self.slot.with(&self.shared, |state| match state.end {
                None | Some(End::Closed) => Outcome::Rejected,
                Some(_) => Outcome::Withdrawn,
            })
        });
        let mut state = lock(&self.backlog.state);
        state.held -= 1;
        match outcome {
            Outcome::Accepted => state.counts.accepted += 1,
            Outcome::Rejected => state.counts.rejected += 1,
            Outcome::Ignored => state.counts.ignored += 1,
            Outcome::Withdrawn => state.counts.withdrawn += 1,
        }
        drop(state);
        self.backlog.parked.wake_all();
    }
}
