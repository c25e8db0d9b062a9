//! .
mod builder;
mod driver;
mod fabric;
mod faults;
mod frame;
mod link;
mod probe;
mod quiet;
mod subnet;
mod trace;

pub use builder::BuildSubnet;
pub use probe::{Held, Probe};
pub use quiet::NotQuiet;
pub use subnet::{Faults, Subnet};
