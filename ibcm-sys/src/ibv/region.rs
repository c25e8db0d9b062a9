//! Memory exposed to peers.

use std::any::Any;
use std::sync::Arc;

use ibdev::{Access, DeviceError, Region, RegionKey, SharedMemory};
use ibwire::RKey;

use super::attr;
use super::domain::Domain;
use super::memory::MemoryRegion;

/// The registration of exposed memory.
#[derive(Debug)]
struct VerbsRegion {
    /// None for memory of no bytes: no driver registers that, and peers need no key for it. Before `memory`: deregistered
    /// first, in the drop of whoever drops it, because the peer's access has to end at once.
    registered: Option<MemoryRegion>,
    memory: SharedMemory,
}

impl RegionKey for VerbsRegion {
    fn rkey(&self) -> RKey {
        RKey(self.registered.as_ref().map_or(0, MemoryRegion::rkey))
    }

    fn addr(&self) -> u64 {
        self.memory.words().as_ptr() as u64
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for VerbsRegion {
    fn drop(&mut self) {
        if self.registered.take().is_some_and(|registered| !registered.deregister()) {
            std::mem::forget(self.memory.clone()); // a peer may still reach it
        }
    }
}

/// Registers the words of `memory`, which peers and this process share. Slow.
pub(super) fn register(
    domain: Arc<Domain>,
    memory: SharedMemory,
    access: Access,
) -> Result<Region, DeviceError> {
    let registered = match memory.len() {
        0 => None,
        len => {
            let start = memory.words().as_ptr();
            // SAFETY: the words are `len` bytes or more at this address. They are atomics, so others may change them at any
            // time, and they live as long as the registration, whose owner keeps them.
            let region =
                unsafe { MemoryRegion::new(domain, start.cast_mut().cast(), len, attr::access(access)) };
            Some(region?)
        }
    };
    Ok(Region::new(Box::new(VerbsRegion { registered, memory: memory.clone() }), memory, access))
}
