//! Managers on nodes whose links take no time.

mod election;
pub(in crate::sim) mod groups;
mod partitions;
mod sweeps;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ibsa::mad::SaHeader;
use ibsa::record::{JoinState, Layout, McMemberRecord, PortCapabilities, PortState, SmState};
use ibwire::mad::{AttributeId, MadHeader, MadStatus, Method, MgmtClass};
use ibwire::{Gid, Guid, Lid, Mtu, PKey, QKey, Rate, TransactionId};

use super::super::node::{Change, Handled, Node, PortShape, Smp, Step};
use super::*;
use crate::manager::{GroupTree, PortAt, SmConfig};

type Port = (usize, u8);
type Loses = Box<dyn FnMut(&Smp) -> [bool; 2]>;
type Watch = Box<dyn Fn(&World)>;

/// Nodes, cables, and managers on some switches.
struct World {
    now: Instant,
    nodes: Vec<Node>,
    cables: BTreeMap<Port, Port>,
    managers: BTreeMap<usize, SubnetManager>,
    /// Ports that were asked to register again.
    reregistered: Vec<Port>,
    /// Whether a request is lost, or if not, its answer.
    loses: Option<Loses>,
    /// Looks at everything whenever a node has handled a packet.
    watch: Option<Watch>,
}

fn shape(number: u8, guid: u64) -> PortShape {
    PortShape { number, guid: Guid(guid), mtu: Mtu::B4096, rate: Rate::GBPS_100 }
}

impl World {
    /// Two switches with two cables between them; hosts a and c at the first, b and d at the second.
    fn new() -> Self {
        let switch =
            |n: u64| Node::switch(format!("switch{n}"), Guid(0x10 * n), (1..=4).map(|port| shape(port, 0)));
        let host = |name: &str, guid: u64| Node::hca(name.into(), Guid(guid), [shape(1, guid + 1)]);
        let nodes = vec![
            switch(1),
            switch(2),
            host("a", 0x100),
            host("b", 0x200),
            host("c", 0x300),
            host("d", 0x400),
        ];
        let now = Instant::now();
        let mut world = Self {
            now,
            nodes,
            cables: BTreeMap::new(),
            managers: BTreeMap::new(),
            reregistered: Vec::new(),
            loses: None,
            watch: None,
        };
        let cables = [
            ((0, 3), (1, 3)),
            ((0, 4), (1, 4)),
            ((2, 1), (0, 1)),
            ((3, 1), (1, 1)),
            ((4, 1), (0, 2)),
            ((5, 1), (1, 2)),
        ];
        cables.into_iter().for_each(|(a, b)| world.plug(a, b));
        world
    }

    fn plug(&mut self, a: Port, b: Port) {
        for (here, there) in [(a, b), (b, a)] {
            self.cables.insert(here, there);
            self.nodes[here.0].set_link(self.now, here.1, true);
        }
    }

    fn unplug(&mut self, a: Port) {
        let b = self.cables[&a];
        for here in [a, b] {
            self.cables.remove(&here);
            self.nodes[here.0].set_link(self.now, here.1, false);
        }
    }

    fn attach(&mut self, node: usize, config: SmConfig) {
        let now = self.now;
        self.nodes[node].set_capabilities(now, 0, |info| info.capability_mask |= PortCapabilities::SM);
        self.managers.insert(node, SubnetManager::new(config));
        self.managers.get_mut(&node).unwrap().handle_timeout(now);
    }

    /// Moves what managers and agents send until nothing is left.
    fn run(&mut self) {
        loop {
            let mut sent = VecDeque::new();
            for (node, manager) in &mut self.managers {
                while let Some(mad) = Manager::poll_transmit(manager, self.now) {
                    sent.push_back((*node, 0, mad.lid, mad));
                }
            }
            for node in 0..self.nodes.len() {
                while let Some((port, to, trap)) = self.nodes[node].poll_trap(self.now) {
                    sent.push_back((node, port, to, by_qp0(to, trap.to_mad())));
                }
            }
            if sent.is_empty() {
                return;
            }
            for (node, port, to, mad) in sent {
                if mad.qp == Qpn::SMI {
                    self.carry((node, port), to, Smp::parse(&mad.mad).unwrap());
                }
            }
        }
    }

