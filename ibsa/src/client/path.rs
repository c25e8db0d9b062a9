//! Queries for paths.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use ibwire::mad::Method;
use ibwire::{FlowLabel, Gid, Lid, Mtu, PKey, PacketLifeTime, PathRecord, Rate, ServiceId, ServiceLevel};
use pin_project::pin_project;
use tokio::sync::oneshot;

use super::Client;
use super::builder::{self, Running};
use super::cache::{Found, Key};
use super::found::{FoundPath, PathSource};
use super::shared::{Shared, after, now};
use super::table::Table;
use crate::proto::client::{QueryError, Request, SaStatus};
use crate::record::{IntoField, Is, Record, Template};

/// Which paths to ask for: a builder that is the query for one path when it is awaited, for several with
/// [`all`](Self::all).
///
/// It begins with the port's own GID as the source. A setter's value that does not fit is refused when it is awaited.
///
/// # Cancel safety
/// Dropped, nobody waits for the answer any more; a query for one path that has gone out fills the cache nevertheless.
#[pin_project(!Unpin)]
#[must_use = "nothing is asked before it is awaited"]
pub struct PathQuery {
    query: Option<Query>,
    run: Option<Running<Result<FoundPath, QueryError>>>,
}

/// The bit of the component mask for [`PathQuery::count`].
const NUM_PATHS: u64 = 1 << 12;

#[derive(Debug)]
struct Query {
    client: Client,
    wanted: Template<PathRecord>,
    timeout: Option<Duration>,
    cached: bool,
    sourced: bool,
}

impl PathQuery {
    pub(super) fn new(client: Client, dgid: Gid) -> Self {
        let wanted = Template::<PathRecord>::new().dgid(dgid);
        let query = Query { client, wanted, timeout: None, cached: true, sourced: false };
        Self { query: Some(query), run: None }
    }

    fn change(mut self, f: impl FnOnce(&mut Query)) -> Self {
        if let Some(query) = &mut self.query {
            f(query);
        }
        self
    }

    fn set(self, f: impl FnOnce(Template<PathRecord>) -> Template<PathRecord>) -> Self {
        self.change(|query| query.wanted = f(std::mem::take(&mut query.wanted)))
    }

    /// Where the path begins. Default: the port's GID.
    pub fn sgid(self, gid: Gid) -> Self {
        self.change(|query| query.sourced = true).set(|wanted| wanted.sgid(gid))
    }

    /// The LID where it ends.
    pub fn dlid(self, lid: impl IntoField<Lid>) -> Self {
        self.set(|wanted| wanted.dlid(lid))
    }

    /// The LID where it begins.
    pub fn slid(self, lid: impl IntoField<Lid>) -> Self {
        self.set(|wanted| wanted.slid(lid))
    }

    /// The service that it is for.
    pub fn service_id(self, id: impl IntoField<ServiceId>) -> Self {
        self.set(|wanted| wanted.service_id(id))
    }

    /// Whether it is for raw packets.
    pub fn raw_traffic(self, raw: bool) -> Self {
        self.set(|wanted| wanted.raw_traffic(raw))
    }

    /// Flow label.
    pub fn flow_label(self, label: impl IntoField<FlowLabel>) -> Self {
        self.set(|wanted| wanted.flow_label(label))
    }

    /// Hop limit.
    pub fn hop_limit(self, limit: u8) -> Self {
        self.set(|wanted| wanted.hop_limit(limit))
    }

    /// Traffic class.
    pub fn traffic_class(self, class: u8) -> Self {
        self.set(|wanted| wanted.traffic_class(class))
    }

    /// Whether the peer can use the same path back.
    pub fn reversible(self, reversible: bool) -> Self {
        self.set(|wanted| wanted.reversible(reversible))
    }

    /// At most so many paths of each pair of ports, 1..=127, for [`all`](Self::all). Default 127.
    pub fn count(self, count: u8) -> Self {
        self.set(|wanted| wanted.num_paths(count))
    }

    /// The partition. Without it the SA picks one that both ends share.
    pub fn p_key(self, p_key: impl IntoField<PKey>) -> Self {
        self.set(|wanted| wanted.p_key(p_key))
    }

    /// Quality of service class.
    pub fn qos_class(self, class: u16) -> Self {
        self.set(|wanted| wanted.qos_class(class))
    }

    /// The service level, 0..=15.
    pub fn sl(self, sl: impl IntoField<ServiceLevel>) -> Self {
        self.set(|wanted| wanted.sl(sl))
    }

    /// The path MTU.
    pub fn mtu(self, wanted: Is<Mtu>) -> Self {
        self.set(|template| template.mtu(wanted))
    }

    /// The rate.
    pub fn rate(self, wanted: Is<Rate>) -> Self {
        self.set(|template| template.rate(wanted))
    }

    /// How long a packet may live on the way.
    pub fn packet_life_time(self, wanted: Is<PacketLifeTime>) -> Self {
        self.set(|template| template.packet_life_time(wanted))
    }

    /// How long to try. Default: [`Client::default_timeout`].
    pub fn timeout(self, timeout: Duration) -> Self {
        self.change(|query| query.timeout = Some(timeout))
    }

