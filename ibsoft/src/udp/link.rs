//! The link's half that every caller of the device works on: sending, and waking the I/O task.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use ibwire::{
    FlowLabel, Gid, Lid, Mtu, PKey, PacketLifeTime, PathRecord, Rate, Selector, ServiceId, ServiceLevel,
};

use super::capture::Capture;
use super::counters::RxCounters;
use super::outbox::Packets;
use super::socket::RoceSocket;
use super::transmit::{Progress, Transmitter};
use crate::device::{Departure, Link};
use crate::engine::Engine;

/// Sockets, and what callers and the I/O task tell each other. The link owns it: with the device the sockets go.
#[derive(Debug)]
pub(super) struct Io {
    pub sockets: Vec<RoceSocket>,
    pub capture: Option<Capture>,
    signals: Mutex<Signals>,
    /// Of the one task that sends, without the device's mutex; [`Signals::sending`] says whether there is one.
    sender: Mutex<Sender>,
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
}

/// What is on its way from the outbox to the sockets.
#[derive(Debug)]
struct Sender {
    transmitter: Transmitter,
    /// Out of the outbox and not in the transmitter yet.
    packets: Packets,
}

/// How many bytes leave the engine before they are sent.
const OUTBOX_BYTES: usize = 256 << 10;

/// Rounds in which one task sends what others have put into the outbox meanwhile; then it is the I/O task's turn.
const ROUNDS: usize = 16;

impl Io {
    pub(super) fn new(sockets: Vec<RoceSocket>, capture: Option<Capture>, port: u16) -> Self {
        let sender = Sender { transmitter: Transmitter::new(port), packets: Packets::default() };
        Self { sockets, capture, signals: Mutex::default(), sender: Mutex::new(sender) }
    }

    pub(super) fn signals(&self) -> MutexGuard<'_, Signals> {
        self.signals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sender(&self) -> MutexGuard<'_, Sender> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
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
}

impl Departure for Io {
    fn send(&self) -> bool {
        let mut sender = self.sender();
        let Sender { transmitter, packets } = &mut *sender;
        let capture = self.capture.as_ref();
        let mut socket = 0;
        for _ in 0..ROUNDS {
            let progress = transmitter.drain(&self.sockets, capture, |buffer| packets.pop(buffer));
            if let Some(capture) = capture {
                capture.flush();
            }
            if let Progress::Blocked(blocked) = progress {
                socket = blocked;
                break;
            }
            let mut signals = self.signals();
            if signals.outbox.is_empty() {
                signals.sending = false;
                return std::mem::take(&mut signals.more);
            }
            packets.swap(&mut signals.outbox);
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
}

impl UdpLink {
    pub(super) fn new(io: Arc<Io>, mtu: Mtu) -> Self {
        Self { io, mtu }
    }
}

impl Link for UdpLink {
    fn flush(&mut self, engine: &mut Engine, now: Instant) -> Option<Arc<dyn Departure>> {
        if let Some(capture) = &self.io.capture {
            capture.flush();
        }
        let mut signals = self.io.signals();
        let mut starts = false;
        if signals.blocked.is_none() {
            let Signals { outbox, more, sending, .. } = &mut *signals;
            while !*more && outbox.push(|bytes| engine.poll_transmit(now, bytes)) {
                *more = outbox.len() >= OUTBOX_BYTES;
            }
            starts = !*sending && (*more || !outbox.is_empty());
            *sending |= starts;
        }
        let due = engine.poll_timeout();
        let sooner = due.is_some_and(|due| signals.alarm.is_none_or(|alarm| due < alarm));
        if sooner {
            signals.alarm = due;
        }
        let task = if sooner { signals.task.take() } else { None };
        drop(signals);
        if let Some(task) = task {
            task.wake();
        }
        starts.then(|| self.io.clone() as Arc<dyn Departure>)
    }

    /// As Linux makes RoCE paths (spec/sa.md 7.4), with the lifetime of newer kernels.
    fn resolve(&self, port: u8, dgid: Gid) -> Option<PathRecord> {
        let dest = dgid.to_ip();
        let own = self.io.sockets.iter().map(|socket| socket.local.ip());
        // Of the same family, better also both link-local or both not.
        let source = own
            .filter(|ip| ip.is_ipv4() == dest.is_ipv4())
            .min_by_key(|ip| Gid::from_ip(*ip).is_link_local() != dgid.is_link_local())?;
        (port == 1 && !dgid.is_unspecified()).then(|| PathRecord {
            service_id: ServiceId::default(),
            dgid,
            sgid: source.into(),
            dlid: Lid::NONE,
            slid: Lid::NONE,
            raw_traffic: false,
            flow_label: FlowLabel::default(),
            hop_limit: HOP_LIMIT,
            traffic_class: 0,
            reversible: true,
            num_paths: 1,
            pkey: PKey::DEFAULT,
            qos_class: 0,
            sl: ServiceLevel::default(),
            mtu_selector: Selector::Exactly,
            mtu: self.mtu,
            rate_selector: Selector::Exactly,
            rate: Rate::PORT_CURRENT,
            packet_life_time_selector: Selector::Exactly,
            packet_life_time: LIFE_TIME,
            preference: 0,
        })
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

/// Of every path.
const HOP_LIMIT: u8 = 64;
const LIFE_TIME: PacketLifeTime = PacketLifeTime::truncate(16);

impl Drop for UdpLink {
    fn drop(&mut self) {
        // The task finds the device gone and ends.
        let task = self.io.signals().task.take();
        if let Some(task) = task {
            task.wake();
        }
    }
}
