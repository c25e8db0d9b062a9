//! Tasks that wait for something of one connection.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use slab::Slab;

use crate::sync::lock;

/// The tasks that wait for something of one connection, listener or HCA. As a waker it wakes them all.
///
/// A completion queue wakes one waker only. This one stands for all that wait, so a future that is dropped, or
/// kept and not polled, never takes a wake-up away from another.
#[derive(Default)]
pub(crate) struct Parked {
    tasks: Mutex<Slab<Waker>>,
}

impl Parked {
    /// Wakes every task; each stays registered until its [`Ticket`] is dropped.
    pub(crate) fn wake_all(&self) {
        // Mostly it is one task, for which no memory is needed.
        let (first, others) = {
            let tasks = lock(&self.tasks);
            let mut wakers = tasks.iter().map(|(_, waker)| waker.clone());
            (wakers.next(), wakers.collect::<Vec<_>>())
        };
        for waker in first.into_iter().chain(others) {
            waker.wake();
        }
    }
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.wake_all();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_all();
    }
}

impl fmt::Debug for Parked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parked({})", lock(&self.tasks).len())
    }
}

/// One future's place among the parked tasks; dropped, it leaves.
#[derive(Debug)]
pub(crate) struct Ticket {
    parked: Arc<Parked>,
    key: Option<usize>,
}

impl Ticket {
    pub(crate) fn new(parked: &Arc<Parked>) -> Self {
        Self { parked: Arc::clone(parked), key: None }
    }

    /// Registers the task. Call it before the condition is looked at for the last time.
    pub(crate) fn park(&mut self, cx: &Context<'_>) {
        let mut tasks = lock(&self.parked.tasks);
        match self.key.and_then(|key| tasks.get_mut(key)) {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            Some(waker) => waker.clone_from(cx.waker()),
            None => self.key = Some(tasks.insert(cx.waker().clone())),
        }
    }

    /// Nothing is waited for any more.
    pub(crate) fn leave(&mut self) {
        if let Some(key) = self.key.take() {
            // The waker is dropped after the lock: dropping it may run a task's destructor.
            let _waker = lock(&self.parked.tasks).try_remove(key);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.leave();
    }
}
