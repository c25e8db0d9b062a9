//! The transport engine: a state machine that speaks InfiniBand's transport layer.
//!
//! No socket, no clock, no runtime: packets and times come in by [`Engine::handle_packet`] and
//! [`Engine::handle_timeout`], packets go out by [`Engine::poll_transmit`]. What is between BTH and padding is made
//! and read here; what is around it (IP or LRH and GRH, ICRC, VCRC) is the link's, which hands over verified packets
//! only.
//!
//! After any call the link
//! 1. polls [`poll_transmit`](Engine::poll_transmit) until it has nothing more,
//! 2. polls [`poll_event`](Engine::poll_event) likewise,
//! 3. drops what [`take_released`](Engine::take_released) returns, outside of any lock that a buffer's home may want,
//! 4. calls [`handle_timeout`](Engine::handle_timeout) no later than [`poll_timeout`](Engine::poll_timeout) says.
//!
//! Reliable connections can migrate to an alternate path. There are no memory windows and no keys that can be invalidated.
//! ATOMIC_WRITE and FLUSH are unknown here, as to Linux 6.1.
//!
//! Acknowledgements are coalesced between two polls of the first kind: a link that has read a batch of packets hands
//! them all in, then polls; it keeps batches below the window of a peer (some 64 packets).
//!
//! ```
//! use ibdev::{DeviceAttr, qp::QpType};
//! use ibsoft::engine::{Config, Engine, QpCreate};
//! # fn ports() -> Vec<ibsoft::engine::PortConfig> { Vec::new() }
//! let mut engine = Engine::new(Config::new(DeviceAttr::new("soft", ibwire::Guid(1), 1), ports(), [7; 32]));
//! let cq = engine.create_cq(64)?;
//! let create = QpCreate::new(QpType::Rc, cq, 32, 32);
//! let qpn = engine.create_qp(&create)?;
//! assert!(engine.create_qp(&create).is_err(), "the CQ holds the work requests of one QP only");
//! # assert!(qpn.get() > 1);
//! # Ok::<(), ibdev::DeviceError>(())
//! ```

mod arrival;
mod completions;
mod config;
mod counters;
mod cq;
mod groups;
mod gsi;
mod limit;
mod memory;
mod migration;
mod net;
mod peer;
mod place;
mod port;
mod post;
mod qp;
mod raw;
mod rc;
mod receives;
mod requester;
mod responder;
mod responses;
mod segment;
mod sg;
mod shared;
mod state;
mod table;
mod timer;
mod uc;
mod ud;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Instant;

use ibdev::qp::Transition;
use ibdev::{
    AddressVector, AgentSpec, Buf, Completion, DeviceAttr, DeviceError, DeviceEvent, GidEntry, OutgoingMad,
    PortAttr, PostError, ReceivedMad, RecvWr, SendWr,
};
use ibwire::{PKey, Psn, Qpn};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use slab::Slab;

pub use config::{Config, PortConfig, device_attr};
pub use counters::Counters;
pub use cq::CqId;
pub use groups::PortGroup;
pub use gsi::AgentId;
pub use memory::DomainId;
pub use net::{Egress, Framing, LinkError, NetHeader, NetRoute};
pub use qp::QpCreate;
pub use receives::SrqId;

use cq::Cq;
use groups::Groups;
use gsi::Gsi;
use limit::{at_most, one_more};
use memory::Memory;
use net::{Destination, Run};
use port::Port;
use qp::{Kind, Qp};
use raw::Raws;
use receives::Srq;
use shared::Shared;
use table::Table;

/// Packets of one QP in a row before another one gets its turn: what a link can send with one GSO call.
const BURST: u32 = 64;

/// The state that a QP has which is not there any more.
const DESTROYED: &str = "destroyed";

/// Something happened that someone may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineEvent {
    /// The completion queue is not empty any more.
    CqReady(CqId),
    /// The agent's receive queue is not empty any more.
    MadReady(AgentId),
    /// The agent's send window, which was too small for a batch, has room again.
    MadRoom(AgentId),
    /// What the device reports to its users.
    Device(DeviceEvent),
}

/// The transport engine of one HCA. See the [module](self).
#[derive(Debug)]
pub struct Engine {
    shared: Shared,
    qps: Table<Qpn, Qp>,
    gsi: Gsi,
    groups: Groups,
    rng: ChaCha8Rng,
    max_qps: usize,
    max_srqs: usize,
    cq_spares: cq::Spares,
    /// Packets sent in a row by the QP at the head of the ring.
    burst: u32,
}

