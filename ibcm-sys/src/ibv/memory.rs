//! Registered memory.

use std::any::Any;
use std::sync::Arc;

use bytes::BytesMut;
use ibdev::{Buf, DeviceError, MemoryKey};
use rdma_sys::{ibv_access_flags, ibv_mr};

use super::Raw;
use super::domain::Domain;
use crate::counters::count;
use crate::pool::Deferred;

/// A registration of memory, ended when it is dropped. The domain lives until after that.
#[derive(Debug)]
pub(super) struct MemoryRegion {
    /// None once it has been deregistered.
    raw: Option<Raw<ibv_mr>>,
    lkey: u32,
    rkey: u32,
    domain: Arc<Domain>,
}

impl MemoryRegion {
    /// Slow.
    ///
    /// # Safety
    /// `start` is the first of `len` bytes which live until the region is deregistered. Whoever the flags let in may read
    /// and write them at any time until then.
    pub(super) unsafe fn new(
        domain: Arc<Domain>,
        start: *mut u8,
        len: usize,
        access: ibv_access_flags,
    ) -> Result<Self, DeviceError> {
        // SAFETY: the domain lives as long as the region, which keeps it; the bytes are the caller's promise.
        let region = unsafe { rdma_sys::ibv_reg_mr(domain.raw(), start.cast(), len, access.0 as i32) };
        let raw = Raw::new(region, "register memory")?;
        // SAFETY: the region is alive, and its keys never change.
        let (lkey, rkey) = unsafe { ((*raw.get()).lkey, (*raw.get()).rkey) };
        Ok(Self { raw: Some(raw), lkey, rkey, domain })
    }

    pub(super) const fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Slow. False if the driver refuses: then the device may still use the memory.
    pub(super) fn deregister(mut self) -> bool {
        self.end()
    }

    fn end(&mut self) -> bool {
        let Some(raw) = self.raw.take() else { return true };
        let hca = self.domain.hca();
        // SAFETY: made by `ibv_reg_mr`, deregistered once; its domain lives until after this.
        let is_done = unsafe { rdma_sys::ibv_dereg_mr(raw.get()) } == 0;
        if !is_done {
            count(&hca.counters().destroy_failures);
        }
        // A device that is gone reaches no memory.
        is_done || hca.is_gone()
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        self.end();
    }
}

/// The key of a block of buffers: the block is deregistered with the last of them.
#[derive(Debug)]
struct BlockKey {
    /// The block's memory may be free before the region is gone. The region gives no remote rights, and local work that
    /// names its key is posted with the buffers, which keep this key: no access is left.
    region: Deferred<MemoryRegion>,
}

impl MemoryKey for BlockKey {
    fn lkey(&self) -> u32 {
        self.region.lkey
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The key by which work requests of this domain name the buffer, if it is registered there.
pub(super) fn lkey(buf: &Buf, domain: &Arc<Domain>) -> Option<u32> {
    let key = buf.memory_key()?.as_any().downcast_ref::<BlockKey>()?;
    Arc::ptr_eq(&key.region.domain, domain).then_some(key.region.lkey)
}

/// `count` buffers of `len` bytes, parts of one registered block. Slow.
pub(super) fn alloc(domain: Arc<Domain>, count: usize, len: usize) -> Result<Vec<Buf>, DeviceError> {
    if count == 0 || len == 0 {
        return Ok((0..count).map(|_| Buf::unregistered(len)).collect());
    }
    let Some(size) = count.checked_mul(len).filter(|size| isize::try_from(*size).is_ok()) else {
        return Err(DeviceError::Limit {
            what: "bytes of buffers",
            value: u64::MAX,
            limit: isize::MAX as u64,
        });
    };
    let pool = domain.hca().pool().clone();
    let mut block = BytesMut::zeroed(size);
    let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
    // SAFETY: the block's memory is `size` bytes at this address. No peer has rights; local work is posted with the buffers, whose
    // key keeps the region. The kernel pins the pages, so even memory that is freed before the region is deregistered
    // could not be another's under the device's hands.
    let region = unsafe { MemoryRegion::new(domain, block.as_mut_ptr(), size, access) }?;
    let key = Arc::new(BlockKey { region: Deferred::new(region, &pool) });
    Ok((0..count).map(|_| Buf::registered(block.split_to(len), key.clone())).collect())
}
