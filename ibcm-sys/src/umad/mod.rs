//! Management datagrams through the kernel's user MAD interface (Linux: Documentation/infiniband/user_mad.rst).

mod abi;
mod agent;
mod lane;

pub(crate) use agent::UmadAgent;

use std::fs;
use std::io;
use std::path::PathBuf;

use ibdev::DeviceError;

use crate::LinuxError;

/// Where the kernel lists MAD devices: one a port.
const SYSFS: &str = "/sys/class/infiniband_mad";

/// The character device of a port.
fn path(device: &str, port: u8) -> Result<PathBuf, DeviceError> {
    let what = "find the port's MAD device";
    let entries = match fs::read_dir(SYSFS) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(LinuxError::NoModule { module: "ib_umad" }.met(what));
        }
        entries => entries.map_err(|error| DeviceError::os(what, error))?,
    };
    for entry in entries {
        let entry = entry.map_err(|error| DeviceError::os(what, error))?;
        let name = entry.file_name();
        let read = |file: &str| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        let is_umad = name.to_str().is_some_and(|name| name.starts_with("umad"));
        if is_umad && read("ibdev").trim() == device && read("port").trim() == port.to_string() {
            return Ok(PathBuf::from("/dev/infiniband").join(name));
        }
    }
    Err(DeviceError::os(what, io::ErrorKind::NotFound.into()))
}
