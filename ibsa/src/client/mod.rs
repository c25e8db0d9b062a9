//! The async client: queries to the SA of one port.

mod builder;
mod cache;
mod driver;
mod found;
mod groups;
mod keep;
mod notices;
mod path;
mod services;
mod shared;
mod table;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ibdev::{Device, DeviceEvent};
use ibwire::mad::Method;
use ibwire::{Gid, PathRecord};

use crate::proto::client::{Answer, Config, QueryError, Request, Stats};
use crate::record::{ClassPortInfo, MultiPath, Record, Template};
use shared::{End, Owner, Shared};

pub use cache::CacheConfig;
pub use found::{FoundPath, PathSource};
pub use groups::{Group, Join, Membership};
pub use notices::{Notice, Notices, Trap};
pub use path::PathQuery;
pub use services::{Register, Registration};
pub use table::{Incomplete, Table};

/// The SA of one port of a device: queries are sent to it within a window, repeated when it is silent, put off when it is
/// busy.
///
/// Clones share one client; it ends with the last. It runs on the tokio runtime of its first request, or where it was
/// [opened](Self::open).
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
    _owner: Arc<Owner>,
}

impl Client {
    /// A client of the SA of this port. The device's SA agent is opened with the first request, which therefore fails with
    /// [`QueryError::Device`] if it cannot: [`DeviceError::Unsupported`](ibdev::DeviceError::Unsupported) where the port is not InfiniBand, because RoCE has
    /// no SA; [`DeviceError::InUse`](ibdev::DeviceError::InUse) if another program or client holds the class; [`DeviceError::NoRuntime`](ibdev::DeviceError::NoRuntime) outside a
    /// tokio runtime. `seed` decides transaction IDs and jitter.
    pub fn new(device: Arc<dyn Device>, port: u8, config: Config, seed: [u8; 32]) -> Self {
        let shared = Arc::new(Shared::new(Some(device), port, config, seed));
        let owner = Arc::new(Owner(Arc::clone(&shared)));
        Self { shared, _owner: owner }
    }

    /// A client that is closed already.
    pub fn closed(port: u8) -> Self {
        let shared = Arc::new(Shared::new(None, port, Config::default(), [0; 32]));
        shared.end(End::Closed);
        let owner = Arc::new(Owner(Arc::clone(&shared)));
        Self { shared, _owner: owner }
    }

    /// Opens the device's SA agent and begins to run, unless the first request has done that: on the tokio runtime of the caller
    /// then.
    ///
    /// # Errors
    /// [`QueryError::Device`] as [`new`](Self::new) says; this or [`QueryError::Closed`] once the client is over.
    ///
    /// # Cancel safety
    /// Dropped, nothing is open, or all is.
    pub async fn open(&self) -> Result<(), QueryError> {
        self.shared.open().await?;
        let end = self.shared.lock().end.clone();
        end.map_or(Ok(()), |end| Err(end.error()))
    }

    /// Ends the client for all its handles: what is under way, and what is asked later, fails with
    /// [`QueryError::Closed`]. The device is let go. May be repeated.
    pub fn close(&self) {
        self.shared.end(End::Closed);
    }

    /// Gives up what the client keeps at the SA, whoever holds it: memberships of groups, services and subscriptions. Then it
    /// ends as by [`close`](Self::close). That takes at most 5 s, and no time if nothing is kept or the port has no SA. May be
    /// repeated.
    ///
    /// # Cancel safety
    /// Dropped, what is kept is given up in the background; the client stays open for other requests.
    pub async fn shutdown(&self) {
        self.shared.shut_down(&self._owner).await;
    }

    /// The port.
    pub fn port(&self) -> u8 {
        self.shared.port
    }

    /// Tells the client what its device reported. An event of the port makes it read the port again, forget the paths that
    /// it has cached, and start anew what is under way if the SA has moved.
    pub fn device_event(&self, event: DeviceEvent) {
        self.shared.device_event(event);
    }

