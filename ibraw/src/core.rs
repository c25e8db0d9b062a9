//! What both kinds of sockets are.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::backend::{Backend, NotSent, Protocol, Wait};
use crate::batch::Taken;
use crate::stats::RawStats;
use crate::{Batch, Datagram, Group, Link, RawError, Sent};

/// Rooms for one datagram that are kept.
const SPARE: usize = 4;

/// How often who does not wait takes what is for others out of the queue.
const TRIES: usize = 64;

/// The first and the longest pause before it is tried again to send on a link without buffers.
const PAUSE: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(5));

/// A socket of either kind.
pub(crate) struct Core<P: Protocol> {
    pub(crate) backend: Box<dyn Backend<P>>,
    pub(crate) link: Link,
    cuts: OnTruncate,
    /// Losses that datagrams told of which were dropped because they were cut: the next one passes them on.
    untold: AtomicU32,
    pub(crate) send_timeout: Duration,
    spare: Mutex<Vec<Batch<P>>>,
    groups: Mutex<HashMap<Group, usize>>,
    /// One joins at a time, so that who comes second finds it done.
    joining: tokio::sync::Mutex<()>,
    is_closed: AtomicBool,
    closing: Notify,
    /// How often who finds nothing looks again before it waits.
    looks: AtomicU8,
}

/// What becomes of a datagram that is longer than the socket's buffer. Each is counted
/// ([`rx_truncated`](RawStats::rx_truncated)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OnTruncate {
    /// It is received as far as there is room, and its metadata says so.
    #[default]
    Deliver,
    /// It is dropped.
    Drop,
    /// It is [`RawError::Truncated`] of [`recv`](crate::RawSocket::recv) and of the stream; batches and
    /// [`recv_from`](crate::RawSocket::recv_from) have it as far as there is room.
    Error,
}

