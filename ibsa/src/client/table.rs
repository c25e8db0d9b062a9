//! Tables of records.

use std::ops::Deref;

use crate::proto::client::{Answer, QueryError};
use crate::record::Record;

/// The records of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table<R> {
    records: Vec<R>,
    complete: bool,
}

/// The SA's answer was cut on its way: not all records came, and the last may be none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the answer was cut: {} records came, how many there are is not known", .records.len())]
pub struct Incomplete<R: std::fmt::Debug> {
    /// What came.
    pub records: Vec<R>,
}

impl<R: std::fmt::Debug> From<Incomplete<R>> for QueryError {
    fn from(incomplete: Incomplete<R>) -> Self {
        Self::Incomplete(incomplete.records.len())
    }
}

impl<R: Record> Table<R> {
    pub(super) fn of(answer: &Answer) -> Result<Self, QueryError> {
        let complete = answer.complete || answer.is_empty_table();
        Ok(Self { records: answer.table()?, complete })
    }

    /// Without those that were not asked for.
    pub(super) fn named(mut self, wanted: &R, mask: u64) -> Self {
        self.records.retain(|record| record.is_named(wanted, mask));
        self
    }

    /// Whether all records came.
    pub const fn is_complete(&self) -> bool {
        self.complete
    }

    /// All records.
    ///
    /// # Errors
    /// [`Incomplete`] if the answer was cut on its way, with what came.
    pub fn complete(self) -> Result<Vec<R>, Incomplete<R>> {
        match self.complete {
            true => Ok(self.records),
            false => Err(Incomplete { records: self.records }),
        }
    }

    /// What came, whether it is all or not.
    pub fn into_vec(self) -> Vec<R> {
        self.records
    }
}

/// What came, whether it is all or not.
impl<R> IntoIterator for Table<R> {
    type Item = R;
    type IntoIter = std::vec::IntoIter<R>;

    fn into_iter(self) -> Self::IntoIter {
        self.records.into_iter()
    }
}

impl<'a, R> IntoIterator for &'a Table<R> {
    type Item = &'a R;
    type IntoIter = std::slice::Iter<'a, R>;

    fn into_iter(self) -> Self::IntoIter {
        self.records.iter()
    }
}

impl<R> Deref for Table<R> {
    type Target = [R];

    fn deref(&self) -> &[R] {
        &self.records
    }
}
