//! From a QP number in a packet to the QP.

use ibwire::Qpn;
use rand::RngExt;
use rand::rngs::ChaCha8Rng;
use slab::Slab;

use super::qp::Qp;

/// The QPs by number and by slot.
///
/// The device chooses the numbers, so it draws only those whose low bits no other QP has: the low bits are the
/// index, one look-up is one comparison, and distinct low bits stay distinct when the index doubles.
#[derive(Debug)]
pub(super) struct QpTable {
    /// Slot plus one by the low bits of the QPN; 0 is free. A power of two, at least twice the number of QPs.
    index: Vec<u32>,
    qps: Slab<Qp>,
}

impl QpTable {
    /// Half of all numbers; the index has at most 2^24 entries.
    pub(super) const MAX_QPS: usize = 1 << 23;
    /// 0, 1 and 0xffffff have meanings of their own.
    const NUMBERS: std::ops::RangeInclusive<u32> = 2..=0xff_fffe;

    pub(super) fn new() -> Self {
        Self { index: vec![0; 64], qps: Slab::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.qps.len()
    }

    fn home(&self, qpn: Qpn) -> usize {
        qpn.get() as usize & (self.index.len() - 1)
    }

    /// Adds the QP that `make` returns for a random free number and its slot. There must be room below
    /// [`MAX_QPS`](Self::MAX_QPS).
    pub(super) fn insert(&mut self, rng: &mut ChaCha8Rng, make: impl FnOnce(Qpn, u32) -> Qp) -> Qpn {
        if 2 * (self.qps.len() + 1) > self.index.len() {
            self.grow();
        }
        let qpn = loop {
            let qpn = Qpn::truncate(rng.random_range(Self::NUMBERS));
            if self.index[self.home(qpn)] == 0 {
                break qpn;
            }
        };
        let entry = self.qps.vacant_entry();
        let slot = entry.key() as u32;
        entry.insert(make(qpn, slot));
        let home = self.home(qpn);
        self.index[home] = slot + 1;
        qpn
    }

    fn grow(&mut self) {
        self.index = vec![0; self.index.len() * 2];
        for (slot, qp) in &self.qps {
            let home = qp.qpn.get() as usize & (self.index.len() - 1);
            self.index[home] = slot as u32 + 1;
        }
    }

    pub(super) fn get_mut(&mut self, qpn: Qpn) -> Option<&mut Qp> {
        let slot = self.index[self.home(qpn)].checked_sub(1)?;
        self.qps.get_mut(slot as usize).filter(|qp| qp.qpn == qpn)
    }

    pub(super) fn contains(&self, qpn: Qpn) -> bool {
        let slot = self.index[self.home(qpn)].checked_sub(1);
        slot.and_then(|slot| self.qps.get(slot as usize)).is_some_and(|qp| qp.qpn == qpn)
    }

    /// The numbers in use, in the order of the slots.
    pub(super) fn numbers(&self) -> impl Iterator<Item = Qpn> {
        self.qps.iter().map(|(_, qp)| qp.qpn)
    }

    pub(super) fn at_mut(&mut self, slot: u32) -> Option<&mut Qp> {
        self.qps.get_mut(slot as usize)
    }

    pub(super) fn remove(&mut self, qpn: Qpn) -> Option<Qp> {
        let slot = self.get_mut(qpn)?.slot;
        let home = self.home(qpn);
        self.index[home] = 0;
        self.qps.try_remove(slot as usize)
    }
}
