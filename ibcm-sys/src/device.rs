//! A device of this machine behind the device contract.

use std::any::Any;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use ibdev::qp::QpSpec;
use ibdev::{
    Access, AddressHandle, AddressVector, AgentSpec, Buf, CompletionQueue, Device, DeviceAttr, DeviceError,
    DeviceEvent, GidEntry, MadAgent, PortAttr, PortTables, ProtectionDomain, QueuePair, Region, SharedMemory,
    SharedReceiveQueue,
};
use ibwire::PKey;

use crate::counters::Counters;
use crate::ibv::{self, AsyncEvents, VerbsCq, VerbsQp, blocking};
use crate::umad::UmadAgent;

/// An RDMA device of this machine: verbs through libibverbs, management datagrams through umad.
///
/// It offers reliable connections with sends and receives. It belongs to the tokio runtime in which it was opened, whose
/// I/O must be enabled; slow calls run on the runtime's blocking pool.
#[derive(Debug)]
pub struct LinuxDevice {
    attr: DeviceAttr,
    events: AsyncEvents,
    domain: Arc<ibv::ProtectionDomain>,
    context: Arc<ibv::Context>,
    counters: Arc<Counters>,
}

impl LinuxDevice {
    /// Names of the RDMA devices of this machine, as `open` takes them.
    ///
    /// # Errors
    /// [`DeviceError::Os`] when the kernel's verbs interface is not there.
    pub async fn names() -> Result<Vec<String>, DeviceError> {
        blocking(ibv::names).await
    }

    /// Opens the device with this name, such as `rxe0`.
    ///
    /// # Errors
    /// [`DeviceError::Permission`] when the process may not, [`DeviceError::Os`] when there is no such device.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub async fn open(name: &str) -> Result<Arc<Self>, DeviceError> {
        let name = name.to_owned();
        let counters = Arc::new(Counters::default());
        let (attr, context, domain) = blocking(move || {
            let context = Arc::new(ibv::Context::open(&name)?);
            let domain = Arc::new(ibv::ProtectionDomain::new(context.clone())?);
            Ok((context.attr(&name)?, context, domain))
        })
        .await?;
        let events = AsyncEvents::new(context.clone(), counters.clone())?;
        Ok(Arc::new(Self { attr, events, domain, context, counters }))
    }

    fn check_port(&self, port: u8) -> Result<(), DeviceError> {
        if (1..=self.attr.ports).contains(&port) {
            return Ok(());
        }
        Err(DeviceError::Limit { what: "port", value: port.into(), limit: self.attr.ports.into() })
    }
}

#[async_trait]
impl Device for LinuxDevice {
    fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    fn port(&self, port: u8) -> Result<PortAttr, DeviceError> {
        self.check_port(port)?;
        self.context.port(port)
    }

    fn gids(&self, port: u8) -> Result<Vec<GidEntry>, DeviceError> {
        self.check_port(port)?;
        self.context.gids(port)
    }

    fn pkeys(&self, port: u8) -> Result<Vec<PKey>, DeviceError> {
        self.check_port(port)?;
        self.context.pkeys(port)
    }

    async fn read_port(&self, port: u8) -> Result<PortTables, DeviceError> {
        self.check_port(port)?;
        let context = self.context.clone();
        blocking(move || {
            Ok(PortTables {
                attr: context.port(port)?,
                gids: context.gids(port)?,
                pkeys: context.pkeys(port)?,
            })
        })
        .await
    }

    fn open_agent(&self, spec: AgentSpec) -> Result<Box<dyn MadAgent>, DeviceError> {
        self.check_port(spec.port)?;
        Ok(Box::new(UmadAgent::open(&self.attr.name, &spec, self.counters.clone())?))
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<DeviceEvent> {
        self.events.poll_next(cx)
    }

    async fn create_cq(&self, capacity: u32) -> Result<Arc<dyn CompletionQueue>, DeviceError> {
        limit("completions", capacity, self.attr.max_cqe)?;
        let (context, counters) = (self.context.clone(), self.counters.clone());
        let cq = blocking(move || VerbsCq::new(context, capacity, counters)).await?;
        Ok(Arc::new(cq))
    }

    fn domain(&self) -> Arc<dyn ProtectionDomain> {
        Arc::new(LinuxDomain {
            attr: self.attr.clone(),
            domain: self.domain.clone(),
            counters: self.counters.clone(),
        })
    }

    async fn create_domain(&self) -> Result<Arc<dyn ProtectionDomain>, DeviceError> {
        Err(DeviceError::Unsupported { what: "a second protection domain" })
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.counters.named()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A protection domain of this machine's device.
#[derive(Debug)]
struct LinuxDomain {
    attr: DeviceAttr,
    domain: Arc<ibv::ProtectionDomain>,
    counters: Arc<Counters>,
}

#[async_trait]
impl ProtectionDomain for LinuxDomain {
    async fn create_qp(&self, spec: QpSpec) -> Result<Arc<dyn QueuePair>, DeviceError> {
        limit("outstanding sends", spec.max_send_wr, self.attr.max_qp_wr)?;
        limit("posted receives", spec.max_recv_wr, self.attr.max_qp_wr)?;
        let (domain, counters) = (self.domain.clone(), self.counters.clone());
        let max_message = self.attr.max_message;
        let qp = blocking(move || VerbsQp::new(domain, &spec, max_message, counters)).await?;
        Ok(Arc::new(qp))
    }

    async fn create_srq(&self, _: u32, _: u32) -> Result<Arc<dyn SharedReceiveQueue>, DeviceError> {
        Err(DeviceError::Unsupported { what: "a shared receive queue" })
    }

    async fn create_ah(&self, _: AddressVector) -> Result<Arc<dyn AddressHandle>, DeviceError> {
        Err(DeviceError::Unsupported { what: "an address handle" })
    }

    async fn alloc(&self, count: usize, len: usize) -> Result<Vec<Buf>, DeviceError> {
        let domain = self.domain.clone();
        blocking(move || ibv::alloc(domain, count, len)).await
    }

    async fn register(&self, _: SharedMemory, _: Access) -> Result<Region, DeviceError> {
        Err(DeviceError::Unsupported { what: "exposing memory" })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn limit(what: &'static str, value: u32, limit: u32) -> Result<(), DeviceError> {
    if value <= limit {
        return Ok(());
    }
    Err(DeviceError::Limit { what, value: value.into(), limit: limit.into() })
}
