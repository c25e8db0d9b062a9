//! What to do about a socket that cannot be read.

use std::time::{Duration, Instant};

/// Errors of one socket in a row.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    errors: u32,
    since: Option<Instant>,
    until: Option<Instant>,
}

/// What to do after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Try again at once.
    Again,
    /// Leave the socket alone until [`Backoff::until`].
    Rest,
    /// The socket is broken.
    GiveUp,
}

/// Errors in a row that are not waited for: some systems report one for each packet that a peer's host refused.
const AT_ONCE: u32 = 8;
/// The first wait; each further one is twice as long.
const FIRST: Duration = Duration::from_millis(1);
/// The longest wait.
const LONGEST: Duration = Duration::from_secs(1);
/// How long nothing but errors may come.
pub(super) const GIVE_UP: Duration = Duration::from_secs(10);

impl Backoff {
    /// Takes note of an error.
    pub(super) fn failed(&mut self, now: Instant) -> Verdict {
        let since = *self.since.get_or_insert(now);
        self.errors = self.errors.saturating_add(1);
        if now.duration_since(since) >= GIVE_UP {
            return Verdict::GiveUp;
        }
        let Some(waits) = self.errors.checked_sub(AT_ONCE + 1) else { return Verdict::Again };
        let wait = 2u32.checked_pow(waits).map_or(LONGEST, |factor| (FIRST * factor).min(LONGEST));
        self.until = Some(now + wait);
        Verdict::Rest
    }

    /// The socket works.
    pub(super) fn worked(&mut self) {
        *self = Self::default();
    }

    /// When the socket is to be tried again, if it is left alone.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Whether the socket is to be left alone; no longer, once the time is over.
    pub(super) fn rests(&mut self, now: impl FnOnce() -> Instant) -> bool {
        let rests = self.until.is_some_and(|until| now() < until);
        if !rests {
            self.until = None;
        }
        rests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_second_and_end_after_ten() {
        let mut backoff = Backoff::default();
        let start = Instant::now();
        for _ in 0..AT_ONCE {
            assert_eq!(backoff.failed(start), Verdict::Again);
            assert!(!backoff.rests(|| start));
        }
        let (mut now, mut waits) = (start, Vec::new());
        while backoff.failed(now) == Verdict::Rest {
            let until = backoff.until().unwrap();
            assert!(backoff.rests(|| now) && !backoff.rests(|| until));
            assert_eq!(backoff.until(), None);
            waits.push((until - now).as_millis());
            now = until;
        }
        assert_eq!(waits[..11], [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000]);
        assert!(waits[11..].iter().all(|wait| *wait == 1000));
        assert!((GIVE_UP..=GIVE_UP + LONGEST).contains(&(now - start)), "{waits:?}");
    }

    #[test]
    fn a_socket_that_works_starts_afresh() {
        let mut backoff = Backoff::default();
        let start = Instant::now();
        while backoff.failed(start) == Verdict::Again {}
        backoff.worked();
        assert!(!backoff.rests(|| start));
        assert_eq!(backoff.failed(start + 2 * GIVE_UP), Verdict::Again);
    }
}
