//! The link's half that every caller of the device works on: sending, and waking the I/O task.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::Waker;
use std::time::Instant;

use ibdev::DeviceError;
use ibwire::icrc::Icrc;
use ibwire::{Gid, Mtu, PathRecord, Qpn};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use super::capture::Capture;
use super::counters::RxCounters;
use super::group;
use super::outbox::Packets;
use super::receive::Receiver;
use super::socket::RoceSocket;
use super::transmit::{Progress, Transmitter};
use crate::device::{Core, Departure, Intake, Link};
use crate::engine::{Engine, PortGroup};

/// What callers and the I/O task tell each other, and the way out.
#[derive(Debug)]
pub(super) struct Io {
    /// Where each socket is bound, and of which port it is.
    pub addresses: Vec<(u8, IpAddr)>,
    pub capture: Option<Capture>,
    signals: Mutex<Signals>,
    /// Of the one task that sends, without the device's mutex; [`Signals::sending`] says whether there is one.
    sender: Mutex<Sender>,
    /// Of whoever receives. Locked before the device's mutex and before the sender's.
    receiver: Mutex<Receiver>,
}

#[derive(Debug, Default)]
pub(super) struct Signals {
    /// Wakes the I/O task; not there while it runs.
    pub task: Option<Waker>,
    /// When the I/O task comes up by itself.
    pub alarm: Option<Instant>,
    /// The socket that has no room, if packets wait for it.
    pub blocked: Option<usize>,
    pub received: RxCounters,
    /// The device is gone or closed: what is left is sent, then the sockets are closed.
    pub closing: bool,
    /// The sockets are closed.
    closed: bool,
    /// Packets that have left the engine.
    outbox: Packets,
    /// The outbox was full, so the engine may have more. It is asked again once all is sent.
    more: bool,
    /// A task sends; it looks into the outbox once more before it stops.
    sending: bool,
}

impl Signals {
    /// The socket has room again; the next flush sends.
    pub(super) fn unblock(&mut self) {
        self.blocked = None;
        // The engine may have nothing; the sender has something left.
        self.more = true;
    }

    /// Lets the I/O task come up at `due` at the latest; it has to be woken if that is sooner than it knows.
    fn arm(&mut self, due: Option<Instant>) -> Option<Waker> {
        let sooner = due.is_some_and(|due| self.alarm.is_none_or(|alarm| due < alarm));
        if !sooner {
            return None;
        }
        self.alarm = due;
        self.task.take()
    }

    /// Whom to wake now that nobody sends: the I/O task, if it waits for that before it closes the sockets.
    fn stop_sending(&mut self) -> Option<Waker> {
        self.sending = false;
        if self.closing { self.task.take() } else { None }
    }
}

/// What is on its way from the outbox to the sockets.
#[derive(Debug)]
struct Sender {
    /// `None` once they are closed.
    sockets: Option<Arc<[RoceSocket]>>,
    transmitter: Transmitter,
}

/// What a link that closes waits for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Another task that sends, which wakes the I/O task.
    Sender,
    /// Room in this socket.
    Room(usize),
    Nothing,
}

/// How many bytes leave the engine before they are sent.
pub(super) const OUTBOX_BYTES: usize = 256 << 10;

/// Rounds in which one task sends what others have put into the outbox meanwhile; then it is the I/O task's turn.
const ROUNDS: usize = 16;

impl Io {
    pub(super) fn new(sockets: Vec<RoceSocket>, capture: Option<Capture>, port: u16) -> Self {
        let addresses: Vec<_> = sockets.iter().map(|socket| (socket.port, socket.local.ip())).collect();
        let receiver = Mutex::new(Receiver::new(sockets.len()));
        let sender =
            Mutex::new(Sender { sockets: Some(sockets.into()), transmitter: Transmitter::new(port) });
        Self { addresses, capture, signals: Mutex::default(), sender, receiver }
    }

