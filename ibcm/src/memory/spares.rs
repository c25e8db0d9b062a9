//! Buffers of connections that have ended, for the next ones.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;

use ibdev::Buf;

use crate::sync::lock;

/// Receive and copy buffers that no connection has at present. Making and registering memory costs more than a
/// handshake, so it is kept, up to a limit.
#[derive(Default)]
pub(crate) struct Spares {
    stock: Mutex<Stock>,
}

#[derive(Default)]
struct Stock {
    by_len: BTreeMap<usize, Vec<Buf>>,
    bytes: usize,
}

/// The most memory that one HCA keeps.
const MAX_BYTES: usize = 32 << 20;

impl Spares {
    /// Keeps a buffer that the HCA's device has made, if there is room. It has no home, and its whole capacity
    /// is free.
    pub(crate) fn keep(&self, buf: Buf) {
        let len = buf.capacity();
        let mut stock = lock(&self.stock);
        if stock.bytes + len <= MAX_BYTES {
            stock.bytes += len;
            stock.by_len.entry(len).or_default().push(buf);
        }
    }

    /// Takes at most `count` buffers of this capacity.
    pub(crate) fn take(&self, count: usize, len: usize) -> Vec<Buf> {
        let mut stock = lock(&self.stock);
        let Some(bufs) = stock.by_len.get_mut(&len) else { return Vec::new() };
        let first = bufs.len().saturating_sub(count);
        let taken = bufs.split_off(first);
        stock.bytes -= taken.len() * len;
        taken
    }
}

impl fmt::Debug for Spares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spares").field("bytes", &lock(&self.stock).bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_found_by_their_length_and_bounded() {
        let spares = Spares::default();
        for len in [8, 16, 8, 8] {
            spares.keep(Buf::unregistered(len));
        }
        assert_eq!(spares.take(2, 8).len(), 2);
        assert_eq!(spares.take(2, 8).len(), 1);
        assert_eq!(spares.take(2, 8).len(), 0);
        assert_eq!(spares.take(9, 16).len(), 1);
        spares.keep(Buf::unregistered(MAX_BYTES));
        spares.keep(Buf::unregistered(1));
        assert_eq!(spares.take(1, 1).len(), 0);
    }
}
