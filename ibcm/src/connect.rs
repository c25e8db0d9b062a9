//! The active side: from a path to a connection.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use ibdev::{DeviceError, QueuePair};
use ibwire::{Gid, PrivateData, Qpn, RejReason, ServiceId};
use pin_project::pin_project;
use tracing::Instrument;

use crate::clock::now;
use crate::connection::Connection;
use crate::data::{Fresh, SetupError, to_rts};
use crate::default_device;
use crate::error::{AcceptError, Attempts, ConnectError, QpStep, Rejection};
use crate::handshake::{Answered, Asked, Left, Offer, Terms, Whom, before};
use crate::hca::Hca;
use crate::keepalive;
use crate::options::{Options, option_setters};
use crate::parked::Parked;
use crate::path::{Path, ServicePath};
use crate::proto::message::IpHeader;
use crate::proto::{self, Effort, Invalid, Limit, Transport, Value};
use crate::retry::Retry;
use crate::shared::Unavailable;
use crate::slot::End;
use crate::timing::DEADLINE;

/// How to connect: a builder that is itself the future of the [`Connection`]. `N` bytes of private data go
/// along.
///
/// Awaited, it makes a queue pair with its receives posted, sends the REQ, waits for the REP, readies the queue
/// pair and sends the RTU. All that is bounded by [`deadline`](Self::deadline). One attempt is made, and one
/// more if the peer still holds an older connection of the same queue pair (reason 10), unless
/// [`retry`](Self::retry) says otherwise.
///
/// # Errors
/// [`ConnectError`], that of the last attempt. [`ConnectError::is_local`] tells whether a peer had a part in it,
/// [`ConnectError::is_retryable`] whether the same may succeed later. A value out of range is
/// [`ConnectError::Invalid`], and nothing was sent.
///
/// # Cancel safety
/// Dropped before a REQ is out, or between two attempts, nothing has happened. Then: REJ 4 goes out, or REJ 28 if the
/// REP was there. Queue pair and ids are freed when no packet of the connection can be alive.
#[pin_project(!Unpin)]
#[must_use = "nothing is sent before it is awaited"]
pub struct Connect<const N: usize> {
    config: Option<ConnectConfig>,
    run: Option<BoxFuture<'static, Result<Connection, ConnectError>>>,
}

#[derive(Clone)]
struct ConnectConfig {
    target: Target,
    whom: Whom,
    device: Option<Hca>,
    /// For IP the first 56 bytes count.
    private_data: [u8; 92],
    rtu_data: PrivateData<224>,
    options: Options,
    deadline: Duration,
    retry: Retry,
    response_timeout: Option<Duration>,
    max_cm_retries: Option<u8>,
    retry_count: u8,
    transport: Transport,
    alternate: Option<Path>,
}

#[derive(Debug, Clone)]
enum Target {
    Service(ServicePath),
    Peer(Hca, Gid, ServiceId),
    Ip(SocketAddr),
}

