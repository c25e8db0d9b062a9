//! What the handles, futures and the driver of one HCA share.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Waker};

use futures::future::join_all;
use futures::task::AtomicWaker;
use ibdev::{Device, DeviceError};
use ibwire::{Qpn, ServiceId};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, RngExt};
use tokio::sync::oneshot;
use tracing::field::Empty;

use crate::backlog::Backlog;
use crate::clock::now;
use crate::data::Queues;
use crate::error::RecvError;
use crate::events::{HcaEvent, History};
use crate::keepalive::Keepalives;
use crate::memory::{Memory, Spares};
use crate::parked::Parked;
use crate::proto::{
    ConnHandle, Disconnect, Endpoint, ListenerId, Path, SidrEvent, SidrQueryHandle, SidrServiceId,
};
use crate::sa::Client;
use crate::shared_recv::SharedQueue;
use crate::sidr;
use crate::slot::{End, Slot};
pub(crate) use crate::stats::Counters;
use crate::sync::lock;
use crate::ud;

/// One open HCA: the engine under its mutex, and what belongs to its connections.
///
/// Lock order: `engine` first or alone; a slot's state is never held together with it.
pub(crate) struct Shared {
    /// The device's name, also after it is closed.
    pub(crate) name: String,
    runtime: tokio::runtime::Handle,
    engine: Mutex<Engine>,
    /// Wakes the driver.
    driver: AtomicWaker,
    /// A command is why.
    commanded: AtomicBool,
    /// Whom the driver has to look after.
    hungry: Mutex<Vec<Hungry>>,
    /// The receive queues that connections share.
    shared_recvs: Mutex<Vec<Weak<SharedQueue>>>,
    /// Datagram sockets.
    sockets: Mutex<Vec<Weak<ud::Queue>>>,
    /// Connections that ask for their peers.
    pub(crate) keepalives: Keepalives,
    /// Who waits for the HCA to be idle or closed.
    pub(crate) parked: Arc<Parked>,
    pub(crate) events: Arc<History<HcaEvent>>,
    pub(crate) counters: Arc<Counters>,
    /// Buffers for new connections in the device's common domain.
    spares: Arc<Spares>,
    /// Queries to the SA of each port.
    pub(crate) sa: crate::sa::Clients,
    /// Why there is no connection manager, if there is none: someone else holds its class of MADs.
    no_cm: Option<DeviceError>,
}

/// Whose receive buffers came home and have to be posted again, or whose completions nobody waits for.
#[derive(Debug)]
pub(crate) enum Hungry {
    Connection(ConnHandle),
    Shared(Weak<SharedQueue>),
    Datagrams(Weak<ud::Queue>),
}

/// What the engine's mutex guards.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) endpoint: Endpoint,
    /// `None` once the HCA is closed.
    device: Option<Arc<dyn Device>>,
    pub(crate) slots: BTreeMap<ConnHandle, Arc<Slot>>,
    pub(crate) listeners: BTreeMap<ListenerId, Arc<Backlog>>,
    /// Queries for datagram services, each with who waits for its end.
    pub(crate) queries: BTreeMap<SidrQueryHandle, oneshot::Sender<SidrEvent>>,
    pub(crate) responders: BTreeMap<SidrServiceId, Arc<sidr::Backlog>>,
    pub(crate) phase: Phase,
    /// The driver has ended, and nothing of the device is held any more.
    pub(crate) device_closed: bool,
    next_source_port: u16,
    rng: ChaCha8Rng,
}

/// How far an HCA is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    /// The last handle is gone: over with the last connection.
    Unowned,
    /// Closing: nothing new.
    Closing,
    /// The driver has ended.
    Closed,
    /// The device was removed.
    Gone,
}

/// Why a device cannot be used now.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Unavailable {
    Closed,
    Gone,
}

