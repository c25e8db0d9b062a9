//! What the builders that are futures have in common.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Polls what `config` turns into with the first poll.
///
/// # Panics
/// If it is polled again after it was ready, as async functions do.
pub(crate) fn poll<'a, C, F, T>(
    config: &mut Option<C>,
    run: &mut Option<Pin<Box<dyn Future<Output = T> + Send + 'a>>>,
    start: impl FnOnce(C) -> F,
    cx: &mut Context<'_>,
) -> Poll<T>
where
    F: Future<Output = T> + Send + 'a,
{
    if let Some(config) = config.take() {
        *run = Some(Box::pin(start(config)));
    }
    let future = run.as_mut().expect("polled after it was ready");
    let output = std::task::ready!(future.as_mut().poll(cx));
    *run = None;
    Poll::Ready(output)
}
