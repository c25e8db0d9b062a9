//! The async client over a port that lives in this process, under virtual time.
#![cfg(feature = "client")]
#![allow(clippy::unwrap_used, reason = "a test that cannot read its data fails")]

mod fake;
mod groups;
mod notices;
mod paths;
mod queries;
mod services;
mod shutdown;
mod trouble;

use std::future::Future;
use std::time::Duration;

/// Lets all tasks do what they can do at this moment.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// Lets time pass.
async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
    settle().await;
}

/// Polls a future until this time has passed, and drops it.
async fn drop_after<F: Future>(time: Duration, future: F) {
    assert!(tokio::time::timeout(time, future).await.is_err(), "it was ready");
    settle().await;
}

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
