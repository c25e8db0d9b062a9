use std::pin::pin;
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
async fn what_is_dropped_does_not_wait_for_stuck_calls() {
    let pool = Pool::new().unwrap();
    let (end, wait) = mpsc::channel::<()>();
    let stuck = call(&pool, move || wait.recv().unwrap());
    while lock(&pool.calls).threads == 0 || !lock(&pool.calls).queue.is_empty() {
        tokio::task::yield_now().await;
    }
    let ends: Vec<_> = (0..AT_ONCE - 2)
        .map(|_| {
            let (end, wait) = mpsc::channel::<()>();
            pool.later(move || wait.recv().unwrap());
            end
        })
        .collect();
    let withdrawn = tokio::time::timeout(Duration::ZERO, pool.run("test", || Ok(()))).await;
    let (tell, told) = oneshot::channel();
    pool.later(move || tell.send(()).unwrap());
    let told = tokio::time::timeout(Duration::from_secs(20), told).await;
    for end in ends.into_iter().chain([end]) {
        end.send(()).unwrap();
    }
    stuck.await.unwrap();
    told.unwrap().unwrap();
    assert!(withdrawn.is_err());
}

/// All its threads are stuck.
fn stuck() -> Pool {
    let pool = Pool::new().unwrap();
    lock(&pool.calls).threads = AT_ONCE;
    pool
}

#[tokio::test(start_paused = true)]
async fn a_call_leaves_the_queue_with_who_waits_for_it() {
    struct Looks(Pool, Arc<AtomicUsize>);
    impl Drop for Looks {
        fn drop(&mut self) {
            self.1.fetch_add(lock(&self.0.calls).queue.len() + 1, Ordering::Relaxed);
        }
    }
    let (pool, dropped) = (stuck(), Arc::default());
    let call = || {
        let looks = Looks(pool.clone(), Arc::clone(&dropped));
        pool.run("ask", move || {
            drop(looks);
            Ok(())
        })
    };
    tokio::time::timeout(PATIENCE, call()).await.unwrap_err();
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    let error = call().await.unwrap_err();
    assert!(matches!(LinuxError::of(&error), Some(LinuxError::Stuck { .. })), "{error:?}");
    assert_eq!(dropped.load(Ordering::Relaxed), 2);
    let calls = lock(&pool.calls);
    assert_eq!((calls.queue.len(), calls.waited_for), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn no_more_calls_than_can_be_made_are_waited_for() {
    let pool = stuck();
    lock(&pool.calls).waited_for = WAITED_FOR - 1;
    let mut last = pin!(pool.run("ask", || Ok(())));
    tokio::time::timeout(Duration::ZERO, &mut last).await.unwrap_err();
    let refused = pool.run("ask", || Ok(())).await.unwrap_err();
    assert_eq!(refused.to_string(), "slow calls at once 15001, the device allows 15000");
    pool.later(|| ());
    assert_eq!(lock(&pool.calls).queue.len(), 2, "what is dropped is never refused");
    last.await.unwrap_err();
    let calls = lock(&pool.calls);
    assert_eq!((calls.queue.len(), calls.waited_for), (1, WAITED_FOR - 1));
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

/// What was made for somebody who has gone may panic when it is dropped: its thread makes the other calls all the same.
#[tokio::test(start_paused = true)]
async fn a_panic_of_what_nobody_wants_ends_no_thread() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("of what nobody wants");
        }
    }
    let pool = Pool::new().unwrap();
    let (begin, wait) = mpsc::channel::<()>();
    let (tell, told) = oneshot::channel();
    let unwanted = tokio::spawn({
        let pool = pool.clone();
        async move {
            let call = move || {
                tell.send(()).unwrap();
                wait.recv().unwrap();
                Ok(Panics)
            };
            pool.run("make", call).await.map(std::mem::forget)
        }
    });
    told.await.unwrap();
    unwanted.abort();
    assert!(unwanted.await.unwrap_err().is_cancelled());
    let next = call(&pool, || ());
    while lock(&pool.calls).queue.is_empty() {
        tokio::task::yield_now().await;
    }
    begin.send(()).unwrap();
    next.await.unwrap();
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
