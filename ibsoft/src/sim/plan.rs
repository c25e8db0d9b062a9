//! A subnet without a manager: LIDs, routes and group trees as one would set them, at once and without packets.

use std::collections::{BTreeMap, VecDeque};

use ibsa::record::PortState;
use ibwire::Lid;

use super::fabric::{Fabric, PortId};
use super::node::PortMask;

impl Fabric {
    /// Gives each port that has addresses its LIDs: HCAs first, in their order. `false` if there are not enough.
    pub(super) fn assign_lids(&mut self, lmc: u8) -> bool {
        let mut next = 1 << lmc;
        for node in 0..self.nodes.len() {
            let is_switch = self.nodes[node].is_switch();
            let (lmc, step) = if is_switch { (0, 1) } else { (lmc, 1 << lmc) };
            let ends = if is_switch { 0..=0 } else { 1..=self.nodes[node].port_count() };
            for number in ends {
                if next + step > u32::from(Self::FIRST_MLID) {
                    return false;
                }
                let lid = Lid(next as u16);
                self.nodes[node].configure(number, |port| (port.info.lid, port.info.lmc) = (lid, lmc));
                next += step;
            }
        }
        true
    }

    /// Configures what is up: ports become active, and switches learn the ways that there are now.
    pub(super) fn plan(&mut self) {
        if self.managed {
            return;
        }
        for node in 0..self.nodes.len() {
            for number in self.nodes[node].numbers() {
                if self.nodes[node].port(number).is_some_and(|port| port.info.port_state == PortState::INIT) {
                    self.nodes[node].configure(number, |port| port.info.port_state = PortState::ACTIVE);
                }
            }
            self.changed(node);
        }
        self.plan_routes();
        let groups: Vec<_> = self.members.keys().copied().collect();
        for (subnet, mlid) in groups {
            self.plan_group(subnet, mlid);
        }
    }

    fn is_active(&self, id: PortId) -> bool {
        self.nodes[id.node].port(id.port).is_some_and(|port| port.is_active())
    }

    /// The active links of a switch: port, other end.
    fn links(&self, node: usize) -> impl Iterator<Item = (u8, PortId)> {
        let numbers = 1..=self.nodes[node].port_count();
        let up = numbers.filter(move |port| self.is_active(PortId { node, port: *port }));
        up.filter_map(move |port| Some((port, self.peer(PortId { node, port })?)))
    }

    /// Shortest ways; of several the LID decides which.
    fn plan_routes(&mut self) {
        let switches: Vec<_> = (0..self.nodes.len()).filter(|node| self.nodes[*node].is_switch()).collect();
        let mut tables: BTreeMap<usize, Vec<(u16, u8)>> = BTreeMap::new();
        for target in &switches {
            // The LIDs at this switch, with the port to each there.
            let own = self.nodes[*target].port(0).map_or(Lid::NONE, |port| port.info.lid);
            let mut lids = vec![(own.0, 0)];
            for (port, peer) in self.links(*target).filter(|(_, peer)| !self.nodes[peer.node].is_switch()) {
                let Some(info) = self.nodes[peer.node].port(peer.port).map(|port| &port.info) else {
                    continue;
                };
                lids.extend((0..1u16 << info.lmc).map(|bits| (info.lid.0 + bits, port)));
            }
            let distances = self.distances(*target);
            for switch in &switches {
                let Some(distance) = distances[*switch] else { continue };
                let table = tables.entry(*switch).or_default();
                if distance == 0 {
                    table.extend(&lids);
                    continue;
                }
                let nearer = |(_, peer): &(u8, PortId)| {
                    self.nodes[peer.node].is_switch() && distances[peer.node] == Some(distance - 1)
                };
                let ways: Vec<u8> = self.links(*switch).filter(nearer).map(|(port, _)| port).collect();
                table.extend(lids.iter().map(|(lid, _)| (*lid, ways[usize::from(*lid) % ways.len()])));
            }
        }
        for (switch, routes) in tables {
            if let Some(forwarding) = &mut self.nodes[switch].forwarding {
                forwarding.replace_routes(&routes);
            }
        }
    }

    /// How many links each switch is away from one.
    fn distances(&self, from: usize) -> Vec<Option<u32>> {
        let mut distances = vec![None; self.nodes.len()];
        distances[from] = Some(0);
        let mut queue = VecDeque::from([(from, 0)]);
        while let Some((switch, distance)) = queue.pop_front() {
            for (_, peer) in self.links(switch) {
                if self.nodes[peer.node].is_switch() && distances[peer.node].is_none() {
                    distances[peer.node] = Some(distance + 1);
                    queue.push_back((peer.node, distance + 1));
                }
            }
        }
        distances
    }

    /// The tree of a group: from each member towards the first switch of the subnet.
    pub(super) fn plan_group(&mut self, subnet: usize, mlid: Lid) {
        if self.managed {
            return;
        }
        let members = self.members.get(&(subnet, mlid)).into_iter().flatten();
        let members: Vec<_> = members.map(|(member, _)| *member).collect();
        let switches: Vec<_> = (0..self.nodes.len())
            .filter(|node| {
                self.nodes[*node].is_switch() && self.subnet_of(PortId { node: *node, port: 0 }) == subnet
            })
            .collect();
        let mut masks: BTreeMap<usize, PortMask> = switches.iter().map(|node| (*node, [0; 16])).collect();
        let mut mark = |id: PortId| {
            let Some(mask) = masks.get_mut(&id.node) else { return false };
            let (word, bit) = (usize::from(id.port / 16), id.port % 16);
            let new = mask[word] >> bit & 1 == 0;
            mask[word] |= 1 << bit;
            new
        };
        let Some(root) = switches.first() else { return };
        let distances = self.distances(*root);
        // Senders need not be members: each switch knows the way to the root.
        for start in &switches {
            let towards = |node: usize| {
                let distance = distances[node].filter(|distance| *distance > 0)?;
                self.links(node).find(|(_, peer)| distances[peer.node] == Some(distance - 1))
            };
            if let Some((port, _)) = towards(*start) {
                mark(PortId { node: *start, port });
            }
        }
        for member in members {
            let Some(mut at) = self.peer(member).filter(|_| self.is_active(member)) else { continue };
            while mark(at) {
                let Some(distance) = distances[at.node].filter(|distance| *distance > 0) else { break };
                let up = self.links(at.node).find(|(_, peer)| distances[peer.node] == Some(distance - 1));
                let Some((_, peer)) = up else { break };
                at = peer;
            }
        }
        for (switch, mask) in masks {
            if let Some(forwarding) = &mut self.nodes[switch].forwarding {
                forwarding.set_ports(mlid, mask);
            }
        }
    }
}
