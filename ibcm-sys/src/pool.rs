//! Threads for calls that may wait for firmware.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ibdev::DeviceError;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::LinuxError;

/// Slow calls of one device that run at once, in threads of the runtime's blocking pool.
const AT_ONCE: usize = 8;

/// How long a slow call waits for those before it until one more thread takes calls. Threads that are not needed stand in each
/// other's way: most calls wait for nothing, and all change the process's one address space.
const PATIENCE: Duration = Duration::from_millis(2);

/// How long a slow call may wait for its turn and its answer.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Slow calls that are waited for at once, those that run included: as many as one thread makes within the deadline if none
/// takes longer than [`PATIENCE`].
const WAITED_FOR: usize = (DEADLINE.as_millis() / PATIENCE.as_millis()) as usize;

/// Where a device's slow calls run: one after the other while that is quick, else several at once.
#[derive(Clone)]
pub(crate) struct Pool {
    runtime: Handle,
    calls: Arc<Mutex<Calls>>,
}

/// There are at most [`WAITED_FOR`], and one for each object that was dropped or failed.
#[derive(Default)]
struct Calls {
    /// Those that have not begun, by numbers that only grow.
    queue: BTreeMap<u64, Queued>,
    next: u64,
    /// How many somebody waits for, begun or not.
    waited_for: usize,
    threads: usize,
    /// Whether there is a task that loses patience.
    is_watched: bool,
}

struct Queued {
    since: Instant,
    call: Call,
}

type Call = Box<dyn FnOnce() + Send>;

impl Pool {
    /// In the runtime of the caller.
    ///
    /// # Errors
    /// [`DeviceError::NoRuntime`].
    pub(crate) fn new() -> Result<Self, DeviceError> {
        let runtime = Handle::try_current().map_err(|_| DeviceError::NoRuntime)?;
        Ok(Self { runtime, calls: Arc::default() })
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Makes a slow call. Dropping the future takes it out of the queue; if it has begun it goes on, and what it creates is
    /// dropped when it ends.
    ///
    /// # Errors
    /// Those of the call; [`LinuxError::Stuck`] if it takes too long; [`DeviceError::Limit`] if too many wait already.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        what: &'static str,
        call: impl FnOnce() -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, DeviceError> {
        let (answer, answered) = oneshot::channel();
        let _turn = self.line_up(move || {
            if !answer.is_closed() {
                // If nobody waits any more, what was made is dropped here, where a panic is nobody's.
                _ = answer.send(catch_unwind(AssertUnwindSafe(call)));
            }
        })?;
        match tokio::time::timeout(DEADLINE, answered).await {
            Ok(Ok(Ok(result))) => result,
            Ok(Ok(Err(panic))) => resume_unwind(panic),
            Ok(Err(_)) => Err(DeviceError::Gone), // the runtime is ending
            Err(_) => Err(LinuxError::Stuck { within: DEADLINE }.met(what)),
        }
    }

    /// Does something slow a little later and elsewhere. If the runtime is over, `work` is dropped here and now instead.
    pub(crate) fn later(&self, work: impl FnOnce() + Send + 'static) {
        let mut calls = self.calls();
        calls.push(work);
        self.have_taken(calls);
    }

    /// Queues a call that is waited for.
    fn line_up(&self, call: impl FnOnce() + Send + 'static) -> Result<Turn, DeviceError> {
        let mut calls = self.calls();
        if calls.waited_for >= WAITED_FOR {
            let (value, limit) = (WAITED_FOR as u64 + 1, WAITED_FOR as u64);
            return Err(DeviceError::Limit { what: "slow calls at once", value, limit });
        }
        calls.waited_for += 1;
        let turn = Turn { number: calls.push(call), calls: self.calls.clone() };
        self.have_taken(calls);
        Ok(turn)
    }

    /// Sees to it that what was pushed is taken off.
    fn have_taken(&self, mut calls: MutexGuard<'_, Calls>) {
        let thread = (calls.threads == 0).then(|| calls.new_thread(&self.calls));
        let is_watched = calls.threads == AT_ONCE || std::mem::replace(&mut calls.is_watched, true);
        drop(calls);
        if let Some(thread) = thread {
            self.start(thread);
        }
        if !is_watched {
            let pool = self.clone();
            drop(self.runtime.spawn(async move { pool.watch().await }));
        }
    }

    /// Adds threads while calls wait for too long.
    async fn watch(&self) {
        loop {
            tokio::time::sleep(PATIENCE).await;
            let thread = {
                let mut calls = self.calls();
                let Some((_, oldest)) = calls.queue.first_key_value().filter(|_| calls.threads < AT_ONCE)
                else {
                    calls.is_watched = false;
                    return;
                };
                (oldest.since.elapsed() >= PATIENCE).then(|| calls.new_thread(&self.calls))
            };
            if let Some(thread) = thread {
                self.start(thread);
            }
        }
    }

    fn start(&self, thread: Thread) {
        drop(self.runtime.spawn_blocking(move || thread.run()));
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        lock(&self.calls)
    }
}

fn lock(calls: &Mutex<Calls>) -> MutexGuard<'_, Calls> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Calls {
    fn push(&mut self, call: impl FnOnce() + Send + 'static) -> u64 {
        let number = self.next;
        self.next += 1;
        self.queue.insert(number, Queued { since: Instant::now(), call: Box::new(call) });
        number
    }

