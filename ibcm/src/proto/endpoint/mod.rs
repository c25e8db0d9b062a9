//! The endpoint: one CM engine for one HCA, over all its ports.

mod admission;
mod batch;
mod handle;
mod migration;
mod route;
mod sidr;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Instant;

#[cfg(feature = "runtime")]
use ibdev::AddressVector;
use ibdev::qp::Init;
use ibdev::{MAD_LEN, MadSource, OutgoingMad};
use ibwire::{PrivateData, Qpn};

use super::attrs::Attrs;
use super::command::{Accept, Connect, Disconnect, Listen, Reject};
use super::config::Config;
use super::connection::{Connection, Plan, State};
use super::core::Core;
use super::error::{CommandError, ConnectError, ListenError};
use super::event::Event;
use super::invalid::{Invalid, Limit, Value};
use super::local::{LocalCa, LocalPort};
use super::message::Attribute;
use super::outbox::{Outgoing, Owed};
#[cfg(feature = "runtime")]
use super::path::Path;
use super::peers::Meeting;
use super::sidr::Sidr;
use super::slots::Slots;
use super::stats::Stats;
use super::transport::Transport;

pub(super) use admission::alternate_back;
use batch::Arrived;
pub use handle::{ConnHandle, Info, ListenerId};

/// The CM engine of one HCA: listeners and connections in every role, over all ports.
///
/// It is a state machine: nothing in it waits, reads a clock or touches a socket. After any input (a MAD, a timeout,
/// a command) drain [`poll_transmit`](Self::poll_transmit) of each port, [`poll_event`](Self::poll_event) and
/// [`poll_sidr_event`](Self::poll_sidr_event), then arm one timer by [`poll_timeout`](Self::poll_timeout). `now` must not go back; commands take it alike, whether or not a timer starts.
///
/// To see each message as it passes, decode what goes in and out with
/// [`Message::decode`](super::message::Message::decode); it costs nothing when nobody looks.
pub struct Endpoint {
    conns: Slots<Connection>,
    generation: u32,
    core: Core,
    sidr: Sidr,
    /// Empty; its memory is used again.
    arrived: Vec<Arrived>,
}

