//! Routes: the shortest ways through the switches, and trees for multicast groups.

use std::collections::{BTreeSet, VecDeque};

use ibwire::Lid;

use super::topology::{NodeId, PortAt, Switch, Topology};

/// Distances between switches, in hops; [`Routing::UNREACHABLE`] is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routing {
    /// Switches by number.
    switches: Vec<NodeId>,
    /// The number of each node that is a switch.
    number: Vec<Option<usize>>,
    /// Hops from one switch to another.
    hops: Vec<Vec<u16>>,
}

impl Routing {
    /// There is no way.
    pub const UNREACHABLE: u16 = u16::MAX;

    /// Measures a subnet: a search from each switch.
    pub fn new(topology: &Topology) -> Self {
        let is_switch = |(_, node): &(usize, &super::Node)| node.is_switch();
        let switches: Vec<_> =
            topology.nodes.iter().enumerate().filter(is_switch).map(|(id, _)| id).collect();
        let mut number = vec![None; topology.nodes.len()];
        switches.iter().enumerate().for_each(|(at, node)| number[*node] = Some(at));
        let neighbours: Vec<Vec<usize>> = switches
            .iter()
            .map(|node| links(topology, *node).filter_map(|(_, peer)| number[peer.node]).collect())
            .collect();
        let hops = (0..switches.len()).map(|from| distances(&neighbours, from)).collect();
        Self { switches, number, hops }
    }

    /// The ports of a switch by which the way to another switch is shortest.
    fn nearest(&self, topology: &Topology, from: NodeId, to: NodeId) -> Vec<u8> {
        let Some((a, b)) = self.number[from].zip(self.number[to]) else { return Vec::new() };
        let here = self.hops[a][b];
        let is_nearer = |peer: PortAt| self.number[peer.node].is_some_and(|peer| self.hops[peer][b] < here);
        links(topology, from).filter(|(_, peer)| is_nearer(*peer)).map(|(port, _)| port).collect()
    }
}

/// Hops from one switch to all.
fn distances(neighbours: &[Vec<usize>], from: usize) -> Vec<u16> {
    let mut hops = vec![Routing::UNREACHABLE; neighbours.len()];
    hops[from] = 0;
    let mut next = VecDeque::from([from]);
    while let Some(here) = next.pop_front() {
        for &peer in &neighbours[here] {
            if hops[peer] == Routing::UNREACHABLE {
                hops[peer] = hops[here] + 1;
                next.push_back(peer);
            }
        }
    }
    hops
}

/// The ports of a node that have a link, and what is at its other end.
fn links(topology: &Topology, node: NodeId) -> impl Iterator<Item = (u8, PortAt)> {
    let ports = topology.nodes[node].ports.iter();
    ports
        .filter(|(number, port)| **number != 0 && port.is_up())
        .filter_map(|(number, port)| Some((*number, port.peer?)))
}

/// The end ports in the order in which they are routed, which is OpenSM's: switch by switch, those with the most of them
/// first, by the number of the switch's port; then the switches themselves.
fn targets(topology: &Topology, routing: &Routing) -> Vec<PortAt> {
    let by_guid = |node: &NodeId| topology.nodes[*node].info.node_guid.0.swap_bytes();
    let hosts = |node: NodeId| {
        links(topology, node).map(|(_, peer)| peer).filter(|peer| routing.number[peer.node].is_none())
    };
    let mut switches = routing.switches.clone();
    switches.sort_by_key(|node| (std::cmp::Reverse(hosts(*node).count()), by_guid(node)));
    let own = switches.iter().map(|node| PortAt { node: *node, port: 0 });
    switches.iter().flat_map(|node| hosts(*node)).chain(own).collect()
}

/// How a switch can send to an end port.
struct Way {
    base: Lid,
    lids: u16,
    is_host: bool,
    /// Its ports on shortest ways.
    ports: Vec<u8>,
}

impl Way {
    fn new(topology: &Topology, routing: &Routing, node: NodeId, to: PortAt) -> Option<Self> {
        let port = topology.port(to).filter(|port| port.info.lid.is_unicast())?;
        let is_host = !topology.nodes[to.node].is_switch();
        let ports = match port.peer.filter(|_| is_host) {
            None if to.node == node => vec![0],
            None => routing.nearest(topology, node, to.node),
            Some(peer) if peer.node == node => vec![peer.port],
            Some(peer) => routing.nearest(topology, node, peer.node),
        };
        Some(Self { base: port.info.lid, lids: port.lids(), is_host, ports })
    }
}

