//! Opening one of them.

use std::sync::Arc;

use ibcm_sys::LinuxDevice;
use ibdev::Device;

use super::Machine;
use crate::error::OpenError;

/// Opens the device with this name. Also the ports to use: the one that is wanted, or all.
pub(crate) async fn open(name: &str, port: Option<u8>) -> Result<(Arc<dyn Device>, Vec<u8>), OpenError> {
    let wanted = name.to_owned();
    let checked = tokio::task::spawn_blocking(move || check(&Machine::this(), &wanted, port)).await;
    let ports = checked.map_err(|_| OpenError::NoRuntime)??; // it is ending
    match LinuxDevice::open(name).await {
        Ok(device) => Ok((device, ports)),
        Err(source) => Err(OpenError::Device { device: name.into(), source }),
    }
}

/// The ports to use, if the device can be opened with them. Slow.
pub(super) fn check(machine: &Machine, name: &str, port: Option<u8>) -> Result<Vec<u8>, OpenError> {
    let here = machine.ports(name);
    if here.is_empty() {
        return Err(OpenError::NotFound { device: name.into(), here: machine.names() });
    }
    let ports = match port {
        None => here,
        Some(port) if here.contains(&port) => vec![port],
        Some(port) => return Err(OpenError::NoSuchPort { device: name.into(), port, ports: here }),
    };
    match machine.check(name, &ports) {
        Ok(()) => Ok(ports),
        Err(why) => Err(OpenError::Unusable { device: name.into(), why }),
    }
}
