//! Multicast trees: as members come and go, the tables of the switches follow.

use std::array;
use std::collections::BTreeSet;

use ibsa::record::{Layout, SwitchInfo};
use ibwire::Lid;
use ibwire::mad::Method;

use super::smp::attribute;
use super::{Purpose, SubnetManager};
use crate::manager::routing::{MulticastTree, Routing};
use crate::manager::sa::GroupTree;
use crate::manager::topology::{Node, NodeId, PortAt, Topology};

/// Entries of a block of a multicast forwarding table.
const BLOCK: u16 = 32;
const FIRST_MLID: u16 = 0xc000;
/// MLIDs that there are, however long a switch's table is.
const MLIDS: u16 = 0x3fff;

impl SubnetManager {
    /// Writes the trees of the groups that have changed. Whether there were any.
    pub(super) fn plant_trees(&mut self) -> bool {
        let changed = self.sa.take_changed_groups();
        if changed.is_empty() && self.unsure.is_empty() {
            return false;
        }
        self.plant(&changed);
        true
    }

    /// Every block may be other than it should from now on: there are new switches, or what was written was not answered. So
    /// may those that another manager has written.
    pub(super) fn doubt_trees(&mut self, topology: &Topology) {
        self.unsure.extend(self.written.keys().map(|(_, block, _)| *block));
        self.written.clear();
        let in_use = |node: &Node| {
            let switch = node.switch.as_ref()?;
            let cap = switch.info.multicast_fdb_cap.min(MLIDS);
            let was_here =
                || self.sa.topology().nodes.iter().any(|old| old.info.node_guid == node.info.node_guid);
            let entries = match switch.info.multicast_fdb_top {
                top if node.has_multicast_top() && top != Lid::NONE => {
                    top.0.saturating_add(1).saturating_sub(FIRST_MLID)
                }
                // What others have written was looked for when it came.
                _ if !self.reregister && was_here() => 0,
                _ => cap,
            };
            Some(entries.min(cap))
        };
        let blocks = topology.nodes.iter().filter_map(in_use).max().unwrap_or(0).div_ceil(BLOCK);
        self.unsure.extend(0..blocks);
    }

    /// Writes the trees of these groups.
    pub(super) fn plant(&mut self, groups: &[GroupTree]) {
        let routing = self.routing.take().unwrap_or_else(|| Routing::new(self.sa.topology()));
        for group in groups {
            let Some(index) = group.mlid.0.checked_sub(FIRST_MLID).filter(|_| group.mlid.is_multicast())
            else {
                continue;
            };
            let tree = MulticastTree::new(self.sa.topology(), &routing, &group.receivers, &group.senders);
            self.sa.set_tree(group.mlid, &tree);
            self.unsure.insert(index / BLOCK);
        }
        self.routing = Some(routing);
        for block in std::mem::take(&mut self.unsure) {
            self.write_block(block);
        }
    }

    /// Writes a block of each switch's table, where it is another than before.
    fn write_block(&mut self, block: u16) {
        let mut writes = Vec::new();
        for (node, it) in self.sa.topology().nodes.iter().enumerate() {
            let Some(switch) = &it.switch else { continue };
            let is_in_table = block * BLOCK < switch.info.multicast_fdb_cap;
            for position in 0..=it.info.num_ports / 16 {
                let mask = |at: usize| {
                    let ports: Option<&BTreeSet<u8>> =
                        switch.multicast.get(&Lid(FIRST_MLID + block * BLOCK + at as u16));
                    let here = ports.into_iter().flatten().filter(|port| **port / 16 == position);
                    here.fold(0, |mask, port| mask | 1 << (port % 16))
                };
                let masks: [u16; 32] = array::from_fn(mask);
                // Behind the end of a shorter table than another switch's there is nothing to take back.
                if is_in_table || masks != [0; 32] {
                    writes.push((node, (it.info.node_guid, block, position), masks));
                }
            }
        }
        for (node, key, masks) in writes {
            let before = self.written.insert(key, masks);
            let Some(path) =
                self.paths.get(&PortAt { node, port: 0 }).filter(|_| before != Some(masks)).cloned()
            else {
                continue;
            };
            if masks != [0; 32] {
                self.raise_top(node, &path, block);
            }
            let data: Vec<u8> = masks.iter().flat_map(|mask| mask.to_be_bytes()).collect();
            let modifier = u32::from(key.2) << 28 | u32::from(block);
            self.ask(Method::SET, attribute::MULTICAST_FORWARDING, modifier, &path, &data, Purpose::Write);
        }
    }

    /// Has a switch look up groups in its table as far as this block, if it ends before (MulticastFDBTop). The end never comes
    /// down, so that whoever is master next knows how much is to be looked after.
    fn raise_top(&mut self, node: NodeId, path: &[u8], block: u16) {
        if let Some(info) = self.sa.raise_multicast_top(node, Lid(FIRST_MLID + BLOCK * block + (BLOCK - 1))) {
            // What has changed meanwhile stays said.
            let info = SwitchInfo { port_state_change: false, ..info };
            self.ask(Method::SET, attribute::SWITCH_INFO, 0, path, &info.to_bytes(), Purpose::Write);
        }
    }
}
