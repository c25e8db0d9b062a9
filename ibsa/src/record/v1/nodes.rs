//! Records of nodes, ports, switches and links.

use std::fmt;

use ibwire::mad::AttributeId;
use ibwire::{Guid, Lid, PKey};

use crate::record::bits::{be16, be32, byte, bytes};
use crate::record::layout::{Layout, Record, layout};
use crate::record::tables::{RandomRoute, VlWeight};
use crate::record::value::{Text, number};
use crate::record::{NodeInfo, Notice, PortInfo, SmInfoRecord as SmInfoToday, SwitchInfo};

/// The name of a record: a LID, a port, and a number among the records of that port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Rid(pub u32);

impl Rid {
    /// The RID of these.
    pub const fn new(lid: Lid, port: u8, enumeration: u8) -> Self {
        Self((lid.0 as u32) << 16 | (port as u32) << 8 | enumeration as u32)
    }

    /// The LID.
    pub const fn lid(self) -> Lid {
        Lid((self.0 >> 16) as u16)
    }

    /// The port; in RIDs of forwarding tables the upper half of the block number.
    pub const fn port(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// The number; in RIDs of forwarding tables the lower half of the block number.
    pub const fn enumeration(self) -> u8 {
        self.0 as u8
    }

    /// The block number in RIDs of forwarding tables.
    pub const fn block(self) -> u16 {
        self.0 as u16
    }
}

impl fmt::Display for Rid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LID {} port {} #{}", self.lid().0, self.port(), self.enumeration())
    }
}

number! { Rid: |raw| Rid(raw as u32), |value: &Rid| u64::from(value.0); }

layout! {
    /// NodeRecord of class version 1.
    pub struct NodeRecord, "NodeRecord (1.0a)", 108 bytes {
        /// Name of the record.
        node_rid: Rid = be32(0) => mask(0);
        /// The node.
        node_info: NodeInfo = bytes(4, 40) => unmasked;
        /// What its owner calls it.
        node_description: Text<64> = bytes(44, 64) => mask(2);
    }
}

impl NodeRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, \"{}\"", self.node_rid, self.node_info, self.node_description)
    }
}

layout! {
    /// PortInfoRecord of class version 1. Its PortInfo ended before today's.
    pub struct PortInfoRecord, "PortInfoRecord (1.0a)", 58 bytes {
        /// Name of the NodeRecord.
        node_rid: Rid = be32(0) => mask(0);
        /// The first 54 bytes of PortInfo; see [`port_info`](Self::port_info).
        raw: [u8; 54] = bytes(4, 54) => unmasked;
    }
}

impl PortInfoRecord {
    /// The port, fields that came later all zero.
    pub fn port_info(&self) -> PortInfo {
        let mut whole = [0; PortInfo::LEN];
        whole[..self.raw.len()].copy_from_slice(&self.raw);
        PortInfo::read_from(&whole)
    }

    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.node_rid, self.port_info())
    }
}

layout! {
    /// SLToVLMappingTableRecord of class version 1. The RID's port is where packets come in, its number where they leave.
    pub struct SlToVlMappingTableRecord, "SLToVLMappingTableRecord (1.0a)", 16 bytes {
        /// Name of the record.
        slvl_rid: Rid = be32(0) => mask(0);
        /// Name of the NodeRecord.
        node_rid: Rid = be32(4) => mask(1);
        /// The VL of SL 0, 1, 2 and so on, 4 bits each.
        vls: [u8; 16] = bytes(8, 8) => unmasked;
    }
}

impl SlToVlMappingTableRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: VLs {:?}", self.slvl_rid, self.vls)
    }
}

layout! {
    /// SwitchInfoRecord of class version 1. Its SwitchInfo ended before today's.
    pub struct SwitchInfoRecord, "SwitchInfoRecord (1.0a)", 21 bytes {
        /// Name of the NodeRecord.
        node_rid: Rid = be32(0) => mask(0);
        /// The first 16 bytes of SwitchInfo; see [`switch_info`](Self::switch_info).
        raw: [u8; 16] = bytes(4, 16) => unmasked;
        /// The four capabilities of enforcing and filtering that end it.
        capabilities: u8 = byte(20).bits(7, 4) => unmasked;
    }
}

