//! The passive side: a service to which peers connect.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use ibwire::{Gid, Lid, PrivateData, ServiceId};
use pin_project::pin_project;
use tokio::task::coop::cooperative;

use crate::backlog::Backlog;
use crate::error::ListenError;
use crate::hca::Hca;
use crate::incoming::IncomingRequest;
use crate::parked::Ticket;
use crate::proto::message::IpHeader;
use crate::proto::{self, Discriminator, Invalid, ListenerId, Overflow, Transports};
use crate::shared::Unavailable;
use crate::stats::ListenerStats;

/// A service that peers can connect to.
///
/// ```
/// # use ibcm::{Connection, Hca, Listener, ServiceId};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (hca, sid) = (Hca::open("soft").await?, ServiceId::new(0x1000_0000_0000_0001));
/// let listener = Listener::bind(sid).device(&hca).await?;
/// let path = hca.path_to(hca.gid()).service_id(sid).await?;
/// let dialing = tokio::spawn(async move { Connection::connect(path).await });
/// let conn = listener.accept().await?.accept().await?;
/// conn.disconnect().await;
/// # dialing.await??;
/// # Ok(())
/// # }
/// ```
///
/// Several listeners of one HCA may share a service ID if they differ in what they take: by [`Bind::mask`],
/// [`Bind::local_gid`], [`Bind::local_lid`], [`Bind::port`] or [`Bind::discriminator`]. A request that fits several is for
/// the one whose mask has most bits, then for one with a GID, with a LID, with a port, with the longest discriminator. Two
/// that are alike in all of these are [`ListenError::InUse`].
///
/// Dropped, it frees the service ID at once; requests that wait are rejected with reason 28, those that were
/// handed out live on.
#[derive(Debug)]
pub struct Listener {
    hca: Hca,
    id: ListenerId,
    backlog: Arc<Backlog>,
    local_addr: Option<SocketAddr>,
}

impl Listener {
    /// Listens on a service ID, on the default HCA unless [`Bind::device`] names one.
    pub fn bind(service_id: ServiceId) -> Bind {
        Bind::new(Target::Service(service_id))
    }

    /// Listens on an IP address and port, as librdmacm does for port space TCP: what a peer reaches with
    /// [`Connection::connect_ip`](crate::Connection::connect_ip) or `rdma_connect`. `0.0.0.0` and `::` are
    /// every address of the HCA.
    ///
    /// ```
    /// # use ibcm::{Connection, Hca, Listener};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (server, client) = (Hca::open("soft").await?, Hca::open("soft").await?);
    /// let listener = Listener::bind_ip(([0, 0, 0, 0], 7174)).device(&server).await?;
    /// let dialing = Connection::connect_ip((server.gid().to_ip(), 7174)).device(&client);
    /// let dialing = tokio::spawn(dialing.private_data(b"hello"));
    /// let request = listener.accept().await?;
    /// assert_eq!(request.ip().map(|ip| ip.source().ip()), Some(client.gid().to_ip()));
    /// assert_eq!(&request.private_data()[..5], b"hello"); // behind the IP header
    /// request.accept().await?;
    /// # dialing.await??;
    /// # Ok(())
    /// # }
    /// ```
    pub fn bind_ip(address: impl Into<SocketAddr>) -> Bind {
        Bind::new(Target::Ip(address.into()))
    }

    /// The next request, as soon as there is room for it in the [`window`](Bind::window).
    ///
    /// # Errors
    /// [`ListenError::Closed`] or [`ListenError::Device`]: the listener is dead. What one peer does wrong is
    /// not an error here.
    ///
    /// # Cancel safety
    /// A dropped future loses no request: the next call has it.
    pub async fn accept(&self) -> Result<IncomingRequest, ListenError> {
        let mut ticket = Ticket::new(&self.backlog.parked);
        let waiting = poll_fn(|cx| {
            ticket.park(cx);
            self.backlog.pop(self.hca.shared())
        });
        match cooperative(waiting).await {
            Some(taken) => Ok(IncomingRequest::new(Arc::clone(self.hca.shared()), taken)),
            None => Err(self.dead()),
        }
    }

