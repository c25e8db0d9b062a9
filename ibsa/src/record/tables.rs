//! Tables of a port or switch: forwarding, SL to VL, arbitration, P_Keys, GUIDs.

use std::fmt;

use ibwire::mad::AttributeId;
use ibwire::{Guid, Lid, PKey, ServiceLevel};

use super::bits::{be16, byte, bytes};
use super::layout::{Masked, Record, layout};

/// Shows how many entries of a block are in use.
fn used<T>(entries: &[T], in_use: impl Fn(&T) -> bool) -> usize {
    entries.iter().filter(|entry| in_use(entry)).count()
}

layout! {
    /// SLtoVLMappingTableRecord (spec/sa.md 3.5): on which VL packets of each SL leave.
    pub struct Sl2VlTableRecord, "SL2VLTableRecord", 16 bytes {
        /// The port's LID.
        lid: Lid = be16(0) => mask(0);
        /// The port by which packets come in; 0 at a CA.
        input_port_num: u8 = byte(2) => mask(1);
        /// The port by which they leave.
        output_port_num: u8 = byte(3) => mask(2);
        /// The VL of SL 0, 1, 2 and so on, 4 bits each; 15 drops the packet.
        vls: [u8; 16] = bytes(8, 8) => unmasked;
    }
}

impl Sl2VlTableRecord {
    /// The VL of this SL; `None`: such packets are dropped.
    pub fn vl(&self, sl: ServiceLevel) -> Option<u8> {
        Some(self.vls[usize::from(sl.get())]).filter(|vl| *vl != 15)
    }

    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "LID {} port {} to {}: VLs {:?}",
            self.lid.0, self.input_port_num, self.output_port_num, self.vls
        )
    }
}

impl Record for Sl2VlTableRecord {
    const ATTRIBUTE: AttributeId = AttributeId(0x0013);

    fn is_named(&self, wanted: &Self, mask: u64) -> bool {
        self.matches(wanted, mask & (0b11 << 1))
    }
}

layout! {
    /// LinearForwardingTableRecord (spec/sa.md 3.6.1): 64 entries of a switch's table.
    pub struct LftRecord, "LFTRecord", 72 bytes {
        /// The switch's LID.
        lid: Lid = be16(0) => mask(0);
        /// Which 64 entries.
        block_num: u16 = be16(2) => mask(1);
        /// The port towards LID 64 x block and the following; 255 is no way.
        ports: [u8; 64] = bytes(8, 64) => unmasked;
    }
}

impl LftRecord {
    /// The port towards `lid`, if that is in this block and there is a way.
    pub fn port(&self, lid: Lid) -> Option<u8> {
        let within = usize::from(lid.0).checked_sub(64 * usize::from(self.block_num))?;
        self.ports.get(within).copied().filter(|port| *port != 255)
    }

    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = used(&self.ports, |port| *port != 255);
        write!(f, "LID {} block {}: {used} routes", self.lid.0, self.block_num)
    }
}

impl Record for LftRecord {
    const ATTRIBUTE: AttributeId = AttributeId(0x0015);

    fn is_named(&self, wanted: &Self, mask: u64) -> bool {
        self.matches(wanted, mask & (1 << 1))
    }
}

layout! {
    /// An entry of a random forwarding table (spec/sa.md 3.6.2).
    pub struct RandomRoute, "RandomRoute", 4 bytes {
        /// The first LID.
        lid: Lid = be16(0) => unmasked;
        /// Whether the entry counts.
        valid: bool = byte(2).bits(7, 7) => unmasked;
        /// It is for 2^LMC LIDs.
        lmc: u8 = byte(2).bits(6, 4) => unmasked;
        /// The port towards them.
        port: u8 = byte(3) => unmasked;
    }
}

impl RandomRoute {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.valid {
            true => write!(f, "LID {} (LMC {}) by port {}", self.lid.0, self.lmc, self.port),
            false => f.write_str("unused"),
        }
    }
}

layout! {
    /// RandomForwardingTableRecord (spec/sa.md 3.6.2): 16 entries of a switch's table.
    pub struct RftRecord, "RFTRecord", 72 bytes {
        /// The switch's LID.
        lid: Lid = be16(0) => mask(0);
        /// Which 16 entries.
        block_num: u16 = be16(2) => mask(1);
        /// The entries.
        routes: [RandomRoute; 16] = bytes(8, 64) => unmasked;
    }
}

impl RftRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = used(&self.routes, |route| route.valid);
        write!(f, "LID {} block {}: {used} routes", self.lid.0, self.block_num)
    }
}

impl Record for RftRecord {
    const ATTRIBUTE: AttributeId = AttributeId(0x0016);

    fn is_named(&self, wanted: &Self, mask: u64) -> bool {
        self.matches(wanted, mask & (1 << 1))
    }
}

layout! {
    /// MulticastForwardingTableRecord (spec/sa.md 3.6.3): 32 entries of a switch's table.
    pub struct MftRecord, "MFTRecord", 72 bytes {
        /// The switch's LID.
        lid: Lid = be16(0) => mask(0);
        /// Which 16 ports: 16 x position and the following, 4 bits.
        position: u8 = be16(2).bits(15, 12) => mask(1);
        /// Which 32 MLIDs: 0xC000 + 32 x block and the following, 9 bits.
        block_num: u16 = be16(2).bits(8, 0) => mask(3);
        /// The ports of each MLID, a bit each.
        port_masks: [u16; 32] = bytes(8, 64) => unmasked;
    }
}

