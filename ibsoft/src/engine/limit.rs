//! Limits of the device.

use ibdev::DeviceError;

/// # Errors
/// [`DeviceError::Limit`] for a value beyond the limit.
pub(super) fn at_most(
    what: &'static str,
    value: impl Into<u64>,
    limit: impl Into<u64>,
) -> Result<(), DeviceError> {
    let (value, limit) = (value.into(), limit.into());
    if value > limit { Err(DeviceError::Limit { what, value, limit }) } else { Ok(()) }
}

/// # Errors
/// [`DeviceError::Limit`] if there may not be one more.
pub(super) fn one_more(what: &'static str, have: usize, limit: usize) -> Result<(), DeviceError> {
    at_most(what, have as u64 + 1, limit as u64)
}
