//! Sockets on in-process subnets: raw queue pairs of a software HCA (spec/raw.md 3, 4).

mod ether;
mod groups;
mod ipv6;
mod mgid;
mod queue;
mod sa;
pub(crate) mod socket;
mod watch;

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use ibdev::{Device, DeviceError, PortAttr, PortState};
use ibsoft::SoftDevice;
use ibwire::{Gid, Lid, PathRecord};

use crate::{LinkAddress, RawError};

/// A port of an HCA of a subnet.
#[derive(Debug)]
pub(crate) struct SubnetPort {
    pub(crate) device: SoftDevice,
    pub(crate) port: u8,
    /// Of a subnet with an SA, once it was needed.
    sa: Mutex<Option<Arc<sa::Sa>>>,
}

impl SubnetPort {
    pub(crate) fn new(device: SoftDevice, port: u8) -> Self {
        Self { device, port, sa: Mutex::default() }
    }

    /// Whether it carries traffic.
    fn is_up(&self) -> Result<bool, RawError> {
        Ok(self.attr()?.state == PortState::Active)
    }

    /// Its attributes at this moment.
    pub(crate) fn attr(&self) -> Result<PortAttr, RawError> {
        self.device.port(self.port).map_err(refused)
    }

    /// The way to a port.
    fn path(&self, to: Gid) -> Result<PathRecord, RawError> {
        self.attr()?;
        self.device
            .resolve(self.port, to)
            .ok_or(RawError::InvalidDest("nobody in the subnet has that address"))
    }
}

/// A LID as an address of a link.
pub(crate) fn lid_address(lid: Lid) -> LinkAddress {
    LinkAddress::new(&lid.0.to_be_bytes()).expect("two bytes fit")
}

/// What a device says to a call that it does at once: one in this process never waits for anything.
fn at_once<T>(call: impl Future<Output = Result<T, DeviceError>>) -> Result<T, RawError> {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result.map_err(refused),
        Poll::Pending => Err(RawError::Unsupported("a device that waits")),
    }
}

fn refused(error: DeviceError) -> RawError {
    match error {
        DeviceError::Gone => RawError::LinkGone,
        DeviceError::InUse { what, .. } => RawError::FilterConflict(what.into()),
        DeviceError::Unsupported { what } => RawError::Unsupported(what),
        DeviceError::Limit { what, value, limit } => RawError::Invalid { field: what, value, limit },
        error => RawError::Io { what: "use the device", source: std::io::Error::other(error) },
    }
}
