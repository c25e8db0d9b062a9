//! Values that the shell refuses itself.

use std::time::Duration;

use ibwire::PrivateDataTooLong;

use crate::proto::{Invalid, Limit, Value};

impl Invalid {
    /// `value` is less than `least`.
    pub(crate) const fn at_least(field: &'static str, value: u64, least: u64) -> Self {
        Self::new(field, Value::Number(value), Limit::AtLeast(Value::Number(least)))
    }

    /// `len` is more than `most`.
    pub(crate) const fn above(field: &'static str, len: usize, most: usize) -> Self {
        Self::new(field, Value::Number(len as u64), Limit::AtMost(Value::Number(most as u64)))
    }

    /// A time that has to be more than zero.
    pub(crate) fn more_than_zero(field: &'static str, time: Duration) -> Result<(), Self> {
        match time.is_zero() {
            true => Err(Self::new(field, Value::Time(time), Limit::Must("more than zero"))),
            false => Ok(()),
        }
    }

    /// A time that may not be less than `least`.
    pub(crate) fn not_less(field: &'static str, time: Duration, least: Duration) -> Result<(), Self> {
        match time < least {
            true => Err(Self::new(field, Value::Time(time), Limit::AtLeast(Value::Time(least)))),
            false => Ok(()),
        }
    }
}

impl From<PrivateDataTooLong> for Invalid {
    fn from(error: PrivateDataTooLong) -> Self {
        Self::above("private data length", error.len, error.max)
    }
}
