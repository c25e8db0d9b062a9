//! The way to a peer.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use ibdev::qp::Init;
use ibdev::{Device, GidEntry, GidKind, LinkLayer};
use ibsa::{PathQuery, QueryError as SaError};
use ibwire::{Gid, Mtu, PKey, PathRecord, Qpn, Rate, ServiceId, ServiceLevel};
use pin_project::pin_project;

use crate::clock::now;
use crate::error::{ConnectError, QueryError};
use crate::port::Port;
use crate::proto::{self, Invalid, Limit, LocalPort, Value};
use crate::shared::Unavailable;

/// A path to a peer, bound to the local port that it starts from.
///
/// On RoCE it is made up of the addresses, as Linux does; on InfiniBand the SA is asked for it, or the cache of its answers;
/// in a [`sim::Subnet`](crate::sim::Subnet) it comes from the subnet's table.
#[derive(Debug, Clone)]
pub struct Path {
    port: Port,
    record: PathRecord,
    source: PathSource,
}

/// Where a [`Path`] comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathSource {
    /// The SA, which was asked for it.
    Sa,
    /// What the SA had answered before.
    Cache {
        /// How long before the path was asked for.
        age: Duration,
    },
    /// The addresses of a RoCE port.
    Addresses,
    /// The table of a [`sim::Subnet`](crate::sim::Subnet).
    Subnet,
    /// The program, by [`Path::from_record`].
    Program,
}

/// A [`Path`] to one of the peer's services: what [`Connection::connect`](crate::Connection::connect) takes.
#[derive(Debug, Clone)]
pub struct ServicePath {
    path: Path,
    service_id: ServiceId,
}

impl Path {
    /// A path made by hand. Whether its SGID is the port's is checked where it is used.
    pub fn from_record(port: &Port, record: PathRecord) -> Self {
        Self { port: port.clone(), record, source: PathSource::Program }
    }

    /// The path with all its attributes.
    pub const fn record(&self) -> &PathRecord {
        &self.record
    }

    /// Where it comes from.
    pub const fn source(&self) -> PathSource {
        self.source
    }

    /// The local port.
    pub const fn port(&self) -> &Port {
        &self.port
    }

    /// The path to a service at its end.
    pub fn with_service(&self, service_id: ServiceId) -> ServicePath {
        ServicePath { path: self.clone(), service_id }
    }

    /// What a queue pair of the program's own has to be programmed with for RESET to INIT, before it connects along this path:
    /// see [`handshake`](crate::handshake). The peer may do all that the device can; with
    /// [`responder_resources`](crate::handshake::LocalQp::responder_resources) of 0 take
    /// [`Access::REMOTE_WRITE`](crate::Access::REMOTE_WRITE) alone.
    ///
    /// # Errors
    /// What connecting along this path would answer: [`ConnectError::Invalid`] if its SGID or P_Key is not in the table of
    /// the port, [`ConnectError::PortDown`], [`ConnectError::Device`] if the device is gone.
    pub fn qp_init(&self) -> Result<Init, ConnectError> {
        let connect = proto::Connect::new(self.inner(), ServiceId::new(0), Qpn::default());
        Ok(self.port.hca().shared().engine().endpoint.connect_init(&connect)?)
    }

    /// Nobody answers at its end: what the SA said of it may be of before, so the next one is asked for.
    pub(crate) fn was_silent(&self) {
        if matches!(self.source, PathSource::Sa | PathSource::Cache { .. }) {
            self.port.sa().forget_paths(self.record.dgid);
        }
    }

    /// As the alternate path beside this one.
    pub(crate) fn beside(&self, primary: &Self) -> Result<proto::Path, Invalid> {
        if std::sync::Arc::ptr_eq(self.port.hca().shared(), primary.port.hca().shared()) {
            return Ok(self.inner());
        }
        let must = Limit::Must("one of the connection's HCA");
        Err(Invalid::new("alternate path", Value::Gid(self.record.sgid), must))
    }

    pub(crate) fn inner(&self) -> proto::Path {
        proto::Path { port: self.port.number(), record: self.record }
    }
}

