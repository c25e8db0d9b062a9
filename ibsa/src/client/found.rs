//! A path and where it comes from.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use ibwire::PathRecord;

/// A path, and whether the SA was asked for it just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundPath {
    record: PathRecord,
    source: PathSource,
}

/// Where a path comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathSource {
    /// The SA, which was asked for it.
    Sa,
    /// The client's cache.
    Cache {
        /// How long before it was found there the SA had answered.
        age: Duration,
    },
}

impl FoundPath {
    pub(super) const fn new(record: PathRecord, source: PathSource) -> Self {
        Self { record, source }
    }

    /// The path alone.
    pub const fn record(&self) -> &PathRecord {
        &self.record
    }

    /// Where it comes from.
    pub const fn source(&self) -> PathSource {
        self.source
    }
}

impl Deref for FoundPath {
    type Target = PathRecord;

    fn deref(&self) -> &PathRecord {
        &self.record
    }
}

impl fmt::Display for FoundPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.record.fmt(f)
    }
}
