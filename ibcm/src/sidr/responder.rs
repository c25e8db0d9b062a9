//! The passive side: a program that answers each request itself.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use ibwire::{Gid, ServiceId};
use pin_project::pin_project;
use tokio::task::coop::cooperative;

use super::backlog::Backlog;
use super::bind::{self, Target};
use super::request::Request;
use crate::error::ListenError;
use crate::hca::Hca;
use crate::parked::Ticket;
use crate::proto::{SidrHandling, SidrServiceId};

/// A service whose requests the program answers one by one: by what they say, or with a socket of many.
///
/// ```
/// # use ibcm::{Hca, ServiceId, sidr, ud};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (here, there, sid) = (Hca::open("soft").await?, Hca::open("soft").await?, ServiceId::new(7));
/// let (responder, socket) = (sidr::Responder::bind(sid).device(&there).await?, ud::Socket::open(&there).await?);
/// # let asking = tokio::spawn(sidr::query(here.path_to(there.gid()).service_id(sid).await?).private_data(b"v1"));
/// let request = responder.accept().await?;
/// match &request.private_data()[..2] {
///     b"v1" => request.answer(&socket)?,
///     _ => request.refuse(sidr::Status::REJECTED),
/// }
/// # assert_eq!(asking.await??.qpn(), socket.qpn());
/// # Ok(())
/// # }
/// ```
///
/// Dropped, it frees the service ID at once; requests that wait are refused with status 2, those that were handed out live on.
#[derive(Debug)]
pub struct Responder {
    hca: Hca,
    id: SidrServiceId,
    backlog: Arc<Backlog>,
    service_id: ServiceId,
}

impl Responder {
    /// Answers for a service ID, on the default HCA unless [`Bind::device`] names one.
    pub fn bind(service_id: ServiceId) -> Bind {
        Bind::new(Target::Service(service_id))
    }

    /// Answers for an IP address and port of port space UDP: see [`publish_ip`](super::publish_ip).
    pub fn bind_ip(address: impl Into<SocketAddr>) -> Bind {
        Bind::new(Target::Ip(address.into()))
    }

    /// The next request.
    ///
    /// # Errors
    /// [`ListenError::Closed`] or [`ListenError::Device`]: the responder is dead.
    ///
    /// # Cancel safety
    /// A dropped future loses no request: the next call has it.
    pub async fn accept(&self) -> Result<Request, ListenError> {
        let mut ticket = Ticket::new(&self.backlog.parked);
        let waiting = poll_fn(|cx| {
            ticket.park(cx);
            self.backlog.pop()
        });
        let shared = self.hca.shared();
        match cooperative(waiting).await {
            Some(waiting) => Ok(Request::new(Arc::clone(shared), waiting)),
            None => Err(shared.device().err().map_or(ListenError::Closed, ListenError::from)),
        }
    }

    /// How many requests found no room and were refused with status 2.
    pub fn overflowed(&self) -> u64 {
        self.hca.shared().engine().endpoint.sidr_overflowed_requests(self.id).unwrap_or(0)
    }

    /// The service ID.
    pub const fn service_id(&self) -> ServiceId {
        self.service_id
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        let shared = self.hca.shared();
        shared.command(|engine| {
            engine.endpoint.sidr_unserve(self.id);
            engine.responders.remove(&self.id)
        });
        self.backlog.close(shared);
    }
}

/// Where to answer: a builder that is itself the future of the [`Responder`].
///
/// # Errors
/// [`ListenError`]: the service ID is taken at this port and GID, the address is not this HCA's, a value is out of range, or
/// there is no connection manager.
///
/// # Cancel safety
/// Dropped, nothing is bound.
#[pin_project(!Unpin)]
#[must_use = "nothing is bound before it is awaited"]
pub struct Bind {
    config: Option<Config>,
    run: Option<BoxFuture<'static, Result<Responder, ListenError>>>,
}

#[derive(Debug, Clone)]
struct Config {
    target: Target,
    device: Option<Hca>,
    port: Option<u8>,
    local_gid: Option<Gid>,
    backlog: usize,
}

impl Bind {
    fn new(target: Target) -> Self {
        let config = Config { target, device: None, port: None, local_gid: None, backlog: 128 };
        Self { config: Some(config), run: None }
    }

    fn set(mut self, f: impl FnOnce(&mut Config)) -> Self {
        if let Some(config) = &mut self.config {
            f(config);
        }
        self
    }

    /// Answers on this HCA instead of the default one.
    pub fn device(self, hca: &Hca) -> Self {
        self.set(|config| config.device = Some(hca.clone()))
    }

    /// Takes only requests that come to this port, from 1. Default: every port.
    pub fn port(self, port: u8) -> Self {
        self.set(|config| config.port = Some(port))
    }

    /// Takes only requests that come to this GID. Default: every GID of the HCA.
    pub fn local_gid(self, gid: Gid) -> Self {
        self.set(|config| config.local_gid = Some(gid))
    }

    /// How many requests may be unanswered, waiting or in the program's hands; the next is refused with status 2. At least 1,
    /// default 128.
    pub fn backlog(self, requests: usize) -> Self {
        self.set(|config| config.backlog = requests)
    }
}

impl Config {
    async fn run(self) -> Result<Responder, ListenError> {
        let hca = match self.device {
            Some(hca) => hca,
            None => Hca::open_default().await?,
        };
        let handling = SidrHandling::Report { backlog: self.backlog };
        let serve = self.target.serve(&hca, self.port, self.local_gid, handling)?;
        let service_id = serve.service_id;
        let backlog = Arc::<Backlog>::default();
        let id = hca.shared().command(|engine| {
            let id = bind::serve(engine, serve)?;
            engine.responders.insert(id, Arc::clone(&backlog));
            Ok::<_, ListenError>(id)
        })?;
        Ok(Responder { hca, id, backlog, service_id })
    }
}

impl Future for Bind {
    type Output = Result<Responder, ListenError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        crate::builder::poll(this.config, this.run, Config::run, cx)
    }
}

impl std::fmt::Debug for Bind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bind").field("config", &self.config).finish_non_exhaustive()
    }
}