/// Not what is in it: that is of all connections, with their messages and the keys of its maps.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports: Vec<u8> = self.core.ca.ports.iter().map(|port| port.number).collect();
        f.debug_struct("Endpoint").field("ports", &ports).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// An engine for `ca`. IDs, PSNs and the keys of its maps come from `seed`: the same seed and the same inputs give
    /// the same bytes.
    pub fn new(config: Config, ca: LocalCa, seed: [u8; 32]) -> Self {
        let core = Core::new(config, ca, seed);
        let sidr = Sidr::new(&core.config, core.ids.keyed());
        Self { conns: Slots::new(), generation: 0, core, sidr, arrived: Vec::new() }
    }

    /// All that it holds.
    #[cfg(test)]
    pub(in super::super) fn contents(&self) -> impl fmt::Debug {
        (&self.conns, &self.core, &self.sidr)
    }

    /// The HCA as the engine knows it.
    pub fn local_ca(&self) -> &LocalCa {
        &self.core.ca
    }

    /// Tells the state and tables of a port. Existing connections are left alone: their retries decide. They keep their
    /// GIDs, whatever indices these have now; while the port lacks one, what would go by it is dropped.
    pub fn update_port(&mut self, port: LocalPort) {
        self.core.outbox.add_port(port.number);
        self.core.sgids.update(&port);
        self.core.ca.update_port(port);
    }

    /// Where packets along `path` go; the index of the GID that they come from is 0. `None` if there is no such port.
    #[cfg(feature = "runtime")]
    pub(crate) fn address_vector(&self, path: &Path) -> Option<AddressVector> {
        Some(path.address_vector(self.core.ca.port(path.port)?, 0))
    }

    /// Takes requests for a service. Of several listeners that a request fits the most particular gets it: the one whose
    /// service mask has most bits, then one with a GID, then with a LID, then with a port, then with the longest
    /// discriminator.
    ///
    /// # Errors
    /// [`ListenError::AddrInUse`] if there is one with the same service ID and mask, port, GID, LID and discriminator;
    /// [`ListenError::Invalid`] for a port that the HCA does not have, and other values out of range.
    pub fn listen(&mut self, listen: Listen) -> Result<ListenerId, ListenError> {
        if self.core.gone {
            return Err(ListenError::DeviceRemoved);
        }
        let Core { listeners, ca, config, .. } = &mut self.core;
        ca.check_port(listen.port)?;
        if let Some(lid) = listen.local_lid
            && ca.ports.iter().all(LocalPort::is_ethernet)
        {
            let must = Limit::Must("left out, for no port is InfiniBand");
            return Err(Invalid::new("local LID", Value::Lid(lid), must).into());
        }
        listeners.insert(listen, config)
    }

    /// Takes no more requests. Those that have been reported are the caller's to accept or reject.
    pub fn unlisten(&mut self, listener: ListenerId) {
        self.core.listeners.remove(listener);
    }

    /// Sends a REQ. What comes of it is told by [`Event::Reply`] or a final event.
    ///
    /// # Errors
    /// [`ConnectError`]; then nothing was sent.
    pub fn connect(&mut self, now: Instant, connect: Connect) -> Result<ConnHandle, ConnectError> {
        let plan = self.plan(&connect)?;
        check_qpn(connect.qpn)?;
        if connect.rd.is_none() && self.core.ids.by_local_qpn(connect.qpn).is_some() {
            return Err(ConnectError::QpInUse(connect.qpn));
        }
        Ok(self.insert(|core, handle| Connection::active(core, now, handle, &plan, &connect)))
    }

    /// Sends a REQ to a peer that does the same, sooner or later: nobody has to listen. Of the two REQs one counts, that of
    /// the CA with the larger GUID; on one CA that of the larger queue pair number. What comes of it is told by
    /// [`Event::Reply`] on that side, [`Event::PeerRequest`] on the other, or a final event. That the peer knows of no such
    /// service (reason 8) means that it has not asked yet: the REQ is repeated. A listener for the service takes the REQ if
    /// nobody there asks for us.
    ///
    /// # Errors
    /// [`ConnectError`]; then nothing was sent.
    pub fn connect_peer(&mut self, now: Instant, connect: Connect) -> Result<ConnHandle, ConnectError> {
        if !matches!(connect.transport, Transport::Rc | Transport::Uc) {
            let must = Limit::Must("RC or UC between peers");
            return Err(Invalid::new("transport", Value::Transport(connect.transport), must).into());
        }
        let (record, service_id) = (connect.path.record, connect.service_id);
        let handle = self.connect(now, connect)?;
        let meeting = Meeting { service_id, local_gid: record.sgid, remote_gid: record.dgid };
        self.on(handle.slot(), |conn, core| conn.await_peer(core, meeting));
        Ok(handle)
    }

    /// What our queue pair has to be programmed with for RESET to INIT before [`connect`](Self::connect). `connect.qpn`
    /// is not looked at.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_init(&self, connect: &Connect) -> Result<Init, ConnectError> {
        Ok(self.plan(connect)?.init())
    }

    /// What our queue pair has to be programmed with before [`accept`](Self::accept) is called with the same `accept`.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn accept_attrs(&self, conn: ConnHandle, accept: &Accept) -> Result<Attrs, CommandError> {
        let attrs = self.get(conn).ok_or(CommandError::Gone)?.accept_attrs(&self.core, accept)?;
        check_qpn(accept.qpn)?;
        match self.core.ids.by_local_qpn(accept.qpn) {
            Some(slot) if slot != conn.slot() && accept.rd.is_none() => {
                Err(CommandError::QpInUse(accept.qpn))
            }
            _ => Ok(attrs),
        }
    }

    /// Passive side: sends the REP. The queue pair must have its receives and be in RTS (at least RTR) already. Ends in
    /// [`Event::Established`] or a final event.
    ///
    /// # Errors
    /// [`CommandError`]; then nothing was sent. [`CommandError::Gone`] if the peer has withdrawn.
    pub fn accept(&mut self, now: Instant, conn: ConnHandle, accept: Accept) -> Result<(), CommandError> {
        self.accept_attrs(conn, &accept)?;
        self.command(conn, |conn, core| conn.accept(core, now, accept))
    }

    /// Active side, after [`Event::Reply`]: sends the RTU; the connection is established. The queue pair must be in RTS
    /// already, by [`attrs`](Self::attrs).
    ///
    /// # Errors
    /// [`CommandError`]; then nothing was sent. [`CommandError::Gone`] if the peer has given up.
    pub fn ready(
        &mut self,
        _now: Instant,
        conn: ConnHandle,
        rtu_data: PrivateData<224>,
    ) -> Result<(), CommandError> {
        self.command(conn, |conn, core| conn.ready(core, rtu_data))
    }

    /// Rejects a request (after [`Event::Request`] or [`Event::PeerRequest`]) or a reply (after [`Event::Reply`]). The same REJ meets each
    /// repetition for a while. Only [`Event::Released`] follows.
    ///
    /// # Errors
    /// [`CommandError`]; then nothing was sent. [`CommandError::Gone`] if the peer has withdrawn.
    pub fn reject(&mut self, now: Instant, conn: ConnHandle, reject: Reject) -> Result<(), CommandError> {
        self.command(conn, |conn, core| conn.reject(core, now, &reject))
    }

    /// Forgets a request without an answer: its sender repeats it, and then it is a new request. Only
    /// [`Event::Released`] follows.
    ///
    /// # Errors
    /// [`CommandError`]. [`CommandError::Gone`] if the peer has withdrawn.
    pub fn ignore(&mut self, _now: Instant, conn: ConnHandle) -> Result<(), CommandError> {
        self.command(conn, |conn, core| conn.ignore(core))
    }

    /// Sends a DREQ, re-sends included, on a connection that is established or whose REP is out. Ends in
    /// [`Event::Disconnected`]. If it is disconnecting already, only the deadline counts, should it be sooner; in
    /// TimeWait nothing does.
    ///
    /// # Errors
    /// [`CommandError`]; then nothing was sent.
    pub fn disconnect(
        &mut self,
        now: Instant,
        conn: ConnHandle,
        disconnect: Disconnect,
    ) -> Result<(), CommandError> {
        self.command(conn, |conn, core| conn.disconnect(core, now, &disconnect))
    }

    /// Sets the private data of the DREP that answers the peer's DREQ.
    ///
    /// # Errors
    /// [`CommandError::Gone`].
    pub fn set_disconnect_data(
        &mut self,
        conn: ConnHandle,
        data: PrivateData<224>,
    ) -> Result<(), CommandError> {
        self.command(conn, |conn, _| {
            conn.set_disconnect_data(data);
            Ok(())
        })
    }

    /// Ends the connection from whatever state it is in, as fast as the protocol allows: REJ 4 if a REQ is out, REJ 28
    /// if an answer is owed or a REP is out, the whole DREQ exchange if it is established. Only [`Event::Released`]
    /// follows. Does nothing if the handle is dead.
    pub fn abort(&mut self, now: Instant, conn: ConnHandle) {
        if self.get(conn).is_some() {
            self.on(conn.slot(), |conn, core| conn.abort(core, now));
        }
    }

    /// Like [`abort`](Self::abort), but no event follows: the handle is forgotten, the exchange goes on. Until TimeWait
    /// is over the queue pair's number stays refused for new connections.
    pub fn detach(&mut self, now: Instant, conn: ConnHandle) {
        if self.get(conn).is_some() {
            self.on(conn.slot(), |conn, core| {
                conn.detach();
                conn.abort(core, now);
            });
        }
    }

    /// The first packet arrived on this queue pair: its peer considers the connection established. Counts as the RTU
    /// if that is missing; otherwise ignored.
    pub fn comm_established(&mut self, _now: Instant, qpn: Qpn) {
        if let Some(slot) = self.core.ids.by_local_qpn(qpn) {
            self.on(slot, |conn, core| conn.handle_implied_rtu(core));
        }
    }

    /// The device is gone: each connection ends in [`Event::DeviceRemoved`] and [`Event::Released`], or in the latter
    /// alone if it had ended before. Nothing is sent any more, every command fails.
    pub fn device_removed(&mut self) {
        let core = &mut self.core;
        core.gone = true;
        core.listeners.shut();
        for mut conn in self.conns.drain() {
            conn.handle_device_removed(core);
        }
        core.timers.clear();
        self.sidr.handle_device_removed(core);
        core.stats.dropped_no_port += core.outbox.clear() as u64;
    }

    /// Takes in a MAD that arrived. Of several that arrived together, [`handle_mads`](Self::handle_mads) is faster.
    pub fn handle_mad(&mut self, now: Instant, from: &MadSource, mad: &[u8; MAD_LEN]) {
        self.route(now, from, mad, Arrived::new(mad));
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        let mut due = [0; DUE_AT_ONCE];
        loop {
            let mut count = 0;
            while count < DUE_AT_ONCE
                && let Some(slot) =
                    self.core.timers.pop_due(now, |slot| self.conns.get(slot).map(Connection::timer))
            {
                self.conns[slot].stop_timer(&mut self.core);
                due[count] = slot;
                count += 1;
            }
            if count == 0 {
                break;
            }
            for &slot in &due[..count] {
                self.conns[slot].touch_end(&self.core);
            }
            for &slot in &due[..count] {
                self.on(slot, |conn, core| conn.handle_timer(core, now));
            }
        }
        self.sidr.handle_timeout(&mut self.core, now);
    }

    /// The next MAD to send from this port. The timer for its answer starts now.
    ///
    /// Each port has a queue of its own, so one that cannot send may be left alone while the others go on. A queue holds
    /// at most two messages of each live connection, and of other MADs twice
    /// [`Config::max_queued_answers`](super::Config::max_queued_answers).
    pub fn poll_transmit(&mut self, now: Instant, port: u8) -> Option<OutgoingMad> {
        let mad = loop {
            match self.core.outbox.pop(port)? {
                Outgoing::Mad(mad) => break mad,
                Outgoing::Owed(Owed::Query(query)) => {
                    if let Some(mad) = self.sidr.queries.pay(&mut self.core, now, query, port) {
                        break mad;
                    }
                }
                Outgoing::Owed(owed @ (Owed::Exchange(conn) | Owed::Rtu(conn))) => {
                    let conn = self.conns.get_mut(conn.slot()).filter(|c| c.handle() == conn);
                    if let Some(mad) = conn.and_then(|conn| conn.pay(&mut self.core, now, owed, port)) {
                        break mad;
                    }
                }
            }
        };
        self.core.stats.mads_sent += 1;
        tracing::trace!(message = %attribute(&mad.mad), to = ?mad.to.av.grh.map(|grh| grh.dgid), "sent");
        Some(mad)
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.core.events.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due, unless another input comes first.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        let of_conns = self.core.timers.next(|slot| self.conns.get(slot).map(Connection::timer));
        [of_conns, self.sidr.queries.next_timeout()].into_iter().flatten().min()
    }

    /// The state of a connection; `None` if the handle is dead.
    pub fn state(&self, conn: ConnHandle) -> Option<State> {
        self.get(conn).map(Connection::state)
    }

    /// The connection that our queue pair with this number belongs to, TimeWait included.
    pub fn connection_of(&self, qpn: Qpn) -> Option<ConnHandle> {
        let slot = self.core.ids.by_local_qpn(qpn)?;
        self.conns.get(slot).map(Connection::handle)
    }

    /// What is known of a connection; `None` if the handle is dead.
    pub fn info(&self, conn: ConnHandle) -> Option<Info> {
        self.get(conn).map(Connection::info)
    }

    /// What our queue pair has to be programmed with; `None` until the peer's reply or our acceptance settled it.
    pub fn attrs(&self, conn: ConnHandle) -> Option<Attrs> {
        self.get(conn)?.attrs(&self.core)
    }

    /// How many connections there are in this state.
    pub fn count(&self, state: State) -> usize {
        self.core.states[state.index()]
    }

    /// How many connections there are, in any state, TimeWait included. With none, the engine is idle: remembered
    /// rejections need no time.
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// How many requests of this listener are undecided; `None` if there is no such listener.
    pub fn pending_requests(&self, listener: ListenerId) -> Option<usize> {
        self.core.listeners.pending(listener)
    }

    /// How many requests found this listener without room; `None` if there is no such listener.
    pub fn overflowed_requests(&self, listener: ListenerId) -> Option<u64> {
        self.core.listeners.overflowed(listener)
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        self.core.stats
    }

    fn get(&self, handle: ConnHandle) -> Option<&Connection> {
        self.conns.get(handle.slot()).filter(|conn| conn.handle() == handle)
    }

    /// What `connect` comes to, but for its queue pair.
    fn plan(&self, connect: &Connect) -> Result<Plan, ConnectError> {
        if self.core.gone {
            return Err(ConnectError::DeviceRemoved);
        }
        Plan::new(&self.core.ca, connect)
    }

    /// Adds a connection.
    fn insert(&mut self, make: impl FnOnce(&mut Core, ConnHandle) -> Connection) -> ConnHandle {
        self.generation = self.generation.wrapping_add(1);
        let handle = ConnHandle::new(self.conns.next(), self.generation);
        self.conns.insert(make(&mut self.core, handle));
        self.sweep();
        handle
    }

    /// Sweeps the outbox, if that is worth it.
    fn sweep(&mut self) {
        let (conns, queries) = (&self.conns, &self.sidr.queries);
        self.core.outbox.sweep(conns.len() + queries.len(), |owed, port| match *owed {
            Owed::Query(query) => queries.owes(query, port),
            Owed::Exchange(of) | Owed::Rtu(of) => {
                conns.get(of.slot()).is_some_and(|conn| conn.handle() == of && conn.owes(*owed, port))
            }
        });
    }

    /// Lets something act on the connection in `slot`, and frees the slot if that was its end.
    fn on<R>(&mut self, slot: u32, act: impl FnOnce(&mut Connection, &mut Core) -> R) -> R {
        let conn = &mut self.conns[slot];
        let result = act(conn, &mut self.core);
        if conn.is_released() {
            self.conns.remove(slot);
        }
        result
    }

    fn command(
        &mut self,
        handle: ConnHandle,
        act: impl FnOnce(&mut Connection, &mut Core) -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        match self.get(handle) {
            Some(_) => self.on(handle.slot(), act),
            None => Err(CommandError::Gone),
        }
    }
}

/// Of so many connections whose timers are due the names are looked up at the same time.
const DUE_AT_ONCE: usize = 16;

/// QPs 0 and 1 are management, and the last number stands for multicast.
fn check_qpn(qpn: Qpn) -> Result<(), Invalid> {
    if qpn > Qpn::GSI && qpn < Qpn::MULTICAST {
        return Ok(());
    }
    Err(Invalid::new("queue pair", Value::Qpn(qpn), Limit::Must("one that can be connected, 2..=0xfffffe")))
}

/// Which message a MAD is.
fn attribute(mad: &[u8; MAD_LEN]) -> Attribute {
    Attribute(u16::from_be_bytes([mad[16], mad[17]]))
}
