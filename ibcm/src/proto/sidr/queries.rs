//! The active side: a SIDR_REQ out, repeated until a SIDR_REP is in.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use ibdev::{MadAddr, MadSource, OutgoingMad};
use ibwire::mad::ClassPortInfo;
use ibwire::{CommId, Lid, QKey, Qpn, TimeCode, TransactionId};
use rand::Rng;
use slab::Slab;

use super::super::connection::is_at;
use super::super::core::Core;
use super::super::error::ConnectError;
use super::super::event::Effort;
use super::super::exchange::{Exchange, Patience};
use super::super::ids::Keyed;
use super::super::invalid::{Invalid, Limit, Value};
use super::super::local::LocalCa;
use super::super::message::{Message, SidrInfo, SidrRep, SidrReq, SidrStatus};
use super::super::outbox::Owed;
use super::super::path::Path;
use super::super::sgids::Address;
use super::super::timers::{Timer, Timers};
use super::command::SidrQuery;
use super::event::SidrEvent;
use super::handle::SidrQueryHandle;

/// How many redirections a query follows.
const MAX_REDIRECTS: u8 = 3;

/// How often one message is sent again at most: transmissions are counted in a byte.
const MAX_RETRIES: u8 = u8::MAX - 1;

/// The longest that a peer may think, and the longest jitter: that of the largest time code of a REQ, 2.4 hours.
const MAX_WAIT: Duration = TimeCode::MAX.duration();

/// All queries that are not over.
#[derive(Debug)]
pub(in super::super) struct Queries {
    slots: Slab<Query>,
    generation: u32,
    by_id: HashMap<CommId, u32, Keyed>,
    timers: Timers,
}

#[derive(Debug)]
struct Query {
    handle: SidrQueryHandle,
    /// What is asked; its ID is that of the present transmission.
    req: Box<SidrReq>,
    path: Path,
    to: Address,
    patience: Patience,
    exchange: Box<Exchange>,
    timer: Timer,
    /// Whether the message is in the queue of outgoing MADs.
    is_queued: bool,
    redirects: u8,
    /// What went before the redirections.
    before: Effort,
    first_sent: Option<Instant>,
}

impl Query {
    fn effort(&self, now: Instant) -> Effort {
        let Effort { sent, waited, .. } = self.exchange.effort(now);
        let waited = self.first_sent.map_or(waited, |first| now.saturating_duration_since(first));
        Effort { sent: self.before.sent.saturating_add(sent), waited, busy: false }
    }
}

/// Where a query goes, checked against the port's tables.
fn address(ca: &LocalCa, path: &Path, qpn: Qpn, qkey: QKey) -> Result<MadAddr, ConnectError> {
    let record = &path.record;
    let port = ca.port(path.port).ok_or_else(|| {
        Invalid::new("port", Value::Number(path.port.into()), Limit::Must("a port of the device"))
    })?;
    let sgid_index = port.gid_index(record.sgid).ok_or_else(|| {
        Invalid::new("SGID", Value::Gid(record.sgid), Limit::Must("in the GID table of the path's port"))
    })?;
    let pkey_index = port.pkey_index(record.pkey).ok_or_else(|| {
        Invalid::new("P_Key", Value::PKey(record.pkey), Limit::Must("a partition of the path's port"))
    })?;
    if !port.active {
        return Err(ConnectError::PortDown(path.port));
    }
    Ok(MadAddr { av: path.address_vector(port, sgid_index), qpn, qkey, pkey_index })
}

/// The path and the CM that a reply redirects to, if that can be reached from this port.
fn redirected(ca: &LocalCa, path: &Path, rep: &SidrRep) -> Option<(Path, MadAddr)> {
    let SidrInfo::Redirect(ClassPortInfo { redirect, .. }) = SidrInfo::decode(rep.status, &rep.info) else {
        return None;
    };
    let (port, mut record) = (ca.port(path.port)?, path.record);
    if !redirect.gid.is_unspecified() {
        record.dgid = redirect.gid;
    }
    if port.is_ethernet() {
        let families = [record.sgid, record.dgid].map(|gid| gid.to_ip().is_ipv4());
        record.dlid = Lid::NONE;
        if redirect.gid.is_unspecified() || families[0] != families[1] {
            return None;
        }
    } else if redirect.lid.is_unicast() {
        record.dlid = redirect.lid;
    } else if redirect.is_none() || record.dgid != path.record.dgid {
        // Which LID a GID has only the SA knows.
        return None;
    }
    if record.dgid.is_multicast() {
        return None;
    }
    record.traffic_class = redirect.traffic_class;
    record.flow_label = redirect.flow_label;
    record.sl = redirect.sl;
    if redirect.pkey.0 != 0 {
        record.pkey = redirect.pkey;
    }
    let (qpn, qkey) = match redirect.qpn.get() {
        0 => (Qpn::GSI, QKey::GSI),
        _ => (redirect.qpn, redirect.qkey),
    };
    let path = Path { port: path.port, record };
    let to = address(ca, &path, qpn, qkey).ok()?;
    Some((path, to))
}

