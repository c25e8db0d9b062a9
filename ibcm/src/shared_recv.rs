//! Receive buffers that many connections share.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use ibdev::{Buf, BufHome, DeviceAttr, DeviceError, PostError, RecvWr, SharedReceiveQueue};

use crate::data::RECV_ID;
use crate::error::Error;
use crate::memory::Memory;
use crate::proto::Invalid;
use crate::shared::{Counters, Hungry, Shared};
use crate::sync::lock;

/// Receive buffers for many connections of one HCA and domain, which take them as messages come: an SRQ.
///
/// Made by [`Hca::shared_recv`](crate::Hca::shared_recv), given to connections by
/// [`Recv::shared`](crate::Recv::shared). A thousand connections with buffers of their own hold a thousand times 64
/// KiB; here the memory is `count` times `len` bytes, however many connections there are. Each connection's
/// completion queue has room for all of them.
///
/// A [`Message`](crate::Message) is one of the buffers, and is posted again when it is dropped. Messages that wait
/// for a slow reader hold buffers too: when all are taken, the peers of *all* these connections wait
/// (receiver-not-ready) and try again, for ever unless an RNR retry count below 7 was set. Nothing is lost, and
/// it is not silent: warnings are traced (the 1st, 2nd, 4th, 8th.. time), [`exhausted`](Self::exhausted) and the HCA's counter
/// `shared_receives_exhausted` grow, and
/// [`ConnectionStats::messages_waiting`](crate::ConnectionStats::messages_waiting) shows whose messages are not
/// read. A program that cannot trust its readers gives them buffers of their own.
///
/// A cheap handle; clones are the same queue, and connections that use it keep it. It does not keep the HCA open.
///
/// ```
/// # use ibcm::{Connection, Hca, Listener, Recv, ServiceId};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (hca, sid) = (Hca::open("soft").await?, ServiceId::new(0x1000_0000_0000_0001));
/// # let path = hca.path_to(hca.gid()).service_id(sid).await?;
/// use futures::future::try_join_all;
/// let listener = Listener::bind(sid).device(&hca).await?;
/// let receives = hca.shared_recv(64, 4096).await?; // 256 KiB for all connections together
/// # let client_receives = hca.shared_recv(64, 4096).await?;
/// # let dialing = tokio::spawn(async move {
/// #     let connect = || Connection::connect(path.clone()).recv(Recv::shared(&client_receives));
/// #     let conns = try_join_all((0..200).map(|_| connect())).await?;
/// #     try_join_all(conns.iter().map(|conn| async { conn.send_copy(b"x").await })).await?;
/// #     Ok::<_, ibcm::Error>(conns)
/// # });
/// let mut conns = Vec::new();
/// for _ in 0..200 {
///     conns.push(listener.accept().await?.accept().recv(Recv::shared(&receives)).await?);
/// }
/// async fn read(conn: &Connection) -> Result<usize, Box<dyn std::error::Error>> {
///     let message = conn.recv().await?.ok_or("closed")?;
///     Ok(message.len()) // here its buffer goes back, for any of the connections
/// }
/// let lens = try_join_all(conns.iter().map(read)).await?;
/// # assert_eq!(lens, [1; 200]);
/// # dialing.await??;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SharedRecv(Arc<SharedQueue>);

/// A shared receive queue and the buffers that are not posted to it.
pub(crate) struct SharedQueue {
    srq: Arc<dyn SharedReceiveQueue>,
    memory: Memory,
    count: u32,
    len: usize,
    /// As in [`RecvPool`](crate::data::RecvPool): a buffer may come home anywhere, so that only puts it here.
    returned: Mutex<Vec<Buf>>,
    /// The driver has been asked to post what came home.
    asked: AtomicBool,
    /// The device has said that no receive is left, and is to be asked for the next time.
    starved: AtomicBool,
    /// Nothing can be posted any more.
    dead: AtomicBool,
    exhausted: AtomicU64,
    shared: Weak<Shared>,
    me: Weak<Self>,
}

