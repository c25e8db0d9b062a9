//! The client's transactions with the SA of one port, sans-IO.

mod config;
mod redirect;
mod reports;
mod request;
mod stats;
#[cfg(test)]
mod tests;
mod transaction;
mod window;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use ibdev::{MadAddr, MadSource, OutgoingMad};
use ibwire::PKey;
use ibwire::mad::{AttributeId, ClassPortInfo, MadHeader, MadStatus, Method, MgmtClass};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::rmpp::{Mad, Received, Receiver, RmppError, Sender, Sent, abort, turn_around, whole};
use super::{FAR, after};
use crate::mad::{RmppHeader, RmppStatus, RmppType, SaHeader};
use crate::record::{Layout, Notice};
use redirect::{is_from, redirected};
use reports::Reports;
use transaction::{State, Transaction};
use window::Window;

pub use config::Config;
pub use request::{Answer, Effort, Event, QueryError, RedirectFault, Request, RequestId, SaStatus};
pub use stats::Stats;

/// The transactions of one port: requests go out within a window, are repeated, rest when the SA is busy, follow
/// redirections, and end in exactly one event. Notices that subscriptions bring are acknowledged.
///
/// After any input drain [`poll_transmit`](Self::poll_transmit) and [`poll_event`](Self::poll_event), then arm one timer by
/// [`poll_timeout`](Self::poll_timeout). `now` must not go back.
#[derive(Debug)]
pub struct Client {
    config: Config,
    rng: ChaCha8Rng,
    sa: Option<MadAddr>,
    /// Where the port says that it is, whatever redirections say.
    home: Option<MadAddr>,
    p_keys: Vec<PKey>,
    next_id: u64,
    next_tid: u32,
    transactions: BTreeMap<RequestId, Transaction>,
    by_tid: BTreeMap<u32, RequestId>,
    /// Those that wait for their turn.
    queue: VecDeque<RequestId>,
    under_way: u32,
    window: Window,
    timers: BTreeSet<(Instant, RequestId)>,
    /// Answered transfers whose last segments may come again, the oldest first.
    finished: VecDeque<(u32, Receiver)>,
    reports: Reports,
    outbox: VecDeque<OutgoingMad>,
    events: VecDeque<Event>,
    stats: Stats,
}

impl Client {
    /// A client that does not know its SA yet. Transaction IDs and jitter come from `seed`.
    pub fn new(config: Config, seed: [u8; 32]) -> Self {
        let mut rng = ChaCha8Rng::from_seed(seed);
        let (next_tid, window) = (rng.random(), Window::new(config.window));
        Self {
            config,
            rng,
            sa: None,
            home: None,
            p_keys: Vec::new(),
            next_id: 0,
            next_tid,
            transactions: BTreeMap::new(),
            by_tid: BTreeMap::new(),
            queue: VecDeque::new(),
            under_way: 0,
            window,
            timers: BTreeSet::new(),
            finished: VecDeque::new(),
            reports: Reports::default(),
            outbox: VecDeque::new(),
            events: VecDeque::new(),
            stats: Stats::default(),
        }
    }

    /// Counters.
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    /// How many requests are under way or wait.
    pub fn pending(&self) -> usize {
        self.transactions.len()
    }

    /// Where the SA is, and the port's P_Keys. Call it again when the SM, the LID or the P_Keys change: redirections are
    /// forgotten, and requests that are under way start anew with another transaction ID, and with all their tries if the SA is
    /// another one. Without an SA they wait.
    pub fn set_sa(&mut self, now: Instant, sa: Option<MadAddr>, p_keys: Vec<PKey>) {
        if self.home != sa {
            self.transactions.values_mut().for_each(|one| one.tries = 0);
        }
        (self.sa, self.home, self.p_keys) = (sa, sa, p_keys);
        // One that has started anew counts its notices from the start.
        self.reports.forget();
        let under_way: Vec<_> =
            self.transactions.iter().filter(|(_, one)| one.is_under_way()).map(|(id, _)| *id).collect();
        for id in under_way.into_iter().rev() {
            self.again(id);
        }
        self.pump(now);
    }

