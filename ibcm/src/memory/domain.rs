//! Protection domains.

use std::fmt;
use std::sync::Arc;

use ibdev::{Access, Buf, Region};

use super::{BufPool, Memory};
use crate::error::Error;
use crate::hca::Hca;
use crate::shared_recv::SharedRecv;

/// A protection domain: connections reach memory of their own domain only (IBTA vol. 1, 10.2.3).
///
/// An rkey serves every connection of its domain. So a program that exposes memory to several tenants makes one
/// domain for each, and puts the tenant's connections and memory into it; what is made on the [`Hca`] itself is in
/// a common one. A cheap handle, which keeps the HCA open; clones are the same domain.
///
/// ```
/// # use ibcm::{Access, Connection, Hca, Listener, ServiceId};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (hca, sid) = (Hca::open("soft").await?, ServiceId::new(0x1000_0000_0000_0001));
/// # let listener = Listener::bind(sid).device(&hca).await?;
/// # let path = hca.path_to(hca.gid()).service_id(sid).await?;
/// # let dialing = tokio::spawn(async move { Connection::connect(path).await });
/// let tenant = hca.domain().await?;
/// let region = tenant.expose(1 << 16, Access::REMOTE_READ).await?; // for this tenant's connections alone
/// let conn = listener.accept().await?.accept().domain(&tenant).await?;
/// let buf = tenant.alloc(64).await?; // what goes out over it is of its domain too
/// # _ = (region, buf, conn, dialing.await??);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Domain {
    hca: Hca,
    memory: Memory,
}

impl Domain {
    pub(crate) const fn new(hca: Hca, memory: Memory) -> Self {
        Self { hca, memory }
    }

    pub(crate) fn hca(&self) -> &Hca {
        &self.hca
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Allocates a buffer of `len` zero bytes that connections of this domain can send from and receive into. It is full:
    /// write over them, or [`clear`](Buf::clear) it before [`put_slice`](Buf::put_slice).
    ///
    /// # Errors
    /// [`Error::Device`]; [`Error::Closed`] once the HCA is closed.
    ///
    /// # Cancel safety
    /// Dropped, nothing is left behind.
    pub async fn alloc(&self, len: usize) -> Result<Buf, Error> {
        self.hca.shared().device()?;
        self.memory.alloc(len).await
    }

    /// Allocates a pool of `count` buffers of `len` bytes each.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no buffer at all, [`Error::Device`], [`Error::Closed`] once the HCA is closed.
    ///
    /// # Cancel safety
    /// Dropped, nothing is left behind.
    pub async fn pool(&self, count: usize, len: usize) -> Result<BufPool, Error> {
        let shared = self.hca.shared();
        shared.device()?;
        self.memory.pool(shared, count, len).await
    }

    /// Exposes `len` zero bytes to the peers of this domain's connections, which may do with it what `access`
    /// allows. [`Region::remote`] is what a peer has to know.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no byte at all, [`Error::Device`], [`Error::Closed`] once the HCA is closed.
    ///
    /// # Cancel safety
    /// Dropped, nothing is left behind.
    pub async fn expose(&self, len: usize, access: Access) -> Result<Region, Error> {
        self.hca.shared().device()?;
        self.memory.expose(len, access).await
    }

    /// Makes a receive queue of `count` buffers of `len` bytes for many connections: see [`SharedRecv`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for no buffer, more than the device has room for, or buffers longer than a message;
    /// [`Error::Device`], also if the device has no such queues; [`Error::Closed`] once the HCA is closed.
    ///
    /// # Cancel safety
    /// Dropped, nothing is left behind.
    pub async fn shared_recv(&self, count: usize, len: usize) -> Result<SharedRecv, Error> {
        let shared = self.hca.shared();
        let device = shared.device()?;
        SharedRecv::create(shared, device.attr(), self.memory.clone(), count, len).await
    }
}

impl Hca {
    /// Makes a protection domain: memory and connections of one tenant, out of reach for the others.
    ///
    /// # Errors
    /// [`Error::Device`]; [`Error::Closed`] once the HCA is closed.
    ///
    /// # Cancel safety
    /// Dropped, nothing is left behind.
    pub async fn domain(&self) -> Result<Domain, Error> {
        let domain = self.shared().device()?.create_domain().await?;
        Ok(Domain::new(self.clone(), Memory { domain, spares: Arc::default() }))
    }

    /// The domain of everything for which none is named.
    fn common_domain(&self) -> Result<Domain, Error> {
        Ok(Domain::new(self.clone(), self.shared().memory()?))
    }

    /// Allocates a buffer of `len` zero bytes that this HCA's connections can send from and receive into. It is full: write over
    /// them, or [`clear`](Buf::clear) it before [`put_slice`](Buf::put_slice). Buffers of a [`pool`](Self::pool) come empty.
    ///
    /// # Errors
    /// [`Error::Device`]; [`Error::Closed`] once the HCA is closed.
    ///
    /// # Cancel safety
    /// Dropped, nothing is left behind.
    pub async fn alloc(&self, len: usize) -> Result<Buf, Error> {
        self.common_domain()?.alloc(len).await
    }

    /// Allocates a pool of `count` buffers of `len` bytes each. It is the bound on bytes in flight: see [`BufPool`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for no buffer at all, [`Error::Device`], [`Error::Closed`] once the HCA is closed.
    ///
    /// # Cancel safety
    /// Dropped, nothing is left behind.
    pub async fn pool(&self, count: usize, len: usize) -> Result<BufPool, Error> {
        self.common_domain()?.pool(count, len).await
    }

    /// Exposes `len` zero bytes to the peers of this HCA's connections, which may do with it what `access` allows.
    ///
    /// The peer learns from a message or from private data where it is: [`Region::remote`]. Dropped, the region is
    /// deregistered at once; a peer's later access fails, and ends its connection.
    ///
    /// ```
    /// # use ibcm::{Access, Hca, RemoteRegion};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let hca = Hca::open("soft").await?;
    /// let region = hca.expose(1 << 20, Access::REMOTE_READ | Access::REMOTE_WRITE).await?;
    /// region.copy_from(0, b"for the peer")?;
    /// let advert = region.remote().to_bytes(); // 20 bytes, for `private_data(&advert)` or a message
    /// assert_eq!(RemoteRegion::from_bytes(&advert)?.len(), 1 << 20);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for no byte at all, [`Error::Device`], [`Error::Closed`] once the HCA is closed.
    ///
    /// # Cancel safety
    /// Dropped, nothing is left behind.
    pub async fn expose(&self, len: usize, access: Access) -> Result<Region, Error> {
        self.common_domain()?.expose(len, access).await
    }

    /// Makes a receive queue of `count` buffers of `len` bytes for many connections: see [`SharedRecv`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for no buffer, more than the device has room for, or buffers longer than a message;
    /// [`Error::Device`], also if the device has no such queues; [`Error::Closed`] once the HCA is closed.
    ///
    /// # Cancel safety
    /// Dropped, nothing is left behind.
    pub async fn shared_recv(&self, count: usize, len: usize) -> Result<SharedRecv, Error> {
        self.common_domain()?.shared_recv(count, len).await
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain").field("hca", &self.hca).finish_non_exhaustive()
    }
}
