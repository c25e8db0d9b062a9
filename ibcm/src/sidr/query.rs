//! The active side: from a service ID to a socket.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use ibdev::DeviceError;
use ibwire::{Gid, PrivateData, ServiceId};
use pin_project::pin_project;
use tokio::sync::oneshot;

use super::Info;
use super::error::QueryError;
use super::reply::Reply;
use crate::clock::now;
use crate::default_device;
use crate::hca::Hca;
use crate::path::{Path, ServicePath};
use crate::proto::message::IpHeader;
use crate::proto::{self, Invalid, Limit, SidrEvent, SidrQuery, SidrQueryHandle, Value};
use crate::shared::{Shared, Unavailable};
use crate::timing::{DEADLINE, Timing};

/// Whom to ask for a datagram service: a builder that is itself the future of the [`Reply`]. `N` bytes of private data go
/// along.
///
/// Awaited, it sends a request and repeats it within the [`deadline`](Self::deadline) until it is answered. A peer that
/// redirects is followed, three times at most.
///
/// # Errors
/// [`QueryError`]: the peer's no, its silence, or what is wrong on this side; then nothing was sent.
///
/// # Cancel safety
/// Dropped, the request is forgotten; an answer that comes later is ignored.
#[pin_project(!Unpin)]
#[must_use = "nothing is sent before it is awaited"]
pub struct Query<const N: usize> {
    config: Option<Config>,
    run: Option<BoxFuture<'static, Result<Reply, QueryError>>>,
}

#[derive(Clone)]
struct Config {
    target: Target,
    device: Option<Hca>,
    /// For IP the first 180 bytes count.
    private_data: [u8; 216],
    deadline: Duration,
    response_timeout: Option<Duration>,
}

#[derive(Debug, Clone)]
enum Target {
    Service(ServicePath),
    Ip(SocketAddr),
}

/// Asks the peer that the path leads to for the socket of a service.
///
/// ```
/// # use ibcm::{Hca, ServiceId, sidr};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (hca, sid) = (Hca::open("soft").await?, ServiceId::new(7));
/// let path = hca.path_to(hca.gid()).service_id(sid).await?;
/// match sidr::query(path).private_data(b"who?").deadline(Duration::from_secs(2)).await {
///     Ok(reply) => println!("it is {}", reply.peer()),
///     Err(sidr::QueryError::Refused { status, .. }) => println!("refused: {status}"), // nobody serves it here
///     Err(other) => return Err(other.into()),
/// }
/// # Ok(())
/// # }
/// ```
pub fn query(path: ServicePath) -> Query<216> {
    Query::new(Target::Service(path))
}

/// Asks an IP address for the socket of a port, as librdmacm does for port space UDP: what
/// [`publish_ip`](super::publish_ip) or `rdma_listen` offers there.
///
/// Without [`Query::device`] and `IBCM_DEVICE` the device is the one that owns the source address of the route.
pub fn query_ip(address: impl Into<SocketAddr>) -> Query<180> {
    Query::new(Target::Ip(address.into()))
}

impl<const N: usize> Query<N> {
    fn new(target: Target) -> Self {
        let config = Config {
            target,
            device: None,
            private_data: [0; 216],
            deadline: DEADLINE,
            response_timeout: None,
        };
        Self { config: Some(config), run: None }
    }

    fn set(mut self, f: impl FnOnce(&mut Config)) -> Self {
        if let Some(config) = &mut self.config {
            f(config);
        }
        self
    }

    /// What goes to the peer's program.
    pub fn private_data(self, data: impl Into<PrivateData<N>>) -> Self {
        const { assert!(N <= 216, "a SIDR_REQ has room for 216 bytes") };
        let data = data.into();
        self.set(|config| config.private_data[..N].copy_from_slice(&data))
    }

    /// How long everything may take, path and redirections included. More than zero; default 10 s. How often the request is
    /// repeated meanwhile follows from it, as with [`Connect::deadline`](crate::Connect::deadline).
    pub fn deadline(self, deadline: Duration) -> Self {
        self.set(|config| config.deadline = deadline)
    }

    /// How long the peer may think before the request is repeated; flight time comes on top. At most 2.4 hours.
    /// Default: by the rule of [`deadline`](Self::deadline).
    pub fn response_timeout(self, timeout: Duration) -> Self {
        self.set(|config| config.response_timeout = Some(timeout))
    }

    /// The HCA to ask from. With a [`ServicePath`], which has one already, it can only be the same.
    pub fn device(self, hca: &Hca) -> Self {
        self.set(|config| config.device = Some(hca.clone()))
    }
}

/// Where it goes and what it says.
struct Resolved {
    path: Path,
    service_id: ServiceId,
    private_data: PrivateData<216>,
}

/// A query under way. Dropped, it is forgotten.
struct Asked {
    shared: Arc<Shared>,
    handle: SidrQueryHandle,
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.shared.command(|engine| {
            engine.endpoint.sidr_cancel(self.handle);
            engine.queries.remove(&self.handle)
        });
    }
}

