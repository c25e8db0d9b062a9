//! Finding what there is: from node to node by directed routes.

use std::collections::BTreeMap;

use ibsa::proto::rmpp::Mad;
use ibsa::record::{
    Layout, NodeInfo, NodeType, PortCapabilities, PortInfo, PortPhysicalState, SmInfoRecord, SmState,
    SwitchInfo, Text,
};
use ibwire::Guid;
use ibwire::mad::Method;

use super::election::Rival;
use super::smp::{MOST_HOPS, Path, attribute};
use super::{Phase, Purpose, SubnetManager};
use crate::manager::topology::{Node, Port, PortAt, Switch, Topology};

/// What a sweep has found so far.
#[derive(Debug)]
pub(super) struct Discovery {
    pub topology: Topology,
    by_guid: BTreeMap<Guid, usize>,
    /// How each end port is reached.
    pub paths: BTreeMap<PortAt, Path>,
    pub rivals: Vec<Rival>,
}

impl SubnetManager {
    /// Begins a sweep at the manager's own node.
    pub(super) fn discover(&mut self) {
        self.counters.heavy_sweeps += 1;
        (self.is_stale, self.is_partial, self.next) = (false, false, None);
        let topology = Topology::new(self.config.sa.prefix);
        let (by_guid, paths) = (BTreeMap::new(), BTreeMap::new());
        self.phase = Phase::Discover(Box::new(Discovery { topology, by_guid, paths, rivals: Vec::new() }));
        self.ask(Method::GET, attribute::NODE_INFO, 0, &[], &[], Purpose::Node(None));
    }

    /// Reads an answer of a sweep.
    pub(super) fn discovered(&mut self, purpose: Purpose, mad: &Mad, data: &[u8]) {
        let Phase::Discover(found) = &mut self.phase else { return };
        let count = usize::from(mad[7]).min(MOST_HOPS);
        let path: Path = mad[129..129 + count].to_vec();
        let mut next = Vec::new();
        match purpose {
            Purpose::Node(from) => {
                let Ok(info) = NodeInfo::parse(data) else { return };
                found.node(from, &path, info, &mut next);
            }
            Purpose::Describe(node) => {
                if let Ok(text) =
                    std::str::from_utf8(data.split(|byte| *byte == 0).next().unwrap_or_default())
                {
                    found.topology.nodes[node].description = Text::new(text).unwrap_or_default();
                }
            }
            Purpose::SwitchInfo(node) => {
                let Ok(info) = SwitchInfo::parse(data) else { return };
                // One that is not master yet leaves the bit to who is.
                if info.port_state_change && self.state == SmState::MASTER {
                    let (id, method) = (attribute::SWITCH_INFO, Method::SET);
                    self.ask(method, id, 0, &path, &info.to_bytes(), Purpose::Clear(node));
                } else {
                    found.switch(node, &path, info, &mut next);
                }
            }
            Purpose::Clear(node) => {
                let Ok(info) = SwitchInfo::parse(data) else { return };
                found.switch(node, &path, info, &mut next);
            }
            Purpose::PortInfo(at) => {
                let Ok(info) = PortInfo::parse(data) else { return };
                let own = self.config.guid;
                found.port(at, &path, info, own, &mut next);
            }
            Purpose::Guids(at, block) => {
                let Some(port) = found.topology.port_mut(at) else { return };
                let guids = data
                    .chunks_exact(8)
                    .map(|raw| Guid(raw.iter().fold(0, |all, b| all << 8 | u64::from(*b))));
                let first = usize::from(block) * 8;
                if data.iter().any(|byte| *byte != 0) && block + 1 < port.info.guid_cap.div_ceil(8) {
                    let at = Purpose::Guids(at, block + 1);
                    next.push((attribute::GUID_INFO, u32::from(block) + 1, path, at));
                }
                port.guids.resize(port.guids.len().max(first + 8), Guid(0));
                // The port's own GUID is known already.
                port.guids
                    .iter_mut()
                    .skip(first)
                    .zip(guids)
                    .skip(usize::from(block == 0))
                    .for_each(|(at, guid)| *at = guid);
                while port.guids.last() == Some(&Guid(0)) {
                    port.guids.pop();
                }
            }
            Purpose::Manager => found.rivals.extend(Rival::read(data, path)),
            Purpose::Write
            | Purpose::Admit(_)
            | Purpose::Look
            | Purpose::Compare(_)
            | Purpose::Watch(_)
            | Purpose::Poll
            | Purpose::HandOver(_)
            | Purpose::GiveWay => {}
        }
        for (id, modifier, path, purpose) in next {
            self.ask(Method::GET, id, modifier, &path, &[], purpose);
        }
    }

