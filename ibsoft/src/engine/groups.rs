//! Multicast groups: which QPs receive what is sent to them (spec/softhca.md 3.3).

use std::collections::BTreeMap;
use std::time::Instant;

use ibdev::DeviceError;
use ibwire::{Gid, Lid, Qpn};

use super::net::Ingress;
use super::{DESTROYED, Engine};

/// Most groups of an engine.
const MOST_GROUPS: usize = 1024;

/// The groups that have members, by port and address.
#[derive(Debug, Default)]
pub(super) struct Groups(BTreeMap<(u8, Gid), Vec<Qpn>>);

impl Groups {
    /// Adds a QP; whether it is the first of its group, and was not in it before.
    pub(super) fn attach(&mut self, port: u8, mgid: Gid, qpn: Qpn) -> Result<bool, DeviceError> {
        if !self.0.contains_key(&(port, mgid)) && self.0.len() >= MOST_GROUPS {
            let (value, limit) = (self.0.len() as u64 + 1, MOST_GROUPS as u64);
            return Err(DeviceError::Limit { what: "multicast groups", value, limit });
        }
        let members = self.0.entry((port, mgid)).or_default();
        if members.contains(&qpn) {
            return Ok(false);
        }
        members.push(qpn);
        Ok(members.len() == 1)
    }

    /// Removes a QP from a group; whether it was the last one.
    pub(super) fn detach(&mut self, port: u8, mgid: Gid, qpn: Qpn) -> bool {
        let Some(members) = self.0.get_mut(&(port, mgid)) else { return false };
        members.retain(|member| *member != qpn);
        let last = members.is_empty();
        if last {
            self.0.remove(&(port, mgid));
        }
        last
    }

    /// Removes a QP from all its groups; those that have no other one.
    pub(super) fn detach_all(&mut self, qpn: Qpn) -> Vec<(u8, Gid)> {
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
    pub(super) fn members(&self, port: u8, mgid: Gid) -> &[Qpn] {
        self.0.get(&(port, mgid)).map_or(&[], Vec::as_slice)
    }
}

impl Engine {
    /// A copy to each QP that is attached and lets it in.
    pub(super) fn deliver_to_group(&mut self, now: Instant, ingress: &Ingress<'_>) {
        let mgid = ingress.net.route.map(|route| route.dgid).filter(|dgid| dgid.is_multicast());
        let members = mgid.map_or(&[][..], |mgid| self.groups.members(ingress.port, mgid));
        if members.is_empty() {
            self.shared.counters.drop_multicast += 1;
        }
        for qpn in members {
            if let Some(qp) = self.qps.get_mut(*qpn).filter(|qp| qp.raw().is_none()) {
                qp.handle_packet(now, ingress, &mut self.shared);
            }
        }
    }

    /// Attaches a datagram or raw QP to a multicast group of its port; gives the port, and whether it is the first QP of the
    /// group there: then the link has to join. Only raw QPs go by the group's LID.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] for an address or a LID that is none of a group, or a connected QP; [`DeviceError::State`] in RESET;
    /// [`DeviceError::Limit`] for too many groups.
    pub fn attach(&mut self, qpn: Qpn, mgid: Gid, mlid: Lid) -> Result<(u8, bool), DeviceError> {
        if !mgid.is_multicast() {
            return Err(DeviceError::Unsupported { what: "a multicast group with an address that is none" });
        }
        let qp = self.qps.get(qpn).ok_or(DeviceError::State { state: DESTROYED })?;
        let port = qp.datagram_port()?;
        let is_raw = qp.raw().is_some();
        if is_raw && !(mlid.is_multicast() && self.shared.device.raw_multicast) {
            return Err(DeviceError::Unsupported { what: "raw multicast, or a LID that is no group's" });
        }
        let first = self.groups.attach(port, mgid, qpn)?;
        if is_raw {
            self.shared.raws.attach(qpn, mgid, mlid);
        }
        Ok((port, first))
    }

    /// Detaches a QP from a group; gives its port if it was the last QP of the group there: then the link has to leave.
    pub fn detach(&mut self, qpn: Qpn, mgid: Gid) -> Option<u8> {
        let port = self.qps.get(qpn)?.datagram_port().ok()?;
        self.shared.raws.detach(qpn, mgid);
        self.groups.detach(port, mgid, qpn).then_some(port)
    }

    /// Detaches a QP from all its groups; gives port and address of those that the link has to leave.
    pub fn detach_all(&mut self, qpn: Qpn) -> Vec<(u8, Gid)> {
        self.groups.detach_all(qpn)
    }
}
