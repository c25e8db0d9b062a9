//! Requests that were reported: those that wait for their answer, and for a while the answers given, so that a repeated
//! request is no second one (spec/cm.md 4.13).

use std::collections::VecDeque;
use std::time::Instant;

use hashbrown::HashMap;
use ibdev::MAD_LEN;
use ibwire::{CommId, ServiceId, TransactionId};
use slab::Slab;

use super::super::ids::{Keyed, Source};
use super::super::sgids::Address;
use super::handle::{SidrRequestHandle, SidrServiceId};

/// What makes two requests the same. On RoCE there is no LID to tell hosts apart, so the GID is part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) source: Source,
    pub(super) id: CommId,
    pub(super) service_id: ServiceId,
}

/// A request without an answer.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) key: Key,
    pub(super) tid: TransactionId,
    pub(super) back: Address,
    pub(super) service: SidrServiceId,
}

/// What is known of a request.
#[derive(Debug)]
pub(super) enum Known<'a> {
    /// Its answer is coming.
    Pending,
    /// It was answered by this MAD.
    Answered(&'a [u8; MAD_LEN]),
}

#[derive(Debug, Clone, Copy)]
enum Place {
    Pending,
    /// The number of its answer.
    Answered(u64),
}

#[derive(Debug)]
struct Answered {
    key: Key,
    mad: Box<[u8; MAD_LEN]>,
    /// `None`: as long as there is room.
    until: Option<Instant>,
}

impl Answered {
    fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

/// Pending requests, whose number their services bound, and a bounded number of answers; the oldest make room. Answers have
/// numbers in the order of their making.
#[derive(Debug)]
pub(super) struct Requests {
    capacity: usize,
    pending: Slab<(u32, Pending)>,
    generation: u32,
    answers: VecDeque<Answered>,
    first: u64,
    places: HashMap<Key, Place, Keyed>,
}

impl Requests {
    pub(super) fn new(capacity: usize, keyed: Keyed) -> Self {
        Self {
            capacity,
            pending: Slab::new(),
            generation: 0,
            answers: VecDeque::new(),
            first: 0,
            places: HashMap::with_hasher(keyed),
        }
    }

    /// What is known of a request.
    pub(super) fn find(&self, now: Instant, key: &Key) -> Option<Known<'_>> {
        match self.places.get(key)? {
            Place::Pending => Some(Known::Pending),
            Place::Answered(number) => {
                let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
                let answered = self.answers.get(index).filter(|answered| !answered.is_over(now))?;
                Some(Known::Answered(&answered.mad))
            }
        }
    }

    /// A request that is not known waits for its answer from now on.
    pub(super) fn insert(&mut self, pending: Pending) -> SidrRequestHandle {
        self.generation = self.generation.wrapping_add(1);
        self.places.insert(pending.key, Place::Pending);
        let slot = self.pending.insert((self.generation, pending)) as u32;
        SidrRequestHandle { slot, generation: self.generation }
    }

    /// Takes a request that is being answered; `None` if there is no such.
    pub(super) fn take(&mut self, handle: SidrRequestHandle) -> Option<Pending> {
        let (generation, _) = self.pending.get(handle.slot as usize)?;
        if *generation != handle.generation {
            return None;
        }
        let (_, pending) = self.pending.remove(handle.slot as usize);
        self.places.remove(&pending.key);
        Some(pending)
    }

    /// Remembers an answer until then.
    pub(super) fn remember(&mut self, now: Instant, until: Option<Instant>, key: Key, mad: &[u8; MAD_LEN]) {
        while self.answers.len() >= self.capacity
            || self.answers.front().is_some_and(|oldest| oldest.is_over(now))
        {
            if !self.forget_oldest() {
                return;
            }
        }
        self.places.insert(key, Place::Answered(self.first + self.answers.len() as u64));
        self.answers.push_back(Answered { key, mad: Box::new(*mad), until });
    }

    /// Those that wait for their answer.
    pub(super) fn undecided(&self) -> impl Iterator<Item = SidrRequestHandle> + '_ {
        let handle = |(slot, &(generation, _)): (usize, &(u32, Pending))| SidrRequestHandle {
            slot: slot as u32,
            generation,
        };
        self.pending.iter().map(handle)
    }

    /// How many these are.
    pub(super) fn undecided_len(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn clear(&mut self) {
        self.pending.clear();
        self.answers.clear();
        self.places.clear();
    }

    fn forget_oldest(&mut self) -> bool {
        let Some(answered) = self.answers.pop_front() else { return false };
        // The same request may have come again after its answer had run out.
        if matches!(self.places.get(&answered.key), Some(Place::Answered(number)) if *number == self.first) {
            self.places.remove(&answered.key);
        }
        self.first += 1;
        true
    }

    /// How many requests and answers are held, and under how many names.
    #[cfg(test)]
    pub(super) fn held(&self) -> [usize; 3] {
        [self.pending.len(), self.answers.len(), self.places.len()]
    }
}
