//! The ways in which a connection ends: rejection, silence, DREQ and DREP, withdrawal, staleness (spec/cm.md 4.4 to
//! 4.8).

use std::time::{Duration, Instant};

use ibdev::{MAD_LEN, MadSource};
use ibwire::{CommId, PrivateData, Qpn, RejReason, TransactionId};

use super::super::command::{Disconnect, Reject};
use super::super::core::{Core, encoded};
use super::super::error::CommandError;
use super::super::event::{DisconnectCause, Event, Rejection};
use super::super::exchange::Patience;
use super::super::ids::Source;
use super::super::message::{Ari, Drep, Dreq, Message, MessageId, Rej, RejectInfo};
use super::super::rejections::Rejected;
use super::{Connection, Reports, State, keep, kept};

impl Connection {
    /// The REJ that this state calls for (spec/cm.md 4.10).
    fn rej(&self, reason: RejReason, ari: Ari, private_data: PrivateData<148>) -> Rej {
        let message = match self.state {
            State::ReqRcvd | State::ReqMraSent => MessageId::REQ,
            State::RepRcvd | State::RepMraSent => MessageId::REP,
            _ => MessageId::OTHER,
        };
        Rej {
            local_comm_id: self.local_id,
            remote_comm_id: self.remote_id,
            message,
            reason,
            ari,
            private_data,
        }
    }

    fn send_rej(&self, core: &mut Core, rej: Rej) -> [u8; MAD_LEN] {
        tracing::debug!(local = %self.local_id, remote = %self.remote_id, reason = %rej.reason, "rejecting");
        core.stats.rejections_sent += 1;
        let mad = encoded(self.tid, rej);
        // A REQ comes again if need be, and a peer can send any number of them.
        match core.mad(&self.answer_to, mad) {
            Some(out) if self.is_undecided_request() => core.answer(out.to, mad),
            Some(out) => core.reject(out.to, mad),
            None => {}
        }
        mad
    }

    /// Sends a REJ and remembers it for repetitions of the REQ or REP. The connection is to be released.
    pub(super) fn reject_with(
        &self,
        core: &mut Core,
        now: Instant,
        reason: RejReason,
        ari: Ari,
        private_data: PrivateData<148>,
    ) {
        let mad = self.send_rej(core, self.rej(reason, ari, private_data));
        // From one repetition of the peer to the next; and the last one may take longer than the others.
        let period = self.answer_within + 2 * self.life_time.duration();
        let linger = period * (u32::from(self.max_cm_retries) + 1);
        self.remember_rej(core, now, linger, &mad);
    }

    /// What the peer repeats in this time meets this REJ.
    fn remember_rej(&self, core: &mut Core, now: Instant, linger: Duration, mad: &[u8; MAD_LEN]) {
        let peer = self.remote_keys.map(|keys| Rejected {
            key: keys.id,
            source: Source::at(self.answer_to.av()),
            guid: self.remote_guid,
            id: self.remote_id,
            qpn: self.remote_qpn,
        });
        let until = now + linger.min(core.config.max_rejection_linger);
        core.rejections.insert(now, until, self.local_id, peer, mad);
    }

    /// An undecided request has become stale. No QP of ours has a part in it, so there is none to rest, and a peer could
    /// have any number of them: no TimeWait, but a record in bounded memory gives a late REQ its REJ 10.
    fn forget_request(&mut self, core: &mut Core, now: Instant) {
        let rej = Rej::of_request(self.remote_id, RejReason::STALE_CONNECTION);
        self.remember_rej(core, now, self.time_wait.duration(), &encoded(self.tid, rej));
        self.release(core);
    }

    /// REJ 4: we wait no longer. It names our CA, for a peer that does not know our ID yet.
    fn reject_timeout(&self, core: &mut Core, now: Instant) {
        let ari = RejectInfo::CaGuid(core.ca.node_guid).encode();
        self.reject_with(core, now, RejReason::TIMEOUT, ari, PrivateData::EMPTY);
    }

    /// The user rejects the request or the reply.
    pub(in super::super) fn reject(
        &mut self,
        core: &mut Core,
        now: Instant,
        reject: &Reject,
    ) -> Result<(), CommandError> {
        match self.state {
            State::ReqRcvd | State::ReqMraSent | State::RepRcvd | State::RepMraSent => {}
            _ => return Err(self.refusal()),
        }
        self.reject_with(core, now, reject.reason, reject.info.encode(), reject.private_data);
        self.report_release_only();
        self.release(core);
        Ok(())
    }

    /// The user drops the request, as if the network had lost it.
    pub(in super::super) fn ignore(&mut self, core: &mut Core) -> Result<(), CommandError> {
        match self.state {
            State::ReqRcvd | State::ReqMraSent => {}
            _ => return Err(self.refusal()),
        }
        core.stats.ignored_requests += 1;
        self.report_release_only();
        self.release(core);
        Ok(())
    }

