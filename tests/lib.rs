//! Shared pieces of the tests.
#![forbid(unsafe_code)]

pub mod decode;
#[cfg(doctest)]
mod docs;
pub mod guest;
pub mod ibsim;
