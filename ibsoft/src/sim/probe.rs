//! What layers above the devices hold.

use std::fmt;

/// Something that is still there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// What it is, with the name or number that tells it from others.
    pub what: String,
    /// Whether it ends by itself, without anyone doing anything: a TimeWait, an exchange with re-sends.
    pub ends: bool,
}

/// A layer above the devices, such as a connection manager, that [`Subnet::quiet`](super::Subnet::quiet) asks.
/// Registered with [`SoftDevice::add_probe`](crate::SoftDevice::add_probe).
pub trait Probe: fmt::Debug + Send + Sync {
    /// Connections, communication IDs, timers and whatever else a leak would leave behind. Listeners do not count.
    fn held(&self) -> Vec<Held>;
}
