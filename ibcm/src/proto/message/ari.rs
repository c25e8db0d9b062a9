//! The additional reject information of a REJ: its bytes, and what they say by the reason.

use std::fmt;

use ibwire::mad::ClassPortInfo;
use ibwire::{FlowLabel, Gid, Guid, Lid, Mtu, Rate, RejReason, ServiceLevel};

/// The additional reject information (ARI) of a REJ as bytes: at most 72, zero behind the valid ones. A SIDR_REP has a field
/// of the same shape.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ari {
    area: [u8; Self::MAX_LEN],
    len: u8,
}

impl Ari {
    /// Room in a REJ, bytes.
    pub const MAX_LEN: usize = 72;

    /// None.
    pub const EMPTY: Self = Self { area: [0; Self::MAX_LEN], len: 0 };

    /// Copies `bytes`, `None` if they are more than 72.
    pub const fn new(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > Self::MAX_LEN {
            return None;
        }
        let mut area = [0; Self::MAX_LEN];
        area.split_at_mut(bytes.len()).0.copy_from_slice(bytes);
        Some(Self { area, len: bytes.len() as u8 })
    }

    /// The valid bytes of an area as a peer sent it; it may claim more than there are.
    pub(super) fn from_area(area: &[u8; Self::MAX_LEN], claimed: usize) -> Self {
        let mut ari = Self { area: *area, len: claimed.min(Self::MAX_LEN) as u8 };
        ari.area[usize::from(ari.len)..].fill(0);
        ari
    }

    pub(super) const fn area(&self) -> &[u8; Self::MAX_LEN] {
        &self.area
    }

    /// The valid bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.area[..usize::from(self.len)]
    }
}

impl Default for Ari {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl fmt::Debug for Ari {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ari({:02x?})", self.as_bytes())
    }
}

/// What the additional reject information says; its shape follows from the reason (spec/cm.md 2.14).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RejectInfo {
    /// Nothing was added.
    None,
    /// With a timeout: the node GUID of the CA that gave up.
    CaGuid(Guid),
    /// With a rejected GID: one that would do. With a port redirection: the GID to ask instead.
    Gid(Gid),
    /// With a rejected LID: one that would do.
    Lid(Lid),
    /// With a rejected service level: one that would do.
    ServiceLevel(ServiceLevel),
    /// With a rejected traffic class: one that would do.
    TrafficClass(u8),
    /// With a rejected hop limit: one that would do.
    HopLimit(u8),
    /// With a rejected packet rate: one that would do.
    PacketRate(Rate),
    /// With a redirection of port and CM: where to.
    Redirect(ClassPortInfo),
    /// With a rejected path MTU: the largest that would do.
    PathMtu(Mtu),
    /// With a rejected class version: the highest that the peer speaks.
    ClassVersion(u8),
    /// With a rejected flow label: one that would do.
    FlowLabel(FlowLabel),
    /// The consumer's own bytes, those of a reason that says nothing of them, or too few for their reason.
    Bytes(Ari),
}

impl RejectInfo {
    /// Reads `ari` as `reason` shapes it. Never looks beyond the valid bytes.
    pub fn decode(reason: RejReason, ari: &Ari) -> Self {
        let bytes = ari.as_bytes();
        if bytes.is_empty() {
            return Self::None;
        }
        let typed = match reason {
            RejReason::TIMEOUT => bytes.first_chunk().map(|b| Self::CaGuid(Guid(u64::from_be_bytes(*b)))),
            RejReason::PRIMARY_GID | RejReason::ALTERNATE_GID | RejReason::PORT_REDIRECT => {
                bytes.first_chunk().map(|b| Self::Gid(Gid(*b)))
            }
            RejReason::PRIMARY_LID | RejReason::ALTERNATE_LID => {
                bytes.first_chunk().map(|b| Self::Lid(Lid(u16::from_be_bytes(*b))))
            }
            RejReason::PRIMARY_SL | RejReason::ALTERNATE_SL => {
                Some(Self::ServiceLevel(ServiceLevel::truncate(bytes[0] >> 4)))
            }
            RejReason::PRIMARY_TRAFFIC_CLASS | RejReason::ALTERNATE_TRAFFIC_CLASS => {
                Some(Self::TrafficClass(bytes[0]))
            }
            RejReason::PRIMARY_HOP_LIMIT | RejReason::ALTERNATE_HOP_LIMIT => Some(Self::HopLimit(bytes[0])),
            RejReason::PRIMARY_PACKET_RATE | RejReason::ALTERNATE_PACKET_RATE => {
                Some(Self::PacketRate(Rate(bytes[0] >> 2)))
            }
            RejReason::PORT_AND_CM_REDIRECT => ClassPortInfo::parse(bytes).ok().map(Self::Redirect),
            RejReason::INVALID_PATH_MTU => Some(Self::PathMtu(Mtu(bytes[0] >> 4))),
            RejReason::UNSUPPORTED_CLASS_VERSION => Some(Self::ClassVersion(bytes[0])),
            RejReason::PRIMARY_FLOW_LABEL | RejReason::ALTERNATE_FLOW_LABEL => {
                bytes.first_chunk().map(|b| Self::FlowLabel(FlowLabel::truncate(super::number::u24(*b) >> 4)))
            }
            _ => None,
        };
        typed.unwrap_or(Self::Bytes(*ari))
    }

    /// The bytes that go with a reason of this shape.
    pub fn encode(&self) -> Ari {
        let short = |bytes: &[u8]| Ari::new(bytes).expect("no typed information is longer than 72 bytes");
        match *self {
            Self::None => Ari::EMPTY,
            Self::CaGuid(guid) => short(&guid.0.to_be_bytes()),
            Self::Gid(gid) => short(&gid.0),
            Self::Lid(lid) => short(&lid.0.to_be_bytes()),
            Self::ServiceLevel(sl) => short(&[sl.get() << 4]),
            Self::TrafficClass(byte) | Self::HopLimit(byte) | Self::ClassVersion(byte) => short(&[byte]),
            Self::PacketRate(rate) => short(&[rate.0 << 2]),
            Self::Redirect(info) => short(&info.to_bytes()),
            Self::PathMtu(mtu) => short(&[mtu.0 << 4]),
            Self::FlowLabel(label) => short(&super::number::u24_bytes(label.get() << 4)),
            Self::Bytes(ari) => ari,
        }
    }
}
