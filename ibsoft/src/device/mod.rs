//! The device contract over the engine, whatever the link is.

mod agent;
mod core;
mod cq;
mod domain;
mod events;
mod follow;
mod qp;
mod srq;
mod waiters;

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use async_trait::async_trait;
use ibdev::{
    AgentSpec, CompletionQueue, Device, DeviceAttr, DeviceError, DeviceEvent, GidEntry, MadAgent, PortAttr,
    PortState, ProtectionDomain,
};
use ibwire::{Gid, PKey, PathRecord};

use self::agent::SoftAgent;
pub(crate) use self::core::{Core, Departure, Intake, Link};
use self::cq::SoftCq;
use self::domain::SoftDomain;
pub use self::follow::{Followed, FollowedEvents};
use crate::engine::{DomainId, Engine};
use crate::sim::Probe;

/// A software HCA: over UDP ([`bind`](Self::bind)) or in a [`Subnet`](crate::sim::Subnet).
///
/// A cheap handle; clones are the same device. What is created on it (queues, agents) are handles too, to be dropped
/// in any order. A device of a subnet lives as long as the subnet. One over UDP is closed by [`Device::close`], or in the
/// background when the last of its handles is dropped: [`bind`](Self::bind) says how.
///
/// Posting sends packets in the caller's task. One mutex guards the whole device; it is never held across an await,
/// nor while packets are handed to a socket.
#[derive(Clone)]
pub struct SoftDevice(pub(crate) Arc<Core>, Arc<SoftDomain>);

impl fmt::Debug for SoftDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SoftDevice").field(&self.0.attr.name).finish()
    }
}

impl SoftDevice {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        let domain = SoftDomain::new(core.clone(), DomainId::DEFAULT);
        Self(core, Arc::new(domain))
    }

    /// The path from `port` to `dgid`. In a subnet it comes from the subnet's own table; over UDP it is made up as
    /// Linux does for RoCE (spec/sa.md 7.4), so whether anyone lives there is not known.
    ///
    /// `None` if there is no such port, if the subnet knows no such GID on the port's rail, or if no address of the
    /// device is of the GID's family.
    pub fn resolve(&self, port: u8, dgid: Gid) -> Option<PathRecord> {
        self.0.lock().link.resolve(port, dgid)
    }

    /// Takes a port down, or up again, as if its cable were pulled: while it is down it sends and receives nothing. The
    /// device's users see [`DeviceEvent::PortDown`] and [`DeviceEvent::PortUp`].
    ///
    /// # Errors
    /// [`DeviceError::Limit`] for a port that the device does not have; [`DeviceError::Unsupported`] on a device of a
    /// [`Subnet`](crate::sim::Subnet), whose links decide ([`Subnet::port_down`](crate::sim::Subnet::port_down));
    /// [`DeviceError::Gone`].
    pub fn set_port_up(&self, port: u8, up: bool) -> Result<(), DeviceError> {
        let attr = self.at_port(port, |attr, _| *attr)?;
        let state = if up { PortState::Active } else { PortState::Down };
        self.0.with_live(|device| {
            if device.link.closed().is_none() {
                return Err(DeviceError::Unsupported { what: "taking down the port of a subnet's device" });
            }
            device.engine.set_port(PortAttr { state, ..attr });
            Ok(())
        })?
    }

    /// A seed for what a layer above this device draws at random, another one each time. In a subnet it follows from the
    /// subnet's own, so that one seed decides the whole run; over UDP there is none.
    pub fn draw_seed(&self) -> Option<[u8; 32]> {
        self.0.lock().link.draw_seed()
    }

    /// Runs a task where the device lives: on the runtime that its subnet was built on, or that it was bound on. For layers above
    /// whose tasks are to live as long as the device, whoever begins with them. A task that is not over when that runtime ends is
    /// dropped.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let runtime = self.0.lock().link.runtime().clone();
        runtime.spawn(task);
    }

    /// Every event from now on, for each who follows them: for layers beside the one that reads them by
    /// [`Device::poll_event`]. Who is late by more than 64 has missed the oldest; it then looks at the device.
    pub fn follow_events(&self) -> FollowedEvents {
        self.0.lock().waiters.log.follow(Arc::downgrade(&self.0))
    }

    /// Whether this is the same device, and not one like it.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Lets [`Subnet::quiet`](crate::sim::Subnet::quiet) ask `probe` what a layer above the device still holds. It is
    /// asked as long as someone else holds it.
    pub fn add_probe(&self, probe: Weak<dyn Probe>) {
        self.0.add_probe(probe);
    }

    /// Reads what the engine knows about a port. Nothing is sent and no time passes.
    fn at_port<R>(&self, port: u8, read: impl FnOnce(&PortAttr, &Engine) -> R) -> Result<R, DeviceError> {
        let state = self.0.lock();
        if state.gone {
            return Err(DeviceError::Gone);
        }
        let limit = self.0.attr.ports.into();
        let attr =
            state.engine.port(port).ok_or(DeviceError::Limit { what: "port", value: port.into(), limit })?;
        Ok(read(attr, &state.engine))
    }
}

#[async_trait]
impl Device for SoftDevice {
    fn attr(&self) -> &DeviceAttr {
        &self.0.attr
    }

    fn port(&self, port: u8) -> Result<PortAttr, DeviceError> {
        self.at_port(port, |attr, _| *attr)
    }

    fn gids(&self, port: u8) -> Result<Vec<GidEntry>, DeviceError> {
        self.at_port(port, |_, engine| engine.gids(port).to_vec())
    }

    fn pkeys(&self, port: u8) -> Result<Vec<PKey>, DeviceError> {
        self.at_port(port, |_, engine| engine.pkeys(port).to_vec())
    }

    fn open_agent(&self, spec: AgentSpec) -> Result<Box<dyn MadAgent>, DeviceError> {
        let id = self.0.with_live(|state| state.engine.open_agent(spec))??;
        Ok(Box::new(SoftAgent { core: self.0.clone(), id }))
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<DeviceEvent> {
        let mut state = self.0.lock();
        if let Some(event) = state.waiters.next_event() {
            return Poll::Ready(event);
        }
        let replaced = state.waiters.wait_event(cx);
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    async fn create_cq(&self, capacity: u32) -> Result<Arc<dyn CompletionQueue>, DeviceError> {
        let id = self.0.lock_live()?.engine.create_cq(capacity)?;
        Ok(Arc::new(SoftCq { core: self.0.clone(), id }))
    }

    fn domain(&self) -> Arc<dyn ProtectionDomain> {
        self.1.clone()
    }

    async fn create_domain(&self) -> Result<Arc<dyn ProtectionDomain>, DeviceError> {
        let id = self.0.with_live(|state| state.engine.create_domain())??;
        Ok(Arc::new(SoftDomain::new(self.0.clone(), id)))
    }

    async fn close(&self) {
        self.0.close().await;
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let state = self.0.lock();
        state.engine.counters().named().chain(state.link.counters()).collect()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
