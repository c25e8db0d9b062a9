//! Why a device of the machine cannot be opened, and what to do.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why an RDMA device of this machine cannot be opened. The text says what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
    /// This build has no code for it.
    #[error("this build of ibcm cannot use the machine's own RDMA devices: turn the feature `verbs` on")]
    NotBuilt,
    /// A module of the kernel is missing.
    #[error("the kernel module {module} is not loaded: modprobe {module}")]
    Module {
        /// Its name.
        module: &'static str,
    },
    /// The process may not.
    #[error("no permission to read and write {}: be root or of its group, which a udev rule sets", file.display())]
    Permission {
        /// The device file.
        file: PathBuf,
    },
    /// The kernel has it, and its file is not in /dev.
    #[error("{} is not there: a container needs it as a device, else udev makes it", file.display())]
    NoFile {
        /// The device file.
        file: PathBuf,
    },
    /// A port has no MADs: that of an iWARP device.
    #[error("port {port} takes no management datagrams: no port of InfiniBand or RoCE")]
    NoMads {
        /// The port.
        port: u8,
    },
    /// The system refused for another reason.
    #[error("{} cannot be opened: {kind}", file.display())]
    Refused {
        /// The device file.
        file: PathBuf,
        /// The reason.
        kind: io::ErrorKind,
    },
}

impl Unusable {
    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::NotBuilt | Self::NoMads { .. } => io::ErrorKind::Unsupported,
            Self::Module { .. } | Self::NoFile { .. } => io::ErrorKind::NotFound,
            Self::Permission { .. } => io::ErrorKind::PermissionDenied,
            Self::Refused { kind, .. } => *kind,
        }
    }
}

/// A device that is there and cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnusableDevice {
    /// Its name.
    pub name: String,
    /// Why it cannot be used.
    pub why: Unusable,
}

impl fmt::Display for UnusableDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.why)
    }
}
