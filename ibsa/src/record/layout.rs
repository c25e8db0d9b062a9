//! How a record is declared: fields with their places and mask bits, once.

use std::fmt;

use ibwire::DecodeError;
use ibwire::mad::AttributeId;

use super::template::InvalidField;

/// Fields at fixed places: a record, or a part that several records share.
pub trait Layout: Clone + fmt::Debug + Default + PartialEq + Send + Sync + 'static {
    /// What it is called.
    const NAME: &'static str;
    /// Bytes that its fields take.
    const LEN: usize;

    /// Reads it from bytes that are known to be enough.
    #[doc(hidden)]
    fn read_from(bytes: &[u8]) -> Self;

    /// Writes it over the first [`LEN`](Self::LEN) bytes of `out`, reserved fields as 0. Of a number that is too wide for its
    /// field the low bits are written; see [`check`](Self::check).
    ///
    /// # Panics
    /// If `out` is shorter.
    fn write_to(&self, out: &mut [u8]);

    /// Whether every number fits its field.
    ///
    /// # Errors
    /// [`InvalidField`] names the first that does not.
    fn check(&self) -> Result<(), InvalidField>;

    /// Prints the fields, one a line.
    #[doc(hidden)]
    fn show_fields(&self, f: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result;

    /// Reads it from the first [`LEN`](Self::LEN) bytes; what follows is not looked at, and reserved fields are ignored.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if there are fewer bytes.
    fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() < Self::LEN {
            return Err(DecodeError::Truncated { what: Self::NAME, need: Self::LEN, have: bytes.len() });
        }
        Ok(Self::read_from(bytes))
    }

    /// It as it stands on the wire, [`LEN`](Self::LEN) bytes.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; Self::LEN];
        self.write_to(&mut bytes);
        bytes
    }
}

/// A record: a layout that is an attribute of the SA.
pub trait Record: Layout + fmt::Display {
    /// Its attribute.
    const ATTRIBUTE: AttributeId;

    /// Whether it is one of those that were asked for by the components of `mask`, as far as that can be told: SAs have answered
    /// with more (spec/sa.md T26, T27). Only components that name a record count. A LID does not, which may be any of those of
    /// a port.
    fn is_named(&self, wanted: &Self, mask: u64) -> bool {
        let _ = (wanted, mask); // most have none but the LID
        true
    }
}

/// A layout whose fields have bits in a component mask.
pub trait Masked: Layout {
    /// Whether this is what `wanted` asks for: every field whose bit `mask` has is the same. A value with a selector is not
    /// looked at, because what is less or more depends on the field.
    fn matches(&self, wanted: &Self, mask: u64) -> bool;
}

