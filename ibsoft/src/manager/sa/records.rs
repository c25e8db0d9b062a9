//! What the subnet consists of, as records (spec/sa.md 3.2 to 3.12).

use std::array;

use ibsa::record::{
    GuidInfoRecord, LftRecord, LinkRecord, Masked, MftRecord, NodeRecord, PKeyTableRecord, PortCapabilities,
    PortCapabilities2, PortInfoRecord, Record, Sl2VlTableRecord, SmInfoRecord, SwitchInfoRecord,
    VlArbitrationTableRecord,
};
use ibwire::mad::MadStatus;
use ibwire::{Guid, Lid, PKey};

use super::Sa;
use super::answer::Rows;
use super::request::{Request, status};
use crate::manager::topology::{Node, Port, PortAt, Switch};

/// The bit of the LID in the masks of these records.
const LID: u32 = 0;
/// The bits of the capability masks in that of PortInfoRecord.
const CAPABILITIES: u32 = 7;
const CAPABILITIES_2: u32 = 53;
const FIRST_MLID: u16 = 0xc000;

impl Sa {
    /// Whether the requester may see this node: some ports of both devices share a partition (spec/sa.md 4.6).
    fn sees(&self, request: &Request<'_>, node: usize) -> bool {
        let Some(requester) = request.requester else { return false };
        let ends = self.topology.nodes[node].end_ports();
        requester.node == node
            || ends
                .map(|(port, _)| PortAt { node, port })
                .any(|it| self.topology.device_shares_p_key(requester.node, it))
    }

    /// The base LID of the port that a query names by one of its LIDs.
    fn base_lid(&self, lid: Lid) -> Lid {
        self.topology.at_lid(lid).and_then(|at| self.topology.port(at)).map_or(lid, |port| port.info.lid)
    }

    /// The nodes that a query with this LID can be about.
    fn nodes(&self, request: &Request<'_>, lid: Lid) -> impl Iterator<Item = (usize, &Node)> {
        let only = request.has(LID).then(|| self.topology.at_lid(lid).map(|at| at.node));
        let seen = move |(node, _): &(usize, &Node)| only.is_none_or(|only| only == Some(*node));
        let visible: Vec<_> = self
            .topology
            .nodes
            .iter()
            .enumerate()
            .filter(seen)
            .filter(|(node, _)| self.sees(request, *node))
            .collect();
        visible.into_iter()
    }

    /// LID of a node's port: that of its end port.
    fn lid_of(&self, node: usize, port: u8) -> Lid {
        let end = self.topology.end_port_of(PortAt { node, port });
        self.topology.port(end).map_or(Lid::NONE, |port| port.info.lid)
    }

    pub(super) fn node_records(&self, request: &Request<'_>) -> Result<Rows, MadStatus> {
        let mut wanted: NodeRecord = request.record()?;
        let mut rows = Rows::new(&self.config.limits);
        let nodes = self.nodes(request, wanted.lid);
        wanted.lid = self.base_lid(wanted.lid);
        for (_, node) in nodes {
            for (number, port) in node.end_ports() {
                let mut info = node.info.clone();
                info.port_guid = port.guid();
                info.local_port_num = number;
                let lid = port.info.lid;
                let record = NodeRecord { lid, node_info: info, node_description: node.description };
                select(&mut rows, request, &record, &wanted)?;
            }
        }
        Ok(rows)
    }

    pub(super) fn port_info_records(&self, request: &Request<'_>) -> Result<Rows, MadStatus> {
        let mut wanted: PortInfoRecord = request.record()?;
        let mut rows = Rows::new(&self.config.limits);
        let mut mask = request.header.component_mask;
        let (mut has, mut has2) = (PortCapabilities::empty(), PortCapabilities2::empty());
        if request.header.mad.attribute_modifier & PortInfoRecord::CAPABILITIES_AT_LEAST != 0 {
            if request.has(CAPABILITIES) {
                has = wanted.port_info.capability_mask;
            }
            if request.has(CAPABILITIES_2) {
                has2 = wanted.port_info.capability_mask2;
            }
            mask &= !(1 << CAPABILITIES | 1 << CAPABILITIES_2);
        }
        let nodes = self.nodes(request, wanted.end_port_lid);
        wanted.end_port_lid = self.base_lid(wanted.end_port_lid);
        for (id, node) in nodes {
            for (number, port) in &node.ports {
                if !node.is_switch() && port.peer.is_none() {
                    continue;
                }
                let mut info = port.info.clone();
                if !request.is_trusted {
                    info.m_key = 0;
                }
                let fits = info.capability_mask.contains(has) && info.capability_mask2.contains(has2);
                let end_port_lid = self.lid_of(id, *number);
                let record = PortInfoRecord { end_port_lid, port_num: *number, options: 0, port_info: info };
                if fits && record.matches(&wanted, mask) {
                    rows.push(&record)?;
                }
            }
        }
        Ok(rows)
    }

