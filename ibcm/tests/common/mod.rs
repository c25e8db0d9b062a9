//! What the shell's tests share.
#![allow(dead_code, missing_docs, unreachable_pub)]

pub mod odd;
pub mod own_qp;

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use ibcm::sim::Subnet;
use ibcm::{Access, Connection, Hca, Listener, Region, RemoteRegion, ServiceId};

pub const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);

pub type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Two HCAs in a subnet, and a listener on the second.
pub struct Net {
    pub net: Subnet,
    pub client: Hca,
    pub server: Hca,
}

impl Net {
    pub async fn new(seed: u64) -> Result<Self> {
        let net = Subnet::star(["client", "server"]).seed(seed).await?;
        let client = Hca::open(net.device("client")).rng_seed([1; 32]).await?;
        let server = Hca::open(net.device("server")).rng_seed([2; 32]).await?;
        Ok(Self { net, client, server })
    }

    pub async fn listen(&self) -> Result<Listener> {
        Ok(Listener::bind(SID).device(&self.server).await?)
    }

    /// Both ends of a connection.
    pub async fn pair(&self) -> Result<(Connection, Connection)> {
        let listener = self.listen().await?;
        let path = self.client.path_to(self.server.gid()).service_id(SID).await?;
        let passive = async { Ok::<_, ibcm::Error>(listener.accept().await?.accept().await?) };
        let active = async { Ok(Connection::connect(path).await?) };
        Ok(tokio::try_join!(active, passive)?)
    }

    /// Both ends of a connection, whose passive side exposes a region; the active side knows where.
    pub async fn exposed(&self, len: usize, access: Access) -> Result<Exposed> {
        let region = self.server.expose(len, access).await?;
        let listener = self.listen().await?;
        let path = self.client.path_to(self.server.gid()).service_id(SID).await?;
        let advert = region.remote().to_bytes();
        let passive =
            async { Ok::<_, ibcm::Error>(listener.accept().await?.accept().private_data(&advert).await?) };
        let active = async { Ok(Connection::connect(path).await?) };
        let (client, server) = tokio::try_join!(active, passive)?;
        let remote = RemoteRegion::from_bytes(client.private_data())?;
        Ok(Exposed { client, server, region, remote })
    }

    /// Nothing is left, and every message was answered.
    pub async fn quiet(self) -> Result {
        self.net.quiet().await?;
        Ok(())
    }
}

/// A connection whose passive side exposes memory.
pub struct Exposed {
    pub client: Connection,
    pub server: Connection,
    pub region: Region,
    pub remote: RemoteRegion,
}

/// A future that is dropped, if it is still pending, after so many polls; `None` then.
pub struct DropAfter<F> {
    future: Option<Pin<Box<F>>>,
    polls: usize,
}

pub fn drop_after<F: Future>(polls: usize, future: F) -> DropAfter<F> {
    DropAfter { future: Some(Box::pin(future)), polls }
}

impl<F: Future> Future for DropAfter<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.polls > 0 {
            self.polls -= 1;
            if let Some(Poll::Ready(output)) = self.future.as_mut().map(|future| future.as_mut().poll(cx)) {
                return Poll::Ready(Some(output));
            }
        }
        if self.polls > 0 {
            return Poll::Pending;
        }
        self.future = None;
        Poll::Ready(None)
    }
}
