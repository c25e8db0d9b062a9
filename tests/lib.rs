//! Shared pieces of the tests.
#![forbid(unsafe_code)]

pub mod decode;
pub mod guest;
