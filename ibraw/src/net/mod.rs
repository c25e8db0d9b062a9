//! Sockets of the system.

mod claims;
pub(crate) mod ether;
mod frame;
pub(crate) mod ipv6;
mod queue;
mod ring;
mod watch;
