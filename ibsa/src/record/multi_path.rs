//! Paths between several ports: the query, whose answers are PathRecords.

use std::fmt;

use ibwire::mad::AttributeId;
use ibwire::{FlowLabel, Gid, Mtu, PKey, PacketLifeTime, Rate, Selector, ServiceId, ServiceLevel};

use super::bits::{be16, be32, byte, bytes};
use super::layout::{Layout, layout};
use super::template::{InvalidField, Template};

layout! {
    /// The part of a MultiPathRecord that has fixed places (IBTA vol. 1, 15.2.5.20; spec/sa.md 3.15). The GIDs follow;
    /// [`MultiPath`] has both.
    pub struct MultiPathRecord, "MultiPathRecord", 24 bytes {
        /// Whether the paths are for raw packets.
        raw_traffic: bool = be32(0).bits(31, 31) => mask(0);
        /// Flow label.
        flow_label: FlowLabel = be32(0).bits(27, 8) => mask(2);
        /// Hop limit.
        hop_limit: u8 = be32(0).bits(7, 0) => mask(3);
        /// Traffic class.
        traffic_class: u8 = byte(4) => mask(4);
        /// Whether the peer can use the same path back.
        reversible: bool = byte(5).bits(7, 7) => mask(5);
        /// At most so many paths, 7 bits.
        num_paths: u8 = byte(5).bits(6, 0) => mask(6);
        /// Partition.
        p_key: PKey = be16(6) => mask(7);
        /// Quality of service class, 12 bits.
        qos_class: u16 = be16(8).bits(15, 4) => mask(8);
        /// Service level.
        sl: ServiceLevel = be16(8).bits(3, 0) => mask(9);
        /// How the MTU compares.
        mtu_selector: Selector = byte(10).bits(7, 6) => selector;
        /// Path MTU.
        mtu: Mtu = byte(10).bits(5, 0) => selected(mtu_selector, 10);
        /// How the rate compares.
        rate_selector: Selector = byte(11).bits(7, 6) => selector;
        /// Rate.
        rate: Rate = byte(11).bits(5, 0) => selected(rate_selector, 12);
        /// How the packet lifetime compares.
        packet_life_time_selector: Selector = byte(12).bits(7, 6) => selector;
        /// How long a packet may live on the way.
        packet_life_time: PacketLifeTime = byte(12).bits(5, 0) => selected(packet_life_time_selector, 14);
        /// The upper 8 bits of the service ID; [`service_id`](Template::service_id) sets both parts.
        service_id_high: u8 = byte(13) => unmasked;
        /// The lower 56 bits of the service ID.
        service_id_low: u64 = bytes(17, 7) => unmasked;
        /// Whether the paths shall share as little as possible: 1 is paths without a common fault, 2 bits.
        independence_selector: u8 = byte(14).bits(7, 6) => mask(17);
        /// Which GIDs of the ports may be used, 6 bits.
        gid_scope: u8 = byte(14).bits(5, 0) => mask(18);
        /// How many of the GIDs are sources. [`MultiPath`] sets it.
        sgid_count: u8 = byte(15) => unmasked;
        /// How many of the GIDs are destinations. [`MultiPath`] sets it.
        dgid_count: u8 = byte(16) => unmasked;
    }
}

impl MultiPathRecord {
    /// Its attribute. Answers are [`PathRecord`](ibwire::PathRecord)s.
    pub const ATTRIBUTE: AttributeId = AttributeId(0x003a);

    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "paths from {} to {} ports, P_Key {}, SL {}",
            self.sgid_count, self.dgid_count, self.p_key, self.sl
        )
    }
}

impl Template<MultiPathRecord> {
    /// The service that the paths are for.
    pub fn service_id(mut self, id: impl Into<ServiceId>) -> Self {
        let ServiceId(id) = id.into();
        self.record.service_id_high = (id >> 56) as u8;
        self.record.service_id_low = id & 0x00ff_ffff_ffff_ffff;
        self.mask |= 1 << 16 | 1 << 21;
        self
    }
}

/// A query for paths from any of some ports to any of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MultiPath {
    /// What the paths shall be like.
    pub wanted: Template<MultiPathRecord>,
    /// Where they begin.
    pub sources: Vec<Gid>,
    /// Where they end.
    pub destinations: Vec<Gid>,
}

impl MultiPath {
    /// The most GIDs of one kind: what their count's field holds.
    pub const MAX_GIDS: usize = 255;

    /// The attribute's bytes, GIDs included, and the component mask.
    ///
    /// # Errors
    /// [`InvalidField`]: a value of the template does not fit, or there are no sources or destinations or more than
    /// [`MAX_GIDS`](Self::MAX_GIDS) of them.
    pub fn to_bytes(&self) -> Result<(Vec<u8>, u64), InvalidField> {
        let (mut record, mask) = self.wanted.clone().checked()?;
        record.sgid_count = Self::count("sources", &self.sources)?;
        record.dgid_count = Self::count("destinations", &self.destinations)?;
        let mut out = record.to_bytes();
        for gid in self.sources.iter().chain(&self.destinations) {
            out.extend_from_slice(&gid.0);
        }
        Ok((out, mask | 1 << 19 | 1 << 20))
    }

    fn count(field: &'static str, gids: &[Gid]) -> Result<u8, InvalidField> {
        u8::try_from(gids.len()).ok().filter(|count| *count > 0).ok_or_else(|| {
            InvalidField::new(MultiPathRecord::NAME, field, (gids.len() as u64, Self::MAX_GIDS as u64))
        })
    }
}