    fn report_release_only(&mut self) {
        if self.reports == Reports::All {
            self.reports = Reports::Release;
        }
    }

    /// Nobody wants to hear of this connection again.
    pub(in super::super) fn detach(&mut self) {
        self.reports = Reports::Nothing;
    }

    /// The user gives the connection up.
    pub(in super::super) fn abort(&mut self, core: &mut Core, now: Instant) {
        self.report_release_only();
        match self.state {
            State::ReqSent | State::ReqMraRcvd => {
                if self.exchange.as_ref().is_some_and(|exchange| exchange.is_sent()) {
                    self.reject_timeout(core, now);
                }
                self.release(core);
            }
            State::ReqRcvd | State::ReqMraSent | State::RepRcvd | State::RepMraSent => {
                self.reject_with(core, now, RejReason::CONSUMER, Ari::EMPTY, PrivateData::EMPTY);
                self.release(core);
            }
            State::RepSent | State::RepMraRcvd => {
                let rej = self.rej(RejReason::CONSUMER, Ari::EMPTY, PrivateData::EMPTY);
                self.send_rej(core, rej);
                self.enter_time_wait(core, now);
            }
            State::Established => self.send_dreq(core, now, self.remote_qpn, &Disconnect::default()),
            State::DreqSent | State::TimeWait => {}
        }
    }

    /// The retries are used up, or the deadline has passed.
    pub(super) fn give_up(&mut self, core: &mut Core, now: Instant) {
        if self.state == State::Established {
            return self.give_up_lap(core, now);
        }
        let Some(effort) = self.effort(now) else { return };
        self.stop_exchange(core);
        tracing::debug!(local = %self.local_id, state = %self.state, sent = effort.sent, "no answer");
        match self.state {
            State::DreqSent => {
                core.stats.disconnect_timeouts += 1;
                self.disconnected(core, now, DisconnectCause::Timeout(effort));
            }
            State::ReqSent | State::ReqMraRcvd => {
                core.stats.handshake_timeouts += 1;
                if effort.sent > 0 {
                    self.reject_timeout(core, now);
                }
                self.report(core, Event::Timeout { conn: self.handle, effort });
                self.release(core);
            }
            _ => {
                core.stats.handshake_timeouts += 1;
                let ari = RejectInfo::CaGuid(core.ca.node_guid).encode();
                let rej = self.rej(RejReason::TIMEOUT, ari, PrivateData::EMPTY);
                self.send_rej(core, rej);
                self.report(core, Event::Timeout { conn: self.handle, effort });
                self.enter_time_wait(core, now);
            }
        }
    }

    /// A REJ that found this connection.
    pub(in super::super) fn handle_rej(&mut self, core: &mut Core, now: Instant, rej: &Rej) {
        let is_late = self.state == State::Established && self.has_exchanged_paths();
        if self.state == State::TimeWait || is_late {
            core.stats.dropped_state += 1;
            return;
        }
        if self.is_outdated(rej) {
            core.stats.absent_peers += 1;
            return;
        }
        core.stats.rejections_received += 1;
        tracing::debug!(local = %self.local_id, state = %self.state, reason = %rej.reason, "rejected");
        let (conn, rejection) = (self.handle, Box::new(Rejection::new(rej)));
        let effort = self.effort(now);
        // A peer that calls us stale holds our QP number; it has to rest.
        let rest = rej.reason == RejReason::STALE_CONNECTION;
        match self.state {
            State::Established | State::DreqSent => {
                self.disconnected(core, now, DisconnectCause::Rejected(rejection));
            }
            State::ReqRcvd | State::ReqMraSent if !self.is_peer() => {
                self.report(core, Event::Withdrawn { conn, rejection: Some(rejection) });
                if rest {
                    self.forget_request(core, now);
                } else {
                    self.release(core);
                }
            }
            State::ReqSent | State::ReqMraRcvd | State::ReqRcvd | State::ReqMraSent => {
                self.report(core, Event::Rejected { conn, rejection, effort });
                self.end(core, now, rest);
            }
            _ => {
                self.report(core, Event::Rejected { conn, rejection, effort });
                self.end(core, now, true);
            }
        }
    }

    fn end(&mut self, core: &mut Core, now: Instant, rest: bool) {
        if rest {
            self.enter_time_wait(core, now);
        } else {
            self.release(core);
        }
    }

    fn disconnected(&mut self, core: &mut Core, now: Instant, cause: DisconnectCause) {
        self.report(core, Event::Disconnected { conn: self.handle, cause });
        self.enter_time_wait(core, now);
    }