impl Config {
    async fn run(self) -> Result<Reply, QueryError> {
        Invalid::more_than_zero("deadline", self.deadline)?;
        let started = now();
        let deadline = started.checked_add(self.deadline);
        let resolving = self.resolve();
        let Resolved { path, service_id, private_data } = match deadline {
            Some(at) => match tokio::time::timeout_at(at.into(), resolving).await {
                Ok(resolved) => resolved?,
                Err(_) => {
                    return Err(QueryError::Unreachable { sent: 0, waited: now() - started });
                }
            },
            None => resolving.await?,
        };
        let shared = Arc::clone(path.port().hca().shared());
        shared.has_cm()?;
        let query = self.request(&path, service_id, private_data, deadline);
        let (done, outcome) = oneshot::channel();
        let handle = shared.command(|engine| {
            engine.device()?;
            let handle = engine.endpoint.sidr_query(now(), &query).map_err(not_sent)?;
            engine.queries.insert(handle, done);
            Ok::<_, QueryError>(handle)
        })?;
        let asked = Asked { shared, handle };
        tracing::debug!(hca = %asked.shared.name, service = %service_id, peer = %path.record().dgid, "asking");
        let outcome = outcome.await;
        match outcome {
            Ok(SidrEvent::Resolved { rep, path: found, effort, .. }) => {
                tracing::debug!(service = %service_id, qpn = %rep.qpn, "resolved");
                let path = Path::from_record(path.port(), found.record);
                Ok(Reply::new(path, rep, effort))
            }
            Ok(SidrEvent::Refused { rep, .. }) => {
                tracing::debug!(service = %service_id, status = %rep.status, "not resolved");
                Err(QueryError::Refused {
                    status: rep.status,
                    info: Info::decode(rep.status, &rep.info),
                    private_data: Box::new(rep.private_data),
                })
            }
            Ok(SidrEvent::Timeout { effort, .. }) => {
                path.was_silent();
                Err(QueryError::Unreachable { sent: effort.sent.into(), waited: effort.waited })
            }
            Ok(_) => Err(DeviceError::Gone.into()),
            Err(_) => Err(QueryError::Closed),
        }
    }

    fn request(
        &self,
        path: &Path,
        service_id: ServiceId,
        private_data: PrivateData<216>,
        deadline: Option<Instant>,
    ) -> SidrQuery {
        let left = deadline.map_or(self.deadline, |deadline| deadline.saturating_duration_since(now()));
        let life_time = path.record().packet_life_time.time_code();
        let timing = Timing::derive(left, left, life_time, self.response_timeout);
        let mut query = SidrQuery::new(path.inner(), service_id);
        query.private_data = private_data;
        query.response_timeout = self.response_timeout.unwrap_or(timing.response_timeout.duration());
        query.jitter = timing.jitter;
        query.max_retries = timing.max_cm_retries;
        query.deadline = deadline;
        query
    }

    async fn resolve(&self) -> Result<Resolved, QueryError> {
        match &self.target {
            Target::Service(path) => {
                let path = path.clone();
                if self.device.as_ref().is_some_and(|device| device != path.port().hca()) {
                    let must = Limit::Must("one of the HCA given by device(..)");
                    let sgid = Value::Gid(path.record().sgid);
                    return Err(Invalid::new("the path's SGID", sgid, must).into());
                }
                let private_data = PrivateData::from_area(self.private_data);
                Ok(Resolved { service_id: path.service_id(), path: path.into_path(), private_data })
            }
            Target::Ip(address) => {
                let hca = match &self.device {
                    Some(hca) => hca.clone(),
                    None => default_device::for_route_to(address.ip()).await?,
                };
                let path = hca.path_to(Gid::from_ip(address.ip())).await?;
                let source_port = hca.shared().engine().source_port();
                let source = SocketAddr::new(path.record().sgid.to_ip(), source_port);
                let header = IpHeader::new(source, address.ip().to_canonical()).ok_or_else(|| {
                    let must = Limit::Must("an IP address of the peer's family");
                    Invalid::new("the path's SGID", Value::Gid(path.record().sgid), must)
                })?;
                let user = &self.private_data[..IpHeader::SIDR_USER_LEN];
                let private_data = header.private_data(user).map_err(Invalid::from)?;
                Ok(Resolved { path, service_id: ServiceId::udp_port(address.port()), private_data })
            }
        }
    }
}

fn not_sent(error: proto::ConnectError) -> QueryError {
    match error {
        proto::ConnectError::Invalid(invalid) => invalid.into(),
        proto::ConnectError::PortDown(port) => QueryError::PortDown { port },
        _ => DeviceError::Gone.into(),
    }
}

impl From<Unavailable> for QueryError {
    fn from(unavailable: Unavailable) -> Self {
        match unavailable {
            Unavailable::Gone => Self::Device(DeviceError::Gone),
            Unavailable::Closed => Self::Closed,
        }
    }
}

impl<const N: usize> Future for Query<N> {
    type Output = Result<Reply, QueryError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        crate::builder::poll(this.config, this.run, Config::run, cx)
    }
}

impl<const N: usize> std::fmt::Debug for Query<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let target = self.config.as_ref().map(|config| &config.target);
        f.debug_struct("Query").field("target", &target).finish_non_exhaustive()
    }
}