    /// Asks. What comes of it is told by one event.
    ///
    /// # Errors
    /// [`QueryError::QueueFull`], [`QueryError::Method`], and [`QueryError::Transfer`] for a request that is too long; then
    /// nothing was sent.
    pub fn request(&mut self, now: Instant, request: Request) -> Result<RequestId, QueryError> {
        let known = [Method::GET, Method::SET, Method::GET_TABLE, Method::GET_TRACE_TABLE, Method::DELETE];
        if request.method != Method::GET_MULTI {
            if !known.contains(&request.method) {
                return Err(QueryError::Method(request.method));
            }
            if request.data.len() > SaHeader::DATA_LEN {
                return Err(QueryError::Transfer(RmppError::TooLong { limit: SaHeader::DATA_LEN }));
            }
        } else if request.data.len() > self.config.rmpp.max_len {
            return Err(QueryError::Transfer(RmppError::TooLong { limit: self.config.rmpp.max_len }));
        }
        if self.transactions.len() >= self.config.queue {
            self.stats.refused_queue += 1;
            return Err(QueryError::QueueFull { limit: self.config.queue });
        }
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let deadline = request.deadline;
        self.transactions.insert(id, Transaction::new(request));
        self.arm(id, deadline);
        self.queue.push_back(id);
        self.pump(now);
        Ok(id)
    }

    /// Forgets a request: there will be no event, not even one that waits already. An answer that comes later is dropped.
    pub fn cancel(&mut self, now: Instant, id: RequestId) {
        if let Some(one) = self.remove(id)
            && let State::Receiving(transfer) = &one.state
            && let Some(to) = one.to
        {
            let mad = abort(&transfer.1, RmppStatus::UNSPECIFIED);
            self.outbox.push_back(OutgoingMad { to, mad });
        }
        self.events.retain(|event| event.request() != Some(id));
        self.pump(now);
    }

    /// The next MAD to send.
    pub fn poll_transmit(&mut self) -> Option<OutgoingMad> {
        self.outbox.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((at, id)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.remove(&(at, id));
            if let Some(one) = self.transactions.get_mut(&id) {
                one.timer = None;
            }
            self.due(now, id);
        }
        self.pump(now);
    }

    /// A MAD of the class that arrived.
    pub fn handle(&mut self, now: Instant, from: &MadSource, mad: &Mad) {
        let header = match SaHeader::parse(mad) {
            Ok(header) if header.mad.class == MgmtClass::SA => header,
            _ => return self.stats.dropped_version += 1,
        };
        if header.mad.base_version != MadHeader::BASE_VERSION
            || header.mad.class_version != SaHeader::CLASS_VERSION
        {
            return self.stats.dropped_version += 1;
        }
        if header.mad.method == Method::REPORT && header.mad.attribute == AttributeId::NOTICE {
            return self.report(now, from, &header, mad);
        }
        if !header.mad.method.is_response() {
            return self.stats.dropped_request += 1;
        }
        self.answer(now, from, &header, mad);
        self.pump(now);
    }

    fn report(&mut self, now: Instant, from: &MadSource, header: &SaHeader, mad: &Mad) {
        if ![self.home, self.sa].iter().flatten().any(|sa| is_from(from, sa)) {
            return self.stats.dropped_report += 1;
        }
        let mut answer = *mad;
        answer[..MadHeader::LEN].copy_from_slice(&header.mad.response(MadStatus::OK).to_bytes());
        self.outbox.push_back(OutgoingMad { to: from.reply(), mad: answer });
        if !self.reports.is_new(now, from.slid, header.mad.tid) {
            return self.stats.reports_again += 1;
        }
        self.stats.reports += 1;
        let notice = Notice::read_from(&mad[SaHeader::LEN..]);
        self.events.push_back(Event::Report { notice, from: *from });
    }