/// Declares a layout: a struct, its codec, its printed form and the setters of its [`Template`](super::Template).
///
/// Each field is `name: Type = place => mask;`, and `mask` is one of
/// - `mask(n)`: bit n of the component mask;
/// - `each(n)`: an array with a bit for each element from n on;
/// - `inner(n)`: a layout within, whose bit 0 is bit n here;
/// - `selector`: the selector of the next field;
/// - `selected(s, n)`: a value whose selector is the field `s`, bit n for that and n + 1 for the value;
/// - `unmasked`: no bit at all.
///
/// With `, secret` behind it, it is a key that gives rights: the `Debug` form does not show it.
macro_rules! layout {
    (
        $(#[$meta:meta])*
        pub struct $layout:ident, $what:literal, $len:literal bytes {
            $( $(#[$field_meta:meta])* $field:ident: $ty:ty = $at:expr => $kind:ident $(($($mask:tt)*))? $(, $secret:ident)?; )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, Hash)]
        pub struct $layout {
            $( $(#[$field_meta])* pub $field: $ty, )*
        }

        impl std::fmt::Debug for $layout {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut shown = f.debug_struct(stringify!($layout));
                $( shown.field(stringify!($field), $crate::record::layout::shown!(&self.$field $(, $secret)?)); )*
                shown.finish()
            }
        }

        impl $crate::record::Layout for $layout {
            const NAME: &'static str = $what;
            const LEN: usize = $len;

            fn read_from(bytes: &[u8]) -> Self {
                Self { $( $field: $crate::record::value::Value::read(bytes, const { $at }), )* }
            }

            fn write_to(&self, out: &mut [u8]) {
                let out = &mut out[..$len];
                out.fill(0);
                $( $crate::record::value::Value::write(&self.$field, out, const { $at }); )*
            }

            fn check(&self) -> Result<(), $crate::record::InvalidField> {
                $( if let Some(excess) = $crate::record::value::Value::excess(&self.$field, const { $at }) {
                    return Err($crate::record::InvalidField::new($what, stringify!($field), excess));
                } )*
                Ok(())
            }

            fn show_fields(&self, f: &mut std::fmt::Formatter<'_>, depth: usize) -> std::fmt::Result {
                $( $crate::record::value::Value::show(&self.$field, f, depth, stringify!($field))?; )*
                Ok(())
            }
        }

        impl $crate::record::Masked for $layout {
            fn matches(&self, wanted: &Self, mask: u64) -> bool {
                let _ = (wanted, mask); // not every layout has masked fields
                true $( && $crate::record::layout::same!(self, wanted, mask, $field => $kind $(($($mask)*))?) )*
            }
        }

        impl Default for $layout {
            /// All bits zero.
            fn default() -> Self {
                $crate::record::Layout::read_from(&[0; $len])
            }
        }

        impl std::fmt::Display for $layout {
            /// One line; with `{:#}` a line for each field.
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                if f.alternate() {
                    writeln!(f, "{}:", $what)?;
                    $crate::record::Layout::show_fields(self, f, 2)
                } else {
                    self.line(f)
                }
            }
        }

        impl $crate::record::Template<$layout> {
            $( $crate::record::layout::setter! {
                { $(#[$field_meta])* } $layout, $what, $field: $ty = $at => $kind $(($($mask)*))?
            } )*
        }
    };
}

/// The setter of one field.
macro_rules! setter {
    ({ $(#[$meta:meta])* } $layout:ident, $what:literal, $field:ident: $ty:ty = $at:expr => mask($bit:literal)) => {
        $crate::record::layout::setter! {
            @value { $(#[$meta])* } $what, $field: $ty = $at, 1 << $bit
        }
    };
    (@value { $(#[$meta:meta])* } $what:literal, $field:ident: $ty:ty = $at:expr, $mask:expr) => {
        $(#[$meta])*
        pub fn $field(mut self, value: impl $crate::record::value::IntoField<$ty>) -> Self {
            match $crate::record::value::in_field::<$ty>(value, const { $at }) {
                Ok(value) => self.record.$field = value,
                Err(excess) => self.refuse($crate::record::InvalidField::new($what, stringify!($field), excess)),
            }
            self.mask |= $mask;
            self
        }
    };
    ({ $(#[$meta:meta])* } $layout:ident, $what:literal, $field:ident: $ty:ty = $at:expr => each($bit:literal)) => {
        $(#[$meta])*
        ///
        /// Sets one element; an `index` that is not there is refused when the template is used.
        pub fn $field(
            mut self,
            index: usize,
            value: impl $crate::record::value::IntoField<<$ty as $crate::record::value::Elements>::Element>,
        ) -> Self {
            const COUNT: usize = <$ty as $crate::record::value::Elements>::COUNT;
            let value = match index < COUNT {
                true => $crate::record::value::in_field(value, const { $at.part(0, COUNT) }),
                false => Err((index as u64, COUNT as u64 - 1)),
            };
            match value {
                Ok(value) => {
                    self.record.$field[index] = value;
                    self.mask |= 1 << ($bit + index);
                }
                Err(excess) => self.refuse($crate::record::InvalidField::new($what, stringify!($field), excess)),
            }
            self
        }
    };
    ({ $(#[$meta:meta])* } $layout:ident, $what:literal, $field:ident: $ty:ty = $at:expr => inner($bit:literal)) => {
        $(#[$meta])*
        pub fn $field(
            mut self,
            set: impl FnOnce($crate::record::Template<$ty>) -> $crate::record::Template<$ty>,
        ) -> Self {
            let part = set($crate::record::Template::new());
            self.mask |= part.mask << $bit;
            if let Some(invalid) = part.invalid {
                self.refuse(invalid);
            }
            self.record.$field = part.record;
            self
        }
    };
    ({ $(#[$meta:meta])* } $layout:ident, $what:literal, $field:ident: $ty:ty = $at:expr => selected($selector:ident, $bit:literal)) => {
        $(#[$meta])*
        pub fn $field(mut self, wanted: $crate::record::Is<$ty>) -> Self {
            let (selector, value) = wanted.parts();
            self.record.$selector = selector;
            match $crate::record::value::in_field::<$ty>(value, const { $at }) {
                Ok(value) => self.record.$field = value,
                Err(excess) => self.refuse($crate::record::InvalidField::new($what, stringify!($field), excess)),
            }
            self.mask |= 0b11 << $bit;
            self
        }
    };
    ({ $(#[$meta:meta])* } $layout:ident, $what:literal, $field:ident: $ty:ty = $at:expr => selector) => {};
    ({ $(#[$meta:meta])* } $layout:ident, $what:literal, $field:ident: $ty:ty = $at:expr => unmasked) => {};
}

/// What the `Debug` form of a layout shows of one field.
macro_rules! shown {
    ($value:expr) => {
        $value
    };
    ($value:expr, secret) => {
        &format_args!("..")
    };
}

/// Whether one field is as wanted.
macro_rules! same {
    ($a:ident, $b:ident, $mask:ident, $field:ident => mask($bit:literal)) => {
        ($mask >> $bit & 1 == 0 || $a.$field == $b.$field)
    };
    ($a:ident, $b:ident, $mask:ident, $field:ident => each($bit:literal)) => {{
        let pairs = $a.$field.iter().zip(&$b.$field).enumerate();
        pairs.into_iter().all(|(at, (a, b))| $mask >> ($bit + at) & 1 == 0 || a == b)
    }};
    ($a:ident, $b:ident, $mask:ident, $field:ident => inner($bit:literal)) => {
        $crate::record::Masked::matches(&$a.$field, &$b.$field, $mask >> $bit)
    };
    ($a:ident, $b:ident, $mask:ident, $field:ident => $other:ident $(($($rest:tt)*))?) => {
        true
    };
}

pub(super) use layout;
pub(super) use same;
pub(super) use setter;
pub(super) use shown;