    fn new_thread(&mut self, all: &Arc<Mutex<Self>>) -> Thread {
        self.threads += 1;
        Thread { calls: Arc::clone(all), has_ended: false }
    }
}

/// One who waits for a call. Dropped, the call is not begun any more.
struct Turn {
    number: u64,
    calls: Arc<Mutex<Calls>>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let withdrawn = {
            let mut calls = lock(&self.calls);
            calls.waited_for -= 1;
            calls.queue.remove(&self.number)
        };
        drop(withdrawn); // what it owns may be dropped by calls of its own
    }
}

/// A thread that takes calls until there are none.
struct Thread {
    calls: Arc<Mutex<Calls>>,
    has_ended: bool,
}

impl Thread {
    fn run(mut self) {
        while let Some(call) = self.next() {
            // A panic that is nobody's is told, as in a thread of its own, and ends nothing else.
            let _: Result<(), Box<dyn Any + Send>> = catch_unwind(AssertUnwindSafe(call));
        }
    }

    fn next(&mut self) -> Option<Call> {
        let mut calls = lock(&self.calls);
        let next = calls.queue.pop_first().map(|(_, Queued { call, .. })| call);
        if next.is_none() {
            calls.threads -= 1;
            self.has_ended = true;
        }
        next
    }
}

impl Drop for Thread {
    /// One that has not ended was never started: the runtime is over, and calls without another thread are not made.
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let dropped = {
            let mut calls = lock(&self.calls);
            calls.threads -= 1;
            if calls.threads == 0 { std::mem::take(&mut calls.queue) } else { BTreeMap::new() }
        };
        drop(dropped); // what they own may be dropped by calls of its own
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (waiting, threads) = {
            let calls = self.calls();
            (calls.queue.len(), calls.threads)
        };
        f.debug_struct("Pool").field("waiting", &waiting).field("threads", &threads).finish_non_exhaustive()
    }
}

/// Something whose destructor may wait for firmware: dropped, it goes to the pool.
#[derive(Debug)]
pub(crate) struct Deferred<T: Send + 'static> {
    value: Option<T>,
    pool: Pool,
}

impl<T: Send + 'static> Deferred<T> {
    pub(crate) fn new(value: T, pool: &Pool) -> Self {
        Self { value: Some(value), pool: pool.clone() }
    }
}

impl<T: Send + 'static> Deref for Deferred<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("only drop takes it")
    }
}

impl<T: Send + 'static> Drop for Deferred<T> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take() {
            self.pool.later(move || drop(value));
        }
    }
}

#[cfg(test)]
mod tests;
