//! Why no device was opened.

use std::fmt;
use std::io;

use ibdev::DeviceError;

use super::device_io_kind;
use crate::ParseDeviceError;

/// Why [`Hca::open`](crate::Hca::open) failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Called outside of a tokio runtime.
    #[error(
        "no tokio runtime: an HCA needs one for its driver task; open it within #[tokio::main], #[tokio::test] or Runtime::block_on"
    )]
    NoRuntime,
    /// The device's name does not parse.
    #[error(transparent)]
    Name(#[from] ParseDeviceError),
    /// `IBCM_DEVICE` does not name a device.
    #[error("IBCM_DEVICE")]
    Environment(#[source] ParseDeviceError),
    /// This build has no code for that kind of device.
    #[error("{device}: {why}")]
    NotBuilt {
        /// What was asked for.
        device: Box<str>,
        /// What is missing.
        why: &'static str,
    },
    /// The machine has RDMA devices, and none can be used.
    #[error(
        "this machine has RDMA devices but none can be used: {}; name one with IBCM_DEVICE, for example IBCM_DEVICE=soft",
        list(devices)
    )]
    NoneUsable {
        /// Each of them.
        devices: Vec<UnusableDevice>,
    },
    /// The device refused.
    #[error("cannot open {device}")]
    Device {
        /// What was asked for.
        device: Box<str>,
        /// Why not.
        #[source]
        source: DeviceError,
    },
}

/// A device that is there and cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnusableDevice {
    /// Its name.
    pub name: String,
    /// Why it cannot be used.
    pub why: &'static str,
}

impl fmt::Display for UnusableDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.why)
    }
}

fn list(devices: &[UnusableDevice]) -> String {
    devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl OpenError {
    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::NoRuntime | Self::NoneUsable { .. } => io::ErrorKind::Other,
            Self::Name(_) | Self::Environment(_) => io::ErrorKind::InvalidInput,
            Self::NotBuilt { .. } => io::ErrorKind::Unsupported,
            Self::Device { source, .. } => device_io_kind(source),
        }
    }
}
