//! A socket's queue of received datagrams, and its way out.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ibcm_sys::Watch as Watched;
use ibcm_sys::packet::{self, Outgoing, RecvBatch, send_many};
use rustix::io::Errno;
use socket2::SockRef;
use tokio::runtime::Handle;

use super::watch::Watch;
use crate::RawError;
use crate::backend::NotSent;
use crate::stats::{Counters, add, count};

/// A bound socket of the system.
#[derive(Debug)]
pub(super) struct Queue {
    socket: Arc<OwnedFd>,
    /// Where it was bound: there it is watched, whoever waits for it first.
    runtime: Handle,
    /// Once somebody has waited. What is watched costs a look at who waits for each datagram that has left.
    watched: OnceLock<Watched>,
    /// One begins to watch.
    watching: Mutex<()>,
    /// Sends in its place: it is never watched.
    sender: Option<OwnedFd>,
    /// The drops that the last datagram told of, modulo 2^32.
    told: AtomicU32,
    /// The drops that were counted, modulo 2^32.
    counted: AtomicU32,
}

impl Queue {
    /// In the runtime of the caller.
    pub(super) fn new(socket: OwnedFd, sender: Option<OwnedFd>) -> Self {
        let (watched, watching) = (OnceLock::new(), Mutex::default());
        let (told, counted) = (AtomicU32::new(0), AtomicU32::new(0));
        let (socket, runtime) = (Arc::new(socket), Handle::current());
        Self { socket, runtime, watched, watching, sender, told, counted }
    }

    /// Watched for errors too: a packet socket tells by one alone that its link went down (spec/raw.md 6.3). What was there before
    /// makes it ready.
    fn watched(&self) -> io::Result<&Watched> {
        if let Some(watched) = self.watched.get() {
            return Ok(watched);
        }
        let _one = self.watching.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watched) = self.watched.get() {
            return Ok(watched);
        }
        let _there = self.runtime.enter();
        let watched = Watched::readable_or_broken(self.socket.clone())?;
        Ok(self.watched.get_or_init(|| watched))
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.socket
    }

    fn sender(&self) -> &OwnedFd {
        self.sender.as_ref().unwrap_or(&self.socket)
    }

    /// Bytes that the kernel keeps of what was not received yet.
    pub(super) fn recv_buffer(&self) -> usize {
        SockRef::from(&*self.socket).recv_buffer_size().unwrap_or(0)
    }

    /// Receives into `room`; false if there is nothing.
    pub(super) fn recv(&self, room: &mut RecvBatch, most: usize, watch: &Watch) -> Result<bool, RawError> {
        // Less than was asked for is all that there was.
        self.try_io(watch, |socket| {
            room.recv(socket, most).map(|count| ((), count < most.min(room.capacity())))
        })
    }

    /// Whether `take` finds something in a ring. If not, the socket is ready when there is something new.
    pub(super) fn has(&self, watch: &Watch, mut take: impl FnMut() -> Option<()>) -> Result<bool, RawError> {
        if take().is_some() {
            return Ok(true);
        }
        self.try_io(watch, |socket| match take() {
            Some(()) => Ok(((), false)),
            // No call to receive takes the socket's error from it.
            None => Err(SockRef::from(&socket).take_error()?.unwrap_or(io::ErrorKind::WouldBlock.into())),
        })
    }

    fn try_io(
        &self,
        watch: &Watch,
        mut call: impl FnMut(BorrowedFd<'_>) -> io::Result<((), bool)>,
    ) -> Result<bool, RawError> {
        loop {
            let result = match self.watched.get() {
                Some(watched) => watched.try_io_to_end(&mut call),
                None => call(self.socket.as_fd()).map(|((), _)| ()),
            };
            match result {
                Ok(()) => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return if watch.is_gone() { Err(RawError::LinkGone) } else { Ok(false) };
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_of_link(&error) => watch.look()?,
                Err(error) => return Err(RawError::io("receive", error)),
            }
        }
    }

    /// Drops between the datagram delivered before and this one, which tells of so many.
    pub(super) fn drops_before(&self, told: Option<u32>) -> u32 {
        told.map_or(0, |now| advance(&self.told, now))
    }

    pub(super) async fn readable(&self) -> Result<(), RawError> {
        let waiting = |error| RawError::io("wait for a socket", error);
        self.watched().map_err(waiting)?.ready().await.map_err(waiting)
    }

    pub(super) fn send<'a>(
        &self,
        datagrams: impl Iterator<Item = Outgoing<'a>> + Clone,
        watch: &Watch,
        counters: &Counters,
    ) -> Result<usize, NotSent> {
        loop {
            let error = match send_many(self.sender().as_fd(), datagrams.clone()) {
                Ok(sent) => return Ok(sent),
                Err(error) => error,
            };
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(match Errno::from_io_error(&error) {
                Some(Errno::AGAIN) => {
                    count(&counters.tx_would_block);
                    NotSent::WouldBlock
                }
                Some(Errno::NOBUFS) => {
                    count(&counters.tx_nobufs);
                    NotSent::NoBuffers
                }
                // What IPv6 says of a link that is down or gone, and of destinations without a route.
                Some(Errno::NETUNREACH) => {
                    NotSent::Error(watch.refuses().unwrap_or_else(|| RawError::io("send", error)))
                }
                _ if is_of_link(&error) => NotSent::Error(watch.refuses().unwrap_or(RawError::LinkDown)),
                _ => NotSent::Error(RawError::io("send", error)),
            });
        }
    }

    /// By a descriptor of its own: one that is always watched for room is announced after each datagram.
    pub(super) async fn writable(&self) -> Result<(), RawError> {
        let waiting = |error| RawError::io("wait for room", error);
        let twin = self.sender().try_clone().map_err(waiting)?;
        let twin = Watched::writable(Arc::new(twin)).map_err(waiting)?;
        twin.ready().await.map_err(waiting)
    }

    /// Adds what was dropped since the last time.
    pub(super) fn note_drops(&self, counters: &Counters) {
        if let Ok(now) = packet::dropped(self.fd().as_fd()) {
            add(&counters.rx_dropped, advance(&self.counted, now) as usize);
        }
    }
}

