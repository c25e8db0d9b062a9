//! What all fixed-size headers share: from bytes to the layout struct to the value, and back.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::DecodeError;

/// The first bytes of `bytes` as the layout struct of `what`.
#[inline]
pub(crate) fn prefix<'a, L>(what: &'static str, bytes: &'a [u8]) -> Result<&'a L, DecodeError>
where
    L: FromBytes + Immutable + KnownLayout + Unaligned,
{
    match L::ref_from_prefix(bytes) {
        Ok((layout, _)) => Ok(layout),
        Err(_) => Err(DecodeError::Truncated { what, need: size_of::<L>(), have: bytes.len() }),
    }
}

/// A 24-bit field.
#[inline]
pub(crate) const fn u24(bytes: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]])
}

/// The low 24 bits of `value` as a field.
#[inline]
pub(crate) const fn u24_bytes(value: u32) -> [u8; 3] {
    let [_, a, b, c] = value.to_be_bytes();
    [a, b, c]
}

/// Gives a value its length and its codec.
///
/// `$layout` is the private zerocopy struct with the shape of the wire; `$value` has the two halves of the
/// translation, `decode(&$layout) -> Result<Self, DecodeError>` and `encode(&self) -> $layout`.
macro_rules! codec {
    ($value:ident, $layout:ident, $len:literal, $what:literal) => {
        const _: () = assert!(size_of::<$layout>() == $len);

        impl $value {
            #[doc = concat!("Length of the ", $what, " in bytes.")]
            pub const LEN: usize = $len;

            #[doc = concat!("Reads the ", $what, " from the first ", $len, " bytes; what follows is not looked at.")]
            ///
            /// # Errors
            /// [`DecodeError`](crate::DecodeError) if there are fewer bytes, or if they have another version.
            #[inline]
            pub fn parse(bytes: &[u8]) -> Result<Self, crate::DecodeError> {
                Self::decode($crate::codec::prefix::<$layout>($what, bytes)?)
            }

            #[doc = concat!("The ", $what, " as it stands on the wire.")]
            #[inline]
            pub fn to_bytes(&self) -> [u8; $len] {
                zerocopy::transmute!(self.encode())
            }

            #[doc = concat!("Writes the ", $what, " over the first ", $len, " bytes of `out`.")]
            ///
            /// # Panics
            #[doc = concat!("If `out` is shorter than ", $len, " bytes.")]
            #[inline]
            pub fn write_to(&self, out: &mut [u8]) {
                out[..Self::LEN].copy_from_slice(&self.to_bytes());
            }
        }
    };
}

pub(crate) use codec;
