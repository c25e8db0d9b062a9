//! Partitions: the P_Keys of ports, and switches that hold hosts to theirs.

use ibsa::record::PortState;
use ibwire::PKey;
use ibwire::mad::Method;

use super::smp::attribute;
use super::{Purpose, SubnetManager};
use crate::manager::topology::{Node, Port, PortAt, Switch, Topology};

/// P_Keys of a block.
const BLOCK: usize = 32;

impl SubnetManager {
    /// Has switches enforce partitions where hosts are plugged in: such a port has its host's P_Keys. Not at switches that
    /// cannot, or not for so many. The ports in service of which that is new.
    pub(super) fn enforce_partitions(topology: &mut Topology) -> Vec<PortAt> {
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
        for (at, [inbound, outbound], keys) in wanted {
            let Some(port) = topology.port_mut(at) else { continue };
            let info = &mut port.info;
            let before = [info.partition_enforcement_inbound, info.partition_enforcement_outbound];
            (info.partition_enforcement_inbound, info.partition_enforcement_outbound) = (inbound, outbound);
            if before != [inbound, outbound] && info.port_state > PortState::INIT {
                changed.push(at);
            }
            if let Some(keys) = keys.filter(|_| inbound || outbound) {
                port.p_keys = keys;
            }
        }
        changed
    }

    /// Writes the P_Keys of an end port, at the switch port that enforces them, too: as many entries as it has, or `before` if
    /// those were more.
    pub(super) fn write_p_keys(&mut self, topology: &Topology, at: PortAt, before: usize) {
        let Some(port) = topology.port(at) else { return };
        let of_switch = |at: &PortAt| topology.nodes[at.node].switch.as_ref();
        let enforces =
            |port: &Port| port.info.partition_enforcement_inbound || port.info.partition_enforcement_outbound;
        let peer = port.peer.filter(|peer| topology.port(*peer).is_some_and(enforces));
        if let Some((peer, switch)) = peer.and_then(|peer| Some((peer, of_switch(&peer)?))) {
            let room = usize::from(switch.info.partition_enforcement_cap);
            // Of another host, whose P_Keys may still be there, nothing is left.
            let before = if self.was_at(topology, at, peer) { before.min(room) } else { room };
            self.write_table(topology, peer, &port.p_keys, before);
        }
        self.write_table(topology, at, &port.p_keys, before);
    }

    /// Whether a host was plugged in at this port of a switch already when the subnet was last configured.
    fn was_at(&self, topology: &Topology, host: PortAt, at: PortAt) -> bool {
        let old = self.sa.topology();
        let was = topology.port(host).and_then(|host| old.port(old.at_guid(host.guid())?)?.peer);
        let guid = |topology: &Topology, at: PortAt| topology.nodes[at.node].info.node_guid;
        was.is_some_and(|was| was.port == at.port && guid(old, was) == guid(topology, at))
    }

    /// Writes the table of a port, and nothing behind the P_Keys.
    fn write_table(&mut self, topology: &Topology, at: PortAt, p_keys: &[PKey], before: usize) {
        let Some(path) = self.path_to(topology, at) else { return };
        let number = if topology.nodes[at.node].is_switch() { at.port } else { 0 };
        for block in 0..before.max(p_keys.len()).div_ceil(BLOCK) {
            let keys = p_keys.iter().skip(block * BLOCK);
            let mut data = [0; 2 * BLOCK];
            for (out, key) in data.chunks_exact_mut(2).zip(keys) {
                out.copy_from_slice(&key.0.to_be_bytes());
            }
            let modifier = u32::from(number) << 16 | block as u32;
            self.ask(Method::SET, attribute::P_KEY_TABLE, modifier, &path, &data, Purpose::Write);
        }
    }
}

/// The port of a host that is plugged in there.
fn host_of(topology: &Topology, at: PortAt) -> Option<&Port> {
    let peer = topology.port(at)?.peer?;
    topology.nodes.get(peer.node).filter(|node| !Node::is_switch(node))?;
    topology.port(peer)
}
