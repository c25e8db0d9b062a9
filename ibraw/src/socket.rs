//! Sockets of both kinds.

use std::fmt;
use std::sync::Arc;

use crate::backend::Protocol;
use crate::core::Core;
use crate::{
    Batch, Datagram, DatagramSink, Datagrams, Framed, Group, Instruction, Link, Membership, RawError,
    RawStats, Sent,
};

/// A bound socket for raw datagrams: [`RawEtherSocket`](crate::RawEtherSocket) or [`RawIpv6Socket`](crate::RawIpv6Socket).
///
/// A cheap handle: clones are the same socket, which is closed with the last of them, or by [`close`](Self::close).
///
/// Dropping a future that receives loses no datagram: one is taken from the system and handed out in one step. A future
/// that sends has sent nothing when it is dropped before it is ready, but the first ones of a batch.
pub struct RawSocket<P: Protocol> {
    core: Arc<Core<P>>,
}

impl<P: Protocol> RawSocket<P> {
    pub(crate) fn of(core: Arc<Core<P>>) -> Self {
        Self { core }
    }

    /// Receives one datagram. Whatever waits for datagrams, each goes to one of them. Cancel safe.
    ///
    /// # Errors
    /// [`RawError::LinkDown`] once each time the link goes down, [`RawError::GroupLost`] for a group of a subnet,
    /// [`RawError::Truncated`] if the socket was bound to say so: call again. [`RawError::LinkGone`], [`RawError::Closed`],
    /// [`RawError::QueueFailed`]: nothing more comes.
    pub async fn recv(&self) -> Result<Datagram<P::Meta>, RawError> {
        self.core.recv().await
    }

    /// Receives one datagram into a buffer, and says how many bytes were written and what is known of it. What has no room
    /// is lost; the metadata has the whole length. Cancel safe.
    ///
    /// # Errors
    /// As [`recv`](Self::recv), without [`RawError::Truncated`].
    pub async fn recv_from(&self, buffer: &mut [u8]) -> Result<(usize, P::Meta), RawError> {
        // There is one: no batch is filled with none.
        self.core.recv_one(copy_to(buffer)).await?.ok_or(RawError::Closed)
    }

    /// Room for [`recv_batch`](Self::recv_batch).
    pub fn batch(&self) -> Batch<P> {
        self.core.backend.room(ibcm_sys::packet::BATCH)
    }

    /// Receives what is there, up to 64 datagrams with one system call, and waits for the first. What was in the batch is
    /// gone. How many there are now, at least one. Cancel safe.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from).
    pub async fn recv_batch(&self, batch: &mut Batch<P>) -> Result<usize, RawError> {
        self.core.fill(batch, ibcm_sys::packet::BATCH).await?;
        Ok(batch.len())
    }

    /// [`recv`](Self::recv) without waiting: `None` if there is nothing, as far as the runtime knows. Who tries again lets the
    /// runtime have its turn before, for example by [`yield_now`](tokio::task::yield_now).
    ///
    /// # Errors
    /// As [`recv`](Self::recv); but that a link went down or a group was lost may be told to who waits alone.
    pub fn try_recv(&self) -> Result<Option<Datagram<P::Meta>>, RawError> {
        self.core.recv_now()
    }

    /// [`recv_from`](Self::recv_from) without waiting, as [`try_recv`](Self::try_recv).
    ///
    /// # Errors
    /// As [`try_recv`](Self::try_recv), without [`RawError::Truncated`].
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> Result<Option<(usize, P::Meta)>, RawError> {
        Ok(self.core.recv_one_now(copy_to(buffer))?.flatten())
    }

    /// [`recv_batch`](Self::recv_batch) without waiting, as [`try_recv`](Self::try_recv): 0 if there is nothing.
    ///
    /// # Errors
    /// As [`try_recv`](Self::try_recv), without [`RawError::Truncated`].
    pub fn try_recv_batch(&self, batch: &mut Batch<P>) -> Result<usize, RawError> {
        self.core.fill_now(batch, ibcm_sys::packet::BATCH)?;
        Ok(batch.len())
    }

    /// Sends one datagram, waiting for room.
    ///
    /// # Errors
    /// [`RawError::TooLarge`], [`RawError::InvalidDest`], [`RawError::Malformed`] at once. [`RawError::LinkDown`];
    /// [`RawError::NoBuffers`] if the link takes nothing for a while; [`RawError::SaUnavailable`] and [`RawError::SendFault`] on a
    /// subnet: try again. [`RawError::LinkGone`], [`RawError::Closed`], [`RawError::QueueFailed`]: nothing more goes out.
    pub async fn send_to(&self, data: &[u8], dest: &P::Dest) -> Result<Sent, RawError> {
        self.core.send_to(data, dest).await
    }

