//! Threads for calls that may wait for firmware.

use std::any::Any;
use std::collections::VecDeque;
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

/// Where a device's slow calls run: one after the other while that is quick, else several at once.
#[derive(Clone)]
pub(crate) struct Pool {
    runtime: Handle,
    calls: Arc<Mutex<Calls>>,
}

#[derive(Default)]
struct Calls {
    queue: VecDeque<(Instant, Call)>,
    threads: usize,
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

    /// Makes a slow call. Dropping the future does not stop the call if it has begun; what it creates is dropped when it ends.
    ///
    /// # Errors
    /// Those of the call; [`LinuxError::Stuck`] if it takes too long.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        what: &'static str,
        call: impl FnOnce() -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, DeviceError> {
        let (answer, mut answered) = oneshot::channel();
        self.push(move || {
            if !answer.is_closed() {
                // Nobody waits any more: what was made is dropped here.
                _ = answer.send(catch_unwind(AssertUnwindSafe(call)));
            }
        });
        let answered = match tokio::time::timeout(PATIENCE, &mut answered).await {
            Ok(answered) => answered,
            Err(_) => {
                self.add_thread(|calls| !calls.queue.is_empty());
                match tokio::time::timeout(DEADLINE - PATIENCE, answered).await {
                    Ok(answered) => answered,
                    Err(_) => return Err(LinuxError::Stuck { within: DEADLINE }.met(what)),
                }
            }
        };
        match answered {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => Err(DeviceError::Gone), // the runtime is ending
        }
    }

    /// Does something slow a little later and elsewhere. If the runtime is over, `work` is dropped here and now instead.
    pub(crate) fn later(&self, work: impl FnOnce() + Send + 'static) {
        self.push(move || {
            // As in a thread of its own, a panic is told and ends nothing else.
            let _: Result<(), Box<dyn Any + Send>> = catch_unwind(AssertUnwindSafe(work));
        });
        // Nobody waits for it, so that somebody has to lose patience in its place. Those behind it are taken by the same thread.
        if self.calls().queue.len() == 1 {
            let pool = self.clone();
            drop(self.runtime.spawn(async move {
                tokio::time::sleep(PATIENCE).await;
                pool.add_thread(|calls| !calls.queue.is_empty());
            }));
        }
    }

    fn push(&self, call: impl FnOnce() + Send + 'static) {
        let now = Instant::now();
        self.calls().queue.push_back((now, Box::new(call)));
        self.add_thread(|calls| {
            let oldest = calls.queue.front();
            calls.threads == 0 || oldest.is_some_and(|(since, _)| now.duration_since(*since) > PATIENCE)
        });
    }

    fn add_thread(&self, needed: impl FnOnce(&Calls) -> bool) {
        {
            let mut calls = self.calls();
            if calls.threads >= AT_ONCE || !needed(&calls) {
                return;
            }
            calls.threads += 1;
        }
        let thread = Thread { calls: self.calls.clone(), has_ended: false };
        drop(self.runtime.spawn_blocking(move || thread.run()));
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        lock(&self.calls)
    }
}

fn lock(calls: &Mutex<Calls>) -> MutexGuard<'_, Calls> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread that takes calls until there are none.
struct Thread {
    calls: Arc<Mutex<Calls>>,
    has_ended: bool,
}

impl Thread {
    fn run(mut self) {
        while let Some(call) = self.next() {
            call();
        }
    }

    fn next(&mut self) -> Option<Call> {
        let mut calls = lock(&self.calls);
        let next = calls.queue.pop_front().map(|(_, call)| call);
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
            if calls.threads == 0 { std::mem::take(&mut calls.queue) } else { VecDeque::new() }
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
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Barrier, mpsc};

    use super::*;

    fn call(pool: &Pool, call: impl FnOnce() + Send + 'static) -> tokio::task::JoinHandle<()> {
        let pool = pool.clone();
        let call = || {
            call();
            Ok(())
        };
        tokio::spawn(async move { pool.run("test", call).await.unwrap() })
    }

