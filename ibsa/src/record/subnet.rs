//! The subnet as a whole: subnet managers, links, traces.

use std::fmt;

use ibwire::mad::AttributeId;
use ibwire::{Guid, Lid};

use super::bits::{be16, be32, be64, byte};
use super::code::{NodeType, SmState};
use super::layout::{Masked, Record, layout};

layout! {
    /// SMInfoRecord (spec/sa.md 3.7): a subnet manager.
    pub struct SmInfoRecord, "SMInfoRecord", 25 bytes {
        /// LID of the port where it runs.
        lid: Lid = be16(0) => mask(0);
        /// GUID of that port.
        guid: Guid = be64(4) => mask(2);
        /// Its key; 0 for who may not see it.
        sm_key: u64 = be64(12) => mask(3), secret;
        /// Counts up as long as it lives.
        act_count: u32 = be32(20) => mask(4);
        /// The highest becomes master, 4 bits.
        priority: u8 = byte(24).bits(7, 4) => mask(5);
        /// What it is at the moment.
        sm_state: SmState = byte(24).bits(3, 0) => mask(6);
    }
}

impl SmInfoRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "LID {}, {}, {}, priority {}, count {}",
            self.lid.0, self.guid, self.sm_state, self.priority, self.act_count
        )
    }
}

impl Record for SmInfoRecord {
    const ATTRIBUTE: AttributeId = AttributeId(0x0018);

    fn is_named(&self, wanted: &Self, mask: u64) -> bool {
        // The LID, too: a record is about one port, and there it is the first.
        self.matches(wanted, mask & 0b101)
    }
}

layout! {
    /// LinkRecord (spec/sa.md 3.8): one direction of a cable.
    pub struct LinkRecord, "LinkRecord", 6 bytes {
        /// LID of the node at this end.
        from_lid: Lid = be16(0) => mask(0);
        /// Its port.
        from_port: u8 = byte(2) => mask(1);
        /// The port at the other end.
        to_port: u8 = byte(3) => mask(2);
        /// LID of the node there.
        to_lid: Lid = be16(4) => mask(3);
    }
}

impl LinkRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "LID {} port {} -> LID {} port {}",
            self.from_lid.0, self.from_port, self.to_lid.0, self.to_port
        )
    }
}

impl Record for LinkRecord {
    const ATTRIBUTE: AttributeId = AttributeId(0x0020);

    fn is_named(&self, wanted: &Self, mask: u64) -> bool {
        self.matches(wanted, mask & (0b11 << 1))
    }
}

layout! {
    /// TraceRecord (spec/sa.md 3.16): a node on the way of a path.
    pub struct TraceRecord, "TraceRecord", 46 bytes {
        /// GID prefix of the subnet.
        gid_prefix: u64 = be64(0) => mask(0);
        /// Generation of the IDs: records of two generations do not belong together.
        id_generation: u16 = be16(8) => mask(1);
        /// What the node is.
        node_type: NodeType = byte(11) => mask(3);
        /// The node.
        node_id: u64 = be64(12) => mask(4);
        /// The chassis it is in.
        chassis_id: u64 = be64(20) => mask(5);
        /// The port by which the path enters.
        entry_port_id: u64 = be64(28) => mask(6);
        /// The port by which it leaves.
        exit_port_id: u64 = be64(36) => mask(7);
        /// Number of the port by which it enters.
        entry_port: u8 = byte(44) => mask(8);
        /// Number of the port by which it leaves.
        exit_port: u8 = byte(45) => mask(9);
    }
}

impl TraceRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {:#018x}, in by port {}, out by port {}",
            self.node_type, self.node_id, self.entry_port, self.exit_port
        )
    }
}

impl Record for TraceRecord {
    const ATTRIBUTE: AttributeId = AttributeId(0x0039);
}
