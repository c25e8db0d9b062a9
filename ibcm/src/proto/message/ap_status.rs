//! What an APR says: its status, and what goes with that.

use ibwire::mad::ClassPortInfo;
use ibwire::{FlowLabel, Gid, Lid, Rate, ServiceLevel};

use super::Ari;
use super::code::status;
use super::number::{u24, u24_bytes};

status! {
    /// The status of an APR (spec/cm.md 2.15). Codes that are not assigned are kept.
    ApStatus, "AP status" {
        /// The alternate path is loaded.
        LOADED = 0, "alternate path loaded";
        /// There is no such connection.
        INVALID_COMM_ID = 1, "invalid communication ID";
        /// The peer cannot migrate paths.
        UNSUPPORTED = 2, "alternate paths not supported";
        /// The CM or the application refused.
        REJECTED = 3, "alternate path rejected";
        /// Another port or CM has to be asked.
        REDIRECT = 4, "redirected";
        /// The path is the one in use.
        CURRENT_PATH = 5, "the path is the current one";
        /// The QP is not that of the connection.
        WRONG_QPN = 6, "queue pair of another connection";
        /// The peer's LID of the path is not one of its own.
        REMOTE_LID = 7, "remote LID rejected";
        /// The peer's GID of the path is not one of its own.
        REMOTE_GID = 8, "remote GID rejected";
        /// The flow label is unusable.
        FLOW_LABEL = 9, "flow label rejected";
        /// The traffic class is unusable.
        TRAFFIC_CLASS = 10, "traffic class rejected";
        /// The hop limit is unusable.
        HOP_LIMIT = 11, "hop limit rejected";
        /// The packet rate is unusable.
        PACKET_RATE = 12, "packet rate rejected";
        /// The service level is unusable.
        SERVICE_LEVEL = 13, "service level rejected";
    }
}

/// The additional information of an APR; its shape follows from the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ApInfo {
    /// Nothing was added.
    None,
    /// With a redirection: where to.
    Redirect(ClassPortInfo),
    /// With a rejected LID: one that would do.
    Lid(Lid),
    /// With a rejected GID: one that would do.
    Gid(Gid),
    /// With a rejected flow label: one that would do.
    FlowLabel(FlowLabel),
    /// With a rejected traffic class: one that would do.
    TrafficClass(u8),
    /// With a rejected hop limit: one that would do.
    HopLimit(u8),
    /// With a rejected packet rate: one that would do.
    PacketRate(Rate),
    /// With a rejected service level: one that would do.
    ServiceLevel(ServiceLevel),
    /// The bytes of another status, or too few for theirs.
    Bytes(Ari),
}

impl ApInfo {
    /// Reads `info` as `status` shapes it. Never looks beyond the valid bytes.
    pub fn decode(status: ApStatus, info: &Ari) -> Self {
        let bytes = info.as_bytes();
        let Some(&first) = bytes.first() else { return Self::None };
        let typed = match status {
            ApStatus::REDIRECT => ClassPortInfo::parse(bytes).ok().map(Self::Redirect),
            ApStatus::REMOTE_LID => bytes.first_chunk().map(|b| Self::Lid(Lid(u16::from_be_bytes(*b)))),
            ApStatus::REMOTE_GID => bytes.first_chunk().map(|b| Self::Gid(Gid(*b))),
            ApStatus::FLOW_LABEL => {
                bytes.first_chunk().map(|b| Self::FlowLabel(FlowLabel::truncate(u24(*b) >> 4)))
            }
            ApStatus::TRAFFIC_CLASS => Some(Self::TrafficClass(first)),
            ApStatus::HOP_LIMIT => Some(Self::HopLimit(first)),
            ApStatus::PACKET_RATE => Some(Self::PacketRate(Rate(first >> 2))),
            ApStatus::SERVICE_LEVEL => Some(Self::ServiceLevel(ServiceLevel::truncate(first >> 4))),
            _ => None,
        };
        typed.unwrap_or(Self::Bytes(*info))
    }

    /// The bytes that go with a status of this shape.
    pub fn encode(&self) -> Ari {
        let short = |bytes: &[u8]| Ari::new(bytes).expect("no typed information is longer than 72 bytes");
        match *self {
            Self::None => Ari::EMPTY,
            Self::Redirect(info) => short(&info.to_bytes()),
            Self::Lid(lid) => short(&lid.0.to_be_bytes()),
            Self::Gid(gid) => short(&gid.0),
            Self::FlowLabel(label) => short(&u24_bytes(label.get() << 4)),
            Self::TrafficClass(byte) | Self::HopLimit(byte) => short(&[byte]),
            Self::PacketRate(rate) => short(&[rate.0 << 2]),
            Self::ServiceLevel(sl) => short(&[sl.get() << 4]),
            Self::Bytes(info) => info,
        }
    }
}
