//! What a rejection says.

use ibwire::{Gid, Lid, Mtu, PrivateData, RejReason};

use crate::proto::Reject;
use crate::proto::message::{Ari, RejectInfo};

impl Reject {
    /// The GID is not one to connect to, but this one is: reason 12.
    pub const fn acceptable_gid(gid: Gid) -> Self {
        Self { reason: RejReason::PRIMARY_GID, info: RejectInfo::Gid(gid), private_data: PrivateData::EMPTY }
    }

    /// The LID is not one to connect to, but this one is: reason 13.
    pub const fn acceptable_lid(lid: Lid) -> Self {
        Self { reason: RejReason::PRIMARY_LID, info: RejectInfo::Lid(lid), private_data: PrivateData::EMPTY }
    }

    /// The path MTU is too large, this is the largest: reason 26.
    pub const fn acceptable_mtu(mtu: Mtu) -> Self {
        Self {
            reason: RejReason::INVALID_PATH_MTU,
            info: RejectInfo::PathMtu(mtu),
            private_data: PrivateData::EMPTY,
        }
    }

    /// The service is at another port of this node, whose CM stays the one to ask: reason 25.
    pub const fn redirect(gid: Gid) -> Self {
        Self {
            reason: RejReason::PORT_REDIRECT,
            info: RejectInfo::Gid(gid),
            private_data: PrivateData::EMPTY,
        }
    }

    /// Additional information as bytes, for a reason that gives them a meaning of its own.
    #[must_use]
    pub const fn info_bytes(mut self, bytes: Ari) -> Self {
        self.info = RejectInfo::Bytes(bytes);
        self
    }

    /// The program's own bytes, at most 148; the peer sees them zero-padded.
    #[must_use]
    pub fn private_data(mut self, data: impl Into<PrivateData<148>>) -> Self {
        self.private_data = data.into();
        self
    }
}

impl From<RejReason> for Reject {
    fn from(reason: RejReason) -> Self {
        Self::new(reason)
    }
}
