//! What handles, futures and the driver of one client share.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use ibdev::{
    AddressVector, AgentSpec, Device, DeviceError, DeviceEvent, LinkLayer, MadAddr, PortState, PortTables,
};
use ibwire::mad::{Method, MgmtClass};
use ibwire::{Gid, Lid, PKey, PathRecord, QKey, Qpn, Rate};
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use tokio::runtime::Handle;
use tokio::sync::{Notify, OnceCell, oneshot};

use super::cache::Cache;
use super::driver::Driver;
use super::groups::PortGroup;
use super::keep::{Entries, LEAVE};
use super::notices::{Feed, Feeds, unsubscribe};
use super::services::Service;
use crate::mad::SaHeader;
use crate::proto::client::{self as engine, Answer, Config, Event, QueryError, Request, RequestId};
use crate::record::Notice;

pub(super) struct Shared {
    pub(super) port: u8,
    pub(super) timeout: Duration,
    /// Where the driver runs, once it does.
    runtime: OnceCell<Handle>,
    /// Something that was kept at the SA is given up.
    pub(super) given_up: Notify,
    state: Mutex<State>,
}

pub(super) struct State {
    /// `None` once the client has ended.
    pub(super) device: Option<Arc<dyn Device>>,
    pub(super) engine: engine::Client,
    pub(super) waiters: BTreeMap<RequestId, oneshot::Sender<Result<Answer, QueryError>>>,
    pub(super) cache: Cache,
    pub(super) feeds: Feeds,
    pub(super) groups: Entries<PortGroup>,
    pub(super) services: Entries<Service>,
    pub(super) rng: ChaCha8Rng,
    /// Our GID, once the port has one.
    pub(super) gid: Option<Gid>,
    /// The port's GIDs, and the first and the last of its LIDs.
    gids: Vec<Gid>,
    lids: (Lid, Lid),
    /// The partition that the port has by default.
    pub(super) p_key: PKey,
    /// The port has to be read again.
    pub(super) stale: bool,
    /// What the SA had of us may be gone: it is to be told again once it is there.
    renew: bool,
    /// The SA is known: what the port said last.
    has_sa: bool,
    /// What is kept at the SA is being given up: nothing more is to be.
    shutting_down: bool,
    /// Why the driver has ended or shall end.
    pub(super) end: Option<End>,
    pub(super) driver: Option<Waker>,
}

/// Brings the answer to one request.
type Waiting = oneshot::Receiver<Result<Answer, QueryError>>;

/// Why a client is over.
#[derive(Debug, Clone)]
pub(super) enum End {
    /// The last handle is gone.
    Closed,
    /// The device does not work any more.
    Device(DeviceError),
}

/// The handles: the last one ends the client.
#[derive(Debug)]
pub(super) struct Owner(pub(super) Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.end(End::Closed);
    }
}

/// The time of the runtime, which tests may have stopped.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// The moment when `time` is over. A time that is longer than a clock can tell is as good as a year.
pub(super) fn after(time: Duration) -> Instant {
    const LONG: Duration = Duration::from_secs(365 * 24 * 3600);
    let now = now();
    now.checked_add(time).unwrap_or(now + LONG)
}

