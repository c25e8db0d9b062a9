//! What must come of the work that one end of a connection posts, computed without an engine.
//!
//! The peer carries out requests in the order in which they were posted, each once. So its memory is at any time the
//! image after some of them, and a byte that is being looked at has its value after some number of them between two
//! bounds: those that must have been carried out, and those that can have been.

use std::collections::VecDeque;
use std::ops::Range;

use super::super::pattern;

/// Bytes of one of the peer's regions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) region: usize,
    pub(super) bytes: Range<usize>,
}

/// What a work request does to the peer's memory, or wants to know of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing: a send, an operation of no bytes, one that works on memory which others change too.
    Nothing,
    /// The pattern of the work request's number goes there.
    Write(Place),
    Read(Place),
    /// To the word that begins there.
    FetchAdd {
        at: Place,
        add: u64,
    },
    CompareSwap {
        at: Place,
        compare: u64,
        swap: u64,
    },
}

impl Effect {
    pub(super) fn place(&self) -> Option<&Place> {
        match self {
            Self::Nothing => None,
            Self::Write(place) | Self::Read(place) => Some(place),
            Self::FetchAdd { at, .. } | Self::CompareSwap { at, .. } => Some(at),
        }
    }

    /// Carries it out on the bytes from `start` on of region `region`, which hold words as a whole.
    fn apply(&self, number: u64, region: usize, start: usize, image: &mut [u8]) {
        let Some(place) = self.place().filter(|place| place.region == region) else { return };
        let (from, to) = (place.bytes.start.max(start), place.bytes.end.min(start + image.len()));
        if from >= to {
            return;
        }
        let bytes = &mut image[from - start..to - start];
        match self {
            Self::Nothing | Self::Read(_) => {}
            Self::Write(_) => {
                for (i, byte) in bytes.iter_mut().enumerate() {
                    *byte = pattern(number, from - place.bytes.start + i);
                }
            }
            Self::FetchAdd { add, .. } => {
                let sum = word(bytes).wrapping_add(*add);
                bytes.copy_from_slice(&sum.to_ne_bytes());
            }
            Self::CompareSwap { compare, swap, .. } => {
                if word(bytes) == *compare {
                    bytes.copy_from_slice(&swap.to_ne_bytes());
                }
            }
        }
    }
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes.try_into().expect("a whole word"))
}

/// A message that takes a receive of the peer.
#[derive(Debug, Clone)]
pub(super) struct Arrival {
    /// Number of the work request.
    pub(super) number: u64,
    /// Whether it is a write, which leaves the receive's buffers empty.
    pub(super) is_write: bool,
    pub(super) len: usize,
    pub(super) imm: Option<u32>,
    /// What was written last before it, or by it: the peer sees that now.
    pub(super) seen: Option<Place>,
}

#[derive(Debug)]
struct Posted {
    effect: Effect,
    signaled: bool,
    fence: bool,
}

/// One direction of a connection.
#[derive(Debug)]
pub(super) struct Model {
    /// The peer's regions after the first `done` work requests.
    regions: Vec<Vec<u8>>,
    done: u64,
    /// The others.
    pending: VecDeque<Posted>,
    /// Messages that the peer has not seen yet.
    pub(super) arrivals: VecDeque<Arrival>,
    last_write: Option<Place>,
}

impl Model {
    pub(super) fn new(regions: Vec<Vec<u8>>) -> Self {
        Self { regions, done: 0, pending: VecDeque::new(), arrivals: VecDeque::new(), last_write: None }
    }

    /// How many work requests were posted: the number of the next one.
    pub(super) fn posted(&self) -> u64 {
        self.done + self.pending.len() as u64
    }

