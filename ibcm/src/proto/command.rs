//! What an endpoint is told to do.

use std::time::{Duration, Instant};

use ibwire::{Gid, Lid, PrivateData, Qpn, RejReason, ServiceId, TimeCode};

use super::discriminator::Discriminator;
use super::message::{Eecn, RejectInfo};
use super::path::Path;
use super::transport::{RdEnd, Transport, Transports};

/// Where to listen, for [`Endpoint::listen`](super::Endpoint::listen).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listen {
    /// The service to offer.
    pub service_id: ServiceId,
    /// Which bits of the service ID count; the others must be 0 in it. Of several listeners that a request fits, those count
    /// whose mask has most bits. Default: all.
    pub service_mask: u64,
    /// Only requests whose primary path ends at this port, from 1, wherever they arrive. Default: any port.
    pub port: Option<u8>,
    /// Only requests for this GID. Default: any of ours.
    pub local_gid: Option<Gid>,
    /// Only requests whose primary path ends at this LID. None comes over Ethernet. Default: any of ours.
    pub local_lid: Option<Lid>,
    /// Only requests whose private data has these bytes. Default: whatever it has.
    pub discriminator: Option<Discriminator>,
    /// Requests for other transports are rejected with reason 9. At least one. Default: reliable connections only.
    pub transports: Transports,
    /// How long the user takes to decide, queueing included. More than zero. A request that gives less time is answered by an
    /// MRA at once, any other one at half of its time; the MRA asks for this long, but never for more than
    /// [`Config::max_mra_service_timeout`](super::Config::max_mra_service_timeout). `None`, the default: at half of the
    /// time, for [`Config::mra_service_timeout`](super::Config::mra_service_timeout).
    pub turnaround: Option<Duration>,
    /// What the MRAs carry for the peer's application.
    pub mra_data: PrivateData<222>,
    /// How many requests may be undecided, neither accepted nor rejected, at once. At least 1. Default 128.
    pub backlog: usize,
    /// What happens to the next one. Default: it is dropped.
    pub overflow: Overflow,
}

/// What happens to a request for which its listener has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Overflow {
    /// It is dropped as if the network had lost it. Its sender repeats it, and there may be room then.
    #[default]
    Drop,
    /// It is rejected with this reason, for instance [`RejReason::NO_RESOURCES`].
    Reject(RejReason),
}

impl Listen {
    /// This service ID, any port, address and private data, reliable connections, backlog 128.
    pub const fn new(service_id: ServiceId) -> Self {
        Self {
            service_id,
            service_mask: u64::MAX,
            port: None,
            local_gid: None,
            local_lid: None,
            discriminator: None,
            transports: Transports::RC,
            turnaround: None,
            mra_data: PrivateData::EMPTY,
            backlog: 128,
            overflow: Overflow::Drop,
        }
    }
}

/// A request to send, for [`Endpoint::connect`](super::Endpoint::connect).
///
/// Communication ID, transaction ID and starting PSN are drawn by the endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Connect {
    /// The way to the peer.
    pub path: Path,
    /// The service wanted there.
    pub service_id: ServiceId,
    /// Our queue pair. It must be in INIT. With XRC the initiator.
    pub qpn: Qpn,
    /// Its transport. Default: RC.
    pub transport: Transport,
    /// With reliable datagrams our EE context, for which the attributes are; `None` with all others, and by default.
    pub rd: Option<RdEnd>,
    /// With reliable datagrams the peer's EE context, if ours is connected to it already: the RDC exists. Default: `None`.
    pub rdc: Option<Eecn>,
    /// RDMA reads and atomics of the peer that our QP serves at once; 0 also closes our memory to them. `None`, the
    /// default: as many as the device can. More than that is invalid.
    pub responder_resources: Option<u8>,
    /// RDMA reads and atomics that our QP will have outstanding. `None`, the default: as many as the device can. More
    /// than that is invalid.
    pub initiator_depth: Option<u8>,
    /// Transport retries, for both QPs, 0..=7; with XRC for ours alone, with UC there are none. Default 7.
    pub retry_count: u8,
    /// RNR retries, for the peer's QP, 0..=7; 7, the default, is for ever.
    pub rnr_retry_count: u8,
    /// Within which time the peer shall answer, flight time not counted. Default 20 (4.3 s).
    pub response_timeout: TimeCode,
    /// Within which time we answer the peer's reply, flight time both ways included. Default 20 (4.3 s).
    pub local_response_timeout: TimeCode,
    /// How often REQ, REP and DREQ may be re-sent, 0..=15. Default 15.
    pub max_cm_retries: u8,
    /// Up to so much longer is each wait for an answer to the REQ, by chance, so that many who ask together and find the
    /// peer's backlog full do not come back together. Default zero: exact periods.
    pub jitter: Duration,
    /// Our QP uses a shared receive queue.
    pub srq: bool,
    /// Our receive queue returns end-to-end credits.
    pub end_to_end_flow_control: bool,
    /// Another path to the same peer, to which the queue pairs can migrate. It has the P_Key of `path` and carries its
    /// MTU, and the device can migrate paths. The peer may decline it. Default: none.
    pub alternate: Option<Path>,
    /// For the peer's application.
    pub private_data: PrivateData<92>,
    /// When to give up waiting for the reply, whatever retries are left and however busy the peer says it is.
    /// `None`, the default: retries and MRAs decide, and MRAs can stretch each wait to
    /// [`Config::max_mra_wait`](super::Config::max_mra_wait).
    pub deadline: Option<Instant>,
}

