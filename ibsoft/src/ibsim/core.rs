//! What the handles of a device share, and the task that receives and watches the port.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::os::unix::net::UnixDatagram as StdDatagram;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ibdev::{AgentSpec, DeviceAttr, DeviceError, DeviceEvent, MadSource, ReceivedMad};
use ibwire::{Guid, Lid, PKey, ServiceLevel};
use tokio::net::UnixDatagram;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::PORT;
use super::attach::{Attachment, exchange};
use super::packet::{Control, Packet};

/// How often the port is looked at: ibsim tells nobody that it changed.
const LOOK: Duration = Duration::from_millis(500);
/// Received MADs that one agent may leave waiting.
const QUEUE: usize = 512;
/// Packets before other tasks get their turn.
const BUDGET: u32 = 64;

#[derive(Debug)]
pub(super) struct Core {
    pub attr: DeviceAttr,
    pub port_guid: Guid,
    pub data: UnixDatagram,
    /// One question at a time.
    control: Mutex<(StdDatagram, u32)>,
    state: Mutex<State>,
    /// Ends the task.
    closed: tokio::sync::Notify,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub gone: bool,
    pub agents: BTreeMap<u32, Agent>,
    pub next_agent: u32,
    events: VecDeque<DeviceEvent>,
    event_waker: Option<Waker>,
    counters: Counters,
}

#[derive(Debug)]
pub(super) struct Agent {
    pub spec: AgentSpec,
    pub received: VecDeque<ReceivedMad>,
    pub waker: Option<Waker>,
}

#[derive(Debug, Default)]
struct Counters {
    received: u64,
    undelivered: u64,
    dropped_malformed: u64,
    dropped_no_agent: u64,
    dropped_queue_full: u64,
}

