//! Peer to peer: both sides ask, one of them becomes the passive side (spec/cm.md 4.7).

use std::cmp::Ordering;
use std::time::Instant;

use ibdev::MadSource;
use ibwire::{RejReason, TransactionId};

use super::super::core::Core;
use super::super::event::{Event, Request};
use super::super::listeners::MraTerms;
use super::super::message::{MessageId, Rej, Req};
use super::super::peers::Meeting;
use super::passive::{Agreement, Arrival};
use super::{Connection, Role, State};

/// How far a connection has got that asks for its peer.
#[derive(Debug)]
pub(super) enum Peering {
    /// The peer may ask, too: there it finds us.
    Waiting(Meeting),
    /// One of the two has answered the other, or it is over.
    Met,
}

/// What a REQ is to a connection that asks for its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Crossing {
    /// Its own.
    Own,
    /// The peer's, which will answer ours.
    Theirs,
    /// The peer's, which we answer.
    Ours,
}

impl Connection {
    /// From here on the peer's REQ finds this connection.
    pub(in super::super) fn await_peer(&mut self, core: &mut Core, meeting: Meeting) {
        self.extras().peering = Some(Peering::Waiting(meeting));
        core.peers.insert(meeting, self.handle.slot());
    }

    /// Whether it asked for its peer, and does not wait any more.
    pub(in super::super) fn has_met_peer(&self) -> bool {
        matches!(self.peering(), Some(Peering::Met))
    }

    /// Whether it asked for its peer.
    pub(super) fn is_peer(&self) -> bool {
        self.peering().is_some()
    }

    /// The peer's REQ does not find it any more.
    pub(in super::super) fn leave_peers(&mut self, core: &mut Core) {
        if let Some(&Peering::Waiting(meeting)) = self.peering() {
            core.peers.remove(meeting, self.handle.slot());
            self.extras().peering = Some(Peering::Met);
        }
    }

    fn peering(&self) -> Option<&Peering> {
        self.extras.as_ref()?.peering.as_ref()
    }

    /// Whether a REJ is about a REQ of ours that the peer got before it asked itself. It may come late.
    pub(super) fn is_outdated(&self, rej: &Rej) -> bool {
        self.is_peer()
            && rej.message == MessageId::REQ
            && match self.role {
                Role::Active => rej.reason == RejReason::INVALID_SERVICE_ID,
                // Ours does not count any more.
                Role::Passive => rej.reason != RejReason::TIMEOUT,
            }
    }

    /// Which side answers: the CA with the smaller GUID, on one CA the smaller queue pair number.
    pub(in super::super) fn cross(&self, core: &Core, req: &Req) -> Crossing {
        let ours = (core.ca.node_guid, self.local_qpn);
        match ours.cmp(&(req.local_ca_guid, req.local_qpn)) {
            Ordering::Equal => Crossing::Own,
            Ordering::Greater => Crossing::Theirs,
            Ordering::Less => Crossing::Ours,
        }
    }

    /// The peer asks and will have to answer: it may have missed our REQ, or rejected it because it had not asked yet.
    pub(in super::super) fn ask_again(&self, core: &mut Core) {
        core.stats.crossing_requests += 1;
        let req = self.exchange.as_ref().and_then(|exchange| exchange.repeat());
        if let Some(out) = req.and_then(|req| core.mad(&self.primary, *req)) {
            core.answer(out.to, out.mad);
        }
    }

    /// Takes the peer's REQ as the one that counts. Our own is withdrawn without a word: the peer ignores it.
    pub(in super::super) fn turn_passive(
        &mut self,
        core: &mut Core,
        now: Instant,
        arrival: &Arrival,
        from: &MadSource,
        tid: TransactionId,
        req: &Req,
    ) {
        let effort = self.effort(now).unwrap_or_default();
        self.stop_exchange(core);
        self.leave_peers(core);
        let offer = (self.terms.responder_resources, self.terms.initiator_depth);
        let mra_terms = MraTerms::default(&core.config);
        self.role = Role::Passive;
        self.tid = tid;
        self.primary = core.sgids.address(arrival.primary);
        self.remote_gid = arrival.path.record.dgid;
        self.answer_to = core.sgids.address(from.reply());
        self.agree(Agreement::new(core, self.transport, req, offer, self.terms.rq_psn));
        self.meet_peer(core, &arrival.names);
        self.forget_paths();
        self.take_proposal(core, &arrival.alternate);
        self.set_state(core, State::ReqRcvd);
        self.start_timer(core, now + mra_terms.asked_after(self.answer_within));
        core.stats.crossing_requests += 1;
        let request = Box::new(Request {
            req: req.clone(),
            from: *from,
            transport: arrival.transport,
            path: arrival.path,
            alternate: arrival.alternate.path(),
            responder_resources: self.terms.responder_resources,
            initiator_depth: self.terms.initiator_depth,
        });
        self.report(core, Event::PeerRequest { conn: self.handle, request, effort });
    }
}