impl Shared {
    pub(crate) fn new(
        endpoint: Endpoint,
        device: Arc<dyn Device>,
        no_cm: Option<DeviceError>,
        runtime: tokio::runtime::Handle,
        mut rng: ChaCha8Rng,
    ) -> Arc<Self> {
        Arc::new(Self {
            name: device.attr().name.clone(),
            runtime,
            engine: Mutex::new(Engine {
                endpoint,
                device: Some(device),
                slots: BTreeMap::new(),
                listeners: BTreeMap::new(),
                queries: BTreeMap::new(),
                responders: BTreeMap::new(),
                phase: Phase::Open,
                device_closed: false,
                next_source_port: rng.random_range(FIRST_DYNAMIC_PORT..=u16::MAX),
                rng,
            }),
            driver: AtomicWaker::new(),
            commanded: AtomicBool::new(false),
            hungry: Mutex::default(),
            shared_recvs: Mutex::default(),
            sockets: Mutex::default(),
            keepalives: Keepalives::default(),
            parked: Arc::default(),
            events: Arc::default(),
            counters: Arc::default(),
            spares: Arc::default(),
            sa: crate::sa::Clients::default(),
            no_cm,
        })
    }

    pub(crate) fn engine(&self) -> MutexGuard<'_, Engine> {
        lock(&self.engine)
    }

    /// Locks the engine for a command and wakes the driver behind it.
    pub(crate) fn command<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> R {
        let result = f(&mut self.engine());
        self.commanded.store(true, Ordering::Release);
        self.driver.wake();
        result
    }

    /// Whether there was a command since the last call.
    pub(crate) fn take_commanded(&self) -> bool {
        self.commanded.swap(false, Ordering::Acquire)
    }

    /// Makes the driver look again what there is to do.
    pub(crate) fn wake_driver(&self) {
        self.driver.wake();
    }

    pub(crate) fn driver_waker(&self) -> &AtomicWaker {
        &self.driver
    }

    /// Runs a task of this HCA in its runtime, wherever the caller is.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// As [`Shared::spawn`], but what the task can do without waiting is done when this returns.
    pub(crate) fn begin(&self, task: impl Future<Output = ()> + Send + 'static) {
        let _runtime = self.runtime.enter();
        let mut task = Box::pin(task);
        if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.spawn(task);
        }
    }

    /// The device, as long as the HCA takes new work.
    pub(crate) fn device(&self) -> Result<Arc<dyn Device>, Unavailable> {
        self.engine().device()
    }

    /// Whether the HCA can listen and connect.
    pub(crate) fn has_cm(&self) -> Result<(), DeviceError> {
        self.no_cm.clone().map_or(Ok(()), Err)
    }

    /// Whether the HCA has nothing left: no request, connection or TimeWait.
    pub(crate) fn is_idle(&self) -> bool {
        self.engine().slots.is_empty()
    }

    /// The connection that this queue pair belongs to.
    pub(crate) fn slot_of_qp(&self, qpn: Qpn) -> Option<Arc<Slot>> {
        let engine = self.engine();
        let conn = engine.endpoint.connection_of(qpn)?;
        engine.slots.get(&conn).cloned()
    }

    /// The first packet came on this queue pair.
    pub(crate) fn comm_established(&self, qpn: Qpn) {
        self.command(|engine| engine.endpoint.comm_established(now(), qpn));
    }

    /// Sends a DREQ, unless that has happened or the connection is over.
    pub(crate) fn disconnect(&self, conn: ConnHandle, disconnect: Disconnect) {
        // From here on the CM's own retries bound it.
        self.keepalives.stop(conn);
        let result = self.command(|engine| engine.endpoint.disconnect(now(), conn, disconnect));
        if let Err(error) = result {
            tracing::debug!(%error, "not disconnected");
        }
    }

    /// Ends a connection or request from whatever state it is in; the exchange goes on without anyone.
    pub(crate) fn abort(self: &Arc<Self>, slot: &Arc<Slot>) {
        self.command(|engine| engine.endpoint.abort(now(), slot.handle));
        slot.end(self, End::Closed);
    }

    /// Why the HCA can't be used any more, if it is over.
    pub(crate) fn is_over(&self) -> Option<Unavailable> {
        match self.engine().phase {
            Phase::Closed => Some(Unavailable::Closed),
            Phase::Gone => Some(Unavailable::Gone),
            Phase::Open | Phase::Unowned | Phase::Closing => None,
        }
    }

    /// The domain of everything for which none is named.
    pub(crate) fn memory(&self) -> Result<Memory, Unavailable> {
        Ok(Memory { domain: self.device()?.domain(), spares: Arc::clone(&self.spares) })
    }

    /// A receive queue that connections share is there.
    pub(crate) fn add_shared_recv(&self, queue: &Arc<SharedQueue>) {
        let mut queues = lock(&self.shared_recvs);
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(queue));
    }

    /// The shared receive queue with this number, if it is still there.
    pub(crate) fn shared_recv(&self, number: u32) -> Option<Arc<SharedQueue>> {
        let queues: Vec<_> = lock(&self.shared_recvs).iter().filter_map(Weak::upgrade).collect();
        queues.into_iter().find(|queue| queue.number() == number)
    }

    /// A datagram socket is there.
    pub(crate) fn add_socket(&self, socket: &Arc<ud::Queue>) {
        let mut sockets = lock(&self.sockets);
        sockets.retain(|socket| socket.strong_count() > 0);
        sockets.push(Arc::downgrade(socket));
    }

    /// The datagram sockets that are still there.
    pub(crate) fn sockets(&self) -> Vec<Arc<ud::Queue>> {
        lock(&self.sockets).iter().filter_map(Weak::upgrade).collect()
    }

    /// Queries, responders and sockets are over: the HCA closes.
    fn end_datagrams(&self) {
        let (queries, responders) = self.command(|engine| {
            let queries = std::mem::take(&mut engine.queries);
            queries.keys().for_each(|query| engine.endpoint.sidr_cancel(*query));
            let responders = std::mem::take(&mut engine.responders);
            responders.keys().for_each(|id| engine.endpoint.sidr_unserve(*id));
            (queries, responders)
        });
        drop(queries);
        responders.into_values().for_each(|backlog| backlog.close(self));
        self.sockets().into_iter().for_each(|socket| socket.finish(RecvError::Closed));
    }

    /// Makes the driver post the receive buffers that came home, and look at completions.
    pub(crate) fn feed(&self, hungry: Hungry) {
        lock(&self.hungry).push(hungry);
        self.driver.wake();
    }

    /// Who asked for [`Shared::feed`].
    pub(crate) fn take_hungry(&self) -> Vec<Hungry> {
        std::mem::take(&mut *lock(&self.hungry))
    }

    /// The last handle is gone.
    pub(crate) fn abandon(&self) {
        self.command(|engine| {
            if engine.phase == Phase::Open {
                engine.phase = Phase::Unowned;
            }
        });
    }

    /// Starts to close: nothing new, and what is there ends.
    pub(crate) fn close(self: &Arc<Self>) {
        let (slots, backlogs) = self.command(|engine| {
            if matches!(engine.phase, Phase::Open | Phase::Unowned) {
                engine.phase = Phase::Closing;
            }
            // Those that the program has in its hands, too: nothing is sent for it any more.
            engine.endpoint.sidr_refuse_all(now());
            let ids: Vec<_> = engine.listeners.keys().copied().collect();
            let backlogs: Vec<_> = ids.into_iter().filter_map(|id| engine.unlisten(id)).collect();
            (engine.slots.values().cloned().collect::<Vec<_>>(), backlogs)
        });
        self.end_datagrams();
        for backlog in backlogs {
            backlog.close(self);
        }
        for slot in slots {
            let over = slot.with(self, |state| {
                state.disconnecting = true;
                state.end.is_some()
            });
            if !over {
                self.abort(&slot);
            }
        }
    }

    /// The driver has ended, with its work or with the runtime: whoever waits gets an answer. If the HCA was told to
    /// close, the device is closed.
    pub(crate) fn closed(self: &Arc<Self>) {
        let (device, slots, backlogs) = {
            let mut engine = self.engine();
            // Otherwise others may still use it.
            let closes = matches!(engine.phase, Phase::Closing | Phase::Gone);
            if engine.phase != Phase::Gone {
                engine.phase = Phase::Closed;
            }
            let slots: Vec<_> = std::mem::take(&mut engine.slots).into_values().collect();
            let backlogs: Vec<_> = std::mem::take(&mut engine.listeners).into_values().collect();
            (engine.device.take().filter(|_| closes), slots, backlogs)
        };
        self.end_datagrams();
        for slot in slots {
            slot.release(self);
        }
        for backlog in backlogs {
            backlog.close(self);
        }
        self.parked.wake_all();
        self.events.end();
        let (clients, device_closed) = (self.sa.take(), DeviceClosed(Arc::clone(self)));
        self.begin(async move {
            // Groups that were joined are left, as long as the SA can be told. Of a device that is gone they know.
            join_all(clients.iter().map(Client::shutdown)).await;
            if let Some(device) = device {
                device.close().await;
            }
            drop(device_closed);
        });
    }
}

