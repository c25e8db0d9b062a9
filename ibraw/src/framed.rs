//! Datagrams through a codec.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use futures_sink::Sink;
use pin_project::pin_project;
use tokio_util::codec::{Decoder, Encoder};

use crate::backend::Protocol;
use crate::core::Core;
use crate::stats::count;
use crate::{DatagramSink, Datagrams, RawError};

/// Stream and sink of what a codec makes of datagrams.
///
/// Each datagram is decoded by itself until the codec says that there is no more. What is left then is discarded and
/// counted, as is a datagram of which the codec makes nothing ([`rx_undecoded`](crate::RawStats::rx_undecoded)); the
/// next one begins anew. A decoder's error is an item, and the stream goes on with the next datagram.
///
/// The codec is not pinned: any will do, `Unpin` or not.
#[pin_project]
pub struct Framed<P: Protocol, C> {
    codec: C,
    datagrams: Datagrams<P>,
    sink: DatagramSink<P>,
    /// What is left of the datagram at hand, and what is known of it.
    at_hand: VecDeque<(BytesMut, P::Meta)>,
    core: Arc<Core<P>>,
}

impl<P: Protocol, C> Framed<P, C> {
    pub(crate) fn new(core: Arc<Core<P>>, codec: C) -> Self {
        let (datagrams, sink) = (Datagrams::new(core.clone()), DatagramSink::new(core.clone()));
        Self { codec, datagrams, sink, at_hand: VecDeque::new(), core }
    }

    /// The codec.
    pub fn codec(&self) -> &C {
        &self.codec
    }

    /// The codec.
    pub fn codec_mut(&mut self) -> &mut C {
        &mut self.codec
    }
}

fn to_io(error: RawError) -> io::Error {
    error.into()
}

impl<P: Protocol, C: Decoder> Stream for Framed<P, C> {
    type Item = Result<(C::Item, P::Meta), C::Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        loop {
            if let Some((mut rest, meta)) = this.at_hand.pop_front() {
                match this.codec.decode(&mut rest) {
                    Ok(Some(item)) => {
                        if !rest.is_empty() {
                            this.at_hand.push_front((rest, meta.clone()));
                        }
                        return Poll::Ready(Some(Ok((item, meta))));
                    }
                    Ok(None) => count(&this.core.backend.counters().rx_undecoded),
                    Err(error) => return Poll::Ready(Some(Err(error))),
                }
                continue;
            }
            match ready!(this.datagrams.poll_item(cx)) {
                Some(Ok(datagram)) => {
                    let data = datagram.data.try_into_mut().unwrap_or_else(|data| BytesMut::from(&data[..]));
                    this.at_hand.push_back((data, datagram.meta));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(to_io(error).into()))),
                None => return Poll::Ready(None),
            }
        }
    }
}

impl<P: Protocol, C: Encoder<I>, I> Sink<(I, P::Dest)> for Framed<P, C> {
    type Error = C::Error;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), C::Error>> {
        self.project().sink.poll_room(cx).map_err(|error| to_io(error).into())
    }

    fn start_send(self: Pin<&mut Self>, (item, dest): (I, P::Dest)) -> Result<(), C::Error> {
        let this = self.project();
        let mut data = BytesMut::new();
        this.codec.encode(item, &mut data)?;
        this.sink.start(Bytes::from(data), dest).map_err(|error| to_io(error).into())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), C::Error>> {
        self.project().sink.poll_send(cx).map_err(|error| to_io(error).into())
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), C::Error>> {
        self.project().sink.poll_send(cx).map_err(|error| to_io(error).into())
    }
}

impl<P: Protocol, C> fmt::Debug for Framed<P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Framed").field("datagrams", &self.datagrams).finish_non_exhaustive()
    }
}