    #[tokio::test(start_paused = true)]
    async fn calls_wait_for_their_turn_until_it_takes_too_long() {
        let pool = Pool::new().unwrap();
        let (begin, wait) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let first = call(&pool, move || wait.recv().unwrap());
        let rest: Vec<_> = (0..40)
            .map(|n| {
                let tell = tell.clone();
                call(&pool, move || tell.send(n).unwrap())
            })
            .collect();
        while lock(&pool.calls).queue.len() < rest.len() {
            tokio::task::yield_now().await; // the first one's thread takes it off
        }
        assert_eq!(lock(&pool.calls).threads, 1);
        // A blocking call holds the paused clock, so time is moved by hand.
        tokio::time::advance(PATIENCE + Duration::from_millis(1)).await;
        for call in rest {
            call.await.unwrap();
        }
        let mut numbers: Vec<_> = told.try_iter().collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..40).collect::<Vec<_>>());
        begin.send(()).unwrap();
        first.await.unwrap();
    }

    /// All are there at the same time, and no more than there are threads.
    #[tokio::test]
    async fn slow_calls_run_at_once() {
        let pool = Pool::new().unwrap();
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let barrier = Arc::new(Barrier::new(AT_ONCE));
        let calls: Vec<_> = (0..3 * AT_ONCE)
            .map(|_| {
                let (running, most, barrier) = (running.clone(), most.clone(), barrier.clone());
                call(&pool, move || {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    barrier.wait();
                    running.fetch_sub(1, Ordering::SeqCst);
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
        assert_eq!(most.load(Ordering::SeqCst), AT_ONCE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_nobody_waits_for_is_not_begun() {
        let pool = Pool::new().unwrap();
        let (begin, wait) = mpsc::channel::<()>();
        let busy = call(&pool, move || wait.recv().unwrap());
        let made = Arc::new(AtomicUsize::new(0));
        let counted = made.clone();
        let dropped = call(&pool, move || counted.store(1, Ordering::SeqCst));
        while lock(&pool.calls).queue.len() != 1 {
            tokio::task::yield_now().await;
        }
        dropped.abort();
        assert!(dropped.await.unwrap_err().is_cancelled());
        begin.send(()).unwrap();
        busy.await.unwrap();
        pool.run("test", || Ok(())).await.unwrap();
        assert_eq!(made.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn what_is_dropped_does_not_wait_for_a_stuck_call() {
        let pool = Pool::new().unwrap();
        let (end, wait) = mpsc::channel::<()>();
        let stuck = call(&pool, move || wait.recv().unwrap());
        while lock(&pool.calls).threads == 0 || !lock(&pool.calls).queue.is_empty() {
            tokio::task::yield_now().await;
        }
        let (tell, told) = oneshot::channel();
        pool.later(move || tell.send(()).unwrap());
        let told = tokio::time::timeout(Duration::from_secs(20), told).await;
        end.send(()).unwrap();
        stuck.await.unwrap();
        told.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_panic_is_the_callers() {
        let pool = Pool::new().unwrap();
        let call = tokio::spawn({
            let pool = pool.clone();
            async move { pool.run::<()>("test", || panic!("of the call")).await }
        });
        assert!(call.await.unwrap_err().is_panic());
        pool.later(|| panic!("of nobody"));
        pool.run("test", || Ok(())).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_stuck_driver_is_an_error() {
        let pool = Pool::new().unwrap();
        let (answer, wait) = mpsc::channel::<()>();
        let call = tokio::spawn({
            let pool = pool.clone();
            async move { pool.run("ask", move || Ok(wait.recv())).await.map(drop) }
        });
        // A blocking call holds the paused clock, so time is moved by hand.
        while lock(&pool.calls).threads == 0 {
            tokio::task::yield_now().await;
        }
        for wait in [PATIENCE, DEADLINE] {
            tokio::time::advance(wait + Duration::from_millis(1)).await;
            tokio::task::yield_now().await;
        }
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(LinuxError::of(&error), Some(LinuxError::Stuck { .. })), "{error:?}");
        drop(answer);
    }

    #[test]
    fn what_is_dropped_after_the_runtime_is_dropped_at_once() {
        struct Tells(mpsc::Sender<()>);
        impl Drop for Tells {
            fn drop(&mut self) {
                _ = self.0.send(());
            }
        }
        let (tell, told) = mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let pool = runtime.block_on(async { Pool::new().unwrap() });
        let value = Deferred::new(Tells(tell), &pool);
        drop(runtime);
        drop(value);
        told.try_recv().unwrap();
    }
}
