//! The task of one HCA: MADs, timers and events between the device and the engine.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use ibdev::{
    AgentSpec, Device, DeviceError, DeviceEvent, MadAgent, OutgoingMad, PortTables, ReceivedMad, Status,
};
use ibwire::Qpn;
use ibwire::mad::{Method, MgmtClass};
use tokio::sync::oneshot;
use tokio::time::Sleep;

use crate::backlog::Backlog;
use crate::clock::now;
use crate::error::RecvError;
use crate::events::{ConnectionEvent, HcaEvent};
use crate::incoming::Waiting;
use crate::mad_capture::MadCapture;
use crate::mad_trace::{self, Direction};
use crate::port_news::PortNews;
use crate::proto::{ConnHandle, Event, LocalPort, SidrEvent};
use crate::shared::{Counters, Engine, Hungry, Phase, Shared};
use crate::sidr;
use crate::slot::Slot;

/// Rounds in one poll before other tasks get a turn.
const ROUNDS: usize = 16;
/// MADs taken from one port in one round.
const MADS_PER_ROUND: usize = 64;
/// MADs that wait for one port's send window before the engine is asked for more of that port.
const TRANSMIT_QUEUE: usize = 128;

/// Moves MADs, timers and events between a device and its engine. It posts receive buffers that came home, and
/// never makes a slow device call.
#[derive(Debug)]
pub(crate) struct Driver {
    device: Arc<dyn Device>,
    gone: bool,
    /// Other tasks had their turn since the last command.
    yielded: bool,
    ports: Vec<Port>,
    port_news: PortNews,
    /// When the engine wants to be called.
    timer: Option<Instant>,
    sleep: Pin<Box<Sleep>>,
    received: Vec<ReceivedMad>,
    routed: Routed,
    capture: Option<MadCapture>,
    /// Dropped last: while the device is held here, it is known whose HCA closes.
    shared: Arc<Shared>,
}

/// The CM agent of one port.
#[derive(Debug)]
struct Port {
    number: u8,
    agent: Box<dyn MadAgent>,
    queue: VecDeque<OutgoingMad>,
}

/// Events and whose they are.
#[derive(Debug, Default)]
struct Routed {
    /// Requests; without a backlog if their listener is gone. They come before the events of the same
    /// connection.
    requests: Vec<(Option<Arc<Backlog>>, Waiting)>,
    events: Vec<(Arc<Slot>, Event)>,
    /// Requests for datagram services; without a backlog if their responder is gone.
    sidr_requests: Vec<(Option<Arc<sidr::Backlog>>, sidr::Waiting)>,
    /// Ends of queries.
    sidr_ends: Vec<(oneshot::Sender<SidrEvent>, SidrEvent)>,
}

/// The methods that a CM agent takes: Get, Set, Send.
const METHODS: &[Method] = &[Method::GET, Method::SET, Method::SEND];

/// The CM agents of ports, with the ports' numbers.
pub(crate) type Agents = Vec<(u8, Box<dyn MadAgent>)>;

/// Opens the CM agent of each of these ports of `device`.
pub(crate) fn open_agents(device: &dyn Device, ports: &[u8]) -> Result<Agents, DeviceError> {
    let agent = |port| {
        let spec = AgentSpec { port, class: MgmtClass::CM, class_version: 2, methods: METHODS };
        Ok((port, device.open_agent(spec)?))
    };
    ports.iter().copied().map(agent).collect()
}

/// The port as the engine wants to know it.
pub(crate) fn local_port(PortTables { attr, gids, pkeys }: PortTables) -> LocalPort {
    LocalPort::new(&attr, gids, pkeys)
}

impl Driver {
    pub(crate) fn new(
        shared: Arc<Shared>,
        device: Arc<dyn Device>,
        agents: Agents,
        capture: Option<MadCapture>,
    ) -> Self {
        let port = |(number, agent)| Port { number, agent, queue: VecDeque::new() };
        let ports = agents.into_iter().map(port).collect();
        let sleep = Box::pin(tokio::time::sleep_until(now().into()));
        Self {
            device,
            gone: false,
            yielded: false,
            ports,
            port_news: PortNews::default(),
            timer: None,
            sleep,
            received: Vec::new(),
            routed: Routed::default(),
            capture,
            shared,
        }
    }

