//! A REJ that a peer sent, for people.

use std::fmt;

use crate::proto::Rejection;
use crate::proto::message::RejectInfo;

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
        }
    }
}
