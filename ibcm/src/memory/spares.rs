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

/// The most memory that is kept for one protection domain: the default buffers of a thousand connections.
const MAX_BYTES: usize = 64 << 20;

impl Spares {
    /// Keeps buffers that the domain has made, as far as there is room. They have no homes, and their whole
    /// capacity is free.
    pub(crate) fn keep(&self, bufs: impl IntoIterator<Item = Buf>) {
        let mut stock = lock(&self.stock);
        let Stock { by_len, bytes } = &mut *stock;
        let keep = |buf: Buf| {
            let len = buf.capacity();
            if *bytes + len > MAX_BYTES {
                return Some(buf);
            }
            *bytes += len;
            by_len.entry(len).or_default().push(buf);
            None
        };
        let too_many: Vec<Buf> = bufs.into_iter().filter_map(keep).collect();
        drop(stock);
        // Freeing memory takes its time.
        drop(too_many);
    }

    /// Hands out at most `count` buffers of this capacity; returns how many.
    pub(super) fn take(&self, count: usize, len: usize, to: impl FnMut(Buf)) -> usize {
        let mut stock = lock(&self.stock);
        let Some(bufs) = stock.by_len.get_mut(&len) else { return 0 };
        let first = bufs.len().saturating_sub(count);
        let taken = bufs.len() - first;
        bufs.drain(first..).for_each(to);
        stock.bytes -= taken * len;
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
        let take = |count, len| spares.take(count, len, drop);
        spares.keep([8, 16, 8, 8].map(Buf::unregistered));
        assert_eq!([take(2, 8), take(2, 8), take(2, 8), take(9, 16)], [2, 1, 0, 1]);
        spares.keep([MAX_BYTES, 1].map(Buf::unregistered));
        assert_eq!(take(1, 1), 0);
    }
}
