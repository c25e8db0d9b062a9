//! Datagrams received together.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use ibcm_sys::packet::{Block, RecvBatch};

use crate::backend::Protocol;
use crate::meta::Datagram;

/// Datagrams received together, and the room for them. Used again and again, it allocates nothing.
///
/// Of a socket with a [`Ring`](crate::Ring) it keeps a block of that until it is used again or dropped, and with the ring the
/// kernel's socket: that goes on receiving, though nobody hears it, and stays in its fanout group until then.
pub struct Batch<P: Protocol> {
    pub(crate) room: RecvBatch,
    pub(crate) block: Option<Arc<Block>>,
    pub(crate) taken: Vec<Taken<P>>,
}

/// A datagram of a batch.
pub(crate) struct Taken<P: Protocol> {
    pub(crate) data: Data,
    pub(crate) meta: P::Meta,
}

/// Where its bytes are.
pub(crate) enum Data {
    /// In the room: place, first byte, length.
    Room(usize, usize, usize),
    /// In the block: first byte, length.
    Block(usize, usize),
    /// Apart.
    #[cfg(feature = "soft")]
    Shared(Bytes),
}

impl<P: Protocol> Batch<P> {
    pub(crate) fn new(room: RecvBatch) -> Self {
        let taken = Vec::with_capacity(room.capacity());
        Self { room, block: None, taken }
    }

    /// How many datagrams there are.
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// The datagrams in the order in which they came: payload and metadata.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &P::Meta)> {
        self.taken.iter().map(|taken| (self.bytes(&taken.data), &taken.meta))
    }

    fn bytes<'a>(&'a self, data: &'a Data) -> &'a [u8] {
        match data {
            Data::Room(at, from, len) => self.room.data(*at).map_or(&[], |data| &data[*from..][..*len]),
            Data::Block(from, len) => self.block.as_ref().map_or(&[], |block| block.bytes(*from, *len)),
            #[cfg(feature = "soft")]
            Data::Shared(bytes) => bytes,
        }
    }

    /// Gives the datagrams away, with bytes of their own.
    pub(crate) fn take(&mut self, mut to: impl FnMut(Datagram<P::Meta>)) {
        let mut taken = std::mem::take(&mut self.taken);
        for Taken { data, meta } in taken.drain(..) {
            let data = match data {
                #[cfg(feature = "soft")]
                Data::Shared(bytes) => bytes,
                data => Bytes::copy_from_slice(self.bytes(&data)),
            };
            to(Datagram { data, meta });
        }
        (self.taken, self.block) = (taken, None);
    }

    pub(crate) fn clear(&mut self) {
        self.taken.clear();
        self.block = None;
    }
}

impl<P: Protocol> fmt::Debug for Batch<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.taken.iter().map(|taken| &taken.meta)).finish()
    }
}