impl SharedRecv {
    pub(crate) async fn create(
        shared: &Arc<Shared>,
        device: &DeviceAttr,
        memory: Memory,
        count: usize,
        len: usize,
    ) -> Result<Self, Error> {
        if device.max_srq_wr == 0 {
            return Err(DeviceError::Unsupported { what: "a shared receive queue" }.into());
        }
        if count == 0 {
            return Err(Invalid::at_least("shared receive buffers", 0, 1).into());
        }
        Invalid::at_most("shared receive buffers", count as u64, device.max_srq_wr)?;
        Invalid::at_most("receive buffer length", len as u64, device.max_message)?;
        let count = count as u32;
        let srq = memory.domain.create_srq(count, 1).await?;
        let bufs = memory.take(count as usize, len).await?;
        let queue = Arc::new_cyclic(|me| SharedQueue {
            srq,
            memory,
            count,
            len,
            returned: Mutex::new(bufs),
            asked: AtomicBool::new(true),
            starved: AtomicBool::new(true),
            dead: AtomicBool::new(false),
            exhausted: AtomicU64::new(0),
            shared: Arc::downgrade(shared),
            me: me.clone(),
        });
        shared.add_shared_recv(&queue);
        queue.refill();
        Ok(Self(queue))
    }

    /// How often all buffers were taken, so that peers had to wait.
    pub fn exhausted(&self) -> u64 {
        self.0.exhausted.load(Ordering::Relaxed)
    }

    pub(crate) fn queue(&self) -> &Arc<SharedQueue> {
        &self.0
    }

    /// Whether its HCA is this one.
    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Weak::ptr_eq(&self.0.shared, &Arc::downgrade(shared))
    }
}

impl SharedQueue {
    pub(crate) fn srq(&self) -> Arc<dyn SharedReceiveQueue> {
        Arc::clone(&self.srq)
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// How many buffers there are.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// How long each of them is.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Its number on the device.
    pub(crate) fn number(&self) -> u32 {
        self.srq.number()
    }

    /// Posts what came home, if there is anything.
    pub(crate) fn refill(&self) {
        // What comes home from here on asks again.
        if !self.asked.swap(false, Ordering::AcqRel) {
            return;
        }
        let returned = std::mem::take(&mut *lock(&self.returned));
        if returned.is_empty() {
            return;
        }
        let home: Weak<dyn BufHome> = self.me.clone();
        // With a home: a queue pair that is destroyed with a receive in it leaves the buffer to its home.
        let lend = |buf: Buf| RecvWr::new(RECV_ID, buf.with_home(home.clone()));
        let mut work: VecDeque<RecvWr> = returned.into_iter().map(lend).collect();
        match self.srq.post_recv(&mut work) {
            Ok(()) => {}
            // Completions that nobody has looked at still have their places. What is left is posted with the next one
            // that comes home.
            Err(PostError::Full) => {
                lock(&self.returned).extend(work.into_iter().flat_map(|wr| wr.sg));
            }
            Err(error) => {
                tracing::debug!(%error, left = work.len(), "shared receive buffers not posted");
                self.dead.store(true, Ordering::Release);
                return;
            }
        }
        if self.starved.swap(false, Ordering::AcqRel)
            && let Err(error) = self.srq.set_limit(1)
        {
            tracing::debug!(%error, "nobody will know when the shared receives are exhausted");
        }
    }

    /// The device has no receive left.
    pub(crate) fn is_exhausted(&self) {
        let times = self.exhausted.fetch_add(1, Ordering::Relaxed) + 1;
        self.starved.store(true, Ordering::Release);
        if let Some(shared) = self.shared.upgrade() {
            Counters::add(&shared.counters.shared_receives_exhausted, 1);
        }
        // The counter tells how often; the log is not to be filled by it.
        if times.is_power_of_two() {
            tracing::warn!(
                srq = self.number(),
                buffers = self.count,
                times,
                "shared receives exhausted: all peers wait until messages are read"
            );
        }
        // Some may have come home meanwhile, and then nobody else asks.
        self.asked.store(true, Ordering::Release);
        self.refill();
    }
}

impl BufHome for SharedQueue {
    fn give_back(&self, buf: Buf) {
        if self.dead.load(Ordering::Acquire) {
            return;
        }
        lock(&self.returned).push(buf);
        if !self.asked.swap(true, Ordering::AcqRel)
            && let Some(shared) = self.shared.upgrade()
        {
            shared.feed(Hungry::Shared(self.me.clone()));
        }
    }
}

impl fmt::Debug for SharedQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedQueue")
            .field("number", &self.number())
            .field("count", &self.count)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for SharedRecv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRecv")
            .field("count", &self.0.count)
            .field("len", &self.0.len)
            .finish_non_exhaustive()
    }
}
