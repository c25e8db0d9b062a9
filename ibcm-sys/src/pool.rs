//! Threads for calls that may wait for firmware.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use ibdev::DeviceError;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::LinuxError;

/// Slow calls of one device that run at once, in threads of the runtime's blocking pool.
const AT_ONCE: usize = 8;

/// How long a slow call may wait for its turn and its answer.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Where a device's slow calls run.
#[derive(Clone)]
pub(crate) struct Pool {
    runtime: Handle,
    turns: Arc<Semaphore>,
}

impl Pool {
    /// In the runtime of the caller.
    ///
    /// # Errors
    /// [`DeviceError::NoRuntime`].
    pub(crate) fn new() -> Result<Self, DeviceError> {
        let runtime = Handle::try_current().map_err(|_| DeviceError::NoRuntime)?;
        Ok(Self { runtime, turns: Arc::new(Semaphore::new(AT_ONCE)) })
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Makes a slow call. Dropping the future does not stop the call; what it creates is dropped when it ends.
    ///
    /// # Errors
    /// Those of the call; [`LinuxError::Stuck`] if it takes too long.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        what: &'static str,
        call: impl FnOnce() -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, DeviceError> {
        let (runtime, turns) = (self.runtime.clone(), self.turns.clone());
        let run = async move {
            let turn = turns.acquire_owned().await.map_err(|_| DeviceError::Gone)?;
            let made = runtime.spawn_blocking(move || {
                let result = call();
                drop(turn);
                result
            });
            match made.await {
                Ok(result) => result,
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(_) => Err(DeviceError::Gone), // the runtime is ending
                },
            }
        };
        match tokio::time::timeout(DEADLINE, run).await {
            Ok(result) => result,
            Err(_) => Err(LinuxError::Stuck { within: DEADLINE }.met(what)),
        }
    }

    /// Does something slow a little later and elsewhere. If the runtime is over, `work` is dropped here and now instead.
    pub(crate) fn later(&self, work: impl FnOnce() + Send + 'static) {
        match self.turns.clone().try_acquire_owned() {
            Ok(turn) => drop(self.runtime.spawn_blocking(move || with(turn, work))),
            Err(_) => {
                let (turns, runtime) = (self.turns.clone(), self.runtime.clone());
                drop(self.runtime.spawn(async move {
                    // Never closed.
                    if let Ok(turn) = turns.acquire_owned().await {
                        drop(runtime.spawn_blocking(move || with(turn, work)));
                    }
                }));
            }
        }
    }
}

fn with(turn: OwnedSemaphorePermit, work: impl FnOnce()) {
    work();
    drop(turn);
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("free", &self.turns.available_permits()).finish_non_exhaustive()
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
    use std::sync::Mutex;
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn no_more_calls_run_at_once_than_there_are_turns() {
        let pool = Pool::new().unwrap();
        let (running, most) = (Arc::new(Mutex::new((0, 0))), AT_ONCE);
        let calls: Vec<_> = (0..40)
            .map(|_| {
                let (pool, running) = (pool.clone(), running.clone());
                tokio::spawn(async move {
                    let call = move || {
                        {
                            let mut running = running.lock().unwrap();
                            running.0 += 1;
                            running.1 = running.1.max(running.0);
                        }
                        std::thread::yield_now();
                        running.lock().unwrap().0 -= 1;
                        Ok(())
                    };
                    pool.run("test", call).await
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap().unwrap();
        }
        let running = running.lock().unwrap();
        assert!(running.0 == 0 && (1..=most).contains(&running.1), "{running:?}");
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
        while pool.turns.available_permits() == AT_ONCE {
            tokio::task::yield_now().await;
        }
        tokio::time::advance(DEADLINE + Duration::from_millis(1)).await;
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
