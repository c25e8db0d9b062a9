//! To which connection a message goes, and what answers it if there is none (spec/cm.md 4.2, 4.9).

use std::time::Instant;

use ibdev::{MAD_LEN, MadSource};
use ibwire::{CommId, Guid, PrivateData, RejReason, TransactionId};

use super::super::class_port_info;
use super::super::connection::{Connection, State};
use super::super::ids::{RemoteKey, RemoteNames, Source};
use super::super::message::{
    Ari, CLASS_VERSION, DecodeError, Drep, Dreq, Message, MessageId, Mra, Rej, RejectInfo, Rep, Rtu,
    SidrInfo, SidrRep, SidrStatus,
};
use super::super::transport::Transport;
use super::Endpoint;
use super::batch::Arrived;

impl Endpoint {
    pub(super) fn route(&mut self, now: Instant, from: &MadSource, mad: &[u8; MAD_LEN], arrived: Arrived) {
        if self.core.gone {
            return;
        }
        self.core.stats.mads_received += 1;
        match &arrived.decoded {
            Ok((header, message)) => {
                tracing::trace!(
                    message = %message.attribute(),
                    sender = %message.local_comm_id(),
                    receiver = %message.remote_comm_id(),
                    "received"
                );
                self.handle_message(now, from, header.tid, message, arrived.names);
            }
            Err(error) => self.handle_undecodable(now, from, mad, *error),
        }
    }

    fn handle_message(
        &mut self,
        now: Instant,
        from: &MadSource,
        tid: TransactionId,
        message: &Message,
        names: Option<(Transport, RemoteNames)>,
    ) {
        match message {
            Message::Req(req) => self.handle_req(now, from, tid, req, names),
            Message::Mra(mra) => self.handle_mra(now, from, mra),
            Message::Rej(rej) => self.handle_rej(now, from, rej),
            Message::Rep(rep) => self.handle_rep(now, from, tid, rep, names),
            Message::Rtu(rtu) => self.handle_rtu(now, from, rtu),
            Message::Dreq(dreq) => self.handle_dreq(now, from, tid, dreq),
            Message::Drep(drep) => self.handle_drep(now, from, drep),
            Message::Lap(lap) => self.handle_lap(now, from, tid, lap),
            Message::Apr(apr) => self.handle_apr(now, from, tid, apr),
            Message::SidrReq(req) => self.handle_sidr_req(now, from, tid, req),
            Message::SidrRep(rep) => self.handle_sidr_rep(now, from, rep),
        }
    }

    fn handle_undecodable(
        &mut self,
        now: Instant,
        from: &MadSource,
        mad: &[u8; MAD_LEN],
        error: DecodeError,
    ) {
        tracing::trace!(%error, "not a message for us");
        let core = &mut self.core;
        match error {
            DecodeError::BaseVersion(_) => core.stats.dropped_base_version += 1,
            DecodeError::Class(_) => core.stats.dropped_class += 1,
            DecodeError::ClassVersion { .. } => core.stats.dropped_class_version += 1,
            DecodeError::ReqClassVersion { header, local_comm_id, .. } => {
                core.stats.dropped_class_version += 1;
                if core.may_answer(now, from) {
                    let ari = RejectInfo::ClassVersion(CLASS_VERSION).encode();
                    let reason = RejReason::UNSUPPORTED_CLASS_VERSION;
                    let rej = Rej { ari, ..Rej::of_request(local_comm_id, reason) };
                    core.answer_with(from.reply(), header.tid, rej);
                }
            }
            DecodeError::SidrReqClassVersion { header, request_id, service_id, .. } => {
                core.stats.dropped_class_version += 1;
                if core.may_answer(now, from) {
                    let info = SidrInfo::ClassVersion(CLASS_VERSION).encode();
                    let status = SidrStatus::UNSUPPORTED_VERSION;
                    let rep = SidrRep { info, ..SidrRep::refusal(request_id, service_id, status) };
                    core.answer_with(from.reply(), header.tid, rep);
                }
            }
            DecodeError::Method { .. } => match class_port_info::answer(mad) {
                Some(answer) if core.may_answer(now, from) => {
                    core.stats.class_queries += 1;
                    core.answer(from.reply(), answer);
                }
                Some(_) => {}
                None => core.stats.dropped_method += 1,
            },
            DecodeError::Unsupported(_) => core.stats.dropped_unsupported += 1,
            DecodeError::UnknownAttribute(_) => core.stats.dropped_unknown_attribute += 1,
        }
    }

    /// An MRA finds its connection by our ID: with a REQ the peer's is not known yet.
    fn handle_mra(&mut self, now: Instant, from: &MadSource, mra: &Mra) {
        if mra.message == MessageId::RESERVED {
            self.core.stats.dropped_malformed += 1;
            return;
        }
        match self.core.ids.by_local_id(mra.remote_comm_id) {
            Some(slot) if self.is_from_peer(now, slot, from) => {
                self.on(slot, |conn, core| conn.handle_mra(core, now, mra));
            }
            _ => self.core.stats.dropped_unknown_id += 1,
        }
    }

