//! The active side: REQ out, REP in, RTU out (spec/cm.md 4.4).

use std::time::Instant;

use ibdev::qp::Init;
use ibdev::{MadAddr, MadSource, OutgoingMad};
use ibwire::{CommId, Guid, PrivateData, Psn, QKey, Qpn, RejReason, TimeCode};
use rand::Rng;

use super::super::attrs::{Attrs, ack_timeout};
use super::super::command::Connect;
use super::super::core::{Core, encoded};
use super::super::endpoint::ConnHandle;
use super::super::error::{CommandError, ConnectError};
use super::super::event::Event;
use super::super::exchange::Patience;
use super::super::ids::RemoteNames;
use super::super::invalid::{Invalid, Limit, Value};
use super::super::local::LocalCa;
use super::super::message::{
    Ari, CmRetries, Eecn, Message, MessageId, PathBlock, Rep, Req, RetryCount, Rtu, VendorId,
};
use super::super::outbox::Owed;
use super::super::timers::Timer;
use super::super::transport::{RdEnd, Transport, end_of};
use super::{AlternatePlan, Connection, Reports, Role, State, Terms, keep, kept};

/// What a [`Connect`] comes to on this CA.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Plan {
    primary: MadAddr,
    block: PathBlock,
    responder_resources: u8,
    initiator_depth: u8,
    retry_count: RetryCount,
    rnr_retry_count: RetryCount,
    max_cm_retries: CmRetries,
    alternate: Option<AlternatePlan>,
}

impl Plan {
    /// Checks everything but the queue pair.
    pub(in super::super) fn new(ca: &LocalCa, connect: &Connect) -> Result<Self, ConnectError> {
        let (path, record) = (&connect.path, &connect.path.record);
        let port = ca.port(path.port).ok_or_else(|| {
            Invalid::new("port", Value::Number(path.port.into()), Limit::Must("a port of the device"))
        })?;
        let sgid_index = port.gid_index(record.sgid).ok_or_else(|| {
            Invalid::new("SGID", Value::Gid(record.sgid), Limit::Must("in the GID table of the path's port"))
        })?;
        let pkey_index = port.pkey_index(record.pkey).ok_or_else(|| {
            let must = Limit::Must("a partition of the path's port");
            Invalid::new("P_Key", Value::PKey(record.pkey), must)
        })?;
        if record.mtu.bytes().is_none() || record.mtu > port.mtu {
            return Err(Invalid::new(
                "path MTU",
                Value::Mtu(record.mtu),
                Limit::AtMost(Value::Mtu(port.mtu)),
            )
            .into());
        }
        let depth = |field, wanted: Option<u8>, most| {
            let depth = wanted.unwrap_or(most);
            Invalid::at_most(field, depth, most).map(|()| depth)
        };
        let narrow = |field, value, most: u8| Invalid::at_most(field, value, most).map(|()| value);
        check_rd(connect.transport, connect.rd)?;
        if connect.rdc.is_some() && connect.rd.is_none() {
            let must = Limit::Must("left out: only reliable datagrams have one");
            return Err(Invalid::new("RDC", Value::Transport(connect.transport), must).into());
        }
        if connect.srq && connect.transport == Transport::Xrc {
            let must = Limit::Must("left out: an XRC initiator receives nothing");
            return Err(Invalid::new("shared receive queue", Value::Number(1), must).into());
        }
        let (most_inbound, most_outbound) =
            connect.transport.active_depths(ca.max_responder_resources, ca.max_initiator_depth);
        let plan = Self {
            primary: MadAddr {
                av: path.address_vector(port, sgid_index),
                qpn: Qpn::GSI,
                qkey: QKey::GSI,
                pkey_index,
            },
            block: path.block(port, ack_timeout(path.life_time(), ca.ack_delay)),
            responder_resources: depth("responder resources", connect.responder_resources, most_inbound)?,
            initiator_depth: depth("initiator depth", connect.initiator_depth, most_outbound)?,
            retry_count: RetryCount::truncate(narrow("retry count", connect.retry_count, 7)?),
            rnr_retry_count: RetryCount::truncate(narrow("RNR retry count", connect.rnr_retry_count, 7)?),
            max_cm_retries: CmRetries::truncate(narrow("CM retries", connect.max_cm_retries, 15)?),
            alternate: connect
                .alternate
                .as_ref()
                .map(|alternate| AlternatePlan::new(ca, connect.transport, alternate, path))
                .transpose()?,
        };
        if !port.active {
            return Err(ConnectError::PortDown(path.port));
        }
        Ok(plan)
    }