    fn dead(&self) -> ListenError {
        self.hca.shared().device().err().map_or(ListenError::Closed, ListenError::from)
    }

    /// Takes no more requests; those that wait are rejected with reason 28. Other tasks in [`Listener::accept`]
    /// get [`ListenError::Closed`]. May be repeated.
    ///
    /// # Cancel safety
    /// It acts when first polled and does not wait.
    pub async fn close(&self) {
        self.shut();
    }

    fn shut(&self) {
        let shared = self.hca.shared();
        if let Some(backlog) = shared.command(|engine| engine.unlisten(self.id)) {
            backlog.close(shared);
        }
    }

    /// What became of its requests so far.
    ///
    /// ```
    /// # use ibcm::{Connection, Hca, Listener, ServiceId};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (hca, sid) = (Hca::open("soft").await?, ServiceId::new(0x1000_0000_0000_0001));
    /// # let listener = Listener::bind(sid).device(&hca).await?;
    /// # let path = hca.path_to(hca.gid()).service_id(sid).await?;
    /// let dialing = tokio::spawn(async move { Connection::connect(path).await });
    /// let request = listener.accept().await?;
    /// assert_eq!(listener.stats().in_window, 1);
    /// let conn = request.accept().await?;
    /// assert_eq!((listener.stats().in_window, listener.stats().accepted), (0, 1));
    /// # dialing.await??;
    /// # drop(conn);
    /// # Ok(())
    /// # }
    /// ```
    pub fn stats(&self) -> ListenerStats {
        let shared = self.hca.shared();
        let overflowed = shared.engine().endpoint.overflowed_requests(self.id);
        self.backlog.stats(shared, overflowed)
    }

    /// The service ID that it is bound to.
    pub fn service_id(&self) -> ServiceId {
        self.backlog.service_id
    }

    /// The address of a listener made by [`Listener::bind_ip`].
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local_addr
    }

    /// The HCA that it listens on.
    pub fn hca(&self) -> &Hca {
        &self.hca
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shut();
    }
}

/// Where to listen: a builder that is itself the future of the [`Listener`].
///
/// # Errors
/// [`ListenError`]: somebody listens there already, the address is not this HCA's, or a value is out of range.
///
/// # Cancel safety
/// Dropped, nothing is bound.
#[pin_project(!Unpin)]
#[must_use = "nothing is bound before it is awaited"]
pub struct Bind {
    config: Option<BindConfig>,
    run: Option<BoxFuture<'static, Result<Listener, ListenError>>>,
}

#[derive(Debug, Clone)]
struct BindConfig {
    target: Target,
    device: Option<Hca>,
    mask: u64,
    port: Option<u8>,
    local_gid: Option<Gid>,
    local_lid: Option<Lid>,
    transports: Transports,
    discriminator: Option<(usize, Vec<u8>)>,
    window: usize,
    backlog: usize,
    overflow: Overflow,
    turnaround: Option<Duration>,
    mra_data: PrivateData<222>,
}

#[derive(Debug, Clone, Copy)]
enum Target {
    Service(ServiceId),
    Ip(SocketAddr),
}

impl Bind {
    fn new(target: Target) -> Self {
        let config = BindConfig {
            target,
            device: None,
            mask: u64::MAX,
            port: None,
            local_gid: None,
            local_lid: None,
            transports: Transports::RC,
            discriminator: None,
            window: 128,
            backlog: 128,
            overflow: Overflow::Drop,
            turnaround: None,
            mra_data: PrivateData::EMPTY,
        };
        Self { config: Some(config), run: None }
    }

