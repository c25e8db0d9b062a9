//! A value out of range, refused at the call that brought it.

use std::fmt;
use std::time::Duration;

use ibwire::{Gid, Lid, Mtu, PKey, Qpn, ServiceId};

use super::transport::Transport;

/// A command was given a value that it cannot take. Nothing was sent and nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}, {limit}")]
#[non_exhaustive]
pub struct Invalid {
    /// Which value.
    pub field: &'static str,
    /// What it was.
    pub value: Value,
    /// What it may be.
    pub limit: Limit,
}

/// A value that was refused, or the limit that it broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// A number or a count.
    Number(u64),
    /// A length of time.
    Time(Duration),
    /// A GID.
    Gid(Gid),
    /// A LID.
    Lid(Lid),
    /// A partition key.
    PKey(PKey),
    /// A path MTU.
    Mtu(Mtu),
    /// A queue pair number.
    Qpn(Qpn),
    /// A service ID.
    ServiceId(ServiceId),
    /// A transport.
    Transport(Transport),
}

/// What a value may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// The largest that is allowed.
    AtMost(Value),
    /// The smallest that is allowed.
    AtLeast(Value),
    /// In words.
    Must(&'static str),
}

impl Invalid {
    pub(crate) const fn new(field: &'static str, value: Value, limit: Limit) -> Self {
        Self { field, value, limit }
    }

    /// Refuses `value` above `max`.
    pub(crate) fn at_most(
        field: &'static str,
        value: impl Into<u64>,
        max: impl Into<u64>,
    ) -> Result<(), Self> {
        let (value, max) = (value.into(), max.into());
        if value <= max {
            return Ok(());
        }
        Err(Self::new(field, Value::Number(value), Limit::AtMost(Value::Number(max))))
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Time(time) => write!(f, "{time:?}"),
            Self::Gid(gid) => gid.fmt(f),
            Self::Lid(lid) => lid.fmt(f),
            Self::PKey(pkey) => pkey.fmt(f),
            Self::Mtu(mtu) => mtu.fmt(f),
            Self::Qpn(qpn) => qpn.fmt(f),
            Self::ServiceId(id) => id.fmt(f),
            Self::Transport(transport) => transport.fmt(f),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "at most {most} is allowed"),
            Self::AtLeast(least) => write!(f, "at least {least} is needed"),
            Self::Must(words) => write!(f, "it must be {words}"),
        }
    }
}
