//! Shared pieces of the examples.
#![forbid(unsafe_code)]

pub mod cm_trace;
