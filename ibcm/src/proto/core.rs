//! What all connections of an endpoint share and act on.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ibdev::{MAD_LEN, MadAddr, MadSource, OutgoingMad};
use ibwire::{CommId, TransactionId};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

use super::config::Config;
use super::connection::State;
use super::event::Event;
use super::exchange::Exchanges;
use super::ids::{Ids, Keyed, Source};
use super::listeners::Listeners;
use super::local::LocalCa;
use super::message::Message;
use super::outbox::Outbox;
use super::peers::Peers;
use super::rate_limit::RateLimit;
use super::rejections::Rejections;
use super::sgids::{Address, Sgids};
use super::stats::Stats;
use super::timers::Timers;

/// Counters that sources share for the rate of answers to messages of no connection.
const ANSWER_COUNTERS: usize = 1024;

/// As many IDs are drawn together.
const DRAWN_AT_ONCE: usize = 16;

/// Warnings about peers in one second; what they are about is counted besides.
const WARNINGS_PER_SECOND: u32 = 10;

#[derive(Debug)]
pub(super) struct Core {
    pub(super) config: Config,
    pub(super) ca: LocalCa,
    pub(super) rng: ChaCha8Rng,
    pub(super) timers: Timers,
    pub(super) ids: Ids,
    /// IDs to come, the next one last.
    pub(super) drawn: Vec<CommId>,
    pub(super) sgids: Sgids,
    pub(super) listeners: Listeners,
    pub(super) peers: Peers,
    pub(super) rejections: Rejections,
    pub(super) outbox: Outbox,
    pub(super) exchanges: Exchanges,
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
            drawn: Vec::with_capacity(DRAWN_AT_ONCE),
            sgids: Sgids::new(&ca.ports),
            listeners: Listeners::new(keyed),
            peers: Peers::new(keyed),
            rejections: Rejections::new(config.max_rejections, keyed),
            answers: RateLimit::new(config.answers_per_second, ANSWER_COUNTERS),
            warnings: RateLimit::new(WARNINGS_PER_SECOND, 1),
            outbox: Outbox::new(ca.ports.iter().map(|port| port.number)),
            config,
            ca,
            rng,
            timers: Timers::default(),
            exchanges: Exchanges::default(),
            events: VecDeque::new(),
            stats: Stats::default(),
            states: [0; State::COUNT],
            gone: false,
        }
    }

    /// A communication ID that nothing alive or remembered has. Their places are brought into the caches for several at
    /// once.
    pub(super) fn draw_id(&mut self) -> CommId {
        loop {
            let Some(id) = self.drawn.pop() else {
                self.drawn.extend((0..DRAWN_AT_ONCE).map(|_| CommId(self.rng.next_u32())));
                self.drawn.iter().for_each(|&id| self.ids.touch_local_id(id));
                continue;
            };
            if !id.is_none() && self.ids.by_local_id(id).is_none() && !self.rejections.holds_id(id) {
                return id;
            }
        }
    }

    pub(super) fn draw_tid(&mut self) -> TransactionId {
        TransactionId(self.rng.next_u64())
    }

    /// Queues a MAD that only answers what a peer sent, if its port's queue is not too long for that.
    pub(super) fn answer(&mut self, to: MadAddr, mad: [u8; MAD_LEN]) {
        self.push(to, mad, self.config.max_queued_answers);
    }

    /// Queues the REJ that ends a connection which our side has a part in: answers leave room for it.
    pub(super) fn reject(&mut self, to: MadAddr, mad: [u8; MAD_LEN]) {
        self.push(to, mad, self.config.max_queued_answers.saturating_mul(2));
    }

    fn push(&mut self, to: MadAddr, mad: [u8; MAD_LEN], room: usize) {
        match self.outbox.waiting(to.av.port) {
            Some(waiting) if waiting < room => self.outbox.push(OutgoingMad { to, mad }),
            Some(_) => self.stats.dropped_answer_queue += 1,
            None => self.stats.dropped_no_port += 1,
        }
    }

    /// A MAD for `to`, if our GID that it goes by is in the port's table.
    #[inline]
    pub(super) fn mad(&mut self, to: &Address, mad: [u8; MAD_LEN]) -> Option<OutgoingMad> {
        let to = self.sgids.resolve(to);
        self.stats.dropped_no_gid += u64::from(to.is_none());
        to.map(|to| OutgoingMad { to, mad })
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