impl ServicePath {
    /// The service.
    pub const fn service_id(&self) -> ServiceId {
        self.service_id
    }

    pub(crate) fn into_path(self) -> Path {
        self.path
    }
}

impl Deref for ServicePath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.record.fmt(f)
    }
}

impl fmt::Display for ServicePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, service {}", self.path, self.service_id)
    }
}

/// Which path to find: a builder that is itself the future of the [`Path`], or of the [`ServicePath`] once a
/// service is named.
///
/// ```
/// # use ibcm::{Hca, Mtu, ServiceId};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (hca, server) = (Hca::open("soft").await?, Hca::open("soft").await?);
/// let path = hca.path_to(server.gid()).mtu(Mtu::B1024).await?;
/// assert_eq!((path.record().sgid, path.record().dgid), (hca.gid(), server.gid()));
/// let to_service = path.with_service(ServiceId::new(7)); // the same as .service_id(..) before .await
/// # drop(to_service);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`QueryError`]: nobody has that GID where the port reaches, the port is down, or a value is out of range.
///
/// # Cancel safety
/// Dropped, nothing is left behind.
#[pin_project(!Unpin)]
#[must_use = "nothing is looked up before it is awaited"]
pub struct PathBuilder<S = ()> {
    config: Option<PathConfig>,
    run: Option<BoxFuture<'static, Result<Path, QueryError>>>,
    service: S,
}

#[derive(Debug, Clone)]
struct PathConfig {
    /// To start from; one port of its HCA, or any.
    origin: Origin,
    dgid: Gid,
    sgid: Option<Gid>,
    p_key: Option<PKey>,
    sl: Option<u8>,
    traffic_class: Option<u8>,
    mtu: Option<Mtu>,
    rate: Option<Rate>,
    fresh: bool,
    deadline: Option<Duration>,
}

/// Where a path may start.
#[derive(Debug, Clone)]
pub(crate) enum Origin {
    Port(Port),
    /// The ports in the order in which they are tried.
    Any(Vec<Port>),
}

impl PathBuilder {
    pub(crate) fn new(origin: Origin, dgid: Gid) -> Self {
        let config = PathConfig {
            origin,
            dgid,
            sgid: None,
            p_key: None,
            sl: None,
            traffic_class: None,
            mtu: None,
            rate: None,
            fresh: false,
            deadline: None,
        };
        Self { config: Some(config), run: None, service: () }
    }

    /// Makes it the path to this service.
    pub fn service_id(self, service_id: ServiceId) -> PathBuilder<ServiceId> {
        PathBuilder { config: self.config, run: self.run, service: service_id }
    }
}

impl<S> PathBuilder<S> {
    fn set(mut self, f: impl FnOnce(&mut PathConfig)) -> Self {
        if let Some(config) = &mut self.config {
            f(config);
        }
        self
    }

    /// The local GID to start from. Default: the first that fits the destination.
    pub fn sgid(self, gid: Gid) -> Self {
        self.set(|config| config.sgid = Some(gid))
    }

    /// The partition. Default: the port's first.
    pub fn p_key(self, p_key: PKey) -> Self {
        self.set(|config| config.p_key = Some(p_key))
    }

    /// The service level, 0..=15.
    pub fn sl(self, sl: u8) -> Self {
        self.set(|config| config.sl = Some(sl))
    }

    /// The traffic class; on RoCE the DSCP and ECN bits of the packets.
    pub fn traffic_class(self, class: u8) -> Self {
        self.set(|config| config.traffic_class = Some(class))
    }

    /// The path MTU, no larger than that of the path. Default: that of the path.
    pub fn mtu(self, mtu: Mtu) -> Self {
        self.set(|config| config.mtu = Some(mtu))
    }

    /// The static rate.
    pub fn rate(self, rate: Rate) -> Self {
        self.set(|config| config.rate = Some(rate))
    }

    /// Asks the SA even if its answer of before is known. Where no SA is asked there is none.
    pub fn fresh(self) -> Self {
        self.set(|config| config.fresh = true)
    }

