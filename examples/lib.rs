//! Shared pieces of the examples.
#![forbid(unsafe_code)]

pub mod cm_trace;

use std::error::Error;
use std::fmt::Write;

/// An error with all its causes, in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}
