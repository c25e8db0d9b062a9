//! Multicast groups: which QPs receive what is sent to them (spec/softhca.md 3.3).

use std::collections::BTreeMap;
use std::time::Instant;

use ibdev::{DeviceError, LinkLayer};
use ibwire::{Gid, Lid, Qpn};

use super::limit::one_more;
use super::net::Ingress;
use super::{DESTROYED, Engine};

/// Most groups of an engine.
const MOST_GROUPS: usize = 1024;

/// A group at a port: its address and its LID, [`Lid::NONE`] on RoCE. After a change of the SM the same address may have another
/// LID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortGroup {
    /// The port.
    pub port: u8,
    /// The address.
    pub mgid: Gid,
    /// The LID.
    pub mlid: Lid,
}

/// The groups that have members.
#[derive(Debug, Default)]
pub(super) struct Groups(BTreeMap<PortGroup, Vec<Qpn>>);

impl Groups {
    /// Adds a QP; whether it is the first of its group, and was not in it before.
    fn attach(&mut self, group: PortGroup, qpn: Qpn) -> Result<bool, DeviceError> {
        if !self.0.contains_key(&group) {
            one_more("multicast groups", self.0.len(), MOST_GROUPS)?;
        }
        let members = self.0.entry(group).or_default();
        if members.contains(&qpn) {
            return Ok(false);
        }
        members.push(qpn);
        Ok(members.len() == 1)
    }

    /// Removes a QP from a group; whether it was the last one.
    fn detach(&mut self, group: PortGroup, qpn: Qpn) -> bool {
        let Some(members) = self.0.get_mut(&group) else { return false };
        members.retain(|member| *member != qpn);
        let last = members.is_empty();
        if last {
            self.0.remove(&group);
        }
        last
    }

    /// Removes a QP from all its groups; those that have no other one.
    pub(super) fn detach_all(&mut self, qpn: Qpn) -> Vec<PortGroup> {
        let mut emptied = Vec::new();
        self.0.retain(|group, members| {
            members.retain(|member| *member != qpn);
            if members.is_empty() {
                emptied.push(*group);
            }
            !members.is_empty()
        });
        emptied
    }

    /// Who receives what is sent to a group.
    fn members(&self, group: PortGroup) -> &[Qpn] {
        self.0.get(&group).map_or(&[], Vec::as_slice)
    }
}

impl Engine {
    /// A copy to each QP that is attached and lets it in.
    pub(super) fn deliver_to_group(&mut self, now: Instant, ingress: &Ingress<'_>) {
        let mgid = ingress.net.route.map(|route| route.dgid).filter(|dgid| dgid.is_multicast());
        let members = mgid.map_or(&[][..], |mgid| {
            self.groups.members(PortGroup { port: ingress.port, mgid, mlid: ingress.net.dlid })
        });
        if members.is_empty() {
            self.shared.counters.drop_multicast += 1;
        }
        for qpn in members {
            if let Some(qp) = self.qps.get_mut(*qpn).filter(|qp| qp.raw().is_none()) {
                qp.handle_packet(now, ingress, &mut self.shared);
            }
        }
    }

    /// Attaches a datagram or raw QP to a multicast group of its port; gives the group, and whether it is the first QP of it
    /// there: then the link has to join. On RoCE the LID does not count.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] for an address or a LID that is none of a group, or a connected QP; [`DeviceError::State`] in RESET;
    /// [`DeviceError::Limit`] for too many groups.
    pub fn attach(&mut self, qpn: Qpn, mgid: Gid, mlid: Lid) -> Result<(PortGroup, bool), DeviceError> {
        if !mgid.is_multicast() {
            return Err(DeviceError::Unsupported { what: "a multicast group with an address that is none" });
        }
        let qp = self.qps.get(qpn).ok_or(DeviceError::State { state: DESTROYED })?;
        let group = self.group(qp.datagram_port()?, mgid, mlid);
        let is_raw = qp.raw().is_some();
        if is_raw && !self.shared.device.raw_multicast {
            return Err(DeviceError::Unsupported { what: "raw multicast" });
        }
        if (is_raw || self.is_infiniband(group.port)) && !mlid.is_multicast() {
            return Err(DeviceError::Unsupported { what: "a multicast group with a LID that is no group's" });
        }
        let first = self.groups.attach(group, qpn)?;
        if is_raw {
            self.shared.raws.attach(qpn, mgid, mlid);
        }
        Ok((group, first))
    }

    /// Detaches a QP from a group; gives the group if it was its last QP at the port: then the link has to leave.
    pub fn detach(&mut self, qpn: Qpn, mgid: Gid, mlid: Lid) -> Option<PortGroup> {
        let group = self.group(self.qps.get(qpn)?.datagram_port().ok()?, mgid, mlid);
        self.shared.raws.detach(qpn, mgid, mlid);
        self.groups.detach(group, qpn).then_some(group)
    }

    fn group(&self, port: u8, mgid: Gid, mlid: Lid) -> PortGroup {
        PortGroup { port, mgid, mlid: if self.is_infiniband(port) { mlid } else { Lid::NONE } }
    }

    fn is_infiniband(&self, port: u8) -> bool {
        self.shared.port(port).is_some_and(|port| port.attr.link_layer == LinkLayer::InfiniBand)
    }

    /// Detaches a QP from all its groups; gives those that the link has to leave.
    pub fn detach_all(&mut self, qpn: Qpn) -> Vec<PortGroup> {
        self.groups.detach_all(qpn)
    }
}
