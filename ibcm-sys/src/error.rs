//! What is wrong with this machine rather than with the call, and what helps.

use std::error::Error;
use std::io;
use std::time::Duration;

use ibdev::DeviceError;
use rustix::process::{Resource, getrlimit};

/// A state of this machine in which a device can't do what was asked, with the remedy. It is the source of a
/// [`DeviceError::Os`]; [`LinuxError::of`] finds it there. What the process may not do is [`DeviceError::Permission`],
/// a device that was removed [`DeviceError::Gone`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinuxError {
    /// A part of the kernel is missing.
    #[error("the kernel module {module} is not loaded: `modprobe {module}`")]
    NoModule {
        /// The module's name.
        module: &'static str,
    },
    /// The device is there, its file is not.
    #[error("{path} is not here: a container has to be given it, else udev has to make it")]
    NoFile {
        /// Where it has to be.
        path: String,
    },
    /// There is no device of this name.
    #[error("there is no RDMA device {name:?} here, {}", Present(present))]
    NoDevice {
        /// The name that was asked for.
        name: String,
        /// Those that are here.
        present: Vec<String>,
    },
    /// The port has no link.
    #[error("port {port} of {device} is down: see `rdma link`, and on Ethernet `ip link set … up`")]
    PortDown {
        /// The device's name.
        device: String,
        /// The port.
        port: u8,
    },
    /// The GID table has no entry at this index, or none any more: an address was removed.
    #[error("port {port} of {device} has no GID at index {index} (any more): read its GID table again")]
    NoGid {
        /// The device's name.
        device: String,
        /// The port.
        port: u8,
        /// The index that was asked for.
        index: u16,
    },
    /// The process may not lock so much memory.
    #[error(
        "not enough memory can be locked, the limit is {limit} bytes: raise it (`ulimit -l unlimited`, limits.conf, LimitMEMLOCK= of systemd)"
    )]
    LockedMemory {
        /// RLIMIT_MEMLOCK of the process.
        limit: u64,
    },
    /// A call into the driver is stuck. What it does when it gets on is undone.
    #[error("the driver has not answered within {within:?}: look at the kernel's log")]
    Stuck {
        /// How long it was waited for.
        within: Duration,
    },
}

impl LinuxError {
    /// The state of the machine that a device's error tells of, if it tells of one.
    pub fn of(error: &DeviceError) -> Option<&Self> {
        let DeviceError::Os { error, .. } = error else { return None };
        error.get_ref().and_then(|inner| (inner as &(dyn Error + 'static)).downcast_ref())
    }

    /// The same as what the contract has room for, met while doing `what`.
    pub(crate) fn met(self, what: &'static str) -> DeviceError {
        let kind = match &self {
            Self::NoModule { .. } | Self::NoFile { .. } | Self::NoDevice { .. } | Self::NoGid { .. } => {
                io::ErrorKind::NotFound
            }
            Self::PortDown { .. } => io::ErrorKind::NetworkDown,
            Self::LockedMemory { .. } => io::ErrorKind::OutOfMemory,
            Self::Stuck { .. } => io::ErrorKind::TimedOut,
        };
        DeviceError::os(what, io::Error::new(kind, self))
    }
}

/// How much memory the process may lock, in bytes. None if it may lock all there is.
pub(crate) fn locked_memory_limit() -> Option<u64> {
    const CAP_IPC_LOCK: u32 = 14;
    let may_lock_all = std::fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let capabilities = capabilities.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
        capabilities.is_some_and(|capabilities| capabilities & 1 << CAP_IPC_LOCK != 0)
    });
    if may_lock_all { None } else { getrlimit(Resource::Memlock).current }
}

/// Lists names for people.
struct Present<'a>(&'a [String]);

impl std::fmt::Display for Present<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            [] => f.write_str("and no other"),
            names => write!(f, "but {}", names.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_error_tells_the_remedy() {
        let here = LinuxError::NoModule { module: "ib_umad" };
        let error = here.clone().met("find the port's MAD device");
        assert_eq!(LinuxError::of(&error), Some(&here));
        assert_eq!(
            error.source().and_then(Error::source).map(ToString::to_string).as_deref(),
            None,
            "one source, which says it all"
        );
        assert!(error.source().is_some_and(|source| source.to_string().contains("modprobe ib_umad")));
        assert_eq!(LinuxError::of(&DeviceError::Gone), None);
        assert_eq!(LinuxError::of(&DeviceError::os("x", io::ErrorKind::NotFound.into())), None);
    }

    #[test]
    fn a_wrong_name_is_answered_with_the_right_ones() {
        let say = |present: &[&str]| {
            let present = present.iter().map(|name| (*name).to_owned()).collect();
            LinuxError::NoDevice { name: "rxe9".into(), present }.to_string()
        };
        assert_eq!(say(&["rxe0", "rxe1"]), "there is no RDMA device \"rxe9\" here, but rxe0, rxe1");
        assert_eq!(say(&[]), "there is no RDMA device \"rxe9\" here, and no other");
    }
}