impl Engine {
    /// An engine without queues.
    pub fn new(config: Config) -> Self {
        let mut rng = ChaCha8Rng::from_seed(config.rng_seed);
        let psn = Psn::truncate(rng.random());
        Self {
            gsi: Gsi::new(psn, config.mad_send_window, config.mad_recv_queue),
            shared: Shared {
                device: config.device,
                window: config.window,
                ports: config
                    .ports
                    .into_iter()
                    .zip(1..)
                    .map(|(port, number)| Port::new(number, port))
                    .collect(),
                cqs: Slab::new(),
                srqs: Table::new(),
                memory: Memory::new(config.max_domains, config.max_regions),
                events: VecDeque::new(),
                counters: Counters::default(),
                timers: timer::Timers::default(),
                ready: VecDeque::new(),
                raws: Raws::default(),
                local: None,
                destination: Destination::NONE,
                released: Vec::new(),
            },
            qps: Table::new(),
            groups: Groups::default(),
            rng,
            cq_spares: cq::Spares::default(),
            max_qps: (config.max_qps as usize).min(Table::<Qpn, Qp>::MOST),
            max_srqs: (config.max_srqs as usize).min(Table::<SrqId, Srq>::MOST),
            burst: 0,
        }
    }

    /// What the device is and can do.
    pub fn device(&self) -> &DeviceAttr {
        &self.shared.device
    }

    /// The port's attributes, `None` if there is no such port.
    pub fn port(&self, port: u8) -> Option<&PortAttr> {
        self.shared.port(port).map(|port| &port.attr)
    }

    /// The port's GID table, empty if there is no such port.
    pub fn gids(&self, port: u8) -> &[GidEntry] {
        self.shared.port(port).map_or(&[], |port| &port.gids)
    }

    /// The port's P_Key table, empty if there is no such port.
    pub fn pkeys(&self, port: u8) -> &[PKey] {
        self.shared.port(port).map_or(&[], |port| &port.pkeys)
    }

    /// What has been counted.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Changes the attributes of the port `attr.number`; a change of state, LIDs or SM is reported. A port that is not active
    /// sends and receives nothing: what its QPs send is lost. Connections keep the LIDs that they were made with.
    pub fn set_port(&mut self, attr: PortAttr) {
        let Some(index) = usize::from(attr.number).checked_sub(1) else { return };
        let Some(port) = self.shared.ports.get_mut(index) else { return };
        let was_up = port.is_up();
        let before = std::mem::replace(&mut port.attr, attr);
        if (before.lid, before.lmc) != (attr.lid, attr.lmc) {
            self.shared.device_event(DeviceEvent::LidChange(attr.number));
        }
        if before.sm_lid != attr.sm_lid {
            self.shared.device_event(DeviceEvent::SmChange(attr.number));
        }
        let Some(port) = self.shared.port(attr.number) else { return };
        match (was_up, port.is_up()) {
            (false, true) => self.shared.device_event(DeviceEvent::PortUp(attr.number)),
            (true, false) => self.shared.device_event(DeviceEvent::PortDown(attr.number)),
            _ => {}
        }
    }

    /// Replaces the GID table of a port and reports it. Connections keep the addresses that they were made with.
    pub fn set_gids(&mut self, port: u8, gids: Vec<GidEntry>) {
        let Some(index) = usize::from(port).checked_sub(1) else { return };
        let Some(entry) = self.shared.ports.get_mut(index) else { return };
        entry.gids = gids;
        self.shared.device_event(DeviceEvent::GidChange(port));
    }

    /// Replaces the P_Key table of a port and reports it. QPs keep their index.
    pub fn set_pkeys(&mut self, port: u8, pkeys: Vec<PKey>) {
        let Some(index) = usize::from(port).checked_sub(1) else { return };
        let Some(entry) = self.shared.ports.get_mut(index) else { return };
        entry.pkeys = pkeys;
        self.shared.device_event(DeviceEvent::PkeyChange(port));
    }

    /// Reports that the port's users are to register with the SA again.
    pub fn reregister(&mut self, port: u8) {
        if self.shared.port(port).is_some() {
            self.shared.device_event(DeviceEvent::ClientReregister(port));
        }
    }

