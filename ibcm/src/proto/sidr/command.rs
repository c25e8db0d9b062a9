//! What an endpoint is told to do about datagram services.

use std::time::{Duration, Instant};

use ibwire::mad::ClassPortInfo;
use ibwire::{Gid, PrivateData, QKey, Qpn, ServiceId};

use super::super::message::{SidrInfo, SidrStatus};
use super::super::path::Path;

/// A question to ask, for [`Endpoint::sidr_query`](super::super::Endpoint::sidr_query).
///
/// Request ID and transaction ID are drawn by the endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SidrQuery {
    /// The way to the peer.
    pub path: Path,
    /// The service wanted there.
    pub service_id: ServiceId,
    /// For the peer's application.
    pub private_data: PrivateData<216>,
    /// Within which time the peer is expected to answer, flight time not counted. At most 2.4 hours, default
    /// 4.3 s.
    pub response_timeout: Duration,
    /// Up to so much longer is each wait, by chance. At most 2.4 hours, default zero: exact periods.
    pub jitter: Duration,
    /// How often the SIDR_REQ may be re-sent. Each redirection begins anew. At most 254, default 15.
    pub max_retries: u8,
    /// When to give up, whatever retries are left. `None`, the default: retries decide.
    pub deadline: Option<Instant>,
}

impl SidrQuery {
    /// A query with the defaults named at the fields.
    pub const fn new(path: Path, service_id: ServiceId) -> Self {
        Self {
            path,
            service_id,
            private_data: PrivateData::EMPTY,
            response_timeout: Duration::from_nanos(4096 << 20),
            jitter: Duration::ZERO,
            max_retries: 15,
            deadline: None,
        }
    }
}

/// A service to offer, for [`Endpoint::sidr_serve`](super::super::Endpoint::sidr_serve).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SidrServe {
    /// The service.
    pub service_id: ServiceId,
    /// Only requests that arrive at this port, from 1. Default: any port.
    pub port: Option<u8>,
    /// Only requests that arrive at this GID. Default: any of ours.
    pub local_gid: Option<Gid>,
    /// Requests have to begin with an IP header; others are refused with status 2. Default: false.
    pub by_ip: bool,
    /// What becomes of requests.
    pub handling: SidrHandling,
}

/// What becomes of the requests for a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SidrHandling {
    /// The engine gives each the same answer.
    Answer(Box<SidrAnswer>),
    /// Each is reported, to be answered by [`Endpoint::sidr_answer`](super::super::Endpoint::sidr_answer).
    Report {
        /// How many may be unanswered at once, at least 1; the next is refused with status 2.
        backlog: usize,
    },
}

impl SidrServe {
    /// A service whose requests the engine answers, at any port and GID.
    pub fn answering(service_id: ServiceId, answer: SidrAnswer) -> Self {
        Self::new(service_id, SidrHandling::Answer(Box::new(answer)))
    }

    /// A service whose requests are reported, at any port and GID, 128 at once.
    pub fn reporting(service_id: ServiceId) -> Self {
        Self::new(service_id, SidrHandling::Report { backlog: 128 })
    }

    fn new(service_id: ServiceId, handling: SidrHandling) -> Self {
        Self { service_id, port: None, local_gid: None, by_ip: false, handling }
    }
}

/// What a request is answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SidrAnswer {
    /// Whether there is a queue pair, or why not.
    pub status: SidrStatus,
    /// What goes with the status.
    pub info: SidrInfo,
    /// The queue pair, with [`SidrStatus::VALID`].
    pub qpn: Qpn,
    /// Its Q_Key, with [`SidrStatus::VALID`].
    pub qkey: QKey,
    /// For the peer's application.
    pub private_data: PrivateData<136>,
}

impl SidrAnswer {
    /// This queue pair serves it.
    pub const fn resolved(qpn: Qpn, qkey: QKey) -> Self {
        Self { qpn, qkey, ..Self::refusal(SidrStatus::VALID) }
    }

    /// No.
    pub const fn refusal(status: SidrStatus) -> Self {
        Self {
            status,
            info: SidrInfo::None,
            qpn: Qpn::truncate(0),
            qkey: QKey(0),
            private_data: PrivateData::EMPTY,
        }
    }

    /// Ask there; [`ClassPortInfo::redirect`] is what counts.
    pub const fn redirect(to: ClassPortInfo) -> Self {
        Self { info: SidrInfo::Redirect(to), ..Self::refusal(SidrStatus::REDIRECT) }
    }
}