impl Connection {
    /// Connects to the service that the path leads to.
    ///
    /// ```
    /// # use ibcm::{ConnectError::*, Connection, Hca, ServiceId};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (hca, sid) = (Hca::open("soft").await?, ServiceId::new(0x1000_0000_0000_0001));
    /// let path = hca.path_to(hca.gid()).service_id(sid).await?;
    /// match Connection::connect(path).private_data(b"hello").deadline(Duration::from_secs(5)).await {
    ///     Ok(conn) => println!("connected to {}", conn.peer()),
    ///     Err(Rejected(no)) => println!("{no}"), // nobody listens here: invalid service ID (8)
    ///     Err(Unreachable { sent, waited, .. }) => println!("{sent} requests, silence for {waited:?}"),
    ///     Err(here) => return Err(here.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect(path: ServicePath) -> Connect<92> {
        Connect::new(Target::Service(path))
    }

    /// Connects to a peer that does the same: nobody listens, nobody has to be first. Both sides call it with paths to each
    /// other, and for the same service, within each other's deadline. Each sends a REQ; one of them counts, that of the HCA
    /// with the larger node GUID, on one HCA that of the larger queue pair number. [`Connection::role`] tells which side
    /// this one has become.
    ///
    /// A peer that has not called yet, and rejects the REQ with reason 8, is asked again until the deadline. If a
    /// [`Listener`](crate::Listener) takes the REQ meanwhile, the connection is one to it. Several calls for one service
    /// between the same two GIDs meet in any order. What goes along in the REQ goes along in the REP, too: the peer sees it
    /// either way. [`rtu_data`](Connect::rtu_data) is sent only by the active side.
    ///
    /// ```
    /// # use ibcm::{Connection, Hca, Role, ServiceId};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (one, other) = (Hca::open("soft").await?, Hca::open("soft").await?);
    /// let sid = ServiceId::new(0x1000_0000_0000_0001);
    /// let to_other = one.path_to(other.gid()).service_id(sid).await?;
    /// let to_one = other.path_to(one.gid()).service_id(sid).await?;
    /// let there = tokio::spawn(Connection::connect_peer(to_one).private_data(b"rank 1"));
    /// let here = Connection::connect_peer(to_other).private_data(b"rank 0").await?;
    /// let there = there.await??;
    /// assert_eq!((&here.private_data()[..6], &there.private_data()[..6]), (&b"rank 1"[..], &b"rank 0"[..]));
    /// assert_ne!(here.role(), there.role());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Connection::connect`]. A peer that gives up after its REQ has won is [`ConnectError::Rejected`] or
    /// [`ConnectError::Disconnected`].
    pub fn connect_peer(path: ServicePath) -> Connect<92> {
        Connect::new(Target::Service(path)).set(|config| config.whom = Whom::Peer)
    }

    /// Connects to an IP address and port, as librdmacm does for port space TCP: to what
    /// [`Listener::bind_ip`](crate::Listener::bind_ip) or `rdma_listen` offers there.
    ///
    /// Without [`Connect::device`] and `IBCM_DEVICE` the device is the one that owns the source address of the
    /// route.
    pub fn connect_ip(address: impl Into<SocketAddr>) -> Connect<56> {
        Connect::new(Target::Ip(address.into()))
    }
}

impl Connect<92> {
    /// Connects to a peer to whom each attempt finds the path itself.
    pub(crate) fn to_peer(hca: &Hca, gid: Gid, service_id: ServiceId) -> Self {
        Self::new(Target::Peer(hca.clone(), gid, service_id))
    }
}

impl<const N: usize> Connect<N> {
    fn new(target: Target) -> Self {
        let config = ConnectConfig {
            target,
            whom: Whom::Listener,
            device: None,
            private_data: [0; 92],
            rtu_data: PrivateData::EMPTY,
            options: Options::default(),
            deadline: DEADLINE,
            retry: Retry::default(),
            response_timeout: None,
            max_cm_retries: None,
            retry_count: 7,
            transport: Transport::Rc,
            alternate: None,
        };
        Self { config: Some(config), run: None }
    }

    /// Whether and when there is another attempt.
    pub(crate) fn retry_rule(&self) -> &Retry {
        &self.config.as_ref().expect("not polled: it could not have been moved since").retry
    }

    /// Runs it within what is left of a common deadline, and adds what it does to `all`.
    pub(crate) async fn go_on(
        self,
        left: Option<Duration>,
        all: &mut Attempts,
    ) -> Result<Connection, ConnectError> {
        let mut config = self.config.expect("not polled: it could not have been moved since");
        config.deadline = left.map_or(config.deadline, |left| left.min(config.deadline));
        config.run(all).await
    }

    fn set(mut self, f: impl FnOnce(&mut ConnectConfig)) -> Self {
        if let Some(config) = &mut self.config {
            f(config);
        }
        self
    }

    fn option(self, f: impl FnOnce(&mut Options)) -> Self {
        self.set(|config| f(&mut config.options))
    }

    option_setters!();

    /// What goes to the peer's program in the REQ.
    pub fn private_data(self, data: impl Into<PrivateData<N>>) -> Self {
        const { assert!(N <= 92, "a REQ has room for 92 bytes") };
        let data = data.into();
        self.set(|config| config.private_data[..N].copy_from_slice(&data))
    }

    /// What goes to the peer's program in the RTU.
    pub fn rtu_data(self, data: impl Into<PrivateData<224>>) -> Self {
        self.set(|config| config.rtu_data = data.into())
    }

