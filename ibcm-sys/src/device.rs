//! A device of this machine behind the device contract.

use std::any::Any;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use ibdev::{
    AgentSpec, CompletionQueue, Device, DeviceAttr, DeviceError, DeviceEvent, GidEntry, MadAgent, PortAttr,
    PortTables, ProtectionDomain,
};
use ibwire::PKey;

use crate::ibv::{self, Hca, VerbsCq, VerbsDomain};
use crate::pool::Pool;
use crate::umad::UmadAgent;

/// An RDMA device of this machine: verbs through libibverbs, management datagrams through umad.
///
/// It offers the whole contract as far as its driver does. It belongs to the tokio runtime in which it was opened, whose
/// time and I/O must be enabled: three tasks there wait for the device, whatever the number of connections, and slow
/// calls run on its blocking pool, up to eight at once, each with a deadline of 30 s. 15,000 can be waited for at once; one more is
/// [`DeviceError::Limit`]. It is closed a little after the last of what was made on it is dropped.
///
/// A device that is removed (`rdma link delete`, hot-unplug, a driver that is unloaded) reports [`DeviceEvent::Gone`], wakes all who
/// wait and flushes what is posted; calls answer [`DeviceError::Gone`]. Where the driver cannot let go of a device in use
/// (rxe), the kernel keeps it until everything that was made on it is dropped: then only its name is free again.
///
/// Differences that a driver makes: a queue pair that fails reports [`DeviceEvent::QpError`] when a completion says so,
/// so somebody has to poll; an unsignaled work request costs the device a completion, which is not handed out.
/// Errors that tell of this machine's set-up carry a [`LinuxError`](crate::LinuxError) with the remedy.
#[derive(Debug)]
pub struct LinuxDevice {
    domain: Arc<VerbsDomain>,
    hca: Arc<Hca>,
}

impl LinuxDevice {
    /// Names of the RDMA devices of this machine, as `open` takes them; none without RDMA hardware.
    ///
    /// # Errors
    /// [`DeviceError::Os`] with a [`LinuxError::NoModule`](crate::LinuxError::NoModule) when there are devices that no
    /// program can open; [`DeviceError::NoRuntime`].
    pub async fn names() -> Result<Vec<String>, DeviceError> {
        Pool::new()?.run("list RDMA devices", ibv::names).await
    }

    /// Opens the device with this name, such as `rxe0`.
    ///
    /// # Errors
    /// [`DeviceError::Permission`] when the process may not, [`DeviceError::Os`] with a
    /// [`LinuxError`](crate::LinuxError) when there is no such device or a part of the kernel is missing,
    /// [`DeviceError::NoRuntime`].
    pub async fn open(name: &str) -> Result<Arc<Self>, DeviceError> {
        let hca = Hca::open(name.to_owned()).await?;
        let of = hca.clone();
        let domain = hca.slow("allocate a protection domain", move || VerbsDomain::new(&of)).await?;
        Ok(Arc::new(Self { domain: Arc::new(domain), hca }))
    }
}

#[async_trait]
impl Device for LinuxDevice {
    fn attr(&self) -> &DeviceAttr {
        self.hca.attr()
    }

    fn port(&self, port: u8) -> Result<PortAttr, DeviceError> {
        self.hca.port(port)
    }

    fn gids(&self, port: u8) -> Result<Vec<GidEntry>, DeviceError> {
        self.hca.gids(port)
    }

    fn pkeys(&self, port: u8) -> Result<Vec<PKey>, DeviceError> {
        self.hca.pkeys(port)
    }

    async fn read_port(&self, port: u8) -> Result<PortTables, DeviceError> {
        self.hca.check_port(port)?;
        let hca = self.hca.clone();
        let read =
            move || Ok(PortTables { attr: hca.port(port)?, gids: hca.gids(port)?, pkeys: hca.pkeys(port)? });
        self.hca.slow("read a port", read).await
    }

    fn open_agent(&self, spec: AgentSpec) -> Result<Box<dyn MadAgent>, DeviceError> {
        self.hca.check_port(spec.port)?;
        self.hca.check_there()?;
        let name = &self.hca.attr().name;
        Ok(Box::new(UmadAgent::open(name, &spec, self.hca.events(), self.hca.counters())?))
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<DeviceEvent> {
        self.hca.events().poll_next(cx)
    }

    async fn create_cq(&self, capacity: u32) -> Result<Arc<dyn CompletionQueue>, DeviceError> {
        VerbsCq::check(&self.hca, capacity)?;
        let hca = self.hca.clone();
        let create = move || VerbsCq::new(&hca, capacity);
        Ok(Arc::new(self.hca.slow("create a completion queue", create).await?))
    }

    fn domain(&self) -> Arc<dyn ProtectionDomain> {
        self.domain.clone()
    }

    async fn create_domain(&self) -> Result<Arc<dyn ProtectionDomain>, DeviceError> {
        let hca = self.hca.clone();
        let create = move || VerbsDomain::new(&hca);
        Ok(Arc::new(self.hca.slow("allocate a protection domain", create).await?))
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.hca.counters().named()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