/// What is in it is of all its connections, and none of a log's business.
impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hca").field(&self.name).finish()
    }
}

/// Dropped, nothing of the device is held any more, or the runtime has ended.
struct DeviceClosed(Arc<Shared>);

impl Drop for DeviceClosed {
    fn drop(&mut self) {
        self.0.engine().device_closed = true;
        self.0.parked.wake_all();
    }
}

impl Engine {
    pub(crate) fn device(&self) -> Result<Arc<dyn Device>, Unavailable> {
        match (self.phase, &self.device) {
            (Phase::Gone, _) => Err(Unavailable::Gone),
            (Phase::Open | Phase::Unowned, Some(device)) => Ok(Arc::clone(device)),
            _ => Err(Unavailable::Closed),
        }
    }

    pub(crate) fn rng_mut(&mut self) -> &mut ChaCha8Rng {
        &mut self.rng
    }

    /// The device, whatever phase it is, for the driver.
    pub(crate) fn raw_device(&self) -> Option<&Arc<dyn Device>> {
        self.device.as_ref()
    }

    /// A new connection's slot, with its span.
    pub(crate) fn new_slot(
        &mut self,
        conn: ConnHandle,
        service_id: ServiceId,
        path: &Path,
        data: Option<(Arc<Parked>, Queues)>,
    ) -> Arc<Slot> {
        let info = self.endpoint.info(conn);
        let span = tracing::debug_span!(
            "conn",
            local = Empty,
            remote = Empty,
            service = %service_id,
            peer = %path.record.dgid,
        );
        if let Some(info) = info {
            span.record("local", tracing::field::display(info.local_comm_id));
            if !info.remote_comm_id.is_none() {
                span.record("remote", tracing::field::display(info.remote_comm_id));
            }
        }
        let slot = Slot::new(conn, span, data);
        self.slots.insert(conn, Arc::clone(&slot));
        slot
    }

