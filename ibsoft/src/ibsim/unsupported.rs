//! What only devices with queue pairs have.

use std::sync::Arc;

use async_trait::async_trait;
use ibdev::qp::QpSpec;
use ibdev::{
    Access, AddressHandle, AddressVector, Buf, DeviceError, ProtectionDomain, QueuePair, Region,
    SharedMemory, SharedReceiveQueue,
};

pub(super) fn unsupported<T>() -> Result<T, DeviceError> {
    Err(DeviceError::Unsupported {
        what: "data: ibsim carries management datagrams only, so what a queue pair needs",
    })
}

/// A domain in which nothing can be made.
#[derive(Debug)]
pub(super) struct NoDomain;

#[async_trait]
impl ProtectionDomain for NoDomain {
    async fn create_qp(&self, _spec: QpSpec) -> Result<Arc<dyn QueuePair>, DeviceError> {
        unsupported()
    }

    async fn create_srq(&self, _: u32, _: u32) -> Result<Arc<dyn SharedReceiveQueue>, DeviceError> {
        unsupported()
    }

    async fn create_ah(&self, _av: AddressVector) -> Result<Arc<dyn AddressHandle>, DeviceError> {
        unsupported()
    }

    async fn alloc(&self, _count: usize, _len: usize) -> Result<Vec<Buf>, DeviceError> {
        unsupported()
    }

    async fn register(&self, _memory: SharedMemory, _access: Access) -> Result<Region, DeviceError> {
        unsupported()
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
