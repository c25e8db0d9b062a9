//! Memory that peers access by rkey.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ibwire::RKey;

bitflags::bitflags! {
    /// What a peer may do to memory (IBTA vol. 1, 10.6.3). A QP and a region each have theirs; both must allow it. Local
    /// reading and writing is always allowed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Access: u8 {
        /// RDMA writes.
        const REMOTE_WRITE = 1 << 1;
        /// RDMA reads.
        const REMOTE_READ = 1 << 2;
        /// Atomics.
        const REMOTE_ATOMIC = 1 << 3;
    }
}

/// Bytes outside a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// The range ends behind the region.
    #[error("{len} bytes at {at}, the region has {limit}")]
    Bounds {
        /// First byte.
        at: usize,
        /// Number of bytes.
        len: usize,
        /// Length of the region.
        limit: usize,
    },
    /// Atomics work on whole words.
    #[error("an atomic at {at}, it must be a multiple of 8")]
    Unaligned {
        /// First byte.
        at: usize,
    },
}

impl From<RangeError> for std::io::Error {
    fn from(error: RangeError) -> Self {
        Self::new(std::io::ErrorKind::InvalidInput, error)
    }
}

const WORD: usize = size_of::<u64>();

/// Memory that a device may read and write at any time: words, read and written by copies and atomics and never lent
/// as a slice. Clones are the same memory.
///
/// Copies are not atomic as a whole: a copy that runs against a peer's write may see a part of it. Each aligned word is
/// whole.
#[derive(Clone)]
pub struct SharedMemory {
    words: Arc<[AtomicU64]>,
    len: usize,
}

impl SharedMemory {
    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        Self { words: (0..len.div_ceil(WORD)).map(|_| AtomicU64::new(0)).collect(), len }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is not a byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The words, the last one padded, for a device that registers their address.
    pub fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    /// # Errors
    /// [`RangeError::Bounds`] if the range is not inside.
    pub fn check(&self, at: usize, len: usize) -> Result<(), RangeError> {
        match at.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(RangeError::Bounds { at, len, limit: self.len }),
        }
    }

    /// Copies the bytes from `at` on into `to`.
    ///
    /// # Errors
    /// [`RangeError::Bounds`].
    pub fn copy_to(&self, at: usize, to: &mut [u8]) -> Result<(), RangeError> {
        self.check(at, to.len())?;
        let (mut word, skip) = (at / WORD, at % WORD);
        let (head, rest) = to.split_at_mut(to.len().min((WORD - skip) % WORD));
        if !head.is_empty() {
            let bytes = self.words[word].load(Ordering::Relaxed).to_ne_bytes();
            head.copy_from_slice(&bytes[skip..skip + head.len()]);
            word += 1;
        }
        let (chunks, tail) = rest.as_chunks_mut::<WORD>();
        for (chunk, word) in chunks.iter_mut().zip(&self.words[word..]) {
            *chunk = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        if !tail.is_empty() {
            let bytes = self.words[word + chunks.len()].load(Ordering::Relaxed).to_ne_bytes();
            tail.copy_from_slice(&bytes[..tail.len()]);
        }
        Ok(())
    }

    /// Copies `from` to the bytes from `at` on. Bytes around it in the same words are left alone.
    ///
    /// # Errors
    /// [`RangeError::Bounds`].
    pub fn copy_from(&self, at: usize, from: &[u8]) -> Result<(), RangeError> {
        self.check(at, from.len())?;
        let (mut word, skip) = (at / WORD, at % WORD);
        let (head, rest) = from.split_at(from.len().min((WORD - skip) % WORD));
        if !head.is_empty() {
            self.write_part(word, skip, head);
            word += 1;
        }
        let (chunks, tail) = rest.as_chunks::<WORD>();
        for (chunk, word) in chunks.iter().zip(&self.words[word..]) {
            word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
        }
        if !tail.is_empty() {
            self.write_part(word + chunks.len(), 0, tail);
        }
        Ok(())
    }

    fn write_part(&self, word: usize, skip: usize, part: &[u8]) {
        let update = |old: u64| {
            let mut bytes = old.to_ne_bytes();
            bytes[skip..skip + part.len()].copy_from_slice(part);
            Some(u64::from_ne_bytes(bytes))
        };
        // The closure never refuses.
        _ = self.words[word].fetch_update(Ordering::Relaxed, Ordering::Relaxed, update);
    }

    /// The word at `at`, in the byte order of this machine.
    ///
    /// # Errors
    /// [`RangeError`]: `at` is no multiple of 8, or the word is not inside.
    pub fn atomic(&self, at: usize) -> Result<&AtomicU64, RangeError> {
        self.check(at, WORD)?;
        if !at.is_multiple_of(WORD) {
            return Err(RangeError::Unaligned { at });
        }
        Ok(&self.words[at / WORD])
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMemory").field("len", &self.len).finish_non_exhaustive()
    }
}

