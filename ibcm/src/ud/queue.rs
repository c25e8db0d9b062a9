//! The queue pair of a socket: what is posted, what has completed, and who waits.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};

use ibdev::{
    AddressHandle, AddressVector, Buf, BufHome, Completion, CompletionQueue, DatagramSource, DeviceError,
    PostError, QueuePair, RecvWr, SendWr, Status,
};
use ibwire::packet::GrhArea;
use ibwire::{Gid, PKey, QKey, Qpn, Rate};
use slab::Slab;
use tokio::sync::Semaphore;

use super::datagram::Datagram;
use super::groups::Groups;
use super::peer::{Peer, Way};
use crate::error::{OpCause, RecvError};
use crate::memory::Memory;
use crate::parked::Parked;
use crate::proto::{Invalid, Limit, LocalPort, Value};
use crate::shared::{Counters, Hungry, Shared};
use crate::sync::lock;

/// Completions that are looked at in one go.
const BATCH: usize = 64;
/// Address handles that are kept. With more peers than these the oldest are made anew, all at once.
const ADDRESSES: usize = 1024;
/// Buffers for copies that are kept while nothing is sent.
pub(super) const SEND_DEPTH: u32 = 64;

/// A datagram queue pair with its completion queues and buffers.
pub(crate) struct Queue {
    pub(super) shared: Arc<Shared>,
    pub(super) port: u8,
    pub(super) qkey: QKey,
    pub(super) pkey: PKey,
    pub(super) groups: Groups,
    /// The longest datagram.
    pub(super) mtu: usize,
    pub(super) qp: Arc<dyn QueuePair>,
    pub(super) memory: Memory,
    send_cq: Arc<dyn CompletionQueue>,
    recv_cq: Arc<dyn CompletionQueue>,
    /// As a waker it wakes all that wait for something of this socket.
    pub(super) parked: Arc<Parked>,
    waker: Waker,
    /// One permit for each place in the send queue; it comes back with the completion.
    pub(super) room: Semaphore,
    /// Sends that nobody waits for any more.
    detached: AtomicUsize,
    /// Receive buffers that came home. They may do so anywhere, so that only puts them here.
    returned: Mutex<Vec<Buf>>,
    /// The driver has been asked to post what came home.
    asked: AtomicBool,
    state: Mutex<State>,
    me: Weak<Self>,
}

#[derive(Default)]
struct State {
    received: VecDeque<Received>,
    sends: Slab<Sending>,
    copies: Vec<Buf>,
    addresses: HashMap<Way, Arc<dyn AddressHandle>>,
    /// The port as it is.
    port: Option<LocalPort>,
    /// Counts the changes of the port's GID table, which address handles name by index.
    table: u64,
    end: Option<RecvError>,
}

struct Received {
    buf: Buf,
    imm: Option<u32>,
    from: DatagramSource,
}

/// A send that was posted.
enum Sending {
    Waiting { is_copy: bool },
    Detached { is_copy: bool },
    Done(Status, Option<Buf>),
}

/// Wakes those who wait, and the driver if completions are wanted that nobody waits for.
struct Bell {
    parked: Arc<Parked>,
    queue: Weak<Queue>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.parked.wake_all();
        if let Some(queue) = self.queue.upgrade()
            && queue.detached.load(Ordering::Acquire) > 0
        {
            queue.shared.feed(Hungry::Datagrams(self.queue.clone()));
        }
    }
}

/// What a socket's queue is made of.
pub(super) struct Parts {
    pub(super) shared: Arc<Shared>,
    pub(super) port: u8,
    pub(super) qkey: QKey,
    pub(super) pkey: PKey,
    pub(super) mtu: usize,
    pub(super) qp: Arc<dyn QueuePair>,
    pub(super) memory: Memory,
    pub(super) send_cq: Arc<dyn CompletionQueue>,
    pub(super) recv_cq: Arc<dyn CompletionQueue>,
}

