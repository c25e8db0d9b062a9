//! The HCA that an endpoint serves: its GUID, limits and ports.

use ibdev::{DeviceAttr, GidEntry, GidKind, LinkLayer, PortAttr, PortState};
use ibwire::{Gid, Guid, Lid, Mtu, PKey, TimeCode};

use super::invalid::{Invalid, Limit, Value};

/// The CA of an endpoint, as far as connection management needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalCa {
    /// Node GUID, stable for the same node: peers tell a restarted node from another one by it. 0 is allowed and
    /// weakens that.
    pub node_guid: Guid,
    /// How long the CA may take to acknowledge a packet.
    pub ack_delay: TimeCode,
    /// RDMA reads and atomics that a QP can serve at once.
    pub max_responder_resources: u8,
    /// RDMA reads and atomics that a QP can have outstanding.
    pub max_initiator_depth: u8,
    /// Whether a QP can have an alternate path and migrate to it.
    pub path_migration: bool,
    /// The ports.
    pub ports: Vec<LocalPort>,
}

/// A port of the CA at this moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalPort {
    /// Port number, from 1.
    pub number: u8,
    /// Whether it carries traffic.
    pub active: bool,
    /// InfiniBand or Ethernet.
    pub link_layer: LinkLayer,
    /// Base LID; [`Lid::NONE`] on RoCE.
    pub lid: Lid,
    /// The port answers to 2^LMC LIDs.
    pub lmc: u8,
    /// The MTU in force.
    pub mtu: Mtu,
    /// The GID table; unused entries are left out.
    pub gids: Vec<GidEntry>,
    /// The P_Key table; the position is the index.
    pub pkeys: Vec<PKey>,
}

impl LocalCa {
    /// The CA with these attributes and ports.
    pub fn new(attr: &DeviceAttr, ports: Vec<LocalPort>) -> Self {
        Self {
            node_guid: attr.node_guid,
            ack_delay: attr.ack_delay,
            max_responder_resources: attr.max_responder_resources,
            max_initiator_depth: attr.max_initiator_depth,
            path_migration: attr.path_migration,
            ports,
        }
    }

    /// The port with this number.
    pub fn port(&self, number: u8) -> Option<&LocalPort> {
        self.ports.iter().find(|port| port.number == number)
    }

    /// Refuses a port that the CA does not have.
    pub(super) fn check_port(&self, port: Option<u8>) -> Result<(), Invalid> {
        match port.filter(|port| self.port(*port).is_none()) {
            Some(port) => {
                Err(Invalid::new("port", Value::Number(port.into()), Limit::Must("a port of the device")))
            }
            None => Ok(()),
        }
    }

    /// Replaces the port with the same number, or adds it.
    pub(super) fn update_port(&mut self, port: LocalPort) {
        match self.ports.iter_mut().find(|old| old.number == port.number) {
            Some(old) => *old = port,
            None => self.ports.push(port),
        }
    }
}

impl LocalPort {
    /// The port with these attributes and tables.
    pub fn new(attr: &PortAttr, gids: Vec<GidEntry>, pkeys: Vec<PKey>) -> Self {
        Self {
            number: attr.number,
            active: attr.state == PortState::Active,
            link_layer: attr.link_layer,
            lid: attr.lid,
            lmc: attr.lmc,
            mtu: attr.active_mtu,
            gids,
            pkeys,
        }
    }

    /// Index of `gid` in the GID table. Of several entries the RoCE v2 one counts: choose by type, never by index.
    pub fn gid_index(&self, gid: Gid) -> Option<u16> {
        let mut entries = self.gids.iter().filter(|entry| entry.gid == gid);
        let first = entries.next()?;
        if first.kind == GidKind::RoceV2 {
            return Some(first.index);
        }
        Some(entries.find(|entry| entry.kind == GidKind::RoceV2).unwrap_or(first).index)
    }

    /// The index of just this entry of the GID table.
    pub(super) fn index_of(&self, gid: Gid, kind: GidKind) -> Option<u16> {
        self.gids.iter().find(|entry| entry.gid == gid && entry.kind == kind).map(|entry| entry.index)
    }

    /// The GID to tell a peer that used a wrong one.
    pub(super) fn preferred_gid(&self) -> Option<Gid> {
        let preferred = self.gids.iter().find(|entry| entry.kind != GidKind::RoceV1);
        preferred.or(self.gids.first()).map(|entry| entry.gid)
    }

    /// Index of the table's key for the partition of `pkey`; `None` if there is none, or if both keys are those of
    /// limited members. A full member's key is preferred.
    pub fn pkey_index(&self, pkey: PKey) -> Option<u16> {
        let fits =
            |full| self.pkeys.iter().position(|ours| ours.matches(pkey) && ours.is_full_member() == full);
        fits(true).or_else(|| fits(false)).and_then(|index| u16::try_from(index).ok())
    }

    /// Whether `lid` is one of this port's.
    pub fn owns_lid(&self, lid: Lid) -> bool {
        self.lid.is_unicast() && lid.0 & !self.path_bits_mask() == self.lid.0 & !self.path_bits_mask()
    }

    /// The LID with these path bits; none on RoCE.
    pub(super) fn lid_with(&self, path_bits: u8) -> Lid {
        if self.lid.is_unicast() {
            Lid(self.lid.0 & !self.path_bits_mask() | u16::from(path_bits))
        } else {
            Lid::NONE
        }
    }

    /// The part of `lid` that tells this port's LIDs apart.
    pub(super) fn path_bits(&self, lid: Lid) -> u8 {
        (lid.0 & self.path_bits_mask()) as u8
    }

    /// LMC is 3 bits, so at most 7 bits of the LID.
    fn path_bits_mask(&self) -> u16 {
        (1 << self.lmc.min(7)) - 1
    }

    /// Whether packets of this port always need a GRH.
    pub(super) fn is_ethernet(&self) -> bool {
        self.link_layer == LinkLayer::Ethernet
    }
}
