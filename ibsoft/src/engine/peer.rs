//! The other end of a connected QP.

use ibdev::qp::Rtr;
use ibwire::packet::{Bth, Opcode};
use ibwire::{PKey, Psn, Qpn};

use super::net::{Ingress, NetHeader};
use super::shared::Shared;

/// The other end of a connection.
#[derive(Debug)]
pub(super) struct Peer {
    /// The header of packets to it.
    pub(super) net: NetHeader,
    qpn: Qpn,
    pkey: PKey,
}

impl Peer {
    pub(super) fn new(rtr: &Rtr, net: NetHeader, pkey: PKey) -> Self {
        Self { net, qpn: rtr.dest_qpn, pkey }
    }

    /// The header of a packet to it. The path is never about to change, which is the state MIGRATED: M is 1.
    pub(super) fn bth(&self, opcode: Opcode, psn: Psn) -> Bth {
        Bth { mig_req: true, pkey: self.pkey, ..Bth::new(opcode, self.qpn, psn) }
    }

    /// Whether a packet is of this connection: it came from there, and its P_Key fits. Another one is counted as dropped.
    pub(super) fn lets_in(&self, ingress: &Ingress<'_>, shared: &mut Shared) -> bool {
        if !self.sent(ingress.net) {
            shared.counters.drop_address += 1;
            return false;
        }
        if !ingress.packet.bth().pkey.matches(self.pkey) {
            shared.counters.drop_pkey += 1;
            return false;
        }
        true
    }

    /// Whether a packet came from it. Traffic class, flow label and hop limit may change on the way.
    fn sent(&self, net: &NetHeader) -> bool {
        let same_route = match (&self.net.route, &net.route) {
            (Some(ours), Some(theirs)) => ours.dgid == theirs.sgid && ours.sgid == theirs.dgid,
            (None, None) => true,
            _ => false,
        };
        same_route && self.net.dlid == net.slid && self.net.slid == net.dlid
    }
}