    /// The user disconnects.
    pub(in super::super) fn disconnect(
        &mut self,
        core: &mut Core,
        now: Instant,
        disconnect: &Disconnect,
    ) -> Result<(), CommandError> {
        match self.state {
            State::Established | State::RepSent | State::RepMraRcvd => {
                self.send_dreq(core, now, self.remote_qpn, disconnect);
            }
            State::DreqSent => self.hasten(core, now, disconnect.deadline),
            State::TimeWait => {}
            _ => return Err(self.refusal()),
        }
        Ok(())
    }

    /// The exchange that is running ends at `deadline` at the latest.
    fn hasten(&mut self, core: &mut Core, now: Instant, deadline: Option<Instant>) {
        let Some(deadline) = self.patience(core, now, deadline).deadline else { return };
        let Some(exchange) = &mut self.exchange else { return };
        exchange.hasten(deadline);
        if core.timers.runs_past(&self.timer, deadline) {
            self.start_timer(core, deadline);
        }
    }

    /// What our DREPs shall carry.
    pub(in super::super) fn set_disconnect_data(&mut self, data: PrivateData<224>) {
        let data = keep(data);
        if data.is_some() || self.extras.is_some() {
            self.extras().drep_data = data;
        }
    }

    /// `remote_qpn` is the QP that the peer shall disconnect.
    fn send_dreq(&mut self, core: &mut Core, now: Instant, remote_qpn: Qpn, disconnect: &Disconnect) {
        let tid = core.draw_tid();
        let dreq = Dreq {
            local_comm_id: self.local_id,
            remote_comm_id: self.remote_id,
            remote_qpn,
            private_data: disconnect.private_data,
        };
        let max_time = core.config.max_disconnect_time;
        let patience = Patience { max_time, ..self.patience(core, now, disconnect.deadline) };
        let exchange = core.exchanges.make(patience, |mad| Message::Dreq(dreq).encode(tid, mad));
        self.set_state(core, State::DreqSent);
        self.start_exchange(core, exchange);
    }

    /// A DREQ with both IDs of this connection, from its peer.
    pub(in super::super) fn handle_dreq(
        &mut self,
        core: &mut Core,
        now: Instant,
        from: &MadSource,
        tid: TransactionId,
        dreq: &Dreq,
    ) {
        // Before the REP the peer cannot know our QP; we may not have one.
        let knows_qpn = !self.is_undecided_request();
        if knows_qpn && dreq.remote_qpn != self.local_qpn {
            core.stats.dropped_wrong_qpn += 1;
            return;
        }
        let drep = Drep {
            local_comm_id: self.local_id,
            remote_comm_id: self.remote_id,
            private_data: kept(self.extras.as_ref().and_then(|extras| extras.drep_data.as_deref())),
        };
        core.answer_with(from.reply(), tid, drep);
        if self.state == State::TimeWait {
            core.stats.repeated_answers += 1;
            return;
        }
        if !knows_qpn {
            self.report(core, Event::Withdrawn { conn: self.handle, rejection: None });
            self.release(core);
            return;
        }
        self.handle_implied_rtu(core);
        self.disconnected(core, now, DisconnectCause::Peer { private_data: dreq.private_data });
    }

    /// A DREP with both IDs of this connection.
    pub(in super::super) fn handle_drep(&mut self, core: &mut Core, now: Instant, drep: &Drep) {
        if self.state == State::DreqSent {
            self.disconnected(core, now, DisconnectCause::Local { private_data: drep.private_data });
        } else {
            core.stats.dropped_state += 1;
        }
    }

    /// The peer uses the ID or QP of this connection for another one: it has forgotten this one. `remote_qpn` is the
    /// QP that it uses now.
    pub(in super::super) fn handle_stale(&mut self, core: &mut Core, now: Instant, remote_qpn: Qpn) {
        if matches!(self.state, State::DreqSent | State::TimeWait) {
            return;
        }
        core.stats.stale += 1;
        self.report(core, Event::Disconnected { conn: self.handle, cause: DisconnectCause::Stale });
        match self.state {
            State::Established => self.send_dreq(core, now, remote_qpn, &Disconnect::default()),
            State::ReqRcvd | State::ReqMraSent if !self.is_peer() => self.forget_request(core, now),
            _ => self.enter_time_wait(core, now),
        }
    }
}

impl Rej {
    /// The REJ for a REQ that has no connection here.
    pub(in super::super) fn of_request(remote_comm_id: CommId, reason: RejReason) -> Self {
        Self {
            local_comm_id: CommId::NONE,
            remote_comm_id,
            message: MessageId::REQ,
            reason,
            ari: Ari::EMPTY,
            private_data: PrivateData::EMPTY,
        }
    }
}
