//! The link's half that every caller of the device works on: sending, and waking the I/O task.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use ibwire::{
    FlowLabel, Gid, Lid, Mtu, PKey, PacketLifeTime, PathRecord, Rate, Selector, ServiceId, ServiceLevel,
};

use super::capture::Capture;
use super::counters::RxCounters;
use super::socket::RoceSocket;
use super::transmit::{Progress, Transmitter};
use crate::device::Link;
use crate::engine::Engine;

/// Sockets, and what callers and the I/O task tell each other. The link owns it: with the device the sockets go.
#[derive(Debug)]
pub(super) struct Io {
    pub sockets: Vec<RoceSocket>,
    pub capture: Option<Capture>,
    signals: Mutex<Signals>,
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
}

impl Io {
    pub(super) fn new(sockets: Vec<RoceSocket>, capture: Option<Capture>) -> Self {
        Self { sockets, capture, signals: Mutex::default() }
    }

    pub(super) fn signals(&self) -> MutexGuard<'_, Signals> {
        self.signals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// RoCEv2 over UDP.
#[derive(Debug)]
pub(super) struct UdpLink {
    io: Arc<Io>,
    transmitter: Transmitter,
    mtu: Mtu,
}

impl UdpLink {
    pub(super) fn new(io: Arc<Io>, port: u16, mtu: Mtu) -> Self {
        Self { io, transmitter: Transmitter::new(port), mtu }
    }
}

impl Link for UdpLink {
    fn flush(&mut self, engine: &mut Engine, now: Instant) {
        let capture = self.io.capture.as_ref();
        let progress =
            self.transmitter.drain(&self.io.sockets, capture, |out| engine.poll_transmit(now, out));
        if let Some(capture) = capture {
            capture.flush();
        }
        let due = engine.poll_timeout();
        let mut signals = self.io.signals();
        let blocked = match progress {
            Progress::Done => None,
            Progress::Blocked(socket) => Some(socket),
        };
        let sooner = due.is_some_and(|due| signals.alarm.is_none_or(|alarm| due < alarm));
        if sooner {
            signals.alarm = due;
        }
        let newly_blocked = blocked.is_some() && signals.blocked.is_none();
        signals.blocked = blocked;
        let task = if sooner || newly_blocked { signals.task.take() } else { None };
        drop(signals);
        if let Some(task) = task {
            task.wake();
        }
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
            .chain(self.transmitter.counters.named())
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
