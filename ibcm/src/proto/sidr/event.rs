//! What an endpoint reports about datagram services.

use ibdev::MadSource;

use super::super::event::Effort;
use super::super::message::{IpHeader, SidrRep, SidrReq};
use super::super::path::Path;
use super::handle::{SidrQueryHandle, SidrRequestHandle, SidrServiceId};

/// Something that happened to a query or came to a service. Each query sees one event at most, its last, and none once it was
/// cancelled.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SidrEvent {
    /// A request arrived. It waits for [`sidr_answer`](super::super::Endpoint::sidr_answer).
    Request {
        /// The request.
        handle: SidrRequestHandle,
        /// Whose it is.
        service: SidrServiceId,
        /// What is wanted.
        request: Box<SidrRequest>,
    },
    /// The service is resolved: status 0.
    Resolved {
        /// The query.
        query: SidrQueryHandle,
        /// The reply, with queue pair and Q_Key.
        rep: Box<SidrRep>,
        /// The path to the port that replied: that of the query, or where it was redirected to.
        path: Box<Path>,
        /// What it took.
        effort: Effort,
    },
    /// Any other status; also a redirection that cannot be followed, or one more than three.
    Refused {
        /// The query.
        query: SidrQueryHandle,
        /// The reply.
        rep: Box<SidrRep>,
        /// What it took.
        effort: Effort,
    },
    /// No answer came.
    Timeout {
        /// The query.
        query: SidrQueryHandle,
        /// What was tried.
        effort: Effort,
    },
    /// The device was removed.
    DeviceRemoved {
        /// The query.
        query: SidrQueryHandle,
    },
}

impl SidrEvent {
    /// The query that is over, if the event is about one.
    pub const fn query(&self) -> Option<SidrQueryHandle> {
        match self {
            Self::Request { .. } => None,
            Self::Resolved { query, .. }
            | Self::Refused { query, .. }
            | Self::Timeout { query, .. }
            | Self::DeviceRemoved { query } => Some(*query),
        }
    }
}

/// A request for a datagram service, as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SidrRequest {
    /// The message.
    pub req: SidrReq,
    /// Where it came from.
    pub from: MadSource,
    /// The IP header at the front of the private data, at a service that wants one.
    pub ip: Option<IpHeader>,
}
