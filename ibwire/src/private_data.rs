//! The private data area of a CM message.

use std::fmt;
use std::ops::Deref;

/// The private data of a CM message with room for `N` bytes.
///
/// The wire has no length: a peer always sees all `N` bytes, zero-padded. An array that is too long does not
/// compile; slices go through [`PrivateData::new`].
///
/// ```
/// use ibwire::PrivateData;
/// let hello = PrivateData::<92>::from(b"hello");
/// assert_eq!(hello.len(), 92);
/// assert_eq!(hello.trimmed(), b"hello");
/// assert!(PrivateData::<92>::new(&[0; 93]).is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrivateData<const N: usize>([u8; N]);

/// The slice does not fit the message's private data area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("private data of {len} bytes, the message has room for {max}")]
pub struct PrivateDataTooLong {
    /// Length of the refused slice in bytes.
    pub len: usize,
    /// Room in the message in bytes.
    pub max: usize,
}

impl<const N: usize> PrivateData<N> {
    /// All zero.
    pub const EMPTY: Self = Self([0; N]);

    /// Copies `data` and pads it with zeros.
    ///
    /// # Errors
    /// [`PrivateDataTooLong`] if `data` is longer than `N` bytes.
    pub const fn new(data: &[u8]) -> Result<Self, PrivateDataTooLong> {
        if data.len() > N {
            return Err(PrivateDataTooLong { len: data.len(), max: N });
        }
        Ok(Self::padded(data))
    }

    /// Wraps the whole area as a peer sent it.
    pub const fn from_area(area: [u8; N]) -> Self {
        Self(area)
    }

    /// All bytes of the area.
    pub const fn as_bytes(&self) -> &[u8; N] {
        &self.0
    }

    /// The area without its trailing zeros. Zeros that the peer meant are lost too.
    pub fn trimmed(&self) -> &[u8] {
        let end = self.0.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1);
        &self.0[..end]
    }

    const fn padded(data: &[u8]) -> Self {
        let mut area = [0; N];
        area.split_at_mut(data.len()).0.copy_from_slice(data);
        Self(area)
    }
}

impl<const N: usize, const M: usize> From<&[u8; M]> for PrivateData<N> {
    fn from(data: &[u8; M]) -> Self {
        const { assert!(M <= N, "more private data than the message has room for") };
        Self::padded(data)
    }
}

impl<const N: usize> Default for PrivateData<N> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<const N: usize> Deref for PrivateData<N> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<const N: usize> AsRef<[u8]> for PrivateData<N> {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// What is in it is the programs' affair, and may be a key.
impl<const N: usize> fmt::Debug for PrivateData<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateData<{N}>({} bytes)", self.trimmed().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cm_t56_the_tail_is_zero() {
        let data = PrivateData::<8>::new(b"abc").unwrap();
        assert_eq!(&data[..], b"abc\0\0\0\0\0");
        assert_eq!(format!("{data:?}"), "PrivateData<8>(3 bytes)");
    }

    #[test]
    fn cm_t55_too_long_is_refused() {
        assert!(PrivateData::<92>::new(&[1; 92]).is_ok());
        assert_eq!(PrivateData::<92>::new(&[1; 93]), Err(PrivateDataTooLong { len: 93, max: 92 }));
    }
}
