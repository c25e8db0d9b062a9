//! Records of services, groups, paths and LID ranges.

use std::fmt;

use ibwire::mad::AttributeId;
use ibwire::{FlowLabel, Gid, Guid, Lid, Mtu, PKey, PacketLifeTime, Rate, Selector, ServiceLevel};

use super::nodes::{Rid, records};
use crate::record::bits::{be16, be32, be64, byte, bytes};
use crate::record::layout::{Record, layout};
use crate::record::value::Text;

layout! {
    /// ServiceRecord of class version 1: GID and service ID are text.
    pub struct ServiceRecord, "ServiceRecord (1.0a)", 192 bytes {
        /// Name of the record.
        service_rid: Rid = be32(0) => mask(0);
        /// For how long, seconds.
        service_lease: u32 = be32(4) => mask(1);
        /// The partition.
        partition: PKey = be16(8) => mask(2);
        /// Flags that the service defines, 12 bits.
        service_specific_flags: u16 = be16(10).bits(15, 4) => mask(3);
        /// Flags that are the same for all, 4 bits.
        service_generic_flags: u8 = be16(10).bits(3, 0) => mask(4);
        /// UTF-8 name.
        service_name: Text<124> = bytes(12, 124) => mask(5);
        /// The port's GID, as text.
        service_gid: Text<40> = bytes(136, 40) => mask(6);
        /// The service, as 16 hexadecimal digits.
        service_id: Text<16> = bytes(176, 16) => mask(7);
    }
}

impl ServiceRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} \"{}\" at {}, P_Key {}, for {} s",
            self.service_id, self.service_name, self.service_gid, self.partition, self.service_lease
        )
    }
}

layout! {
    /// RangeRecord: the LIDs that an SM may give.
    pub struct RangeRecord, "RangeRecord (1.0a)", 20 bytes {
        /// Name of the record.
        range_rid: Rid = be32(0) => mask(0);
        /// Name of the NodeRecord.
        node_rid: Rid = be32(4) => mask(1);
        /// GUID of the SM that the range was given to.
        fm_assigned: Guid = be64(8) => mask(2);
        /// First LID.
        from_range: Lid = be16(16) => mask(3);
        /// Last LID.
        to_range: Lid = be16(18) => mask(4);
    }
}

impl RangeRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: LID {} to {}", self.fm_assigned, self.from_range.0, self.to_range.0)
    }
}

layout! {
    /// MCGroupRecord: a multicast group. The Q_Key has 16 bits, as the text of 1.0a prints it and calls it an error.
    pub struct McGroupRecord, "MCGroupRecord (1.0a)", 32 bytes {
        /// Name of the record.
        mc_group_rid: Rid = be32(0) => mask(0);
        /// The group.
        mgid: Gid = bytes(4, 16) => mask(1);
        /// Q_Key of the group.
        q_key: u16 = be16(20) => mask(2);
        /// LID of the group.
        mlid: Lid = be16(22) => mask(3);
        /// MTU of the group.
        mtu: Mtu = byte(24) => mask(4);
        /// Traffic class.
        traffic_class: u8 = byte(25) => mask(5);
        /// Partition.
        p_key: PKey = be16(26) => mask(6);
        /// Whether the group is for raw packets.
        raw_traffic: bool = be32(28).bits(31, 31) => mask(7);
        /// Flow label.
        flow_label: FlowLabel = be32(28).bits(27, 8) => mask(9);
        /// Hop limit.
        hop_limit: u8 = be32(28).bits(7, 0) => mask(10);
    }
}

impl McGroupRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MLID {:#06x}, P_Key {}, MTU {}", self.mgid, self.mlid.0, self.p_key, self.mtu)
    }
}

layout! {
    /// MCMemberRecord of class version 1: a port in a group.
    pub struct McMemberRecord, "MCMemberRecord (1.0a)", 35 bytes {
        /// Name of the record.
        mc_member_rid: Rid = be32(0) => mask(0);
        /// The group.
        mgid: Gid = bytes(4, 16) => mask(1);
        /// Q_Key of the group.
        q_key: u16 = be16(20) => mask(2);
        /// LID of the group.
        mlid: Lid = be16(22) => mask(3);
        /// LID of the member.
        llid: Lid = be16(24) => mask(4);
        /// Traffic class, of 16 bits as printed.
        traffic_class: u16 = be16(26) => mask(5);
        /// Whether the group is for raw packets.
        raw_traffic: bool = be32(28).bits(31, 31) => mask(6);
        /// Flow label.
        flow_label: FlowLabel = be32(28).bits(27, 8) => mask(8);
        /// Hop limit.
        hop_limit: u8 = be32(28).bits(7, 0) => mask(9);
        /// Partition.
        p_key: PKey = be16(32) => mask(10);
        /// Service level.
        sl: ServiceLevel = byte(34).bits(3, 0) => mask(12);
    }
}

impl McMemberRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} MLID {:#06x}, LID {}, P_Key {}, SL {}",
            self.mgid, self.mlid.0, self.llid.0, self.p_key, self.sl
        )
    }
}

layout! {
    /// PathRecord of class version 1: SL is a mask, bit i for SL i.
    pub struct PathRecord, "PathRecord (1.0a)", 64 bytes {
        /// Name of the record.
        path_rid: Rid = be32(0) => mask(0);
        /// Where the path ends.
        dgid: Gid = bytes(8, 16) => mask(2);
        /// Where it begins.
        sgid: Gid = bytes(24, 16) => mask(3);
        /// LID where it ends.
        dlid: Lid = be16(40) => mask(4);
        /// LID where it begins.
        slid: Lid = be16(42) => mask(5);
        /// Whether it is for raw packets.
        raw_traffic: bool = be32(44).bits(31, 31) => mask(6);
        /// Flow label.
        flow_label: FlowLabel = be32(44).bits(27, 8) => mask(8);
        /// Hop limit.
        hop_limit: u8 = be32(44).bits(7, 0) => mask(9);
        /// Traffic class.
        traffic_class: u8 = byte(48) => mask(10);
        /// At most so many paths, 7 bits.
        num_paths: u8 = byte(49).bits(6, 0) => mask(12);
        /// Partition.
        p_key: PKey = be16(50) => mask(13);
        /// Service levels, a bit each.
        sls: u16 = be16(52) => mask(14);
        /// How the MTU compares.
        mtu_selector: Selector = byte(54).bits(7, 6) => selector;
        /// Path MTU.
        mtu: Mtu = byte(54).bits(5, 0) => selected(mtu_selector, 15);
        /// How the rate compares.
        rate_selector: Selector = byte(55).bits(7, 6) => selector;
        /// Rate.
        rate: Rate = byte(55).bits(5, 0) => selected(rate_selector, 17);
        /// How the packet lifetime compares.
        packet_life_time_selector: Selector = byte(56).bits(7, 6) => selector;
        /// How long a packet may live on the way.
        packet_life_time: PacketLifeTime = byte(56).bits(5, 0) => selected(packet_life_time_selector, 19);
    }
}

impl PathRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} -> {}, LID {} -> {}, P_Key {}, SLs {:#06x}, MTU {}, rate {}, lifetime {}",
            self.sgid,
            self.dgid,
            self.slid.0,
            self.dlid.0,
            self.p_key,
            self.sls,
            self.mtu,
            self.rate,
            self.packet_life_time
        )
    }
}

records! {
    ServiceRecord = 0x0031;
    RangeRecord = 0x0034;
    PathRecord = 0x0035;
    McGroupRecord = 0x0037;
    McMemberRecord = 0x0038;
}
