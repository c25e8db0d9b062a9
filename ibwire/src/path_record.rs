//! A path through a subnet, as the SA describes it.

use std::fmt;

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::codec::codec;
use crate::packet::UdpHeader;
use crate::{DecodeError, FlowLabel, Gid, Lid, Mtu, PKey, PacketLifeTime, Rate, ServiceId, ServiceLevel};

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PathRecordLayout {
    service_id: U64,
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: U16,
    slid: U16,
    raw_flow_hops: U32,
    traffic_class: u8,
    reversible_num_paths: u8,
    pkey: U16,
    qos_class_sl: U16,
    mtu: u8,
    rate: u8,
    life_time: u8,
    preference: u8,
    reserved: [u8; 6],
}

/// How a path's MTU, rate or lifetime compares with the value beside it. Answers say [`Selector::Exactly`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Selector {
    /// More than the value.
    #[default]
    GreaterThan = 0,
    /// Less than the value.
    LessThan = 1,
    /// The value itself.
    Exactly = 2,
    /// The largest MTU or rate, the shortest lifetime; the value is ignored.
    Best = 3,
}

impl Selector {
    const fn of(field: u8) -> Self {
        match field >> 6 {
            0 => Self::GreaterThan,
            1 => Self::LessThan,
            2 => Self::Exactly,
            _ => Self::Best,
        }
    }

    /// The selector above the low six bits of `value`.
    const fn with(self, value: u8) -> u8 {
        (self as u8) << 6 | value & VALUE_BITS
    }
}

/// The value beside a selector.
const VALUE_BITS: u8 = 0x3f;

/// A value and its selector, for people: what is exact needs no word.
struct Selected<T>(Selector, T);

impl<T: fmt::Display> fmt::Display for Selected<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Selector::GreaterThan => write!(f, "more than {}", self.1),
            Selector::LessThan => write!(f, "less than {}", self.1),
            Selector::Exactly => write!(f, "{}", self.1),
            Selector::Best => f.write_str("best"),
        }
    }
}

/// A PathRecord (IBTA vol. 1, 15.2.5.16; spec/sa.md 3.13). Reserved fields are ignored and written as 0.
///
/// `{}` prints it in one line, `{:#}` field by field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PathRecord {
    /// The service that the path is for; 0 in answers.
    pub service_id: ServiceId,
    /// Destination GID.
    pub dgid: Gid,
    /// Source GID.
    pub sgid: Gid,
    /// Destination LID.
    pub dlid: Lid,
    /// Source LID.
    pub slid: Lid,
    /// Whether the path is for raw packets.
    pub raw_traffic: bool,
    /// Flow label for a GRH.
    pub flow_label: FlowLabel,
    /// Hop limit for a GRH; 0 or 1 within the subnet.
    pub hop_limit: u8,
    /// Traffic class for a GRH.
    pub traffic_class: u8,
    /// Whether the peer can use the same path back.
    pub reversible: bool,
    /// In a query: at most so many paths for each pair of ports. The low seven bits are written.
    pub num_paths: u8,
    /// Partition.
    pub pkey: PKey,
    /// Quality of service class, 12 bits; the upper four are not written.
    pub qos_class: u16,
    /// Service level.
    pub sl: ServiceLevel,
    /// How the path's MTU compares with [`mtu`](Self::mtu).
    pub mtu_selector: Selector,
    /// Path MTU. The low six bits are written.
    pub mtu: Mtu,
    /// How the path's rate compares with [`rate`](Self::rate).
    pub rate_selector: Selector,
    /// Static rate. The low six bits are written.
    pub rate: Rate,
    /// How the path's packet lifetime compares with [`packet_life_time`](Self::packet_life_time).
    pub packet_life_time_selector: Selector,
    /// How long a packet may live on the way.
    pub packet_life_time: PacketLifeTime,
    /// Which of several paths the SA prefers: 0 is the best.
    pub preference: u8,
}

codec!(PathRecord, PathRecordLayout, 64, "PathRecord");

impl PathRecord {
    /// One path with exact values: reversible, in the default partition, all else zero. On InfiniBand it lacks the LIDs.
    pub fn exact(sgid: Gid, dgid: Gid, mtu: Mtu, rate: Rate, packet_life_time: PacketLifeTime) -> Self {
        Self {
            sgid,
            dgid,
            reversible: true,
            num_paths: 1,
            pkey: PKey::DEFAULT,
            mtu_selector: Selector::Exactly,
            mtu,
            rate_selector: Selector::Exactly,
            rate,
            packet_life_time_selector: Selector::Exactly,
            packet_life_time,
            ..Self::default()
        }
    }

    /// A RoCE v2 path as Linux makes it (spec/sa.md 7.4), with the lifetime of newer kernels, 268 ms, and in the default
    /// partition. Whether anyone is at its end is not known.
    pub fn roce(sgid: Gid, dgid: Gid, mtu: Mtu) -> Self {
        const LIFE_TIME: PacketLifeTime = PacketLifeTime::truncate(16);
        Self {
            hop_limit: UdpHeader::ROCE_HOP_LIMIT,
            ..Self::exact(sgid, dgid, mtu, Rate::PORT_CURRENT, LIFE_TIME)
        }
    }

