//! Operations that are in the send queue.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project::pin_project;
use tokio::task::coop::poll_proceed;

use super::op::{Finish, Op, detach, finish, poll_done};
use crate::error::OpError;
use crate::parked::Ticket;
use crate::shared::Shared;
use crate::slot::Slot;

/// The future of an operation's place in the send queue; gives a [`Posted`].
///
/// # Cancel safety
/// Dropped before it is done, nothing happened and the buffer goes home.
#[pin_project(!Unpin)]
#[must_use = "nothing is posted before it is awaited"]
pub struct Post<'a, T> {
    op: Op<'a, T>,
}

/// An operation that is in the send queue: the future of its result.
///
/// Operations of one connection are carried out in the order in which they were posted. So what was posted behind a write
/// is seen behind it, and many may be under way at once:
///
/// ```
/// # use ibcm::{Access, Connection, Hca, Listener, RemoteRegion, ServiceId};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (hca, sid) = (Hca::open("soft").await?, ServiceId::new(0x1000_0000_0000_0001));
/// # let listener = Listener::bind(sid).device(&hca).await?;
/// # let path = hca.path_to(hca.gid()).service_id(sid).await?;
/// # let region = hca.expose(4096, Access::REMOTE_WRITE).await?;
/// # let advert = region.remote().to_bytes();
/// # let accepting = async { Ok::<_, ibcm::Error>(listener.accept().await?.accept().private_data(&advert).await?) };
/// # let dialing = async { Ok(Connection::connect(path).await?) };
/// # let (conn, peer) = tokio::try_join!(dialing, accepting)?;
/// let remote = RemoteRegion::from_bytes(conn.private_data())?;
/// let mut buf = hca.alloc(5).await?;
/// buf.copy_from_slice(b"value");
/// let write = conn.write(buf, remote.slice(0, 5)?).post().await?;
/// let word = conn.send_copy(b"written").post().await?; // in the queue behind it, so seen behind it
/// let (buf, ()) = tokio::try_join!(write, word)?;
/// # assert_eq!(&peer.recv().await?.ok_or("closed")?[..], b"written");
/// # let mut seen = [0; 5];
/// # region.copy_to(0, &mut seen)?;
/// # assert_eq!((&seen, &buf[..]), (b"value", &b"value"[..]));
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// Dropped, the operation is detached: it goes on, its buffer goes home at the completion, and a failure ends the
/// connection.
#[must_use = "dropped, the operation goes on and its result is lost"]
pub struct Posted<T> {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    /// `None` once the result is given.
    key: Option<usize>,
    ticket: Ticket,
    finish: Finish<T>,
}

impl<'a, T> Post<'a, T> {
    pub(super) fn new(op: Op<'a, T>) -> Self {
        Self { op }
    }
}

impl<T> Future for Post<'_, T> {
    type Output = Result<Posted<T>, OpError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let op = self.project().op;
        let key = ready!(op.poll_post(cx))?;
        let conn = op.connection();
        Poll::Ready(Ok(Posted {
            shared: Arc::clone(conn.shared()),
            slot: Arc::clone(conn.slot()),
            key: Some(key),
            ticket: Ticket::new(&conn.slot().parked),
            finish: op.finish(),
        }))
    }
}

impl<T> Future for Posted<T> {
    type Output = Result<T, OpError>;

    /// # Panics
    /// If it is polled again after it was ready, as async functions do.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let key = this.key.expect("polled after it was ready");
        let budget = ready!(poll_proceed(cx));
        let done = ready!(poll_done(&this.shared, &this.slot, &mut this.ticket, key, cx));
        budget.made_progress();
        this.key = None;
        Poll::Ready(finish(done, this.finish))
    }
}

impl<T> Drop for Posted<T> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            detach(&self.shared, &self.slot, key);
        }
    }
}

impl<T> fmt::Debug for Post<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.op.fmt("Post", f)
    }
}

impl<T> fmt::Debug for Posted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Posted").field("done", &self.key.is_none()).finish_non_exhaustive()
    }
}
