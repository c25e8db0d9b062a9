//! Virtual lanes: which one packets take, and how often each has its turn.

use ibsa::record::{Layout, VlWeight};
use ibwire::mad::Method;

use super::smp::attribute;
use super::{Purpose, SubnetManager};
use crate::manager::topology::{PortAt, Topology};

/// The same for all links of a subnet. Without one every SL takes VL 0, and ports keep their arbitration tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qos {
    /// The VL of each SL; 15 drops its packets. Where a link has fewer VLs, those that it lacks are counted from 0 again.
    pub vls: [u8; 16],
    /// VLs and their weights, at most 32 entries: those of low priority.
    pub low: Vec<VlWeight>,
    /// Those of high priority.
    pub high: Vec<VlWeight>,
    /// How much of high priority goes before low priority has a turn, in units of 4096 bytes; 0 is one packet, 255 everything.
    pub high_limit: u8,
}

/// Entries of a block of an arbitration table.
const ENTRIES: usize = 32;
/// The blocks of both tables, as they are numbered.
const LOW: u8 = 1;
const HIGH: u8 = 3;

impl SubnetManager {
    /// What each link is to do with VLs.
    pub(super) fn set_lanes(&self, topology: &mut Topology) {
        let Some(qos) = &self.config.qos else { return };
        for port in topology.nodes.iter_mut().flat_map(|node| node.ports.values_mut()) {
            let lanes = match port.info.operational_vls {
                0 | 1 => 1,
                2 => 2,
                3 => 4,
                4 => 8,
                _ => 15,
            };
            port.vls = qos.vls.map(|vl| if vl == 15 { 15 } else { vl % lanes });
            port.info.vl_high_limit = qos.high_limit;
            let block =
                |entries: &[VlWeight]| std::array::from_fn(|at| entries.get(at).cloned().unwrap_or_default());
            port.arbitration[usize::from(LOW) - 1] = block(&qos.low);
            port.arbitration[usize::from(HIGH) - 1] = block(&qos.high);
        }
    }

    /// Writes the tables of all ports that have a link.
    pub(super) fn write_lanes(&mut self, topology: &Topology) {
        if self.config.qos.is_none() {
            return;
        }
        for (node, it) in topology.nodes.iter().enumerate() {
            let linked = || it.ports.iter().filter(|(number, port)| **number != 0 && port.peer.is_some());
            for (&number, port) in linked() {
                let Some(path) = self.path_to(topology, PortAt { node, port: number }) else { continue };
                let out = u32::from(if it.is_switch() { number } else { 0 });
                for block in [LOW, HIGH] {
                    let mut data = [0; 2 * ENTRIES];
                    let entries = &port.arbitration[usize::from(block) - 1];
                    data.chunks_exact_mut(2).zip(entries).for_each(|(raw, entry)| entry.write_to(raw));
                    let modifier = u32::from(block) << 16 | out;
                    let id = attribute::VL_ARBITRATION;
                    self.ask(Method::SET, id, modifier, &path, &data, Purpose::Write);
                }
                let mut data = [0; 8];
                for (raw, pair) in data.iter_mut().zip(port.vls.chunks_exact(2)) {
                    *raw = pair[0] << 4 | pair[1];
                }
                // Of a switch one for each port by which packets come in, its own included.
                let entered: Vec<u8> = match it.is_switch() {
                    true => std::iter::once(0).chain(linked().map(|(number, _)| *number)).collect(),
                    false => vec![0],
                };
                for from in entered {
                    let modifier = u32::from(from) << 8 | out;
                    self.ask(Method::SET, attribute::SL_TO_VL, modifier, &path, &data, Purpose::Write);
                }
            }
        }
    }
}
