//! What a socket stands on.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use crate::ether::EtherOptions;
use crate::ipv6::Ipv6Options;
use crate::meta::{EtherMeta, Ipv6Meta};
use crate::stats::Counters;
use crate::{Batch, EtherDest, EtherType, Group, Instruction, Ipv6Dest, NextHeader, RawError};

mod sealed {
    #[allow(unnameable_types)]
    pub trait Sealed {}
}

/// A kind of raw datagram: [`Ether`] or [`Ipv6`].
pub trait Protocol: sealed::Sealed + Sized + Clone + fmt::Debug + Send + Sync + 'static {
    /// What is known of a received datagram.
    type Meta: Clone + fmt::Debug + Send + Sync + Unpin + 'static;
    /// Where a datagram goes.
    type Dest: Clone + fmt::Debug + Send + Sync + Unpin + 'static;
    /// The number by which datagrams are told apart.
    type Number: Copy + fmt::Debug + Send + Sync + Unpin + 'static;
    #[doc(hidden)]
    type Options: Clone + Default + fmt::Debug + Send + Sync + Unpin + 'static;

    /// How often it is looked again after something has come before a task waits.
    #[doc(hidden)]
    const LOOKS: u8;

    /// Length of a datagram that is longer than the socket's buffer.
    #[doc(hidden)]
    fn cut(meta: &Self::Meta) -> Option<usize>;

    /// What a datagram tells of losses before it.
    #[doc(hidden)]
    fn drops_before(meta: &mut Self::Meta) -> &mut u32;
}

/// Packets of an EtherType.
#[derive(Debug, Clone)]
pub enum Ether {}

impl sealed::Sealed for Ether {}

impl Protocol for Ether {
    type Meta = EtherMeta;
    type Dest = EtherDest;
    type Number = EtherType;
    type Options = EtherOptions;

    /// As soon as a frame was received others are there or will be late.
    const LOOKS: u8 = 0;

    fn cut(meta: &EtherMeta) -> Option<usize> {
        meta.truncated.then_some(meta.wire_len)
    }

    fn drops_before(meta: &mut EtherMeta) -> &mut u32 {
        &mut meta.drops_before
    }
}

/// IPv6 packets.
#[derive(Debug, Clone)]
pub enum Ipv6 {}

impl sealed::Sealed for Ipv6 {}

impl Protocol for Ipv6 {
    type Meta = Ipv6Meta;
    type Dest = Ipv6Dest;
    type Number = NextHeader;
    type Options = Ipv6Options;

    /// The kernel takes so long for each packet that the next one comes some looks after this one was received: to sleep and be
    /// woken for each costs who sends, and the thread, more than that.
    const LOOKS: u8 = 3;

    fn cut(meta: &Ipv6Meta) -> Option<usize> {
        meta.truncated.then_some(meta.wire_len)
    }

    fn drops_before(meta: &mut Ipv6Meta) -> &mut u32 {
        &mut meta.drops_before
    }
}

/// A wait for a socket.
pub(crate) type Wait<'a> = Pin<Box<dyn Future<Output = Result<(), RawError>> + Send + 'a>>;

/// Why nothing was sent.
#[derive(Debug)]
pub(crate) enum NotSent {
    /// The socket's buffer is full: it becomes writable.
    WouldBlock,
    /// The link has no buffers: nothing tells when it has.
    NoBuffers,
    /// The way to the first one's destination is not known yet.
    #[cfg(feature = "soft")]
    NoWay,
    /// It never will be.
    Error(RawError),
}

impl From<RawError> for NotSent {
    fn from(error: RawError) -> Self {
        Self::Error(error)
    }
}

/// One bound socket of some kind of link.
pub(crate) trait Backend<P: Protocol>: fmt::Debug + Send + Sync {
    fn counters(&self) -> &Arc<Counters>;

    /// Receives up to `most` datagrams into `batch`, which is empty. Ready with none in it if all that came is not for this
    /// socket; pending if there was nothing.
    fn recv(&self, batch: &mut Batch<P>, most: usize) -> Result<Poll<()>, RawError>;

    /// Until there may be something to receive. Several may wait.
    fn readable(&self) -> Wait<'_>;

    /// Sends the first of the datagrams, at least one, and says how many.
    fn send(&self, datagrams: &[(&[u8], &P::Dest)]) -> Result<usize, NotSent>;

    /// Until there may be room.
    fn writable(&self) -> Wait<'_>;

    /// Finds the way to a destination, where that takes its time.
    #[cfg(feature = "soft")]
    fn find_way<'a>(&'a self, _dest: &'a P::Dest) -> Wait<'a> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// What is wrong with a datagram, before it is sent. Else the length of its payload on the wire.
    fn check(&self, data: &[u8], dest: &P::Dest) -> Result<usize, RawError>;

    /// The first to join in this socket.
    fn join<'a>(&'a self, group: &'a Group) -> Wait<'a>;

    /// The last to leave in this socket.
    fn leave(&self, group: &Group) -> Result<(), RawError>;

    /// Puts the caller's filter program in the place of the one before; none if it is empty.
    fn set_filter(&self, _program: &[Instruction]) -> Result<(), RawError> {
        Err(RawError::Unsupported("a filter program"))
    }

    /// Bytes that there are for what was not received yet.
    fn recv_buffer(&self) -> usize;

    /// Brings the count of what the queue has dropped up to date.
    fn note_drops(&self);

    /// Room for received datagrams.
    fn room(&self, most: usize) -> Batch<P>;
}
