//! Partitions: the P_Keys of ports, and switches that hold hosts to theirs.

use ibsa::record::{PortInfo, PortState};
use ibwire::PKey;
use ibwire::mad::Method;

use super::configure::Plan;
use super::smp::attribute;
use super::{Purpose, SubnetManager};
use crate::manager::topology::{Node, Port, PortAt, Switch, Topology};

/// P_Keys of a block.
const BLOCK: usize = 32;

impl SubnetManager {
    /// Has switches enforce partitions where hosts are plugged in: such a port has its host's P_Keys. Not at switches that
    /// cannot, or not for so many. The ports of which that is new, and how they enforced before: inbound, outbound.
    pub(super) fn enforce_partitions(topology: &mut Topology) -> Vec<(PortAt, [bool; 2])> {
        let mut wanted = Vec::new();
        for (node, it) in topology.nodes.iter().enumerate() {
            let Some(Switch { info, .. }) = &it.switch else { continue };
            let can = [info.inbound_enforcement_cap, info.outbound_enforcement_cap];
            for at in it.ports.keys().filter(|port| **port != 0).map(|port| PortAt { node, port: *port }) {
                let keys = host_of(topology, at).map(|host| &host.p_keys);
                let keys = keys.filter(|keys| keys.len() <= usize::from(info.partition_enforcement_cap));
                wanted.push((at, can.map(|can| can && keys.is_some()), keys.cloned()));
            }
        }
        let mut changed = Vec::new();
        for (at, enforces, keys) in wanted {
            let Some(port) = topology.port_mut(at) else { continue };
            let before = enforcement(&port.info);
            if before != enforces {
                changed.push((at, before));
            }
            enforce(&mut port.info, enforces);
            if let Some(keys) = keys.filter(|_| enforces.contains(&true)) {
                port.p_keys = keys;
            }
        }
        changed
    }

    /// The first step to other partitions: switches let through what hosts may send from now on. Nobody is held to anything
    /// new before all hosts have their P_Keys, so that nothing of a member is dropped, whatever is lost on the way.
    pub(super) fn admit(&mut self, plan: &Plan) {
        let topology = &plan.topology;
        for (at, before) in &plan.enforcing {
            let Some(port) = topology.port(*at) else { continue };
            let [inbound, outbound] = enforcement(&port.info);
            let meanwhile = [inbound && before[0], outbound && before[1]];
            if meanwhile != *before && port.info.port_state > PortState::INIT {
                let mut info = port.info.clone();
                enforce(&mut info, meanwhile);
                self.write_port(topology, *at, &info, PortState(0), Purpose::Admit(*at));
            }
        }
        for (host, port) in topology.end_ports() {
            let Some(at) = port.peer else { continue };
            let leaf = topology.port(at).filter(|leaf| enforcement(&leaf.info).contains(&true));
            let (Some(_), Some(switch)) = (leaf, &topology.nodes[at.node].switch) else { continue };
            let room = usize::from(switch.info.partition_enforcement_cap);
            // Of another host, whose P_Keys may still be there, nothing is left.
            let entries =
                if self.was_at(topology, host, at) { self.entries(topology, host).min(room) } else { room };
            self.write_table(topology, at, &port.p_keys, entries, Purpose::Admit(at));
        }
    }

    /// Writes the P_Keys of an end port.
    pub(super) fn write_p_keys(&mut self, topology: &Topology, at: PortAt) {
        let Some(port) = topology.port(at) else { return };
        self.write_table(topology, at, &port.p_keys, self.entries(topology, at), Purpose::Write);
    }

    /// How many entries of an end port's table may be in use. What a predecessor has written goes, too, however much that was,
    /// and what may not have been written over in the last sweep.
    fn entries(&self, topology: &Topology, at: PortAt) -> usize {
        let all = usize::from(topology.nodes[at.node].info.partition_cap);
        let before = topology.port(at).and_then(|port| self.port_before(port)).filter(|_| self.partial == 0);
        before.map_or(all, |before| before.p_keys.len())
    }

    /// The same port as it was when the subnet was last configured.
    pub(super) fn port_before(&self, port: &Port) -> Option<&Port> {
        let old = self.sa.topology();
        old.at_guid(port.guid()).and_then(|at| old.port(at))
    }

    /// Whether a host was plugged in at this port of a switch already when the subnet was last configured.
    fn was_at(&self, topology: &Topology, host: PortAt, at: PortAt) -> bool {
        let old = self.sa.topology();
        let was = topology.port(host).and_then(|host| self.port_before(host)?.peer);
        let guid = |topology: &Topology, at: PortAt| topology.nodes[at.node].info.node_guid;
        was.is_some_and(|was| was.port == at.port && guid(old, was) == guid(topology, at))
    }

    /// Writes the table of a port, and nothing behind the P_Keys: as many entries as it has, or `before` if those were more.
    fn write_table(
        &mut self,
        topology: &Topology,
        at: PortAt,
        p_keys: &[PKey],
        before: usize,
        purpose: Purpose,
    ) {
        let Some(path) = self.path_to(topology, at) else { return };
        let number = if topology.nodes[at.node].is_switch() { at.port } else { 0 };
        for block in 0..before.max(p_keys.len()).div_ceil(BLOCK) {
            let keys = p_keys.iter().skip(block * BLOCK);
            let mut data = [0; 2 * BLOCK];
            for (out, key) in data.chunks_exact_mut(2).zip(keys) {
                out.copy_from_slice(&key.0.to_be_bytes());
            }
            let modifier = u32::from(number) << 16 | block as u32;
            self.ask(Method::SET, attribute::P_KEY_TABLE, modifier, &path, &data, purpose.clone());
        }
    }
}

impl Plan {
    /// Leaves ports as they were that may not let through what their hosts are to send: the next sweep tries again.
    pub(super) fn leave_unsure(&mut self) {
        for (at, before) in self.enforcing.extract_if(.., |(at, _)| self.unsure.contains(at)) {
            if let Some(port) = self.topology.port_mut(at) {
                enforce(&mut port.info, before);
            }
        }
    }

    /// Whether a switch lets through what the host of this port sends with its new P_Keys.
    pub(super) fn lets_through(&self, host: &Port) -> bool {
        let enforces =
            |at: &PortAt| self.topology.port(*at).is_some_and(|leaf| enforcement(&leaf.info).contains(&true));
        host.peer.filter(enforces).is_none_or(|leaf| !self.unsure.contains(&leaf))
    }
}

/// How a port enforces partitions: inbound, outbound.
const fn enforcement(info: &PortInfo) -> [bool; 2] {
    [info.partition_enforcement_inbound, info.partition_enforcement_outbound]
}

const fn enforce(info: &mut PortInfo, [inbound, outbound]: [bool; 2]) {
    (info.partition_enforcement_inbound, info.partition_enforcement_outbound) = (inbound, outbound);
}

/// The port of a host that is plugged in there.
fn host_of(topology: &Topology, at: PortAt) -> Option<&Port> {
    let peer = topology.port(at)?.peer?;
    topology.nodes.get(peer.node).filter(|node| !Node::is_switch(node))?;
    topology.port(peer)
}