    /// Whether everything that was found goes together. A link that changed meanwhile may be up at one end only.
    pub(super) fn is_consistent(topology: &Topology) -> bool {
        let ports = topology.nodes.iter().flat_map(|node| node.ports.values());
        let mut linked = ports.filter_map(|port| Some((port, topology.port(port.peer?)?)));
        linked.all(|(port, peer)| port.is_up() == peer.is_up())
    }

    /// What other managers and this one are, as records.
    pub(super) fn manager_records(&self, topology: &Topology) -> Vec<SmInfoRecord> {
        let own = Rival {
            guid: self.config.guid,
            priority: self.config.priority,
            state: self.state,
            path: Vec::new(),
        };
        let record = |rival: &Rival| {
            let at = topology.at_guid(rival.guid)?;
            Some(SmInfoRecord {
                lid: topology.port(at)?.info.lid,
                guid: rival.guid,
                sm_key: self.config.sa.sm_key,
                act_count: self.act_count,
                priority: rival.priority,
                sm_state: rival.state,
            })
        };
        std::iter::once(&own).chain(&self.rivals).filter_map(record).collect()
    }
}

/// What to ask next.
type Next = Vec<(ibwire::mad::AttributeId, u32, Path, Purpose)>;

impl Discovery {
    /// A node at the end of a path.
    fn node(&mut self, from: Option<PortAt>, path: &Path, info: NodeInfo, next: &mut Next) {
        let (guid, entered, ports) = (info.node_guid, info.local_port_num, info.num_ports);
        let is_switch = info.node_type == NodeType::SWITCH;
        let known = self.by_guid.get(&guid).copied();
        let id = known.unwrap_or_else(|| {
            let (description, ports, switch) = (Text::default(), BTreeMap::new(), None);
            self.topology.add(Node { info: info.clone(), description, ports, switch })
        });
        self.by_guid.insert(guid, id);
        if known.is_none() {
            next.push((attribute::NODE_DESCRIPTION, 0, path.clone(), Purpose::Describe(id)));
        }
        if is_switch && known.is_none() {
            next.push((attribute::SWITCH_INFO, 0, path.clone(), Purpose::SwitchInfo(id)));
            for port in 0..=ports {
                self.topology.nodes[id].ports.insert(port, Port::new(info.port_guid, PortInfo::default()));
            }
            self.paths.insert(PortAt { node: id, port: 0 }, path.clone());
        }
        let here = PortAt { node: id, port: entered };
        if !is_switch && !self.paths.contains_key(&here) {
            self.topology.nodes[id].ports.insert(entered, Port::new(info.port_guid, PortInfo::default()));
            self.paths.insert(here, path.clone());
            next.push((attribute::PORT_INFO, 0, path.clone(), Purpose::PortInfo(here)));
        }
        let has_both =
            from.is_some_and(|from| self.topology.port(from).is_some() && self.topology.port(here).is_some());
        if let Some(from) = from.filter(|_| has_both) {
            self.topology.link(from, here);
        }
    }

    /// A switch, whose ports are looked at from here on: what changes later it says again.
    fn switch(&mut self, id: usize, path: &Path, info: SwitchInfo, next: &mut Next) {
        let Some(node) = self.topology.nodes.get_mut(id) else { return };
        node.switch = Some(Switch { info, ..Switch::default() });
        for port in node.ports.keys().copied() {
            let at = PortAt { node: id, port };
            next.push((attribute::PORT_INFO, port.into(), path.clone(), Purpose::PortInfo(at)));
        }
    }

    /// A port of a node at the end of a path.
    fn port(&mut self, at: PortAt, path: &Path, info: PortInfo, own: Guid, next: &mut Next) {
        let is_switch = self.topology.nodes.get(at.node).is_some_and(Node::is_switch);
        let Some(port) = self.topology.port_mut(at) else { return };
        let is_end = at.port == 0 || !is_switch;
        // From a host only the manager's own leads on: by the port where it is.
        let goes_on = (is_switch || path.is_empty())
            && at.port != 0
            && info.port_physical_state == PortPhysicalState::LINK_UP
            && path.len() < MOST_HOPS;
        if goes_on {
            let path = [&path[..], &[at.port]].concat();
            next.push((attribute::NODE_INFO, 0, path, Purpose::Node(Some(at))));
        }
        if is_end {
            if info.guid_cap > 0 {
                next.push((attribute::GUID_INFO, 0, path.clone(), Purpose::Guids(at, 0)));
            }
            if info.capability_mask.contains(PortCapabilities::SM) && port.guid() != own {
                next.push((attribute::SM_INFO, 0, path.clone(), Purpose::Manager));
            }
        }
        port.info = PortInfo { local_port_num: at.port, ..info };
    }
}
