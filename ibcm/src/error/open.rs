//! Why no device was opened.

use std::io;

use ibdev::DeviceError;

use crate::ParseDeviceError;
use crate::devices::{Unusable, UnusableDevice};

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
    #[error("IBCM_DEVICE: {0}")]
    Environment(ParseDeviceError),
    /// This build has no code for that kind of device.
    #[error("{device}: {why}")]
    NotBuilt {
        /// What was asked for.
        device: Box<str>,
        /// What is missing.
        why: &'static str,
    },
    /// The machine has no RDMA device of that name.
    #[error(
        "this machine has no RDMA device {device}; {}",
        if here.is_empty() { "it has none at all: is the driver loaded?".to_owned() } else { format!("it has {}", here.join(", ")) }
    )]
    NotFound {
        /// What was asked for.
        device: Box<str>,
        /// Names of those that it has.
        here: Vec<String>,
    },
    /// The device has no port of that number.
    #[error("{device} has no port {port}; it has {ports:?}")]
    NoSuchPort {
        /// The device.
        device: Box<str>,
        /// What was asked for.
        port: u8,
        /// Numbers of those that it has.
        ports: Vec<u8>,
    },
    /// The RDMA device is there and cannot be used.
    #[error("cannot open {device}: {why}")]
    Unusable {
        /// What was asked for.
        device: Box<str>,
        /// Why not, and what to do.
        why: Unusable,
    },
    /// The machine has several RDMA devices that can be used, and none was named.
    #[error(
        "this machine has several RDMA devices that can be used: {}; name one with IBCM_DEVICE, for example IBCM_DEVICE={}",
        devices.join(", "),
        devices.first().map_or("soft", String::as_str)
    )]
    Several {
        /// Their names.
        devices: Vec<String>,
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

fn list(devices: &[UnusableDevice]) -> String {
    devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl OpenError {
    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::NoRuntime | Self::NoneUsable { .. } => io::ErrorKind::Other,
            Self::Name(_) | Self::Environment(_) | Self::Several { .. } => io::ErrorKind::InvalidInput,
            Self::NotFound { .. } | Self::NoSuchPort { .. } => io::ErrorKind::NotFound,
            Self::Unusable { why, .. } => why.io_kind(),
            Self::NotBuilt { .. } => io::ErrorKind::Unsupported,
            Self::Device { source, .. } => source.io_kind(),
        }
    }
}
