//! By which bytes of its private data a request finds its listener.

use std::fmt;

use ibwire::PrivateData;

use super::invalid::{Invalid, Limit, Value};

/// Bytes that stand at a certain place of a REQ's private data (spec/cm.md 4.12).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Discriminator {
    offset: u8,
    len: u8,
    /// The pattern, then zeros.
    bytes: PrivateData<92>,
}

impl Discriminator {
    /// What the private data of a REQ holds, bytes.
    const AREA: usize = 92;

    /// `pattern` at `offset`, counted from the first byte of the REQ's private data.
    ///
    /// # Errors
    /// [`Invalid`] if the pattern is empty, or if its end is behind byte 92.
    pub fn new(offset: usize, pattern: &[u8]) -> Result<Self, Invalid> {
        Self::within(offset, pattern, 0)
    }

    /// The same in the area behind the first `head` bytes, from which `offset` counts.
    pub(crate) fn within(offset: usize, pattern: &[u8], head: usize) -> Result<Self, Invalid> {
        if pattern.is_empty() {
            let least = Limit::AtLeast(Value::Number(1));
            return Err(Invalid::new("discriminator length", Value::Number(0), least));
        }
        let end = offset.saturating_add(pattern.len());
        let most = Self::AREA - head;
        Invalid::at_most("end of the discriminator", end as u64, most as u64)?;
        let mut bytes = [0; Self::AREA];
        bytes[..pattern.len()].copy_from_slice(pattern);
        let bytes = PrivateData::from_area(bytes);
        // Neither is above 92.
        Ok(Self { offset: (head + offset) as u8, len: pattern.len() as u8, bytes })
    }

    /// Where the pattern begins.
    pub const fn offset(&self) -> usize {
        self.offset as usize
    }

    /// The pattern.
    pub fn pattern(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Whether this private data has the pattern in its place.
    pub fn matches(&self, private_data: &PrivateData<92>) -> bool {
        private_data[self.offset()..].starts_with(self.pattern())
    }
}

impl fmt::Debug for Discriminator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Discriminator")
            .field("offset", &self.offset)
            .field("pattern", &self.pattern())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cm_t81_offset_and_length_stay_in_the_area() {
        assert_eq!(Discriminator::new(0, &[7; 92]).unwrap().pattern(), [7; 92]);
        assert_eq!(Discriminator::new(91, &[7]).unwrap().offset(), 91);
        for (offset, len, end) in [(0, 93, 93), (92, 1, 93), (91, 2, 93), (usize::MAX, 1, u64::MAX)] {
            let error = Discriminator::new(offset, &vec![7; len]).unwrap_err();
            let words = format!("end of the discriminator is {end}, at most 92 is allowed");
            assert_eq!(error.to_string(), words);
        }
        let error = Discriminator::new(3, &[]).unwrap_err();
        assert_eq!(error.to_string(), "discriminator length is 0, at least 1 is needed");
        assert_eq!(Discriminator::within(55, &[7], 36).unwrap().offset(), 91);
        let error = Discriminator::within(56, &[7], 36).unwrap_err();
        assert_eq!(error.to_string(), "end of the discriminator is 57, at most 56 is allowed");
    }

    #[test]
    fn the_pattern_counts_in_its_place_only() {
        let at_the_end = Discriminator::new(90, b"ab").unwrap();
        let mut area = [0; 92];
        area[90..].copy_from_slice(b"ab");
        assert!(at_the_end.matches(&PrivateData::from_area(area)));
        assert!(!at_the_end.matches(&PrivateData::from(b"ab")));
        assert!(Discriminator::new(0, b"ab").unwrap().matches(&PrivateData::from(b"abc")));
    }
}
