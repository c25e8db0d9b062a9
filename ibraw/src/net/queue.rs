//! A socket's queue of received datagrams, and its way out.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ibcm_sys::Watch as Watched;
use ibcm_sys::packet::{self, Outgoing, RecvBatch, send_many};
use rustix::io::Errno;

use super::watch::Watch;
use crate::RawError;
use crate::backend::NotSent;
use crate::stats::{Counters, add, count};

/// A bound socket of the system.
#[derive(Debug)]
pub(super) struct Queue {
    /// Watched for errors too: a packet socket tells by one alone that its link went down (spec/raw.md 6.3).
    watched: Watched,
    socket: Arc<OwnedFd>,
    /// The drops that the last datagram told of, modulo 2^32.
    told: AtomicU32,
    /// The drops that were counted, modulo 2^32.
    counted: AtomicU32,
}

impl Queue {
    pub(super) fn new(socket: OwnedFd) -> Result<Self, RawError> {
        let socket = Arc::new(socket);
        let watched = Watched::readable_or_broken(socket.clone());
        let watched = watched.map_err(|error| RawError::io("wait for a socket", error))?;
        let (told, counted) = (AtomicU32::new(0), AtomicU32::new(0));
        Ok(Self { watched, socket, told, counted })
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.socket
    }

    /// Receives into `room`; false if there is nothing.
    pub(super) fn recv(&self, room: &mut RecvBatch, most: usize, watch: &Watch) -> Result<bool, RawError> {
        loop {
            let received = self.watched.try_io(|socket| room.recv(socket, most).map(drop));
            match received {
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
        let Some(now) = told else { return 0 };
        now.wrapping_sub(self.told.swap(now, Ordering::AcqRel))
    }

    pub(super) async fn readable(&self) -> Result<(), RawError> {
        self.watched.ready().await.map_err(|error| RawError::io("wait for a socket", error))
    }

    pub(super) fn send(
        &self,
        datagrams: &[Outgoing<'_>],
        watch: &Watch,
        counters: &Counters,
    ) -> Result<usize, NotSent> {
        loop {
            let error = match send_many(self.fd().as_fd(), datagrams) {
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
                _ if is_of_link(&error) => NotSent::Error(watch.look().err().unwrap_or(RawError::LinkDown)),
                _ => NotSent::Error(RawError::io("send", error)),
            });
        }
    }

    /// By a descriptor of its own: one that is always watched for room is announced after each datagram.
    pub(super) async fn writable(&self) -> Result<(), RawError> {
        let waiting = |error| RawError::io("wait for room", error);
        let twin = self.fd().try_clone().map_err(waiting)?;
        let twin = Watched::writable(Arc::new(twin)).map_err(waiting)?;
        twin.ready().await.map_err(waiting)
    }

    /// Adds what was dropped since the last time.
    pub(super) fn note_drops(&self, counters: &Counters) {
        if let Ok(now) = packet::dropped(self.fd().as_fd()) {
            let before = self.counted.swap(now, Ordering::AcqRel);
            add(&counters.rx_dropped, now.wrapping_sub(before) as usize);
        }
    }
}

fn is_of_link(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NETDOWN | Errno::NODEV | Errno::NXIO))
}
