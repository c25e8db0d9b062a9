//! Shared receive queues.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ibdev::{DeviceError, PostError, RecvWr, SgList, SharedReceiveQueue};
use rdma_sys::{ibv_srq, ibv_srq_attr, ibv_srq_attr_mask, ibv_srq_init_attr};

use super::domain::Domain;
use super::table::Table;
use super::work::{self, Places};
use super::{Raw, at_most, check};
use crate::counters::{add, count};
use crate::pool::Deferred;

/// A shared receive queue of the contract. Dropped, it is destroyed once the last queue pair that uses it is.
#[derive(Debug)]
pub(crate) struct VerbsSrq(Deferred<Arc<Srq>>);

impl VerbsSrq {
    /// Slow.
    pub(super) fn new(domain: Arc<Domain>, max_wr: u32, max_sge: u32) -> Result<Self, DeviceError> {
        let pool = domain.hca().pool().clone();
        Ok(Self(Deferred::new(Arc::new(Srq::new(domain, max_wr, max_sge)?), &pool)))
    }

    /// The queue behind the trait object, if it is of this domain.
    pub(super) fn of(srq: &dyn SharedReceiveQueue, domain: &Arc<Domain>) -> Result<Arc<Srq>, DeviceError> {
        match srq.as_any().downcast_ref::<Self>() {
            Some(srq) if Arc::ptr_eq(&srq.0.domain, domain) => Ok(Arc::clone(&srq.0)),
            _ => Err(DeviceError::Unsupported { what: "a shared receive queue of another domain or device" }),
        }
    }
}

impl SharedReceiveQueue for VerbsSrq {
    fn number(&self) -> u32 {
        self.0.number
    }

    fn post_recv(&self, work: &mut VecDeque<RecvWr>) -> Result<(), PostError> {
        self.0.post(work)
    }

    fn set_limit(&self, limit: u32) -> Result<(), DeviceError> {
        self.0.set_limit(limit)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The queue. Queue pairs that take from it keep it.
#[derive(Debug)]
pub(super) struct Srq {
    raw: Raw<ibv_srq>,
    pub(super) number: u32,
    max_sge: u32,
    pub(super) places: Arc<Places>,
    /// The callers' ids and the buffers.
    posted: Mutex<Table<(u64, SgList)>>,
    domain: Arc<Domain>,
}

impl Srq {
    fn new(domain: Arc<Domain>, max_wr: u32, max_sge: u32) -> Result<Self, DeviceError> {
        let number = domain.hca().new_srq_number();
        let mut init = ibv_srq_init_attr {
            srq_context: std::ptr::without_provenance_mut(number as usize),
            attr: ibv_srq_attr { max_wr: max_wr.max(1), max_sge: max_sge.max(1), srq_limit: 0 },
        };
        // SAFETY: the domain outlives the queue, which keeps it; the queue's context is a number.
        let srq = unsafe { rdma_sys::ibv_create_srq(domain.raw(), &raw mut init) };
        let raw = Raw::new(srq, "create a shared receive queue")?;
        let places = Arc::new(Places::new(max_wr));
        Ok(Self { raw, number, max_sge, places, posted: Mutex::default(), domain })
    }

    pub(super) fn raw(&self) -> *mut ibv_srq {
        self.raw.get()
    }

    fn post(&self, work: &mut VecDeque<RecvWr>) -> Result<(), PostError> {
        if self.domain.hca().is_gone() {
            return Err(PostError::Gone);
        }
        while !work.is_empty() {
            let before = work.len();
            let result = work::post_receives(
                work,
                &self.places,
                self.max_sge as usize,
                &self.domain,
                |receives, with_id| {
                    let mut posted = self.posted();
                    for RecvWr { id, sg } in receives {
                        with_id(posted.insert((id, sg)) | Table::<()>::SPARE_BIT);
                    }
                },
                |id| self.take(id & !Table::<()>::SPARE_BIT),
                |first, refused| {
                    // SAFETY: the queue lives while `self` does. The list and its entries are read during the call. The memory
                    // that they name stays in `posted`, so nobody touches it before the completion, or before the queue
                    // is destroyed.
                    unsafe { rdma_sys::ibv_post_srq_recv(self.raw(), first, refused) }
                },
            );
            add(&self.domain.hca().counters().receives_posted, before - work.len());
            result?;
        }
        Ok(())
    }

    /// Takes a receive, by the number that it was posted with.
    pub(super) fn take(&self, number: u64) -> Option<(u64, SgList)> {
        self.posted().remove(number)
    }

    fn set_limit(&self, limit: u32) -> Result<(), DeviceError> {
        at_most("limit of a shared receive queue", limit, self.places.max())?;
        self.domain.hca().check_there()?;
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        let mask = ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 as i32;
        // SAFETY: the queue lives while `self` does; the attributes are read during the call only.
        let result = unsafe { rdma_sys::ibv_modify_srq(self.raw(), &raw mut attr, mask) };
        check(result, "set the limit of a shared receive queue")
    }

    fn posted(&self) -> MutexGuard<'_, Table<(u64, SgList)>> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        let hca = self.domain.hca();
        // SAFETY: this is the last owner: queue pairs keep an `Arc` of it. Its events are acknowledged when they are read.
        if unsafe { rdma_sys::ibv_destroy_srq(self.raw()) } != 0 {
            count(&hca.counters().destroy_failures);
            if !hca.is_gone() {
                std::mem::forget(std::mem::take(&mut *self.posted())); // the device may still write it
            }
        }
    }
}
