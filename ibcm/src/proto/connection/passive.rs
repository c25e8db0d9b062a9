//! The passive side: REQ in, REP out, RTU in (spec/cm.md 4.5).

use std::time::{Duration, Instant};

use ibdev::{MadAddr, MadSource};
use ibwire::{Psn, QKey, Qpn, RejReason, TimeCode, TransactionId};
use rand::Rng;

use super::super::attrs::Attrs;
use super::super::command::Accept;
use super::super::core::Core;
use super::super::endpoint::{ConnHandle, ListenerId};
use super::super::error::CommandError;
use super::super::event::{Event, Request};
use super::super::ids::RemoteNames;
use super::super::invalid::{Invalid, Limit, Value};
use super::super::listeners::MraTerms;
use super::super::message::{Eecn, Message, MessageId, Rej, Rep, Req, RetryCount, Rtu, VendorId};
use super::super::path::Path;
use super::super::timers::Timer;
use super::super::transport::{Transport, end_of};
use super::active::check_rd;
use super::{Connection, Proposal, Reports, Role, State, Terms};

/// Who asks, and the way back.
#[derive(Debug)]
pub(in super::super) struct Arrival {
    pub(in super::super) transport: Transport,
    pub(in super::super) names: RemoteNames,
    /// The path back.
    pub(in super::super) path: Path,
    /// The same for MADs.
    pub(in super::super) primary: MadAddr,
    pub(in super::super) alternate: Proposal,
}

/// A request that passed all checks.
#[derive(Debug)]
pub(in super::super) struct Admission {
    pub(in super::super) arrival: Arrival,
    pub(in super::super) listener: ListenerId,
    /// What the peer is told while it waits.
    pub(in super::super) mra_terms: MraTerms,
}

/// What a REQ says about the connection to come, within our bounds.
#[derive(Debug)]
pub(super) struct Agreement {
    period: Duration,
    max_cm_retries: u8,
    life_time: TimeCode,
    answer_within: Duration,
    time_wait: Duration,
    terms: Terms,
}

impl Agreement {
    /// At most so many reads and atomics: inbound, outbound.
    pub(super) fn new(core: &Core, transport: Transport, req: &Req, most: (u8, u8), rq_psn: Psn) -> Self {
        let most = transport.passive_depths(most.0, most.1);
        let ack_timeout = req.primary.local_ack_timeout;
        let qp_timeout = match ack_timeout.get() {
            0 => core.config.max_ack_timeout,
            _ => ack_timeout.min(core.config.max_ack_timeout),
        };
        let terms = Terms {
            path_mtu: req.path_mtu,
            rq_psn,
            sq_psn: req.starting_psn,
            responder_resources: req.initiator_depth.min(most.0),
            initiator_depth: req.responder_resources.min(most.1),
            reads: false,
            ack_timeout: qp_timeout,
            retry_count: req.retry_count.get(),
            rnr_retry: req.rnr_retry_count.get(),
        };
        Self {
            period: core.response_timeout(req.local_cm_response_timeout.duration()),
            max_cm_retries: req.max_cm_retries.get(),
            life_time: ack_timeout.saturating_sub(1),
            answer_within: req.remote_cm_response_timeout.duration(),
            time_wait: core.time_wait(ack_timeout.duration()),
            terms: if transport == Transport::Uc { terms.unreliable() } else { terms },
        }
    }
}