    /// How long the SA may take, for all ports that are tried together, one after the other. More than zero; default
    /// [`default_timeout`](crate::sa::Client::default_timeout) for each of them. Where no SA is asked the path is there at once.
    pub fn deadline(self, deadline: Duration) -> Self {
        self.set(|config| config.deadline = Some(deadline))
    }
}

impl PathConfig {
    async fn run(self) -> Result<Path, QueryError> {
        let dgid = self.dgid;
        if let Some(deadline) = self.deadline {
            Invalid::more_than_zero("deadline", deadline)?;
        }
        if dgid.is_unspecified() || dgid.is_multicast() {
            let must = Limit::Must("the GID of a port");
            return Err(Invalid::new("destination GID", Value::Gid(dgid), must).into());
        }
        let (port, mut record, source) = self.find().await?;
        if let Some(p_key) = self.p_key {
            record.pkey = p_key;
        }
        if let Some(sl) = self.sl {
            Invalid::at_most("service level", sl, ServiceLevel::MAX.get())?;
            record.sl = ServiceLevel::truncate(sl);
        }
        if let Some(class) = self.traffic_class {
            record.traffic_class = class;
        }
        if let Some(rate) = self.rate {
            record.rate = rate;
        }
        if let Some(mtu) = self.mtu {
            if mtu.bytes().is_none() || mtu > record.mtu {
                let most = Limit::AtMost(Value::Mtu(record.mtu));
                return Err(Invalid::new("path MTU", Value::Mtu(mtu), most).into());
            }
            record.mtu = mtu;
        }
        Ok(Path { port, record, source })
    }

    /// What of the wanted the SA has to know to find the path, and how long it may take since `started`.
    fn ask(&self, started: Instant, query: PathQuery) -> PathQuery {
        let query = if self.fresh { query.uncached() } else { query };
        let query = match self.deadline {
            Some(deadline) => {
                query.timeout(deadline.saturating_sub(now().saturating_duration_since(started)))
            }
            None => query,
        };
        let query = match self.p_key {
            Some(p_key) => query.p_key(p_key),
            None => query,
        };
        match self.sl {
            Some(sl) => query.sl(sl),
            None => query,
        }
    }

    /// What ended with its part of the deadline, told of the whole.
    fn whole(&self, error: QueryError) -> QueryError {
        match (self.deadline, error) {
            (Some(deadline), QueryError::Sa(error)) if matches!(*error, SaError::Late(_)) => {
                QueryError::Sa(Box::new(SaError::Late(deadline)))
            }
            (_, error) => error,
        }
    }

    /// The first port that has a path, the one with the wanted SGID if one is wanted. A port whose SA fails holds up no other.
    async fn find(&self) -> Result<(Port, PathRecord, PathSource), QueryError> {
        let ports = match &self.origin {
            Origin::Port(port) => std::slice::from_ref(port),
            Origin::Any(ports) => ports,
        };
        let started = now();
        let (mut down, mut failed) = (None, None);
        let mut owned = self.sgid.is_none();
        for port in ports {
            let shared = port.hca().shared();
            let (device, local) = {
                let engine = shared.engine();
                let device = engine.device()?;
                (device, engine.endpoint.local_ca().port(port.number()).cloned())
            };
            let Some(local) = local else { continue };
            if let Some(sgid) = self.sgid {
                if local.gid_index(sgid).is_none() {
                    continue;
                }
                owned = true;
            }
            if !local.active {
                down.get_or_insert(port.number());
                continue;
            }
            if local.link_layer == LinkLayer::InfiniBand && !knows_paths(&*device, local.number) {
                let ask = |query| self.ask(started, query);
                match crate::sa::path(shared, local.number, self.sgid, self.dgid, ask).await {
                    Ok((record, source)) => return Ok((port.clone(), record, source)),
                    Err(QueryError::NoPath { .. }) => continue,
                    Err(error) => {
                        failed.get_or_insert(error);
                        continue;
                    }
                }
            }
            if let Some(record) = path_from(&*device, &local, self.sgid, self.dgid) {
                let source = match local.link_layer {
                    LinkLayer::Ethernet => PathSource::Addresses,
                    _ => PathSource::Subnet,
                };
                return Ok((port.clone(), record, source));
            }
        }
        if let Some(sgid) = self.sgid.filter(|_| !owned) {
            let must = Limit::Must("a GID of the HCA's port");
            return Err(Invalid::new("SGID", Value::Gid(sgid), must).into());
        }
        Err(match (failed, down) {
            (Some(error), _) => self.whole(error),
            (None, Some(port)) => QueryError::PortDown { port },
            (None, None) => QueryError::NoPath { dgid: self.dgid },
        })
    }
}

