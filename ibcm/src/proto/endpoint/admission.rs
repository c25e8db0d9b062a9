//! Whether a REQ becomes a connection (spec/cm.md 4.3).

use std::time::Instant;

use ibdev::{AddressVector, GlobalRoute, MadAddr, MadSource};
use ibwire::{Lid, Mtu, PKey, PathRecord, QKey, Qpn, RejReason, Selector, ServiceId, TransactionId};

use super::super::command::Overflow;
use super::super::connection::{Admission, Arrival, Connection, Crossing, Proposal};
use super::super::ids::{RemoteNames, Source};
use super::super::listeners::Wanted;
use super::super::local::{LocalCa, LocalPort};
use super::super::message::{ApInfo, ApStatus, PathBlock, Rej, RejectInfo, Req};
use super::super::path::{DEFAULT_HOP_LIMIT, Path};
use super::super::peers::Meeting;
use super::super::rejections::Rejected;
use super::super::transport::Transport;
use super::{Endpoint, ListenerId};

/// Why a REQ becomes no connection.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    /// There is no room for it.
    Overflow(ListenerId),
    /// It is rejected.
    Reject(RejReason, RejectInfo),
}

impl From<RejReason> for Refusal {
    fn from(reason: RejReason) -> Self {
        Self::Reject(reason, RejectInfo::None)
    }
}

impl Endpoint {
    /// `names` as in [`Arrived`](super::batch::Arrived).
    pub(super) fn handle_req(
        &mut self,
        now: Instant,
        from: &MadSource,
        tid: TransactionId,
        req: &Req,
        names: Option<(Transport, RemoteNames)>,
    ) {
        let Some((transport, end)) = wanted_transport(req) else {
            self.refuse(from, tid, req, RejReason::INVALID_TRANSPORT.into());
            return;
        };
        let source = Source::of(from);
        let names = match names {
            Some((of, names)) if of == transport => names,
            _ => self.core.ids.names(transport, source, req.local_ca_guid, req.local_comm_id, end),
        };
        let (by_id, by_qpn) = self.find_by_remote_names(from, &names);
        if let Some(slot) = self.made_of(&names, by_id).or_else(|| self.made_of(&names, by_qpn)) {
            self.on(slot, |conn, core| conn.handle_duplicate_request(core, from, tid));
            return;
        }
        if let Some(slot) = by_id.filter(|&slot| !self.rests(slot)) {
            self.refuse(from, tid, req, RejReason::DUPLICATE_COMM_ID.into());
            self.core.warn(now, from, "requests a connection by an ID that it has one by");
            self.on(slot, |conn, core| conn.handle_stale(core, now, end));
            return;
        }
        if let Some(&rej) = self.core.rejections.of_request(now, &sender(source, &names)) {
            self.core.stats.repeated_answers += 1;
            self.core.answer(from.reply(), rej);
            return;
        }
        if let Some(slot) = by_qpn.filter(|&slot| !self.rests(slot)) {
            self.refuse(from, tid, req, RejReason::STALE_CONNECTION.into());
            self.core.warn(now, from, "requests a connection on a queue pair that it has one on");
            self.on(slot, |conn, core| conn.handle_stale(core, now, end));
            return;
        }
        if self.is_spoken_for(req) {
            self.core.stats.dropped_duplicate += 1;
            return;
        }
        match self.crossing(from, req) {
            Some((slot, Crossing::Theirs | Crossing::Ours)) if self.conns[slot].transport() != transport => {
                self.refuse(from, tid, req, RejReason::INVALID_TRANSPORT.into());
            }
            Some((slot, Crossing::Theirs)) => self.conns[slot].ask_again(&mut self.core),
            Some((slot, Crossing::Ours)) => match self.arrival(from, transport, req, names) {
                Ok(arrival) => {
                    self.pass_on(by_id, by_qpn);
                    self.take(req);
                    self.on(slot, |conn, core| conn.turn_passive(core, now, &arrival, from, tid, req));
                }
                Err(refusal) => self.refuse(from, tid, req, refusal),
            },
            own_or_none => match self.admit(from, transport, req, names) {
                Ok(admission) => {
                    self.pass_on(by_id, by_qpn);
                    self.take(req);
                    self.insert(|core, handle| {
                        Connection::passive(core, now, handle, admission, from, tid, req)
                    });
                }
                // Whom we ask on the same HCA may come yet.
                Err(_) if own_or_none.is_some() => self.core.stats.dropped_reflected += 1,
                Err(refusal) => self.refuse(from, tid, req, refusal),
            },
        }
    }

