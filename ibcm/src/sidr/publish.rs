//! A socket under a service ID, without a program in between.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use ibwire::{Gid, PrivateData, QKey, Qpn, ServiceId};
use pin_project::pin_project;

use super::bind::{self, Target};
use crate::error::ListenError;
use crate::hca::Hca;
use crate::proto::{SidrAnswer, SidrHandling, SidrServiceId};
use crate::ud::Socket;

/// Publishes a socket: whoever asks its HCA for the service ID, at the socket's port, gets it as the answer, until the
/// [`Published`] is dropped. The driver answers; the program has nothing to do with it.
pub fn publish(service_id: ServiceId, socket: &Socket) -> Publish {
    Publish::new(Target::Service(service_id), socket)
}

/// Publishes a socket under an IP address and port, as librdmacm does for port space UDP: for
/// [`query_ip`](super::query_ip()) and `rdma_connect`. `0.0.0.0` and `::` are every address of the socket's port.
///
/// ```
/// # use ibcm::{Hca, sidr, ud};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (server, client) = (Hca::open("soft").await?, Hca::open("soft").await?);
/// let served = ud::Socket::open(&server).await?;
/// let _published = sidr::publish_ip(([0, 0, 0, 0], 7174), &served).await?;
/// let reply = sidr::query_ip((server.gid().to_ip(), 7174)).device(&client).await?;
/// assert_eq!(reply.qpn(), served.qpn());
/// # Ok(())
/// # }
/// ```
pub fn publish_ip(address: impl Into<SocketAddr>, socket: &Socket) -> Publish {
    Publish::new(Target::Ip(address.into()), socket)
}

/// A socket to publish: a builder that is itself the future of the [`Published`].
///
/// # Errors
/// [`ListenError`]: the service ID is taken at this port and GID, the address is not this HCA's, or there is no connection
/// manager.
///
/// # Cancel safety
/// Dropped, nothing is published.
#[pin_project(!Unpin)]
#[must_use = "nothing is published before it is awaited"]
pub struct Publish {
    config: Option<Config>,
    run: Option<BoxFuture<'static, Result<Published, ListenError>>>,
}

#[derive(Debug, Clone)]
struct Config {
    target: Target,
    hca: Hca,
    port: u8,
    qpn: Qpn,
    qkey: QKey,
    local_gid: Option<Gid>,
    private_data: PrivateData<136>,
}

impl Publish {
    fn new(target: Target, socket: &Socket) -> Self {
        let config = Config {
            target,
            hca: socket.hca().clone(),
            port: socket.port(),
            qpn: socket.qpn(),
            qkey: socket.qkey(),
            local_gid: None,
            private_data: PrivateData::EMPTY,
        };
        Self { config: Some(config), run: None }
    }

    fn set(mut self, f: impl FnOnce(&mut Config)) -> Self {
        if let Some(config) = &mut self.config {
            f(config);
        }
        self
    }

    /// Answers only requests that come to this GID. Default: every GID of the port.
    pub fn local_gid(self, gid: Gid) -> Self {
        self.set(|config| config.local_gid = Some(gid))
    }

    /// What goes to the program of whoever asks.
    pub fn private_data(self, data: impl Into<PrivateData<136>>) -> Self {
        self.set(|config| config.private_data = data.into())
    }
}

impl Config {
    async fn run(self) -> Result<Published, ListenError> {
        let answer =
            SidrAnswer { private_data: self.private_data, ..SidrAnswer::resolved(self.qpn, self.qkey) };
        let handling = SidrHandling::Answer(Box::new(answer));
        let serve = self.target.serve(&self.hca, Some(self.port), self.local_gid, handling)?;
        let service_id = serve.service_id;
        let id = self.hca.shared().command(|engine| bind::serve(engine, serve))?;
        Ok(Published { hca: self.hca, id, service_id })
    }
}

/// A published socket. Dropped, its service ID is free at once, and further requests meet status 1. It does not keep the
/// socket: drop it before that, or peers get a queue pair that is not there.
#[derive(Debug)]
#[must_use = "dropped, it is not published any more"]
pub struct Published {
    hca: Hca,
    id: SidrServiceId,
    service_id: ServiceId,
}

impl Published {
    /// The service ID.
    pub const fn service_id(&self) -> ServiceId {
        self.service_id
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.hca.shared().command(|engine| engine.endpoint.sidr_unserve(self.id));
    }
}

impl Future for Publish {
    type Output = Result<Published, ListenError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        crate::builder::poll(this.config, this.run, Config::run, cx)
    }
}

impl std::fmt::Debug for Publish {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publish").field("config", &self.config).finish_non_exhaustive()
    }
}
