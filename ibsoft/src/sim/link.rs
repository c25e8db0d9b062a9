//! Between an HCA and the wires.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use ibdev::DeviceError;
use ibwire::{Gid, PathRecord, Qpn};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::fabric::{Fabric, Owner, PortId};
use super::frame;
use crate::device::{Core, Departure, Link};
use crate::engine::{Engine, PortGroup};

/// The wires of a subnet, and who moves what is on them.
#[derive(Debug)]
pub(super) struct Wires {
    fabric: Mutex<Fabric>,
    driver: Mutex<Driver>,
    /// Where the driver runs.
    runtime: Handle,
}

#[derive(Debug, Default)]
pub(super) struct Driver {
    /// Wakes the driver; not there while it runs.
    pub task: Option<Waker>,
    /// When the driver comes up by itself.
    pub alarm: Option<Instant>,
}

impl Wires {
    pub(super) fn new(fabric: Fabric, runtime: Handle) -> Self {
        Self { fabric: Mutex::new(fabric), driver: Mutex::default(), runtime }
    }

    pub(super) fn fabric(&self) -> MutexGuard<'_, Fabric> {
        self.fabric.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn driver(&self) -> MutexGuard<'_, Driver> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the driver if something is due before it comes up.
    fn call_driver(&self, due: Option<Instant>) {
        let task = {
            let mut driver = self.driver();
            let sooner = due.is_some_and(|due| driver.alarm.is_none_or(|alarm| due < alarm));
            if sooner { driver.task.take() } else { None }
        };
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Wakes the driver whatever is due.
    pub(super) fn wake_driver(&self) {
        let task = self.driver().task.take();
        if let Some(task) = task {
            task.wake();
        }
    }
}

/// Packets of queue pairs that leave an HCA in one go. A peer can ask for gigabytes with one packet.
const AT_ONCE: usize = 256;

/// Puts what an HCA has to send on the wires: MADs, which come first and which their agents' windows bound, and so many others.
/// Whether that was all.
fn send(fabric: &mut Fabric, engine: &mut Engine, now: Instant, hca: usize, transport: &mut Vec<u8>) -> bool {
    let mut others = 0;
    while others < AT_ONCE {
        transport.clear();
        let Some(egress) = engine.poll_transmit(now, transport) else { return true };
        others += usize::from(egress.qpn != Qpn::GSI);
        let from = PortId { node: hca, port: egress.port };
        let frame = frame::encode(egress.net, egress.framing, transport);
        fabric.send(now, from, frame.into());
    }
    false
}

/// The link of one HCA.
#[derive(Debug)]
pub(super) struct SimLink {
    wires: Arc<Wires>,
    hca: usize,
    /// The HCA is gone: another one may be in its place.
    is_closed: bool,
    transport: Vec<u8>,
    /// For the layers above.
    seeds: ChaCha8Rng,
}

impl SimLink {
    pub(super) fn new(wires: Arc<Wires>, hca: usize, seed: u64) -> Self {
        Self { wires, hca, is_closed: false, transport: Vec::new(), seeds: ChaCha8Rng::seed_from_u64(seed) }
    }
}

impl Link for SimLink {
    fn flush(&mut self, engine: &mut Engine, now: Instant) -> Option<Arc<dyn Departure>> {
        let mut fabric = self.wires.fabric();
        let is_all = send(&mut fabric, engine, now, self.hca, &mut self.transport);
        // What is left leaves at the same time, when the driver has had its turn.
        fabric.set_timer(Owner::Hca(self.hca), if is_all { engine.poll_timeout() } else { Some(now) });
        let due = fabric.next_due();
        drop(fabric);
        self.wires.call_driver(due);
        None
    }

    fn close(&mut self, engine: &mut Engine, now: Instant) {
        self.is_closed = true;
        let mut fabric = self.wires.fabric();
        send(&mut fabric, engine, now, self.hca, &mut self.transport);
        let due = fabric.next_due();
        drop(fabric);
        self.wires.call_driver(due);
    }

    fn closed(&self) -> Option<watch::Receiver<()>> {
        None
    }

    fn resolve(&self, port: u8, dgid: Gid) -> Option<PathRecord> {
        let from = PortId { node: self.hca, port };
        (!self.is_closed).then(|| self.wires.fabric().path(from, dgid)).flatten()
    }

    fn join(&mut self, _core: &Arc<Core>, group: PortGroup) -> Result<(), DeviceError> {
        self.wires.fabric().join(PortId { node: self.hca, port: group.port }, group.mgid, group.mlid);
        Ok(())
    }

    fn leave(&mut self, group: PortGroup) {
        if self.is_closed {
            return;
        }
        self.wires.fabric().leave(PortId { node: self.hca, port: group.port }, group.mgid, group.mlid);
    }

    fn draw_seed(&mut self) -> Option<[u8; 32]> {
        Some(self.seeds.random())
    }

    fn runtime(&self) -> &Handle {
        &self.wires.runtime
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}