impl Core {
    /// Within a tokio runtime.
    pub(super) fn new(attachment: Attachment, node: &str) -> io::Result<Arc<Self>> {
        let Attachment { control, data, slot, node_guid, port_guid } = attachment;
        Ok(Arc::new(Self {
            attr: super::attr(node, node_guid),
            port_guid,
            data: UnixDatagram::from_std(data)?,
            control: Mutex::new((control, slot)),
            state: Mutex::new(State::default()),
            closed: tokio::sync::Notify::new(),
        }))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The port's PortInfo, as on the wire.
    pub(super) fn port_info(&self) -> Result<[u8; 64], DeviceError> {
        self.ask(Control::GET_PORTINFO)
    }

    pub(super) fn pkeys(&self) -> Result<Vec<PKey>, DeviceError> {
        let table = self.ask(Control::GET_PKEYS)?;
        let mut pkeys: Vec<_> =
            table.chunks_exact(2).map(|pkey| PKey(u16::from_be_bytes([pkey[0], pkey[1]]))).collect();
        let used = pkeys.iter().rposition(|pkey| pkey.0 != 0).map_or(0, |last| last + 1);
        pkeys.truncate(used);
        Ok(pkeys)
    }

    /// Asks ibsim on a thread that may wait for its answer.
    pub(super) async fn asked<T: Send + 'static>(
        self: &Arc<Self>,
        question: impl FnOnce(&Self) -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, DeviceError> {
        let core = Arc::clone(self);
        // It is not found where the runtime ends.
        tokio::task::spawn_blocking(move || question(&core)).await.unwrap_or(Err(DeviceError::Gone))
    }

    fn ask(&self, kind: u32) -> Result<[u8; 64], DeviceError> {
        if self.lock().gone {
            return Err(DeviceError::Gone);
        }
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        match exchange(&control.0, Control::new(control.1, kind)) {
            Ok(Some(reply)) => Ok(reply.data),
            Ok(None) => Err(DeviceError::Unsupported { what: "this question" }),
            Err(error) if is_end(&error) => Err(DeviceError::Gone),
            Err(error) => Err(DeviceError::os("ask ibsim", error)),
        }
    }

    pub(super) fn poll_event(&self, cx: &mut Context<'_>) -> Poll<DeviceEvent> {
        let mut state = self.lock();
        if let Some(event) = state.events.pop_front() {
            return Poll::Ready(event);
        }
        if state.gone {
            return Poll::Ready(DeviceEvent::Gone);
        }
        state.event_waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn tell(&self, event: DeviceEvent) {
        let mut state = self.lock();
        if !state.events.contains(&event) {
            state.events.push_back(event);
        }
        let waker = state.event_waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Detaches. Everyone who waits is told.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.gone, true) {
            return;
        }
        let mut wakers: Vec<_> = state.event_waker.take().into_iter().collect();
        wakers.extend(state.agents.values_mut().filter_map(|agent| agent.waker.take()));
        drop(state);
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        // If ibsim does not hear it, it finds the sockets closed.
        _ = control.0.set_nonblocking(true);
        _ = control.0.send(&Control::new(control.1, Control::DISCONNECT).to_bytes());
        drop(control);
        self.closed.notify_one();
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(super) fn counters(&self) -> Vec<(&'static str, u64)> {
        let Counters { received, undelivered, dropped_malformed, dropped_no_agent, dropped_queue_full } =
            self.lock().counters;
        vec![
            ("mads_received", received),
            ("mads_undelivered", undelivered),
            ("mads_dropped_malformed", dropped_malformed),
            ("mads_dropped_no_agent", dropped_no_agent),
            ("mads_dropped_queue_full", dropped_queue_full),
        ]
    }

    /// Gives a packet to the agent of its class.
    pub(super) fn deliver(&self, bytes: &[u8]) {
        let mut state = self.lock();
        let Some(packet) = Packet::parse(bytes) else {
            return state.counters.dropped_malformed += 1;
        };
        if packet.status != 0 {
            return state.counters.undelivered += 1; // our own, back again
        }
        let (class, method) = (packet.mad[1], packet.mad[3]);
        let takes = |agent: &Agent| {
            let unasked = agent.spec.methods.iter().any(|taken| taken.0 == method);
            agent.spec.class.0 == class && (method & 0x80 != 0 || unasked)
        };
        let Some(agent) = state.agents.values_mut().find(|agent| takes(agent)) else {
            return state.counters.dropped_no_agent += 1;
        };
        if agent.received.len() == QUEUE {
            return state.counters.dropped_queue_full += 1;
        }
        let from = MadSource {
            port: PORT,
            slid: packet.slid,
            sl: ServiceLevel::default(),
            path_bits: 0,
            qpn: packet.sqp,
            pkey_index: 0,
            grh: None,
        };
        agent.received.push_back(ReceivedMad { from, mad: packet.mad });
        let waker = agent.waker.take();
        state.counters.received += 1;
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Takes up to a budget of packets. `false`: ibsim is gone.
    fn receive(&self) -> bool {
        let mut bytes = [0; Packet::LEN + 1];
        for _ in 0..BUDGET {
            match self.data.try_recv(&mut bytes) {
                Ok(len) => self.deliver(&bytes[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if is_end(&error) => return false,
                Err(_) => return true,
            }
        }
        true
    }
}

/// What of a port is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Watched {
    active: bool,
    lid: Lid,
    sm_lid: Lid,
}

impl Watched {
    fn of(info: &[u8; 64]) -> Self {
        let lid = |at: usize| Lid(u16::from_be_bytes([info[at], info[at + 1]]));
        Self { active: info[32] & 0x0f == 4, lid: lid(16), sm_lid: lid(18) }
    }
}

/// Receives, and looks at the port now and then, until the device closes or ibsim is gone.
pub(super) async fn run(core: Weak<Core>) {
    let Some(first) = core.upgrade() else { return };
    let mut before = first.asked(|core| core.port_info()).await.map(|info| Watched::of(&info)).ok();
    drop(first);
    let mut look = tokio::time::interval_at(Instant::now() + LOOK, LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while let Some(core) = core.upgrade().filter(|core| !core.lock().gone) {
        match next(&core, &mut look).await {
            Turn::Packets(true) if core.receive() => tokio::task::yield_now().await,
            Turn::Packets(_) => core.close(),
            Turn::Look => match core.asked(|core| core.port_info()).await {
                Ok(info) => {
                    let now = Watched::of(&info);
                    let earlier = before.replace(now);
                    report(&core, earlier, now);
                }
                Err(_) => core.close(),
            },
            Turn::Closed => {}
        }
    }
}

/// Why the task runs.
enum Turn {
    /// There are packets, or with `false` there will be none any more.
    Packets(bool),
    /// It is time to look at the port.
    Look,
    /// The device was closed.
    Closed,
}

async fn next(core: &Core, look: &mut Interval) -> Turn {
    let mut closed = pin!(core.closed.notified());
    poll_fn(|cx| {
        if closed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Turn::Closed);
        }
        if let Poll::Ready(ready) = core.data.poll_recv_ready(cx) {
            return Poll::Ready(Turn::Packets(ready.is_ok()));
        }
        look.poll_tick(cx).map(|_| Turn::Look)
    })
    .await
}

/// Tells what has changed.
fn report(core: &Core, before: Option<Watched>, now: Watched) {
    let Some(before) = before else { return };
    match (before.active, now.active) {
        (true, false) => core.tell(DeviceEvent::PortDown(PORT)),
        (false, true) => core.tell(DeviceEvent::PortUp(PORT)),
        _ => {}
    }
    if before.lid != now.lid {
        core.tell(DeviceEvent::LidChange(PORT));
    }
    if before.sm_lid != now.sm_lid {
        core.tell(DeviceEvent::SmChange(PORT));
    }
}

/// Whether the other end has gone.
fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionRefused | ConnectionReset | NotConnected)
}
