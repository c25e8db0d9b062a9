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

use ibdev::{Device, DeviceError, PortAttr, PortState, RawDest};
use ibsa::{QueryError, SaStatus};
use ibsoft::SoftDevice;
use ibwire::{Gid, Lid, PathRecord};

use self::queue::dest;
use crate::backend::NotSent;
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

    /// What the device itself knows of the way to a port; nothing where there is an SA to be asked.
    fn known(&self, to: Gid) -> Result<Option<PathRecord>, RawError> {
        if self.attr()?.sm_lid != Lid::NONE {
            return Ok(None);
        }
        self.device.resolve(self.port, to).map(Some).ok_or(NOBODY)
    }

    /// Whether it is the address of a port, or may be: the SA says so when it is asked.
    fn check(&self, to: Gid) -> Result<(), RawError> {
        self.known(to).map(drop)
    }

    /// The way to a port, as far as that is known at once.
    fn way(&self, to: Gid) -> Result<RawDest, NotSent> {
        if let Some(path) = self.known(to)? {
            return Ok(dest(&path));
        }
        // The client remembers what the SA has answered; a query that is dropped fills its memory nevertheless.
        match pin!(self.ask(to)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(path) => Ok(dest(&path?)),
            Poll::Pending => Err(NotSent::NoWay),
        }
    }

    /// Finds the way to a port.
    async fn find(&self, to: Gid) -> Result<(), RawError> {
        self.ask(to).await.map(drop)
    }

    /// The SA's path for raw packets (spec/raw.md 4.6).
    async fn ask(&self, to: Gid) -> Result<PathRecord, RawError> {
        let path = sa::client(self).await?.path(to).raw_traffic(true).await;
        path.map(|path| *path.record()).map_err(|error| not_asked(error, NOBODY))
    }
}

const NOBODY: RawError = RawError::InvalidDest("nobody in the subnet has that address");

/// Why the SA could not be asked; `refusal` if it has said no.
fn not_asked(error: QueryError, refusal: RawError) -> RawError {
    match error {
        QueryError::Status(status) if status != SaStatus::NO_RESOURCES => refusal,
        QueryError::Device(error) => refused(error),
        QueryError::Closed => RawError::LinkGone,
        error => RawError::SaUnavailable { source: error.into() },
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

#[cfg(test)]
mod tests;
