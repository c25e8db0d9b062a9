//! Address handles.

use std::any::Any;
use std::sync::Arc;

use ibdev::{AddressHandle, AddressVector, DeviceError};
use rdma_sys::ibv_ah;

use super::Raw;
use super::domain::Domain;
use crate::counters::count;
use crate::pool::Deferred;

/// An address handle of the contract.
#[derive(Debug)]
pub(crate) struct VerbsAh {
    av: AddressVector,
    inner: Deferred<Ah>,
}

impl VerbsAh {
    /// Slow.
    pub(super) fn new(domain: Arc<Domain>, av: AddressVector) -> Result<Self, DeviceError> {
        let hca = domain.hca().clone();
        let (mut attr, _) = hca.address_attr(&av)?;
        // SAFETY: the domain lives while the handle does, which keeps it; the attributes are read during the call only.
        let ah = unsafe { rdma_sys::ibv_create_ah(domain.raw(), &raw mut attr) };
        let raw = Raw::new(ah, "create an address handle")?;
        Ok(Self { av, inner: Deferred::new(Ah { raw, domain }, hca.pool()) })
    }

    /// The handle behind the trait object, if it is of this domain.
    pub(super) fn of<'a>(ah: &'a dyn AddressHandle, domain: &Arc<Domain>) -> Option<&'a Self> {
        ah.as_any().downcast_ref::<Self>().filter(|ah| Arc::ptr_eq(&ah.inner.domain, domain))
    }

    pub(super) fn raw(&self) -> *mut ibv_ah {
        self.inner.raw.get()
    }
}

impl AddressHandle for VerbsAh {
    fn av(&self) -> &AddressVector {
        &self.av
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[derive(Debug)]
struct Ah {
    raw: Raw<ibv_ah>,
    domain: Arc<Domain>,
}

impl Drop for Ah {
    fn drop(&mut self) {
        // SAFETY: made by `ibv_create_ah`, destroyed once; its domain lives until after this. Posted datagrams keep the handle.
        if unsafe { rdma_sys::ibv_destroy_ah(self.raw.get()) } != 0 {
            count(&self.domain.hca().counters().destroy_failures);
        }
    }
}
