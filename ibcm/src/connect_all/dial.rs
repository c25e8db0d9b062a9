//! One peer's turn.

use std::future::Future;
use std::time::{Duration, Instant};

use ibwire::{Gid, ServiceId};

use super::{Attempt, Settings};
use crate::clock::now;
use crate::connect::Connect;
use crate::connection::Connection;
use crate::error::{Attempts, ConnectError};
use crate::hca::Hca;
use crate::retry::Retry;

/// One peer, and what was tried.
pub(super) struct Dial {
    index: usize,
    gid: Gid,
    service_id: ServiceId,
    done: Attempts,
    first: Option<Instant>,
    /// What it met in its last turn, and until when it rests.
    met: Option<(ConnectError, Instant)>,
}

/// How a turn ended.
pub(super) struct Outcome {
    pub(super) dial: Dial,
    pub(super) result: Result<Connection, ConnectError>,
    /// When another turn may follow.
    pub(super) retry: Retry,
    /// Whether there was an attempt at all, and not just a value out of range or no time.
    pub(super) is_tried: bool,
}

impl Dial {
    pub(super) fn new(index: usize, (gid, service_id): (Gid, ServiceId)) -> Self {
        Self { index, gid, service_id, done: Attempts::default(), first: None, met: None }
    }

    /// How often the peer was tried.
    pub(super) const fn tries(&self) -> u32 {
        self.done.made
    }

    /// It met this error, and is not to be tried again before `until`.
    pub(super) fn rest(&mut self, error: ConnectError, until: Instant) {
        self.met = Some((error, until));
    }

    /// Its turn does not come any more: it ends with what it met, if it met anything.
    pub(super) fn cut_short(mut self, why: impl FnOnce() -> ConnectError) -> Attempt {
        let now = now();
        let error = self.met.take().map_or_else(why, |(met, _)| met.of_all(&self.done, now));
        self.ended(Err(error), now)
    }

    pub(super) fn ended(self, result: Result<Connection, ConnectError>, now: Instant) -> Attempt {
        let Self { index, gid, service_id, done, first, .. } = self;
        let took = first.map_or(Duration::ZERO, |first| now.saturating_duration_since(first));
        Attempt { index, gid, service_id, result, tries: done.made, took }
    }

    /// Finds the path and connects, within the peer's own deadline and before the `end` of all.
    pub(super) fn run(
        mut self,
        hca: &Hca,
        end: Option<Instant>,
        settings: &mut Settings,
    ) -> impl Future<Output = Outcome> + Send + use<> {
        let started = *self.first.get_or_insert_with(now);
        let connect = Connect::to_peer(hca, self.gid, self.service_id).retry(settings.retry.clone());
        let connect = (settings.each)(self.index, connect);
        let retry = connect.retry_rule().clone();
        async move {
            let met = self.met.take();
            if let Some((_, until)) = &met {
                tokio::time::sleep_until((*until).into()).await;
            }
            let made = self.done.made;
            let left = end.map(|end| end.saturating_duration_since(now()));
            let result = if left.is_some_and(|left| left.is_zero()) {
                Err(ConnectError::Deadline { waited: now().saturating_duration_since(started) })
            } else {
                connect.go_on(left, &mut self.done).await
            };
            let result = match (result, met) {
                // It came to nothing. What it met before says more.
                (Err(ConnectError::Deadline { .. }), Some((met, _))) => Err(met.of_all(&self.done, now())),
                (result, _) => result,
            };
            Outcome { is_tried: self.done.made > made, dial: self, result, retry }
        }
    }
}