impl Shared {
    pub(super) fn new(device: Option<Arc<dyn Device>>, port: u8, config: Config, seed: [u8; 32]) -> Self {
        let timeout = engine::longest(&config);
        let state = State {
            device,
            engine: engine::Client::new(config, seed),
            waiters: BTreeMap::new(),
            cache: Cache::default(),
            feeds: Feeds::default(),
            groups: Entries::default(),
            services: Entries::default(),
            rng: ChaCha8Rng::from_seed(seed),
            gid: None,
            gids: Vec::new(),
            lids: (Lid::NONE, Lid::NONE),
            p_key: PKey::DEFAULT,
            stale: false,
            renew: false,
            has_sa: false,
            shutting_down: false,
            end: None,
            driver: None,
        };
        Self { port, timeout, runtime: OnceCell::new(), given_up: Notify::new(), state: Mutex::new(state) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn deadline(&self) -> Instant {
        after(self.timeout)
    }

    /// Lets the driver have a look.
    pub(super) fn wake(&self) {
        let waker = self.lock().driver.take();
        waker.into_iter().for_each(Waker::wake);
    }

    pub(super) fn end(&self, end: End) {
        let mut state = self.lock();
        state.end.get_or_insert(end);
        let device = state.device.take();
        drop(state);
        drop(device);
        self.wake();
    }

    /// Gives up what is kept at the SA, and ends.
    pub(super) async fn shut_down(self: &Arc<Self>, owner: &Arc<Owner>) {
        let (waiting, traps, is_over) = {
            let mut state = self.lock();
            state.shutting_down = true;
            let waiting = (state.groups.abandon(), state.services.abandon());
            let (feeds, traps) = (state.feeds.all(), state.feeds.abandon());
            let nothing = traps.is_empty() && state.keeps_nothing();
            ((waiting, feeds), traps, nothing || !state.has_sa || state.end.is_some())
        };
        let (waiting, feeds) = waiting;
        drop(waiting);
        feeds.iter().for_each(|feed| feed.end());
        if !is_over {
            unsubscribe(self, owner, traps);
            if tokio::time::timeout(LEAVE, self.keeps_nothing()).await.is_err() {
                tracing::warn!(port = self.port, "the SA may still have what was kept there");
            }
        }
        self.end(End::Closed);
    }

    async fn keeps_nothing(&self) {
        loop {
            let mut given_up = pin!(self.given_up.notified());
            given_up.as_mut().enable();
            if self.lock().keeps_nothing() {
                return;
            }
            given_up.await;
        }
    }

    /// Opens the agent and starts the driver, unless that has happened. Where the driver runs.
    ///
    /// Dropped, nothing is open, or all is.
    pub(super) async fn open(self: &Arc<Self>) -> Result<&Handle, QueryError> {
        self.runtime.get_or_try_init(|| self.start()).await
    }

    async fn start(self: &Arc<Self>) -> Result<Handle, QueryError> {
        let runtime = Handle::try_current().map_err(|_| QueryError::Device(DeviceError::NoRuntime))?;
        let Some(device) = self.lock().device.clone() else { return Err(self.ended()) };
        let tables = device.read_port(self.port).await.map_err(QueryError::Device)?;
        if tables.attr.link_layer != LinkLayer::InfiniBand {
            return Err(QueryError::Device(DeviceError::Unsupported { what: "an SA, which RoCE has not," }));
        }
        let spec = AgentSpec {
            port: self.port,
            class: MgmtClass::SA,
            class_version: SaHeader::CLASS_VERSION,
            methods: &[Method::REPORT],
        };
        let agent = device.open_agent(spec).map_err(QueryError::Device)?;
        self.set_port(tables);
        runtime.spawn(Driver::new(Arc::clone(self), agent));
        Ok(runtime)
    }

    pub(super) fn device_event(&self, event: DeviceEvent) {
        use DeviceEvent::{
            ClientReregister, GidChange, Gone, LidChange, PkeyChange, PortDown, PortUp, SmChange,
        };
        let (PortUp(port)
        | PortDown(port)
        | GidChange(port)
        | LidChange(port)
        | PkeyChange(port)
        | SmChange(port)
        | ClientReregister(port)) = event
        else {
            if event == Gone {
                self.end(End::Device(DeviceError::Gone));
            }
            return;
        };
        if port == self.port {
            let mut state = self.lock();
            state.stale = true;
            state.renew |= matches!(event, PortUp(_) | LidChange(_) | SmChange(_) | ClientReregister(_));
            state.cache.clear();
            drop(state);
            self.wake();
        }
    }

    /// The port as it is now: where the SA is, which GID is ours (spec/sa.md 7.1, 7.2). What the SA has to be told again is
    /// kept by tasks, which begin with it; true if there are subscriptions to be made again.
    pub(super) fn set_port(&self, PortTables { attr, gids, pkeys }: PortTables) -> bool {
        let active = attr.state == PortState::Active && attr.sm_lid != Lid::NONE;
        let of_default = |wanted: PKey| pkeys.iter().position(|pkey| *pkey == wanted);
        let default = of_default(PKey::DEFAULT).or_else(|| of_default(PKey(0x7fff)));
        let sa = active.then(|| MadAddr {
            av: AddressVector {
                port: self.port,
                dlid: attr.sm_lid,
                sl: attr.sm_sl,
                path_bits: 0,
                rate: Rate::PORT_CURRENT,
                grh: None,
            },
            qpn: Qpn::GSI,
            qkey: QKey::GSI,
            pkey_index: default.unwrap_or(0) as u16,
        });
        let path_bits = (1 << attr.lmc.min(7)) - 1;
        let lids = (Lid(attr.lid.0 & !path_bits), Lid(attr.lid.0 | path_bits));
        let mut state = self.lock();
        let state = &mut *state;
        let gid = gids.first().map(|entry| entry.gid);
        if state.lids != lids {
            state.cache.clear(); // an answer may have come between the event and this
        }
        state.lids = lids;
        state.gids = gids.iter().map(|entry| entry.gid).collect();
        state.p_key =
            default.and_then(|index| pkeys.get(index)).or(pkeys.first()).copied().unwrap_or(PKey::DEFAULT);
        // Its members and services are known to the SA by the GID.
        state.renew |= state.gid.is_some() && state.gid != gid;
        state.gid = gid;
        let now = now();
        state.has_sa = sa.is_some();
        state.engine.set_sa(now, sa, pkeys);
        if sa.is_none() || !std::mem::take(&mut state.renew) {
            return false;
        }
        state.groups.renew(now, &mut state.rng);
        state.services.renew(now, &mut state.rng);
        true
    }

    /// Where the driver runs, if it does.
    pub(super) fn runtime(&self) -> Option<&Handle> {
        self.runtime.get()
    }

    /// Asks, and waits for the answer.
    pub(super) async fn request(self: &Arc<Self>, request: Request) -> Result<Answer, QueryError> {
        self.open().await?;
        let (forget, answer) = self.ask(request)?;
        let answer = answer.await.unwrap_or_else(|_| Err(self.ended()));
        drop(forget);
        answer
    }

    fn ask(&self, request: Request) -> Result<(Forget<'_>, Waiting), QueryError> {
        let (answered, answer) = oneshot::channel();
        let mut state = self.lock();
        if let Some(end) = &state.end {
            return Err(end.error());
        }
        let id = state.engine.request(now(), request)?;
        state.waiters.insert(id, answered);
        drop(state);
        self.wake();
        Ok((Forget { shared: self, id }, answer))
    }

    pub(super) fn ended(&self) -> QueryError {
        self.lock().end.as_ref().map_or(QueryError::Closed, End::error)
    }

    /// Gives the engine's events to those who wait. Call it without the lock: it wakes tasks.
    pub(super) fn deliver(&self, told: Vec<Told>) {
        for told in told {
            match told {
                Told::Answer(waiter, result) => _ = waiter.send(result), // who has gone has cancelled
                Told::Notice(notice, feeds) => {
                    tracing::debug!(port = self.port, %notice, "notice");
                    feeds.iter().for_each(|feed| feed.tell(&notice));
                }
            }
        }
    }
}

/// What is to be told once the lock is let go.
pub(super) enum Told {
    Answer(oneshot::Sender<Result<Answer, QueryError>>, Result<Answer, QueryError>),
    Notice(Box<Notice>, Vec<Arc<Feed>>),
}

impl State {
    fn keeps_nothing(&self) -> bool {
        self.groups.is_empty() && self.services.is_empty() && !self.feeds.are_ending()
    }

    /// Whether a path begins at a LID that our port does not have: an SA may still answer from what was, while a manager
    /// gives new LIDs.
    pub(super) fn is_outdated(&self, path: &PathRecord) -> bool {
        let (first, last) = self.lids;
        self.gids.contains(&path.sgid) && !(first..=last).contains(&path.slid)
    }

    /// Whether something more can be kept at the SA.
    pub(super) fn takes_more(&self) -> Result<(), QueryError> {
        match &self.end {
            Some(end) => Err(end.error()),
            None if self.shutting_down => Err(QueryError::Closed),
            None => Ok(()),
        }
    }

    /// What the engine has to tell, and to whom.
    pub(super) fn told(&mut self) -> Vec<Told> {
        let mut told = Vec::new();
        while let Some(event) = self.engine.poll_event() {
            let (id, result) = match event {
                Event::Answered { id, answer } => (id, Ok(answer)),
                Event::Failed { id, error } => (id, Err(error)),
                Event::Report { notice, .. } => {
                    let feeds = self.feeds.of(&notice);
                    told.push(Told::Notice(Box::new(notice), feeds));
                    continue;
                }
            };
            told.extend(self.waiters.remove(&id).map(|waiter| Told::Answer(waiter, result)));
        }
        told
    }
}

impl End {
    pub(super) fn error(&self) -> QueryError {
        match self {
            Self::Closed => QueryError::Closed,
            Self::Device(error) => QueryError::Device(error.clone()),
        }
    }
}

/// Forgets a request whose future is dropped.
struct Forget<'a> {
    shared: &'a Shared,
    id: RequestId,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if state.waiters.remove(&self.id).is_some() {
            state.engine.cancel(now(), self.id);
            drop(state);
            self.shared.wake();
        }
    }
}