    pub(super) fn sl2vl_records(&self, request: &Request<'_>) -> Result<Rows, MadStatus> {
        let mut wanted: Sl2VlTableRecord = request.record()?;
        let mut rows = Rows::new(&self.config.limits);
        let nodes = self.nodes(request, wanted.lid);
        wanted.lid = self.base_lid(wanted.lid);
        for (id, node) in nodes {
            for (output, port) in linked(node) {
                let inputs: Vec<u8> = match node.is_switch() {
                    true => node.ports.keys().copied().collect(),
                    false => vec![0],
                };
                let shown = if node.is_switch() { output } else { 0 };
                for input in inputs {
                    let (lid, vls) = (self.lid_of(id, output), port.vls);
                    let record = Sl2VlTableRecord { lid, input_port_num: input, output_port_num: shown, vls };
                    select(&mut rows, request, &record, &wanted)?;
                }
            }
        }
        Ok(rows)
    }

    pub(super) fn switch_info_records(&self, request: &Request<'_>) -> Result<Rows, MadStatus> {
        let mut wanted: SwitchInfoRecord = request.record()?;
        let mut rows = Rows::new(&self.config.limits);
        let nodes = self.nodes(request, wanted.lid);
        wanted.lid = self.base_lid(wanted.lid);
        for (id, switch) in switches(nodes) {
            let record = SwitchInfoRecord { lid: self.lid_of(id, 0), switch_info: switch.info.clone() };
            select(&mut rows, request, &record, &wanted)?;
        }
        Ok(rows)
    }

    pub(super) fn lft_records(&self, request: &Request<'_>) -> Result<Rows, MadStatus> {
        const ENTRIES: usize = 64;
        let mut wanted: LftRecord = request.record()?;
        let mut rows = Rows::new(&self.config.limits);
        let nodes = self.nodes(request, wanted.lid);
        wanted.lid = self.base_lid(wanted.lid);
        for (id, switch) in switches(nodes) {
            let blocks = usize::from(switch.info.linear_fdb_top) / ENTRIES + 1;
            for block in 0..blocks {
                let entry = |at| switch.linear.get(block * ENTRIES + at).copied().unwrap_or(Switch::NO_PORT);
                let (lid, block_num) = (self.lid_of(id, 0), block as u16);
                let record = LftRecord { lid, block_num, ports: array::from_fn(entry) };
                select(&mut rows, request, &record, &wanted)?;
            }
        }
        Ok(rows)
    }

    pub(super) fn mft_records(&self, request: &Request<'_>) -> Result<Rows, MadStatus> {
        let mut wanted: MftRecord = request.record()?;
        let mut rows = Rows::new(&self.config.limits);
        let nodes = self.nodes(request, wanted.lid);
        wanted.lid = self.base_lid(wanted.lid);
        for (id, node) in nodes {
            let Some(switch) = &node.switch else { continue };
            let Some((last, _)) = switch.multicast.last_key_value() else { continue };
            let positions = node.info.num_ports / 16 + 1;
            for block_num in 0..=(last.0 - FIRST_MLID) / 32 {
                for position in 0..positions {
                    let mask = |at| {
                        let mlid = Lid(FIRST_MLID + 32 * block_num + at as u16);
                        let ports = switch.multicast.get(&mlid).into_iter().flatten();
                        ports
                            .filter(|port| **port / 16 == position)
                            .fold(0, |mask, port| mask | 1 << (port % 16))
                    };
                    let port_masks = array::from_fn(mask);
                    let record = MftRecord { lid: self.lid_of(id, 0), position, block_num, port_masks };
                    select(&mut rows, request, &record, &wanted)?;
                }
            }
        }
        Ok(rows)
    }

    pub(super) fn sm_info_records(&self, request: &Request<'_>) -> Result<Rows, MadStatus> {
        let wanted: SmInfoRecord = request.record()?;
        let mut rows = Rows::new(&self.config.limits);
        for manager in &self.managers {
            let at = self.topology.at_lid(manager.lid);
            if at.is_some_and(|at| self.sees(request, at.node)) {
                let mut record = manager.clone();
                if !request.is_trusted {
                    record.sm_key = 0;
                }
                select(&mut rows, request, &record, &wanted)?;
            }
        }
        Ok(rows)
    }

    pub(super) fn link_records(&self, request: &Request<'_>) -> Result<Rows, MadStatus> {
        const TO_LID: u32 = 3;
        let mut wanted: LinkRecord = request.record()?;
        let mut rows = Rows::new(&self.config.limits);
        let nodes = self.nodes(request, wanted.from_lid);
        wanted.from_lid = self.base_lid(wanted.from_lid);
        if request.has(TO_LID) {
            wanted.to_lid = self.base_lid(wanted.to_lid);
        }
        for (id, node) in nodes {
            for (number, port) in &node.ports {
                let Some(peer) = port.peer.filter(|peer| port.is_up() && self.sees(request, peer.node))
                else {
                    continue;
                };
                let record = LinkRecord {
                    from_lid: self.lid_of(id, *number),
                    from_port: *number,
                    to_port: peer.port,
                    to_lid: self.lid_of(peer.node, peer.port),
                };
                select(&mut rows, request, &record, &wanted)?;
            }
        }
        Ok(rows)
    }

