//! Multicast groups and their members.

use std::fmt;

use ibwire::mad::AttributeId;
use ibwire::{FlowLabel, Gid, Lid, Mtu, PKey, PacketLifeTime, QKey, Rate, Selector, ServiceLevel};

use super::bits::{be16, be32, byte, bytes};
use super::code::JoinState;
use super::layout::{Masked, Record, layout};

layout! {
    /// MCMemberRecord (IBTA vol. 1, 15.2.5.17; spec/sa.md 3.14): a port in a multicast group, or the group alone.
    pub struct McMemberRecord, "MCMemberRecord", 52 bytes {
        /// The group.
        mgid: Gid = bytes(0, 16) => mask(0);
        /// The member; unspecified in the answer to who may not see it.
        port_gid: Gid = bytes(16, 16) => mask(1);
        /// Q_Key of the group.
        q_key: QKey = be32(32) => mask(2);
        /// LID of the group, which it may share with others.
        mlid: Lid = be16(36) => mask(3);
        /// How the MTU compares.
        mtu_selector: Selector = byte(38).bits(7, 6) => selector;
        /// MTU of the group.
        mtu: Mtu = byte(38).bits(5, 0) => selected(mtu_selector, 4);
        /// Traffic class.
        traffic_class: u8 = byte(39) => mask(6);
        /// Partition of the group.
        p_key: PKey = be16(40) => mask(7);
        /// How the rate compares.
        rate_selector: Selector = byte(42).bits(7, 6) => selector;
        /// Rate of the group.
        rate: Rate = byte(42).bits(5, 0) => selected(rate_selector, 8);
        /// How the packet lifetime compares.
        packet_life_time_selector: Selector = byte(43).bits(7, 6) => selector;
        /// How long a packet may live on the way.
        packet_life_time: PacketLifeTime = byte(43).bits(5, 0) => selected(packet_life_time_selector, 10);
        /// Service level.
        sl: ServiceLevel = be32(44).bits(31, 28) => mask(12);
        /// Flow label.
        flow_label: FlowLabel = be32(44).bits(27, 8) => mask(13);
        /// Hop limit.
        hop_limit: u8 = be32(44).bits(7, 0) => mask(14);
        /// Scope that a group without an MGID is made with, 4 bits. Of a group that exists the MGID tells it.
        scope: u8 = byte(48).bits(7, 4) => mask(15);
        /// How the port takes part.
        join_state: JoinState = byte(48).bits(3, 0) => mask(16);
        /// Whether another port joined for it.
        proxy_join: ProxyJoin = byte(49) => mask(17);
    }
}

/// Whether a port was joined by another one: bit 7 of its byte. Some SAs set bit 0 instead, which is read like it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ProxyJoin(pub bool);

impl fmt::Display for ProxyJoin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

super::value::number! {
    ProxyJoin: |raw| ProxyJoin(raw & 0x81 != 0), |value: &ProxyJoin| u64::from(value.0) << 7;
}

impl McMemberRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} MLID {:#06x}, Q_Key {}, P_Key {}, SL {}, MTU {}, rate {}",
            self.mgid, self.mlid.0, self.q_key, self.p_key, self.sl, self.mtu, self.rate
        )?;
        if !self.port_gid.is_unspecified() {
            write!(f, ", {} as {}", self.port_gid, self.join_state)?;
        }
        Ok(())
    }
}

impl Record for McMemberRecord {
    const ATTRIBUTE: AttributeId = AttributeId(0x0038);

    fn is_named(&self, wanted: &Self, mask: u64) -> bool {
        self.matches(wanted, mask & 1)
    }
}
