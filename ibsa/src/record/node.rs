//! Nodes: NodeInfo and NodeRecord.

use std::fmt;

use ibwire::mad::AttributeId;
use ibwire::{Guid, Lid};

use super::bits::{be16, be32, be64, byte, bytes};
use super::code::NodeType;
use super::layout::{Masked, Record, layout};
use super::value::Text;

layout! {
    /// NodeInfo (IBTA vol. 1, 14.2.5.3; spec/sa.md 3.2.2).
    pub struct NodeInfo, "NodeInfo", 40 bytes {
        /// Version of the MAD format.
        base_version: u8 = byte(0) => mask(0);
        /// Version of the subnet management class.
        class_version: u8 = byte(1) => mask(1);
        /// What the node is.
        node_type: NodeType = byte(2) => mask(2);
        /// How many ports it has; port 0 of a switch is not counted.
        num_ports: u8 = byte(3) => mask(3);
        /// GUID of the system that the node is part of.
        system_image_guid: Guid = be64(4) => mask(4);
        /// GUID of the node.
        node_guid: Guid = be64(12) => mask(5);
        /// GUID of this port; of a switch, of its port 0.
        port_guid: Guid = be64(20) => mask(6);
        /// How many P_Keys each port can hold.
        partition_cap: u16 = be16(28) => mask(7);
        /// The vendor's number of the device.
        device_id: u16 = be16(30) => mask(8);
        /// Revision of the device.
        revision: u32 = be32(32) => mask(9);
        /// Number of this port.
        local_port_num: u8 = be32(36).bits(31, 24) => mask(10);
        /// The vendor, 24 bits.
        vendor_id: u32 = be32(36).bits(23, 0) => mask(11);
    }
}

impl NodeInfo {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}, port {} of {}", self.node_type, self.node_guid, self.local_port_num, self.num_ports)
    }
}

layout! {
    /// NodeRecord (spec/sa.md 3.2): one for each end port, that is each port of a CA and port 0 of a switch.
    pub struct NodeRecord, "NodeRecord", 108 bytes {
        /// The port's base LID; in a query any of its LIDs.
        lid: Lid = be16(0) => mask(0);
        /// The node and this port of it.
        node_info: NodeInfo = bytes(4, 40) => inner(2);
        /// What its owner calls it.
        node_description: Text<64> = bytes(44, 64) => mask(14);
    }
}

impl Record for NodeRecord {
    const ATTRIBUTE: AttributeId = AttributeId(0x0011);

    fn is_named(&self, wanted: &Self, mask: u64) -> bool {
        self.matches(wanted, mask & (0b11 << 7))
    }
}

impl NodeRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LID {}, {}, \"{}\"", self.lid.0, self.node_info, self.node_description)
    }
}
