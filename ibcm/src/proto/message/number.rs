//! Fields narrower than a byte or with no newtype of their own in `ibwire`.

use std::fmt;

/// Declares a number narrower than its carrier.
macro_rules! narrow {
    ($(#[$doc:meta])* $name:ident($carrier:ty), $max:literal, $text:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name($carrier);

        impl $name {
            /// The largest value.
            pub const MAX: Self = Self($max);

            /// The number, or `None` if it does not fit the field.
            pub const fn new(raw: $carrier) -> Option<Self> {
                if raw <= $max { Some(Self(raw)) } else { None }
            }

            /// The low bits of `raw` that fit the field.
            pub const fn truncate(raw: $carrier) -> Self {
                Self(raw & $max)
            }

            /// The plain number.
            pub const fn get(self) -> $carrier {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $text, self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}

narrow! {
    /// The OUI of the vendor whose enhanced connection establishment (ECE) options a message carries, 24 bits; 0: none.
    VendorId(u32), 0xff_ffff, "{:#08x}"
}

narrow! {
    /// An end-to-end context number of reliable datagrams, 24 bits. XRC keeps its target QPN here.
    Eecn(u32), 0xff_ffff, "{:#08x}"
}

narrow! {
    /// How often a QP re-sends before it gives up, 3 bits.
    RetryCount(u8), 7, "{}"
}

impl RetryCount {
    /// As an RNR retry count: for ever.
    pub const RNR_INFINITE: Self = Self(7);
}

narrow! {
    /// How often a CM message is re-sent, the first transmission not counted, 4 bits.
    CmRetries(u8), 15, "{}"
}

/// A 24-bit field.
pub(super) const fn u24([a, b, c]: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, a, b, c])
}

/// The bytes of a 24-bit field.
pub(super) const fn u24_bytes(value: u32) -> [u8; 3] {
    let [_, a, b, c] = value.to_be_bytes();
    [a, b, c]
}