    pub(super) fn signals(&self) -> MutexGuard<'_, Signals> {
        self.signals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn receiver(&self) -> MutexGuard<'_, Receiver> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, unless somebody receives.
    pub(super) fn try_receiver(&self) -> Option<MutexGuard<'_, Receiver>> {
        unless_locked(&self.receiver)
    }

    fn sender(&self) -> MutexGuard<'_, Sender> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sockets, which stay the sender's; none once they are closed.
    pub(super) fn sockets(&self) -> Weak<[RoceSocket]> {
        self.sender().sockets.as_ref().map_or_else(|| Arc::downgrade(&Arc::from([])), Arc::downgrade)
    }

    /// Does something with a socket while nobody sends or closes it; `None` if somebody does, or did.
    pub(super) fn try_with_socket<R>(&self, socket: usize, call: impl FnOnce(&RoceSocket) -> R) -> Option<R> {
        unless_locked(&self.sender)?.sockets.as_ref()?.get(socket).map(call)
    }

    /// Sees to it that the I/O task asks the engine at `due` at the latest.
    pub(super) fn remind(&self, due: Instant) {
        let mut signals = self.signals();
        let task = signals.arm(Some(due));
        drop(signals);
        if let Some(task) = task {
            task.wake();
        }
    }

    /// The I/O task sends what is left, when the socket has room.
    fn leave_to_task(&self, socket: usize) {
        let mut signals = self.signals();
        signals.sending = false;
        signals.blocked = Some(socket);
        let task = signals.task.take();
        drop(signals);
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Sends what is left, as far as there is room, after the engine was asked for the last time. The I/O task, which
    /// calls this, is woken by `waker` when another sender stops.
    pub(super) fn send_rest(&self, waker: &Waker) -> Rest {
        loop {
            let mut signals = self.signals();
            signals.task = Some(waker.clone());
            if signals.closed {
                return Rest::Nothing;
            }
            if signals.sending {
                return Rest::Sender;
            }
            if let Some(socket) = signals.blocked {
                return Rest::Room(socket);
            }
            if !std::mem::take(&mut signals.more) && signals.outbox.is_empty() {
                return Rest::Nothing;
            }
            signals.sending = true;
            drop(signals);
            self.send();
        }
    }

    /// Closes the sockets, and counts what was not sent. A sender at work is waited for: a few system calls.
    pub(super) fn close(&self) {
        let mut sender = self.sender();
        let Sender { sockets, transmitter } = &mut *sender;
        let mut signals = self.signals();
        let rest = std::mem::take(&mut signals.outbox);
        (signals.closing, signals.closed) = (true, true);
        drop(signals);
        let unsent = transmitter.give_up() + rest.count();
        transmitter.counters.drop_closed += unsent as u64;
        *sockets = None;
        drop(sender);
        if let Some(capture) = &self.capture {
            capture.flush();
        }
        if unsent > 0 {
            let addresses: Vec<_> = self.addresses.iter().map(|(_, ip)| ip).collect();
            tracing::warn!(?addresses, packets = unsent, "closed before all packets were sent");
        }
    }
}

fn unless_locked<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Departure for Io {
    fn send(&self) -> bool {
        let mut sender = self.sender();
        let Sender { sockets, transmitter } = &mut *sender;
        // Once they are closed nothing is left: what there was has been counted.
        let Some(sockets) = sockets else { return false };
        let capture = self.capture.as_ref();
        let mut socket = 0;
        for _ in 0..ROUNDS {
            let progress = transmitter.drain(sockets, capture);
            if let Some(capture) = capture {
                capture.flush();
            }
            if let Progress::Blocked(blocked) = progress {
                socket = blocked;
                break;
            }
            let mut signals = self.signals();
            if signals.outbox.is_empty() {
                let task = signals.stop_sending();
                let has_room = std::mem::take(&mut signals.more);
                drop(signals);
                if let Some(task) = task {
                    task.wake();
                }
                return has_room;
            }
            transmitter.take(&mut signals.outbox);
        }
        self.leave_to_task(socket);
        false
    }
}

/// RoCEv2 over UDP.
#[derive(Debug)]
pub(super) struct UdpLink {
    io: Arc<Io>,
    mtu: Mtu,
    /// Without a sender once the sockets are closed.
    closed: watch::Receiver<()>,
    /// Where the tasks of groups run.
    runtime: Handle,
    /// Groups that were joined; dropped, the one whose it is leaves.
    groups: BTreeMap<(u8, Gid), oneshot::Sender<()>>,
}

impl UdpLink {
    pub(super) fn new(io: Arc<Io>, mtu: Mtu, closed: watch::Receiver<()>, runtime: Handle) -> Self {
        Self { io, mtu, closed, runtime, groups: BTreeMap::new() }
    }
}

