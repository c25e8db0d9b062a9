//! What handles, futures and the driver of one client share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use ibdev::{
    AddressVector, AgentSpec, Device, DeviceError, DeviceEvent, LinkLayer, MadAddr, PortState, PortTables,
};
use ibwire::mad::{Method, MgmtClass};
use ibwire::{Gid, Lid, PKey, QKey, Qpn, Rate, ServiceLevel};
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, oneshot};

use super::cache::Cache;
use super::driver::Driver;
use super::notices::Feeds;
use crate::mad::SaHeader;
use crate::proto::client::{self as engine, Answer, Config, Event, QueryError, Request, RequestId};

pub(super) struct Shared {
    pub(super) port: u8,
    pub(super) timeout: Duration,
    /// Where the driver runs, once it does.
    runtime: OnceCell<Handle>,
    state: Mutex<State>,
}

pub(super) struct State {
    /// `None` once the client has ended.
    pub(super) device: Option<Arc<dyn Device>>,
    pub(super) engine: engine::Client,
    pub(super) waiters: BTreeMap<RequestId, oneshot::Sender<Result<Answer, QueryError>>>,
    pub(super) cache: Cache,
    pub(super) feeds: Feeds,
    pub(super) rng: ChaCha8Rng,
    /// Our GID, once the port has one.
    pub(super) gid: Option<Gid>,
    /// The port has to be read again.
    pub(super) stale: bool,
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

impl Shared {
    pub(super) fn new(device: Option<Arc<dyn Device>>, port: u8, config: Config, seed: [u8; 32]) -> Self {
        let timeout = engine::longest(&config);
        let state = State {
            device,
            engine: engine::Client::new(config, seed),
            waiters: BTreeMap::new(),
            cache: Cache::default(),
            feeds: Feeds::default(),
            rng: ChaCha8Rng::from_seed(seed),
            gid: None,
            stale: false,
            end: None,
            driver: None,
        };
        Self { port, timeout, runtime: OnceCell::new(), state: Mutex::new(state) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn deadline(&self) -> Instant {
        now() + self.timeout
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
            state.cache.clear();
            drop(state);
            self.wake();
        }
    }

    /// The port as it is now: where the SA is, which GID is ours (spec/sa.md 7.1, 7.2).
    pub(super) fn set_port(&self, PortTables { attr, gids, pkeys }: PortTables) {
        let active = attr.state == PortState::Active && attr.sm_lid != Lid::NONE;
        let of_default = |wanted: PKey| pkeys.iter().position(|pkey| *pkey == wanted);
        let default = of_default(PKey::DEFAULT).or_else(|| of_default(PKey(0x7fff)));
        let sa = active.then(|| MadAddr {
            av: AddressVector {
                port: self.port,
                dlid: attr.sm_lid,
                sl: ServiceLevel::default(),
                path_bits: 0,
                rate: Rate::PORT_CURRENT,
                grh: None,
            },
            qpn: Qpn::GSI,
            qkey: QKey::GSI,
            pkey_index: default.unwrap_or(0) as u16,
        });
        let mut state = self.lock();
        state.gid = gids.first().map(|entry| entry.gid);
        state.engine.set_sa(now(), sa, pkeys);
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

    fn ended(&self) -> QueryError {
        self.lock().end.as_ref().map_or(QueryError::Closed, End::error)
    }

    /// Gives the engine's events to those who wait. With the lock held: a oneshot wakes a task, no more.
    pub(super) fn deliver(&self, state: &mut State) {
        while let Some(event) = state.engine.poll_event() {
            match event {
                Event::Answered { id, answer } => state.answer(id, Ok(answer)),
                Event::Failed { id, error } => state.answer(id, Err(error)),
                Event::Report { notice, .. } => {
                    tracing::debug!(port = self.port, %notice, "notice");
                    state.feeds.tell(&notice);
                }
            }
        }
    }
}

impl State {
    fn answer(&mut self, id: RequestId, result: Result<Answer, QueryError>) {
        if let Some(waiter) = self.waiters.remove(&id) {
            _ = waiter.send(result); // who has gone has cancelled
        }
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
