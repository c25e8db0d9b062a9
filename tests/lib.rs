//! Shared pieces of the tests.
#![forbid(unsafe_code)]
