//! A connection's own buffers, for what is copied and for the results of atomics.

use ibdev::Buf;

/// The connection's own buffers. They are made when first needed.
#[derive(Debug)]
pub(super) struct Copies {
    inline: Stock,
    registered: Stock,
    /// The most of each kind: as many as the send queue has places.
    max: u32,
}

/// Buffers of one kind and length.
#[derive(Debug)]
struct Stock {
    free: Vec<Buf>,
    made: u32,
    len: usize,
}

/// Where a buffer for a copy goes when it is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shelf {
    /// To those that no device has registered: it copies out of them when they are posted.
    Inline,
    /// To the registered ones.
    Registered,
    /// Nowhere: longer messages have theirs made each time.
    None,
}

/// A buffer to copy a message into.
#[derive(Debug)]
pub(crate) enum CopyBuf {
    Ready(Buf, Shelf),
    /// Allocate one of this length.
    Allocate(usize, Shelf),
    /// All are under way.
    Wait,
}

impl Copies {
    /// At most `max` of each kind, `inline` and `registered` bytes long.
    pub(super) fn new(max: u32, inline: usize, registered: usize) -> Self {
        let stock = |len| Stock { free: Vec::new(), made: 0, len };
        Self { inline: stock(inline), registered: stock(registered), max }
    }

    /// How it can be copied without an allocation for this one alone.
    pub(super) fn shelf(&self, len: usize, inline: bool) -> Shelf {
        match len {
            _ if inline && len <= self.inline.len => Shelf::Inline,
            _ if len <= self.registered.len => Shelf::Registered,
            _ => Shelf::None,
        }
    }

    pub(super) fn take(&mut self, shelf: Shelf, len: usize) -> CopyBuf {
        let max = self.max;
        let Some(stock) = self.stock(shelf) else { return CopyBuf::Allocate(len, shelf) };
        if let Some(buf) = stock.free.pop() {
            return CopyBuf::Ready(buf, shelf);
        }
        if stock.made >= max {
            return CopyBuf::Wait;
        }
        stock.made += 1;
        match shelf {
            Shelf::Inline => CopyBuf::Ready(Buf::unregistered(stock.len), shelf),
            _ => CopyBuf::Allocate(stock.len, shelf),
        }
    }

    /// Takes a buffer back, or the news that it was never made; gives what is to be dropped.
    pub(super) fn put(&mut self, shelf: Shelf, buf: Option<Buf>) -> Option<Buf> {
        match (self.stock(shelf), buf) {
            (Some(stock), Some(buf)) if buf.capacity() == stock.len => stock.free.push(buf),
            // Of a length that is not used any more.
            (Some(stock), Some(buf)) => {
                stock.made -= 1;
                return Some(buf);
            }
            (Some(stock), None) => stock.made -= 1,
            (None, buf) => return buf,
        }
        None
    }

    /// From here on registered ones are so long; gives those of another length that are free.
    pub(super) fn set_registered_len(&mut self, len: usize) -> Vec<Buf> {
        let stock = &mut self.registered;
        if stock.len == len {
            return Vec::new();
        }
        stock.len = len;
        stock.made -= stock.free.len() as u32;
        std::mem::take(&mut stock.free)
    }

    /// Those that are free and registered; nothing is copied any more.
    pub(super) fn release(&mut self) -> Vec<Buf> {
        self.inline.free.clear();
        std::mem::take(&mut self.registered.free)
    }

    fn stock(&mut self, shelf: Shelf) -> Option<&mut Stock> {
        match shelf {
            Shelf::Inline => Some(&mut self.inline),
            Shelf::Registered => Some(&mut self.registered),
            Shelf::None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_messages_need_no_registered_buffer() {
        let mut copies = Copies::new(1, 16, 64);
        assert_eq!(copies.shelf(16, true), Shelf::Inline);
        assert_eq!(copies.shelf(16, false), Shelf::Registered);
        assert_eq!(copies.shelf(17, true), Shelf::Registered);
        assert_eq!(copies.shelf(65, true), Shelf::None);
        let CopyBuf::Ready(buf, shelf) = copies.take(Shelf::Inline, 3) else { panic!("made at once") };
        assert_eq!(buf.capacity(), 16);
        assert!(matches!(copies.take(Shelf::Inline, 3), CopyBuf::Wait));
        assert!(copies.put(shelf, Some(buf)).is_none());
        assert!(matches!(copies.take(Shelf::Inline, 3), CopyBuf::Ready(..)));
    }

    #[test]
    fn buffers_of_another_length_are_given_up() {
        let mut copies = Copies::new(2, 0, 64);
        for _ in 0..2 {
            assert!(matches!(copies.take(Shelf::Registered, 3), CopyBuf::Allocate(64, _)));
        }
        assert!(copies.put(Shelf::Registered, Some(Buf::unregistered(64))).is_none());
        assert_eq!(copies.set_registered_len(128).len(), 1);
        assert_eq!(copies.shelf(128, false), Shelf::Registered);
        assert!(matches!(copies.take(Shelf::Registered, 3), CopyBuf::Allocate(128, _)));
        // One that was under way meanwhile.
        assert!(matches!(copies.take(Shelf::Registered, 3), CopyBuf::Wait));
        assert!(copies.put(Shelf::Registered, Some(Buf::unregistered(64))).is_some());
        assert!(matches!(copies.take(Shelf::Registered, 3), CopyBuf::Allocate(128, _)));
        assert!(copies.put(Shelf::Registered, Some(Buf::unregistered(128))).is_none());
        assert!(copies.set_registered_len(128).is_empty());
    }

    #[test]
    fn a_buffer_that_could_not_be_made_is_tried_again() {
        let mut copies = Copies::new(1, 0, 64);
        assert!(matches!(copies.take(Shelf::Registered, 3), CopyBuf::Allocate(64, Shelf::Registered)));
        assert!(matches!(copies.take(Shelf::Registered, 3), CopyBuf::Wait));
        copies.put(Shelf::Registered, None);
        assert!(matches!(copies.take(Shelf::Registered, 3), CopyBuf::Allocate(..)));
        // Long ones are made for one message.
        assert!(matches!(copies.take(Shelf::None, 99), CopyBuf::Allocate(99, Shelf::None)));
        assert!(copies.put(Shelf::None, Some(Buf::unregistered(99))).is_some());
    }
}