    /// Paths to a port of the subnet.
    pub fn path(&self, dgid: Gid) -> PathQuery {
        PathQuery::new(self.clone(), dgid)
    }

    /// The only record that matches.
    ///
    /// # Errors
    /// [`QueryError::Status`] with [`NO_RECORDS`](crate::proto::client::SaStatus::NO_RECORDS) or
    /// [`TOO_MANY_RECORDS`](crate::proto::client::SaStatus::TOO_MANY_RECORDS) if it is not one, and all other
    /// [`QueryError`]s.
    ///
    /// # Cancel safety
    /// Dropped, the request is forgotten; so are those of the other methods.
    pub async fn get<R: Record>(&self, wanted: Template<R>) -> Result<R, QueryError> {
        self.one(Method::GET, wanted).await
    }

    /// Writes a record; what the SA made of it.
    ///
    /// # Errors
    /// [`QueryError`].
    ///
    /// # Cancel safety
    /// Dropped, it may have happened or not.
    pub async fn set<R: Record>(&self, record: Template<R>) -> Result<R, QueryError> {
        self.one(Method::SET, record).await
    }

    /// Removes a record; what it was.
    ///
    /// # Errors
    /// [`QueryError`].
    ///
    /// # Cancel safety
    /// Dropped, it may have happened or not.
    pub async fn delete<R: Record>(&self, record: Template<R>) -> Result<R, QueryError> {
        self.one(Method::DELETE, record).await
    }

    /// All records that match, perhaps none. What the SA answers beyond that, as far as it [can be told](Record::is_named), is left
    /// out.
    ///
    /// # Errors
    /// [`QueryError`].
    pub async fn table<R: Record>(&self, wanted: Template<R>) -> Result<Table<R>, QueryError> {
        let request = Request::new(Method::GET_TABLE, wanted.clone(), self.shared.deadline())?;
        let (asked, mask) = wanted.checked()?;
        Ok(Table::of(&self.request(request).await?)?.named(&asked, mask))
    }

    /// Paths from any of some ports to any of others.
    ///
    /// # Errors
    /// [`QueryError`].
    pub async fn multi(&self, query: &MultiPath) -> Result<Table<PathRecord>, QueryError> {
        let request = Request::multi(query, self.shared.deadline())?;
        Table::of(&self.request(request).await?)
    }

    /// What the SA says of itself.
    ///
    /// # Errors
    /// [`QueryError`].
    pub async fn class_port_info(&self) -> Result<ClassPortInfo, QueryError> {
        self.get(Template::new()).await
    }

    /// Any request, and its answer as it came.
    ///
    /// # Errors
    /// [`QueryError`].
    pub async fn request(&self, request: Request) -> Result<Answer, QueryError> {
        self.shared.request(request).await
    }

    async fn one<R: Record>(&self, method: Method, wanted: Template<R>) -> Result<R, QueryError> {
        let request = Request::new(method, wanted, self.shared.deadline())?;
        self.request(request).await?.record()
    }

    /// How long a request may take if nothing is said: all its copies, doubled each time.
    pub fn default_timeout(&self) -> Duration {
        self.shared.timeout
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        self.shared.lock().engine.stats()
    }

    /// How many paths the cache had, and how many it had to ask for.
    pub fn cache_stats(&self) -> (u64, u64) {
        let state = self.shared.lock();
        (state.cache.hits, state.cache.misses)
    }

    /// Forgets the cached paths to a GID, so that the SA is asked again: for who finds nobody at their end. What `ibcm` finds
    /// unreachable it forgets itself.
    pub fn forget_paths(&self, dgid: Gid) {
        self.shared.lock().cache.forget(dgid);
    }

    /// Bounds of the cache of paths.
    pub fn set_cache(&self, config: CacheConfig) {
        self.shared.lock().cache.configure(config);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("port", &self.port).finish_non_exhaustive()
    }
}
