//! Where a field stands in its record.

/// A run of bits in a record, counted from its first byte's most significant bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bits {
    pub(crate) start: usize,
    pub(crate) width: usize,
}

impl Bits {
    /// Bits `high..=low` of this word, counted from its least significant bit as the tables of IBTA do.
    pub(crate) const fn bits(self, high: usize, low: usize) -> Self {
        assert!(low <= high && high < self.width);
        Self { start: self.start + self.width - 1 - high, width: high - low + 1 }
    }

    /// The `index`th of `count` equal parts.
    pub(crate) const fn part(self, index: usize, count: usize) -> Self {
        let width = self.width / count;
        Self { start: self.start + index * width, width }
    }

    /// The first byte.
    pub(crate) const fn byte(self) -> usize {
        self.start / 8
    }

    /// The largest number that fits; `width` is at most 64.
    pub(crate) const fn max(self) -> u64 {
        u64::MAX >> (64 - self.width)
    }

    /// The number that stands here. `bytes` is long enough.
    pub(crate) fn get(self, bytes: &[u8]) -> u64 {
        let end = (self.start + self.width).div_ceil(8);
        let word = bytes[self.byte()..end].iter().fold(0u128, |word, byte| word << 8 | u128::from(*byte));
        (word >> (end * 8 - self.start - self.width)) as u64 & self.max()
    }

    /// Writes the low bits of `value` here and leaves those around them. `bytes` is long enough.
    pub(crate) fn put(self, bytes: &mut [u8], value: u64) {
        let end = (self.start + self.width).div_ceil(8);
        let shift = end * 8 - self.start - self.width;
        let (mask, value) = (u128::from(self.max()) << shift, u128::from(value & self.max()) << shift);
        for (at, byte) in bytes[self.byte()..end].iter_mut().rev().enumerate() {
            let (mask, value) = ((mask >> (8 * at)) as u8, (value >> (8 * at)) as u8);
            *byte = *byte & !mask | value;
        }
    }
}

/// A byte.
pub(crate) const fn byte(at: usize) -> Bits {
    bytes(at, 1)
}

/// A big-endian word of 16 bits.
pub(crate) const fn be16(at: usize) -> Bits {
    bytes(at, 2)
}

/// A big-endian word of 32 bits.
pub(crate) const fn be32(at: usize) -> Bits {
    bytes(at, 4)
}

/// A big-endian word of 64 bits.
pub(crate) const fn be64(at: usize) -> Bits {
    bytes(at, 8)
}

/// A run of bytes: an address, a table, or a number of unusual length.
pub(crate) const fn bytes(at: usize, len: usize) -> Bits {
    Bits { start: at * 8, width: len * 8 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bits_are_counted_as_the_tables_do() {
        let record = [0x12, 0x34, 0x56, 0x78, 0x9a];
        assert_eq!(be32(0).bits(31, 28).get(&record), 0x1);
        assert_eq!(be32(0).bits(27, 8).get(&record), 0x23456);
        assert_eq!(be32(1).bits(23, 0).get(&record), 0x56_789a);
        assert_eq!(bytes(1, 3).get(&record), 0x34_5678);
    }

    proptest! {
        #[test]
        fn what_is_put_is_got_and_nothing_else_changes(
            record in any::<[u8; 16]>(),
            (start, width) in (0usize..64, 1usize..=64),
            value in any::<u64>(),
        ) {
            let at = Bits { start, width };
            let mut changed = record;
            at.put(&mut changed, value);
            prop_assert_eq!(at.get(&changed), value & at.max());
            at.put(&mut changed, at.get(&record));
            prop_assert_eq!(changed, record);
        }
    }
}