    /// One round; true if there may be more to do.
    fn round(&mut self, cx: &mut Context<'_>) -> bool {
        let mut busy = self.device_events(cx);
        busy |= self.receive(cx);
        self.engine_round();
        self.write_capture();
        // Before anyone learns of it: a program that ends with its connection has answered the peer's DREQ.
        busy |= self.send(cx);
        busy |= self.deliver();
        busy |= self.feed();
        busy | self.keep_alive()
    }

    /// True if there were any.
    fn device_events(&mut self, cx: &mut Context<'_>) -> bool {
        let mut busy = false;
        while !self.gone
            && let Poll::Ready(event) = self.device.poll_event(cx)
        {
            busy = true;
            tracing::debug!(hca = %self.shared.name, ?event, "device event");
            self.shared.sa.device_event(event);
            match event {
                DeviceEvent::CommEstablished(qpn) => self.shared.comm_established(qpn),
                DeviceEvent::PortUp(port) => self.port_news.came(port, HcaEvent::PortUp { port }),
                DeviceEvent::PortDown(port) => self.port_news.came(port, HcaEvent::PortDown { port }),
                DeviceEvent::GidChange(port) => self.port_news.came(port, HcaEvent::GidChange { port }),
                DeviceEvent::LidChange(port) => self.port_news.came(port, HcaEvent::LidChange { port }),
                DeviceEvent::PkeyChange(port) => self.port_news.came(port, HcaEvent::PkeyChange { port }),
                DeviceEvent::SmChange(port) => self.port_news.came(port, HcaEvent::SmChange { port }),
                DeviceEvent::ClientReregister(port) => {
                    self.port_news.came(port, HcaEvent::ClientReregister { port });
                }
                DeviceEvent::QpError(qpn) | DeviceEvent::QpRequestError(qpn) => {
                    self.qp_error(qpn, Status::GENERAL_ERR);
                }
                DeviceEvent::PathMigrated(qpn) => {
                    self.shared.command(|engine| engine.endpoint.path_migrated(now(), qpn));
                }
                DeviceEvent::PathMigrationFailed(qpn) => {
                    if let Some(slot) = self.shared.slot_of_qp(qpn) {
                        slot.events.push(ConnectionEvent::PathFailed);
                    }
                }
                DeviceEvent::QpAccessError(qpn) => self.qp_error(qpn, Status::LOC_ACCESS_ERR),
                DeviceEvent::SrqLimit(number) => {
                    if let Some(queue) = self.shared.shared_recv(number) {
                        queue.is_exhausted();
                    }
                }
                DeviceEvent::Gone => self.gone(),
                _ => {}
            }
        }
        if !self.gone {
            self.port_news.poll(cx, &self.device, &self.shared);
        }
        busy
    }

    /// A queue pair has gone to the error state by itself.
    fn qp_error(&self, qpn: Qpn, status: Status) {
        if let Some(slot) = self.shared.slot_of_qp(qpn) {
            slot.qp_error(&self.shared, qpn, status);
        }
        if let Some(socket) = self.shared.sockets().into_iter().find(|socket| socket.qpn() == qpn) {
            socket.finish(RecvError::Broken(status));
        }
    }

    /// The device was removed.
    fn gone(&mut self) {
        if self.gone {
            return;
        }
        self.gone = true;
        self.close_agents();
        {
            let mut engine = self.shared.engine();
            engine.phase = Phase::Gone;
            engine.endpoint.device_removed();
        }
        for socket in self.shared.sockets() {
            socket.finish(RecvError::Gone);
        }
        self.shared.events.push(HcaEvent::Removed);
        self.shared.events.end();
    }

    /// What the ports still have to send is lost.
    fn close_agents(&mut self) {
        for port in self.ports.drain(..) {
            Counters::add(&self.shared.counters.mads_unsent, port.queue.len() as u64);
        }
    }

