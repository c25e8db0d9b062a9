//! Switches: SwitchInfo and SwitchInfoRecord.

use std::fmt;

use ibwire::mad::AttributeId;
use ibwire::{Lid, TimeCode};

use super::bits::{be16, byte, bytes};
use super::layout::{Record, layout};

layout! {
    /// SwitchInfo (IBTA vol. 1, 14.2.5.4; spec/sa.md 3.3.2).
    pub struct SwitchInfo, "SwitchInfo", 20 bytes {
        /// Entries of the linear forwarding table.
        linear_fdb_cap: u16 = be16(0) => mask(0);
        /// Entries of the random forwarding table.
        random_fdb_cap: u16 = be16(2) => mask(1);
        /// Entries of the multicast forwarding table.
        multicast_fdb_cap: u16 = be16(4) => mask(2);
        /// The highest LID of the linear forwarding table that is in use.
        linear_fdb_top: u16 = be16(6) => mask(3);
        /// Where packets go that the random forwarding table does not know.
        default_port: u8 = byte(8) => mask(4);
        /// Where multicast packets of unknown groups go.
        default_multicast_primary_port: u8 = byte(9) => mask(5);
        /// Where multicast packets go that came in by that port.
        default_multicast_not_primary_port: u8 = byte(10) => mask(6);
        /// How long a packet may stay in the switch.
        life_time: TimeCode = byte(11).bits(7, 3) => mask(7);
        /// Whether the state of a port has changed and the SM has not looked since.
        port_state_change: bool = byte(11).bits(2, 2) => mask(8);
        /// How SL to VL tables can be written at once, 2 bits.
        optimized_sl_to_vl_mapping: u8 = byte(11).bits(1, 0) => mask(9);
        /// How many LIDs the random forwarding table can give a port.
        lids_per_port: u16 = be16(12) => mask(10);
        /// How many P_Keys each port can enforce.
        partition_enforcement_cap: u16 = be16(14) => mask(11);
        /// Whether P_Keys can be enforced on packets that come in.
        inbound_enforcement_cap: bool = byte(16).bits(7, 7) => mask(12);
        /// Whether P_Keys can be enforced on packets that go out.
        outbound_enforcement_cap: bool = byte(16).bits(6, 6) => mask(13);
        /// Whether raw packets that come in can be filtered.
        filter_raw_inbound_cap: bool = byte(16).bits(5, 5) => mask(14);
        /// Whether raw packets that go out can be filtered.
        filter_raw_outbound_cap: bool = byte(16).bits(4, 4) => mask(15);
        /// Whether port 0 is a full end port.
        enhanced_port0: bool = byte(16).bits(3, 3) => mask(16);
        /// The highest MLID of the multicast forwarding table that is in use.
        multicast_fdb_top: Lid = be16(18) => mask(18);
    }
}

impl SwitchInfo {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "linear table up to LID {} of {}, multicast table of {}, life time {}",
            self.linear_fdb_top, self.linear_fdb_cap, self.multicast_fdb_cap, self.life_time
        )
    }
}

layout! {
    /// SwitchInfoRecord (spec/sa.md 3.3). Of the mask's bits above 1 no SA is known to use any.
    pub struct SwitchInfoRecord, "SwitchInfoRecord", 24 bytes {
        /// The switch's LID.
        lid: Lid = be16(0) => mask(0);
        /// What it can do.
        switch_info: SwitchInfo = bytes(4, 20) => inner(2);
    }
}

impl Record for SwitchInfoRecord {
    const ATTRIBUTE: AttributeId = AttributeId(0x0014);
}

impl SwitchInfoRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LID {}, {}", self.lid.0, self.switch_info)
    }
}
