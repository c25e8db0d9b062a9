//! Linux system layer of the SDK, and the socket options that no safe crate sets. All `unsafe` of the project is here.

#[cfg(unix)]
pub mod socket;