impl MftRecord {
    /// The ports of `mlid` that this block tells of.
    pub fn ports(&self, mlid: Lid) -> impl Iterator<Item = u8> + use<> {
        let within = usize::from(mlid.0).checked_sub(0xc000 + 32 * usize::from(self.block_num));
        let mask = within.and_then(|within| self.port_masks.get(within)).copied().unwrap_or(0);
        let first = self.position << 4;
        (0..16).filter(move |bit| mask >> bit & 1 != 0).map(move |bit| first + bit)
    }

    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = used(&self.port_masks, |mask| *mask != 0);
        write!(f, "LID {} block {} position {}: {used} groups", self.lid.0, self.block_num, self.position)
    }
}

impl Record for MftRecord {
    const ATTRIBUTE: AttributeId = AttributeId(0x0017);

    fn is_named(&self, wanted: &Self, mask: u64) -> bool {
        self.matches(wanted, mask & (1 << 1 | 1 << 3))
    }
}

layout! {
    /// P_KeyTableRecord (spec/sa.md 3.11): 32 P_Keys of a port. SAs show it only to who knows the SM_Key.
    pub struct PKeyTableRecord, "P_KeyTableRecord", 72 bytes {
        /// The port's LID.
        lid: Lid = be16(0) => mask(0);
        /// Which 32 entries.
        block_num: u16 = be16(2) => mask(1);
        /// Number of the port, at a switch.
        port_num: u8 = byte(4) => mask(2);
        /// The P_Keys; 0 is no entry.
        p_keys: [PKey; 32] = bytes(8, 64) => unmasked;
    }
}

impl PKeyTableRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LID {} port {} block {}:", self.lid.0, self.port_num, self.block_num)?;
        self.p_keys.iter().filter(|p_key| p_key.0 != 0).try_for_each(|p_key| write!(f, " {p_key}"))
    }
}

impl Record for PKeyTableRecord {
    const ATTRIBUTE: AttributeId = AttributeId(0x0033);

    fn is_named(&self, wanted: &Self, mask: u64) -> bool {
        self.matches(wanted, mask & (0b11 << 1))
    }
}

layout! {
    /// An entry of an arbitration table (spec/sa.md 3.12).
    pub struct VlWeight, "VLWeight", 2 bytes {
        /// The VL, 4 bits.
        vl: u8 = byte(0).bits(3, 0) => unmasked;
        /// How much it may send in its turn, in units of 64 bytes; 0 is no entry.
        weight: u8 = byte(1) => unmasked;
    }
}

impl VlWeight {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VL {}: {}", self.vl, self.weight)
    }
}

layout! {
    /// VLArbitrationTableRecord (spec/sa.md 3.12): 32 entries of an outgoing port.
    pub struct VlArbitrationTableRecord, "VLArbitrationTableRecord", 72 bytes {
        /// The port's LID.
        lid: Lid = be16(0) => mask(0);
        /// The port by which packets leave.
        output_port_num: u8 = byte(2) => mask(1);
        /// Which entries: 1 and 2 are the two halves of the low priority table, 3 and 4 of the high priority one.
        block_num: u8 = byte(3) => mask(2);
        /// The entries.
        entries: [VlWeight; 32] = bytes(8, 64) => unmasked;
    }
}

impl VlArbitrationTableRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = used(&self.entries, |entry| entry.weight != 0);
        write!(f, "LID {} port {} block {}: {used} entries", self.lid.0, self.output_port_num, self.block_num)
    }
}

impl Record for VlArbitrationTableRecord {
    const ATTRIBUTE: AttributeId = AttributeId(0x0036);

    fn is_named(&self, wanted: &Self, mask: u64) -> bool {
        self.matches(wanted, mask & (0b11 << 1))
    }
}

layout! {
    /// GUIDInfoRecord (spec/sa.md 3.9): 8 GUIDs of a port. Set and Delete change the alias GUIDs whose bits the mask has.
    pub struct GuidInfoRecord, "GUIDInfoRecord", 72 bytes {
        /// The port's LID.
        lid: Lid = be16(0) => mask(0);
        /// Which 8 GUIDs.
        block_num: u8 = byte(2) => mask(1);
        /// The GUIDs. In a Set 0 lets the SA choose; in the answer 0 says that the GUID was refused.
        guids: [Guid; 8] = bytes(8, 64) => each(4);
    }
}

impl GuidInfoRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LID {} block {}:", self.lid.0, self.block_num)?;
        self.guids.iter().filter(|guid| guid.0 != 0).try_for_each(|guid| write!(f, " {guid}"))
    }
}

impl Record for GuidInfoRecord {
    const ATTRIBUTE: AttributeId = AttributeId(0x0030);

    fn is_named(&self, wanted: &Self, mask: u64) -> bool {
        self.matches(wanted, mask & (1 << 1))
    }
}
