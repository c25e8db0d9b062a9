//! Connections that ask whether their peer is still there.
//!
//! An idle reliable connection sends nothing, so it never notices that its peer is gone. With a keepalive it posts a
//! zero-length RDMA write when the peer was not heard for a period: that needs no memory, no rkey and no receive of the
//! peer, whose device answers by itself. One queue of times serves all connections of an HCA, and its driver looks after
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ibdev::qp::Rts;
use ibwire::TimeCode;

use crate::clock::now;
use crate::proto::{ConnHandle, Invalid, Limit, Value};
use crate::shared::{Counters, Shared};
use crate::slot::Slot;
use crate::sync::lock;

/// Two of the shortest have to outlast the longest receiver-not-ready wait, 655 ms, in which a peer that is alive says
/// nothing.
const SHORTEST: Duration = Duration::from_millis(500);
/// A day: beyond that nobody is kept alive.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// Once the peer was silent for a period, it is asked so often in the next one: some of it may be lost.
const ASKED_IN_A_PERIOD: u32 = 4;
/// So many writes may be under way: those that nobody has answered in a period.
pub(crate) const MOST_WRITES: u32 = ASKED_IN_A_PERIOD;
/// Connections that are looked at before others get their turn.
const LOOKS: usize = 64;

/// Refuses a period that is out of range.
pub(crate) fn check(period: Option<Duration>) -> Result<(), Invalid> {
    let Some(period) = period else { return Ok(()) };
    let refused = |limit| Err(Invalid::new("keepalive period", Value::Time(period), limit));
    match period {
        _ if period < SHORTEST => refused(Limit::AtLeast(Value::Time(SHORTEST))),
        _ if period > LONGEST => refused(Limit::AtMost(Value::Time(LONGEST))),
        _ => Ok(()),
    }
}

/// The same with an acknowledgement timeout of no more than half a period, so that a packet of data that got lost is
/// repeated before the peer counts as silent.
pub(crate) fn adapt(rts: Rts, period: Option<Duration>) -> Rts {
    let Some(period) = period else { return rts };
    let half = period / 2;
    let most = TimeCode::at_least(half);
    let most = if most.duration() > half { most.saturating_sub(1) } else { most };
    let timeout = if rts.timeout.get() == 0 { most } else { rts.timeout.min(most) };
    Rts { timeout, ..rts }
}

/// The connections of an HCA that have a keepalive, by when each is to be looked at.
#[derive(Debug, Default)]
pub(crate) struct Keepalives(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    due: BTreeSet<(Instant, ConnHandle)>,
    of: BTreeMap<ConnHandle, Keepalive>,
    /// Taken out by the driver, which looks at it; not there any more if it was stopped meanwhile.
    looked_at: Option<ConnHandle>,
}

impl Keepalives {
    /// When the next one is to be looked at.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        lock(&self.0).due.first().map(|(due, _)| *due)
    }

    /// From here on nobody asks for this connection.
    pub(crate) fn stop(&self, conn: ConnHandle) {
        let mut table = lock(&self.0);
        if let Some(keepalive) = table.of.remove(&conn) {
            table.due.remove(&(keepalive.due, conn));
        }
        table.looked_at.take_if(|looked_at| *looked_at == conn);
    }

    fn put(&self, conn: ConnHandle, keepalive: Keepalive) {
        let mut table = lock(&self.0);
        table.due.insert((keepalive.due, conn));
        table.of.insert(conn, keepalive);
    }

    fn take_due(&self, now: Instant) -> Option<(ConnHandle, Keepalive)> {
        let mut table = lock(&self.0);
        let (_, conn) = table.due.first().copied().filter(|(due, _)| *due <= now)?;
        table.due.pop_first();
        table.looked_at = Some(conn);
        Some((conn, table.of.remove(&conn)?))
    }

    /// Puts back what [`Keepalives::take_due`] gave, unless it was stopped since.
    fn put_back(&self, conn: ConnHandle, keepalive: Keepalive) {
        let mut table = lock(&self.0);
        if table.looked_at.take() == Some(conn) {
            table.due.insert((keepalive.due, conn));
            table.of.insert(conn, keepalive);
        }
    }
}

impl Shared {
    /// From here on the connection asks for its peer.
    pub(crate) fn start_keepalive(&self, slot: &Slot, period: Option<Duration>) {
        let Some(period) = period else { return };
        self.keepalives.put(slot.handle, Keepalive::new(period, now()));
        if self.is_ended(slot) {
            return self.keepalives.stop(slot.handle);
        }
        self.wake_driver();
    }

