//! PathRecord and ClassPortInfo, whose bytes ibwire knows, as records.

use std::fmt;

use ibwire::mad::{AttributeId, ClassPortInfo};
use ibwire::{FlowLabel, Gid, Lid, Mtu, PKey, PacketLifeTime, PathRecord, Rate, ServiceId, ServiceLevel};

use super::layout::{Layout, Record};
use super::template::{InvalidField, Is, Template};
use super::value::IntoField;

impl Layout for PathRecord {
    const NAME: &'static str = "PathRecord";
    const LEN: usize = Self::LEN;

    fn read_from(bytes: &[u8]) -> Self {
        Self::parse(bytes).unwrap_or_default()
    }

    fn write_to(&self, out: &mut [u8]) {
        Self::write_to(self, out);
    }

    fn check(&self) -> Result<(), InvalidField> {
        at_most("num_paths", self.num_paths, 0x7f)?;
        at_most("qos_class", self.qos_class, 0x0fff)?;
        at_most("mtu", self.mtu.0, 0x3f)?;
        at_most("rate", self.rate.0, 0x3f)
    }

    fn show_fields(&self, f: &mut fmt::Formatter<'_>, _depth: usize) -> fmt::Result {
        writeln!(f, "{self:#}")
    }
}

impl Record for PathRecord {
    const ATTRIBUTE: AttributeId = AttributeId(0x0035);

    /// A path has one LID at each end, so that LIDs count; so do the partition, whatever the membership, and the service level.
    fn is_named(&self, wanted: &Self, mask: u64) -> bool {
        let named = |bit: u32| mask >> bit & 1 != 0;
        (!named(2) || is_port(self.dgid, wanted.dgid))
            && (!named(3) || is_port(self.sgid, wanted.sgid))
            && (!named(4) || self.dlid == wanted.dlid)
            && (!named(5) || self.slid == wanted.slid)
            && (!named(11) || !wanted.reversible || self.reversible)
            && (!named(13) || self.pkey.base() == wanted.pkey.base())
            && (!named(15) || self.sl == wanted.sl)
    }
}

/// Whether a GID is the one that was asked for. SAs take the default prefix for their own (spec/sa.md T64).
fn is_port(gid: Gid, wanted: Gid) -> bool {
    gid == wanted || wanted.is_link_local() && gid.interface_id() == wanted.interface_id()
}

fn at_most(field: &'static str, value: impl Into<u64>, limit: u64) -> Result<(), InvalidField> {
    let value = value.into();
    match value > limit {
        true => Err(InvalidField::new(PathRecord::NAME, field, (value, limit))),
        false => Ok(()),
    }
}

/// Setters of a PathRecord's fields (spec/sa.md 3.13).
impl Template<PathRecord> {
    fn set<T>(
        mut self,
        field: &'static str,
        value: impl IntoField<T>,
        mask: u64,
        put: impl FnOnce(&mut PathRecord, T),
    ) -> Self {
        match value.into_field() {
            Ok(value) => put(&mut self.record, value),
            Err(excess) => self.refuse(InvalidField::new(PathRecord::NAME, field, excess)),
        }
        if let Err(invalid) = self.record.check() {
            self.refuse(invalid);
        }
        self.mask |= mask;
        self
    }

    /// The service that the path is for. Both of its mask bits are set.
    pub fn service_id(self, id: impl IntoField<ServiceId>) -> Self {
        self.set("service_id", id, 0b11, |record, id| record.service_id = id)
    }

    /// Where the path ends.
    pub fn dgid(self, gid: impl IntoField<Gid>) -> Self {
        self.set("dgid", gid, 1 << 2, |record, gid| record.dgid = gid)
    }

    /// Where it begins.
    pub fn sgid(self, gid: impl IntoField<Gid>) -> Self {
        self.set("sgid", gid, 1 << 3, |record, gid| record.sgid = gid)
    }

    /// The LID where it ends.
    pub fn dlid(self, lid: impl IntoField<Lid>) -> Self {
        self.set("dlid", lid, 1 << 4, |record, lid| record.dlid = lid)
    }

