//! Owned message buffers.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};

/// The registration of a buffer's memory with a device. Dropped, the memory is deregistered.
pub trait MemoryKey: fmt::Debug + Send + Sync {
    /// The key that local work requests name.
    fn lkey(&self) -> u32;
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
    /// Never grows or shrinks after construction: a device may hold its address.
    memory: Vec<u8>,
    len: usize,
    key: Option<Arc<dyn MemoryKey>>,
    home: Option<Weak<dyn BufHome>>,
}

impl Buf {
    /// A buffer of `len` zero bytes that no device has registered. Only devices that need no keys take it.
    pub fn unregistered(len: usize) -> Self {
        Self { memory: vec![0; len], len, key: None, home: None }
    }

    /// A buffer over memory that a device has registered; its length is the whole of `memory`.
    #[doc(hidden)]
    pub fn registered(memory: Vec<u8>, key: Arc<dyn MemoryKey>) -> Self {
        Self { len: memory.len(), memory, key: Some(key), home: None }
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

    /// Appends `bytes`.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn put_slice(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        assert!(end <= self.capacity(), "length {end} of a buffer with room for {} bytes", self.capacity());
        self.memory[self.len..end].copy_from_slice(bytes);
        self.len = end;
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        if let Some(home) = self.home.take().and_then(|home| home.upgrade()) {
            let memory = std::mem::take(&mut self.memory);
            home.give_back(Self { len: memory.len(), memory, key: self.key.take(), home: None });
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