impl<P: Protocol> Core<P> {
    pub(crate) fn new(
        backend: Box<dyn Backend<P>>,
        link: Link,
        cuts: OnTruncate,
        send_timeout: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            backend,
            link,
            cuts,
            untold: AtomicU32::new(0),
            send_timeout,
            spare: Mutex::default(),
            groups: Mutex::default(),
            joining: tokio::sync::Mutex::default(),
            is_closed: AtomicBool::new(false),
            closing: Notify::new(),
            looks: AtomicU8::new(0),
        })
    }

    /// Receives some of what there is, waiting for the first.
    pub(crate) async fn fill(&self, batch: &mut Batch<P>, most: usize) -> Result<(), RawError> {
        loop {
            // Who finds something each time lets others run now and then, be it for this socket or not.
            tokio::task::coop::consume_budget().await;
            match self.try_fill(batch, most)? {
                Poll::Ready(()) if batch.is_empty() => {}
                Poll::Ready(()) => return Ok(()),
                // Where much comes the next is often there when others have had their turn: then nobody has to wake a thread.
                Poll::Pending if self.looks_again() => tokio::task::yield_now().await,
                Poll::Pending => self.or_closed(self.backend.readable()).await?,
            }
        }
    }

    /// Receives some of what there is; perhaps none of it is for this socket.
    pub(crate) fn try_fill(&self, batch: &mut Batch<P>, most: usize) -> Result<Poll<()>, RawError> {
        self.check_open()?;
        batch.clear();
        let found = self.backend.recv(batch, most)?;
        if found.is_ready() {
            self.looks.store(P::LOOKS, Ordering::Relaxed);
        }
        if self.cuts == OnTruncate::Drop {
            self.drop_cut(&mut batch.taken);
            if batch.is_empty() {
                batch.clear(); // the kernel has the ring's block again
            }
        }
        Ok(found)
    }

    /// Leaves out what was cut, but not what that told of losses before it.
    fn drop_cut(&self, taken: &mut Vec<Taken<P>>) {
        let mut lost = self.untold.swap(0, Ordering::Relaxed);
        taken.retain_mut(|Taken { meta, .. }| {
            lost = lost.saturating_add(*P::drops_before(meta));
            let is_whole = P::cut(meta).is_none();
            if is_whole {
                *P::drops_before(meta) = std::mem::take(&mut lost);
            }
            is_whole
        });
        self.untold.fetch_add(lost, Ordering::Relaxed);
    }

    /// Receives some of what there is, without waiting; whether there was anything for this socket.
    pub(crate) fn fill_now(&self, batch: &mut Batch<P>, most: usize) -> Result<bool, RawError> {
        // Who does not wait is not kept by a flood for others.
        for _ in 0..TRIES {
            match self.try_fill(batch, most)? {
                Poll::Ready(()) if batch.is_empty() => {}
                found => return Ok(found.is_ready()),
            }
        }
        Ok(false)
    }

    /// Not exact where many tasks receive, which does no harm.
    fn looks_again(&self) -> bool {
        let left = self.looks.load(Ordering::Relaxed);
        self.looks.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0
    }

    /// Receives one datagram and gives it to `take`.
    pub(crate) async fn recv_one<T>(&self, take: impl FnOnce(&mut Batch<P>) -> T) -> Result<T, RawError> {
        let mut batch = self.room_for_one();
        let filled = self.fill(&mut batch, 1).await;
        let taken = filled.map(|()| take(&mut batch));
        self.keep(batch);
        taken
    }

    /// The same without waiting; `None` if there was nothing.
    pub(crate) fn recv_one_now<T>(
        &self,
        take: impl FnOnce(&mut Batch<P>) -> T,
    ) -> Result<Option<T>, RawError> {
        let mut batch = self.room_for_one();
        let filled = self.fill_now(&mut batch, 1);
        let taken = filled.map(|any| any.then(|| take(&mut batch)));
        self.keep(batch);
        taken
    }

    fn room_for_one(&self) -> Batch<P> {
        self.spare().pop().unwrap_or_else(|| self.backend.room(1))
    }

    fn keep(&self, batch: Batch<P>) {
        let mut spare = self.spare();
        if spare.len() < SPARE {
            spare.push(batch);
        }
    }

    pub(crate) async fn recv(&self) -> Result<Datagram<P::Meta>, RawError> {
        loop {
            if let Some(datagram) = self.recv_one(first).await? {
                return self.whole(datagram);
            }
        }
    }

    pub(crate) fn recv_now(&self) -> Result<Option<Datagram<P::Meta>>, RawError> {
        self.recv_one_now(first)?.flatten().map(|datagram| self.whole(datagram)).transpose()
    }

    /// The datagram, or the error that it was cut if that is one.
    pub(crate) fn whole(&self, datagram: Datagram<P::Meta>) -> Result<Datagram<P::Meta>, RawError> {
        match P::cut(&datagram.meta) {
            Some(wire) if self.cuts == OnTruncate::Error => {
                Err(RawError::Truncated { wire, buffer: datagram.data.len() })
            }
            _ => Ok(datagram),
        }
    }

    /// Sends all, from the first on; how many were sent if one cannot be. An error is that of the first.
    pub(crate) async fn send(&self, datagrams: &[(&[u8], &P::Dest)]) -> Result<usize, RawError> {
        let mut sent = 0;
        while sent < datagrams.len() {
            match self.send_some(&datagrams[sent..]).await {
                Ok(some) => sent += some,
                Err(error) if sent == 0 => return Err(error),
                Err(_) => break, // said by the next call, which begins with it
            }
        }
        Ok(sent)
    }

    async fn send_some(&self, datagrams: &[(&[u8], &P::Dest)]) -> Result<usize, RawError> {
        tokio::task::coop::consume_budget().await;
        let good = &datagrams[..self.good(datagrams)?];
        // A time that is longer than a clock can tell is as good as none.
        let deadline = Instant::now().checked_add(self.send_timeout);
        let mut pause = PAUSE.0;
        let full = || RawError::NoBuffers { within: self.send_timeout };
        loop {
            self.check_open()?;
            // What is waited for, and what is wrong if it does not come in time.
            let (wait, late) = match self.backend.send(good) {
                Ok(sent) => return Ok(sent),
                Err(NotSent::Error(error)) => return Err(error),
                Err(NotSent::WouldBlock) => (self.backend.writable(), full()),
                #[cfg(feature = "soft")]
                Err(NotSent::NoWay) => {
                    let silent = RawError::SaUnavailable { source: std::io::ErrorKind::TimedOut.into() };
                    (self.backend.find_way(datagrams[0].1), silent)
                }
                Err(NotSent::NoBuffers) => {
                    let until = Instant::now() + pause;
                    pause = (pause * 2).min(PAUSE.1);
                    let rest: Wait<'_> = Box::pin(async move {
                        tokio::time::sleep_until(until).await;
                        Ok(())
                    });
                    (rest, full())
                }
            };
            let in_time = async {
                match deadline {
                    Some(deadline) => tokio::time::timeout_at(deadline, self.or_closed(wait)).await,
                    None => Ok(self.or_closed(wait).await),
                }
            };
            match in_time.await {
                Ok(done) => done?,
                Err(_) => return Err(late),
            }
        }
    }

    /// Sends some, without waiting; none if there is no room, or the way is not known.
    pub(crate) fn send_now(&self, datagrams: &[(&[u8], &P::Dest)]) -> Result<usize, RawError> {
        self.check_open()?;
        let good = &datagrams[..self.good(datagrams)?];
        if good.is_empty() {
            return Ok(0);
        }
        match self.backend.send(good) {
            Ok(sent) => Ok(sent),
            Err(NotSent::Error(error)) => Err(error),
            Err(_) => Ok(0),
        }
    }

    /// With how many of the first ones of a call nothing is wrong.
    fn good(&self, datagrams: &[(&[u8], &P::Dest)]) -> Result<usize, RawError> {
        let mut count = 0;
        for (data, dest) in datagrams.iter().take(ibcm_sys::packet::BATCH) {
            match self.backend.check(data, dest) {
                Ok(_) => count += 1,
                Err(error) if count == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(count)
    }

    pub(crate) fn send_one_now(&self, data: &[u8], dest: &P::Dest) -> Result<Option<Sent>, RawError> {
        let wire_len = self.backend.check(data, dest)?;
        let sent = self.send_now(&[(data, dest)])?;
        Ok((sent > 0).then_some(Sent { wire_len }))
    }

    pub(crate) async fn send_to(&self, data: &[u8], dest: &P::Dest) -> Result<Sent, RawError> {
        let wire_len = self.backend.check(data, dest)?;
        self.send_some(&[(data, dest)]).await?;
        Ok(Sent { wire_len })
    }

    pub(crate) async fn join(&self, group: &Group) -> Result<(), RawError> {
        self.check_open()?;
        let _one = self.joining.lock().await;
        if let Some(count) = self.groups().get_mut(group) {
            *count += 1;
            return Ok(());
        }
        self.backend.join(group).await?;
        self.groups().insert(*group, 1);
        Ok(())
    }

    pub(crate) fn leave(&self, group: &Group) -> Result<(), RawError> {
        // Held until the group is left, so that who joins it again does so afterwards.
        let mut groups = self.groups();
        let Entry::Occupied(mut entry) = groups.entry(*group) else {
            return Err(RawError::NotMember(*group));
        };
        *entry.get_mut() -= 1;
        if *entry.get() > 0 {
            return Ok(());
        }
        entry.remove();
        self.backend.leave(group)
    }

    pub(crate) fn stats(&self) -> RawStats {
        self.backend.note_drops();
        self.backend.counters().read()
    }

    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.closing.notify_waiters();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub(crate) fn check_open(&self) -> Result<(), RawError> {
        if self.is_closed() { Err(RawError::Closed) } else { Ok(()) }
    }

    /// Waits, at most until the socket is closed.
    async fn or_closed(&self, wait: impl Future<Output = Result<(), RawError>>) -> Result<(), RawError> {
        let mut closing = std::pin::pin!(self.closing.notified());
        closing.as_mut().enable();
        self.check_open()?;
        tokio::select! {
            done = wait => done,
            () = closing => Err(RawError::Closed),
        }
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Batch<P>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn groups(&self) -> MutexGuard<'_, HashMap<Group, usize>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first datagram of a batch, with bytes of its own.
fn first<P: Protocol>(batch: &mut Batch<P>) -> Option<Datagram<P::Meta>> {
    let mut first = None;
    batch.take(|datagram| first = first.take().or(Some(datagram)));
    first
}

impl<P: Protocol> fmt::Debug for Core<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("link", &self.link).finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests;