impl Queries {
    pub(super) fn new(keyed: Keyed) -> Self {
        Self {
            slots: Slab::new(),
            generation: 0,
            by_id: HashMap::with_hasher(keyed),
            timers: Timers::default(),
        }
    }

    /// How many there are.
    pub(in super::super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(in super::super) fn start(
        &mut self,
        core: &mut Core,
        query: &SidrQuery,
    ) -> Result<SidrQueryHandle, ConnectError> {
        let SidrQuery { path, service_id, response_timeout, jitter, max_retries, deadline, .. } = *query;
        Invalid::at_most("retries", max_retries, MAX_RETRIES)?;
        for (field, time) in [("response timeout", response_timeout), ("jitter", jitter)] {
            if time > MAX_WAIT {
                return Err(
                    Invalid::new(field, Value::Time(time), Limit::AtMost(Value::Time(MAX_WAIT))).into()
                );
            }
        }
        let to = address(&core.ca, &path, Qpn::GSI, QKey::GSI)?;
        let round_trip = 2 * path.life_time().duration();
        let patience = Patience {
            period: response_timeout.saturating_add(round_trip).max(core.config.min_response_timeout),
            jitter,
            max_retries,
            max_mra_wait: Duration::ZERO,
            max_time: Duration::MAX,
            deadline,
        };
        let req = Box::new(SidrReq {
            request_id: self.draw_id(core),
            pkey: path.record.pkey,
            service_id,
            private_data: query.private_data,
        });
        self.generation = self.generation.wrapping_add(1);
        let entry = self.slots.vacant_entry();
        let handle = SidrQueryHandle { slot: entry.key() as u32, generation: self.generation };
        let exchange = exchange(core, patience, &req);
        self.by_id.insert(req.request_id, handle.slot);
        let query = Query {
            handle,
            req,
            path,
            to: core.sgids.address(to),
            patience,
            exchange,
            timer: Timer::default(),
            is_queued: false,
            redirects: 0,
            before: Effort::default(),
            first_sent: None,
        };
        core.stats.sidr_queries += 1;
        queue(entry.insert(query), core, &mut self.timers);
        Ok(handle)
    }

    /// Forgets a query; what comes for it is unknown.
    pub(in super::super) fn cancel(&mut self, core: &mut Core, handle: SidrQueryHandle) {
        if self.get(handle).is_some() {
            self.remove(core, handle.slot);
        }
    }

    /// Whether the query is in the port's queue of outgoing MADs.
    pub(in super::super) fn owes(&self, handle: SidrQueryHandle, port: u8) -> bool {
        self.get(handle).is_some_and(|query| query.is_queued && query.to.port() == port)
    }

    /// The queued message of a query, if there is still one; its timer starts.
    pub(in super::super) fn pay(
        &mut self,
        core: &mut Core,
        now: Instant,
        handle: SidrQueryHandle,
        port: u8,
    ) -> Option<OutgoingMad> {
        if !self.owes(handle, port) {
            return None;
        }
        let query = &mut self.slots[handle.slot as usize];
        query.is_queued = false;
        query.first_sent.get_or_insert(now);
        let (mad, due) = query.exchange.transmit(now, || core.rng.next_u32());
        core.stats.resent += u64::from(query.exchange.is_resent());
        self.timers.start(&mut query.timer, handle.slot, due);
        core.mad(&query.to, mad)
    }

    pub(in super::super) fn next_timeout(&mut self) -> Option<Instant> {
        let slots = &self.slots;
        self.timers.next(|slot| slots.get(slot as usize).map(|query| &query.timer))
    }

    pub(in super::super) fn handle_timeout(
        &mut self,
        core: &mut Core,
        now: Instant,
        events: &mut VecDeque<SidrEvent>,
    ) {
        loop {
            let slots = &self.slots;
            let due = self.timers.pop_due(now, |slot| slots.get(slot as usize).map(|query| &query.timer));
            let Some(slot) = due else { return };
            let query = &mut self.slots[slot as usize];
            self.timers.stop(&mut query.timer);
            if query.exchange.is_exhausted(now) {
                core.stats.sidr_timeouts += 1;
                let (query, effort) = (query.handle, query.effort(now));
                self.remove(core, slot);
                events.push_back(SidrEvent::Timeout { query, effort });
            } else {
                queue(query, core, &mut self.timers);
            }
        }
    }

    pub(in super::super) fn handle_rep(
        &mut self,
        core: &mut Core,
        now: Instant,
        from: &MadSource,
        rep: &SidrRep,
        events: &mut VecDeque<SidrEvent>,
    ) {
        let Some(&slot) = self.by_id.get(&rep.request_id) else {
            core.stats.dropped_unknown_id += 1;
            return;
        };
        let query = &self.slots[slot as usize];
        if query.req.service_id != rep.service_id || !query.exchange.is_sent() {
            core.stats.dropped_unknown_id += 1;
            return;
        }
        if !is_at(query.to.av(), from) {
            core.stats.foreign_source += 1;
            core.stats.dropped_unknown_id += 1;
            core.warn(now, from, "answers a query that was sent to another host");
            return;
        }
        let names_qp = rep.qpn > Qpn::GSI && rep.qpn < Qpn::MULTICAST;
        if rep.status == SidrStatus::VALID && !names_qp {
            core.stats.dropped_malformed += 1;
            core.warn(now, from, "sends a SIDR_REP without a queue pair");
            return;
        }
        if rep.status == SidrStatus::REDIRECT
            && query.redirects < MAX_REDIRECTS
            && let Some((path, to)) = redirected(&core.ca, &query.path, rep)
        {
            return self.redirect(core, now, slot, path, to);
        }
        let (handle, path, effort) = (query.handle, query.path, query.effort(now));
        self.remove(core, slot);
        let rep = Box::new(rep.clone());
        events.push_back(match rep.status {
            SidrStatus::VALID => SidrEvent::Resolved { query: handle, rep, path: Box::new(path), effort },
            _ => SidrEvent::Refused { query: handle, rep, effort },
        });
    }

    /// Asks elsewhere, under a fresh ID.
    fn redirect(&mut self, core: &mut Core, now: Instant, slot: u32, path: Path, to: MadAddr) {
        let request_id = self.draw_id(core);
        let query = &mut self.slots[slot as usize];
        tracing::debug!(request = %query.req.request_id, to = %path.record.dgid, "redirected");
        core.stats.sidr_redirects += 1;
        self.by_id.remove(&query.req.request_id);
        self.by_id.insert(request_id, slot);
        query.before = query.effort(now);
        query.redirects += 1;
        query.req.request_id = request_id;
        query.req.pkey = path.record.pkey;
        query.path = path;
        query.to = core.sgids.address(to);
        let next = exchange(core, query.patience, &query.req);
        core.exchanges.keep(std::mem::replace(&mut query.exchange, next));
        self.timers.stop(&mut query.timer);
        queue(query, core, &mut self.timers);
    }

    pub(super) fn handle_device_removed(&mut self, core: &mut Core, events: &mut VecDeque<SidrEvent>) {
        for query in self.slots.drain() {
            core.exchanges.keep(query.exchange);
            events.push_back(SidrEvent::DeviceRemoved { query: query.handle });
        }
        self.by_id.clear();
        self.timers.clear();
    }

    fn get(&self, handle: SidrQueryHandle) -> Option<&Query> {
        self.slots.get(handle.slot as usize).filter(|query| query.handle == handle)
    }

    fn remove(&mut self, core: &mut Core, slot: u32) {
        let mut query = self.slots.remove(slot as usize);
        self.timers.stop(&mut query.timer);
        self.by_id.remove(&query.req.request_id);
        core.exchanges.keep(query.exchange);
    }

    /// An ID that no other query has.
    fn draw_id(&self, core: &mut Core) -> CommId {
        loop {
            let id = CommId(core.rng.next_u32());
            if !id.is_none() && !self.by_id.contains_key(&id) {
                return id;
            }
        }
    }
}

/// Puts the query's message into the queue of its port. What waits there waits no longer than the whole may take.
fn queue(query: &mut Query, core: &mut Core, timers: &mut Timers) {
    if let Some(limit) = query.exchange.limit() {
        timers.start(&mut query.timer, query.handle.slot, limit);
    }
    if !query.is_queued {
        query.is_queued = true;
        core.outbox.owe(query.to.port(), Owed::Query(query.handle));
    }
}

/// The message, under a transaction ID of its own.
fn exchange(core: &mut Core, patience: Patience, req: &SidrReq) -> Box<Exchange> {
    let tid: TransactionId = core.draw_tid();
    core.exchanges.make(patience, |mad| Message::from(req.clone()).encode(tid, mad))
}