    fn handle_rej(&mut self, now: Instant, from: &MadSource, rej: &Rej) {
        match self.rejected(from, rej) {
            Some(slot) if self.is_from_peer(now, slot, from) => {
                self.on(slot, |conn, core| conn.handle_rej(core, now, rej));
            }
            _ => self.core.stats.dropped_unknown_id += 1,
        }
    }

    /// What a REJ rejects. Without our ID it is found by the CA and the ID of its sender, if it gave up waiting and says
    /// who it is.
    fn rejected(&mut self, from: &MadSource, rej: &Rej) -> Option<u32> {
        if rej.remote_comm_id.is_none() {
            return match RejectInfo::decode(rej.reason, &rej.ari) {
                RejectInfo::CaGuid(guid) if !rej.local_comm_id.is_none() => {
                    let key = self.core.ids.host(guid, Source::of(from)).id(rej.local_comm_id);
                    self.find_by_remote_id(from, key, guid, rej.local_comm_id)
                }
                _ => None,
            };
        }
        let slot = self.core.ids.by_local_id(rej.remote_comm_id)?;
        let conn = &self.conns[slot];
        let fits = rej.message == MessageId::REQ && rej.reason != RejReason::TIMEOUT
            || !conn.is_peer_known()
            || conn.remote_id() == rej.local_comm_id;
        fits.then_some(slot)
    }

    /// `names` as in [`Arrived`].
    fn handle_rep(
        &mut self,
        now: Instant,
        from: &MadSource,
        tid: TransactionId,
        rep: &Rep,
        names: Option<(Transport, RemoteNames)>,
    ) {
        let found = self.core.ids.by_local_id(rep.remote_comm_id);
        let transport = found.map(|slot| self.conns[slot].transport());
        let has_end = match transport {
            Some(transport) => transport.end_of_rep(rep).get() != 0,
            None => rep.local_qpn.get() != 0 || rep.local_eecn.get() != 0,
        };
        if !has_end {
            self.core.stats.dropped_malformed += 1;
            self.core.warn(now, from, "sends a REP without a queue pair");
            return;
        }
        let Some(slot) = found else {
            if let Some(&rej) = self.core.rejections.of_reply(now, rep.remote_comm_id) {
                self.core.stats.repeated_answers += 1;
                self.core.answer(from.reply(), rej);
            } else {
                self.handle_unknown_rep(now, from, tid, rep);
            }
            return;
        };
        let conn = &self.conns[slot];
        if conn.awaits_reply() {
            let names = match names {
                Some((of, names)) if of == conn.transport() => names,
                _ => self.names_of_reply(conn.transport(), from, rep),
            };
            self.handle_first_rep(now, from, tid, slot, rep, &names);
        } else if conn.has_ids(rep.remote_comm_id, rep.local_comm_id) && self.is_from_peer(now, slot, from) {
            self.on(slot, |conn, core| conn.handle_duplicate_reply(core, from));
        } else {
            self.handle_unknown_rep(now, from, tid, rep);
        }
    }

    /// What the sender of a REP calls itself, on a connection of this transport.
    pub(super) fn names_of_reply(&self, transport: Transport, from: &MadSource, rep: &Rep) -> RemoteNames {
        let (guid, id, end) = (rep.local_ca_guid, rep.local_comm_id, transport.end_of_rep(rep));
        self.core.ids.names(transport, Source::of(from), guid, id, end)
    }

    fn handle_first_rep(
        &mut self,
        now: Instant,
        from: &MadSource,
        tid: TransactionId,
        slot: u32,
        rep: &Rep,
        names: &RemoteNames,
    ) {
        let (by_id, by_qpn) = self.find_by_remote_names(from, names);
        if let Some(old) = by_qpn.filter(|&old| !self.rests(old)) {
            let rej = rej_of_reply(rep, RejReason::STALE_CONNECTION);
            self.core.answer_with(from.reply(), tid, rej);
            self.core.warn(now, from, "replies with a queue pair that it has a connection on");
            self.on(old, |conn, core| conn.handle_stale(core, now, names.qpn));
        } else if by_id.is_some_and(|old| !self.rests(old)) {
            self.core.stats.dropped_id_taken += 1;
            self.core.warn(now, from, "replies with an ID that it has a connection by");
        } else {
            self.pass_on(by_id, by_qpn);
            self.on(slot, |conn, core| conn.handle_reply(core, now, from, names, rep));
        }
    }

