//! A UDP socket and the runtime that watches it.

use std::io;
use std::task::{Context, Poll};

#[cfg(not(unix))]
pub(super) use both_ways::Watched;
#[cfg(unix)]
pub(super) use one_way::Watched;

#[cfg(unix)]
mod one_way {
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

    use ibcm_sys::Watch;
    use socket2::Socket;

    use super::*;

    /// A socket that is watched for what arrives, and for room only while somebody waits for room: otherwise each packet
    /// that leaves the system would wake the runtime.
    #[derive(Debug)]
    pub(in crate::udp) struct Watched {
        socket: Watch,
        /// The same socket under a number of its own, as which it can be watched for something else.
        twin: Arc<OwnedFd>,
        room: Mutex<Option<Watch>>,
    }

    impl Watched {
        /// A socket that does not block.
        pub(in crate::udp) fn new(socket: Socket) -> io::Result<Self> {
            let twin = Arc::new(socket.try_clone()?.into());
            Ok(Self { socket: Watch::readable(Arc::new(socket.into()))?, twin, room: Mutex::new(None) })
        }

        /// Waits until something has arrived.
        pub(in crate::udp) fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.socket.poll_ready(cx)
        }

        /// Receives. After `WouldBlock`, what arrives next is waited for.
        pub(in crate::udp) fn try_recv<R>(&self, call: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
            self.socket.try_io(|_| call())
        }

        /// Sends. After `WouldBlock`, [`poll_room`](Self::poll_room) waits for room.
        pub(in crate::udp) fn try_send<R>(&self, call: impl Fn() -> io::Result<R>) -> io::Result<R> {
            call()
        }

        /// Waits until there is room, if there is none now.
        pub(in crate::udp) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            let mut room = self.room();
            let ready = self.watch_room(&mut room)?.poll_ready(cx);
            if ready.is_ready() {
                *room = None;
            }
            ready
        }

        /// Waits until there is more room than there is now.
        #[cfg(test)]
        pub(in crate::udp) fn poll_more_room(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            let mut room = self.room();
            let watch = self.watch_room(&mut room)?;
            while watch.poll_ready(cx)?.is_ready() {
                _ = watch.try_io(|_| io::Result::<()>::Err(io::ErrorKind::WouldBlock.into()));
            }
            Poll::Pending
        }

        fn room(&self) -> MutexGuard<'_, Option<Watch>> {
            self.room.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn watch_room<'a>(&self, room: &'a mut Option<Watch>) -> io::Result<&'a Watch> {
            match room {
                Some(watch) => Ok(watch),
                None => Ok(room.insert(Watch::writable(self.twin.clone())?)),
            }
        }
    }

    impl AsFd for Watched {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.socket.as_fd()
        }
    }
}

#[cfg(not(unix))]
mod both_ways {
    use std::os::windows::io::{AsSocket, BorrowedSocket};

    use socket2::Socket;
    use tokio::io::Interest;
    use tokio::net::UdpSocket;

    use super::*;

    /// A socket that is watched for what arrives and for room.
    #[derive(Debug)]
    pub(in crate::udp) struct Watched(UdpSocket);

    impl Watched {
        /// A socket that does not block.
        pub(in crate::udp) fn new(socket: Socket) -> io::Result<Self> {
            UdpSocket::from_std(socket.into()).map(Self)
        }

        /// Waits until something has arrived.
        pub(in crate::udp) fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.0.poll_recv_ready(cx)
        }

        /// Receives. After `WouldBlock`, what arrives next is waited for.
        pub(in crate::udp) fn try_recv<R>(&self, call: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
            self.0.try_io(Interest::READABLE, call)
        }

        /// Sends. After `WouldBlock`, [`poll_room`](Self::poll_room) waits for room.
        pub(in crate::udp) fn try_send<R>(&self, call: impl Fn() -> io::Result<R>) -> io::Result<R> {
            match call() {
                // Only now is the runtime asked: it hears late that a new socket has room, and is told only by a call of
                // its own that there is none.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.0.try_io(Interest::WRITABLE, call)
                }
                result => result,
            }
        }

        /// Waits until there is room, if there was none.
        pub(in crate::udp) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.0.poll_send_ready(cx)
        }

        /// Waits until there is more room than there was.
        #[cfg(test)]
        pub(in crate::udp) fn poll_more_room(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.0.poll_send_ready(cx)
        }
    }

    impl AsSocket for Watched {
        fn as_socket(&self) -> BorrowedSocket<'_> {
            self.0.as_socket()
        }
    }
}
