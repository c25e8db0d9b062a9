//! Shared pieces of the benches.
#![forbid(unsafe_code)]
