//! What a field may hold, and what a setter takes for it.

use std::fmt;

use ibwire::{
    FlowLabel, Gid, Guid, Lid, Mtu, PKey, PacketLifeTime, QKey, Qpn, Rate, Selector, ServiceId, ServiceLevel,
    TimeCode,
};

use super::bits::Bits;
use super::layout::Layout;

/// The type of a field.
pub trait Value: Sized {
    /// The value at this place. `bytes` is as long as the record.
    #[doc(hidden)]
    fn read(bytes: &[u8], at: Bits) -> Self;

    /// Writes as much of the value as the field holds.
    #[doc(hidden)]
    fn write(&self, bytes: &mut [u8], at: Bits);

    /// The number that does not fit, and the largest that would.
    #[doc(hidden)]
    fn excess(&self, at: Bits) -> Option<(u64, u64)>;

    /// Prints the field on lines of its own.
    #[doc(hidden)]
    fn show(&self, f: &mut fmt::Formatter<'_>, depth: usize, name: &str) -> fmt::Result;
}

/// What a setter takes for a field of type `T`: a `T`, or the plain number.
pub trait IntoField<T> {
    /// The value, or the number and the largest that the field's type has.
    #[doc(hidden)]
    fn into_field(self) -> Result<T, (u64, u64)>;
}

impl<T: Value> IntoField<T> for T {
    fn into_field(self) -> Result<T, (u64, u64)> {
        Ok(self)
    }
}

/// A line of `{:#}`: the field's name, dots, the value.
pub(super) fn field_line(
    f: &mut fmt::Formatter<'_>,
    depth: usize,
    name: &str,
    value: impl fmt::Display,
) -> fmt::Result {
    writeln!(f, "{:depth$}{name:.<24} {value}", "")
}

/// Fields that are numbers: how they become one and come from one.
macro_rules! number {
    ($($ty:ty: $from:expr, $into:expr;)*) => { $(
        impl $crate::record::value::Value for $ty {
            fn read(bytes: &[u8], at: $crate::record::bits::Bits) -> Self {
                #[allow(clippy::redundant_closure_call)]
                $from(at.get(bytes))
            }

            fn write(&self, bytes: &mut [u8], at: $crate::record::bits::Bits) {
                #[allow(clippy::redundant_closure_call)]
                at.put(bytes, $into(self));
            }

            fn excess(&self, at: $crate::record::bits::Bits) -> Option<(u64, u64)> {
                #[allow(clippy::redundant_closure_call)]
                let number: u64 = $into(self);
                (number > at.max()).then(|| (number, at.max()))
            }

            fn show(&self, f: &mut std::fmt::Formatter<'_>, depth: usize, name: &str) -> std::fmt::Result {
                $crate::record::value::field_line(f, depth, name, self)
            }
        }
    )* };
}
pub(super) use number;

number! {
    bool: |raw| raw != 0, |value: &bool| u64::from(*value);
    u8: |raw| raw as u8, |value: &u8| u64::from(*value);
    u16: |raw| raw as u16, |value: &u16| u64::from(*value);
    u32: |raw| raw as u32, |value: &u32| u64::from(*value);
    u64: |raw| raw, |value: &u64| *value;
    Lid: |raw| Lid(raw as u16), |value: &Lid| u64::from(value.0);
    Guid: Guid, |value: &Guid| value.0;
    PKey: |raw| PKey(raw as u16), |value: &PKey| u64::from(value.0);
    QKey: |raw| QKey(raw as u32), |value: &QKey| u64::from(value.0);
    Qpn: |raw| Qpn::truncate(raw as u32), |value: &Qpn| u64::from(value.get());
    ServiceId: ServiceId, |value: &ServiceId| value.0;
    FlowLabel: |raw| FlowLabel::truncate(raw as u32), |value: &FlowLabel| u64::from(value.get());
    ServiceLevel: |raw| ServiceLevel::truncate(raw as u8), |value: &ServiceLevel| u64::from(value.get());
    TimeCode: |raw| TimeCode::truncate(raw as u8), |value: &TimeCode| u64::from(value.get());
    PacketLifeTime: |raw| PacketLifeTime::truncate(raw as u8), |value: &PacketLifeTime| u64::from(value.get());
    Mtu: |raw| Mtu(raw as u8), |value: &Mtu| u64::from(value.0);
    Rate: |raw| Rate(raw as u8), |value: &Rate| u64::from(value.0);
}

impl Value for Selector {
    fn read(bytes: &[u8], at: Bits) -> Self {
        match at.get(bytes) {
            0 => Self::GreaterThan,
            1 => Self::LessThan,
            2 => Self::Exactly,
            _ => Self::Best,
        }
    }

    fn write(&self, bytes: &mut [u8], at: Bits) {
        at.put(bytes, *self as u64);
    }

    fn excess(&self, _at: Bits) -> Option<(u64, u64)> {
        None
    }

    fn show(&self, f: &mut fmt::Formatter<'_>, depth: usize, name: &str) -> fmt::Result {
        let word = match self {
            Self::GreaterThan => "more than",
            Self::LessThan => "less than",
            Self::Exactly => "exactly",
            Self::Best => "best",
        };
        field_line(f, depth, name, word)
    }
}

impl Value for Gid {
    fn read(bytes: &[u8], at: Bits) -> Self {
        let mut gid = Self::UNSPECIFIED;
        gid.0.copy_from_slice(&bytes[at.byte()..at.byte() + 16]);
        gid
    }