impl Connect {
    /// A request with the defaults named at the fields.
    pub const fn new(path: Path, service_id: ServiceId, qpn: Qpn) -> Self {
        Self {
            path,
            service_id,
            qpn,
            transport: Transport::Rc,
            rd: None,
            rdc: None,
            responder_resources: None,
            initiator_depth: None,
            retry_count: 7,
            rnr_retry_count: 7,
            response_timeout: TimeCode::truncate(20),
            local_response_timeout: TimeCode::truncate(20),
            max_cm_retries: 15,
            jitter: Duration::ZERO,
            srq: false,
            end_to_end_flow_control: false,
            alternate: None,
            private_data: PrivateData::EMPTY,
            deadline: None,
        }
    }
}

/// How to accept a request, for [`Endpoint::accept`](super::Endpoint::accept).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Accept {
    /// Our queue pair, of the request's transport. With XRC the target.
    pub qpn: Qpn,
    /// With reliable datagrams our EE context, for which the attributes are; `None` with all others, and by default.
    pub rd: Option<RdEnd>,
    /// RDMA reads and atomics of the peer that our QP serves at once. `None`, the default:
    /// [`Request::responder_resources`](super::Request::responder_resources). More than that is invalid.
    pub responder_resources: Option<u8>,
    /// RDMA reads and atomics that our QP will have outstanding. `None`, the default:
    /// [`Request::initiator_depth`](super::Request::initiator_depth). More than that is invalid.
    pub initiator_depth: Option<u8>,
    /// RNR retries, for the peer's QP, 0..=7; 7, the default, is for ever.
    pub rnr_retry_count: u8,
    /// Our QP uses a shared receive queue.
    pub srq: bool,
    /// Our receive queue returns end-to-end credits.
    pub end_to_end_flow_control: bool,
    /// Whether alternate paths are taken, that of the REQ if it can be used, and later ones. Without, or where the device
    /// can't migrate paths, they are declined. Default true.
    pub failover: bool,
    /// For the peer's application.
    pub private_data: PrivateData<196>,
    /// When to give up waiting for the RTU. `None`, the default: as with [`Connect::deadline`].
    pub deadline: Option<Instant>,
}

impl Accept {
    /// Acceptance with the defaults named at the fields.
    pub const fn new(qpn: Qpn) -> Self {
        Self {
            qpn,
            rd: None,
            responder_resources: None,
            initiator_depth: None,
            rnr_retry_count: 7,
            srq: false,
            end_to_end_flow_control: false,
            failover: true,
            private_data: PrivateData::EMPTY,
            deadline: None,
        }
    }
}

/// Which alternate path to load, for [`Endpoint::load_path`](super::Endpoint::load_path).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadPath {
    /// The path, as with [`Connect::alternate`].
    pub path: Path,
    /// Within which time the peer shall answer, flight time not counted. Default 20 (4.3 s).
    pub response_timeout: TimeCode,
    /// For the peer's application.
    pub private_data: PrivateData<168>,
    /// When to give up waiting for the answer. `None`, the default: when the retries that the REQ allowed are used up.
    pub deadline: Option<Instant>,
}

impl LoadPath {
    /// A path with the defaults named at the fields.
    pub const fn new(path: Path) -> Self {
        Self {
            path,
            response_timeout: TimeCode::truncate(20),
            private_data: PrivateData::EMPTY,
            deadline: None,
        }
    }
}

/// Why a request or reply is rejected, for [`Endpoint::reject`](super::Endpoint::reject).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reject {
    /// The reason.
    pub reason: RejReason,
    /// What goes with the reason.
    pub info: RejectInfo,
    /// For the peer's application.
    pub private_data: PrivateData<148>,
}

impl Reject {
    /// A rejection without information or private data.
    pub const fn new(reason: RejReason) -> Self {
        Self { reason, info: RejectInfo::None, private_data: PrivateData::EMPTY }
    }
}

/// How to disconnect, for [`Endpoint::disconnect`](super::Endpoint::disconnect).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Disconnect {
    /// For the peer's application.
    pub private_data: PrivateData<220>,
    /// When to give up waiting for the DREP. The DREQ is sent even if that has passed. `None`, the default: when the
    /// retries that the REQ allowed are used up, or after
    /// [`Config::max_disconnect_time`](super::Config::max_disconnect_time).
    pub deadline: Option<Instant>,
}