    /// Looks at connections whose time has come; true if there may be more of them.
    pub(crate) fn keep_alive(self: &Arc<Self>, now: Instant) -> bool {
        for _ in 0..LOOKS {
            let Some((conn, mut keepalive)) = self.keepalives.take_due(now) else { return false };
            let slot = self.engine().slots.get(&conn).cloned();
            let Some(slot) = slot else { continue };
            if !self.look_after(&slot, &mut keepalive, now) {
                continue;
            }
            self.keepalives.put_back(conn, keepalive);
        }
        true
    }

    /// Whether it goes on.
    fn look_after(self: &Arc<Self>, slot: &Arc<Slot>, keepalive: &mut Keepalive, now: Instant) -> bool {
        let verdict = slot.with(self, |state| {
            let queues = state.queues.as_mut().filter(|_| state.end.is_none())?;
            let sign = queues.sign_of_life();
            if queues.broken().is_some() {
                return None;
            }
            let verdict = keepalive.judge(sign, now);
            match verdict {
                Verdict::Silent(silence) => queues.silent(silence),
                Verdict::Ask => queues.post_keepalive(),
                Verdict::Heard => {}
            }
            Some(verdict)
        });
        if let Some(Verdict::Silent(silence)) = verdict {
            let _span = slot.span.enter();
            tracing::debug!(?silence, "the peer is silent");
            Counters::add(&self.counters.connections_silent, 1);
            self.abort(slot);
        }
        matches!(verdict, Some(Verdict::Heard | Verdict::Ask))
    }

    fn is_ended(&self, slot: &Slot) -> bool {
        slot.with(self, |state| state.end.is_some())
    }
}

/// What is known of a peer's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sign {
    /// When its last packet came, if one has since the queue pair was made.
    At(Option<Instant>),
    /// The device does not tell, but so many operations of both sides have completed so far.
    Completions {
        /// How many.
        count: u64,
        /// An operation of ours is under way that may be waiting for a receive of the peer, and nothing behind it is
        /// carried out before.
        may_wait: bool,
    },
}

/// What comes of looking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The peer was heard within the last period.
    Heard,
    /// It was not: it is to be asked.
    Ask,
    /// It has not answered; for so long nothing was heard.
    Silent(Duration),
}

/// The state of one connection's keepalive. Nothing but times.
#[derive(Debug, Clone, Copy)]
struct Keepalive {
    period: Duration,
    /// The last sign of life, or a moment before it.
    heard: Instant,
    /// When the peer was first asked since.
    asked: Option<Instant>,
    /// Completions at the last look.
    count: u64,
    looked: Instant,
    /// When to look again.
    due: Instant,
}

impl Keepalive {
    /// The peer has just been heard.
    fn new(period: Duration, now: Instant) -> Self {
        Self { period, heard: now, asked: None, count: 0, looked: now, due: now + period / 2 }
    }

    /// Looks, and says when to look again.
    fn judge(&mut self, sign: Sign, now: Instant) -> Verdict {
        let step = self.period / ASKED_IN_A_PERIOD;
        if now > self.due + step {
            // It was not the peer who slept: an answer may be there that nobody has taken yet.
            self.asked = None;
        }
        let heard = match sign {
            Sign::At(heard) => heard,
            // Somewhere between then and now.
            Sign::Completions { count, .. } => {
                (std::mem::replace(&mut self.count, count) != count).then_some(self.looked)
            }
        };
        self.looked = now;
        if let Some(heard) = heard.filter(|heard| *heard > self.heard) {
            self.heard = heard;
            self.asked = None;
        }
        if now < self.heard + self.period {
            let due = self.heard + self.period;
            self.due = match sign {
                Sign::At(_) => due,
                Sign::Completions { .. } => due.min(now + self.period / 2),
            };
            return Verdict::Heard;
        }
        let asked = *self.asked.get_or_insert(now);
        let bound = (self.heard + 2 * self.period).max(asked + self.period / 2);
        let may_wait = matches!(sign, Sign::Completions { may_wait: true, .. });
        if now >= bound && !may_wait {
            return Verdict::Silent(now - self.heard);
        }
        self.due = if now < bound { bound.min(now + step) } else { now + step };
        Verdict::Ask
    }
}

#[cfg(test)]
mod tests;
