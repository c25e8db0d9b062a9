//! Notices that were told already.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ibwire::{Lid, TransactionId};

/// The last notices, so that their copies are known: those that the SA sends again because our acknowledgement was lost.
#[derive(Debug, Default)]
pub(super) struct Reports(VecDeque<(Instant, Lid, TransactionId)>);

/// How many are remembered.
const MOST: usize = 64;

/// For how long. OpenSM sends copies for less than a second (spec/sa.md 6.3); later its transaction IDs may be those of others.
pub(super) const AGE: Duration = Duration::from_secs(30);

impl Reports {
    /// Remembers a notice; whether it was not remembered yet.
    pub(super) fn is_new(&mut self, now: Instant, from: Lid, tid: TransactionId) -> bool {
        while let Some((since, ..)) = self.0.front()
            && now.saturating_duration_since(*since) >= AGE
        {
            self.0.pop_front();
        }
        if self.0.iter().any(|(_, lid, known)| (*lid, *known) == (from, tid)) {
            return false;
        }
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back((now, from, tid));
        true
    }

    /// From now on all are new.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}
