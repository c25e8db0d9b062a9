//! Builders that are futures themselves.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// What a builder has begun to do.
pub(super) type Running<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Polls a builder: its plan is begun with the first poll.
///
/// # Panics
/// After it was ready.
pub(super) fn poll<P, T, F>(
    plan: &mut Option<P>,
    run: &mut Option<Running<T>>,
    begin: impl FnOnce(P) -> F,
    cx: &mut Context<'_>,
) -> Poll<T>
where
    F: Future<Output = T> + Send + 'static,
{
    if let Some(plan) = plan.take() {
        *run = Some(Box::pin(begin(plan)));
    }
    let running = run.as_mut().expect("polled after it was ready");
    let output = ready!(running.as_mut().poll(cx));
    *run = None;
    Poll::Ready(output)
}