    /// How long everything may take, from the first poll until the RTU is sent: path, queue pair, all attempts and the
    /// pauses between them. More than zero; default 10 s.
    ///
    /// What the REQ of an attempt tells the peer about time follows from what is left of the deadline then, and from the
    /// life time of a packet on the path. One period, from one REQ to the next, is the response timeout and two life
    /// times, and by chance up to half a response timeout more, or up to a life time if that is longer: so that those who
    /// asked together, and found the peer's backlog full, do not ask again together.
    /// - Response timeout: the longest of 4.096 us times 2^n, n from 12 to 20, with which eight periods fit what is left;
    ///   the shortest if they don't with any.
    /// - Max CM retries: as many as begin within what is left, at least 4, at most 15. The peer repeats its REP as often,
    ///   and both sides a DREQ.
    /// - Local response timeout, within which this side answers the REP: one period, rounded up to such a time.
    ///
    /// On RoCE, where the life time is 268 ms:
    ///
    /// | left | response timeout | period | max CM retries | local response timeout |
    /// |---|---|---|---|---|
    /// | 1 s | 16.8 ms (code 12) | 0.55 s | 4 | 1.07 s (18) |
    /// | 5 s | 67 ms (14) | 0.60 s | 8 | 1.07 s (18) |
    /// | 10 s | 0.54 s (17) | 1.07 s | 9 | 1.07 s (18) |
    /// | 60 s | 4.29 s (20) | 4.83 s | 12 | 8.59 s (21) |
    ///
    /// So a silent peer is given up at the deadline, or before if sixteen REQs are over sooner, on RoCE after 77 s at the
    /// earliest.
    /// The response timeout of an attempt that another one may follow, by [`retry`](Self::retry), is chosen as if 4.5 s were
    /// left when it is more, so that a period is about half a second: on RoCE 16.8 ms (12), 0.55 s. That keeps a peer busy
    /// with many at its door, and 60 s bring some attempts of sixteen REQs instead of thirteen REQs far apart.
    /// [`response_timeout`](Self::response_timeout) and [`max_cm_retries`](Self::max_cm_retries) override the rule.
    pub fn deadline(self, deadline: Duration) -> Self {
        self.set(|config| config.deadline = deadline)
    }

    /// Whether and when there is another attempt after one that failed. Default: one more, at once, after reason 10.
    pub fn retry(self, retry: Retry) -> Self {
        self.set(|config| config.retry = retry)
    }

    /// How long the peer may think before the REQ is repeated; flight time comes on top. Rounded up to 4.096 us
    /// times a power of two, and nothing is left to chance. Default: by the rule of [`deadline`](Self::deadline).
    pub fn response_timeout(self, timeout: Duration) -> Self {
        self.set(|config| config.response_timeout = Some(timeout))
    }

    /// How often REQ, REP and DREQ may be repeated, 0..=15. Default: by the rule of [`deadline`](Self::deadline).
    pub fn max_cm_retries(self, retries: u8) -> Self {
        self.set(|config| config.max_cm_retries = Some(retries))
    }

    /// How often the queue pairs of both sides repeat a packet that is not acknowledged before they give up,
    /// 0..=7. Default 7. Over an unreliable connection nothing is repeated.
    pub fn retry_count(self, count: u8) -> Self {
        self.set(|config| config.retry_count = count)
    }

    /// The transport: [`Transport::Rc`], the default, or [`Transport::Uc`], for which the peer's listener must be
    /// ([`Bind::transport`](crate::Bind::transport)). Over an unreliable connection messages come in order and whole or not at
    /// all, and sends complete when they have left; there are no reads, atomics, keepalives or byte streams, and no retries.
    /// Others are invalid: no device has them, and only [`handshake`](crate::handshake) connects them.
    ///
    /// ```
    /// # use ibcm::{Connection, Hca, Listener, ServiceId, Transport};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (hca, sid) = (Hca::open("soft").await?, ServiceId::new(0x1000_0000_0000_0001));
    /// let listener = Listener::bind(sid).device(&hca).transport([Transport::Rc, Transport::Uc]).await?;
    /// let path = hca.path_to(hca.gid()).service_id(sid).await?;
    /// let dialing = tokio::spawn(Connection::connect(path).transport(Transport::Uc));
    /// let request = listener.accept().await?;
    /// assert_eq!(request.transport(), Transport::Uc);
    /// let conn = request.accept().await?;
    /// # dialing.await??;
    /// # drop(conn);
    /// # Ok(())
    /// # }
    /// ```
    pub fn transport(self, transport: Transport) -> Self {
        self.set(|config| config.transport = transport)
    }