/// Whether the device knows the paths of its subnet itself: on one in this process that has no subnet manager to be asked.
fn knows_paths(device: &dyn Device, port: u8) -> bool {
    #[cfg(feature = "soft")]
    return device.as_any().is::<ibsoft::SoftDevice>()
        && device.port(port).is_ok_and(|attr| attr.sm_lid == ibwire::Lid::NONE);
    #[cfg(not(feature = "soft"))]
    {
        let _ = (device, port);
        false
    }
}

/// The path from a port: looked up where the fabric is our own, made up on RoCE.
pub(crate) fn path_from(
    device: &dyn Device,
    port: &LocalPort,
    sgid: Option<Gid>,
    dgid: Gid,
) -> Option<PathRecord> {
    #[cfg(feature = "soft")]
    if port.link_layer != LinkLayer::Ethernet {
        let mut record = device.as_any().downcast_ref::<ibsoft::SoftDevice>()?.resolve(port.number, dgid)?;
        record.sgid = sgid.unwrap_or(record.sgid);
        return Some(record);
    }
    let _ = device;
    let sgid = match sgid {
        Some(sgid) => Some(sgid).filter(|sgid| same_family(*sgid, dgid))?,
        None => source(port, dgid)?,
    };
    Some(synthesized(port, sgid, dgid))
}

const fn same_family(a: Gid, b: Gid) -> bool {
    a.to_ip().is_ipv4() == b.to_ip().is_ipv4()
}

/// The RoCE v2 address of the port that fits `dgid` best: of the same family, the one that the system's own
/// route to it starts from, else the first that is link-local if that one is.
fn source(port: &LocalPort, dgid: Gid) -> Option<Gid> {
    let fits = |entry: &&GidEntry| entry.kind == GidKind::RoceV2 && same_family(entry.gid, dgid);
    let mut fitting = port.gids.iter().filter(fits).map(|entry| entry.gid);
    let first = fitting.clone().next()?;
    if fitting.clone().nth(1).is_none() {
        return Some(first);
    }
    let of_route = crate::route::source_to(dgid.to_ip()).map(Gid::from_ip);
    if let Some(gid) = of_route.filter(|of_route| fitting.clone().any(|gid| gid == *of_route)) {
        return Some(gid);
    }
    Some(fitting.find(|gid| gid.is_link_local() == dgid.is_link_local()).unwrap_or(first))
}

/// As Linux makes RoCE paths (spec/sa.md 7.4).
fn synthesized(port: &LocalPort, sgid: Gid, dgid: Gid) -> PathRecord {
    let pkey = port.pkeys.first().copied().unwrap_or(PKey::DEFAULT);
    PathRecord { pkey, ..PathRecord::roce(sgid, dgid, port.mtu) }
}

impl Future for PathBuilder {
    type Output = Result<Path, QueryError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        crate::builder::poll(this.config, this.run, PathConfig::run, cx)
    }
}

impl Future for PathBuilder<ServiceId> {
    type Output = Result<ServicePath, QueryError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let service_id = *this.service;
        crate::builder::poll(this.config, this.run, PathConfig::run, cx)
            .map_ok(|path| ServicePath { path, service_id })
    }
}

impl<S: fmt::Debug> fmt::Debug for PathBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PathBuilder")
            .field("config", &self.config)
            .field("service", &self.service)
            .finish_non_exhaustive()
    }
}

impl From<Unavailable> for QueryError {
    fn from(unavailable: Unavailable) -> Self {
        match unavailable {
            Unavailable::Gone => Self::Device(ibdev::DeviceError::Gone),
            Unavailable::Closed => Self::Closed,
        }
    }
}
