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
    /// The links of each switch to other switches: its port, and the number of the other one.
    neighbours: Vec<Vec<(u8, usize)>>,
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
        let neighbours: Vec<Vec<(u8, usize)>> = switches
            .iter()
            .map(|node| {
                links(topology, *node).filter_map(|(port, peer)| Some((port, number[peer.node]?))).collect()
            })
            .collect();
        let hops = (0..switches.len()).map(|from| distances(&neighbours, from)).collect();
        Self { switches, number, neighbours, hops }
    }

    /// The ports of a switch by which the way to another switch is shortest, both by number.
    fn nearest(&self, from: usize, to: usize) -> impl Iterator<Item = u8> {
        let here = self.hops[from][to];
        let is_nearer = move |peer: usize| self.hops[peer][to] < here;
        self.neighbours[from].iter().filter(move |(_, peer)| is_nearer(*peer)).map(|(port, _)| *port)
    }
}

/// Hops from one switch to all.
fn distances(neighbours: &[Vec<(u8, usize)>], from: usize) -> Vec<u16> {
    let mut hops = vec![Routing::UNREACHABLE; neighbours.len()];
    hops[from] = 0;
    let mut next = VecDeque::from([from]);
    while let Some(here) = next.pop_front() {
        for &(_, peer) in &neighbours[here] {
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

/// A port that is routed to: its LIDs, the switch that it is at by number, and the port there; 0 is the switch itself.
struct Target {
    base: Lid,
    lids: u16,
    switch: usize,
    port: u8,
}

/// Fills the linear forwarding tables: towards each LID the port on a shortest way that has the fewest LIDs of hosts so far,
/// of those the lowest. First come the base LIDs, then the second ones, and so on: of a port's several LIDs each takes another
/// neighbour if it can, or else another port.
pub fn route(topology: &mut Topology) -> Routing {
    let routing = Routing::new(topology);
    let target = |at: PortAt| {
        let port = topology.port(at).filter(|port| port.info.lid.is_unicast())?;
        let leaf = if topology.nodes[at.node].is_switch() { at } else { port.peer? };
        let switch = routing.number[leaf.node]?;
        Some(Target { base: port.info.lid, lids: port.lids(), switch, port: leaf.port })
    };
    let targets: Vec<_> = targets(topology, &routing).into_iter().filter_map(target).collect();
    let top = topology.highest_lid();
    for (number, &node) in routing.switches.iter().enumerate() {
        let ports = topology.nodes[node].ports.keys().next_back().copied().unwrap_or(0);
        let ways: Vec<Vec<u8>> =
            (0..routing.switches.len()).map(|to| routing.nearest(number, to).collect()).collect();
        let mut load = vec![0u32; usize::from(ports) + 1];
        let mut linear = vec![Switch::NO_PORT; usize::from(top.0) + 1];
        let peers: Vec<Option<NodeId>> =
            (0..=ports).map(|port| Some(topology.port(PortAt { node, port })?.peer?.node)).collect();
        let mut taken: Vec<Vec<u8>> = vec![Vec::new(); targets.len()];
        let most = targets.iter().map(|target| target.lids).max().unwrap_or(0);
        for lid in 0..most {
            for (target, taken) in targets.iter().zip(&mut taken).filter(|(target, _)| lid < target.lids) {
                let Target { base, switch, port, .. } = target;
                let candidates =
                    if *switch == number { std::slice::from_ref(port) } else { &ways[*switch][..] };
                let weight = |port: &u8| {
                    let peer = peers[usize::from(*port)];
                    let by_peer = taken.iter().filter(|taken| peers[usize::from(**taken)] == peer).count();
                    let by_port = taken.iter().filter(|taken| *taken == port).count();
                    (by_peer, by_port, load[usize::from(*port)])
                };
                let Some(out) = candidates.iter().copied().min_by_key(weight) else { continue };
                taken.push(out);
                load[usize::from(out)] += u32::from(*port != 0);
                linear[usize::from(base.0 + lid)] = out;
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
    /// ways, of equal ones the first. Ports of members that only send have a way into the tree and none out of it. Those that are
    /// not in the topology are left out.
    pub fn new(topology: &Topology, routing: &Routing, receivers: &[PortAt], senders: &[PortAt]) -> Self {
        let leaf = |at: &PortAt| match topology.nodes.get(at.node)?.is_switch() {
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
                let node = routing.switches[here];
                let Some(out) = routing.nearest(here, root).next() else { break };
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