    /// Another path to the same peer, which the connection goes by if the first one fails: both queue pairs have it loaded.
    /// It may begin at another port of the HCA, and has the P_Key and at least the MTU of the first.
    ///
    /// A path that this side's device cannot have is [`ConnectError::Invalid`], before anything is sent. A peer may decline
    /// it: that is no error, [`Connection::failover`] tells.
    pub fn alternate_path(self, path: &Path) -> Self {
        self.set(|config| config.alternate = Some(path.clone()))
    }

    /// The HCA to connect from. With a [`ServicePath`], which has one already, it can only be the same.
    pub fn device(self, hca: &Hca) -> Self {
        self.set(|config| config.device = Some(hca.clone()))
    }
}

/// Where a connection goes and what its REQ says.
struct Resolved {
    path: Path,
    service_id: ServiceId,
    private_data: PrivateData<92>,
}

impl ConnectConfig {
    #[expect(clippy::manual_async_fn, reason = "an async function holds what it is given twice")]
    fn run_alone(self) -> impl Future<Output = Result<Connection, ConnectError>> {
        async move { self.run(&mut Attempts::default()).await }
    }

    #[expect(clippy::manual_async_fn, reason = "an async function holds what it is given twice")]
    fn run(mut self, all: &mut Attempts) -> impl Future<Output = Result<Connection, ConnectError>> {
        async move {
            Invalid::more_than_zero("deadline", self.deadline)?;
            self.retry.check()?;
            let started = now();
            let deadline = started.checked_add(self.deadline);
            let mut before = None;
            loop {
                all.made = all.made.saturating_add(1);
                let error = match (self.attempt(all, started, deadline).await, before.take()) {
                    (Ok(conn), _) => return Ok(conn),
                    // It came to nothing. What the attempt before it met says more.
                    (Err(ConnectError::Deadline { .. }), Some(met)) => met,
                    (Err(error), _) => error,
                };
                let now = now();
                let in_time = |pause: &Duration| match (deadline, now.checked_add(*pause)) {
                    (Some(deadline), Some(next)) => next < deadline,
                    (deadline, _) => deadline.is_none(),
                };
                let pause = self.retry.pause_after(all.made, &error, || self.jitter()).filter(in_time);
                let Some(pause) = pause else { return Err(error.of_all(all, now)) };
                tracing::debug!(%error, attempts = all.made, ?pause, "once more");
                before = Some(error);
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// A random number, from the HCA's seed so that simulations replay. Without an HCA there is no seed.
    fn jitter(&self) -> u32 {
        let hca = match &self.target {
            Target::Service(path) => Some(path.port().hca()),
            Target::Peer(hca, ..) => Some(hca),
            Target::Ip(_) => self.device.as_ref(),
        };
        hca.map_or(u32::MAX, |hca| hca.shared().engine().draw())
    }

    async fn resolve(&mut self) -> Result<Resolved, ConnectError> {
        match &self.target {
            Target::Service(path) => {
                let path = path.clone();
                if let Some(other) = self.device.as_ref().filter(|device| *device != path.port().hca()) {
                    let must = Limit::Must("one of the HCA given by device(..)");
                    let sgid = Value::Gid(path.record().sgid);
                    tracing::debug!(given = other.name(), of_path = path.port().hca().name(), "two HCAs");
                    return Err(Invalid::new("the path's SGID", sgid, must).into());
                }
                let private_data = PrivateData::from_area(self.private_data);
                Ok(Resolved { service_id: path.service_id(), path: path.into_path(), private_data })
            }
            Target::Peer(hca, gid, service_id) => {
                let path = hca.path_to(*gid).await?;
                let private_data = PrivateData::from_area(self.private_data);
                Ok(Resolved { service_id: *service_id, path, private_data })
            }
            Target::Ip(address) => {
                let hca = match &self.device {
                    Some(hca) => hca.clone(),
                    None => default_device::for_route_to(address.ip()).await?,
                };
                // Another attempt goes out of the same one.
                self.device = Some(hca.clone());
                let path = hca.path_to(Gid::from_ip(address.ip())).await?;
                let source_port = hca.shared().engine().source_port();
                let source = SocketAddr::new(path.record().sgid.to_ip(), source_port);
                let header = IpHeader::new(source, address.ip().to_canonical());
                let header = header.ok_or_else(|| {
                    let must = Limit::Must("an IP address of the peer's family");
                    Invalid::new("the path's SGID", Value::Gid(path.record().sgid), must)
                })?;
                let user = &self.private_data[..IpHeader::USER_LEN];
                let private_data = header.private_data(user).map_err(Invalid::from)?;
                Ok(Resolved { path, service_id: ServiceId::tcp_port(address.port()), private_data })
            }
        }
    }

    /// With a queue pair, an ID and a PSN of its own.
    async fn attempt(
        &mut self,
        all: &mut Attempts,
        started: Instant,
        deadline: Option<Instant>,
    ) -> Result<Connection, ConnectError> {
        let resolved = before(started, deadline, self.resolve()).await;
        let resolved = resolved.map_err(|waited| ConnectError::Deadline { waited })??;
        let hca = resolved.path.port().hca().clone();
        let shared = Arc::clone(hca.shared());
        let device = shared.device()?;
        shared.has_cm()?;
        let options = &self.options;
        let kind = options.qp_type(self.transport)?;
        let memory = options.memory::<ConnectError>(&shared, device.attr())?;
        let left = deadline.map_or(self.deadline, |deadline| deadline.saturating_duration_since(now()));
        let for_waits = self.retry.time_for_waits(all.made, left);
        let terms = Terms {
            response_timeout: self.response_timeout,
            max_cm_retries: self.max_cm_retries,
            retry_count: self.retry_count,
            rnr_retry_count: options.rnr_retry_count,
        };
        let unmade = options.local_qp(kind, Qpn::default());
        let Resolved { path, service_id, private_data } = resolved;
        let mut connect =
            terms.request(&path, service_id, &unmade, private_data, Left { left, for_waits, deadline })?;
        if let Some(alternate) = &self.alternate {
            connect.alternate = Some(alternate.beside(&path)?);
        }
        let init = shared.engine().endpoint.connect_init(&connect)?;

        let parked = Arc::<Parked>::default();
        let setup = async {
            let fresh = Fresh::create(&*device, kind, memory, options).await?;
            let (qpn, qp) = (fresh.qpn(), fresh.qp());
            Ok::<_, SetupError>((qpn, qp, fresh.init(init, &parked, &shared).await?))
        };
        let made = before(started, deadline, setup).await;
        let (qpn, qp, queues) = made.map_err(|waited| ConnectError::Deadline { waited })??;
        connect.qpn = qpn;
        let data = Some((parked, queues));
        let asked = Asked::new(&shared, self.whom, connect, options.disconnect_data, data, all)?;
        let span = asked.span().clone();
        let connected = self.shake_hands(asked, &*qp, all, started, deadline).instrument(span).await;
        if let Err(ConnectError::Unreachable { .. }) = connected {
            path.was_silent();
        }
        connected
    }

    /// From the REQ to the RTU.
    async fn shake_hands(
        &self,
        asked: Asked,
        qp: &dyn QueuePair,
        all: &mut Attempts,
        started: Instant,
        deadline: Option<Instant>,
    ) -> Result<Connection, ConnectError> {
        let reply = match self.whom {
            Whom::Listener => asked.reply(all).await?,
            Whom::Peer => match asked.answer(all).await? {
                Answered::Reply(reply) => reply,
                Answered::Request(offer) => return self.accept_peer(offer, qp, started, deadline).await,
            },
        };
        let rts = keepalive::adapt(reply.attrs().rts, self.options.keepalive);
        match before(started, deadline, to_rts(qp, reply.attrs().rtr, rts)).await {
            Ok(Ok(())) => {
                let session = reply.rtu_data(self.rtu_data).ready().await?;
                session.shared().start_keepalive(session.slot(), self.options.keepalive);
                Ok(Connection::new(session))
            }
            Ok(Err(error)) => {
                reply.reject(RejReason::NO_RESOURCES);
                Err(error.into())
            }
            Err(waited) => Err(ConnectError::Deadline { waited }),
        }
    }

    /// From the peer's REQ to its RTU.
    async fn accept_peer(
        &self,
        offer: Offer,
        qp: &dyn QueuePair,
        started: Instant,
        deadline: Option<Instant>,
    ) -> Result<Connection, ConnectError> {
        let rts = keepalive::adapt(offer.attrs().rts, self.options.keepalive);
        match before(started, deadline, to_rts(qp, offer.attrs().rtr, rts)).await {
            Ok(Ok(())) => {
                offer.set_initiator_depth();
                let session = offer.reply_until(deadline).await?;
                session.shared().start_keepalive(session.slot(), self.options.keepalive);
                Ok(Connection::new(session))
            }
            Ok(Err(error)) => {
                offer.reject(RejReason::NO_RESOURCES);
                Err(error.into())
            }
            Err(waited) => Err(ConnectError::Deadline { waited }),
        }
    }
}

/// A peer that asked, too, and was accepted.
impl From<AcceptError> for ConnectError {
    fn from(error: AcceptError) -> Self {
        match error {
            AcceptError::Withdrawn => Self::Disconnected,
            AcceptError::Rejected(no) => Self::Rejected(no),
            AcceptError::Unconfirmed { sent, waited } => {
                Self::Unreachable { attempts: 1, sent: sent.into(), waited, busy: false }
            }
            AcceptError::Invalid(invalid) => Self::Invalid(invalid),
            AcceptError::Device(error) => Self::Device(error),
            AcceptError::Qp { step, source } => Self::Qp { step, source },
            AcceptError::Deadline { waited } => Self::Deadline { waited },
            AcceptError::Closed => Self::Closed,
        }
    }
}

impl From<End> for ConnectError {
    fn from(end: End) -> Self {
        match end {
            End::Rejected(rejection, effort) => Self::Rejected(Box::new(Rejection::new(&rejection, effort))),
            End::Timeout(Effort { sent, waited, busy }) => {
                Self::Unreachable { attempts: 1, sent: sent.into(), waited, busy }
            }
            End::ReplyRefused(reason, _) => Self::BadReply { reason },
            End::DeviceRemoved => Self::Device(DeviceError::Gone),
            End::Closed => Self::Closed,
            End::Withdrawn | End::Disconnected(_) => Self::Disconnected,
        }
    }
}

impl From<proto::ConnectError> for ConnectError {
    fn from(error: proto::ConnectError) -> Self {
        match error {
            proto::ConnectError::Invalid(invalid) => Self::Invalid(invalid),
            proto::ConnectError::PortDown(port) => Self::PortDown { port },
            proto::ConnectError::QpInUse(_) => {
                let what = "the queue pair's number";
                let source = DeviceError::InUse { what, holder: "another connection, maybe in TimeWait" };
                Self::Qp { step: QpStep::Create, source }
            }
            proto::ConnectError::DeviceRemoved => Self::Device(DeviceError::Gone),
        }
    }
}

impl From<SetupError> for ConnectError {
    fn from(SetupError { step, source }: SetupError) -> Self {
        Self::Qp { step, source }
    }
}

impl From<Unavailable> for ConnectError {
    fn from(unavailable: Unavailable) -> Self {
        match unavailable {
            Unavailable::Gone => Self::Device(DeviceError::Gone),
            Unavailable::Closed => Self::Closed,
        }
    }
}

impl<const N: usize> Future for Connect<N> {
    type Output = Result<Connection, ConnectError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        crate::builder::poll(this.config, this.run, ConnectConfig::run_alone, cx)
    }
}

impl<const N: usize> std::fmt::Debug for Connect<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let target = self.config.as_ref().map(|config| &config.target);
        f.debug_struct("Connect").field("target", &target).finish_non_exhaustive()
    }
}
