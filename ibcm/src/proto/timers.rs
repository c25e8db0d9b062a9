//! The timers of all connections in one queue.
//!
//! Each connection has one timer, whose meaning follows from its state. The connection holds the instant; the queue
//! holds entries that count only while they agree with it, so that stopping a timer costs nothing. Entries that no
//! longer count are swept out before they outnumber the others.
//!
//! Most timers run for one of a few times (that of a REQ, of a TimeWait), so they come in order of time, each kind for
//! itself. The queue is a handful of sorted runs, to whose ends such timers are added; what fits none goes to a heap.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// The timer of one connection.
#[derive(Debug, Default)]
pub(super) struct Timer(Option<Tick>);

/// An instant in half its space: the nanoseconds from [`Tick::ZERO`] on are those from the queue's own zero on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Tick(NonZeroU64);

/// When, and the slot of the connection.
type Entry = (Tick, u32);

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Timers {
    /// Some instant close to those that come; the first that came.
    zero: Option<Instant>,
    runs: [VecDeque<Entry>; 8],
    heap: BinaryHeap<Reverse<Entry>>,
    running: usize,
    queued: usize,
}

/// So few entries are not worth a sweep.
const SWEEP_FROM: usize = 64;

impl Timer {
    fn is_at(&self, at: Tick) -> bool {
        self.0 == Some(at)
    }
}

impl Tick {
    /// In the middle: 292 years on both sides.
    const ZERO: u64 = 1 << 63;

    fn new(at: Instant, zero: Instant) -> Self {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let tick = match at.checked_duration_since(zero) {
            Some(after) => Self::ZERO.saturating_add(nanos(after)),
            None => Self::ZERO.saturating_sub(nanos(zero.duration_since(at))),
        };
        Self(NonZeroU64::new(tick).unwrap_or(NonZeroU64::MIN))
    }

    fn instant(self, zero: Instant) -> Instant {
        let tick = self.0.get();
        match tick.checked_sub(Self::ZERO) {
            Some(after) => zero + Duration::from_nanos(after),
            None => zero - Duration::from_nanos(Self::ZERO - tick),
        }
    }
}

impl Timers {
    /// Starts the timer of the connection in `slot`; a running one is replaced.
    pub(super) fn start(&mut self, timer: &mut Timer, slot: u32, at: Instant) {
        let at = Tick::new(at, *self.zero.get_or_insert(at));
        if timer.0.replace(at).is_none() {
            self.running += 1;
        }
        self.queued += 1;
        // The run that ends closest before; an empty one only if there is no other.
        let fitting = self.runs.iter_mut().filter(|run| run.back().is_none_or(|last| last.0 <= at));
        match fitting.max_by_key(|run| run.back().map(|last| last.0)) {
            Some(run) => run.push_back((at, slot)),
            None => self.heap.push(Reverse((at, slot))),
        }
    }

    /// Whether the timer does not run out until `at`.
    pub(super) fn runs_past(&self, timer: &Timer, at: Instant) -> bool {
        timer.0.zip(self.zero).is_none_or(|(due, zero)| due > Tick::new(at, zero))
    }

    pub(super) fn stop(&mut self, timer: &mut Timer) {
        if timer.0.take().is_some() {
            self.running -= 1;
        }
    }

    /// The next timer to run out. `timer_of` finds the timer of the connection in a slot.
    pub(super) fn next<'a>(&mut self, timer_of: impl Fn(u32) -> Option<&'a Timer>) -> Option<Instant> {
        let zero = self.zero?;
        self.first(timer_of).map(|(at, _)| at.instant(zero))
    }

    /// The slot of a connection whose timer has run out at `now`.
    pub(super) fn pop_due<'a>(
        &mut self,
        now: Instant,
        timer_of: impl Fn(u32) -> Option<&'a Timer>,
    ) -> Option<u32> {
        let now = Tick::new(now, self.zero?);
        let (_, slot) = self.first(timer_of).filter(|&(at, _)| at <= now)?;
        self.pop();
        Some(slot)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The first entry that counts; those before it are gone.
    fn first<'a>(&mut self, timer_of: impl Fn(u32) -> Option<&'a Timer>) -> Option<Entry> {
        let counts = |&(at, slot): &Entry| timer_of(slot).is_some_and(|timer| timer.is_at(at));
        if self.queued > 2 * self.running + SWEEP_FROM {
            self.runs.iter_mut().for_each(|run| run.retain(counts));
            self.heap.retain(|Reverse(entry)| counts(entry));
            self.queued = self.runs.iter().map(VecDeque::len).sum::<usize>() + self.heap.len();
        }
        loop {
            let entry = self.peek()?;
            if counts(&entry) {
                return Some(entry);
            }
            self.pop();
        }
    }

    fn peek(&self) -> Option<Entry> {
        let of_heap = self.heap.peek().map(|Reverse(entry)| entry);
        self.runs.iter().filter_map(VecDeque::front).chain(of_heap).min().copied()
    }

    /// Removes what [`Timers::peek`] shows.
    fn pop(&mut self) {
        let Some(entry) = self.peek() else { return };
        self.queued -= 1;
        match self.runs.iter_mut().find(|run| run.front() == Some(&entry)) {
            Some(run) => _ = run.pop_front(),
            None => _ = self.heap.pop(),
        }
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
        assert_eq!((timers.running, timers.queued), (0, 0));
    }

    #[test]
    fn timers_of_any_length_run_out_in_order() {
        let (start, mut timers) = (Instant::now(), Timers::default());
        let mut each: Vec<Timer> = (0..1000).map(|_| Timer::default()).collect();
        for (slot, timer) in each.iter_mut().enumerate() {
            let at = start + Duration::from_millis(slot as u64 * 7919 % 1009);
            timers.start(timer, slot as u32, at);
        }
        assert!(timers.runs.iter().all(|run| !run.is_empty()) && !timers.heap.is_empty());
        let mut last = start;
        for _ in 0..each.len() {
            let at = timers.next(|slot| each.get(slot as usize)).unwrap();
            let slot = timers.pop_due(at, |slot| each.get(slot as usize)).unwrap();
            assert!(!timers.runs_past(&each[slot as usize], at) && at >= last);
            timers.stop(&mut each[slot as usize]);
            last = at;
        }
        assert_eq!((timers.running, timers.queued), (0, 0));
    }

    #[test]
    fn dead_entries_are_swept() {
        let (start, mut timers, mut timer) = (Instant::now(), Timers::default(), Timer::default());
        for n in 1..100_000u32 {
            timers.start(&mut timer, 0, start + Duration::from_millis(n.into()));
            let at = timers.next(|_| Some(&timer));
            assert_eq!(at, Some(start + Duration::from_millis(n.into())));
            assert!(timers.queued <= 2 + SWEEP_FROM);
        }
    }

    /// Also behind one that lives.
    #[test]
    fn dead_entries_behind_a_living_one_are_swept() {
        let start = Instant::now();
        let (mut timers, mut each) = (Timers::default(), [Timer::default(), Timer::default()]);
        timers.start(&mut each[0], 0, start);
        for n in 1..10_000u32 {
            timers.start(&mut each[1], 1, start + Duration::from_millis(n.into()));
            assert_eq!(timers.next(|slot| each.get(slot as usize)), Some(start));
            assert!(timers.queued <= 4 + SWEEP_FROM, "{}", timers.queued);
        }
    }
}
