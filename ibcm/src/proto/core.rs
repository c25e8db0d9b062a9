//! What all connections of an endpoint share and act on.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ibdev::{MAD_LEN, MadAddr, MadSource, OutgoingMad};
use ibwire::{CommId, TransactionId};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

use super::config::Config;
use super::connection::State;
use super::endpoint::ConnHandle;
use super::event::Event;
use super::ids::{Ids, Keyed, Source};
use super::listeners::Listeners;
use super::local::LocalCa;
use super::message::Message;
use super::rate_limit::RateLimit;
use super::rejections::Rejections;
use super::stats::Stats;
use super::timers::Timers;

/// Counters that sources share for the rate of answers to messages of no connection.
const ANSWER_COUNTERS: usize = 1024;

/// Warnings about peers in one second; what they are about is counted besides.
const WARNINGS_PER_SECOND: u32 = 10;

/// A MAD to hand out.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "most are MADs, and the queue is short")]
pub(super) enum Outgoing {
    /// This one.
    Mad(OutgoingMad),
    /// The message whose answer the connection awaits, if it still does.
    Exchange(ConnHandle),
}

#[derive(Debug)]
pub(super) struct Core {
    pub(super) config: Config,
    pub(super) ca: LocalCa,
    pub(super) rng: ChaCha8Rng,
    pub(super) timers: Timers,
    pub(super) ids: Ids,
    pub(super) listeners: Listeners,
    pub(super) rejections: Rejections,
    pub(super) out: VecDeque<Outgoing>,
    pub(super) events: VecDeque<Event>,
    pub(super) stats: Stats,
    pub(super) states: [usize; State::COUNT],
    /// The device was removed.
    pub(super) gone: bool,
    answers: RateLimit,
    warnings: RateLimit,
}

impl Core {
    pub(super) fn new(config: Config, ca: LocalCa, seed: [u8; 32]) -> Self {
        let mut rng = ChaCha8Rng::from_seed(seed);
        let keyed = Keyed::new(&mut rng);
        Self {
            ids: Ids::new(keyed),
            listeners: Listeners::new(keyed),
            rejections: Rejections::new(config.max_rejections, keyed),
            answers: RateLimit::new(config.answers_per_second, ANSWER_COUNTERS),
            warnings: RateLimit::new(WARNINGS_PER_SECOND, 1),
            config,
            ca,
            rng,
            timers: Timers::default(),
            out: VecDeque::new(),
            events: VecDeque::new(),
            stats: Stats::default(),
            states: [0; State::COUNT],
            gone: false,
        }
    }

    /// A communication ID that nothing alive or remembered has.
    pub(super) fn draw_id(&mut self) -> CommId {
        loop {
            let id = CommId(self.rng.next_u32());
            if !id.is_none() && self.ids.by_local_id(id).is_none() && !self.rejections.holds_id(id) {
                return id;
            }
        }
    }

    pub(super) fn draw_tid(&mut self) -> TransactionId {
        TransactionId(self.rng.next_u64())
    }

    /// Queues a MAD.
    pub(super) fn push(&mut self, to: MadAddr, mad: [u8; MAD_LEN]) {
        self.out.push_back(Outgoing::Mad(OutgoingMad { to, mad }));
    }

    /// Queues a message that a connection owes by its state.
    pub(super) fn send(&mut self, to: MadAddr, tid: TransactionId, message: impl Into<Message>) {
        self.push(to, encoded(tid, message));
    }

    /// Queues a MAD that only answers what a peer sent, if the queue is not too long for that.
    pub(super) fn answer(&mut self, to: MadAddr, mad: [u8; MAD_LEN]) {
        if self.out.len() < self.config.max_queued_answers {
            self.push(to, mad);
        } else {
            self.stats.dropped_answer_queue += 1;
        }
    }

    /// As [`Core::answer`].
    pub(super) fn answer_with(&mut self, to: MadAddr, tid: TransactionId, message: impl Into<Message>) {
        self.answer(to, encoded(tid, message));
    }

    /// Whether `from` may have one more answer to a message that belongs to no connection.
    pub(super) fn may_answer(&mut self, now: Instant, from: &MadSource) -> bool {
        let allowed = self.answers.allows(now, self.ids.source_hash(Source::of(from)));
        self.stats.dropped_answer_rate += u64::from(!allowed);
        allowed
    }

    /// Logs what a peer did wrong, unless there is too much of it.
    pub(super) fn warn(&mut self, now: Instant, from: &MadSource, what: &'static str) {
        if self.warnings.allows(now, 0) {
            tracing::warn!(from = ?Source::of(from), "{what}");
        }
    }

    /// How long to wait for the answer to a REP or DREQ, within the bounds.
    pub(super) fn response_timeout(&self, wanted: Duration) -> Duration {
        wanted.min(self.config.max_response_timeout).max(self.config.min_response_timeout)
    }

    /// A TimeWait within the bounds.
    pub(super) fn time_wait(&self, wanted: Duration) -> Duration {
        wanted.min(self.config.max_time_wait).max(self.config.min_time_wait)
    }
}

/// The MAD of a message.
pub(super) fn encoded(tid: TransactionId, message: impl Into<Message>) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    message.into().encode(tid, &mut mad);
    mad
}