    /// Creates a completion queue.
    ///
    /// # Errors
    /// [`DeviceError::Limit`] for a capacity beyond the device's.
    pub fn create_cq(&mut self, capacity: u32) -> Result<CqId, DeviceError> {
        at_most("completion queue for", capacity, self.shared.device.max_cqe)?;
        Ok(CqId(self.shared.cqs.insert(Cq::new(capacity, &mut self.cq_spares)) as u32))
    }

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// [`DeviceError::InUse`] while QPs complete on it.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), DeviceError> {
        if self.shared.cq(cq).is_some_and(|cq| cq.in_use()) {
            return Err(DeviceError::InUse {
                what: "the completion queue",
                holder: "a QP: destroy that first",
            });
        }
        self.shared.cqs.try_remove(cq.0 as usize);
        Ok(())
    }

    /// How many completions wait.
    pub fn cq_len(&self, cq: CqId) -> usize {
        self.shared.cqs.get(cq.0 as usize).map_or(0, Cq::len)
    }

    /// Appends at most `max` completions to `out` and returns how many. Their work requests' places in the queues
    /// are free again.
    pub fn poll_cq(&mut self, cq: CqId, out: &mut Vec<Completion>, max: usize) -> usize {
        let Shared { cqs, srqs, .. } = &mut self.shared;
        let Some(cq) = cqs.get_mut(cq.0 as usize) else { return 0 };
        let count = cq.len().min(max);
        out.reserve(count);
        for _ in 0..count {
            let Some((slot, completion)) = cq.pop() else { break };
            if let Some(qp) = self.qps.at_mut(slot) {
                qp.polled(completion.op.is_recv(), srqs);
            }
            out.push(completion);
        }
        cq.retire(&mut self.cq_spares);
        count
    }

    /// Creates a queue pair in RESET, with a random number.
    ///
    /// # Errors
    /// [`DeviceError::Limit`] if there are too many QPs, a queue is longer than the device's limit, or the
    /// completion queues have no room for all its work requests; [`DeviceError::Unsupported`] for another transport;
    /// [`DeviceError::Gone`] for a completion queue, a shared receive queue or a domain that was destroyed.
    pub fn create_qp(&mut self, create: &QpCreate) -> Result<Qpn, DeviceError> {
        let kind = Kind::new(create.kind, &self.shared.device)?;
        one_more("QPs", self.qps.len(), self.max_qps)?;
        at_most("send queue for", create.max_send_wr, self.shared.device.max_qp_wr)?;
        if create.srq.is_none() {
            at_most("receive queue for", create.max_recv_wr, self.shared.device.max_qp_wr)?;
        }
        at_most("buffers of a work request", create.max_sge, self.shared.device.max_sge)?;
        if create.kind.is_raw() && create.srq.is_some() {
            return Err(DeviceError::Unsupported { what: "a raw queue pair with a shared receive queue" });
        }
        if let Some(srq) = create.srq {
            let srq = self.shared.srqs.get(srq).ok_or(DeviceError::Gone)?;
            if srq.domain != create.domain {
                return Err(DeviceError::Unsupported { what: "a shared receive queue of another domain" });
            }
        }
        self.shared.admit(create)?;
        Ok(self.qps.insert(&mut self.rng, |qpn, slot| Qp::new(qpn, slot, kind, create)))
    }

    /// Destroys a queue pair. Posted work never completes, and completions that were not polled are taken out of
    /// the completion queues. All their buffers are returned.
    #[must_use = "dropped, the buffers go home: not under a lock that their homes take"]
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Vec<Buf> {
        match self.qps.remove(qpn) {
            Some(qp) => {
                self.groups.detach_all(qpn);
                qp.dissolve(&mut self.shared)
            }
            None => Vec::new(),
        }
    }

    /// Changes the state of a queue pair (spec/softhca.md 2.11).
    ///
    /// Going to RESET returns the buffers of posted work and of completions that were not polled, which are gone:
    /// drop them where their homes can take them. Other transitions return none.
    ///
    /// # Errors
    /// [`DeviceError::State`] for a transition that the state table does not have, [`DeviceError::Limit`] for an
    /// attribute out of range, [`DeviceError::Unsupported`] for an address that the port cannot reach or for
    /// attributes of another transport.
    pub fn modify(&mut self, qpn: Qpn, transition: Transition) -> Result<Vec<Buf>, DeviceError> {
        let qp = self.qps.get_mut(qpn).ok_or(DeviceError::State { state: DESTROYED })?;
        qp.modify(transition, &mut self.shared)
    }

    /// Posts sends from the front of `work` in order; what remains after an error was not posted.
    ///
    /// # Errors
    /// See [`PostError`]. A datagram longer than the port's MTU is [`PostError::TooLong`].
    pub fn post_send(&mut self, qpn: Qpn, work: &mut VecDeque<SendWr>) -> Result<(), PostError> {
        let qp = self.qps.get_mut(qpn).ok_or(PostError::State { state: DESTROYED })?;
        qp.post_send(work, &mut self.shared)
    }

    /// Posts receives from the front of `work` in order; what remains after an error was not posted.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_recv(&mut self, qpn: Qpn, work: &mut VecDeque<RecvWr>) -> Result<(), PostError> {
        let qp = self.qps.get_mut(qpn).ok_or(PostError::State { state: DESTROYED })?;
        qp.post_recv(work, &mut self.shared)
    }

    /// Whether datagrams can be sent to this address.
    ///
    /// # Errors
    /// [`DeviceError::Limit`] for a port that does not exist, [`DeviceError::Unsupported`] for an address that the
    /// port cannot reach.
    pub fn check_address(&self, av: &AddressVector) -> Result<(), DeviceError> {
        let limit = self.shared.ports.len() as u64;
        let no_port = DeviceError::Limit { what: "port", value: av.port.into(), limit };
        let port = self.shared.port(av.port).ok_or(no_port)?;
        port.resolve(av).map(drop).map_err(|what| DeviceError::Unsupported { what })
    }

    /// How many QPs there are.
    pub fn qp_count(&self) -> usize {
        self.qps.len()
    }

    /// Whether there is such a QP.
    pub fn has_qp(&self, qpn: Qpn) -> bool {
        self.qps.contains(qpn)
    }

    /// The QPs that there are.
    pub fn qpns(&self) -> Vec<Qpn> {
        self.qps.numbers().collect()
    }

    /// How many sends and how many receives of a QP are posted or have completions that were not polled, `None` if
    /// there is no such QP.
    pub fn outstanding(&mut self, qpn: Qpn) -> Option<(u32, u32)> {
        let qp = self.qps.get_mut(qpn)?;
        Some((qp.side(false).used, qp.side(true).used))
    }

    /// When the last packet of a reliable connection's peer came, `None` if none has or if there is no such QP.
    pub fn last_heard(&self, qpn: Qpn) -> Option<Instant> {
        self.qps.get(qpn)?.last_heard()
    }

    /// Registers for the MADs of one class on one port: unsolicited ones with the methods in `spec`, and responses.
    ///
    /// # Errors
    /// [`DeviceError::InUse`] if there is an agent for the class already, [`DeviceError::Limit`] for a port that
    /// does not exist.
    pub fn open_agent(&mut self, spec: AgentSpec) -> Result<AgentId, DeviceError> {
        if self.shared.port(spec.port).is_none() {
            let limit = self.shared.ports.len() as u64;
            return Err(DeviceError::Limit { what: "port", value: spec.port.into(), limit });
        }
        self.gsi.open(spec)
    }

    /// Frees the class. What the agent sent still leaves; what it received is gone.
    pub fn close_agent(&mut self, agent: AgentId) {
        self.gsi.close(agent);
    }

    /// Sends MADs from the front of `batch` while the agent's window has room; if some remain, an
    /// [`EngineEvent::MadRoom`] follows. A MAD to an address that the agent's port cannot reach counts as sent and
    /// lost (`drop_mad_unroutable`).
    pub fn send_mads(&mut self, agent: AgentId, batch: &mut VecDeque<OutgoingMad>) {
        self.gsi.send(agent, batch, &mut self.shared);
    }

    /// How many MADs the agent's send window takes now.
    pub fn mad_room(&self, agent: AgentId) -> usize {
        self.gsi.room(agent)
    }

    /// How many received MADs wait.
    pub fn mad_len(&self, agent: AgentId) -> usize {
        self.gsi.waiting(agent)
    }

    /// Appends at most `max` received MADs to `out` and returns how many.
    pub fn poll_mads(&mut self, agent: AgentId, out: &mut Vec<ReceivedMad>, max: usize) -> usize {
        self.gsi.receive(agent, out, max)
    }

    /// Appends the next packet to `out`, BTH through padding, or of a raw packet what is between LRH and VCRC, and says where
    /// it goes; `None` when there is nothing
    /// to send. MADs come first; packets of one QP come in a row.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<Egress<'_>> {
        self.poll_packets(now, out, 0, 1)
    }

    /// The same, but if packets of the same message and the same length follow, all of them are appended. Behind each are
    /// `room` bytes of zeros for what the link adds.
    pub fn poll_run(&mut self, now: Instant, out: &mut Vec<u8>, room: usize) -> Option<Egress<'_>> {
        self.poll_packets(now, out, room, BURST)
    }

    fn poll_packets(
        &mut self,
        now: Instant,
        out: &mut Vec<u8>,
        room: usize,
        most: u32,
    ) -> Option<Egress<'_>> {
        loop {
            let start = out.len();
            let (qpn, len) = match self.gsi.poll_transmit(out, &mut self.shared) {
                Some(len) => (Qpn::GSI, len),
                None => self.poll_ring(now, out)?,
            };
            let port = self.shared.destination.port;
            let is_up = self.shared.port(port).is_some_and(Port::is_up);
            if !is_up {
                self.shared.local = None;
                // One packet can ask for gigabytes, and one work request send them.
                let rest = if qpn == Qpn::GSI { 0 } else { self.lose_rest() };
                self.shared.counters.drop_tx_port_down += 1 + u64::from(rest);
                out.truncate(start);
                continue;
            }
            if self.shared.local.is_some() && self.loop_raw(port, &out[start..]) {
                out.truncate(start);
                continue;
            }
            out.resize(out.len() + room, 0);
            let most = (most - 1).min(BURST - self.burst);
            let more =
                if qpn == Qpn::GSI || most == 0 { 0 } else { self.go_on(out, Run { len, room, most }) };
            let packets = 1 + more as usize;
            let counters = &mut self.shared.counters;
            counters.tx_packets += packets as u64;
            counters.tx_bytes += (packets * len) as u64;
            let Destination { net, framing, .. } = &self.shared.destination;
            return Some(Egress { port, net, framing: *framing, qpn, len, packets });
        }
    }

    /// The packets that follow the one which the QP at the head of the ring has just sent are lost. How many.
    fn lose_rest(&mut self) -> u32 {
        let head = self.shared.ready.front().copied();
        let qp = head.and_then(|slot| self.qps.at_mut(slot));
        qp.map_or(0, |qp| qp.lose_rest(&mut self.shared))
    }

    /// Appends packets that follow the one which the QP at the head of the ring has just sent. How many.
    fn go_on(&mut self, out: &mut Vec<u8>, run: Run) -> u32 {
        let head = self.shared.ready.front().copied();
        let Some(qp) = head.and_then(|slot| self.qps.at_mut(slot)) else { return 0 };
        let packets = qp.go_on(out, run, &mut self.shared);
        self.burst += packets;
        packets
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) may have something to send.
    pub fn has_packets(&self) -> bool {
        self.gsi.has_packets() || !self.shared.ready.is_empty()
    }

    /// The next packet of a QP, each in its turn: the QP, and its length.
    fn poll_ring(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<(Qpn, usize)> {
        loop {
            let slot = *self.shared.ready.front()?;
            if self.burst >= BURST {
                self.burst = 0;
                self.shared.ready.rotate_left(1);
                continue;
            }
            self.burst += 1;
            if let Some(qp) = self.qps.at_mut(slot) {
                let len = qp.poll_transmit(now, out, &mut self.shared);
                qp.ready = len.is_some();
                if let Some(len) = len {
                    return Some((qp.qpn, len));
                }
            }
            self.burst = 0;
            self.shared.ready.pop_front();
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<EngineEvent> {
        self.shared.events.pop_front()
    }

    /// The buffers of unsignaled work that was carried out: dropped, they go home. Not to be dropped under a lock that
    /// their homes take.
    #[must_use = "dropped, the buffers go home: not under a lock that their homes take"]
    pub fn take_released(&mut self) -> Vec<Buf> {
        std::mem::take(&mut self.shared.released)
    }

    /// When to call [`handle_timeout`](Self::handle_timeout), `None` for never. May be earlier than anything is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.shared.timers.next()
    }

    /// Does what is due: retransmissions, ends of receiver-not-ready waits.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(slot) = self.shared.timers.expire(now) {
            if let Some(qp) = self.qps.at_mut(slot) {
                qp.handle_timeout(now, &mut self.shared);
            }
        }
    }
}