    pub(super) fn guid_info_records(&self, request: &Request<'_>) -> Result<Rows, MadStatus> {
        let mut wanted: GuidInfoRecord = request.record()?;
        let mut rows = Rows::new(&self.config.limits);
        let nodes = self.nodes(request, wanted.lid);
        wanted.lid = self.base_lid(wanted.lid);
        for (_, node) in nodes {
            for (_, port) in node.end_ports() {
                for block_num in 0..guid_blocks(port) {
                    let record =
                        GuidInfoRecord { lid: port.info.lid, block_num, guids: guid_block(port, block_num) };
                    select(&mut rows, request, &record, &wanted)?;
                }
            }
        }
        Ok(rows)
    }

    pub(super) fn p_key_records(&self, request: &Request<'_>) -> Result<Rows, MadStatus> {
        const ENTRIES: usize = 32;
        if !request.is_trusted {
            return Err(status::INVALID);
        }
        let mut wanted: PKeyTableRecord = request.record()?;
        let mut rows = Rows::new(&self.config.limits);
        let nodes = self.nodes(request, wanted.lid);
        wanted.lid = self.base_lid(wanted.lid);
        for (id, node) in nodes {
            for (number, port) in &node.ports {
                if port.peer.is_none() && *number != 0 {
                    continue;
                }
                let external = node.is_switch() && *number != 0;
                let cap = match (&node.switch, external) {
                    (Some(switch), true) => switch.info.partition_enforcement_cap,
                    _ => node.info.partition_cap,
                };
                for block in 0..usize::from(cap).div_ceil(ENTRIES) {
                    let entry = |at| port.p_keys.get(block * ENTRIES + at).copied().unwrap_or(PKey(0));
                    let (lid, p_keys) = (self.lid_of(id, *number), array::from_fn(entry));
                    let record = PKeyTableRecord { lid, block_num: block as u16, port_num: *number, p_keys };
                    select(&mut rows, request, &record, &wanted)?;
                }
            }
        }
        Ok(rows)
    }

    pub(super) fn arbitration_records(&self, request: &Request<'_>) -> Result<Rows, MadStatus> {
        let mut wanted: VlArbitrationTableRecord = request.record()?;
        let mut rows = Rows::new(&self.config.limits);
        let nodes = self.nodes(request, wanted.lid);
        wanted.lid = self.base_lid(wanted.lid);
        for (id, node) in nodes {
            for (number, port) in linked(node) {
                let (low, high) = (port.info.vl_arbitration_low_cap, port.info.vl_arbitration_high_cap);
                let there = [low > 0, low > 32, high > 0, high > 32];
                let blocks = (1..).zip(&port.arbitration).zip(there).filter(|(_, there)| *there);
                for ((block, entries), _) in blocks {
                    let (lid, output_port_num) = (self.lid_of(id, number), number);
                    let entries = entries.clone();
                    let record = VlArbitrationTableRecord { lid, output_port_num, block_num: block, entries };
                    select(&mut rows, request, &record, &wanted)?;
                }
            }
        }
        Ok(rows)
    }
}

/// Adds a record if it is what was asked for.
pub(super) fn select<R: Record + Masked>(
    rows: &mut Rows,
    request: &Request<'_>,
    record: &R,
    wanted: &R,
) -> Result<(), MadStatus> {
    match record.matches(wanted, request.header.component_mask) {
        true => rows.push(record),
        false => Ok(()),
    }
}

/// How many blocks of GUIDs a port has.
pub(super) fn guid_blocks(port: &Port) -> u8 {
    port.info.guid_cap.div_ceil(8)
}

/// A block of GUIDs of a port.
pub(super) fn guid_block(port: &Port, block: u8) -> [Guid; 8] {
    array::from_fn(|at| port.guids.get(usize::from(block) * 8 + at).copied().unwrap_or_default())
}

/// The ports of a node that have tables: those with a link, and port 0.
fn linked(node: &Node) -> impl Iterator<Item = (u8, &Port)> {
    node.ports
        .iter()
        .filter(|(number, port)| **number == 0 || port.peer.is_some())
        .map(|(number, port)| (*number, port))
}

fn switches<'a>(nodes: impl Iterator<Item = (usize, &'a Node)>) -> impl Iterator<Item = (usize, &'a Switch)> {
    nodes.filter_map(|(id, node)| Some((id, node.switch.as_ref()?)))
}