    /// Takes no more requests for this listener. What it had not decided is the caller's.
    pub(crate) fn unlisten(&mut self, id: ListenerId) -> Option<Arc<Backlog>> {
        let overflowed = self.endpoint.overflowed_requests(id);
        self.endpoint.unlisten(id);
        let backlog = self.listeners.remove(&id)?;
        backlog.keep_overflowed(overflowed.unwrap_or(0));
        Some(backlog)
    }

    /// Some random number, from the HCA's seed.
    pub(crate) fn draw(&mut self) -> u32 {
        self.rng.next_u32()
    }

    /// A source port for a connection addressed by IP: it only has to differ from those of the connections
    /// beside it.
    pub(crate) fn source_port(&mut self) -> u16 {
        let port = self.next_source_port;
        self.next_source_port = if port == u16::MAX { FIRST_DYNAMIC_PORT } else { port + 1 };
        port
    }
}

/// The first of the dynamic ports (RFC 6335).
const FIRST_DYNAMIC_PORT: u16 = 0xc000;

#[cfg(feature = "soft")]
impl ibsoft::sim::Probe for Shared {
    fn held(&self) -> Vec<ibsoft::sim::Held> {
        use crate::proto::State;
        let engine = self.engine();
        let held = engine.slots.keys().map(|conn| {
            let state = engine.endpoint.state(*conn);
            let id = engine.endpoint.info(*conn).map(|info| info.local_comm_id).unwrap_or_default();
            let ends = matches!(
                state,
                None | Some(State::ReqSent | State::ReqMraRcvd | State::RepSent | State::RepMraRcvd)
                    | Some(State::DreqSent | State::TimeWait)
            );
            let state = state.map_or_else(|| "ended".to_owned(), |state| state.to_string());
            ibsoft::sim::Held { what: format!("connection {id} in {state}"), ends }
        });
        let query = || ibsoft::sim::Held { what: "query for a datagram service".to_owned(), ends: true };
        let requests = (0..engine.endpoint.sidr_requests())
            .map(|_| ibsoft::sim::Held { what: "request for a datagram service".to_owned(), ends: false });
        held.chain(engine.queries.keys().map(|_| query())).chain(requests).collect()
    }
}