    fn answer(&mut self, now: Instant, from: &MadSource, header: &SaHeader, mad: &Mad) {
        let tid = header.mad.tid.0 as u32;
        let data = mad.last_chunk().expect("a MAD is longer than its data");
        let Some(&id) = self.by_tid.get(&tid) else {
            return self.after_the_end(now, from, header, data);
        };
        let Some(one) = self.transactions.get_mut(&id) else { return };
        let Some(to) = one.to.filter(|to| is_from(from, to)) else {
            return self.stats.dropped_stray += 1;
        };
        let about = header.mad.attribute;
        let paths = one.request.method == Method::GET_MULTI && about == AttributeId(0x0035);
        if header.mad.method != one.request.method.response() || about != one.request.attribute && !paths {
            return self.stats.dropped_mismatch += 1;
        }
        // MADs of a transfer that goes on, in either direction.
        let active = header.rmpp.is_active() && header.rmpp.version != 0;
        match &mut one.state {
            State::Sending(sender) if active && header.rmpp.kind != RmppType::DATA => {
                let sent = sender.handle(now, header);
                return self.sent(now, id, sent);
            }
            // The ACK of our request again: what it says about the request is known.
            State::Receiving(_) if active && header.rmpp.kind == RmppType::ACK => {
                return self.stats.dropped_stray += 1;
            }
            State::Receiving(transfer) if active => {
                let before = transfer.0.dropped();
                let received = transfer.0.handle(now, header, data);
                self.stats.dropped_segment += transfer.0.dropped() - before;
                return self.received(now, id, to, header, received);
            }
            _ => {}
        }
        if header.mad.status != MadStatus::OK {
            return self.refused(now, id, header, data);
        }
        if active && header.rmpp.kind == RmppType::DATA {
            let mut receiver = Receiver::new(now, &self.config.rmpp);
            let received = receiver.handle(now, header, data);
            self.stats.dropped_segment += receiver.dropped();
            if receiver.segments() > 0 {
                one.state = State::Receiving(Box::new((receiver, *header)));
                self.received(now, id, to, header, received);
            } else if let Received::Failed(_, Some(mad)) = received {
                self.stats.dropped_segment += 1;
                self.outbox.push_back(OutgoingMad { to, mad });
            }
            return;
        }
        if active {
            // An ABORT or STOP of a transfer whose first segment was lost; an ACK again of a request that was sent whole.
            match header.rmpp.kind {
                RmppType::ABORT | RmppType::STOP => {
                    self.fail(id, QueryError::Transfer(RmppError::Aborted(header.rmpp.status)));
                }
                _ => self.stats.dropped_stray += 1,
            }
            return;
        }
        let complete = !one.request.wants_table();
        if about == AttributeId::CLASS_PORT_INFO {
            self.served_at(data);
        }
        self.done(now, id, *header, data.to_vec(), complete);
    }

    /// Segments again after the whole message, or an answer that nobody waits for any more.
    fn after_the_end(&mut self, now: Instant, from: &MadSource, header: &SaHeader, data: &[u8; 200]) {
        let tid = header.mad.tid.0 as u32;
        self.finished.retain(|(_, receiver)| receiver.poll_timeout() > now);
        match self.finished.iter_mut().find(|(finished, _)| *finished == tid) {
            Some((_, receiver)) if header.rmpp.is_active() => {
                self.stats.dropped_segment += 1;
                if let Received::Going(Some(mad)) = receiver.handle(now, header, data) {
                    self.outbox.push_back(OutgoingMad { to: from.reply(), mad });
                }
            }
            _ => self.stats.dropped_stray += 1,
        }
    }

    /// A status that is not success.
    fn refused(&mut self, now: Instant, id: RequestId, header: &SaHeader, data: &[u8; 200]) {
        let status = header.mad.status;
        if status.is_busy() {
            return self.busy(now, id);
        }
        if status.is_redirect() {
            let Ok(info) = ClassPortInfo::parse(data) else { return };
            return self.redirect(id, &info);
        }
        self.window.answered();
        self.fail(id, QueryError::Status(SaStatus(status)));
    }

    /// The SA has no time: the request rests and comes again as a new one.
    fn busy(&mut self, now: Instant, id: RequestId) {
        self.stats.busy += 1;
        self.window.overloaded(now, self.config.busy_rest);
        self.forget_tid(id);
        let Some(one) = self.transactions.get_mut(&id) else { return };
        one.busy += 1;
        one.tries = 0;
        one.state = State::Resting;
        let (doublings, deadline) = ((one.busy - 1).min(16), one.request.deadline);
        let rest = doubled(self.config.busy_rest, doublings).min(self.config.max_busy_rest);
        let more = rest.mul_f64(self.rng.random_range(0.0..0.25));
        self.arm(id, after(now, rest.saturating_add(more)).min(deadline));
    }

    /// The SA is elsewhere.
    fn redirect(&mut self, id: RequestId, info: &ClassPortInfo) {
        let limit = self.config.redirects;
        let (Some(one), Some(sa)) = (self.transactions.get_mut(&id), self.sa) else { return };
        if one.redirects == limit {
            return self.fail(id, QueryError::Redirect(RedirectFault::TooOften(limit + 1)));
        }
        one.redirects += 1;
        one.tries = 0;
        match redirected(&sa, &self.p_keys, info) {
            Ok(to) => self.sa = Some(to),
            Err(fault) => return self.fail(id, QueryError::Redirect(fault)),
        }
        self.stats.redirected += 1;
        self.again(id);
    }

    /// The SA has said of itself where it is served: there go all further requests (spec/sa.md 7.3).
    fn served_at(&mut self, data: &[u8; SaHeader::DATA_LEN]) {
        let (Ok(info), Some(sa)) = (ClassPortInfo::parse(data), self.sa) else { return };
        if info.redirect.is_none() {
            return;
        }
        match redirected(&sa, &self.p_keys, &info) {
            Ok(to) => {
                self.stats.redirected += 1;
                self.sa = Some(to);
            }
            Err(_) => self.stats.refused_redirect += 1,
        }
    }