    fn write(&self, bytes: &mut [u8], at: Bits) {
        bytes[at.byte()..at.byte() + 16].copy_from_slice(&self.0);
    }

    fn excess(&self, _at: Bits) -> Option<(u64, u64)> {
        None
    }

    fn show(&self, f: &mut fmt::Formatter<'_>, depth: usize, name: &str) -> fmt::Result {
        field_line(f, depth, name, self)
    }
}

/// Text of at most `N` bytes, padded with NULs: what follows the first NUL is not part of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<const N: usize>([u8; N]);

impl<const N: usize> Text<N> {
    /// The text, or `None` if it is longer than `N` bytes.
    pub fn new(text: &str) -> Option<Self> {
        let mut bytes = [0; N];
        bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(Self(bytes))
    }

    /// What stands before the first NUL, of any encoding.
    pub fn as_bytes(&self) -> &[u8] {
        let len = self.0.iter().position(|byte| *byte == 0).unwrap_or(N);
        &self.0[..len]
    }
}

impl<const N: usize> Default for Text<N> {
    /// No text.
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&String::from_utf8_lossy(self.as_bytes()))
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.as_bytes()))
    }
}

impl<const N: usize> Value for Text<N> {
    fn read(bytes: &[u8], at: Bits) -> Self {
        let mut text = [0; N];
        text.copy_from_slice(&bytes[at.byte()..at.byte() + N]);
        Self(text)
    }

    fn write(&self, bytes: &mut [u8], at: Bits) {
        bytes[at.byte()..at.byte() + N].copy_from_slice(&self.0);
    }

    fn excess(&self, _at: Bits) -> Option<(u64, u64)> {
        None
    }

    fn show(&self, f: &mut fmt::Formatter<'_>, depth: usize, name: &str) -> fmt::Result {
        field_line(f, depth, name, self)
    }
}

impl<const N: usize> IntoField<Text<N>> for &str {
    fn into_field(self) -> Result<Text<N>, (u64, u64)> {
        Text::new(self).ok_or((self.len() as u64, N as u64))
    }
}

/// A field of equal elements, which are set one by one.
pub trait Elements {
    /// What they are.
    type Element;
    /// How many there are.
    const COUNT: usize;
}

impl<T, const N: usize> Elements for [T; N] {
    type Element = T;
    const COUNT: usize = N;
}

/// Equal elements, one after another.
impl<T: Value, const N: usize> Value for [T; N] {
    fn read(bytes: &[u8], at: Bits) -> Self {
        std::array::from_fn(|index| T::read(bytes, at.part(index, N)))
    }

    fn write(&self, bytes: &mut [u8], at: Bits) {
        for (index, element) in self.iter().enumerate() {
            element.write(bytes, at.part(index, N));
        }
    }

    fn excess(&self, at: Bits) -> Option<(u64, u64)> {
        self.iter().enumerate().find_map(|(index, element)| element.excess(at.part(index, N)))
    }

    /// One line an element.
    fn show(&self, f: &mut fmt::Formatter<'_>, depth: usize, name: &str) -> fmt::Result {
        for (index, element) in self.iter().enumerate() {
            element.show(f, depth, &format!("{name}[{index}]"))?;
        }
        Ok(())
    }
}

/// A layout within another.
impl<L: Layout> Value for L {
    fn read(bytes: &[u8], at: Bits) -> Self {
        L::read_from(&bytes[at.byte()..])
    }

    fn write(&self, bytes: &mut [u8], at: Bits) {
        self.write_to(&mut bytes[at.byte()..]);
    }

    fn excess(&self, _at: Bits) -> Option<(u64, u64)> {
        self.check().err().map(|invalid| (invalid.value, invalid.limit))
    }

    fn show(&self, f: &mut fmt::Formatter<'_>, depth: usize, name: &str) -> fmt::Result {
        writeln!(f, "{:depth$}{name}:", "")?;
        self.show_fields(f, depth + 2)
    }
}

/// Plain numbers that setters take instead of the type.
macro_rules! plain {
    ($($ty:ident($raw:ty): $from:expr;)*) => { $(
        impl IntoField<$ty> for $raw {
            fn into_field(self) -> Result<$ty, (u64, u64)> {
                #[allow(clippy::redundant_closure_call)]
                $from(self)
            }
        }
    )* };
}

/// A number of a type that is narrower than its carrier.
fn narrow<T>(value: Option<T>, raw: impl Into<u64>, max: impl Into<u64>) -> Result<T, (u64, u64)> {
    value.ok_or((raw.into(), max.into()))
}

plain! {
    Lid(u16): |raw| Ok(Lid(raw));
    Guid(u64): |raw| Ok(Guid(raw));
    PKey(u16): |raw| Ok(PKey(raw));
    QKey(u32): |raw| Ok(QKey(raw));
    ServiceId(u64): |raw| Ok(ServiceId(raw));
    Qpn(u32): |raw| narrow(Qpn::new(raw), raw, Qpn::MAX.get());
    FlowLabel(u32): |raw| narrow(FlowLabel::new(raw), raw, FlowLabel::MAX.get());
    ServiceLevel(u8): |raw| narrow(ServiceLevel::new(raw), raw, ServiceLevel::MAX.get());
}

/// What a setter was given, if it fits the field.
pub(super) fn in_field<T: Value>(value: impl IntoField<T>, at: Bits) -> Result<T, (u64, u64)> {
    let value = value.into_field()?;
    match value.excess(at) {
        Some(excess) => Err(excess),
        None => Ok(value),
    }
}