    fn set(mut self, f: impl FnOnce(&mut BindConfig)) -> Self {
        if let Some(config) = &mut self.config {
            f(config);
        }
        self
    }

    /// Listens on this HCA instead of the default one.
    pub fn device(self, hca: &Hca) -> Self {
        self.set(|config| config.device = Some(hca.clone()))
    }

    /// Takes requests for every service ID that agrees with this one in the bits of `mask`; the other bits of this one must be
    /// 0. Which one a request asks for is [`IncomingRequest::service_id`]. Default: all 64 bits count.
    pub fn mask(self, mask: u64) -> Self {
        self.set(|config| config.mask = mask)
    }

    /// Takes only requests that ask for this port, from 1. Default: every port.
    pub fn port(self, port: u8) -> Self {
        self.set(|config| config.port = Some(port))
    }

    /// Takes only requests that ask for this GID. Default: every GID of the HCA.
    pub fn local_gid(self, gid: Gid) -> Self {
        self.set(|config| config.local_gid = Some(gid))
    }

    /// Takes only requests that ask for this LID, one of the LIDs of an InfiniBand port. Default: every LID of the HCA.
    pub fn local_lid(self, lid: Lid) -> Self {
        self.set(|config| config.local_lid = Some(lid))
    }

    /// Takes requests for these transports; all others are rejected with reason 9. Which one a request asks for is
    /// [`IncomingRequest::transport`]. Default: [`Transport::Rc`](crate::Transport::Rc) alone. RD and XRC are for programs with
    /// queue pairs of their own ([`IncomingRequest::prepare`]).
    pub fn transport(self, transports: impl Into<Transports>) -> Self {
        self.set(|config| config.transports = transports.into())
    }

    /// Takes only requests that have these bytes at `offset` of [`IncomingRequest::private_data`], one byte at least; they
    /// must end within it, at byte 92, or 56 behind an IP header. So several listeners can share a service ID. Default:
    /// whatever the private data is.
    ///
    /// ```
    /// # use ibcm::{Connection, Hca, Listener, ServiceId};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (hca, sid) = (Hca::open("soft").await?, ServiceId::new(0x1000_0000_0000_0001));
    /// let version_2 = Listener::bind(sid).device(&hca).discriminator(0, b"v2").await?;
    /// let others = Listener::bind(sid).device(&hca).await?;
    /// let path = hca.path_to(hca.gid()).service_id(sid).await?;
    /// let dialing = tokio::spawn(async move { Connection::connect(path).private_data(b"v2 hello").await });
    /// let request = version_2.accept().await?;
    /// # request.accept().await?;
    /// # dialing.await??;
    /// # drop(others);
    /// # Ok(())
    /// # }
    /// ```
    pub fn discriminator<const N: usize>(self, offset: usize, pattern: &[u8; N]) -> Self {
        self.set(|config| config.discriminator = Some((offset, pattern.to_vec())))
    }

    /// How many requests the program may have in its hands at once. A request counts from [`Listener::accept`] until it is
    /// answered or dropped: until the REP of its [`Accept`](crate::Accept) is sent, not until the connection is
    /// established. With that many, [`Listener::accept`] waits. At least 1, default 128.
    pub fn window(self, requests: usize) -> Self {
        self.set(|config| config.window = requests)
    }

    /// How many requests may wait behind those of the [`window`](Self::window), taken or not, while MRAs keep their peers
    /// patient. Default 128.
    ///
    /// A request that is dropped comes again after its peer's period: 0.5 to 0.8 s if the peer has a
    /// [`Retry::backoff`](crate::Retry::backoff), else mostly one or two seconds. A server keeps busy if as many wait as it
    /// decides in about half of that time.
    pub fn backlog(self, requests: usize) -> Self {
        self.set(|config| config.backlog = requests)
    }

    /// What happens to a request that finds window and backlog full. Default: it is dropped, and its peer repeats it.
    pub fn overflow(self, overflow: Overflow) -> Self {
        self.set(|config| config.overflow = overflow)
    }

