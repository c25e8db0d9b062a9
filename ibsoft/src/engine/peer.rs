//! The other end of a connected QP.

use ibdev::qp::Rtr;
use ibwire::packet::{Bth, Opcode};
use ibwire::{PKey, Psn, Qpn};

use super::migration::Alternate;
use super::net::{Destination, Framing, Ingress, NetHeader};
use super::shared::Shared;

/// The other end of a connection.
#[derive(Debug)]
pub(super) struct Peer {
    /// The way to it.
    pub(super) path: PeerPath,
    qpn: Qpn,
    /// Loaded, and not the path yet; without one the migration state is MIGRATED.
    pub(super) alternate: Option<Box<Alternate>>,
}

/// A way to the other end.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerPath {
    /// The local port.
    pub(super) port: u8,
    /// The header of packets.
    pub(super) net: NetHeader,
    pub(super) pkey: PKey,
}

impl Peer {
    pub(super) fn new(rtr: &Rtr, path: PeerPath) -> Self {
        Self { path, qpn: rtr.dest_qpn, alternate: None }
    }

    /// The header of a packet to it. M is 1 in the migration state MIGRATED.
    pub(super) fn bth(&self, opcode: Opcode, psn: Psn) -> Bth {
        let mig_req = self.alternate.is_none();
        Bth { mig_req, pkey: self.path.pkey, ..Bth::new(opcode, self.qpn, psn) }
    }

    /// Whether a packet is of this connection: it came from there, and its P_Key fits. Another one is counted as dropped.
    pub(super) fn lets_in(&self, ingress: &Ingress<'_>, shared: &mut Shared) -> bool {
        if !self.path.leads_to(ingress) {
            shared.counters.drop_address += 1;
            return false;
        }
        if !ingress.packet.bth().pkey.matches(self.path.pkey) {
            shared.counters.drop_pkey += 1;
            return false;
        }
        true
    }
}

impl PeerPath {
    /// Where packets go.
    pub(super) fn destination(&self) -> Destination {
        Destination { port: self.port, net: self.net, framing: Framing::Transport }
    }

    /// Whether a packet came by this path. Traffic class, flow label and hop limit may change on the way.
    pub(super) fn leads_to(&self, ingress: &Ingress<'_>) -> bool {
        let (ours, theirs) = (&self.net, ingress.net);
        let same_route = match (&ours.route, &theirs.route) {
            (Some(ours), Some(theirs)) => ours.dgid == theirs.sgid && ours.sgid == theirs.dgid,
            (None, None) => true,
            _ => false,
        };
        ingress.port == self.port && same_route && ours.dlid == theirs.slid && ours.slid == theirs.dlid
    }
}