    /// How many were posted and are not known to be complete.
    pub(super) fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// One more work request was posted. A message that takes a receive comes with whether it is a write, its length and
    /// its immediate.
    pub(super) fn post(
        &mut self,
        effect: Effect,
        signaled: bool,
        fence: bool,
        takes: Option<(bool, usize, Option<u32>)>,
    ) {
        let number = self.posted();
        if let Effect::Write(place) = &effect {
            self.last_write = Some(place.clone());
        }
        if let Some((is_write, len, imm)) = takes {
            let seen = self.last_write.clone();
            self.arrivals.push_back(Arrival { number, is_write, len, imm, seen });
        }
        self.pending.push_back(Posted { effect, signaled, fence });
    }

    /// All before `number` are complete. Those that should have said so are an error.
    pub(super) fn retire(&mut self, number: u64) -> Result<(), String> {
        while self.done < number {
            let Some(posted) = self.pending.front() else { return Err(format!("{number} was never posted")) };
            if posted.signaled {
                return Err(format!("{number} completes before {}", self.done));
            }
            self.advance();
        }
        (self.done == number).then_some(()).ok_or_else(|| format!("{number} completes again"))
    }

    fn advance(&mut self) {
        if let Some(posted) = self.pending.pop_front() {
            for (index, region) in self.regions.iter_mut().enumerate() {
                posted.effect.apply(self.done, index, 0, region);
            }
            self.done += 1;
        }
    }

    /// The work request `number` has completed well, and brought this.
    pub(super) fn complete(&mut self, number: u64, result: &[u8]) -> Result<(), String> {
        self.retire(number)?;
        let Some(posted) = self.pending.front() else { return Err(format!("{number} was never posted")) };
        match &posted.effect {
            Effect::Read(place) => self.check(place, result, number, true)?,
            // Nothing else may change these words, and later requests cannot have been carried out before.
            Effect::FetchAdd { at, .. } | Effect::CompareSwap { at, .. } => {
                let before = &self.regions[at.region][at.bytes.clone()];
                if before != result {
                    return Err(format!("atomic {number} gives {result:?} for {before:?}"));
                }
            }
            Effect::Nothing | Effect::Write(_) => {}
        }
        self.advance();
        Ok(())
    }

    /// What a work request does that has not completed.
    pub(super) fn effect(&self, number: u64) -> Option<&Effect> {
        let at = usize::try_from(number.checked_sub(self.done)?).ok()?;
        self.pending.get(at).map(|posted| &posted.effect)
    }

    /// Whether `actual` can be what is at `place`, when the first `from` work requests were carried out and any number of
    /// the others; with `fenced` only those that do not wait for a read that is now complete.
    pub(super) fn check(&self, place: &Place, actual: &[u8], from: u64, fenced: bool) -> Result<(), String> {
        let region = &self.regions[place.region];
        let start = place.bytes.start & !7;
        let end = place.bytes.end.next_multiple_of(8).min(region.len());
        let mut image = region[start..end].to_vec();
        let inner = place.bytes.start - start..place.bytes.end - start;
        let mut possible = vec![false; actual.len()];
        let mut compare = |image: &[u8]| {
            let bytes = image[inner.clone()].iter().zip(actual);
            possible
                .iter_mut()
                .zip(bytes)
                .for_each(|(possible, (image, actual))| *possible |= image == actual);
        };
        let mut number = self.done;
        for posted in &self.pending {
            if number >= from {
                compare(&image);
                if fenced && number > from && posted.fence {
                    break;
                }
            }
            posted.effect.apply(number, place.region, start, &mut image);
            number += 1;
        }
        if number == self.posted() {
            compare(&image);
        }
        match possible.iter().position(|possible| !possible) {
            None => Ok(()),
            Some(at) => Err(format!(
                "byte {at} of {place:?} is {:#04x}, after {from}..={} of {} requests",
                actual[at],
                number,
                self.posted()
            )),
        }
    }

    /// Whether `actual` can be a whole region now.
    pub(super) fn check_region(&self, region: usize, actual: &[u8]) -> Result<(), String> {
        let place = Place { region, bytes: 0..self.regions[region].len() };
        self.check(&place, actual, self.done, false)
    }
}
