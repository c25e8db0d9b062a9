//! Pools of buffers.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;

use ibdev::{Buf, BufHome};
use tokio::sync::Semaphore;

use crate::error::Error;
use crate::parked::Ticket;
use crate::shared::Shared;
use crate::sync::lock;

/// A fixed number of buffers: the bound on bytes in flight.
///
/// A buffer that is dropped comes back, wherever that happens: in the program, or in the device when an operation
/// ends that nobody waits for. Clones are the same pool. When the last clone is dropped, the buffers are freed as
/// they come back. A pool does not keep its HCA open.
///
/// ```
/// # use ibcm::{Buf, Hca};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let hca = Hca::open("soft").await?;
/// let pool = hca.pool(2, 4096).await?;
/// let (mut one, two) = (pool.get().await?, pool.get().await?);
/// one.put_slice(b"from an empty buffer");
/// assert!(pool.try_get().is_none());
/// drop(two);
/// assert_eq!(pool.try_get().ok_or("none came back")?.capacity(), 4096);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct BufPool {
    shared: Arc<Shared>,
    shelf: Arc<Shelf>,
}

/// The home of the buffers.
struct Shelf {
    /// One permit a buffer that is here. It serves those who wait in their order.
    here: Semaphore,
    bufs: Mutex<Vec<Buf>>,
    count: usize,
}

impl BufPool {
    pub(super) fn new(shared: Arc<Shared>, bufs: Vec<Buf>) -> Self {
        let count = bufs.len();
        Self { shared, shelf: Arc::new(Shelf { here: Semaphore::new(count), bufs: Mutex::new(bufs), count }) }
    }

    /// An empty buffer; waits while all are out, in the order of those who wait.
    ///
    /// Who keeps the buffers and asks for more waits for himself: see [`try_get`](Self::try_get).
    ///
    /// # Errors
    /// [`Error::Closed`] or [`Error::Device`] if no buffer is here and the HCA is closed or gone.
    ///
    /// # Cancel safety
    /// A dropped future loses no buffer, only its place among those who wait.
    pub async fn get(&self) -> Result<Buf, Error> {
        let mut acquire = pin!(self.shelf.here.acquire());
        let mut ticket = Ticket::new(&self.shared.parked);
        let permit = poll_fn(|cx| {
            ticket.park(cx);
            match acquire.as_mut().poll(cx) {
                Poll::Ready(permit) => Poll::Ready(Ok(permit)),
                Poll::Pending => match self.shared.is_over() {
                    Some(unavailable) => Poll::Ready(Err(Error::from(unavailable))),
                    None => Poll::Pending,
                },
            }
        });
        let permit = permit.await?.map_err(|_| Error::Closed)?;
        permit.forget();
        self.shelf.take().map(|buf| self.lend(buf)).ok_or(Error::Closed)
    }

    /// An empty buffer, if one is here and nobody waits for it.
    pub fn try_get(&self) -> Option<Buf> {
        self.shelf.here.try_acquire().ok()?.forget();
        self.shelf.take().map(|buf| self.lend(buf))
    }

    fn lend(&self, mut buf: Buf) -> Buf {
        buf.clear();
        let home: Arc<dyn BufHome> = self.shelf.clone();
        buf.with_home(Arc::downgrade(&home) as Weak<dyn BufHome>)
    }
}

impl Shelf {
    /// The buffer that a permit stands for.
    fn take(&self) -> Option<Buf> {
        lock(&self.bufs).pop()
    }
}

impl BufHome for Shelf {
    fn give_back(&self, buf: Buf) {
        lock(&self.bufs).push(buf);
        self.here.add_permits(1);
    }
}

impl fmt::Debug for Shelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let here = self.here.available_permits();
        f.debug_struct("Shelf").field("here", &here).field("count", &self.count).finish_non_exhaustive()
    }
}

impl fmt::Debug for BufPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let here = self.shelf.here.available_permits();
        f.debug_struct("BufPool").field("here", &here).field("count", &self.shelf.count).finish()
    }
}
