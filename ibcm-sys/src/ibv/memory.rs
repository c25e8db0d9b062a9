//! Registered memory.

use std::any::Any;
use std::sync::Arc;

use bytes::BytesMut;
use ibdev::{Buf, DeviceError, MemoryKey};
use rdma_sys::{ibv_access_flags, ibv_mr};

use super::{Deferred, ProtectionDomain, Raw};

/// The key of a block of buffers: the block is deregistered with the last of them.
#[derive(Debug)]
struct BlockKey {
    lkey: u32,
    /// The block's memory may be free before the region is gone. The region gives no remote rights, and local work that
    /// names its key is posted with the buffers, which keep this key: no access is left.
    region: Deferred<MemoryRegion>,
}

impl MemoryKey for BlockKey {
    fn lkey(&self) -> u32 {
        self.lkey
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[derive(Debug)]
struct MemoryRegion {
    raw: Raw<ibv_mr>,
    domain: Arc<ProtectionDomain>,
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: made by `ibv_reg_mr`, deregistered once; its domain lives until after this.
        unsafe { rdma_sys::ibv_dereg_mr(self.raw.get()) };
    }
}

/// The key by which work requests of this domain name the buffer, if it is registered there.
pub(super) fn lkey(buf: &Buf, domain: &Arc<ProtectionDomain>) -> Option<u32> {
    let key = buf.memory_key()?.as_any().downcast_ref::<BlockKey>()?;
    Arc::ptr_eq(&key.region.domain, domain).then_some(key.lkey)
}

/// `count` buffers of `len` bytes, parts of one registered block. Slow.
pub(crate) fn alloc(
    domain: Arc<ProtectionDomain>,
    count: usize,
    len: usize,
) -> Result<Vec<Buf>, DeviceError> {
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
    let mut block = BytesMut::zeroed(size);
    // SAFETY: the block's memory is `size` bytes at this address. The domain lives as long as the region, which keeps it. The
    // kernel pins the pages, so even memory that is freed too early could not be another's under the device's hands.
    let region = unsafe {
        rdma_sys::ibv_reg_mr(
            domain.raw(),
            block.as_mut_ptr().cast(),
            size,
            ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 as i32,
        )
    };
    let region = MemoryRegion {
        raw: Raw::new(region, "register memory; is the limit of locked memory (ulimit -l) too low?")?,
        domain,
    };
    // SAFETY: the region is alive, and its key never changes.
    let lkey = unsafe { (*region.raw.get()).lkey };
    let key = Arc::new(BlockKey { lkey, region: Deferred::new(region) });
    Ok((0..count).map(|_| Buf::registered(block.split_to(len), key.clone())).collect())
}
