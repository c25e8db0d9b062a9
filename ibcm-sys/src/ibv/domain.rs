//! Protection domains.

use std::any::Any;
use std::sync::Arc;

use async_trait::async_trait;
use ibdev::qp::{OwnCqSpec, QpSpec};
use ibdev::{
    Access, AddressHandle, AddressVector, Buf, CompletionQueue, Device, DeviceError, QueuePair, Region,
    SharedMemory, SharedReceiveQueue,
};
use rdma_sys::ibv_pd;

use super::ah::VerbsAh;
use super::srq::VerbsSrq;
use super::{Hca, Raw, at_most, create, memory, region};
use crate::counters::count;
use crate::pool::Deferred;

/// A protection domain: memory and queue pairs of one belong together. Everything made in it keeps it.
#[derive(Debug)]
pub(super) struct Domain {
    raw: Raw<ibv_pd>,
    hca: Arc<Hca>,
}

impl Domain {
    /// Slow.
    pub(super) fn new(hca: Arc<Hca>) -> Result<Self, DeviceError> {
        // SAFETY: the context is open while the HCA lives, and the domain keeps that.
        let pd = unsafe { rdma_sys::ibv_alloc_pd(hca.context().raw()) };
        Ok(Self { raw: Raw::new(pd, "allocate a protection domain")?, hca })
    }

    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.raw.get()
    }

    pub(super) fn hca(&self) -> &Arc<Hca> {
        &self.hca
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: this is the last owner; what was made in the domain keeps an `Arc` of it, so nothing is left.
        if unsafe { rdma_sys::ibv_dealloc_pd(self.raw()) } != 0 {
            count(&self.hca.counters().destroy_failures);
        }
    }
}

/// A protection domain of the contract.
#[derive(Debug)]
pub(crate) struct VerbsDomain(Deferred<Arc<Domain>>);

impl VerbsDomain {
    /// Slow.
    pub(crate) fn new(hca: &Arc<Hca>) -> Result<Self, DeviceError> {
        let domain = Arc::new(Domain::new(hca.clone())?);
        Ok(Self(Deferred::new(domain, hca.pool())))
    }

    fn hca(&self) -> &Arc<Hca> {
        self.0.hca()
    }
}

#[async_trait]
impl ibdev::ProtectionDomain for VerbsDomain {
    async fn create_qp(&self, spec: QpSpec) -> Result<Arc<dyn QueuePair>, DeviceError> {
        Ok(Arc::new(create::queue_pair(self.0.clone(), spec).await?))
    }

    async fn create_qp_with_cq(
        &self,
        _: &dyn Device,
        spec: OwnCqSpec,
    ) -> Result<(Arc<dyn QueuePair>, Arc<dyn CompletionQueue>), DeviceError> {
        let (qp, cq) = create::with_queue(self.0.clone(), spec).await?;
        Ok((Arc::new(qp), Arc::new(cq)))
    }

    async fn create_srq(
        &self,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<Arc<dyn SharedReceiveQueue>, DeviceError> {
        let attr = self.hca().attr();
        if attr.max_srq_wr == 0 {
            return Err(DeviceError::Unsupported { what: "a shared receive queue" });
        }
        at_most("shared receive queue for", max_wr, attr.max_srq_wr)?;
        at_most("buffers of a work request", max_sge, attr.max_sge)?;
        let domain = self.0.clone();
        let create = move || VerbsSrq::new(domain, max_wr, max_sge);
        Ok(Arc::new(self.hca().slow("create a shared receive queue", create).await?))
    }

    async fn create_ah(&self, av: AddressVector) -> Result<Arc<dyn AddressHandle>, DeviceError> {
        let domain = self.0.clone();
        let create = move || VerbsAh::new(domain, av);
        Ok(Arc::new(self.hca().slow("create an address handle", create).await?))
    }

    async fn alloc(&self, count: usize, len: usize) -> Result<Vec<Buf>, DeviceError> {
        let domain = self.0.clone();
        self.hca().slow("register buffers", move || memory::alloc(domain, count, len)).await
    }

    async fn register(&self, memory: SharedMemory, access: Access) -> Result<Region, DeviceError> {
        let domain = self.0.clone();
        self.hca().slow("register a region", move || region::register(domain, memory, access)).await
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
