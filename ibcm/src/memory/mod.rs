//! Memory that a device can reach: buffers, pools of them, regions that peers reach, and the domains that keep
//! tenants apart.

mod domain;
mod pool;
mod spares;

use std::collections::VecDeque;
use std::sync::Arc;

use ibdev::{Access, Buf, DeviceError, ProtectionDomain, RecvWr, Region, SharedMemory};

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
        let mut bufs = Vec::with_capacity(count);
        let missing = count - self.spares.take(count, len, |buf| bufs.push(buf));
        if missing > 0 {
            bufs.extend(self.domain.alloc(missing, len).await?);
        }
        Ok(bufs)
    }

    /// As [`Memory::take`], as receives with this id.
    pub(crate) async fn receives(
        &self,
        id: u64,
        count: usize,
        len: usize,
    ) -> Result<VecDeque<RecvWr>, DeviceError> {
        let mut receives = VecDeque::with_capacity(count);
        let missing = count - self.spares.take(count, len, |buf| receives.push_back(RecvWr::new(id, buf)));
        if missing > 0 {
            let new = self.domain.alloc(missing, len).await?;
            receives.extend(new.into_iter().map(|buf| RecvWr::new(id, buf)));
        }
        Ok(receives)
    }

    /// A new buffer.
    async fn alloc(&self, len: usize) -> Result<Buf, Error> {
        Invalid::at_most("buffer length", len as u64, isize::MAX as u64)?;
        let mut bufs = self.domain.alloc(1, len).await?;
        bufs.pop().ok_or(Error::Device(DeviceError::Unsupported { what: "one buffer" }))
    }

    async fn pool(&self, shared: &Arc<Shared>, count: usize, len: usize) -> Result<BufPool, Error> {
        if count == 0 {
            return Err(Invalid::at_least("buffers of a pool", 0, 1).into());
        }
        let total = (count as u64).saturating_mul(len as u64);
        Invalid::at_most("bytes of a pool", total, isize::MAX as u64)?;
        Ok(BufPool::new(Arc::clone(shared), self.domain.alloc(count, len).await?))
    }

    async fn expose(&self, len: usize, access: Access) -> Result<Region, Error> {
        if len == 0 {
            return Err(Invalid::at_least("region length", 0, 1).into());
        }
        Invalid::at_most("region length", len as u64, isize::MAX as u64)?;
        Ok(self.domain.register(SharedMemory::zeroed(len), access).await?)
    }
}