    /// Sends datagrams in order, up to 64 with one system call, waiting for room. How many were sent: less than all if
    /// one could not be; the next call, which begins with that, says why.
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to), of the first.
    pub async fn send_batch(&self, datagrams: &[(&[u8], &P::Dest)]) -> Result<usize, RawError> {
        self.core.send(datagrams).await
    }

    /// [`send_to`](Self::send_to) without waiting: `None`, and nothing was sent, if there is no room, or the way on a subnet
    /// is not known; `send_to` finds it.
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to), without [`RawError::NoBuffers`] and [`RawError::SaUnavailable`].
    pub fn try_send_to(&self, data: &[u8], dest: &P::Dest) -> Result<Option<Sent>, RawError> {
        self.core.send_one_now(data, dest)
    }

    /// Sends the first of these datagrams, up to 64, with one system call and without waiting, as
    /// [`try_send_to`](Self::try_send_to). How many were sent.
    ///
    /// # Errors
    /// As [`try_send_to`](Self::try_send_to), of the first.
    pub fn try_send_batch(&self, datagrams: &[(&[u8], &P::Dest)]) -> Result<usize, RawError> {
        self.core.send_now(datagrams)
    }

    /// Joins a group: its datagrams are received from now on, until the membership is dropped. Memberships are counted.
    ///
    /// On Ethernet the interface takes the group's frames, and the group of an IPv6 address is announced to the network
    /// (MLD). On a subnet with an SA that is asked, and after a change of the SM asked again; a group that is only sent to is joined
    /// for that by the first datagram. While the SA answers nothing it is asked again and again, for a minute or so. Dropped before it is
    /// ready, it has not joined.
    ///
    /// # Errors
    /// [`RawError::Unsupported`] for a group that the socket cannot have; [`RawError::InvalidDest`] if the SA refuses it;
    /// [`RawError::SaUnavailable`]: try again; [`RawError::Io`] of the system.
    pub async fn join(&self, group: &Group) -> Result<Membership<P>, RawError> {
        self.core.join(group).await?;
        Ok(Membership::new(self.core.clone(), *group))
    }

    /// Ends one membership of a group by its name, for [`Membership::forget`].
    ///
    /// # Errors
    /// [`RawError::NotMember`].
    pub fn leave(&self, group: &Group) -> Result<(), RawError> {
        self.core.leave(group)
    }

    /// What is received, as a stream. Several streams and calls share what comes.
    pub fn stream(&self) -> Datagrams<P> {
        Datagrams::new(self.core.clone())
    }

    /// Another filter program in the place of the one that the socket has: see [`Bind::filter`](crate::Bind::filter). One without
    /// instructions lets all through. What waits to be received came by the one before.
    ///
    /// # Errors
    /// [`RawError::InvalidFilter`] and [`RawError::Invalid`]: the one before stays. [`RawError::Unsupported`] on a subnet;
    /// [`RawError::Closed`]; [`RawError::Io`] of the system.
    pub fn set_filter(&self, program: &[Instruction]) -> Result<(), RawError> {
        self.core.check_open()?;
        self.core.backend.set_filter(program)
    }

    /// A sink of payloads and destinations. It holds up to 64 datagrams and sends them together.
    pub fn sink(&self) -> DatagramSink<P> {
        DatagramSink::new(self.core.clone())
    }

    /// Stream and sink of what `codec` makes of datagrams.
    pub fn framed<C>(&self, codec: C) -> Framed<P, C> {
        Framed::new(self.core.clone(), codec)
    }

    /// What was counted since the socket was bound.
    pub fn stats(&self) -> RawStats {
        self.core.stats()
    }

    /// Bytes that there are for what has arrived and was not received yet: of the kernel's queue with its bookkeeping, twice what
    /// was asked for if it could be had (socket(7)), of the ring, or of the receives of a queue pair.
    pub fn recv_buffer(&self) -> usize {
        self.core.backend.recv_buffer()
    }

    /// The link that it is bound to.
    pub fn link(&self) -> &Link {
        &self.core.link
    }

    /// Closes the socket: whoever waits gets [`RawError::Closed`], streams end. What it has claimed and joined is free with
    /// its last handle and membership.
    pub fn close(&self) {
        self.core.close();
    }
}

/// Copies the datagram of a batch of one, as far as there is room.
fn copy_to<P: Protocol>(buffer: &mut [u8]) -> impl FnOnce(&mut Batch<P>) -> Option<(usize, P::Meta)> {
    |batch| {
        let (data, meta) = batch.iter().next()?;
        let len = data.len().min(buffer.len());
        buffer[..len].copy_from_slice(&data[..len]);
        let meta = meta.clone();
        batch.clear();
        Some((len, meta))
    }
}

impl<P: Protocol> Clone for RawSocket<P> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone() }
    }
}

impl<P: Protocol> fmt::Debug for RawSocket<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawSocket").field("link", &self.core.link).finish_non_exhaustive()
    }
}