    /// Puts a request that is under way back to the front of the queue.
    fn again(&mut self, id: RequestId) {
        self.forget_tid(id);
        if let Some(one) = self.transactions.get_mut(&id) {
            one.state = State::Queued;
            let deadline = one.request.deadline;
            self.arm(id, deadline);
            self.queue.push_front(id);
        }
    }

    /// What a peer's ACK did to a request in several MADs.
    fn sent(&mut self, now: Instant, id: RequestId, sent: Sent) {
        let Some(one) = self.transactions.get_mut(&id) else { return };
        let (Some(to), Some(tid), deadline) = (one.to, one.tid, one.request.deadline) else { return };
        match sent {
            Sent::Going => self.flush(now, id),
            Sent::Done => {
                // The direction turns: the answer is waited for as if the request had been sent just now.
                let mad = turn_around(&one.header(tid));
                one.state = State::Asked;
                self.outbox.push_back(OutgoingMad { to, mad });
                self.arm(id, after(now, self.config.first_timeout).min(deadline));
            }
            Sent::Failed(error, mad) => {
                self.outbox.extend(mad.map(|mad| OutgoingMad { to, mad }));
                self.fail(id, QueryError::Transfer(error));
            }
        }
    }

    /// What a segment of the answer did.
    fn received(&mut self, now: Instant, id: RequestId, to: MadAddr, header: &SaHeader, received: Received) {
        match received {
            Received::Going(mad) => {
                self.outbox.extend(mad.map(|mad| OutgoingMad { to, mad }));
                let Some(one) = self.transactions.get(&id) else { return };
                if let State::Receiving(transfer) = &one.state {
                    let until = transfer.0.poll_timeout().min(one.request.deadline);
                    self.arm(id, until);
                }
            }
            Received::Done(data, mad) => {
                self.outbox.push_back(OutgoingMad { to, mad });
                self.done(now, id, *header, data, true);
            }
            Received::Failed(error, mad) => {
                self.outbox.extend(mad.map(|mad| OutgoingMad { to, mad }));
                self.fail(id, QueryError::Transfer(error));
            }
        }
    }

    fn done(&mut self, now: Instant, id: RequestId, header: SaHeader, data: Vec<u8>, complete: bool) {
        let Some(one) = self.remove(id) else { return };
        let effort = one.effort(now);
        // One that a whole answer has overtaken is not remembered: it holds what came of it.
        if let (State::Receiving(transfer), Some(tid)) = (one.state, one.tid)
            && transfer.0.is_finished()
        {
            self.finished.push_back((tid, transfer.0));
            if self.finished.len() > self.config.finished {
                self.finished.pop_front();
            }
        }
        self.window.answered();
        self.stats.answered += 1;
        self.events.push_back(Event::Answered { id, answer: Answer { header, data, complete, effort } });
    }

    fn fail(&mut self, id: RequestId, error: QueryError) {
        if self.remove(id).is_some() {
            self.stats.failed += 1;
            self.events.push_back(Event::Failed { id, error });
        }
    }

    /// The timer of a request has run out.
    fn due(&mut self, now: Instant, id: RequestId) {
        let tries = self.config.tries.max(1);
        let Some(one) = self.transactions.get_mut(&id) else { return };
        let (over, to) = (now >= one.request.deadline, one.to);
        match &mut one.state {
            State::Receiving(transfer) => {
                let (error, mad) = transfer.0.time_out(&transfer.1);
                self.outbox.extend(to.map(|to| OutgoingMad { to, mad }));
                self.fail(id, QueryError::Transfer(error));
            }
            State::Queued if over && one.sent == 0 && self.sa.is_none() => self.fail(id, QueryError::NoSa),
            State::Queued | State::Resting | State::Asked | State::Sending(_) if over => {
                let effort = one.effort(now);
                self.fail(id, QueryError::Silent(effort));
            }
            State::Queued => {}
            State::Resting => {
                one.state = State::Queued;
                let deadline = one.request.deadline;
                self.arm(id, deadline);
                self.queue.push_back(id);
            }
            State::Sending(sender) => {
                let sent = sender.handle_timeout(now);
                self.sent(now, id, sent);
            }
            State::Asked if one.tries >= tries => {
                let effort = one.effort(now);
                self.window.overloaded(now, self.config.first_timeout);
                self.fail(id, QueryError::Silent(effort));
            }
            State::Asked => {
                self.window.overloaded(now, self.config.first_timeout);
                self.stats.repeated += 1;
                self.send(now, id);
            }
        }
    }