impl Queue {
    /// `bufs` are what it receives into.
    pub(super) fn new(parts: Parts, bufs: Vec<Buf>) -> Arc<Self> {
        let Parts { shared, port, qkey, pkey, mtu, qp, memory, send_cq, recv_cq } = parts;
        let parked = Arc::<Parked>::default();
        let queue = Arc::new_cyclic(|me: &Weak<Self>| Self {
            waker: Waker::from(Arc::new(Bell { parked: Arc::clone(&parked), queue: me.clone() })),
            shared,
            port,
            qkey,
            pkey,
            groups: Groups::default(),
            mtu,
            qp,
            memory,
            send_cq,
            recv_cq,
            parked,
            room: Semaphore::new(SEND_DEPTH as usize),
            detached: AtomicUsize::new(0),
            returned: Mutex::new(bufs),
            asked: AtomicBool::new(true),
            state: Mutex::default(),
            me: me.clone(),
        });
        queue.shared.add_socket(&queue);
        queue.port_changed(queue.port);
        queue
    }

    pub(crate) fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// Posts the receive buffers that came home.
    pub(super) fn refill(&self) -> Result<(), PostError> {
        // What comes home from here on asks again.
        if !self.asked.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let returned = std::mem::take(&mut *lock(&self.returned));
        let home: Weak<dyn BufHome> = self.me.clone();
        let lend = |buf: Buf| RecvWr::new(0, buf.with_home(home.clone()));
        let mut work: VecDeque<RecvWr> = returned.into_iter().map(lend).collect();
        match self.qp.post_recv(&mut work) {
            Err(PostError::Full) => {
                // Completions that nobody has looked at still have their places.
                lock(&self.returned).extend(work.into_iter().flat_map(|wr| wr.sg));
                Ok(())
            }
            result => result,
        }
    }

    /// What the driver does for a socket: posts what came home, and looks at completions that nobody waits for.
    pub(crate) fn tend(&self) {
        if let Err(error) = self.refill() {
            tracing::debug!(%error, "receive buffers of a datagram socket not posted");
        }
        while self.detached.load(Ordering::Acquire) > 0 && self.watch_sends().is_ready() {}
    }