    /// The REQ of a connection with this ID, whose sends begin at this PSN.
    fn req(&self, ca: &LocalCa, connect: &Connect, local_id: CommId, rq_psn: Psn) -> Req {
        let (transport, rd) = (connect.transport, connect.rd);
        // What the peer's queue pair repeats. UC repeats nothing, an XRC target sends nothing.
        let repeats = |count| match transport {
            Transport::Rc | Transport::Rd => count,
            Transport::Uc | Transport::Xrc => RetryCount::truncate(0),
        };
        Req {
            local_comm_id: local_id,
            vendor_id: VendorId::truncate(0),
            service_id: connect.service_id,
            local_ca_guid: ca.node_guid,
            local_qkey: rd.map_or(QKey(0), |rd| rd.qkey),
            local_qpn: connect.qpn,
            responder_resources: self.responder_resources,
            local_eecn: rd.map_or(Eecn::default(), |rd| rd.eecn),
            initiator_depth: self.initiator_depth,
            remote_eecn: connect.rdc.unwrap_or_default(),
            remote_cm_response_timeout: connect.response_timeout,
            transport: transport.service(),
            end_to_end_flow_control: connect.end_to_end_flow_control,
            starting_psn: rq_psn,
            local_cm_response_timeout: connect.local_response_timeout,
            retry_count: repeats(self.retry_count),
            pkey: connect.path.record.pkey,
            path_mtu: connect.path.record.mtu,
            rdc_exists: connect.rdc.is_some(),
            rnr_retry_count: repeats(self.rnr_retry_count),
            max_cm_retries: self.max_cm_retries,
            srq: connect.srq,
            primary: self.block,
            alternate: self.alternate.as_ref().map_or(PathBlock::NONE, |alternate| alternate.block),
            sap_supported: false,
            private_data: connect.private_data,
        }
    }

    /// RESET to INIT of the queue pair.
    pub(in super::super) fn init(&self) -> Init {
        Attrs::init(self.primary.av.port, self.primary.pkey_index, self.responder_resources > 0)
    }
}

/// Reliable datagrams have an EE context, all others have none.
pub(super) fn check_rd(transport: Transport, rd: Option<RdEnd>) -> Result<(), Invalid> {
    match (transport, rd) {
        (Transport::Rd, Some(rd)) if rd.eecn.get() != 0 => Ok(()),
        (Transport::Rd, Some(_)) => {
            Err(Invalid::new("EE context", Value::Number(0), Limit::AtLeast(Value::Number(1))))
        }
        (Transport::Rd, None) => {
            Err(Invalid::new("EE context", Value::Transport(transport), Limit::Must("given with RD")))
        }
        (_, None) => Ok(()),
        (_, Some(_)) => {
            let must = Limit::Must("left out: only RD has one");
            Err(Invalid::new("EE context", Value::Transport(transport), must))
        }
    }
}

impl Connection {
    /// A new connection; its REQ is queued.
    pub(in super::super) fn active(
        core: &mut Core,
        now: Instant,
        handle: ConnHandle,
        plan: &Plan,
        connect: &Connect,
    ) -> Self {
        let (local_id, tid) = (core.draw_id(), core.draw_tid());
        let rq_psn = Psn::truncate(core.rng.next_u32());
        let life_time = connect.path.life_time();
        let round_trip = 2 * life_time.duration();
        let address = core.sgids.address(plan.primary);
        let (transport, rd) = (connect.transport, connect.rd);
        let mut terms = Terms {
            path_mtu: connect.path.record.mtu,
            rq_psn,
            sq_psn: Psn::truncate(0),
            responder_resources: plan.responder_resources,
            initiator_depth: plan.initiator_depth,
            reads: plan.responder_resources > 0,
            ack_timeout: plan.block.local_ack_timeout,
            retry_count: plan.retry_count.get(),
            rnr_retry: 0,
        };
        if transport == Transport::Uc {
            terms = terms.unreliable();
        }
        let mut connection = Self {
            handle,
            role: Role::Active,
            state: State::ReqSent,
            reports: Reports::All,
            released: false,
            queued_at: None,
            owes_rtu: false,
            local_id,
            remote_id: CommId::NONE,
            local_qpn: rd.map_or(connect.qpn, |rd| end_of(rd.eecn)),
            remote_qpn: Qpn::truncate(0),
            remote_guid: Guid(0),
            remote_keys: None,
            transport,
            tid,
            primary: address,
            remote_gid: connect.path.record.dgid,
            answer_to: address,
            period: (connect.response_timeout.duration() + round_trip).into(),
            max_cm_retries: plan.max_cm_retries.get(),
            life_time,
            answer_within: connect.local_response_timeout.duration().saturating_sub(round_trip),
            mra_timeout: core.config.mra_service_timeout,
            time_wait: core.time_wait(round_trip + core.ca.ack_delay.duration()).into(),
            failover: None,
            peer_ack_delay: TimeCode::default(),
            takes_paths: false,
            terms,
            timer: Timer::default(),
            exchange: None,
            listener: None,
            extras: None,
        };
        let req = plan.req(&core.ca, connect, local_id, rq_psn);
        if let Some(alternate) = &plan.alternate {
            connection.propose(core, alternate);
        }
        core.states[State::ReqSent.index()] += 1;
        core.ids.insert_local_id(local_id, handle.slot());
        // EE contexts are the user's affair: connections may share one.
        if rd.is_none() {
            core.ids.insert_local_qpn(connect.qpn, handle.slot());
        }
        let patience =
            Patience { jitter: connect.jitter, ..connection.patience(core, now, connect.deadline) };
        let exchange = core.exchanges.make(patience, |mad| Message::Req(req).encode(tid, mad));
        connection.start_exchange(core, exchange);
        connection
    }