    fn receive(&mut self, cx: &mut Context<'_>) -> bool {
        let mut gone = false;
        for port in &mut self.ports {
            if let Poll::Ready(Err(error)) = port.agent.poll_recv(cx, &mut self.received, MADS_PER_ROUND) {
                tracing::debug!(hca = %self.shared.name, %error, "MAD agent");
                gone = true;
            }
        }
        if gone {
            self.gone();
        }
        gone || !self.received.is_empty()
    }

    /// What has come in goes to the engine, what the engine has goes out or is noted.
    fn engine_round(&mut self) {
        let now = now();
        let mut engine = self.shared.engine();
        let engine = &mut *engine;
        for received in &self.received {
            mad_trace::mad(
                &self.shared.name,
                Direction::In,
                received.from.grh.map(|grh| grh.dgid),
                received.from.slid,
                &received.mad,
            );
            if let Some(capture) = &mut self.capture
                && let Some(port) = engine.endpoint.local_ca().port(received.from.port)
            {
                capture.incoming(port, received);
            }
        }
        engine.endpoint.handle_mads(now, &self.received);
        self.received.clear();
        if engine.endpoint.poll_timeout().is_some_and(|due| due <= now) {
            engine.endpoint.handle_timeout(now);
        }
        for port in &mut self.ports {
            while port.queue.len() < TRANSMIT_QUEUE
                && let Some(out) = engine.endpoint.poll_transmit(now, port.number)
            {
                // It would be lost, and rxe0's QP 1 of Linux 6.1 does not get over a send that finds the link down.
                if !engine.endpoint.local_ca().port(port.number).is_some_and(|port| port.active) {
                    Counters::add(&self.shared.counters.mads_unsent, 1);
                    continue;
                }
                let av = &out.to.av;
                mad_trace::mad(
                    &self.shared.name,
                    Direction::Out,
                    av.grh.map(|grh| grh.dgid),
                    av.dlid,
                    &out.mad,
                );
                if let Some(capture) = &mut self.capture
                    && let Some(port) = engine.endpoint.local_ca().port(port.number)
                {
                    capture.outgoing(port, &out);
                }
                port.queue.push_back(out);
            }
        }
        while let Some(event) = engine.endpoint.poll_event() {
            engine.route(event, &mut self.routed);
        }
        while let Some(event) = engine.endpoint.poll_sidr_event() {
            engine.route_sidr(event, &mut self.routed);
        }
        self.timer = engine.endpoint.poll_timeout();
    }

    /// A slow file holds up this task and no other: the engine's lock is not held.
    fn write_capture(&mut self) {
        if let Some(capture) = &mut self.capture {
            Counters::add(&self.shared.counters.mads_uncaptured, capture.write());
        }
    }

    /// Gives the events to those whom they concern; true if there were any.
    fn deliver(&mut self) -> bool {
        let Routed { requests, events, sidr_requests, sidr_ends } = &mut self.routed;
        let mut busy = !requests.is_empty() || !events.is_empty();
        busy |= !sidr_requests.is_empty() || !sidr_ends.is_empty();
        for (backlog, waiting) in sidr_requests.drain(..) {
            match backlog {
                Some(backlog) => backlog.push(&self.shared, waiting),
                None => waiting.refuse(&self.shared),
            }
        }
        for (query, end) in sidr_ends.drain(..) {
            // Who has asked may be gone meanwhile.
            _ = query.send(end);
        }
        for (backlog, waiting) in requests.drain(..) {
            match backlog {
                Some(backlog) => backlog.push(&self.shared, waiting),
                None => self.shared.abort(&waiting.slot),
            }
        }
        let mut released = false;
        for (slot, event) in events.drain(..) {
            released |= matches!(event, Event::Released { .. });
            slot.apply(&self.shared, event);
        }
        if released && self.shared.is_idle() {
            self.shared.parked.wake_all();
        }
        busy
    }

    /// Posts receive buffers that came home, and looks at completions that nobody waits for.
    fn feed(&mut self) -> bool {
        let hungry = self.shared.take_hungry();
        for who in &hungry {
            match who {
                Hungry::Connection(conn) => self.feed_connection(*conn),
                Hungry::Shared(queue) => {
                    if let Some(queue) = queue.upgrade() {
                        queue.refill();
                    }
                }
                Hungry::Datagrams(queue) => {
                    if let Some(queue) = queue.upgrade() {
                        queue.tend();
                    }
                }
            }
        }
        !hungry.is_empty()
    }

