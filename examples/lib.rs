//! Shared pieces of the examples.
#![forbid(unsafe_code)]
