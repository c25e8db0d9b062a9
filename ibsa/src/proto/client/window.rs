//! How many requests may be under way.

use std::time::{Duration, Instant};

use crate::proto::after;

/// A window that overload halves and answers widen again.
#[derive(Debug)]
pub(super) struct Window {
    max: u32,
    limit: u32,
    /// Answers since it was widened.
    answers: u32,
    /// Until then overload that shows is still the last one.
    calm_until: Option<Instant>,
}

impl Window {
    pub(super) fn new(max: u32) -> Self {
        let max = max.max(1);
        Self { max, limit: max, answers: 0, calm_until: None }
    }

    pub(super) const fn limit(&self) -> u32 {
        self.limit
    }

    pub(super) fn answered(&mut self) {
        self.answers += 1;
        if self.answers >= self.limit && self.limit < self.max {
            self.limit += 1;
            self.answers = 0;
        }
    }

    /// Silence or BUSY. What shows within `span` of the last one halves nothing again.
    pub(super) fn overloaded(&mut self, now: Instant, span: Duration) {
        if self.calm_until.is_some_and(|until| now < until) {
            return;
        }
        self.calm_until = Some(after(now, span));
        self.limit = (self.limit / 2).max(1);
        self.answers = 0;
    }
}