    /// Whether a REP can be the answer to our REQ.
    pub(in super::super) fn awaits_reply(&self) -> bool {
        matches!(self.state, State::ReqSent | State::ReqMraRcvd)
    }

    /// The first REP, from a QP and with an ID that are not in use.
    pub(in super::super) fn handle_reply(
        &mut self,
        core: &mut Core,
        now: Instant,
        from: &MadSource,
        names: &RemoteNames,
        rep: &Rep,
    ) {
        let effort = self.effort(now).unwrap_or_default();
        self.stop_exchange(core);
        self.leave_peers(core);
        self.answer_to = core.sgids.address(from.reply());
        self.meet_peer(core, names);
        let (offered, wished) = (self.terms.responder_resources, self.terms.initiator_depth);
        let delay = rep.target_ack_delay;
        self.terms = Terms {
            sq_psn: rep.starting_psn,
            responder_resources: rep.initiator_depth,
            initiator_depth: wished.min(rep.responder_resources),
            ack_timeout: ack_timeout(self.life_time, delay).min(core.config.max_ack_timeout),
            rnr_retry: rep.rnr_retry_count.get(),
            ..self.terms
        };
        if self.transport == Transport::Uc {
            self.terms = self.terms.unreliable();
        }
        self.time_wait = core.time_wait(2 * self.life_time.duration() + delay.duration()).into();
        self.take_failover(core, rep);
        self.set_state(core, State::RepRcvd);
        if rep.initiator_depth > offered {
            core.warn(now, from, "replies with more reads than were offered");
            let reason = RejReason::INSUFFICIENT_RESPONDER_RESOURCES;
            self.reject_with(core, now, reason, Ari::EMPTY, PrivateData::EMPTY);
            let (conn, rep) = (self.handle, Box::new(rep.clone()));
            self.report(core, Event::ReplyRefused { conn, reason, rep, effort });
            self.release(core);
            return;
        }
        self.start_timer(core, now + self.answer_within / 2);
        self.report(core, Event::Reply { conn: self.handle, rep: Box::new(rep.clone()), effort });
    }

    /// A REP with both IDs of this connection.
    pub(in super::super) fn handle_duplicate_reply(&mut self, core: &mut Core, from: &MadSource) {
        match (self.role, self.state) {
            (Role::Active, State::RepMraSent) => {
                let mra = self.mra(MessageId::REP);
                core.answer_with(from.reply(), self.tid, mra);
                core.stats.repeated_answers += 1;
            }
            // In DreqSent the peer may still be waiting for the RTU before it takes the DREQ.
            (Role::Active, State::Established | State::DreqSent) => {
                let rtu = self.rtu();
                core.answer_with(from.reply(), self.tid, rtu);
                core.stats.repeated_answers += 1;
            }
            (Role::Active, _) => core.stats.dropped_duplicate += 1,
            (Role::Passive, _) => core.stats.dropped_state += 1,
        }
    }

    /// The user's queue pair is ready.
    pub(in super::super) fn ready(
        &mut self,
        core: &mut Core,
        rtu_data: PrivateData<224>,
    ) -> Result<(), CommandError> {
        if !matches!(self.state, State::RepRcvd | State::RepMraSent) {
            return Err(self.refusal());
        }
        if let Some(data) = keep(rtu_data) {
            self.extras().rtu_data = Some(data);
        }
        self.establish(core);
        self.owes_rtu = true;
        core.outbox.owe(self.answer_to.port(), Owed::Rtu(self.handle));
        Ok(())
    }

    /// The queued RTU, unless the connection is over.
    pub(super) fn transmit_rtu(&mut self, core: &mut Core) -> Option<OutgoingMad> {
        self.owes_rtu = false;
        if !matches!(self.state, State::Established | State::DreqSent) {
            return None;
        }
        core.mad(&self.answer_to, encoded(self.tid, self.rtu()))
    }

    fn rtu(&self) -> Rtu {
        Rtu {
            local_comm_id: self.local_id,
            remote_comm_id: self.remote_id,
            private_data: kept(self.extras.as_ref().and_then(|extras| extras.rtu_data.as_deref())),
        }
    }
}
