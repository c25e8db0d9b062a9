//! .
#![forbid(unsafe_code)]

#[cfg(feature = "runtime")]
mod pcap;
#[cfg(feature = "runtime")]
mod udp;

pub mod engine;