/// The registration of a region with a device. Dropped, the peer's access ends at once, before the drop returns.
pub trait RegionKey: fmt::Debug + Send + Sync {
    /// The key that a peer names.
    fn rkey(&self) -> RKey;

    /// The address that a peer names for the first byte.
    fn addr(&self) -> u64;

    /// Downcast for the device that made it.
    fn as_any(&self) -> &dyn Any;
}

/// Memory exposed to peers by rkey.
///
/// It is the peer's as much as ours: whoever knows the rkey and has a connection of the same protection domain may use
/// it at any time, so it is copied from and to, and never lent as `&[u8]`. Dropped, it is deregistered at once; a
/// later access fails at the peer, and ends the connection that it came over.
#[derive(Debug)]
pub struct Region {
    /// Dropped first: the memory outlives its registration.
    key: Box<dyn RegionKey>,
    memory: SharedMemory,
    access: Access,
}

impl Region {
    /// Memory that a device has registered.
    #[doc(hidden)]
    pub fn new(key: Box<dyn RegionKey>, memory: SharedMemory, access: Access) -> Self {
        Self { key, memory, access }
    }

    /// The registration, for a device.
    #[doc(hidden)]
    pub fn key(&self) -> &dyn RegionKey {
        &*self.key
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether there is not a byte.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// What peers may do.
    pub fn access(&self) -> Access {
        self.access
    }

    /// What a peer has to know to use it.
    pub fn remote(&self) -> RemoteRegion {
        RemoteRegion { addr: self.key.addr(), rkey: self.key.rkey(), len: self.memory.len() as u64 }
    }

    /// Copies the bytes from `at` on into `to`.
    ///
    /// # Errors
    /// [`RangeError::Bounds`].
    pub fn copy_to(&self, at: usize, to: &mut [u8]) -> Result<(), RangeError> {
        self.memory.copy_to(at, to)
    }

    /// Copies `from` to the bytes from `at` on.
    ///
    /// # Errors
    /// [`RangeError::Bounds`].
    pub fn copy_from(&self, at: usize, from: &[u8]) -> Result<(), RangeError> {
        self.memory.copy_from(at, from)
    }

    /// The word at `at`, in the byte order of this machine: what a peer's atomics work on.
    ///
    /// # Errors
    /// [`RangeError`]: `at` is no multiple of 8, or the word is not inside.
    pub fn atomic(&self, at: usize) -> Result<&AtomicU64, RangeError> {
        self.memory.atomic(at)
    }
}

/// A peer's memory, as RDMA operations name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteRegion {
    addr: u64,
    rkey: RKey,
    len: u64,
}

impl RemoteRegion {
    /// Length of [`to_bytes`](Self::to_bytes).
    pub const BYTES: usize = 20;

    /// `len` bytes at the peer's address `addr`, with the key that the peer gave for it.
    pub const fn new(addr: u64, rkey: u32, len: usize) -> Self {
        Self { addr, rkey: RKey(rkey), len: len as u64 }
    }

