//! The RDMA devices of this machine, as its kernel lists them.

mod machine;
#[cfg(feature = "verbs")]
mod open;
mod unusable;

use ibdev::{GidEntry, LinkLayer, PortState};
use ibwire::{Guid, Lid};

pub(crate) use machine::Machine;
#[cfg(feature = "verbs")]
pub(crate) use open::open;
pub use unusable::{Unusable, UnusableDevice};

/// The RDMA devices of this machine, with their ports, and why those that cannot be opened can't. A software HCA is not
/// among them: `soft` can be opened wherever UDP port 4791 is free.
///
/// It reads files of the kernel and opens those of the devices for a moment, which takes milliseconds. Where there is no
/// Linux there are none.
///
/// ```
/// for device in ibcm::devices() {
///     match &device.unusable {
///         None => println!("{} can be opened", device.name),
///         Some(why) => println!("{}: {why}", device.name),
///     }
/// }
/// ```
pub fn devices() -> Vec<DeviceInfo> {
    Machine::this().devices()
}

/// An RDMA device of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its name, which [`Hca::open`](crate::Hca::open) takes.
    pub name: String,
    /// The node GUID; 0 if the kernel does not tell.
    pub node_guid: Guid,
    /// The ports.
    pub ports: Vec<PortInfo>,
    /// Why it cannot be opened, if it can't. What the kernel allows besides shows when it is opened.
    pub unusable: Option<Unusable>,
    /// The kernel's ib_cm is loaded. It holds the CM's class of MADs on every port: the device can be opened, but neither
    /// listening nor connecting is possible.
    pub ib_cm: bool,
}

/// A port of an RDMA device of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortInfo {
    /// Its number, from 1.
    pub number: u8,
    /// Whether it carries traffic.
    pub state: PortState,
    /// InfiniBand, or Ethernet for RoCE.
    pub link_layer: LinkLayer,
    /// Its LID; [`Lid::NONE`] on RoCE.
    pub lid: Lid,
    /// The GID table; unused entries are left out.
    pub gids: Vec<GidEntry>,
    /// The network interface of its first GID, if it has one.
    pub interface: Option<String>,
}

#[cfg(unix)]
#[cfg(test)]
mod tests;
