//! From a number that the device has chosen to what has it: QPs, memory regions, shared receive queues.

use std::marker::PhantomData;
use std::ops::RangeInclusive;

use ibwire::{Qpn, RKey};
use rand::RngExt;
use rand::rngs::ChaCha8Rng;
use slab::Slab;

/// A number that the device gives out.
pub(super) trait Number: Copy {
    /// Those that may be given out.
    const GIVEN: RangeInclusive<u32>;

    fn from_raw(raw: u32) -> Self;
    fn raw(self) -> u32;
}

impl Number for Qpn {
    /// 0, 1 and 0xffffff have meanings of their own.
    const GIVEN: RangeInclusive<u32> = 2..=0xff_fffe;

    fn from_raw(raw: u32) -> Self {
        Self::truncate(raw)
    }

    fn raw(self) -> u32 {
        self.get()
    }
}

impl Number for RKey {
    /// 0 is never valid (spec/softhca.md 4).
    const GIVEN: RangeInclusive<u32> = 1..=u32::MAX;

    fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    fn raw(self) -> u32 {
        self.0
    }
}

/// Things by number and by slot.
///
/// The numbers are drawn at random among those whose low bits nothing else has: the low bits are the index, one look-up
/// is one comparison, and distinct low bits stay distinct when the index doubles.
#[derive(Debug)]
pub(super) struct Table<N, T> {
    /// Slot plus one by the low bits of the number; 0 is free. A power of two, at least twice as many as there are things.
    index: Vec<u32>,
    slots: Slab<(u32, T)>,
    numbers: PhantomData<N>,
}

impl<N: Number, T> Table<N, T> {
    /// Half of all 24-bit numbers; the index has at most 2^24 entries.
    pub(super) const MOST: usize = 1 << 23;

    pub(super) fn new() -> Self {
        Self { index: vec![0; 64], slots: Slab::new(), numbers: PhantomData }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    fn home(&self, raw: u32) -> usize {
        raw as usize & (self.index.len() - 1)
    }

    /// Adds what `make` returns for a random free number and its slot. There must be room below [`MOST`](Self::MOST).
    pub(super) fn insert(&mut self, rng: &mut ChaCha8Rng, make: impl FnOnce(N, u32) -> T) -> N {
        self.insert_unless(rng, |_| false, make)
    }

    /// The same, with a number that is not `refused`; few may be.
    pub(super) fn insert_unless(
        &mut self,
        rng: &mut ChaCha8Rng,
        refused: impl Fn(N) -> bool,
        make: impl FnOnce(N, u32) -> T,
    ) -> N {
        if 2 * (self.slots.len() + 1) > self.index.len() {
            self.grow();
        }
        let raw = loop {
            let raw = rng.random_range(N::GIVEN);
            if self.index[self.home(raw)] == 0 && !refused(N::from_raw(raw)) {
                break raw;
            }
        };
        let entry = self.slots.vacant_entry();
        let slot = entry.key() as u32;
        entry.insert((raw, make(N::from_raw(raw), slot)));
        let home = self.home(raw);
        self.index[home] = slot + 1;
        N::from_raw(raw)
    }

    fn grow(&mut self) {
        self.index = vec![0; self.index.len() * 2];
        for (slot, (raw, _)) in &self.slots {
            let home = *raw as usize & (self.index.len() - 1);
            self.index[home] = slot as u32 + 1;
        }
    }

    fn slot(&self, raw: u32) -> Option<usize> {
        Some(self.index[self.home(raw)].checked_sub(1)? as usize)
    }

    pub(super) fn get(&self, number: N) -> Option<&T> {
        let (raw, thing) = self.slots.get(self.slot(number.raw())?)?;
        (*raw == number.raw()).then_some(thing)
    }

    pub(super) fn get_mut(&mut self, number: N) -> Option<&mut T> {
        let slot = self.slot(number.raw())?;
        let (raw, thing) = self.slots.get_mut(slot)?;
        (*raw == number.raw()).then_some(thing)
    }

    pub(super) fn contains(&self, number: N) -> bool {
        self.get(number).is_some()
    }

    /// The numbers in use, in the order of the slots.
    pub(super) fn numbers(&self) -> impl Iterator<Item = N> {
        self.slots.iter().map(|(_, (raw, _))| N::from_raw(*raw))
    }

    pub(super) fn at_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.slots.get_mut(slot as usize).map(|(_, thing)| thing)
    }

    pub(super) fn remove(&mut self, number: N) -> Option<T> {
        self.get(number)?;
        let home = self.home(number.raw());
        let slot = self.slot(number.raw())?;
        self.index[home] = 0;
        self.slots.try_remove(slot).map(|(_, thing)| thing)
    }
}