    fn decode(l: &PathRecordLayout) -> Result<Self, DecodeError> {
        let raw_flow_hops = l.raw_flow_hops.get();
        let qos_class_sl = l.qos_class_sl.get();
        Ok(Self {
            service_id: ServiceId(l.service_id.get()),
            dgid: Gid(l.dgid),
            sgid: Gid(l.sgid),
            dlid: Lid(l.dlid.get()),
            slid: Lid(l.slid.get()),
            raw_traffic: raw_flow_hops >> 31 != 0,
            flow_label: FlowLabel::truncate(raw_flow_hops >> 8),
            hop_limit: raw_flow_hops as u8,
            traffic_class: l.traffic_class,
            reversible: l.reversible_num_paths & 0x80 != 0,
            num_paths: l.reversible_num_paths & 0x7f,
            pkey: PKey(l.pkey.get()),
            qos_class: qos_class_sl >> 4,
            sl: ServiceLevel::truncate(qos_class_sl as u8),
            mtu_selector: Selector::of(l.mtu),
            mtu: Mtu(l.mtu & VALUE_BITS),
            rate_selector: Selector::of(l.rate),
            rate: Rate(l.rate & VALUE_BITS),
            packet_life_time_selector: Selector::of(l.life_time),
            packet_life_time: PacketLifeTime::truncate(l.life_time),
            preference: l.preference,
        })
    }

    fn encode(&self) -> PathRecordLayout {
        let raw_flow_hops =
            u32::from(self.raw_traffic) << 31 | self.flow_label.get() << 8 | u32::from(self.hop_limit);
        PathRecordLayout {
            service_id: U64::new(self.service_id.0),
            dgid: self.dgid.0,
            sgid: self.sgid.0,
            dlid: U16::new(self.dlid.0),
            slid: U16::new(self.slid.0),
            raw_flow_hops: U32::new(raw_flow_hops),
            traffic_class: self.traffic_class,
            reversible_num_paths: u8::from(self.reversible) << 7 | self.num_paths & 0x7f,
            pkey: U16::new(self.pkey.0),
            qos_class_sl: U16::new(self.qos_class << 4 | u16::from(self.sl.get())),
            mtu: self.mtu_selector.with(self.mtu.0),
            rate: self.rate_selector.with(self.rate.0),
            life_time: self.packet_life_time_selector.with(self.packet_life_time.get()),
            preference: self.preference,
            reserved: [0; 6],
        }
    }

    fn fields(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "PathRecord:")?;
        writeln!(f, "  service_id......... {}", self.service_id)?;
        writeln!(f, "  dgid............... {}", self.dgid)?;
        writeln!(f, "  sgid............... {}", self.sgid)?;
        writeln!(f, "  dlid............... {} ({})", self.dlid, self.dlid.0)?;
        writeln!(f, "  slid............... {} ({})", self.slid, self.slid.0)?;
        writeln!(f, "  raw_traffic........ {}", self.raw_traffic)?;
        writeln!(f, "  flow_label......... {}", self.flow_label)?;
        writeln!(f, "  hop_limit.......... {}", self.hop_limit)?;
        writeln!(f, "  traffic_class...... {:#04x}", self.traffic_class)?;
        writeln!(f, "  reversible......... {}", self.reversible)?;
        writeln!(f, "  num_paths.......... {}", self.num_paths)?;
        writeln!(f, "  pkey............... {}", self.pkey)?;
        writeln!(f, "  qos_class.......... {}", self.qos_class)?;
        writeln!(f, "  sl................. {}", self.sl)?;
        writeln!(f, "  mtu................ {}", Selected(self.mtu_selector, self.mtu))?;
        writeln!(f, "  rate............... {}", Selected(self.rate_selector, self.rate))?;
        writeln!(
            f,
            "  packet_life_time... {}",
            Selected(self.packet_life_time_selector, self.packet_life_time)
        )?;
        write!(f, "  preference......... {}", self.preference)
    }

    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.sgid, self.dgid)?;
        if self.dlid != Lid::NONE || self.slid != Lid::NONE {
            write!(f, ", LID {} -> {}", self.slid.0, self.dlid.0)?;
        }
        write!(f, ", P_Key {}, SL {}", self.pkey, self.sl)?;
        write!(f, ", MTU {}", Selected(self.mtu_selector, self.mtu))?;
        write!(f, ", rate {}", Selected(self.rate_selector, self.rate))?;
        write!(f, ", lifetime {}", Selected(self.packet_life_time_selector, self.packet_life_time))?;
        if self.hop_limit > 1 {
            write!(f, ", hop limit {}", self.hop_limit)?;
        }
        if self.reversible {
            f.write_str(", reversible")?;
        }
        Ok(())
    }
}

impl Default for PathRecord {
    /// The record with all bits zero.
    fn default() -> Self {
        Self {
            service_id: ServiceId(0),
            dgid: Gid::UNSPECIFIED,
            sgid: Gid::UNSPECIFIED,
            dlid: Lid::NONE,
            slid: Lid::NONE,
            raw_traffic: false,
            flow_label: FlowLabel::default(),
            hop_limit: 0,
            traffic_class: 0,
            reversible: false,
            num_paths: 0,
            pkey: PKey(0),
            qos_class: 0,
            sl: ServiceLevel::default(),
            mtu_selector: Selector::GreaterThan,
            mtu: Mtu(0),
            rate_selector: Selector::GreaterThan,
            rate: Rate(0),
            packet_life_time_selector: Selector::GreaterThan,
            packet_life_time: PacketLifeTime::default(),
            preference: 0,
        }
    }
}

impl fmt::Display for PathRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() { self.fields(f) } else { self.line(f) }
    }
}