impl SwitchInfoRecord {
    /// The switch, fields that came later all zero.
    pub fn switch_info(&self) -> SwitchInfo {
        let mut whole = [0; SwitchInfo::LEN];
        whole[..16].copy_from_slice(&self.raw);
        whole[16] = self.capabilities << 4;
        SwitchInfo::read_from(&whole)
    }

    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.node_rid, self.switch_info())
    }
}

layout! {
    /// LinearForwardingTableRecord of class version 1.
    pub struct LinearForwardingTableRecord, "LinearForwardingTableRecord (1.0a)", 72 bytes {
        /// Name of the record, with the block number.
        linear_fdb_rid: Rid = be32(0) => mask(0);
        /// Name of the NodeRecord.
        node_rid: Rid = be32(4) => mask(1);
        /// The port towards LID 64 x block and the following.
        ports: [u8; 64] = bytes(8, 64) => unmasked;
    }
}

impl LinearForwardingTableRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        block(f, self.linear_fdb_rid)
    }
}

layout! {
    /// RandomForwardingTableRecord of class version 1.
    pub struct RandomForwardingTableRecord, "RandomForwardingTableRecord (1.0a)", 72 bytes {
        /// Name of the record, with the block number.
        random_fdb_rid: Rid = be32(0) => mask(0);
        /// Name of the NodeRecord.
        node_rid: Rid = be32(4) => mask(1);
        /// The entries.
        routes: [RandomRoute; 16] = bytes(8, 64) => unmasked;
    }
}

impl RandomForwardingTableRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        block(f, self.random_fdb_rid)
    }
}

layout! {
    /// MulticastForwardingTableRecord of class version 1. The RID's low 16 bits are position (4), block (10) and 0 (2).
    pub struct MulticastForwardingTableRecord, "MulticastForwardingTableRecord (1.0a)", 72 bytes {
        /// Name of the record.
        mcast_rid: Rid = be32(0) => mask(0);
        /// Name of the NodeRecord.
        node_rid: Rid = be32(4) => mask(1);
        /// The ports of each MLID, a bit each.
        port_masks: [u16; 32] = bytes(8, 64) => unmasked;
    }
}

impl MulticastForwardingTableRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        block(f, self.mcast_rid)
    }
}

fn block(f: &mut fmt::Formatter<'_>, rid: Rid) -> fmt::Result {
    write!(f, "LID {} block {:#06x}", rid.lid().0, rid.block())
}

layout! {
    /// VLArbitrationTableRecord of class version 1. The RID's number is which part of the table it is.
    pub struct VlArbitrationTableRecord, "VLArbitrationTableRecord (1.0a)", 72 bytes {
        /// Name of the record.
        vl_arb_rid: Rid = be32(0) => mask(0);
        /// Name of the NodeRecord.
        node_rid: Rid = be32(4) => mask(1);
        /// The entries.
        entries: [VlWeight; 32] = bytes(8, 64) => unmasked;
    }
}

impl VlArbitrationTableRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: arbitration", self.vl_arb_rid)
    }
}

layout! {
    /// SMInfoRecord of class version 1.
    pub struct SmInfoRecord, "SMInfoRecord (1.0a)", 25 bytes {
        /// Name of the NodeRecord.
        node_rid: Rid = be32(0) => mask(0);
        /// SMInfo; see [`sm_info`](Self::sm_info).
        raw: [u8; 21] = bytes(4, 21) => unmasked;
    }
}

impl SmInfoRecord {
    /// The subnet manager as today's record shows it.
    pub fn sm_info(&self) -> SmInfoToday {
        let mut whole = [0; SmInfoToday::LEN];
        whole[..2].copy_from_slice(&self.node_rid.lid().0.to_be_bytes());
        whole[4..].copy_from_slice(&self.raw);
        SmInfoToday::read_from(&whole)
    }

    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.sm_info())
    }
}

