//! Sending datagrams.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use ibdev::{Buf, DatagramDest, SendFlags, SendOp, SendWr};
use pin_project::pin_project;
use tokio::task::coop::cooperative;

use super::peer::Peer;
use super::queue::Queue;
use crate::error::{OpCause, OpError};
use crate::parked::Ticket;

/// A datagram to send: a builder that is itself the future of its departure. `T` is what it gives: the buffer, or nothing
/// for a copy.
///
/// # Cancel safety
/// Dropped before it is posted, nothing happened and the buffer goes home. Later, it is sent all the same, and the buffer goes
/// home then.
#[pin_project(!Unpin)]
#[must_use = "nothing is sent before it is awaited"]
pub struct Send<'a, T> {
    config: Option<Config<'a>>,
    run: Option<BoxFuture<'a, Result<Option<Buf>, OpError>>>,
    finish: fn(Option<Buf>) -> Option<T>,
}

struct Config<'a> {
    queue: &'a Queue,
    peer: Peer,
    source: Source<'a>,
    imm: Option<u32>,
    solicited: bool,
}

/// What is sent.
enum Source<'a> {
    Buf(Buf),
    Copy(&'a [u8]),
}

impl<'a> Send<'a, Buf> {
    pub(super) fn of_buf(queue: &'a Queue, peer: &Peer, buf: Buf) -> Self {
        Self::new(queue, peer, Source::Buf(buf), |buf| buf)
    }
}

impl<'a> Send<'a, ()> {
    pub(super) fn of_copy(queue: &'a Queue, peer: &Peer, data: &'a [u8]) -> Self {
        Self::new(queue, peer, Source::Copy(data), |_| Some(()))
    }
}

impl<'a, T> Send<'a, T> {
    fn new(queue: &'a Queue, peer: &Peer, source: Source<'a>, finish: fn(Option<Buf>) -> Option<T>) -> Self {
        let config = Config { queue, peer: peer.clone(), source, imm: None, solicited: false };
        Self { config: Some(config), run: None, finish }
    }

    fn set(mut self, f: impl FnOnce(&mut Config<'a>)) -> Self {
        if let Some(config) = &mut self.config {
            f(config);
        }
        self
    }

    /// Sends these four bytes beside the datagram, as a number in network order.
    pub fn imm(self, imm: u32) -> Self {
        self.set(|config| config.imm = Some(imm))
    }

    /// Wakes the peer even if it waits for solicited messages only.
    pub fn solicited(self) -> Self {
        self.set(|config| config.solicited = true)
    }
}

/// A posted send. Dropped, nobody waits for it.
struct Posted<'a> {
    queue: &'a Queue,
    key: Option<usize>,
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.queue.detach(key);
        }
    }
}

/// A buffer for a copy that was not posted.
struct Copy<'a> {
    queue: &'a Queue,
    buf: Option<Buf>,
}

impl Drop for Copy<'_> {
    fn drop(&mut self) {
        if let Some(buf) = self.buf.take() {
            self.queue.return_copy(buf);
        }
    }
}

impl<'a> Config<'a> {
    async fn run(self) -> Result<Option<Buf>, OpError> {
        let Self { queue, peer, source, imm, solicited } = self;
        let (len, is_copy, mut buf) = match &source {
            Source::Buf(buf) => (buf.len(), false, None),
            Source::Copy(data) => (data.len(), true, None),
        };
        let prepared = async {
            queue.check(&peer, len)?;
            let permit = queue.room.acquire().await.map_err(|_| queue.closed())?;
            let ah = queue.address(peer.way()).await?;
            Ok::<_, OpCause>((permit, ah))
        };
        let (permit, ah) = match prepared.await {
            Ok(prepared) => prepared,
            Err(cause) => return Err(OpError { cause, buf: source.into_buf() }),
        };
        let mut copy = Copy { queue, buf: None };
        match source {
            Source::Buf(given) => buf = Some(given),
            Source::Copy(data) => match queue.copy_buf().await {
                Ok(mut own) => {
                    own.clear();
                    own.put_slice(data);
                    copy.buf = Some(own);
                }
                Err(cause) => return Err(OpError { cause, buf: None }),
            },
        }
        let Some(buf) = buf.or_else(|| copy.buf.take()) else {
            return Err(OpError { cause: OpCause::Closed, buf: None });
        };
        let op = SendOp::Datagram { to: DatagramDest { ah, qpn: peer.qpn(), qkey: peer.qkey() }, imm };
        let mut wr = SendWr::new(0, op, buf);
        wr.flags.set(SendFlags::SOLICITED, solicited);
        let key = match queue.post(wr, is_copy) {
            Ok(key) => key,
            Err((cause, buf)) => {
                if is_copy {
                    copy.buf = buf;
                    return Err(OpError { cause, buf: None });
                }
                return Err(OpError { cause, buf });
            }
        };
        permit.forget();
        let mut posted = Posted { queue, key: Some(key) };
        let mut ticket = Ticket::new(&queue.parked);
        let sent = poll_fn(|cx| {
            ticket.park(cx);
            queue.poll_sent(key)
        });
        let (result, buf) = cooperative(sent).await;
        posted.key = None;
        let buf = match is_copy {
            true => {
                copy.buf = buf;
                None
            }
            false => buf,
        };
        match result {
            Ok(()) => Ok(buf),
            Err(cause) => Err(OpError { cause, buf }),
        }
    }
}

impl Source<'_> {
    fn into_buf(self) -> Option<Buf> {
        match self {
            Self::Buf(buf) => Some(buf),
            Self::Copy(_) => None,
        }
    }
}

impl<T> Future for Send<'_, T> {
    type Output = Result<T, OpError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let finish = *this.finish;
        crate::builder::poll(this.config, this.run, Config::run, cx).map(|result| {
            result.and_then(|buf| finish(buf).ok_or(OpError { cause: OpCause::Closed, buf: None }))
        })
    }
}

impl<T> fmt::Debug for Send<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peer = self.config.as_ref().map(|config| &config.peer);
        f.debug_struct("Send").field("peer", &peer).finish_non_exhaustive()
    }
}
