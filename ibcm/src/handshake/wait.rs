//! Waiting for what happens to a connection.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use pin_project::pin_project;
use tokio::task::coop::{Unconstrained, unconstrained};
use tokio::time::Sleep;

use crate::busy_poll::busy_poll;
use crate::data::Queues;
use crate::parked::{Parked, Ticket};
use crate::shared::Shared;
use crate::slot::{Slot, SlotState};

/// Waits until `done` has a value. It is asked again after each event of the connection and each completion.
pub(crate) async fn wait<T>(
    shared: &Arc<Shared>,
    slot: &Arc<Slot>,
    mut done: impl FnMut(&mut SlotState) -> Option<T>,
) -> T {
    let mut ticket = Ticket::new(&slot.parked);
    poll_fn(|cx| match look(shared, slot, &mut done, Queues::look) {
        Some(value) => Poll::Ready(value),
        None => park(shared, slot, &mut ticket, cx, &mut done),
    })
    .await
}

/// One of so many looks at the device is also one at the connection's events.
const EVENTS: u32 = 8;

/// Looks whether `done` has a value, for as long as the connection's program wants; if not, registers the task for events
/// and completions.
pub(crate) fn poll_slot<T>(
    shared: &Shared,
    slot: &Slot,
    ticket: &mut Ticket,
    cx: &Context<'_>,
    done: &mut impl FnMut(&mut SlotState) -> Option<T>,
) -> Poll<T> {
    // Without being registered, which costs less.
    let mut busy = None;
    let first = |queues: &mut Queues| {
        busy = queues.busy_poll();
        queues.look()
    };
    let found = look(shared, slot, done, first).or_else(|| {
        let (cq, time) = busy?;
        // Outside of the connection's mutex, because it wakes others.
        let mut looks = 0;
        busy_poll(time, || {
            looks += 1;
            // An event ends the waiting, too, and another task may have taken the completion.
            let may = cq.look() || looks % EVENTS == 0;
            if may { look(shared, slot, done, Queues::look) } else { None }
        })
    });
    match found {
        Some(value) => Poll::Ready(value),
        None => park(shared, slot, ticket, cx, done),
    }
}

/// Registers the task, and looks once more behind that, so that nothing is missed.
fn park<T>(
    shared: &Shared,
    slot: &Slot,
    ticket: &mut Ticket,
    cx: &Context<'_>,
    done: &mut impl FnMut(&mut SlotState) -> Option<T>,
) -> Poll<T> {
    ticket.park(cx);
    look(shared, slot, done, Queues::watch).map_or(Poll::Pending, Poll::Ready)
}

/// Takes completions by `take`, which says whether there may be more, until `done` has a value.
fn look<T>(
    shared: &Shared,
    slot: &Slot,
    done: &mut impl FnMut(&mut SlotState) -> Option<T>,
    mut take: impl FnMut(&mut Queues) -> bool,
) -> Option<T> {
    slot.with(shared, |state| {
        loop {
            // What is there already needs no look at the device, which would think that nothing is left to do.
            let found = done(state);
            if found.is_some() {
                break found;
            }
            if !state.queues.as_mut().is_some_and(&mut take) {
                break done(state);
            }
        }
    })
}

/// Runs `step` until `deadline`; the error is how long it was tried.
pub(crate) fn before<F: Future>(started: Instant, deadline: Option<Instant>, step: F) -> Before<F> {
    Before { step, started, deadline, sleep: None }
}

/// The future of [`before`]. It has a timer only once it waits: on most devices most steps do not.
#[pin_project]
pub(crate) struct Before<F> {
    #[pin]
    step: F,
    started: Instant,
    deadline: Option<Instant>,
    /// The step may use up what its task may do at once; the deadline holds all the same.
    sleep: Option<Pin<Box<Unconstrained<Sleep>>>>,
}

impl<F: Future> Future for Before<F> {
    type Output = Result<F::Output, Duration>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(done) = this.step.poll(cx) {
            return Poll::Ready(Ok(done));
        }
        let Some(deadline) = *this.deadline else { return Poll::Pending };
        let sleep = this
            .sleep
            .get_or_insert_with(|| Box::pin(unconstrained(tokio::time::sleep_until(deadline.into()))));
        sleep.as_mut().poll(cx).map(|()| Err(deadline.saturating_duration_since(*this.started)))
    }
}

/// Waits for a condition of the HCA.
pub(crate) async fn until(parked: &Arc<Parked>, mut done: impl FnMut() -> bool) {
    let mut ticket = Ticket::new(parked);
    poll_fn(|cx| {
        ticket.park(cx);
        if done() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
