//! A record with the mask of what counts in it: what a query asks for.

use ibwire::Selector;

use super::bits::byte;
use super::layout::Layout;
use super::value::Value;

/// A number does not fit its field. Nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{record} {field} is {value}, at most {limit} is possible")]
#[non_exhaustive]
pub struct InvalidField {
    /// The record.
    pub record: &'static str,
    /// The field; for an array the index may be what is wrong.
    pub field: &'static str,
    /// What it was set to; for a text its length.
    pub value: u64,
    /// The largest that is possible.
    pub limit: u64,
}

impl InvalidField {
    pub(crate) fn new(record: &'static str, field: &'static str, (value, limit): (u64, u64)) -> Self {
        Self { record, field, value, limit }
    }
}

/// How what is found shall compare with a value (spec/sa.md 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Is<T> {
    /// More than the value.
    GreaterThan(T),
    /// Less than the value.
    LessThan(T),
    /// The value itself.
    Exactly(T),
    /// The largest MTU or rate there is, the shortest lifetime.
    Best,
}

impl<T: Value> Is<T> {
    pub(crate) fn parts(self) -> (Selector, T) {
        match self {
            Self::GreaterThan(value) => (Selector::GreaterThan, value),
            Self::LessThan(value) => (Selector::LessThan, value),
            Self::Exactly(value) => (Selector::Exactly, value),
            Self::Best => (Selector::Best, T::read(&[0], byte(0))),
        }
    }
}

/// The fields that a query names. Each setter sets its field and the field's bits of the component mask.
///
/// A value that does not fit its field is remembered and refused by [`checked`](Self::checked), which everything that sends
/// a template asks first.
///
/// ```
/// use ibsa::record::{LinkRecord, Template};
///
/// let from_lid_7 = Template::<LinkRecord>::new().from_lid(7).from_port(1);
/// assert_eq!(from_lid_7.mask(), 0b11);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Template<L> {
    pub(super) record: L,
    pub(super) mask: u64,
    pub(super) invalid: Option<InvalidField>,
}

impl<L: Layout> Template<L> {
    /// Nothing is named: every record matches.
    pub fn new() -> Self {
        Self { record: L::default(), mask: 0, invalid: None }
    }

    /// `record`, of which the fields of `mask` count. For masks that the setters do not make.
    pub fn with_mask(record: L, mask: u64) -> Self {
        let invalid = record.check().err();
        Self { record, mask, invalid }
    }

    /// The component mask.
    pub const fn mask(&self) -> u64 {
        self.mask
    }

    /// The record and its mask.
    ///
    /// # Errors
    /// [`InvalidField`]: the first value that a setter was given and that does not fit.
    pub fn checked(self) -> Result<(L, u64), InvalidField> {
        match self.invalid {
            Some(invalid) => Err(invalid),
            None => Ok((self.record, self.mask)),
        }
    }

    pub(super) fn refuse(&mut self, invalid: InvalidField) {
        self.invalid.get_or_insert(invalid);
    }
}

impl<L: Layout> Default for Template<L> {
    fn default() -> Self {
        Self::new()
    }
}
