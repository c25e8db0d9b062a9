//! The datagram socket.

use std::future::poll_fn;
use std::sync::Arc;

use ibdev::Buf;
use ibwire::{QKey, Qpn};
use tokio::task::coop::cooperative;

use super::datagram::Datagram;
use super::open::Open;
use super::peer::Peer;
use super::queue::Queue;
use super::send::Send;
use crate::error::RecvError;
use crate::hca::Hca;
use crate::parked::Ticket;

/// A datagram queue pair on one port of an HCA, which it keeps open.
///
/// Dropped, its queue pair is gone, with the datagrams that were not read; those that the program holds stay readable.
#[derive(Debug)]
pub struct Socket {
    hca: Hca,
    queue: Arc<Queue>,
}

impl Socket {
    /// Opens a socket on this HCA.
    pub fn open(hca: &Hca) -> Open {
        Open::new(hca)
    }

    pub(super) fn new(hca: Hca, queue: Arc<Queue>) -> Self {
        Self { hca, queue }
    }

    /// Sends the buffer as one datagram. Awaited, it gives the buffer back when the datagram has left this host; no more is
    /// known. It waits while 64 are under way.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError), with the buffer. [`OpCause::Invalid`](crate::OpCause::Invalid) for a datagram longer than
    /// [`mtu`](Self::mtu), or a peer of another HCA or port.
    ///
    /// # Cancel safety
    /// As said at [`Send`].
    pub fn send(&self, to: &Peer, buf: Buf) -> Send<'_, Buf> {
        Send::of_buf(&self.queue, to, buf)
    }

    /// Sends a copy of the bytes as one datagram, by way of the socket's own buffers.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    ///
    /// # Cancel safety
    /// As said at [`Send`].
    pub fn send_copy<'a>(&'a self, to: &Peer, data: &'a [u8]) -> Send<'a, ()> {
        Send::of_copy(&self.queue, to, data)
    }

    /// The next datagram.
    ///
    /// # Errors
    /// [`RecvError::Closed`] once the HCA is closed, [`RecvError::Gone`] when the device was removed, [`RecvError::Broken`] if
    /// the queue pair has failed.
    ///
    /// # Cancel safety
    /// A dropped future loses no datagram.
    pub async fn recv(&self) -> Result<Datagram, RecvError> {
        let mut ticket = Ticket::new(&self.queue.parked);
        let received = poll_fn(|cx| {
            ticket.park(cx);
            self.queue.poll_recv()
        });
        cooperative(received).await
    }

    /// The longest datagram that it sends, in bytes: the port's MTU.
    pub fn mtu(&self) -> usize {
        self.queue.mtu
    }

    /// Its queue pair, for peers.
    pub fn qpn(&self) -> Qpn {
        self.queue.qpn()
    }

    /// Its Q_Key, for peers.
    pub fn qkey(&self) -> QKey {
        self.queue.qkey
    }

    /// The number of its port.
    pub fn port(&self) -> u8 {
        self.queue.port
    }

    /// Its HCA.
    pub fn hca(&self) -> &Hca {
        &self.hca
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.queue.finish(RecvError::Closed);
    }
}