    /// Carries a packet to where it goes, and its answer back.
    fn carry(&mut self, from: Port, to: Lid, mut smp: Smp) {
        let (mut at, mut entered) = (from, None);
        loop {
            let node = &self.nodes[at.0];
            let out = match smp.is_directed() {
                true => match smp.step(entered, node.is_switch()) {
                    Step::Here => break,
                    Step::Out(port) => port,
                    _ => return,
                },
                false if node.port_of_lid(to).is_some_and(|own| own == 0 || own == at.1) => break,
                false => match &node.forwarding {
                    Some(tables) => match tables.port(to) {
                        Some(port) => port,
                        None => return,
                    },
                    None => from.1,
                },
            };
            let Some(peer) = self.cables.get(&(at.0, out)) else { return };
            (at, entered) = (*peer, Some(peer.1));
        }
        let is_request = !smp.header.method.is_response();
        let lost = self.loses.as_mut().filter(|_| is_request).map_or([false; 2], |loses| loses(&smp));
        if lost[0] {
            return;
        }
        let handled = self.nodes[at.0].handle_smp(self.now, entered.unwrap_or(0), smp);
        for change in self.nodes[at.0].take_changes() {
            if let Change::Reregister(port) = change {
                self.reregistered.push((at.0, port));
            }
        }
        if let Some(watch) = self.watch.take() {
            watch(self);
            self.watch = Some(watch);
        }
        let end = if self.nodes[at.0].is_switch() { 0 } else { at.1 };
        match handled {
            Handled::Answer(_) if lost[1] => {}
            Handled::Answer(answer) => self.carry((at.0, end), Lid::PERMISSIVE, answer),
            Handled::Manager(smp) => {
                let lid = if smp.is_directed() { Lid::PERMISSIVE } else { self.lid(from.0) };
                if let Some(manager) = self.managers.get_mut(&at.0) {
                    manager.handle_mad(self.now, &by_qp0(lid, smp.to_mad()));
                }
            }
            Handled::Done => {}
        }
    }

    /// Lets time pass, with all that is due.
    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.run();
            let managers = self.managers.values().filter_map(Manager::poll_timeout);
            let due = managers.chain(self.nodes.iter().filter_map(Node::poll_timeout)).min();
            let Some(due) = due.filter(|due| *due <= end) else { break };
            self.now = self.now.max(due);
            let now = self.now;
            self.managers.values_mut().for_each(|manager| Manager::handle_timeout(manager, now));
        }
        self.now = end;
    }

    fn lid(&self, node: usize) -> Lid {
        let port = u8::from(!self.nodes[node].is_switch());
        self.nodes[node].port(port).unwrap().info.lid
    }

    /// The nodes that a packet passes on its way from a host to another.
    fn way(&self, from: usize, to: usize) -> Option<Vec<usize>> {
        let (mut at, mut way) = (*self.cables.get(&(from, 1))?, vec![from]);
        while at.0 != to {
            way.push(at.0);
            let out = self.nodes[at.0].forwarding.as_ref()?.port(self.lid(to))?;
            at = *self.cables.get(&(at.0, out)).filter(|_| way.len() < 9)?;
        }
        way.push(to);
        Some(way)
    }

    fn masters(&self) -> usize {
        self.managers.values().filter(|manager| manager.state() == SmState::MASTER).count()
    }

    fn state(&self, port: Port) -> PortState {
        self.nodes[port.0].port(port.1).unwrap().info.port_state
    }
}

fn config(guid: u64) -> SmConfig {
    SmConfig::new(Guid(guid))
}
