//! The datagram socket.

use std::future::poll_fn;
use std::sync::Arc;

use ibdev::{Buf, LinkLayer};
use ibwire::{Gid, PathRecord, QKey, Qpn};
use tokio::task::coop::cooperative;

use super::datagram::Datagram;
use super::groups;
use super::open::Open;
use super::peer::Peer;
use super::queue::Queue;
use super::send::Send;
use crate::error::{Error, QueryError, RecvError};
use crate::hca::Hca;
use crate::parked::Ticket;
use crate::path::{Path, path_from};
use crate::port::Port;
use crate::proto::{Invalid, Limit, Value};

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

    /// Joins a multicast group of the port's network: what is sent there with the socket's Q_Key is received from now on, also what
    /// this HCA sends. Gives the group as a [`Peer`] to send to. On RoCE a group is an IP address, `239.1.1.1` or `ff1e::7`,
    /// and joining is IGMP or MLD; in a [`sim::Subnet`](crate::sim::Subnet) it is any multicast GID.
    ///
    /// In a subnet with an SA, that is asked to join, as a full member, or to make the group with the socket's Q_Key and P_Key if
    /// there is none. After a change of the SM this happens again by itself; [`group`](Self::group) then gives the group with its
    /// new LID. A socket that is dropped leaves its groups.
    ///
    /// ```
    /// # use ibcm::{Hca, ud, sim::Subnet};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let net = Subnet::star(["here", "there"]).await?;
    /// # let (here, there) = (Hca::open(net.device("here")).await?, Hca::open(net.device("there")).await?);
    /// let (speaker, listener) = (ud::Socket::open(&here).await?, ud::Socket::open(&there).await?);
    /// let group = "ff1e::7".parse()?;
    /// listener.join(group).await?;
    /// speaker.send_copy(&speaker.group(group)?, b"to all").await?;
    /// assert_eq!(&listener.recv().await?[..], b"to all");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for an address that is none of a group, or a group with another Q_Key or P_Key; [`Error::Query`] if the
    /// port has no way there, or the SA refuses or does not answer; [`Error::Device`] if the device has no multicast or could not join.
    ///
    /// # Cancel safety
    /// Dropped, it may or may not have joined.
    pub async fn join(&self, mgid: Gid) -> Result<Peer, Error> {
        if let Local::AtSa { sgid } = self.local(mgid)? {
            let shared = self.hca.shared();
            let record = groups::join(&self.queue, shared.sa.of(shared, self.port()), mgid).await?;
            return Ok(groups::peer(&self.queue, sgid, &record));
        }
        let group = self.group(mgid)?;
        self.queue.qp.attach(mgid, group.lid()).await?;
        Ok(group)
    }

    /// Leaves a group. Nothing happens if the socket is not in it. Where there is an SA, it is done when that has confirmed it.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    ///
    /// # Cancel safety
    /// Dropped, it may or may not have left.
    pub async fn leave(&self, mgid: Gid) -> Result<(), Error> {
        if let Local::AtSa { .. } = self.local(mgid)? {
            return self.queue.groups.leave(mgid).await;
        }
        let group = self.group(mgid)?;
        Ok(self.queue.qp.detach(mgid, group.lid()).await?)
    }

    /// A multicast group to send to, with the socket's own Q_Key. It need not be joined for that, but where there is an SA, which
    /// alone knows the group's LID.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn group(&self, mgid: Gid) -> Result<Peer, Error> {
        let record = match self.local(mgid)? {
            Local::Path(record) => *record,
            Local::AtSa { sgid } => {
                let record = self.queue.groups.record(mgid).ok_or(QueryError::NoPath { dgid: mgid })?;
                return Ok(groups::peer(&self.queue, sgid, &record));
            }
        };
        let path = Path::from_record(&Port::new(self.hca.clone(), self.port()), record);
        Ok(Peer::new(&path, Qpn::MULTICAST, self.qkey()))
    }

    /// What this host knows of the way to a group.
    fn local(&self, mgid: Gid) -> Result<Local, Error> {
        if !mgid.is_multicast() {
            let must = Limit::Must("the address of a multicast group");
            return Err(Invalid::new("group", Value::Gid(mgid), must).into());
        }
        let shared = self.hca.shared();
        let (device, local) = {
            let engine = shared.engine();
            (engine.device()?, engine.endpoint.local_ca().port(self.port()).cloned())
        };
        let no_path = QueryError::NoPath { dgid: mgid };
        let Some(local) = local else { return Err(no_path.into()) };
        match path_from(&*device, &local, None, mgid) {
            Some(record) => Ok(Local::Path(Box::new(record))),
            None if local.link_layer == LinkLayer::InfiniBand => {
                Ok(Local::AtSa { sgid: local.gids.first().map(|entry| entry.gid) })
            }
            None => Err(no_path.into()),
        }
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

/// What a host knows of the way to a group.
enum Local {
    /// All.
    Path(Box<PathRecord>),
    /// Our GID; the rest the SA knows.
    AtSa { sgid: Option<Gid> },
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.queue.finish(RecvError::Closed);
    }
}