    /// The next datagram.
    pub(super) fn poll_recv(&self) -> Poll<Result<Datagram, RecvError>> {
        loop {
            let received = lock(&self.state).received.pop_front();
            if let Some(Received { buf, imm, from }) = received {
                return Poll::Ready(Ok(Datagram::new(buf, imm, self.sender(&from))));
            }
            let ready = self.recv_cq.poll_notified(&mut Context::from_waker(&self.waker));
            let taken = match ready {
                Poll::Ready(()) => self.sort_receives(),
                Poll::Pending => 0,
            };
            if taken == 0
                && let Some(end) = self.end()
            {
                return Poll::Ready(Err(end));
            }
            if ready.is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Why nothing is sent any more.
    pub(super) fn closed(&self) -> OpCause {
        self.end().map_or(OpCause::Closed, |end| closed(&end))
    }

    /// How it ended, if it did.
    pub(super) fn end(&self) -> Option<RecvError> {
        lock(&self.state).end.clone()
    }

    /// Who sent something.
    fn sender(&self, from: &DatagramSource) -> Peer {
        let av = AddressVector {
            port: self.port,
            dlid: from.slid,
            sl: from.sl,
            path_bits: from.path_bits,
            rate: Rate::PORT_CURRENT,
            grh: from.grh,
        };
        self.peer(None, av, from.qpn, self.qkey)
    }

    /// A queue pair at the end of a way that starts from the socket's port.
    pub(super) fn peer(&self, sgid: Option<Gid>, av: AddressVector, qpn: Qpn, qkey: QKey) -> Peer {
        Peer::at(&self.shared, sgid, av, (qpn, qkey), lock(&self.state).port.as_ref())
    }

    /// Takes receives that have completed. How many there were.
    fn sort_receives(&self) -> usize {
        let mut completions = Vec::with_capacity(BATCH);
        let taken = self.recv_cq.poll(&mut completions, BATCH);
        let (mut count, mut bytes) = (0, 0);
        let mut state = lock(&self.state);
        for completion in completions.drain(..) {
            let Completion { status, imm, from, sg, .. } = completion;
            let buf = sg.into_iter().next();
            match (buf, from) {
                (Some(buf), Some(from)) if status.is_ok() && buf.len() >= GrhArea::LEN => {
                    count += 1;
                    bytes += (buf.len() - GrhArea::LEN) as u64;
                    state.received.push_back(Received { buf, imm, from });
                }
                _ => {
                    if !status.is_ok() && state.end.is_none() {
                        state.end = Some(RecvError::Broken(status));
                    }
                }
            }
        }
        drop(state);
        Counters::add(&self.shared.counters.datagrams_received, count);
        Counters::add(&self.shared.counters.datagram_bytes_received, bytes);
        taken
    }

    /// Whether `peer` can be sent `len` bytes from here.
    pub(super) fn check(&self, peer: &Peer, len: usize) -> Result<(), Invalid> {
        Invalid::at_most("datagram length", len as u64, self.mtu as u64)?;
        if !peer.is_of(&self.shared) || peer.way().av.port != self.port {
            let must = Limit::Must("one of the socket's HCA and port");
            let port = Value::Number(peer.way().av.port.into());
            return Err(Invalid::new("the port of the peer", port, must));
        }
        if let Some(pkey) = peer.pkey().filter(|pkey| pkey.base() != self.pkey.base()) {
            let must = Limit::Must("of the socket's partition");
            return Err(Invalid::new("the P_Key of the peer's path", Value::PKey(pkey), must));
        }
        Ok(())
    }

    /// The handle for a way.
    pub(super) async fn address(&self, way: Way) -> Result<Arc<dyn AddressHandle>, OpCause> {
        let (known, table) = {
            let state = lock(&self.state);
            (state.addresses.get(&way).cloned(), state.table)
        };
        if let Some(known) = known {
            return Ok(known);
        }
        let mut av = way.av;
        if let (Some(grh), Some(sgid)) = (&mut av.grh, way.sgid) {
            let engine = self.shared.engine();
            let port = engine.endpoint.local_ca().port(self.port);
            grh.sgid_index = port.and_then(|port| port.gid_index(sgid)).ok_or_else(|| {
                let must = Limit::Must("in the GID table of the socket's port");
                Invalid::new("SGID", Value::Gid(sgid), must)
            })?;
        }
        let handle = self.memory.domain.create_ah(av).await.map_err(OpCause::Device)?;
        let mut state = lock(&self.state);
        let mut old = HashMap::new();
        if state.addresses.len() >= ADDRESSES {
            old = std::mem::take(&mut state.addresses);
        }
        if state.table == table {
            state.addresses.insert(way, Arc::clone(&handle));
        }
        drop(state);
        drop(old);
        Ok(handle)
    }

    /// The HCA knows this port as it is now. Address handles name entries of its GID table by index.
    pub(crate) fn port_changed(&self, port: u8) {
        if port == self.port {
            let engine = self.shared.engine();
            let mut state = lock(&self.state);
            state.port = engine.endpoint.local_ca().port(port).cloned();
            drop(engine);
            state.table += 1;
            let old = std::mem::take(&mut state.addresses);
            drop(state);
            drop(old);
        }
    }

    /// A buffer for a copy.
    pub(super) async fn copy_buf(&self) -> Result<Buf, OpCause> {
        let kept = lock(&self.state).copies.pop();
        if let Some(kept) = kept {
            return Ok(kept);
        }
        let made = self.memory.take(1, self.mtu.max(1)).await.map_err(OpCause::Device)?;
        made.into_iter().next().ok_or(OpCause::Device(DeviceError::Unsupported { what: "one buffer" }))
    }

    /// Takes back a buffer for a copy.
    pub(super) fn return_copy(&self, buf: Buf) {
        let mut state = lock(&self.state);
        let unwanted = if state.copies.len() < SEND_DEPTH as usize {
            state.copies.push(buf);
            None
        } else {
            Some(buf)
        };
        drop(state);
        drop(unwanted);
    }

    /// Posts a datagram for which a permit of [`Queue::room`] was taken; it is the queue's from here on.
    pub(super) fn post(&self, mut wr: SendWr, is_copy: bool) -> Result<usize, (OpCause, Option<Buf>)> {
        let mut state = lock(&self.state);
        if let Some(end) = &state.end {
            return Err((closed(end), wr.sg.into_iter().next()));
        }
        let entry = state.sends.vacant_entry();
        let key = entry.key();
        wr.id = key as u64;
        let mut work = VecDeque::from([wr]);
        let result = self.qp.post_send(&mut work);
        match (result, work.pop_front()) {
            (Err(error), Some(wr)) => Err((refusal(error), wr.sg.into_iter().next())),
            _ => {
                entry.insert(Sending::Waiting { is_copy });
                Ok(key)
            }
        }
    }

    /// The end of a send.
    pub(super) fn poll_sent(&self, key: usize) -> Poll<(Result<(), OpCause>, Option<Buf>)> {
        loop {
            {
                let mut state = lock(&self.state);
                if let Some(Sending::Done(..)) = state.sends.get(key)
                    && let Sending::Done(status, buf) = state.sends.remove(key)
                {
                    let result = if status.is_ok() { Ok(()) } else { Err(OpCause::Status(status)) };
                    return Poll::Ready((result, buf));
                }
                if let Some(end) = &state.end {
                    let cause = closed(end);
                    state.sends.try_remove(key);
                    return Poll::Ready((Err(cause), None));
                }
            }
            if self.watch_sends().is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Nobody waits for the send any more.
    pub(super) fn detach(&self, key: usize) {
        let mut state = lock(&self.state);
        let done = match state.sends.get_mut(key) {
            Some(Sending::Done(..)) => state.sends.try_remove(key),
            Some(sending) => {
                if let Sending::Waiting { is_copy } = *sending {
                    *sending = Sending::Detached { is_copy };
                    self.detached.fetch_add(1, Ordering::AcqRel);
                }
                None
            }
            None => None,
        };
        drop(state);
        drop(done);
        if self.detached.load(Ordering::Acquire) > 0 {
            self.shared.feed(Hungry::Datagrams(self.me.clone()));
        }
    }

    /// Looks at sends that have completed, if there are any; else the next one wakes.
    fn watch_sends(&self) -> Poll<()> {
        let ready = self.send_cq.poll_notified(&mut Context::from_waker(&self.waker));
        if ready.is_ready() {
            self.sort_sends();
        }
        ready
    }

    fn sort_sends(&self) {
        let mut completions = Vec::with_capacity(BATCH);
        let taken = self.send_cq.poll(&mut completions, BATCH);
        let (mut sent, mut failed, mut unwanted) = (0, 0, Vec::new());
        let mut state = lock(&self.state);
        for completion in completions {
            let (key, status) = (completion.id as usize, completion.status);
            *if status.is_ok() { &mut sent } else { &mut failed } += 1;
            if !status.is_ok() && status != Status::WR_FLUSH_ERR && state.end.is_none() {
                state.end = Some(RecvError::Broken(status));
            }
            let buf = completion.into_buf();
            match state.sends.get_mut(key) {
                Some(sending @ Sending::Waiting { .. }) => *sending = Sending::Done(status, buf),
                Some(Sending::Detached { is_copy }) => {
                    if *is_copy && state.copies.len() < SEND_DEPTH as usize {
                        state.copies.extend(buf);
                    } else {
                        unwanted.extend(buf);
                    }
                    state.sends.remove(key);
                    self.detached.fetch_sub(1, Ordering::AcqRel);
                }
                _ => unwanted.extend(buf),
            }
        }
        drop(state);
        drop(unwanted);
        Counters::add(&self.shared.counters.datagrams_sent, sent);
        Counters::add(&self.shared.counters.datagrams_failed, failed);
        if taken > 0 {
            self.room.add_permits(taken);
            self.parked.wake_all();
        }
    }

    /// Nothing is sent or received any more.
    pub(crate) fn finish(&self, end: RecvError) {
        lock(&self.state).end.get_or_insert(end);
        self.room.close();
        self.parked.wake_all();
    }
}

fn closed(end: &RecvError) -> OpCause {
    match end {
        RecvError::Broken(status) => OpCause::Status(*status),
        RecvError::Gone => OpCause::Device(DeviceError::Gone),
        _ => OpCause::Closed,
    }
}

fn refusal(error: PostError) -> OpCause {
    match error {
        PostError::TooLong { len, limit } => Invalid::above("datagram length", len, limit).into(),
        error => OpCause::Device(crate::error::not_posted(error)),
    }
}

impl BufHome for Queue {
    fn give_back(&self, buf: Buf) {
        lock(&self.returned).push(buf);
        if !self.asked.swap(true, Ordering::AcqRel) {
            self.shared.feed(Hungry::Datagrams(self.me.clone()));
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("qpn", &self.qpn()).field("port", &self.port).finish_non_exhaustive()
    }
}
