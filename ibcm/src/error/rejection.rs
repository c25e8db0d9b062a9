//! A REJ that a peer sent, and what had been done until then.

use std::fmt;
use std::time::Duration;

use ibwire::{PrivateData, RejReason};

use crate::proto;
use crate::proto::Effort;
use crate::proto::message::{MessageId, RejectInfo};

/// A peer's REJ that ended what was tried, and what that was.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejection {
    /// Why.
    pub reason: RejReason,
    /// What was rejected.
    pub message: MessageId,
    /// What came with the reason.
    pub info: RejectInfo,
    /// The application's bytes, zero-padded.
    pub private_data: PrivateData<148>,
    /// How many attempts were made; this is what the last one met. See [`Retry`](crate::Retry).
    pub attempts: u32,
    /// How many REQs all attempts sent; on the accepting side how many REPs.
    pub sent: u32,
    /// From the first of these until now.
    pub waited: Duration,
}

impl Rejection {
    /// What one attempt met.
    pub(crate) fn new(rejection: &proto::Rejection, effort: Option<Effort>) -> Self {
        let effort = effort.unwrap_or_default();
        Self {
            reason: rejection.reason,
            message: rejection.message,
            info: rejection.info,
            private_data: rejection.private_data,
            attempts: 1,
            sent: effort.sent.into(),
            waited: effort.waited,
        }
    }

    /// Whether the application refused: reason 28, or 27 in answer to a REQ, which is Intel's number for it.
    pub fn is_consumer(&self) -> bool {
        proto::is_consumer(self.message, self.reason)
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.reason)?;
        match &self.info {
            RejectInfo::Gid(gid) => write!(f, ", it suggests GID {gid}"),
            RejectInfo::Lid(lid) => write!(f, ", it suggests LID {lid}"),
            RejectInfo::ServiceLevel(sl) => write!(f, ", it suggests SL {sl}"),
            RejectInfo::TrafficClass(class) => write!(f, ", it suggests traffic class {class}"),
            RejectInfo::HopLimit(hops) => write!(f, ", it suggests hop limit {hops}"),
            RejectInfo::PacketRate(rate) => write!(f, ", it suggests a rate of {rate}"),
            RejectInfo::PathMtu(mtu) => write!(f, ", the largest MTU is {mtu}"),
            RejectInfo::ClassVersion(version) => write!(f, ", it speaks versions up to {version}"),
            RejectInfo::FlowLabel(label) => write!(f, ", it suggests flow label {label}"),
            _ => Ok(()),
        }?;
        if self.attempts > 1 {
            write!(f, ", after {} attempts and {} requests in {:?}", self.attempts, self.sent, self.waited)?;
        }
        Ok(())
    }
}
