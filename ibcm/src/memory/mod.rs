//! Memory that a device can reach: buffers, pools of them, regions that peers reach, and the domains that keep
//! tenants apart.

mod domain;
mod pool;
mod spares;

use std::sync::Arc;

use ibdev::{Access, Buf, DeviceError, ProtectionDomain, Region, SharedMemory};

pub use domain::Domain;
pub use pool::BufPool;
pub(crate) use spares::Spares;

use crate::error::Error;
use crate::proto::Invalid;
use crate::shared::Shared;

/// A protection domain, and buffers of it that no connection has at present.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    pub(crate) domain: Arc<dyn ProtectionDomain>,
    pub(crate) spares: Arc<Spares>,
}

impl Memory {
    /// Whether both are the same domain of the same device.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.spares, &other.spares)
    }

    /// `count` buffers of `len` bytes, old ones first: what is in them is not to be seen.
    pub(crate) async fn take(&self, count: usize, len: usize) -> Result<Vec<Buf>, DeviceError> {
        let mut bufs = self.spares.take(count, len);
        if bufs.len() < count {
            bufs.extend(self.domain.alloc(count - bufs.len(), len).await?);
        }
        Ok(bufs)
    }

    /// A new buffer.
    async fn alloc(&self, len: usize) -> Result<Buf, Error> {
        let mut bufs = self.domain.alloc(1, len).await?;
        bufs.pop().ok_or(Error::Device(DeviceError::Unsupported { what: "one buffer" }))
    }

    async fn pool(&self, shared: &Arc<Shared>, count: usize, len: usize) -> Result<BufPool, Error> {
        if count == 0 {
            return Err(Invalid::at_least("buffers of a pool", 0, 1).into());
        }
        Ok(BufPool::new(Arc::clone(shared), self.domain.alloc(count, len).await?))
    }

    async fn expose(&self, len: usize, access: Access) -> Result<Region, Error> {
        if len == 0 {
            return Err(Invalid::at_least("region length", 0, 1).into());
        }
        Ok(self.domain.register(SharedMemory::zeroed(len), access).await?)
    }
}