    /// The oldest connection that asks for the peer which sent this, or if there is none the one that sent it itself.
    fn crossing(&self, from: &MadSource, req: &Req) -> Option<(u32, Crossing)> {
        let PathBlock { local_gid, remote_gid, .. } = req.primary;
        let meeting = Meeting { service_id: req.service_id, local_gid: remote_gid, remote_gid: local_gid };
        let mut own = None;
        for &slot in self.core.peers.at(meeting) {
            let conn = &self.conns[slot];
            if !conn.is_from(from) {
                continue;
            }
            match conn.cross(&self.core, req) {
                Crossing::Own => own = Some((slot, Crossing::Own)),
                crossing => return Some((slot, crossing)),
            }
        }
        own
    }

    /// The connection of ours that sent this REQ, if its peer is on the same HCA.
    fn sent_by(&self, req: &Req) -> Option<u32> {
        if req.local_ca_guid != self.core.ca.node_guid {
            return None;
        }
        let slot = self.core.ids.by_local_id(req.local_comm_id)?;
        (self.conns[slot].info().local_qpn == req.local_qpn).then_some(slot)
    }

    /// Whether the REQ is one of our own to a peer that has been answered meanwhile: an old repetition.
    fn is_spoken_for(&self, req: &Req) -> bool {
        self.sent_by(req).is_some_and(|slot| self.conns[slot].has_met_peer())
    }

    /// Somebody on this HCA answers this REQ. If it is one of our own, nobody else shall.
    fn take(&mut self, req: &Req) {
        if let Some(slot) = self.sent_by(req) {
            self.on(slot, |conn, core| conn.leave_peers(core));
        }
    }

    /// `slot`, if it is the connection that came of this REQ.
    fn made_of(&self, names: &RemoteNames, slot: Option<u32>) -> Option<u32> {
        slot.filter(|&slot| {
            let conn = &self.conns[slot];
            conn.remote_id() == names.id && conn.remote_qpn() == names.qpn
        })
    }

    fn refuse(&mut self, from: &MadSource, tid: TransactionId, req: &Req, refusal: Refusal) {
        let (reason, info) = match refusal {
            Refusal::Overflow(listener) => match self.core.listeners.overflow(listener) {
                // No answer: the peer will repeat it.
                Overflow::Drop => {
                    self.core.stats.dropped_backlog += 1;
                    return;
                }
                Overflow::Reject(reason) => (reason, RejectInfo::None),
            },
            Refusal::Reject(reason, info) => (reason, info),
        };
        tracing::debug!(remote = %req.local_comm_id, service = %req.service_id, %reason, "refusing a REQ");
        self.core.stats.refused_requests += 1;
        let rej = Rej { ari: info.encode(), ..Rej::of_request(req.local_comm_id, reason) };
        self.core.answer_with(from.reply(), tid, rej);
    }

    fn admit(
        &self,
        from: &MadSource,
        transport: Transport,
        req: &Req,
        names: RemoteNames,
    ) -> Result<Admission, Refusal> {
        let (ca, listeners) = (&self.core.ca, &self.core.listeners);
        let end = local_end(ca, from, &req.primary);
        // The port that the connection is for; the MAD may have come in on another one.
        let port = end.as_ref().ok().map(|(port, _)| *port).or_else(|| ca.port(from.port));
        let wanted = Wanted {
            service_id: req.service_id,
            port: port.map_or(from.port, |port| port.number),
            gid: req.primary.remote_gid,
            lid: port.map_or(Lid::NONE, |port| local_lid(port, from, &req.primary)),
            private_data: &req.private_data,
        };
        let found = listeners.find(&wanted).and_then(|id| Some((id, listeners.mra_terms(id)?)));
        // Where nobody listens, nobody has enabled RD either.
        let (listener, mra_terms) = found.ok_or(match transport {
            Transport::Rd => RejReason::INVALID_TRANSPORT,
            _ => RejReason::INVALID_SERVICE_ID,
        })?;
        if !listeners.takes(listener, transport) {
            return Err(RejReason::INVALID_TRANSPORT.into());
        }
        if listeners.is_full(listener) {
            return Err(Refusal::Overflow(listener));
        }
        let arrival = arrival(ca, end?, from, transport, req, names)?;
        Ok(Admission { arrival, listener, mra_terms: mra_terms.clone() })
    }

