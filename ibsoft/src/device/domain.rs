//! Protection domains.

use std::any::Any;
use std::sync::Arc;

use async_trait::async_trait;
use ibdev::qp::QpSpec;
use ibdev::{
    Access, AddressHandle, AddressVector, Buf, CompletionQueue, DeviceError, ProtectionDomain, QueuePair,
    Region, SharedMemory, SharedReceiveQueue,
};

use super::core::Core;
use super::cq::SoftCq;
use super::qp::SoftQp;
use crate::engine::QpCreate;

/// A protection domain.
#[derive(Debug)]
pub(super) struct SoftDomain {
    pub core: Arc<Core>,
}

#[async_trait]
impl ProtectionDomain for SoftDomain {
    async fn create_qp(&self, spec: QpSpec) -> Result<Arc<dyn QueuePair>, DeviceError> {
        let own = |cq: &Arc<dyn CompletionQueue>| match cq.as_any().downcast_ref::<SoftCq>() {
            Some(cq) if Arc::ptr_eq(&cq.core, &self.core) => Ok(cq.id),
            _ => Err(DeviceError::Unsupported { what: "a completion queue of another device" }),
        };
        let create = QpCreate {
            kind: spec.kind,
            send_cq: own(&spec.send_cq)?,
            recv_cq: own(&spec.recv_cq)?,
            max_send_wr: spec.max_send_wr,
            max_recv_wr: spec.max_recv_wr,
        };
        let qpn = self.core.with_live(|state| state.engine.create_qp(&create))??;
        Ok(Arc::new(SoftQp { core: self.core.clone(), qpn, _cqs: [spec.send_cq, spec.recv_cq] }))
    }

    async fn create_srq(&self, _: u32, _: u32) -> Result<Arc<dyn SharedReceiveQueue>, DeviceError> {
        Err(DeviceError::Unsupported { what: "a shared receive queue" })
    }

    async fn create_ah(&self, av: AddressVector) -> Result<Arc<dyn AddressHandle>, DeviceError> {
        self.core.with_live(|state| state.engine.check_address(&av))??;
        Ok(Arc::new(SoftAh { av }))
    }

    async fn alloc(&self, count: usize, len: usize) -> Result<Vec<Buf>, DeviceError> {
        Ok((0..count).map(|_| Buf::unregistered(len)).collect())
    }

    async fn register(&self, _: SharedMemory, _: Access) -> Result<Region, DeviceError> {
        Err(DeviceError::Unsupported { what: "exposing memory" })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// An address handle. It was checked when it was made; the address is looked up again for each datagram, because the port's
/// GIDs may change.
#[derive(Debug)]
struct SoftAh {
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