impl Connection {
    /// A new connection, made of a REQ; its request is reported.
    pub(in super::super) fn passive(
        core: &mut Core,
        now: Instant,
        handle: ConnHandle,
        admission: Admission,
        from: &MadSource,
        tid: TransactionId,
        req: &Req,
    ) -> Self {
        let (local_id, rq_psn) = (core.draw_id(), Psn::truncate(core.rng.next_u32()));
        let Admission { arrival, listener, mra_terms } = admission;
        let transport = arrival.transport;
        let most = (core.ca.max_responder_resources, core.ca.max_initiator_depth);
        let agreed = Agreement::new(core, transport, req, most, rq_psn);
        let mut connection = Self {
            handle,
            role: Role::Passive,
            state: State::ReqRcvd,
            reports: Reports::All,
            released: false,
            queued_at: None,
            owes_rtu: false,
            local_id,
            remote_id: req.local_comm_id,
            local_qpn: Qpn::truncate(0),
            remote_qpn: arrival.names.qpn,
            remote_guid: req.local_ca_guid,
            remote_keys: None,
            transport,
            tid,
            primary: core.sgids.address(arrival.primary),
            remote_gid: arrival.path.record.dgid,
            answer_to: core.sgids.address(from.reply()),
            period: agreed.period.into(),
            max_cm_retries: agreed.max_cm_retries,
            life_time: agreed.life_time,
            answer_within: agreed.answer_within,
            mra_timeout: mra_terms.service_timeout,
            time_wait: agreed.time_wait.into(),
            failover: None,
            peer_ack_delay: TimeCode::default(),
            takes_paths: false,
            terms: agreed.terms,
            timer: Timer::default(),
            exchange: None,
            listener: Some(listener),
            extras: None,
        };
        if let Some(data) = &mra_terms.data {
            connection.extras().mra_data = Some(data.clone());
        }
        connection.take_proposal(core, &arrival.alternate);
        core.states[State::ReqRcvd.index()] += 1;
        core.ids.insert_local_id(local_id, handle.slot());
        connection.meet_peer(core, &arrival.names);
        core.listeners.request_added(listener);
        core.stats.requests += 1;
        connection.start_timer(core, now + mra_terms.asked_after(connection.answer_within));
        let request = Box::new(Request {
            req: req.clone(),
            from: *from,
            transport: arrival.transport,
            path: arrival.path,
            alternate: arrival.alternate.path(),
            responder_resources: connection.terms.responder_resources,
            initiator_depth: connection.terms.initiator_depth,
        });
        connection.report(core, Event::Request { conn: handle, listener, request });
        connection
    }

    pub(super) fn agree(&mut self, agreed: Agreement) {
        self.period = agreed.period.into();
        self.max_cm_retries = agreed.max_cm_retries;
        self.life_time = agreed.life_time;
        self.answer_within = agreed.answer_within;
        self.time_wait = agreed.time_wait.into();
        self.terms = agreed.terms;
    }

    /// Whether the request waits for the user's decision.
    pub(super) fn is_undecided_request(&self) -> bool {
        matches!(self.state, State::ReqRcvd | State::ReqMraSent)
    }

    /// Whether our REP is out and not yet answered.
    pub(in super::super) fn awaits_rtu(&self) -> bool {
        matches!(self.state, State::RepSent | State::RepMraRcvd)
    }

    /// The terms that `accept` would bring. At this point ours are the most that can be had.
    fn accepted_terms(&self, accept: &Accept) -> Result<Terms, CommandError> {
        if !self.is_undecided_request() {
            return Err(self.refusal());
        }
        if self.is_peer() && accept.qpn != self.local_qpn {
            let must = Limit::Must("the one that asked for the peer");
            return Err(Invalid::new("queue pair", Value::Qpn(accept.qpn), must).into());
        }
        let depth = |field, wanted: Option<u8>, most: u8| {
            let depth = wanted.unwrap_or(most);
            Invalid::at_most(field, depth, most).map(|()| depth)
        };
        check_rd(self.transport, accept.rd)?;
        Invalid::at_most("RNR retry count", accept.rnr_retry_count, RetryCount::MAX.get())?;
        let responder_resources =
            depth("responder resources", accept.responder_resources, self.terms.responder_resources)?;
        let initiator_depth = depth("initiator depth", accept.initiator_depth, self.terms.initiator_depth)?;
        Ok(Terms { responder_resources, initiator_depth, reads: responder_resources > 0, ..self.terms })
    }

    pub(in super::super) fn accept_attrs(&self, core: &Core, accept: &Accept) -> Result<Attrs, CommandError> {
        let terms = self.accepted_terms(accept)?;
        let alternate = self.accepted_path(core, accept.failover);
        self.attrs_of(core, &terms, alternate).ok_or_else(|| {
            let sgid = Value::Gid(core.sgids.gid(&self.primary).unwrap_or_default());
            Invalid::new("SGID", sgid, Limit::Must("in the GID table of the path's port")).into()
        })
    }

