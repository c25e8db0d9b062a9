//! Received buffers that their readers have given back.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use ibdev::{Buf, BufHome, PostError, QueuePair, RecvWr};

use super::RECV_ID;
use crate::memory::Spares;
use crate::proto::ConnHandle;
use crate::shared::{Hungry, Shared};
use crate::sync::lock;

/// The home of a connection's receive buffers.
///
/// A buffer may be dropped anywhere, even by a device under its own locks, so coming home only puts it on the
/// list. `recv` posts what is on the list; when few are left posted the driver is asked to, because nobody may
/// be in `recv`.
pub(crate) struct RecvPool {
    returned: Mutex<VecDeque<RecvWr>>,
    /// Receives that the device holds, as far as their completions have been seen.
    posted: AtomicU32,
    /// At so many posted the driver is asked.
    low: u32,
    closed: AtomicBool,
    /// Whom to ask, and for which connection; unset as long as there is none.
    driver: OnceLock<(Weak<Shared>, ConnHandle)>,
    /// Where buffers go in the end.
    spares: Arc<Spares>,
}

impl RecvPool {
    /// For `count` buffers.
    pub(crate) fn new(count: u32, spares: Arc<Spares>) -> Arc<Self> {
        Arc::new(Self {
            returned: Mutex::default(),
            posted: AtomicU32::new(0),
            low: count / 2,
            closed: AtomicBool::new(false),
            driver: OnceLock::new(),
            spares,
        })
    }

    /// From here on the driver posts what comes home, if nobody else does.
    pub(crate) fn attach(&self, shared: &Arc<Shared>, conn: ConnHandle) {
        // A second call would name the same connection.
        let _ = self.driver.set((Arc::downgrade(shared), conn));
    }

    /// What came home since the last call.
    pub(crate) fn take_returned(&self) -> VecDeque<RecvWr> {
        std::mem::take(&mut *lock(&self.returned))
    }

    pub(crate) fn posted(&self) -> u32 {
        self.posted.load(Ordering::Relaxed)
    }

    /// Posts buffers: the first ones, or those that came home.
    pub(crate) fn post(&self, qp: &dyn QueuePair, mut work: VecDeque<RecvWr>) -> Result<(), PostError> {
        if work.is_empty() {
            return Ok(());
        }
        // Counted first: a completion may be there before the call returns.
        self.posted.fetch_add(work.len() as u32, Ordering::Relaxed);
        let result = qp.post_recv(&mut work);
        if !work.is_empty() {
            self.posted.fetch_sub(work.len() as u32, Ordering::Relaxed);
            self.retire(work.into_iter().flat_map(|wr| wr.sg));
        }
        result
    }

    pub(crate) fn sub_posted(&self) {
        self.posted.fetch_sub(1, Ordering::Relaxed);
    }

    /// Nothing is posted from here on; buffers that come home are for other connections.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.retire(self.take_returned().into_iter().flat_map(|wr| wr.sg));
    }

    /// Takes buffers that this connection does not need any more.
    pub(crate) fn retire(&self, bufs: impl IntoIterator<Item = Buf>) {
        self.spares.keep(bufs);
    }

    /// A buffer of this pool, which comes back when it is dropped.
    pub(crate) fn lend(self: &Arc<Self>, buf: Buf) -> Buf {
        let pool: Arc<dyn BufHome> = self.clone();
        let home: Weak<dyn BufHome> = Arc::downgrade(&pool);
        buf.with_home(home)
    }
}

impl BufHome for RecvPool {
    fn give_back(&self, buf: Buf) {
        if self.closed.load(Ordering::Acquire) {
            return self.retire([buf]);
        }
        lock(&self.returned).push_back(RecvWr::new(RECV_ID, buf));
        if self.posted() <= self.low
            && let Some((shared, conn)) = self.driver.get()
            && let Some(shared) = shared.upgrade()
        {
            shared.feed(Hungry::Connection(*conn));
        }
    }
}

impl fmt::Debug for RecvPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvPool").field("posted", &self.posted()).finish_non_exhaustive()
    }
}