    fn arrival(
        &self,
        from: &MadSource,
        transport: Transport,
        req: &Req,
        names: RemoteNames,
    ) -> Result<Arrival, Refusal> {
        let ca = &self.core.ca;
        arrival(ca, local_end(ca, from, &req.primary)?, from, transport, req, names)
    }
}

/// Who asks, and by which way an answer goes there, if there is one from this end.
fn arrival(
    ca: &LocalCa,
    (port, sgid_index): (&LocalPort, u16),
    from: &MadSource,
    transport: Transport,
    req: &Req,
    names: RemoteNames,
) -> Result<Arrival, Refusal> {
    let common = Common { service_id: req.service_id, pkey: req.pkey, mtu: req.path_mtu };
    let (path, primary) = path_back(port, sgid_index, from, &req.primary, common)?;
    let alternate = match req.alternate_path() {
        None => Proposal::None,
        Some(block) => match alternate_end(ca, from, block, common) {
            Ok((path, address)) => Proposal::Usable(path, address, *block),
            Err(_) => Proposal::Unusable,
        },
    };
    Ok(Arrival { transport, names, path, primary, alternate })
}

/// What both paths of a connection have in common.
#[derive(Debug, Clone, Copy)]
struct Common {
    service_id: ServiceId,
    pkey: PKey,
    mtu: Mtu,
}

/// The alternate path of a LAP turned round, if it is one that ends here; the answer to the LAP if it is not.
pub(in super::super) fn alternate_back(
    ca: &LocalCa,
    from: &MadSource,
    block: &PathBlock,
    pkey: PKey,
    mtu: Mtu,
) -> Result<(Path, MadAddr), (ApStatus, ApInfo)> {
    let common = Common { service_id: ServiceId::default(), pkey, mtu };
    alternate_end(ca, from, block, common).map_err(|refusal| match refusal {
        Refusal::Reject(RejReason::PRIMARY_GID, RejectInfo::Gid(gid)) => {
            (ApStatus::REMOTE_GID, ApInfo::Gid(gid))
        }
        Refusal::Reject(RejReason::PRIMARY_LID, RejectInfo::Lid(lid)) => {
            (ApStatus::REMOTE_LID, ApInfo::Lid(lid))
        }
        _ => (ApStatus::REMOTE_GID, ApInfo::None),
    })
}

/// An alternate path turned round. It may end at any port; where it does not leave its subnet, its own LIDs lead there:
/// those of the MAD belong to another path.
fn alternate_end(
    ca: &LocalCa,
    from: &MadSource,
    block: &PathBlock,
    common: Common,
) -> Result<(Path, MadAddr), Refusal> {
    let by_lid = || ca.ports.iter().find(|port| !port.is_ethernet() && port.owns_lid(block.remote_lid));
    let (port, sgid_index) = match by_lid().filter(|_| block.remote_gid.is_unspecified()) {
        Some(port) => (port, 0),
        None => local_end(ca, from, block)?,
    };
    let has_lids = block.local_lid.is_unicast() && port.owns_lid(block.remote_lid);
    if !port.is_ethernet() && !has_lids {
        return Err(Refusal::Reject(RejReason::PRIMARY_LID, RejectInfo::Lid(port.lid)));
    }
    path_back(port, sgid_index, from, block, common)
}

/// Under which names a rejection of a REQ is remembered.
fn sender(source: Source, names: &RemoteNames) -> Rejected {
    Rejected { key: names.keys.id, source, guid: names.guid, id: names.id, qpn: names.qpn }
}

/// Which transport the REQ asks for, and to which QP or EE context, if it says both.
pub(super) fn wanted_transport(req: &Req) -> Option<(Transport, Qpn)> {
    let transport = Transport::of(req.transport)?;
    let end = transport.end_of_req(req);
    (req.local_qpn.get() != 0 && end.get() != 0).then_some((transport, end))
}

