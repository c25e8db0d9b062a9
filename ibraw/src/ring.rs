//! Sizes of a ring of received frames.

use std::time::Duration;

use ibcm_sys::packet::RingSpec;

use crate::RawError;

/// Memory that the kernel puts frames in, for [`BindEther::ring`](crate::BindEther::ring): a row of blocks, each of which it
/// hands over when it is full, or a short time after its first frame.
///
/// It costs a reader much less than a system call for each batch, and has room for bursts; but a frame that comes alone
/// arrives later by that time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ring {
    bytes: usize,
    block: usize,
    delay: Duration,
}

impl Ring {
    /// What blocks are a multiple of, so that they are one of the page's size, too.
    const UNIT: usize = 64 << 10;
    const LARGEST: usize = 1 << 30;
    const LONGEST: Duration = Duration::from_secs(1);

    /// A ring of so many bytes, rounded down to whole blocks: two blocks to 1 GiB. In blocks of 256 KiB, handed over after 1 ms
    /// at the latest.
    pub fn new(bytes: usize) -> Self {
        Self { bytes, block: 4 * Self::UNIT, delay: Duration::from_millis(1) }
    }

    /// Bytes of a block, a multiple of 64 KiB. A frame that is longer than a block is cut. The time until the reader takes a
    /// block again counts for the whole block, so they should be many.
    #[must_use]
    pub fn block(mut self, bytes: usize) -> Self {
        self.block = bytes;
        self
    }

    /// How long the kernel keeps a block that is not full, rounded up to whole milliseconds: at most 1 s.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    pub(crate) fn spec(&self) -> Result<RingSpec, RawError> {
        let invalid = |field, value: usize, limit: usize| {
            Err(RawError::Invalid { field, value: value as u64, limit: limit as u64 })
        };
        if self.block == 0 || !self.block.is_multiple_of(Self::UNIT) {
            return invalid("block of a ring, which is a multiple of the limit,", self.block, Self::UNIT);
        }
        if self.bytes > Self::LARGEST {
            return invalid("bytes of a ring", self.bytes, Self::LARGEST);
        }
        if self.bytes / self.block < 2 {
            return invalid("bytes of a ring, which has two blocks at least,", self.bytes, 2 * self.block);
        }
        if self.delay > Self::LONGEST {
            let limit = Self::LONGEST.as_millis() as usize;
            return invalid(
                "milliseconds until a block is handed over",
                self.delay.as_millis() as usize,
                limit,
            );
        }
        let retire_ms = self.delay.as_nanos().div_ceil(1_000_000).max(1) as u32;
        Ok(RingSpec { block_len: self.block as u32, blocks: (self.bytes / self.block) as u32, retire_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_blocks() {
        let spec = Ring::new((1 << 20) + 9).spec().unwrap();
        assert_eq!(spec, RingSpec { block_len: 256 << 10, blocks: 4, retire_ms: 1 });
        let spec = Ring::new(128 << 10).block(64 << 10).delay(Duration::from_micros(1001)).spec().unwrap();
        assert_eq!(spec, RingSpec { block_len: 64 << 10, blocks: 2, retire_ms: 2 });
        let (mib, late) = (Ring::new(1 << 20), Duration::from_millis(1001));
        for ring in
            [mib.block(0), mib.block(4096), mib.block(1 << 20), Ring::new((1 << 30) + 1), mib.delay(late)]
        {
            assert!(matches!(ring.spec(), Err(RawError::Invalid { .. })), "{ring:?}");
        }
    }
}
