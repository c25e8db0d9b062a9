//! The timers of all connections in one queue.
//!
//! Each connection has one timer, whose meaning follows from its state. The connection holds the instant; the queue
//! holds entries that count only while they agree with it, so that stopping a timer costs nothing. Entries that no
//! longer count are swept out before they outnumber the others.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

/// The timer of one connection.
#[derive(Debug, Default)]
pub(super) struct Timer(Option<Instant>);

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, u32)>>,
    running: usize,
}

/// So few entries are not worth a sweep.
const SWEEP_FROM: usize = 64;

impl Timer {
    fn is_at(&self, at: Instant) -> bool {
        self.0 == Some(at)
    }
}

impl Timers {
    /// Starts the timer of the connection in `slot`; a running one is replaced.
    pub(super) fn start(&mut self, timer: &mut Timer, slot: u32, at: Instant) {
        if timer.0.replace(at).is_none() {
            self.running += 1;
        }
        self.heap.push(Reverse((at, slot)));
    }

    pub(super) fn stop(&mut self, timer: &mut Timer) {
        if timer.0.take().is_some() {
            self.running -= 1;
        }
    }

    /// The next timer to run out. `timer_of` finds the timer of the connection in a slot.
    pub(super) fn next<'a>(&mut self, timer_of: impl Fn(u32) -> Option<&'a Timer>) -> Option<Instant> {
        let counts = |(at, slot): (Instant, u32)| timer_of(slot).is_some_and(|timer| timer.is_at(at));
        if self.heap.len() > 2 * self.running + SWEEP_FROM {
            self.heap.retain(|&Reverse(entry)| counts(entry));
        }
        while let Some(&Reverse(entry)) = self.heap.peek() {
            if counts(entry) {
                return Some(entry.0);
            }
            self.heap.pop();
        }
        None
    }

    /// The slot of a connection whose timer has run out at `now`.
    pub(super) fn pop_due<'a>(
        &mut self,
        now: Instant,
        timer_of: impl Fn(u32) -> Option<&'a Timer>,
    ) -> Option<u32> {
        if self.next(timer_of)? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, slot))| slot)
    }

    pub(super) fn clear(&mut self) {
        self.heap.clear();
        self.running = 0;
    }

    #[cfg(test)]
    pub(super) fn running(&self) -> usize {
        self.running
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn cm_t20_a_stopped_timer_does_not_run_out() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let (mut timers, mut each) =
            (Timers::default(), [Timer::default(), Timer::default(), Timer::default()]);
        for (slot, timer) in each.iter_mut().enumerate() {
            timers.start(timer, slot as u32, start + ms(10 * (slot as u64 + 1)));
        }
        timers.stop(&mut each[0]);
        timers.start(&mut each[2], 2, start + ms(15));
        assert_eq!(timers.next(|slot| each.get(slot as usize)), Some(start + ms(15)));
        assert_eq!(timers.pop_due(start + ms(14), |slot| each.get(slot as usize)), None);
        assert_eq!(timers.pop_due(start + ms(30), |slot| each.get(slot as usize)), Some(2));
        timers.stop(&mut each[2]);
        assert_eq!(timers.pop_due(start + ms(30), |slot| each.get(slot as usize)), Some(1));
        timers.stop(&mut each[1]);
        assert_eq!(timers.next(|slot| each.get(slot as usize)), None);
        assert_eq!(timers.running(), 0);
    }

    #[test]
    fn dead_entries_are_swept() {
        let (start, mut timers, mut timer) = (Instant::now(), Timers::default(), Timer::default());
        for n in 1..100_000u32 {
            timers.start(&mut timer, 0, start + Duration::from_millis(n.into()));
            let at = timers.next(|_| Some(&timer));
            assert_eq!(at, Some(start + Duration::from_millis(n.into())));
            assert!(timers.heap.len() <= 2 + SWEEP_FROM);
        }
    }
}