/// A path of the peer turned round (spec/cm.md 5.4), if it is one that ends at this port and GID of ours.
fn path_back(
    port: &LocalPort,
    sgid_index: u16,
    from: &MadSource,
    block: &PathBlock,
    common: Common,
) -> Result<(Path, MadAddr), Refusal> {
    let needs_grh = port.is_ethernet() || !block.subnet_local;
    if !needs_grh && !port.owns_lid(block.remote_lid) {
        return Err(Refusal::Reject(RejReason::PRIMARY_LID, RejectInfo::Lid(port.lid)));
    }
    if needs_grh && block.local_gid.is_unspecified() || block.local_gid.is_multicast() {
        return Err(RejReason::UNSUPPORTED_REQUEST.into());
    }
    let pkey_index = port.pkey_index(common.pkey).ok_or(RejReason::UNSUPPORTED_REQUEST)?;
    if common.mtu.bytes().is_none() || common.mtu > port.mtu {
        return Err(Refusal::Reject(RejReason::INVALID_PATH_MTU, RejectInfo::PathMtu(port.mtu)));
    }

    let slid = local_lid(port, from, block);
    // A routed path need not have LIDs of its own: those of the MAD lead to the router.
    let (dlid, sl) = match (port.is_ethernet(), block.local_lid.is_unicast()) {
        (true, _) => (Lid::NONE, block.sl),
        (false, true) => (block.local_lid, block.sl),
        (false, false) => (from.slid, from.sl),
    };
    let hop_limit = match block.hop_limit {
        0 if needs_grh => from.grh.map_or(DEFAULT_HOP_LIMIT, |grh| grh.hop_limit.max(1)),
        limit => limit,
    };
    let record = PathRecord {
        service_id: common.service_id,
        dgid: block.local_gid,
        sgid: block.remote_gid,
        dlid,
        slid,
        flow_label: block.flow_label,
        hop_limit,
        traffic_class: block.traffic_class,
        reversible: true,
        pkey: common.pkey,
        sl,
        mtu_selector: Selector::Exactly,
        mtu: common.mtu,
        rate_selector: Selector::Exactly,
        rate: block.rate,
        packet_life_time_selector: Selector::Exactly,
        packet_life_time: block.local_ack_timeout.saturating_sub(1).into(),
        ..PathRecord::default()
    };
    let route = GlobalRoute {
        dgid: block.local_gid,
        sgid_index,
        flow_label: block.flow_label,
        hop_limit,
        traffic_class: block.traffic_class,
    };
    let av = AddressVector {
        port: port.number,
        dlid,
        sl,
        path_bits: port.path_bits(slid),
        rate: block.rate,
        grh: needs_grh.then_some(route),
    };
    let primary = MadAddr { av, qpn: Qpn::GSI, qkey: QKey::GSI, pkey_index };
    Ok((Path { port: port.number, record }, primary))
}

/// The LID that the path ends at. If that is none of ours, it is routed, and the MAD's is as good.
fn local_lid(port: &LocalPort, from: &MadSource, block: &PathBlock) -> Lid {
    match (port.is_ethernet(), port.owns_lid(block.remote_lid)) {
        (true, _) => Lid::NONE,
        (false, true) => block.remote_lid,
        (false, false) => Lid(port.lid.0 | u16::from(from.path_bits)),
    }
}

/// The port that the path ends at, and the index of its GID there: the port that the REQ came in on, or another one.
/// Within a subnet the GID may be left out (IBTA 1.0a); then the LID decides.
fn local_end<'a>(
    ca: &'a LocalCa,
    from: &MadSource,
    block: &PathBlock,
) -> Result<(&'a LocalPort, u16), Refusal> {
    let arrived_at = ca.port(from.port).ok_or(RejReason::PRIMARY_GID)?;
    if block.remote_gid.is_unspecified() && block.subnet_local && !arrived_at.is_ethernet() {
        return Ok((arrived_at, 0));
    }
    std::iter::once(arrived_at)
        .chain(&ca.ports)
        .find_map(|port| port.gid_index(block.remote_gid).map(|index| (port, index)))
        .ok_or_else(|| {
            let info = arrived_at.preferred_gid().map_or(RejectInfo::None, RejectInfo::Gid);
            Refusal::Reject(RejReason::PRIMARY_GID, info)
        })
}
