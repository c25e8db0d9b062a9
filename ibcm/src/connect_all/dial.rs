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

/// What a turn has that begins when the end of all has just come: enough for one REQ.
const SHORTEST_TURN: Duration = Duration::from_millis(1);

/// One peer, and what was tried.
pub(super) struct Dial {
    index: usize,
    gid: Gid,
    service_id: ServiceId,
    done: Attempts,
    first: Option<Instant>,
    /// It rests until then.
    rests_until: Option<Instant>,
}

/// How a turn ended.
pub(super) struct Outcome {
    pub(super) dial: Dial,
    pub(super) result: Result<Connection, ConnectError>,
}

impl Dial {
    pub(super) fn new(index: usize, (gid, service_id): (Gid, ServiceId)) -> Self {
        Self { index, gid, service_id, done: Attempts::default(), first: None, rests_until: None }
    }

    /// How often the peer was tried.
    pub(super) const fn tries(&self) -> u32 {
        self.done.made
    }

    /// It is not to be tried again before `until`.
    pub(super) fn rest(&mut self, until: Instant) {
        self.rests_until = Some(until);
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
        self.first.get_or_insert_with(now);
        let connect = Connect::to_peer(hca, self.gid, self.service_id).retry(settings.retry.clone());
        let connect = (settings.each)(self.index, connect);
        async move {
            if let Some(until) = self.rests_until.take() {
                tokio::time::sleep_until(until.into()).await;
            }
            let left = end.map(|end| end.saturating_duration_since(now()).max(SHORTEST_TURN));
            let result = connect.go_on(left, &mut self.done).await;
            Outcome { dial: self, result }
        }
    }
}