    /// The user accepts; the REP is queued. That the QP is free has been checked.
    pub(in super::super) fn accept(
        &mut self,
        core: &mut Core,
        now: Instant,
        accept: Accept,
    ) -> Result<(), CommandError> {
        self.terms = self.accepted_terms(&accept)?;
        let failover_accepted = self.decide_on_path(core, accept.failover);
        self.decide(core);
        let end = accept.rd.map_or(accept.qpn, |rd| end_of(rd.eecn));
        // EE contexts are the user's affair: connections may share one.
        if self.local_qpn != end && accept.rd.is_none() {
            core.ids.insert_local_qpn(end, self.handle.slot());
        }
        self.local_qpn = end;
        let (local_qpn, local_eecn) = match self.transport {
            Transport::Xrc => (Qpn::default(), Eecn::truncate(accept.qpn.get())),
            Transport::Rd => (accept.qpn, Eecn::truncate(end.get())),
            Transport::Rc | Transport::Uc => (accept.qpn, Eecn::default()),
        };
        let is_target = self.transport == Transport::Xrc;
        let rep = Rep {
            local_comm_id: self.local_id,
            remote_comm_id: self.remote_id,
            local_qkey: accept.rd.map_or(QKey(0), |rd| rd.qkey),
            local_qpn,
            vendor_id: VendorId::truncate(0),
            local_eecn,
            starting_psn: self.terms.rq_psn,
            responder_resources: self.terms.responder_resources,
            initiator_depth: self.terms.initiator_depth,
            target_ack_delay: core.ca.ack_delay,
            failover_accepted,
            end_to_end_flow_control: accept.end_to_end_flow_control && !is_target,
            rnr_retry_count: RetryCount::truncate(accept.rnr_retry_count),
            // A target has no receives but those of shared queues.
            srq: accept.srq || is_target,
            local_ca_guid: core.ca.node_guid,
            private_data: accept.private_data,
        };
        let (tid, patience) = (self.tid, self.patience(core, now, accept.deadline));
        let exchange = core.exchanges.make(patience, |mad| Message::Rep(rep).encode(tid, mad));
        self.set_state(core, State::RepSent);
        self.start_exchange(core, exchange);
        Ok(())
    }

    /// The REQ that this connection was made of came again.
    pub(in super::super) fn handle_duplicate_request(
        &mut self,
        core: &mut Core,
        from: &MadSource,
        tid: TransactionId,
    ) {
        match self.state {
            // One that asked for its peer, and is the active side. The peer's REQ is old.
            _ if self.role == Role::Active => core.stats.dropped_duplicate += 1,
            State::ReqMraSent => {
                let mra = self.mra(MessageId::REQ);
                core.answer_with(from.reply(), tid, mra);
                core.stats.repeated_answers += 1;
            }
            State::RepSent | State::RepMraRcvd => {
                if let Some(rep) = self.exchange.as_ref().and_then(|exchange| exchange.repeat()) {
                    core.answer(from.reply(), *rep);
                    core.stats.repeated_answers += 1;
                }
            }
            State::TimeWait => {
                let rej = Rej::of_request(self.remote_id, RejReason::STALE_CONNECTION);
                core.answer_with(from.reply(), tid, rej);
                core.stats.refused_requests += 1;
            }
            _ => core.stats.dropped_duplicate += 1,
        }
    }

    /// An RTU with both IDs of this connection.
    pub(in super::super) fn handle_rtu(&mut self, core: &mut Core, rtu: &Rtu) {
        match (self.role, self.state) {
            (Role::Passive, State::RepSent | State::RepMraRcvd) => {
                self.establish(core);
                let rtu_data = Some(rtu.private_data);
                self.report(core, Event::Established { conn: self.handle, rtu_data });
            }
            (Role::Passive, State::Established) => core.stats.dropped_duplicate += 1,
            _ => core.stats.dropped_state += 1,
        }
    }

    /// Something that the peer does only when it considers the connection established: data, a DREQ.
    pub(in super::super) fn handle_implied_rtu(&mut self, core: &mut Core) {
        if self.awaits_rtu() {
            self.establish(core);
            self.report(core, Event::Established { conn: self.handle, rtu_data: None });
        }
    }
}