    /// The peer's address of the first byte.
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// The peer's key.
    pub const fn rkey(&self) -> RKey {
        self.rkey
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there is not a byte.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `len` bytes of it from `at` on.
    ///
    /// # Errors
    /// [`RangeError::Bounds`].
    pub fn slice(&self, at: usize, len: usize) -> Result<Self, RangeError> {
        let limit = self.len();
        match at.checked_add(len) {
            Some(end) if end <= limit => {
                Ok(Self { addr: self.addr.wrapping_add(at as u64), rkey: self.rkey, len: len as u64 })
            }
            _ => Err(RangeError::Bounds { at, len, limit }),
        }
    }

    /// For a message or private data: address, key, length, each big-endian.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// From the front of `bytes`; what follows is ignored.
    ///
    /// # Errors
    /// [`RangeError::Bounds`] if there are fewer than 20, or if the length is more than this machine can address.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RangeError> {
        let short = RangeError::Bounds { at: 0, len: Self::BYTES, limit: bytes.len() };
        let (addr, rest) = bytes.split_first_chunk().ok_or(short)?;
        let (rkey, rest) = rest.split_first_chunk().ok_or(short)?;
        let (len, _) = rest.split_first_chunk().ok_or(short)?;
        let len = u64::from_be_bytes(*len);
        if usize::try_from(len).is_err() {
            return Err(RangeError::Bounds { at: 0, len: usize::MAX, limit: isize::MAX as usize });
        }
        Ok(Self { addr: u64::from_be_bytes(*addr), rkey: RKey(u32::from_be_bytes(*rkey)), len })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a plain array: any range, bytes around it untouched.
        #[test]
        fn copies_equal_those_of_an_array(
            len in 0usize..70,
            steps in prop::collection::vec((0usize..80, prop::collection::vec(any::<u8>(), 0..40)), 1..20),
        ) {
            let (memory, mut model) = (SharedMemory::zeroed(len), vec![0u8; len]);
            for (at, bytes) in steps {
                let end = at + bytes.len();
                prop_assert_eq!(memory.copy_from(at, &bytes).is_ok(), end <= len);
                if end <= len {
                    model[at..end].copy_from_slice(&bytes);
                }
                let (at, end) = (at.min(len), end.min(len));
                let mut part = vec![0; end - at];
                memory.copy_to(at, &mut part).unwrap();
                prop_assert_eq!(&part, &model[at..end]);
                let mut all = vec![0; len];
                memory.copy_to(0, &mut all).unwrap();
                prop_assert_eq!(&all, &model);
            }
        }

        #[test]
        fn remote_regions_round_trip(addr: u64, rkey: u32, len in 0usize..1 << 40) {
            let region = RemoteRegion::new(addr, rkey, len);
            prop_assert_eq!(RemoteRegion::from_bytes(&region.to_bytes()), Ok(region));
            prop_assert!(RemoteRegion::from_bytes(&region.to_bytes()[..19]).is_err());
        }
    }

    #[test]
    fn atomics_are_whole_words_inside() {
        let memory = SharedMemory::zeroed(20);
        memory.atomic(8).unwrap().store(u64::from_ne_bytes([7; 8]), Ordering::Relaxed);
        let mut bytes = [0; 8];
        memory.copy_to(8, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 8]);
        assert_eq!(memory.atomic(4).unwrap_err(), RangeError::Unaligned { at: 4 });
        assert_eq!(memory.atomic(16).unwrap_err(), RangeError::Bounds { at: 16, len: 8, limit: 20 });
    }

    #[test]
    fn a_slice_stays_inside() {
        let region = RemoteRegion::new(0x1000, 7, 100);
        assert_eq!(region.slice(40, 60).map(|part| (part.addr(), part.len())), Ok((0x1028, 60)));
        assert_eq!(region.slice(40, 61), Err(RangeError::Bounds { at: 40, len: 61, limit: 100 }));
        assert!(region.slice(usize::MAX, 2).is_err());
    }
}
