//! Receiving as a stream.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use tokio_util::sync::ReusableBoxFuture;

use crate::backend::Protocol;
use crate::core::Core;
use crate::stats::add;
use crate::{Batch, Datagram, RawError};

/// What a socket receives, one datagram an item. An error that is [transient](RawError::is_transient) is an item, and the
/// stream goes on; after another one, and when the socket is closed, it ends.
///
/// It receives up to 64 at once and hands them out one by one; dropped, those that nobody took are counted as
/// [`rx_unread`](crate::RawStats::rx_unread).
#[must_use = "streams do nothing unless polled"]
pub struct Datagrams<P: Protocol> {
    core: Arc<Core<P>>,
    batch: Option<Batch<P>>,
    ready: VecDeque<Datagram<P::Meta>>,
    waiting: Option<Filling<P>>,
    is_over: bool,
}

/// Gives the batch back, filled.
type Filling<P> = ReusableBoxFuture<'static, (Batch<P>, Result<(), RawError>)>;

/// The most received at once.
const BATCH: usize = 64;

impl<P: Protocol> Datagrams<P> {
    pub(crate) fn new(core: Arc<Core<P>>) -> Self {
        Self { core, batch: None, ready: VecDeque::new(), waiting: None, is_over: false }
    }

    /// One more, or none for ever.
    pub(crate) fn poll_item(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Datagram<P::Meta>, RawError>>> {
        loop {
            if let Some(datagram) = self.ready.pop_front() {
                return Poll::Ready(Some(self.core.whole(datagram)));
            }
            if self.is_over {
                return Poll::Ready(None);
            }
            let filled = match &mut self.waiting {
                Some(waiting) => {
                    let (batch, filled) = ready!(waiting.poll(cx));
                    (self.waiting, self.batch) = (None, Some(batch));
                    filled
                }
                None => {
                    let turn = ready!(tokio::task::coop::poll_proceed(cx));
                    let mut batch = self.batch.take().unwrap_or_else(|| self.core.backend.room(BATCH));
                    match self.core.try_fill(&mut batch, BATCH) {
                        Ok(Poll::Pending) => {
                            let core = self.core.clone();
                            self.waiting = Some(ReusableBoxFuture::new(async move {
                                let filled = core.fill(&mut batch, BATCH).await;
                                (batch, filled)
                            }));
                            continue;
                        }
                        filled => {
                            turn.made_progress();
                            self.batch = Some(batch);
                            filled.map(drop)
                        }
                    }
                }
            };
            match (filled, &mut self.batch) {
                (Ok(()), Some(batch)) => batch.take(|datagram| self.ready.push_back(datagram)),
                (Ok(()), None) => {}
                (Err(RawError::Closed), _) => self.is_over = true,
                (Err(error), _) => {
                    self.is_over = !error.is_transient();
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }
}

impl<P: Protocol> Stream for Datagrams<P> {
    type Item = Result<Datagram<P::Meta>, RawError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_item(cx)
    }
}

impl<P: Protocol> Drop for Datagrams<P> {
    fn drop(&mut self) {
        add(&self.core.backend.counters().rx_unread, self.ready.len());
    }
}

impl<P: Protocol> fmt::Debug for Datagrams<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagrams").field("link", &self.core.link).finish_non_exhaustive()
    }
}
