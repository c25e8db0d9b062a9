//! What both sides have agreed on, and the QP attributes that follow from it (spec/cm.md 5.1).

use ibdev::MadAddr;
use ibdev::qp::{AlternatePath, Rtr, Rts};
use ibwire::{Mtu, Psn, Qpn, RnrTimer, TimeCode};

use super::super::attrs::Attrs;
use super::super::core::Core;
use super::{Connection, State};

/// The agreement, in our terms.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Terms {
    pub(in super::super) path_mtu: Mtu,
    /// First PSN that the peer sends: what our REQ or REP said.
    pub(in super::super) rq_psn: Psn,
    /// First PSN that we send: what the peer's said.
    pub(in super::super) sq_psn: Psn,
    /// What our QP serves at once. Before the peer's reply: our offer.
    pub(in super::super) responder_resources: u8,
    /// What our QP has outstanding. Before the peer's reply: our wish.
    pub(in super::super) initiator_depth: u8,
    /// Whether the peer may read our memory, as offered.
    pub(in super::super) reads: bool,
    pub(in super::super) ack_timeout: TimeCode,
    pub(in super::super) retry_count: u8,
    pub(in super::super) rnr_retry: u8,
}

impl Terms {
    /// The same for a transport that repeats nothing.
    pub(super) const fn unreliable(self) -> Self {
        let never = TimeCode::truncate(0);
        Self { ack_timeout: never, retry_count: 0, rnr_retry: 0, ..self }
    }

    pub(in super::super) fn attrs(&self, primary: &MadAddr, dest_qpn: Qpn, min_rnr_timer: RnrTimer) -> Attrs {
        Attrs {
            init: Attrs::init(primary.av.port, primary.pkey_index, self.reads),
            rtr: Rtr {
                av: primary.av,
                path_mtu: self.path_mtu,
                dest_qpn,
                rq_psn: self.rq_psn,
                max_dest_rd_atomic: self.responder_resources,
                min_rnr_timer,
            },
            rts: Rts {
                sq_psn: self.sq_psn,
                timeout: self.ack_timeout,
                retry_count: self.retry_count,
                rnr_retry: self.rnr_retry,
                max_rd_atomic: self.initiator_depth,
                alternate: None,
            },
        }
    }
}

impl Connection {
    /// The attributes, once both sides have said what they have to say.
    pub(in super::super) fn attrs(&self, core: &Core) -> Option<Attrs> {
        match self.state {
            State::ReqSent | State::ReqMraRcvd | State::ReqRcvd | State::ReqMraSent => None,
            _ if !self.is_peer_known() || self.local_qpn.get() == 0 => None,
            _ => self.attrs_of(core, &self.terms, self.loaded_attr(core)),
        }
    }

    /// The attributes by these terms; `None` while the port does not have our GID.
    pub(super) fn attrs_of(
        &self,
        core: &Core,
        terms: &Terms,
        alternate: Option<AlternatePath>,
    ) -> Option<Attrs> {
        let primary = core.sgids.resolve(&self.primary)?;
        let mut attrs = terms.attrs(&primary, self.remote_qpn, core.config.min_rnr_timer);
        attrs.rts.alternate = alternate;
        Some(attrs)
    }
}
