//! Descriptors that the runtime watches for one thing only. The sockets of tokio itself are always watched for both: what
//! arrives, and room for what is sent.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor that is watched for one thing.
#[derive(Debug)]
pub struct Watch {
    fd: AsyncFd<Arc<OwnedFd>>,
    interest: Interest,
}

impl Watch {
    /// Watches for what can be read, in the runtime of the caller.
    ///
    /// # Errors
    /// The system's, for example for a descriptor that is watched already.
    ///
    /// # Panics
    /// Outside of a runtime, or in one with I/O disabled.
    pub fn readable(fd: Arc<OwnedFd>) -> io::Result<Self> {
        Self::new(fd, Interest::READABLE)
    }

    /// Watches for what can be read and for errors that nobody has read, in the runtime of the caller.
    ///
    /// # Errors
    /// The system's, for example for a descriptor that is watched already.
    ///
    /// # Panics
    /// Outside of a runtime, or in one with I/O disabled.
    pub fn readable_or_broken(fd: Arc<OwnedFd>) -> io::Result<Self> {
        Self::new(fd, Interest::READABLE | Interest::ERROR)
    }

    /// Watches for room, in the runtime of the caller.
    ///
    /// # Errors
    /// The system's, for example for a descriptor that is watched already.
    ///
    /// # Panics
    /// Outside of a runtime, or in one with I/O disabled.
    pub fn writable(fd: Arc<OwnedFd>) -> io::Result<Self> {
        Self::new(fd, Interest::WRITABLE)
    }

    fn new(fd: Arc<OwnedFd>, interest: Interest) -> io::Result<Self> {
        // SAFETY: an `OwnedFd` is open as long as it lives and never names another descriptor. It lives as long as the
        // `AsyncFd`, which nobody but this type reaches, and this type never replaces it.
        let fd = unsafe { AsyncFd::register_with_interest(fd, interest) }?;
        Ok(Self { fd, interest })
    }

    /// Waits until the descriptor is ready. Of the tasks that wait, the last is woken.
    pub fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.interest {
            Interest::WRITABLE => self.fd.poll_write_ready(cx).map_ok(drop),
            _ => self.fd.poll_read_ready(cx).map_ok(drop),
        }
    }

    /// Waits until the descriptor is ready. Every task that waits is woken; what makes it wait again is
    /// [`try_io`](Self::try_io) that would block. Cancel safe.
    ///
    /// # Errors
    /// The runtime is ending.
    pub async fn ready(&self) -> io::Result<()> {
        self.fd.ready(self.interest).await.map(drop)
    }

    /// Does what the descriptor is watched for, if it is ready. After `WouldBlock` it is ready when there is something
    /// new.
    ///
    /// # Errors
    /// Those of `call`, and `WouldBlock` if it is not ready.
    pub fn try_io<R>(&self, call: impl FnOnce(BorrowedFd<'_>) -> io::Result<R>) -> io::Result<R> {
        if !self.interest.is_error() {
            return self.fd.try_io(self.interest, |fd| call(fd.as_fd()));
        }
        // The runtime tries nothing for two interests at once. It is done once: who has found nothing would find nothing again,
        // and an error that came meanwhile would be taken for told.
        let mut call = Some(call);
        for interest in [Interest::READABLE, Interest::ERROR] {
            let result = self.fd.try_io(interest, |fd| match call.take() {
                Some(call) => call(fd.as_fd()),
                None => Err(io::ErrorKind::WouldBlock.into()),
            });
            if call.is_none() {
                return result;
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl Watch {
    /// [`try_io`](Self::try_io) for a call that also knows whether it has found the end of what there is: then the descriptor is
    /// ready when there is something new, without a further call that finds nothing.
    ///
    /// # Errors
    /// As [`try_io`](Self::try_io).
    pub fn try_io_to_end<R>(
        &self,
        call: impl FnOnce(BorrowedFd<'_>) -> io::Result<(R, bool)>,
    ) -> io::Result<R> {
        let mut found = None;
        let result = self.try_io(|fd| {
            let (result, is_end) = call(fd)?;
            found = Some(result);
            if is_end { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        match (found, result) {
            (Some(found), _) => Ok(found),
            (None, Err(error)) => Err(error),
            (None, Ok(())) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::net::UdpSocket;

    use super::*;

    #[tokio::test]
    async fn errors_are_told_too() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        // Nobody is there, which the sender is told.
        let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        socket.connect(nobody).unwrap();
        let watch = Watch::readable_or_broken(Arc::new(socket.try_clone().unwrap().into())).unwrap();
        let mut buf = [0; 4];
        assert_eq!(watch.try_io(|_| socket.recv(&mut buf)).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        socket.send(b"lost").unwrap();
        watch.ready().await.unwrap();
        assert_eq!(
            watch.try_io(|_| socket.recv(&mut buf)).unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
        assert_eq!(watch.try_io(|_| socket.recv(&mut buf)).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let idle = tokio::time::timeout(std::time::Duration::from_millis(1), watch.ready());
        assert!(idle.await.is_err(), "it waits again");
    }

    #[tokio::test]
    async fn who_finds_the_end_waits_for_more() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let (own, twin) = (socket.local_addr().unwrap(), socket.try_clone().unwrap());
        let watch = Watch::readable_or_broken(Arc::new(socket.into())).unwrap();
        let mut buf = [0; 4];
        for round in 0..3 {
            for _ in 0..2 {
                twin.send_to(b"one", own).unwrap();
            }
            watch.ready().await.unwrap();
            for is_end in [false, true] {
                let read = watch.try_io_to_end(|_| twin.recv(&mut buf).map(|len| (len, is_end)));
                assert_eq!(read.unwrap(), 3, "{round}");
            }
            let more = watch.try_io_to_end(|_| twin.recv(&mut buf).map(|len| (len, true)));
            assert_eq!(more.unwrap_err().kind(), io::ErrorKind::WouldBlock);
            let idle = tokio::time::timeout(std::time::Duration::from_millis(1), watch.ready());
            assert!(idle.await.is_err(), "it waits");
        }
    }

    #[tokio::test]
    async fn each_watch_is_for_one_thing() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let (own, twin) = (socket.local_addr().unwrap(), socket.try_clone().unwrap());
        let reads = Watch::readable(Arc::new(socket.into())).unwrap();
        let writes = Watch::writable(Arc::new(twin.try_clone().unwrap().into())).unwrap();
        poll_fn(|cx| writes.poll_ready(cx)).await.unwrap();
        let mut buf = [0; 4];
        assert_eq!(reads.try_io(|_| twin.recv(&mut buf)).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(poll_fn(|cx| Poll::Ready(reads.poll_ready(cx))).await.is_pending());
        assert_eq!(writes.try_io(|_| twin.send_to(b"one", own)).unwrap(), 3);
        poll_fn(|cx| reads.poll_ready(cx)).await.unwrap();
        assert_eq!(reads.try_io(|_| twin.recv(&mut buf)).unwrap(), 3);
    }
}
