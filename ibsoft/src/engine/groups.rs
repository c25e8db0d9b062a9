//! Multicast groups: which QPs receive what is sent to them (spec/softhca.md 3.3).

use std::collections::BTreeMap;

use ibdev::DeviceError;
use ibwire::{Gid, Qpn};

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