/// Fills the linear forwarding tables: towards each LID the port on a shortest way that has the fewest LIDs of hosts so far,
/// of those the lowest. First come the base LIDs, then the second ones, and so on: of a port's several LIDs each takes another
/// neighbour if it can, or else another port.
pub fn route(topology: &mut Topology) -> Routing {
    let routing = Routing::new(topology);
    let targets = targets(topology, &routing);
    let top = topology.highest_lid();
    for &node in &routing.switches {
        let ports = topology.nodes[node].ports.keys().next_back().copied().unwrap_or(0);
        let mut load = vec![0u32; usize::from(ports) + 1];
        let mut linear = vec![Switch::NO_PORT; usize::from(top.0) + 1];
        let ways: Vec<Way> =
            targets.iter().filter_map(|at| Way::new(topology, &routing, node, *at)).collect();
        let peers: Vec<Option<NodeId>> =
            (0..=ports).map(|port| Some(topology.port(PortAt { node, port })?.peer?.node)).collect();
        let mut taken: Vec<Vec<u8>> = vec![Vec::new(); ways.len()];
        let most = ways.iter().map(|way| way.lids).max().unwrap_or(0);
        for number in 0..most {
            for (way, taken) in ways.iter().zip(&mut taken).filter(|(way, _)| number < way.lids) {
                let weight = |port: &u8| {
                    let peer = peers[usize::from(*port)];
                    let by_peer = taken.iter().filter(|taken| peers[usize::from(**taken)] == peer).count();
                    let by_port = taken.iter().filter(|taken| *taken == port).count();
                    (by_peer, by_port, load[usize::from(*port)])
                };
                let Some(port) = way.ports.iter().copied().min_by_key(weight) else { continue };
                taken.push(port);
                load[usize::from(port)] += u32::from(way.is_host);
                linear[usize::from(way.base.0 + number)] = port;
            }
        }
        if let Some(switch) = &mut topology.nodes[node].switch {
            switch.info.linear_fdb_top = top.0;
            switch.linear = linear;
        }
    }
    routing
}

/// The ports of each switch that belong to a group's tree.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MulticastTree {
    /// Switches and their ports.
    pub ports: Vec<(NodeId, BTreeSet<u8>)>,
}

impl MulticastTree {
    /// A tree without loops that reaches all of these end ports: from the switch that is nearest to all of them along shortest
    /// ways, of equal ones the first. Ports of members that only send have a way into the tree and none out of it.
    pub fn new(topology: &Topology, routing: &Routing, receivers: &[PortAt], senders: &[PortAt]) -> Self {
        let leaf = |at: &PortAt| match topology.nodes[at.node].is_switch() {
            true => Some(PortAt { node: at.node, port: 0 }),
            false => topology.port(*at).and_then(|port| port.peer),
        };
        let ends: Vec<_> = receivers.iter().chain(senders).filter_map(leaf).collect();
        let leaves: BTreeSet<NodeId> = ends.iter().map(|leaf| leaf.node).collect();
        let number = |node: NodeId| routing.number.get(node).copied().flatten();
        let leaves: Vec<usize> = leaves.into_iter().filter_map(number).collect();
        let cost =
            |root: &usize| leaves.iter().map(|leaf| u64::from(routing.hops[*root][*leaf])).sum::<u64>();
        let Some(root) = (0..routing.switches.len()).min_by_key(cost) else { return Self::default() };
        let mut ports: Vec<BTreeSet<u8>> = vec![BTreeSet::new(); routing.switches.len()];
        for leaf in leaves {
            let mut here = leaf;
            while here != root {
                let (node, target) = (routing.switches[here], routing.switches[root]);
                let Some(&out) = routing.nearest(topology, node, target).first() else { break };
                let Some(peer) = topology.port(PortAt { node, port: out }).and_then(|port| port.peer) else {
                    break;
                };
                let Some(next) = number(peer.node) else { break };
                // From here to the root the way is in the tree already if this step is.
                if !ports[here].insert(out) {
                    break;
                }
                ports[next].insert(peer.port);
                here = next;
            }
        }
        for end in receivers.iter().filter_map(leaf) {
            if let Some(at) = number(end.node) {
                ports[at].insert(end.port);
            }
        }
        let used = ports.into_iter().enumerate().filter(|(_, ports)| !ports.is_empty());
        Self { ports: used.map(|(at, ports)| (routing.switches[at], ports)).collect() }
    }
}