    /// How long a request takes to be decided, the time in which it waits for [`Listener::accept`] included. More than zero.
    /// Peers that give it less are asked for this much at once, by an MRA, and do not repeat their requests meanwhile; all
    /// others when half of what they give has passed. An MRA asks for no more than
    /// [`Config::max_mra_service_timeout`](crate::Config::max_mra_service_timeout), 34 s; the peer's next repetition gets
    /// another one. Default: at half of the time, for 4.3 s.
    pub fn turnaround(self, time: Duration) -> Self {
        self.set(|config| config.turnaround = Some(time))
    }

    /// What the MRAs carry for the peers' programs.
    pub fn mra_data(self, data: impl Into<PrivateData<222>>) -> Self {
        self.set(|config| config.mra_data = data.into())
    }
}

impl BindConfig {
    async fn run(self) -> Result<Listener, ListenError> {
        if self.window == 0 {
            return Err(Invalid::at_least("window", 0, 1).into());
        }
        let hca = match self.device {
            Some(hca) => hca,
            None => Hca::open_default().await?,
        };
        let (service_id, by_ip, local_gid) = match self.target {
            Target::Service(service_id) => (service_id, false, self.local_gid),
            Target::Ip(address) => {
                if address.port() == 0 {
                    return Err(Invalid::at_least("IP port", 0, 1).into());
                }
                let gid = match address.ip() {
                    ip if ip.is_unspecified() => self.local_gid,
                    ip => Some(Gid::from_ip(ip)),
                };
                (ServiceId::tcp_port(address.port()), true, gid)
            }
        };
        if let (Target::Ip(address), Some(gid)) = (self.target, local_gid)
            && !hca.owns_gid(gid)
        {
            return Err(ListenError::AddressNotLocal { address: address.ip() });
        }
        hca.shared().has_cm()?;
        let head = if by_ip { IpHeader::LEN } else { 0 };
        let discriminator = self.discriminator.as_ref();
        let discriminator = discriminator.map(|(offset, bytes)| Discriminator::within(*offset, bytes, head));
        let mut listen = proto::Listen::new(service_id);
        listen.service_mask = self.mask;
        listen.port = self.port;
        listen.local_gid = local_gid;
        listen.local_lid = self.local_lid;
        listen.transports = self.transports;
        listen.discriminator = discriminator.transpose()?;
        listen.turnaround = self.turnaround;
        listen.mra_data = self.mra_data;
        let limit = self.window.saturating_add(self.backlog);
        listen.backlog = limit;
        listen.overflow = self.overflow;
        let backlog = Backlog::new(service_id, by_ip, self.window, limit, self.overflow);
        let id = hca.shared().command(|engine| {
            engine.device().map_err(ListenError::from)?;
            let id = engine.endpoint.listen(listen).map_err(|error| match error {
                proto::ListenError::AddrInUse => ListenError::InUse { service_id },
                proto::ListenError::Invalid(invalid) => invalid.into(),
                proto::ListenError::DeviceRemoved => ibdev::DeviceError::Gone.into(),
            })?;
            engine.listeners.insert(id, Arc::clone(&backlog));
            Ok::<_, ListenError>(id)
        })?;
        let local_addr = match self.target {
            Target::Ip(address) => Some(address),
            Target::Service(_) => None,
        };
        Ok(Listener { hca, id, backlog, local_addr })
    }
}

impl std::fmt::Debug for Bind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bind").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Future for Bind {
    type Output = Result<Listener, ListenError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        crate::builder::poll(this.config, this.run, BindConfig::run, cx)
    }
}

impl From<Unavailable> for ListenError {
    fn from(unavailable: Unavailable) -> Self {
        match unavailable {
            Unavailable::Gone => Self::Device(ibdev::DeviceError::Gone),
            Unavailable::Closed => Self::Closed,
        }
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests;