    /// Asks the SA even if the cache has the path.
    pub fn uncached(self) -> Self {
        self.change(|query| query.cached = false)
    }

    /// All paths that match, perhaps none.
    ///
    /// # Errors
    /// [`QueryError`]; [`QueryError::Incomplete`] if the answer was cut on its way.
    ///
    /// # Panics
    /// If the builder was polled before.
    pub async fn all(self) -> Result<Vec<PathRecord>, QueryError> {
        self.query.expect("not polled yet").all().await
    }
}

impl Query {
    async fn all(self) -> Result<Vec<PathRecord>, QueryError> {
        self.client.shared.open().await?;
        let wanted = self.sourced_template()?;
        let wanted = match wanted.mask() & NUM_PATHS {
            0 => wanted.num_paths(127),
            _ => wanted,
        };
        let (asked, mask) = wanted.clone().checked()?;
        if mask & NUM_PATHS != 0 && asked.num_paths == 0 {
            return Err(QueryError::Count);
        }
        let shared = &self.client.shared;
        let deadline = after(self.timeout.unwrap_or(shared.timeout));
        let request = Request::new(Method::GET_TABLE, wanted, deadline)?;
        let table = Table::of(&self.client.request(request).await?)?.named(&asked, mask);
        Ok(table.complete()?)
    }

    /// One path: the cached one, or what the SA answers. Many who ask for the same are one query.
    async fn one(self) -> Result<FoundPath, QueryError> {
        let runtime = self.client.shared.open().await?.clone();
        // Of a Get the count says nothing, and there are SAs that mind (spec/sa.md T18).
        let (asked, mask) = self.sourced_template()?.checked()?;
        let (asked, mask) = (PathRecord { num_paths: 0, ..asked }, mask & !NUM_PATHS);
        let wanted = Template::with_mask(asked, mask);
        let key: Key = (mask, PathRecord::to_bytes(&asked));
        let shared = Arc::clone(&self.client.shared);
        let timeout = self.timeout.unwrap_or(shared.timeout);
        let (found, finding) = oneshot::channel();
        let first = {
            let mut state = shared.lock();
            if let Some(end) = &state.end {
                return Err(end.error());
            }
            if self.cached
                && let Some((path, age)) = state.cache.get(now(), &key)
            {
                return Ok(FoundPath::new(path, PathSource::Cache { age }));
            }
            state.cache.wait(key, found)
        };
        if let Some(era) = first {
            let deadline = after(timeout.max(shared.timeout));
            let asking = Asking { shared: Arc::clone(&shared), key, era, over: false };
            runtime.spawn(asking.look_up(wanted, deadline));
        }
        match tokio::time::timeout(timeout, finding).await {
            Ok(found) => {
                found.unwrap_or(Err(QueryError::Closed)).map(|path| FoundPath::new(path, PathSource::Sa))
            }
            Err(_) => Err(QueryError::Late(timeout)),
        }
    }

    /// With the source that is meant if none is named.
    fn sourced_template(&self) -> Result<Template<PathRecord>, QueryError> {
        let wanted = self.wanted.clone();
        if self.sourced {
            return Ok(wanted);
        }
        Ok(wanted.sgid(self.client.shared.lock().gid.ok_or(QueryError::NoSa)?))
    }
}

impl Future for PathQuery {
    type Output = Result<FoundPath, QueryError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        builder::poll(this.query, this.run, Query::one, cx)
    }
}

impl fmt::Debug for PathQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PathQuery").field("query", &self.query).finish_non_exhaustive()
    }
}

/// A query on behalf of all who wait for its answer.
struct Asking {
    shared: Arc<Shared>,
    key: Key,
    era: u64,
    over: bool,
}

impl Asking {
    /// Asks, and puts the path into the cache.
    async fn look_up(mut self, wanted: Template<PathRecord>, deadline: Instant) {
        let found = ask(&self.shared, wanted, deadline).await;
        let mut state = self.shared.lock();
        let waiting = state.cache.answered(self.key, self.era);
        self.over = true; // from now on the place may be another's
        if let Ok(path) = &found
            && state.cache.era == self.era
            && !state.is_outdated(path)
        {
            state.cache.put(now(), self.key, *path);
        }
        drop(state);
        for waiter in waiting {
            _ = waiter.send(found.clone()); // some have gone
        }
    }
}

impl Drop for Asking {
    /// Also where the runtime ends: nobody waits for a query that nobody makes.
    fn drop(&mut self) {
        if !self.over {
            let waiting = self.shared.lock().cache.answered(self.key, self.era);
            drop(waiting);
        }
    }
}

async fn ask(shared: &Arc<Shared>, wanted: Template<PathRecord>, deadline: Instant) -> Found {
    let (asked, mask) = wanted.clone().checked()?;
    let path: PathRecord = shared.request(Request::new(Method::GET, wanted, deadline)?).await?.record()?;
    match path.is_named(&asked, mask) {
        true => Ok(path),
        false => Err(QueryError::Status(SaStatus::NO_RECORDS)),
    }
}