layout! {
    /// PartitionRecord of class version 1, today's P_KeyTableRecord.
    pub struct PartitionRecord, "PartitionRecord (1.0a)", 72 bytes {
        /// Name of the record.
        partition_rid: Rid = be32(0) => mask(0);
        /// Name of the NodeRecord.
        node_rid: Rid = be32(4) => mask(1);
        /// The P_Keys; 0 is no entry.
        p_keys: [PKey; 32] = bytes(8, 64) => unmasked;
    }
}

impl PartitionRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.partition_rid)?;
        self.p_keys.iter().filter(|p_key| p_key.0 != 0).try_for_each(|p_key| write!(f, " {p_key}"))
    }
}

layout! {
    /// InformRecord of class version 1.
    pub struct InformRecord, "InformRecord (1.0a)", 51 bytes {
        /// Name of the record.
        inform_rid: Rid = be32(0) => mask(0);
        /// Name of the NodeRecord.
        node_rid: Rid = be32(4) => mask(1);
        /// The subscription, whose layout is not known.
        inform: [u8; 43] = bytes(8, 43) => unmasked;
    }
}

impl InformRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: subscription", self.inform_rid)
    }
}

layout! {
    /// NoticeRecord of class version 1.
    pub struct NoticeRecord, "NoticeRecord (1.0a)", 72 bytes {
        /// Name of the record.
        notice_rid: Rid = be32(0) => mask(0);
        /// Name of the NodeRecord.
        node_rid: Rid = be32(4) => mask(1);
        /// The notice, without the GID that follows today; see [`notice`](Self::notice).
        raw: [u8; 64] = bytes(8, 64) => unmasked;
    }
}

impl NoticeRecord {
    /// The notice.
    pub fn notice(&self) -> Notice {
        let mut whole = [0; Notice::LEN];
        whole[..self.raw.len()].copy_from_slice(&self.raw);
        Notice::read_from(&whole)
    }

    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.notice_rid, self.notice())
    }
}

layout! {
    /// LinkRecord of class version 1.
    pub struct LinkRecord, "LinkRecord (1.0a)", 10 bytes {
        /// Name of the record.
        link_rid: Rid = be32(0) => mask(0);
        /// LID of the node at this end.
        from_lid: Lid = be16(4) => mask(1);
        /// LID of the node at the other end.
        to_lid: Lid = be16(6) => mask(2);
        /// The port at this end.
        from_port: u8 = byte(8) => mask(3);
        /// The port at the other end.
        to_port: u8 = byte(9) => mask(4);
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

layout! {
    /// GuidInfoRecord of class version 1.
    pub struct GuidInfoRecord, "GuidInfoRecord (1.0a)", 72 bytes {
        /// Name of the record.
        guid_info_rid: Rid = be32(0) => mask(0);
        /// Name of the NodeRecord.
        node_rid: Rid = be32(4) => mask(1);
        /// The GUIDs.
        guids: [Guid; 8] = bytes(8, 64) => unmasked;
    }
}

impl GuidInfoRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.guid_info_rid)?;
        self.guids.iter().filter(|guid| guid.0 != 0).try_for_each(|guid| write!(f, " {guid}"))
    }
}

/// The attribute IDs that today's records have kept.
macro_rules! records {
    ($($record:ident = $id:literal;)*) => { $(
        impl Record for $record {
            const ATTRIBUTE: AttributeId = AttributeId($id);
        }
    )* };
}
pub(super) use records;

records! {
    NodeRecord = 0x0011;
    PortInfoRecord = 0x0012;
    SlToVlMappingTableRecord = 0x0013;
    SwitchInfoRecord = 0x0014;
    LinearForwardingTableRecord = 0x0015;
    RandomForwardingTableRecord = 0x0016;
    MulticastForwardingTableRecord = 0x0017;
    SmInfoRecord = 0x0018;
    LinkRecord = 0x0020;
    GuidInfoRecord = 0x0030;
    PartitionRecord = 0x0033;
    VlArbitrationTableRecord = 0x0036;
    InformRecord = 0x00f3;
}