    /// Looks after connections with a keepalive.
    fn keep_alive(&mut self) -> bool {
        let more = match self.shared.keepalives.next_due() {
            Some(due) => due <= now() && self.shared.keep_alive(now()),
            None => return false,
        };
        // Looking may have moved the next time, which comes up with the engine's.
        self.timer = [self.timer, self.shared.keepalives.next_due()].into_iter().flatten().min();
        more
    }

    fn feed_connection(&self, conn: ConnHandle) {
        let slot = self.shared.engine().slots.get(&conn).cloned();
        if let Some(slot) = slot {
            slot.with(&self.shared, |state| {
                if let Some(queues) = &mut state.queues {
                    queues.tend(&self.shared, conn, &slot.parked);
                }
            });
        }
    }

    fn send(&mut self, cx: &mut Context<'_>) -> bool {
        let (mut busy, mut gone) = (false, false);
        for port in &mut self.ports {
            if port.queue.is_empty() {
                continue;
            }
            if let Err(error) = port.agent.send(&mut port.queue) {
                tracing::debug!(hca = %self.shared.name, port = port.number, %error, "MADs not sent");
                gone = true;
                continue;
            }
            // What did not fit waits for the window, and with it what the engine still has for this port.
            busy |= port.queue.is_empty() || port.agent.poll_ready(cx).is_ready();
        }
        if gone {
            self.gone();
        }
        busy | gone
    }

    /// Whether everything is over.
    fn is_done(&self) -> bool {
        let engine = self.shared.engine();
        let unused = engine.slots.is_empty() && engine.listeners.is_empty();
        match engine.phase {
            Phase::Open => false,
            Phase::Gone => engine.slots.is_empty(),
            // The program may still answer what it has in its hands.
            Phase::Unowned if engine.endpoint.sidr_requests() > 0 => false,
            _ => unused && self.ports.iter().all(|port| port.queue.is_empty()),
        }
    }
}

impl Engine {
    /// Finds whose event this is.
    fn route(&mut self, event: Event, routed: &mut Routed) {
        let conn = event.conn();
        match event {
            Event::Request { listener, request, .. } => {
                let service_id = request.req.service_id;
                let slot = self.new_slot(conn, service_id, &request.path, None);
                let backlog = self.listeners.get(&listener).cloned();
                routed.requests.push((backlog, Waiting { slot, request }));
            }
            Event::Released { .. } => {
                if let Some(slot) = self.slots.remove(&conn) {
                    routed.events.push((slot, event));
                }
            }
            _ => {
                if let Some(slot) = self.slots.get(&conn) {
                    routed.events.push((Arc::clone(slot), event));
                }
            }
        }
    }
}

impl Engine {
    /// Finds whose event of SIDR this is.
    fn route_sidr(&mut self, event: SidrEvent, routed: &mut Routed) {
        match event {
            SidrEvent::Request { handle, service, request } => {
                let backlog = self.responders.get(&service).cloned();
                routed.sidr_requests.push((backlog, sidr::Waiting { handle, request }));
            }
            end => {
                if let Some(query) = end.query().and_then(|query| self.queries.remove(&query)) {
                    routed.sidr_ends.push((query, end));
                }
            }
        }
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        this.shared.driver_waker().register(cx.waker());
        // A worker of tokio goes on with the task that was woken last. The tasks that are ready now may have commands
        // too: after their turn all of them leave together.
        if this.shared.take_commanded() && !this.yielded {
            this.yielded = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        this.yielded = false;
        for _ in 0..ROUNDS {
            if this.round(cx) {
                continue;
            }
            if this.is_done() {
                return Poll::Ready(());
            }
            let Some(timer) = this.timer else { return Poll::Pending };
            if this.sleep.deadline() != timer.into() {
                this.sleep.as_mut().reset(timer.into());
            }
            if this.sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.close_agents();
        self.shared.closed();
        tracing::debug!(hca = %self.shared.name, "closed");
    }
}

#[cfg(test)]
mod tests;
