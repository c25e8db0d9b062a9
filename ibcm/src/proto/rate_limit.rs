//! How many answers a source gets.

use std::time::{Duration, Instant};

/// Counts answers per source and second in bounded memory: sources share a fixed number of counters by a keyed hash.
#[derive(Debug)]
pub(super) struct RateLimit {
    per_second: u32,
    counters: Box<[Counter]>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counter {
    since: Option<Instant>,
    count: u32,
}

impl RateLimit {
    pub(super) fn new(per_second: u32, counters: usize) -> Self {
        Self { per_second, counters: vec![Counter::default(); counters.max(1)].into() }
    }

    /// Whether the source with this hash may have one more now; counts it if so.
    pub(super) fn allows(&mut self, now: Instant, source: u64) -> bool {
        let index = source % self.counters.len() as u64;
        let counter = &mut self.counters[index as usize];
        let fresh =
            counter.since.is_some_and(|since| now.saturating_duration_since(since) < Duration::from_secs(1));
        if !fresh {
            *counter = Counter { since: Some(now), count: 0 };
        }
        counter.count = counter.count.saturating_add(1);
        counter.count <= self.per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_has_its_own_second() {
        let (start, mut limit) = (Instant::now(), RateLimit::new(3, 16));
        let allowed =
            |limit: &mut RateLimit, now, source| (0..10).filter(|_| limit.allows(now, source)).count();
        assert_eq!(allowed(&mut limit, start, 1), 3);
        assert_eq!(allowed(&mut limit, start, 2), 3);
        assert_eq!(allowed(&mut limit, start + Duration::from_millis(999), 1), 0);
        assert_eq!(allowed(&mut limit, start + Duration::from_secs(1), 1), 3);
    }
}
