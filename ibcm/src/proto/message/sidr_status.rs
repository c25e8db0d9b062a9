//! What a SIDR_REP says: its status, and what goes with that.

use ibwire::mad::ClassPortInfo;

use super::Ari;
use super::code::status;

status! {
    /// The status of a SIDR_REP (spec/cm.md 2.15). Codes that are not assigned are kept.
    SidrStatus, "SIDR status" {
        /// Queue pair number and Q_Key are valid.
        VALID = 0, "resolved";
        /// Nobody serves this service ID.
        UNSUPPORTED_SERVICE = 1, "service ID not supported";
        /// The service provider refused.
        REJECTED = 2, "rejected by the service provider";
        /// The service has no queue pair.
        NO_QP = 3, "no queue pair available";
        /// Another port or CM has to be asked.
        REDIRECT = 4, "redirected";
        /// The class version of the request is not supported.
        UNSUPPORTED_VERSION = 5, "class version not supported";
    }
}

/// The additional information of a SIDR_REP; its shape follows from the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SidrInfo {
    /// Nothing was added.
    None,
    /// With a redirection: where to.
    Redirect(ClassPortInfo),
    /// With a class version that is not supported: the highest that is.
    ClassVersion(u8),
    /// The bytes of another status, or too few for theirs.
    Bytes(Ari),
}

impl SidrInfo {
    /// Reads `info` as `status` shapes it. Never looks beyond the valid bytes.
    pub fn decode(status: SidrStatus, info: &Ari) -> Self {
        let bytes = info.as_bytes();
        let typed = match (status, bytes) {
            (_, []) => return Self::None,
            (SidrStatus::REDIRECT, _) => ClassPortInfo::parse(bytes).ok().map(Self::Redirect),
            (SidrStatus::UNSUPPORTED_VERSION, [version, ..]) => Some(Self::ClassVersion(*version)),
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
            Self::ClassVersion(version) => short(&[version]),
            Self::Bytes(info) => info,
        }
    }
}
