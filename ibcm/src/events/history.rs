//! The last events of something, for any number of readers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use crate::parked::{Parked, Ticket};
use crate::sync::lock;

/// So many of the last events are kept, whoever reads them.
const KEPT: usize = 64;

/// The last events of an HCA or a connection. All readers share them, so readers cost no memory, and a slow one misses
/// the oldest.
#[derive(Debug)]
pub(crate) struct History<E> {
    state: Mutex<State<E>>,
    parked: Arc<Parked>,
}

#[derive(Debug)]
struct State<E> {
    events: VecDeque<E>,
    /// Number of the oldest one kept.
    first: u64,
    over: bool,
}

impl<E> Default for History<E> {
    fn default() -> Self {
        let state = State { events: VecDeque::new(), first: 0, over: false };
        Self { state: Mutex::new(state), parked: Arc::default() }
    }
}

impl<E: Clone> History<E> {
    /// Something happened.
    pub(crate) fn push(&self, event: E) {
        let mut state = lock(&self.state);
        if state.events.len() == KEPT {
            state.events.pop_front();
            state.first += 1;
        }
        state.events.push_back(event);
        drop(state);
        self.parked.wake_all();
    }

    /// Nothing will happen any more.
    pub(crate) fn end(&self) {
        lock(&self.state).over = true;
        self.parked.wake_all();
    }

    /// A reader that starts with the oldest event kept.
    pub(crate) fn from_start(self: &Arc<Self>) -> Reader<E> {
        self.reader(lock(&self.state).first)
    }

    /// A reader that starts with the next event.
    pub(crate) fn from_now(self: &Arc<Self>) -> Reader<E> {
        let next = {
            let state = lock(&self.state);
            state.first + state.events.len() as u64
        };
        self.reader(next)
    }

    fn reader(self: &Arc<Self>, next: u64) -> Reader<E> {
        Reader { ticket: Ticket::new(&self.parked), history: Arc::clone(self), next }
    }
}

/// One reader's place in a [`History`].
#[derive(Debug)]
pub(crate) struct Reader<E> {
    history: Arc<History<E>>,
    ticket: Ticket,
    /// Number of the event to be read next.
    next: u64,
}

/// What a reader finds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<E> {
    Event(E),
    /// So many events came and went since it looked last.
    Missed(u64),
}

impl<E: Clone> Reader<E> {
    /// The next event; `None` when the last one was read.
    pub(crate) fn poll_next(&mut self, cx: &Context<'_>) -> Poll<Option<Found<E>>> {
        // Before looking: what comes meanwhile wakes.
        self.ticket.park(cx);
        let state = lock(&self.history.state);
        let missed = state.first.saturating_sub(self.next);
        if missed > 0 {
            self.next = state.first;
            return Poll::Ready(Some(Found::Missed(missed)));
        }
        let found = state.events.get((self.next - state.first) as usize).cloned();
        match found {
            Some(event) => {
                self.next += 1;
                Poll::Ready(Some(Found::Event(event)))
            }
            None if state.over => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn next<E: Clone>(reader: &mut Reader<E>) -> Poll<Option<Found<E>>> {
        reader.poll_next(&Context::from_waker(Waker::noop()))
    }

    #[test]
    fn each_reader_sees_each_event_once() {
        let history = Arc::<History<u32>>::default();
        history.push(1);
        let (mut old, mut new) = (history.from_start(), history.from_now());
        history.push(2);
        assert_eq!(next(&mut old), Poll::Ready(Some(Found::Event(1))));
        for reader in [&mut old, &mut new] {
            assert_eq!(next(reader), Poll::Ready(Some(Found::Event(2))));
            assert!(next(reader).is_pending());
        }
        history.end();
        assert_eq!((next(&mut old), next(&mut new)), (Poll::Ready(None), Poll::Ready(None)));
    }

    #[test]
    fn a_slow_reader_learns_how_many_it_missed() {
        let history = Arc::<History<u64>>::default();
        let mut reader = history.from_start();
        for event in 0..1_000_000 {
            history.push(event);
        }
        history.end();
        let kept = KEPT as u64;
        assert_eq!(lock(&history.state).events.len(), KEPT);
        assert!(lock(&history.state).events.capacity() <= 2 * KEPT);
        assert_eq!(next(&mut reader), Poll::Ready(Some(Found::Missed(1_000_000 - kept))));
        for event in 1_000_000 - kept..1_000_000 {
            assert_eq!(next(&mut reader), Poll::Ready(Some(Found::Event(event))));
        }
        assert_eq!(next(&mut reader), Poll::Ready(None));
    }
}
