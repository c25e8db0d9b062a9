//! Sockets of the system.

mod claims;
pub(crate) mod ether;
mod filter;
mod frame;
pub(crate) mod ipv6;
mod queue;
mod ring;
mod watch;
