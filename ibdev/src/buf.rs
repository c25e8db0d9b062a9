//! Owned message buffers.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};

use bytes::BytesMut;

/// The registration of memory with a device: of one buffer, or of the block that several buffers are parts of.
/// Dropped, the memory is deregistered; the device may do that later and elsewhere, because it can be slow.
pub trait MemoryKey: fmt::Debug + Send + Sync {
    /// The key that local work requests name.
    fn lkey(&self) -> u32;

    /// Downcast for the device that made it, which so tells its own buffers from those of others.
    fn as_any(&self) -> &dyn Any;
}

/// Where a buffer goes when it is dropped: its pool, or the receive queue that it came from.
pub trait BufHome: fmt::Debug + Send + Sync {
    /// Takes the buffer back; its length is the full capacity. Never blocks. The buffer's home is unset.
    fn give_back(&self, buf: Buf);
}

/// An owned buffer that a device can send from and receive into.
///
/// It moves into an operation and comes back with its result. Its capacity never changes, so the device may keep
/// the address while it holds the buffer. Dropped, it returns to its pool if it has one.
pub struct Buf {
    /// Before `memory`, so that the last buffer of a block ends its registration before its memory.
    key: Option<Arc<dyn MemoryKey>>,
    /// Never grows, shrinks or moves after construction: a device may hold its address.
    memory: BytesMut,
    len: usize,
    home: Option<Weak<dyn BufHome>>,
}

impl Buf {
    /// A buffer of `len` zero bytes that no device has registered. Only devices that need no keys take it.
    pub fn unregistered(len: usize) -> Self {
        Self { key: None, memory: BytesMut::zeroed(len), len, home: None }
    }

    /// A buffer over memory that a device has registered; its length is the whole of `memory`, which may be a part
    /// of a larger registered block (`BytesMut::split_to` leaves the bytes where they are).
    #[doc(hidden)]
    pub fn registered(memory: BytesMut, key: Arc<dyn MemoryKey>) -> Self {
        Self { key: Some(key), len: memory.len(), memory, home: None }
    }

    /// Makes `home` the place where this buffer goes when it is dropped.
    #[doc(hidden)]
    #[must_use]
    pub fn with_home(mut self, home: Weak<dyn BufHome>) -> Self {
        self.home = Some(home);
        self
    }

    /// The registration, for a device.
    #[doc(hidden)]
    pub fn memory_key(&self) -> Option<&Arc<dyn MemoryKey>> {
        self.key.as_ref()
    }

    /// The whole memory whatever the length is, for a device that receives into it.
    #[doc(hidden)]
    pub fn memory_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    /// How many bytes fit.
    pub fn capacity(&self) -> usize {
        self.memory.len()
    }

    /// Sets the length to `len` bytes; new bytes are `value`.
    ///
    /// # Panics
    /// If `len` is more than the capacity.
    pub fn resize(&mut self, len: usize, value: u8) {
        assert!(len <= self.capacity(), "length {len} of a buffer with room for {} bytes", self.capacity());
        if len > self.len {
            self.memory[self.len..len].fill(value);
        }
        self.len = len;
    }

    /// Sets the length to what was received, without touching the bytes. At most the capacity is taken.
    #[doc(hidden)]
    pub fn set_filled(&mut self, len: usize) {
        self.len = len.min(self.memory.len());
    }

    /// Empties the buffer.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends `bytes`. A buffer that is as long as it has room is to be [cleared](Self::clear) before.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn put_slice(&mut self, bytes: &[u8]) {
        let (count, end, room) = (bytes.len(), self.len + bytes.len(), self.capacity());
        assert!(end <= room, "{count} bytes behind {} in a buffer with room for {room}", self.len);
        self.memory[self.len..end].copy_from_slice(bytes);
        self.len = end;
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        if let Some(home) = self.home.take().and_then(|home| home.upgrade()) {
            let memory = std::mem::take(&mut self.memory);
            home.give_back(Self { key: self.key.take(), len: memory.len(), memory, home: None });
        }
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.len]
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf")
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Debug, Default)]
    struct Shelf(Mutex<Vec<Buf>>);

    impl BufHome for Shelf {
        fn give_back(&self, buf: Buf) {
            self.0.lock().unwrap().push(buf);
        }
    }

    #[test]
    fn a_dropped_buffer_goes_home_once() {
        let shelf = Arc::new(Shelf::default());
        let home: Weak<dyn BufHome> = Arc::downgrade(&(shelf.clone() as Arc<dyn BufHome>));
        let mut buf = Buf::unregistered(8).with_home(home);
        buf.resize(3, 0);
        drop(buf);
        let back = shelf.0.lock().unwrap().pop().expect("it came back");
        assert_eq!((back.len(), back.capacity()), (8, 8));
        drop(back);
        assert!(shelf.0.lock().unwrap().is_empty());
    }

    #[derive(Debug)]
    struct Key;

    impl MemoryKey for Key {
        fn lkey(&self) -> u32 {
            7
        }

        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    #[test]
    fn buffers_of_one_registered_block_stay_where_they_are() {
        let mut block = BytesMut::zeroed(12);
        let (start, key) = (block.as_ptr() as usize, Arc::new(Key));
        for i in 0..3 {
            let mut buf = Buf::registered(block.split_to(4), key.clone());
            assert_eq!(buf.memory_mut().as_ptr() as usize, start + 4 * i);
            assert_eq!((buf.capacity(), buf.memory_key().map(|key| key.lkey())), (4, Some(7)));
        }
        assert_eq!(Arc::strong_count(&key), 1);
    }

    #[test]
    fn lengths() {
        let mut buf = Buf::unregistered(4);
        buf.clear();
        buf.put_slice(b"ab");
        buf.resize(4, b'x');
        assert_eq!(&buf[..], b"abxx");
    }

    #[test]
    #[should_panic(expected = "length 5 of a buffer with room for 4 bytes")]
    fn too_long() {
        Buf::unregistered(4).resize(5, 0);
    }
}
