//! Sending as a sink.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_sink::Sink;
use tokio_util::sync::ReusableBoxFuture;

use crate::RawError;
use crate::backend::Protocol;
use crate::core::Core;
use crate::stats::add;

/// The most datagrams that wait in a sink.
const QUEUE: usize = 64;

type Queue<P> = VecDeque<(Bytes, <P as Protocol>::Dest)>;

/// Gives back what was not sent.
type Sending<P> = ReusableBoxFuture<'static, (Queue<P>, Result<(), RawError>)>;

/// A sink of payloads and destinations. It holds up to 64 datagrams; what is flushed goes out together.
///
/// A datagram that cannot be sent is an error of `start_send`, if that can be told at once, else of the next call that
/// sends; the sink goes on with the next one, unless the error is fatal. Dropped, what it holds is not sent and counted as
/// [`tx_unsent`](crate::RawStats::tx_unsent).
#[must_use = "sinks do nothing unless polled"]
pub struct DatagramSink<P: Protocol> {
    core: Arc<Core<P>>,
    queue: Queue<P>,
    sending: Option<Sending<P>>,
    /// How many datagrams that future has.
    under_way: usize,
}

impl<P: Protocol> DatagramSink<P> {
    pub(crate) fn new(core: Arc<Core<P>>) -> Self {
        Self { core, queue: Queue::<P>::new(), sending: None, under_way: 0 }
    }

    /// Sends all that it holds.
    pub(crate) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RawError>> {
        loop {
            if let Some(sending) = &mut self.sending {
                let (mut rest, result) = ready!(sending.poll(cx));
                (self.sending, self.under_way) = (None, 0);
                rest.append(&mut self.queue);
                self.queue = rest;
                if result.is_err() {
                    return Poll::Ready(result);
                }
            }
            if self.queue.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let (core, mut queue) = (self.core.clone(), std::mem::take(&mut self.queue));
            self.under_way = queue.len();
            self.sending = Some(ReusableBoxFuture::new(async move {
                let all: Vec<_> = queue.iter().map(|(data, dest)| (&data[..], dest)).collect();
                let sent = core.send(&all).await;
                let (done, result) = match sent {
                    Ok(sent) => (sent, Ok(())),
                    Err(error) => (1, Err(error)), // the first is the one that cannot be sent
                };
                queue.drain(..done);
                (queue, result)
            }));
        }
    }

    /// Room for one more.
    pub(crate) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RawError>> {
        self.core.check_open()?;
        if self.queue.len() + self.under_way < QUEUE {
            return Poll::Ready(Ok(()));
        }
        self.poll_send(cx)
    }

    /// Takes one more.
    pub(crate) fn start(&mut self, data: Bytes, dest: P::Dest) -> Result<(), RawError> {
        self.core.check_open()?;
        self.core.backend.check(&data, &dest)?;
        self.queue.push_back((data, dest));
        Ok(())
    }
}

impl<P: Protocol> Sink<(Bytes, P::Dest)> for DatagramSink<P> {
    type Error = RawError;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), RawError>> {
        self.get_mut().poll_room(cx)
    }

    fn start_send(self: Pin<&mut Self>, (data, dest): (Bytes, P::Dest)) -> Result<(), RawError> {
        self.get_mut().start(data, dest)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), RawError>> {
        self.get_mut().poll_send(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), RawError>> {
        self.get_mut().poll_send(cx)
    }
}

impl<P: Protocol> Drop for DatagramSink<P> {
    fn drop(&mut self) {
        add(&self.core.backend.counters().tx_unsent, self.queue.len() + self.under_way);
    }
}

impl<P: Protocol> fmt::Debug for DatagramSink<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramSink").field("waiting", &self.queue.len()).finish_non_exhaustive()
    }
}