/// Lets the kernel keep so many bytes of what was not received yet; without CAP_NET_ADMIN at most `net.core.rmem_max`.
pub(super) fn set_recv_buffer(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    match rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, bytes) {
        Err(Errno::PERM) => SockRef::from(&socket).set_recv_buffer_size(bytes),
        result => Ok(result?),
    }
}

/// Brings a count that is modulo 2^32 up to `now`, and says by how much. By nothing, if another task, which asked the kernel
/// later, was here before.
fn advance(count: &AtomicU32, now: u32) -> u32 {
    let newer = |before: u32| (now.wrapping_sub(before) as i32 > 0).then_some(now);
    let before = count.fetch_update(Ordering::AcqRel, Ordering::Acquire, newer);
    before.map_or(0, |before| now.wrapping_sub(before))
}

fn is_of_link(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NETDOWN | Errno::NODEV | Errno::NXIO))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use tokio::runtime::{Builder, Runtime};
    use tokio::time::timeout;

    use super::*;

    #[test]
    fn a_socket_is_watched_where_it_was_bound() {
        let runtime =
            || Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let (own, other) = (runtime(), runtime());
        let socket = UdpSocket::bind("[::1]:0").expect("a socket");
        socket.send_to(b"one", socket.local_addr().expect("an address")).expect("sent");
        let queue = own.block_on(async { Queue::new(socket.into(), None) });
        let wait = |runtime: &Runtime| {
            let ready = runtime.block_on(async { timeout(Duration::from_secs(20), queue.readable()).await });
            ready.expect("in time").expect("watched");
        };
        wait(&other);
        drop(other);
        wait(&own);
    }

    #[test]
    fn each_drop_is_told_once_whichever_task_comes_first() {
        let count = AtomicU32::new(u32::MAX - 2);
        let told = [1, 0, 1, 6, 4].map(|now| advance(&count, now));
        assert_eq!(told, [4, 0, 0, 5, 0]);
        assert_eq!(count.into_inner(), 6);
    }
}
