//! Multicast groups: their LIDs, and the ports in them.
//!
//! In a subnet with managers of its own groups are made by subnet administration, and what devices attach to counts only for
//! what comes back to them. In one without, whoever attaches is in the group.

use ibwire::{Gid, Lid};

use super::fabric::{Fabric, PortId};
use crate::manager::{GroupTree, PortAt, Topology};

/// LIDs of multicast groups.
const FIRST_MLID: u16 = 0xc000;
const LAST_MLID: u16 = 0xfffe;

impl Fabric {
    /// The LID of a group in a subnet without managers, made with the first who asks.
    pub(super) fn mlid(&mut self, subnet: usize, mgid: Gid) -> Option<Lid> {
        if let Some(mlid) = self.mlids.get(&(subnet, mgid)) {
            return Some(*mlid);
        }
        let next = u16::try_from(self.mlids.len()).ok().and_then(|n| FIRST_MLID.checked_add(n));
        let mlid = Lid(next.filter(|mlid| *mlid <= LAST_MLID)?);
        self.mlids.insert((subnet, mgid), mlid);
        // Senders need not be members.
        self.members.entry((subnet, mlid)).or_default();
        self.write_groups(&[(subnet, mlid)]);
        Some(mlid)
    }

    /// The port takes what is sent to the group from now on. That it gets there is the manager's affair if there is one.
    pub(super) fn join(&mut self, id: PortId, mgid: Gid, mlid: Lid) {
        let subnet = self.subnet_of(id);
        self.members.entry((subnet, mlid)).or_default().insert((id, mgid));
        self.write_groups(&[(subnet, mlid)]);
    }

    /// No more.
    pub(super) fn leave(&mut self, id: PortId, mgid: Gid, mlid: Lid) {
        let subnet = self.subnet_of(id);
        if let Some(members) = self.members.get_mut(&(subnet, mlid)) {
            members.remove(&(id, mgid));
            self.write_groups(&[(subnet, mlid)]);
        }
    }

    /// Whether a port itself is to get what it sends to a group.
    pub(super) fn is_member(&self, id: PortId, dlid: Lid) -> bool {
        dlid.is_multicast()
            && self
                .members
                .get(&(self.subnet_of(id), dlid))
                .is_some_and(|members| members.iter().any(|(member, _)| *member == id))
    }

    /// Lets the managers that nobody sees write the trees of groups.
    pub(super) fn write_groups(&mut self, groups: &[(usize, Lid)]) {
        let now = self.trace.start; // they know no time
        for (host, mut operator) in std::mem::take(&mut self.operators) {
            let subnet = self.subnet_of(host);
            let topology = operator.sa().topology();
            let of_subnet = groups.iter().filter(|(other, mlid)| *other == subnet && mlid.is_multicast());
            let trees: Vec<_> = of_subnet.map(|(_, mlid)| self.tree(topology, subnet, *mlid)).collect();
            operator.set_groups(now, &trees);
            self.operate(now, host, &mut operator);
            self.operators.push((host, operator));
        }
    }

    /// Who is in a group, of the ports that a manager knows. Senders may be at every switch.
    fn tree(&self, topology: &Topology, subnet: usize, mlid: Lid) -> GroupTree {
        let members = self.members.get(&(subnet, mlid)).into_iter().flatten();
        let at =
            |(id, _): &(PortId, Gid)| topology.at_guid(*self.nodes[id.node].port(id.port)?.guids.first()?);
        let switches = (0..topology.nodes.len()).filter(|node| topology.nodes[*node].is_switch());
        let senders = switches.map(|node| PortAt { node, port: 0 }).collect();
        GroupTree { mlid, receivers: members.filter_map(at).collect(), senders }
    }
}