    fn handle_unknown_rep(&mut self, now: Instant, from: &MadSource, tid: TransactionId, rep: &Rep) {
        self.core.stats.dropped_unknown_id += 1;
        if self.core.may_answer(now, from) {
            self.core.answer_with(from.reply(), tid, rej_of_reply(rep, RejReason::INVALID_COMM_ID));
        }
    }

    fn handle_rtu(&mut self, now: Instant, from: &MadSource, rtu: &Rtu) {
        match self.find(rtu.remote_comm_id, rtu.local_comm_id) {
            Some(slot) if self.is_from_peer(now, slot, from) => {
                self.on(slot, |conn, core| conn.handle_rtu(core, rtu));
            }
            _ => self.core.stats.dropped_unknown_id += 1,
        }
    }

    fn handle_dreq(&mut self, now: Instant, from: &MadSource, tid: TransactionId, dreq: &Dreq) {
        match self.find(dreq.remote_comm_id, dreq.local_comm_id) {
            Some(slot) if self.is_from_peer(now, slot, from) => {
                self.on(slot, |conn, core| conn.handle_dreq(core, now, from, tid, dreq));
            }
            _ => {
                self.core.stats.dropped_unknown_id += 1;
                if self.core.may_answer(now, from) {
                    let drep = Drep {
                        local_comm_id: dreq.remote_comm_id,
                        remote_comm_id: dreq.local_comm_id,
                        private_data: PrivateData::EMPTY,
                    };
                    self.core.answer_with(from.reply(), tid, drep);
                }
            }
        }
    }

    fn handle_drep(&mut self, now: Instant, from: &MadSource, drep: &Drep) {
        match self.find(drep.remote_comm_id, drep.local_comm_id) {
            Some(slot) if self.is_from_peer(now, slot, from) => {
                self.on(slot, |conn, core| conn.handle_drep(core, now, drep));
            }
            _ => self.core.stats.dropped_unknown_id += 1,
        }
    }

    /// The connection with both these IDs.
    pub(super) fn find(&self, local_id: CommId, remote_id: CommId) -> Option<u32> {
        let slot = self.core.ids.by_local_id(local_id)?;
        self.conns[slot].has_ids(local_id, remote_id).then_some(slot)
    }

    /// Whether `from` is the peer of the connection. One that is not names it by chance or in bad faith, and is
    /// another host.
    pub(super) fn is_from_peer(&mut self, now: Instant, slot: u32, from: &MadSource) -> bool {
        let is_peer = self.conns[slot].is_from(from);
        if !is_peer {
            self.core.stats.foreign_source += 1;
            self.core.warn(now, from, "names a connection of another host");
        }
        is_peer
    }

    /// Whether the connection is in TimeWait. The peer may have an end of it before us: how long its names had to rest was
    /// for the peer to say, and they do not stand in the way of its next connection.
    pub(super) fn rests(&self, slot: u32) -> bool {
        self.conns[slot].state() == State::TimeWait
    }

    /// The peer has a new connection by the ID of the one, the queue pair of the other connection, which rest.
    pub(super) fn pass_on(&mut self, by_id: Option<u32>, by_qpn: Option<u32>) {
        if let Some(old) = by_id {
            self.conns[old].pass_on_id(&mut self.core);
        }
        if let Some(old) = by_qpn {
            self.conns[old].pass_on_qpn(&mut self.core);
        }
    }

    /// The connections of the host that sent this, one with this ID of its own, one with this QP.
    pub(super) fn find_by_remote_names(
        &self,
        from: &MadSource,
        names: &RemoteNames,
    ) -> (Option<u32>, Option<u32>) {
        let is_it = |conn: &Connection| conn.remote_guid() == names.guid && conn.remote_qpn() == names.qpn;
        self.core.ids.touch_remote(names.keys);
        let by_id = self.find_by_remote_id(from, names.keys.id, names.guid, names.id);
        (by_id, self.find_by_remote(from, names.keys.qpn, is_it))
    }

    fn find_by_remote_id(&self, from: &MadSource, key: RemoteKey, guid: Guid, id: CommId) -> Option<u32> {
        self.find_by_remote(from, key, |conn| conn.remote_guid() == guid && conn.remote_id() == id)
    }

    /// There is at most one: who gets a name in its place passes it on.
    fn find_by_remote(
        &self,
        from: &MadSource,
        key: RemoteKey,
        is_it: impl Fn(&Connection) -> bool,
    ) -> Option<u32> {
        self.core.ids.by_remote(key).find(|&slot| {
            let conn = &self.conns[slot];
            is_it(conn) && conn.was_met_at(from)
        })
    }
}

/// The REJ for a REP that has no connection here.
fn rej_of_reply(rep: &Rep, reason: RejReason) -> Rej {
    Rej {
        local_comm_id: rep.remote_comm_id,
        remote_comm_id: rep.local_comm_id,
        message: MessageId::REP,
        reason,
        ari: Ari::EMPTY,
        private_data: PrivateData::EMPTY,
    }
}