impl Link for UdpLink {
    fn flush(&mut self, engine: &mut Engine, now: Instant) -> Option<Arc<dyn Departure>> {
        let mut signals = self.io.signals();
        let mut starts = false;
        if signals.blocked.is_none() {
            let Signals { outbox, more, sending, .. } = &mut *signals;
            while !*more && let Some(egress) = engine.poll_run(now, outbox.next(), Icrc::LEN) {
                outbox.push(egress.net, egress.len + Icrc::LEN, egress.packets);
                *more = outbox.len() >= OUTBOX_BYTES;
            }
            starts = !*sending && (*more || !outbox.is_empty());
            *sending |= starts;
        }
        let task = signals.arm(engine.poll_timeout());
        drop(signals);
        if let Some(task) = task {
            task.wake();
        }
        starts.then(|| self.io.clone() as Arc<dyn Departure>)
    }

    fn close(&mut self, engine: &mut Engine, now: Instant) {
        self.groups.clear();
        let mut signals = self.io.signals();
        let Signals { outbox, blocked, more, sending, closing, closed, task, .. } = &mut *signals;
        // MADs come first, all of them; their agents' windows bound them. Nothing but their leaving tells of them, while
        // what queue pairs send has completions.
        let mut is_mad = true;
        while (is_mad || outbox.len() < OUTBOX_BYTES)
            && let Some(egress) = engine.poll_run(now, outbox.next(), Icrc::LEN)
        {
            is_mad = egress.qpn == Qpn::GSI;
            outbox.push(egress.net, egress.len + Icrc::LEN, egress.packets);
        }
        *closing = true;
        let idle = blocked.is_none() && !*more && !*sending && outbox.is_empty();
        // The sender may have something left.
        *more = true;
        let (task, ends) = (task.take(), idle || *closed);
        drop(signals);
        if ends {
            self.io.close();
        }
        if let Some(task) = task {
            task.wake();
        }
    }

    fn intake(&self) -> Option<Arc<dyn Intake>> {
        Some(self.io.clone())
    }

    fn closed(&self) -> Option<watch::Receiver<()>> {
        Some(self.closed.clone())
    }

    fn resolve(&self, port: u8, dgid: Gid) -> Option<PathRecord> {
        let dest = dgid.to_ip();
        let of_port = |&(number, ip): &(u8, IpAddr)| (number == port).then_some(ip);
        let own = self.io.addresses.iter().filter_map(of_port);
        // Of the same family, better also both link-local or both not.
        let source = own
            .filter(|ip| ip.is_ipv4() == dest.is_ipv4())
            .min_by_key(|ip| Gid::from_ip(*ip).is_link_local() != dgid.is_link_local())?;
        (!dgid.is_unspecified()).then(|| PathRecord::roce(source.into(), dgid, self.mtu))
    }

    fn join(&mut self, core: &Arc<Core>, PortGroup { port, mgid, .. }: PortGroup) -> Result<(), DeviceError> {
        let sockets = self.io.sockets().upgrade().ok_or(DeviceError::Gone)?;
        let udp_port = sockets.first().ok_or(DeviceError::Gone)?.local.port();
        let of_port = |&(number, ip): &(u8, IpAddr)| (number == port).then_some(ip);
        let own: Vec<IpAddr> = self.io.addresses.iter().filter_map(of_port).collect();
        let _runtime = self.runtime.enter();
        let socket = group::bind(mgid.to_ip(), udp_port, &own, port)?;
        let (member, left) = oneshot::channel();
        self.runtime.spawn(group::receive(Arc::downgrade(core), Arc::clone(&self.io), socket, left));
        self.groups.insert((port, mgid), member);
        Ok(())
    }

    fn leave(&mut self, PortGroup { port, mgid, .. }: PortGroup) {
        self.groups.remove(&(port, mgid));
    }

    fn runtime(&self) -> &Handle {
        &self.runtime
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let received = self.io.signals().received;
        let lost = self.io.capture.as_ref().map_or(0, Capture::errors);
        received
            .named()
            .into_iter()
            .chain(self.io.sender().transmitter.counters.named())
            .chain([("link_pcap_errors", lost)])
            .collect()
    }
}