    /// The LID where it begins.
    pub fn slid(self, lid: impl IntoField<Lid>) -> Self {
        self.set("slid", lid, 1 << 5, |record, lid| record.slid = lid)
    }

    /// Whether it is for raw packets.
    pub fn raw_traffic(self, raw: bool) -> Self {
        self.set("raw_traffic", raw, 1 << 6, |record, raw| record.raw_traffic = raw)
    }

    /// Flow label.
    pub fn flow_label(self, label: impl IntoField<FlowLabel>) -> Self {
        self.set("flow_label", label, 1 << 8, |record, label| record.flow_label = label)
    }

    /// Hop limit.
    pub fn hop_limit(self, limit: u8) -> Self {
        self.set("hop_limit", limit, 1 << 9, |record, limit| record.hop_limit = limit)
    }

    /// Traffic class.
    pub fn traffic_class(self, class: u8) -> Self {
        self.set("traffic_class", class, 1 << 10, |record, class| record.traffic_class = class)
    }

    /// Whether the peer can use the same path back.
    pub fn reversible(self, reversible: bool) -> Self {
        self.set("reversible", reversible, 1 << 11, |record, reversible| record.reversible = reversible)
    }

    /// At most so many paths for each pair of ports, up to 127.
    pub fn num_paths(self, count: u8) -> Self {
        self.set("num_paths", count, 1 << 12, |record, count| record.num_paths = count)
    }

    /// Partition.
    pub fn p_key(self, p_key: impl IntoField<PKey>) -> Self {
        self.set("p_key", p_key, 1 << 13, |record, p_key| record.pkey = p_key)
    }

    /// Quality of service class, up to 0xFFF.
    pub fn qos_class(self, class: u16) -> Self {
        self.set("qos_class", class, 1 << 14, |record, class| record.qos_class = class)
    }

    /// Service level.
    pub fn sl(self, sl: impl IntoField<ServiceLevel>) -> Self {
        self.set("sl", sl, 1 << 15, |record, sl| record.sl = sl)
    }

    /// Path MTU.
    pub fn mtu(self, wanted: Is<Mtu>) -> Self {
        let (selector, mtu) = wanted.parts();
        self.set("mtu", mtu, 0b11 << 16, |record, mtu| (record.mtu_selector, record.mtu) = (selector, mtu))
    }

    /// Rate.
    pub fn rate(self, wanted: Is<Rate>) -> Self {
        let (selector, rate) = wanted.parts();
        self.set("rate", rate, 0b11 << 18, |record, rate| {
            (record.rate_selector, record.rate) = (selector, rate);
        })
    }

    /// How long a packet may live on the way.
    pub fn packet_life_time(self, wanted: Is<PacketLifeTime>) -> Self {
        let (selector, time) = wanted.parts();
        self.set("packet_life_time", time, 0b11 << 20, |record, time| {
            (record.packet_life_time_selector, record.packet_life_time) = (selector, time);
        })
    }

    /// Preference; SAs ignore it.
    pub fn preference(self, preference: u8) -> Self {
        self.set("preference", preference, 1 << 22, |record, preference| record.preference = preference)
    }
}

impl Layout for ClassPortInfo {
    const NAME: &'static str = "ClassPortInfo";
    const LEN: usize = Self::LEN;

    fn read_from(bytes: &[u8]) -> Self {
        Self::parse(bytes).unwrap_or_default()
    }

    fn write_to(&self, out: &mut [u8]) {
        Self::write_to(self, out);
    }

    fn check(&self) -> Result<(), InvalidField> {
        match self.capability_mask2 >> 27 {
            0 => Ok(()),
            _ => Err(InvalidField::new(
                <Self as Layout>::NAME,
                "capability_mask2",
                (self.capability_mask2.into(), 0x07ff_ffff),
            )),
        }
    }

    fn show_fields(&self, f: &mut fmt::Formatter<'_>, _depth: usize) -> fmt::Result {
        writeln!(f, "{self:#}")
    }
}

impl Record for ClassPortInfo {
    const ATTRIBUTE: AttributeId = AttributeId::CLASS_PORT_INFO;
}