    /// Sends what has its turn.
    fn pump(&mut self, now: Instant) {
        while self.sa.is_some() && self.under_way < self.window.limit() {
            let Some(id) = self.queue.pop_front() else { return };
            let tid = self.draw_tid();
            let Some(one) = self.transactions.get_mut(&id) else { continue };
            if one.first_sent.is_none() {
                one.first_sent = Some(now);
                self.stats.requests += 1;
            }
            (one.tid, one.to) = (Some(tid), self.sa);
            self.by_tid.insert(tid, id);
            self.under_way += 1;
            self.send(now, id);
        }
    }

    /// Sends a request, or sends it again with the same transaction ID.
    fn send(&mut self, now: Instant, id: RequestId) {
        let Some(one) = self.transactions.get_mut(&id) else { return };
        let (Some(tid), Some(to)) = (one.tid, one.to) else { return };
        one.tries += 1;
        one.sent += 1;
        let (doublings, deadline) = ((one.tries - 1).min(16), one.request.deadline);
        let mut header = one.header(tid);
        if one.request.method == Method::GET_MULTI {
            header.rmpp.version = RmppHeader::VERSION;
            match Sender::new(header, one.request.data.clone(), &self.config.rmpp) {
                Ok(sender) => {
                    let sender = if one.tries > 1 { sender.again() } else { sender };
                    one.state = State::Sending(Box::new(sender));
                }
                Err(error) => return self.fail(id, QueryError::Transfer(error)),
            }
            return self.flush(now, id);
        }
        one.state = State::Asked;
        let mad = whole(&header, &one.request.data);
        self.outbox.push_back(OutgoingMad { to, mad });
        let timeout =
            doubled(self.config.first_timeout, doublings).mul_f64(self.rng.random_range(0.75..1.25));
        self.arm(id, after(now, timeout).min(deadline));
    }

    /// Sends the segments that the peer has room for.
    fn flush(&mut self, now: Instant, id: RequestId) {
        let Some(one) = self.transactions.get_mut(&id) else { return };
        let (State::Sending(sender), Some(to)) = (&mut one.state, one.to) else { return };
        while let Some(mad) = sender.poll_transmit(now) {
            self.outbox.push_back(OutgoingMad { to, mad });
        }
        let until = sender.poll_timeout().map_or(one.request.deadline, |at| at.min(one.request.deadline));
        self.arm(id, until);
    }

    fn arm(&mut self, id: RequestId, at: Instant) {
        if let Some(one) = self.transactions.get_mut(&id) {
            if let Some(before) = one.timer.replace(at) {
                self.timers.remove(&(before, id));
            }
            self.timers.insert((at, id));
        }
    }

    /// Takes a request out of everything.
    fn remove(&mut self, id: RequestId) -> Option<Transaction> {
        let tid = self.transactions.get(&id)?.tid;
        self.forget_tid(id);
        let mut one = self.transactions.remove(&id)?;
        one.tid = tid;
        if let Some(at) = one.timer {
            self.timers.remove(&(at, id));
        }
        if matches!(one.state, State::Queued) {
            self.queue.retain(|queued| *queued != id);
        }
        Some(one)
    }

    /// Gives up a request's transaction ID and its place in the window.
    fn forget_tid(&mut self, id: RequestId) {
        if let Some(one) = self.transactions.get_mut(&id)
            && let Some(tid) = one.tid.take()
        {
            self.by_tid.remove(&tid);
            self.under_way -= 1;
        }
    }

    /// The next transaction ID: one counter, 0 left out. It comes again after 2^32 requests only, long after anyone
    /// answers the first. The upper half belongs to the device.
    fn draw_tid(&mut self) -> u32 {
        loop {
            self.next_tid = self.next_tid.wrapping_add(1);
            let finished = self.finished.iter().any(|(tid, _)| *tid == self.next_tid);
            if self.next_tid != 0 && !finished && !self.by_tid.contains_key(&self.next_tid) {
                return self.next_tid;
            }
        }
    }
}

/// A time, doubled so often.
fn doubled(time: Duration, doublings: u32) -> Duration {
    time.saturating_mul(1 << doublings).min(FAR)
}

/// How long a request may take where its caller does not say: all its tries, doubled each time.
pub fn longest(config: &Config) -> Duration {
    config.first_timeout.saturating_mul((1 << config.tries.clamp(1, 16)) - 1).min(FAR)
}
