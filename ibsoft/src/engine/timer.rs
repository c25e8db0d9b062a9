//! When QPs want to be looked at again.

use std::collections::BTreeSet;
use std::time::Instant;

/// At most one entry a QP slot. An entry may be earlier than the QP's deadline, never later: deadlines that move
/// back, as an ack timeout does with each ACK, cost nothing until the entry comes up and is armed anew.
#[derive(Debug, Default)]
pub(super) struct Timers {
    order: BTreeSet<(Instant, u32)>,
    armed: Vec<Option<Instant>>,
}

impl Timers {
    /// Sees to it that `slot` comes up at `at` at the latest.
    pub(super) fn arm(&mut self, slot: u32, at: Instant) {
        let index = slot as usize;
        if index >= self.armed.len() {
            self.armed.resize(index + 1, None);
        }
        match self.armed[index] {
            Some(armed) if armed <= at => return,
            Some(armed) => _ = self.order.remove(&(armed, slot)),
            None => {}
        }
        self.order.insert((at, slot));
        self.armed[index] = Some(at);
    }

    /// Forgets `slot`.
    pub(super) fn remove(&mut self, slot: u32) {
        if let Some(armed) = self.armed.get_mut(slot as usize).and_then(Option::take) {
            self.order.remove(&(armed, slot));
        }
    }

    /// Takes the first slot that is due.
    pub(super) fn expire(&mut self, now: Instant) -> Option<u32> {
        let &(at, slot) = self.order.first()?;
        (at <= now).then(|| {
            self.remove(slot);
            slot
        })
    }

    /// When the next slot comes up.
    pub(super) fn next(&self) -> Option<Instant> {
        self.order.first().map(|&(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn one_entry_a_slot_never_late() {
        let t0 = Instant::now();
        let at = |ms| t0 + Duration::from_millis(ms);
        let mut timers = Timers::default();
        timers.arm(3, at(10));
        timers.arm(3, at(20));
        timers.arm(1, at(15));
        assert_eq!(timers.next(), Some(at(10)));
        timers.arm(3, at(5));
        assert_eq!(timers.order.len(), 2);
        assert_eq!(timers.expire(at(4)), None);
        assert_eq!(timers.expire(at(5)), Some(3));
        assert_eq!(timers.expire(at(10)), None);
        timers.remove(1);
        timers.remove(7);
        assert_eq!(timers.next(), None);
    }
}
