//! Protection domains.

use std::any::Any;
use std::sync::Arc;

use async_trait::async_trait;
use ibdev::qp::QpSpec;
use ibdev::{
    Access, AddressHandle, AddressVector, Buf, CompletionQueue, DeviceError, ProtectionDomain, QueuePair,
    Region, RegionKey, SharedMemory, SharedReceiveQueue,
};
use ibwire::RKey;

use super::core::Core;
use super::cq::SoftCq;
use super::qp::SoftQp;
use super::srq::SoftSrq;
use crate::engine::{DomainId, Engine, QpCreate};

/// A domain of the engine, which ends when nothing is in it any more.
#[derive(Debug)]
pub(super) struct Domain {
    pub core: Arc<Core>,
    pub id: DomainId,
}

impl Drop for Domain {
    fn drop(&mut self) {
        // What was made in it holds it, so nothing is in it any more. The default domain stays.
        _ = self.core.lock().engine.destroy_domain(self.id);
    }
}

/// A handle of a protection domain.
#[derive(Debug)]
pub(super) struct SoftDomain(Arc<Domain>);

impl SoftDomain {
    pub(super) fn new(core: Arc<Core>, id: DomainId) -> Self {
        Self(Arc::new(Domain { core, id }))
    }
}

#[async_trait]
impl ProtectionDomain for SoftDomain {
    async fn create_qp(&self, spec: QpSpec) -> Result<Arc<dyn QueuePair>, DeviceError> {
        let Domain { core, id } = &*self.0;
        let own = |cq: &Arc<dyn CompletionQueue>| match cq.as_any().downcast_ref::<SoftCq>() {
            Some(cq) if Arc::ptr_eq(&cq.core, core) => Ok(cq.id),
            _ => Err(DeviceError::Unsupported { what: "a completion queue of another device" }),
        };
        let srq = spec.srq.as_ref().map(|srq| match srq.as_any().downcast_ref::<SoftSrq>() {
            Some(srq) if Arc::ptr_eq(srq.core(), core) => Ok(srq.id),
            _ => Err(DeviceError::Unsupported { what: "a shared receive queue of another device" }),
        });
        let create = QpCreate {
            domain: *id,
            recv_cq: own(&spec.recv_cq)?,
            max_sge: spec.max_sge,
            srq: srq.transpose()?,
            ..QpCreate::new(spec.kind, own(&spec.send_cq)?, spec.max_send_wr, spec.max_recv_wr)
        };
        let qpn = core.lock_live()?.engine.create_qp(&create)?;
        Ok(Arc::new(SoftQp {
            core: core.clone(),
            qpn,
            _cqs: [spec.send_cq, spec.recv_cq],
            _srq: spec.srq,
            domain: self.0.clone(),
        }))
    }

    async fn create_srq(
        &self,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<Arc<dyn SharedReceiveQueue>, DeviceError> {
        let Domain { core, id } = &*self.0;
        let id = core.with_live(|state| state.engine.create_srq(*id, max_wr, max_sge))??;
        Ok(Arc::new(SoftSrq { domain: self.0.clone(), id }))
    }

    async fn create_ah(&self, av: AddressVector) -> Result<Arc<dyn AddressHandle>, DeviceError> {
        self.0.core.with_live(|state| state.engine.check_address(&av))??;
        Ok(Arc::new(SoftAh { domain: self.0.clone(), av }))
    }

    async fn alloc(&self, count: usize, len: usize) -> Result<Vec<Buf>, DeviceError> {
        Ok((0..count).map(|_| Buf::unregistered(len)).collect())
    }

    async fn register(&self, memory: SharedMemory, access: Access) -> Result<Region, DeviceError> {
        let Domain { core, id } = &*self.0;
        let register = |engine: &mut Engine| engine.register(*id, memory.clone(), access);
        let (rkey, addr) = core.with_live(|state| register(&mut state.engine))??;
        let key = SoftKey { domain: self.0.clone(), rkey, addr };
        Ok(Region::new(Box::new(key), memory, access))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The registration of a region.
#[derive(Debug)]
struct SoftKey {
    domain: Arc<Domain>,
    rkey: RKey,
    addr: u64,
}

impl RegionKey for SoftKey {
    fn rkey(&self) -> RKey {
        self.rkey
    }

    fn addr(&self) -> u64 {
        self.addr
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for SoftKey {
    fn drop(&mut self) {
        // The region still holds the memory, so this is quick.
        self.domain.core.lock().engine.deregister(self.rkey);
    }
}

/// An address handle. It was checked when it was made; the address is looked up again for each datagram, because the port's
/// GIDs may change.
#[derive(Debug)]
pub(super) struct SoftAh {
    pub domain: Arc<Domain>,
    av: AddressVector,
}

impl AddressHandle for SoftAh {
    fn av(&self) -> &AddressVector {
        &self.av
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
