//! Managers that nobody sees: what they decide is carried out at once, by the nodes' agents but not over the wires.
//!
//! So every subnet comes into service. One without managers of its own also stays so: whatever changes, it is configured
//! anew in the same moment.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use ibsa::record::PortState;
use ibwire::mad::MadStatus;
use ibwire::{Guid, Lid, PKey};

use super::fabric::{Fabric, PortId};
use super::node::{Handled, Smp};
use crate::manager::{Qos, SmConfig, SmMad, SubnetManager};

/// What all managers of a subnet are told.
#[derive(Debug, Clone, Default)]
pub(super) struct Orders {
    pub lmc: u8,
    pub qos: Option<Qos>,
    /// The P_Keys of HCAs that have others than the default one, by node.
    pub p_keys: BTreeMap<usize, Vec<PKey>>,
}

/// Most times that such a manager waits for an answer that does not come.
const MOST_WAITS: usize = 64;

impl Fabric {
    /// How a manager on a node is set up.
    pub(super) fn sm_config(&self, guid: Guid) -> SmConfig {
        let mut config = SmConfig::new(guid);
        (config.lmc, config.qos) = (self.orders.lmc, self.orders.qos.clone());
        config.lids.clone_from(&self.lids);
        for (node, keys) in &self.orders.p_keys {
            config.p_keys.extend(self.guids(*node).into_iter().map(|guid| (guid, keys.clone())));
        }
        config
    }

    /// The GUIDs of a node's ports.
    pub(super) fn guids(&self, node: usize) -> Vec<Guid> {
        let node = &self.nodes[node];
        node.numbers().filter_map(|port| node.port(port)?.guids.first().copied()).collect()
    }

    /// Configures what is there now, unless managers see to that. The number of ports that are left without a LID.
    pub(super) fn configure_at_once(&mut self, now: Instant) -> u64 {
        if self.managed {
            return 0;
        }
        self.operators.clear();
        let mut lacking = 0;
        for host in self.hosts() {
            let Some(guid) = self.nodes[host.node].port(host.port).map(|port| port.guids[0]) else {
                continue;
            };
            let mut operator = SubnetManager::new(SmConfig { stays: false, ..self.sm_config(guid) });
            operator.request_sweep();
            self.operate(now, host, &mut operator);
            lacking += operator.counters().lids_lacking;
            self.lids.clone_from(&operator.config().lids);
            self.operators.push((host, operator));
        }
        let all: Vec<_> = self.members.keys().copied().collect();
        self.write_groups(&all);
        lacking
    }

    /// Where the managers of all parts are that have links now: on their first switches, or on an HCA of two that have none.
    pub(super) fn hosts(&self) -> Vec<PortId> {
        let (mut seen, mut hosts) = (BTreeSet::new(), Vec::new());
        let switches = (0..self.nodes.len()).filter(|node| self.nodes[*node].is_switch());
        let hcas = (0..self.nodes.len()).filter(|node| !self.nodes[*node].is_switch());
        let ports = |node: usize| (1..=self.nodes[node].port_count()).map(move |port| PortId { node, port });
        for host in switches.map(|node| PortId { node, port: 0 }).chain(hcas.flat_map(ports)) {
            let is_there = host.port == 0 || self.linked(host).is_some();
            if self.removed[host.node] || !is_there || seen.contains(&self.end_of(host)) {
                continue;
            }
            hosts.push(host);
            let mut found = vec![host];
            while let Some(at) = found.pop() {
                if seen.insert(self.end_of(at)) {
                    match self.nodes[at.node].is_switch() {
                        true => found.extend(ports(at.node).filter_map(|port| self.linked(port))),
                        false => found.extend(self.linked(at)),
                    }
                }
            }
        }
        hosts
    }

    /// A switch as a whole, or a port of an HCA.
    fn end_of(&self, at: PortId) -> PortId {
        if self.nodes[at.node].is_switch() { PortId { port: 0, ..at } } else { at }
    }

    /// The other end of a link that is up.
    pub(super) fn linked(&self, id: PortId) -> Option<PortId> {
        let port = self.nodes[id.node].port(id.port)?;
        (port.info.port_state != PortState::DOWN).then(|| self.peer(id)).flatten()
    }

    /// Does what a manager on a node wants until it wants nothing more.
    pub(super) fn operate(&mut self, now: Instant, host: PortId, manager: &mut SubnetManager) {
        let mut time = now;
        for _ in 0..MOST_WAITS {
            manager.handle_timeout(time);
            while let Some(sent) = manager.poll_transmit(time) {
                if let SmMad::Smp(_, mad) = sent
                    && let Some(answer) = Smp::parse(&mad).and_then(|smp| self.carry(now, host, smp))
                {
                    manager.handle_smp(time, Lid::PERMISSIVE, &answer.to_mad());
                }
            }
            match manager.poll_timeout().filter(|_| !manager.is_settled()) {
                Some(due) => time = due,
                None => return,
            }
        }
    }

    /// Takes a packet with a directed route to where it goes. The answer, as it comes back.
    fn carry(&mut self, now: Instant, host: PortId, mut smp: Smp) -> Option<Smp> {
        let (to, _) = self.smp_way(host, Lid::PERMISSIVE, &mut smp).ok()?;
        let handled = self.nodes[to.node].handle_smp(now, to.port, smp);
        self.changed(to.node);
        match handled {
            Handled::Answer(answer) => Some(answer),
            Handled::Manager(request) => Some(request.answer(MadStatus::BAD_METHOD_ATTRIBUTE)),
            Handled::Done => None,
        }
    }
}
