//! The endpoint: one CM engine for one HCA, over all its ports.

use std::time::Instant;

use ibdev::qp::Init;
use ibdev::{MAD_LEN, MadSource, OutgoingMad};
use ibwire::{CommId, Guid, PrivateData, Qpn};

use super::attrs::Attrs;
use super::command::{Accept, Connect, Disconnect, Listen, Reject};
use super::config::Config;
use super::connection::{Role, State};
use super::error::{CommandError, ConnectError, ListenError};
use super::event::Event;
use super::local::{LocalCa, LocalPort};
use super::stats::Stats;

/// A connection of an [`Endpoint`]. It never means another one, even when its slot is used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnHandle {
    slot: u32,
    generation: u32,
}

/// A listener of an [`Endpoint`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId {
    slot: u32,
    generation: u32,
}

/// What is known of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// Which side we are.
    pub role: Role,
    /// The state.
    pub state: State,
    /// Our ID.
    pub local_comm_id: CommId,
    /// The peer's ID, [`CommId::NONE`] until it is known.
    pub remote_comm_id: CommId,
    /// Our queue pair, 0 until it is known.
    pub local_qpn: Qpn,
    /// The peer's queue pair, 0 until it is known.
    pub remote_qpn: Qpn,
    /// The node GUID of the peer's CA, 0 until it is known.
    pub remote_ca_guid: Guid,
}

/// The CM engine of one HCA: listeners and connections in every role, over all ports.
///
/// It is a state machine: nothing in it waits, reads a clock or touches a socket. After any input (a MAD, a timeout,
/// a command) drain [`poll_transmit`](Self::poll_transmit) and [`poll_event`](Self::poll_event), then arm one timer by
/// [`poll_timeout`](Self::poll_timeout). `now` must not go back.
///
/// To see each message as it passes, decode what goes in and out with
/// [`Message::decode`](super::message::Message::decode); it costs nothing when nobody looks.
#[derive(Debug)]
pub struct Endpoint {}

impl Endpoint {
    /// An engine for `ca`. IDs, PSNs and the keys of its maps come from `seed`: the same seed and the same inputs give
    /// the same bytes.
    pub fn new(config: Config, ca: LocalCa, seed: [u8; 32]) -> Self {
        let _ = (config, ca, seed);
        Self {}
    }

    /// The HCA as the engine knows it.
    pub fn local_ca(&self) -> &LocalCa {
        todo!()
    }

    /// Tells the state and tables of a port. Existing connections are left alone: their retries decide.
    pub fn update_port(&mut self, port: LocalPort) {
        todo!()
    }

    /// Takes requests for a service. A listener with a GID or port is preferred to one without.
    ///
    /// # Errors
    /// [`ListenError::AddrInUse`] if there is one with the same service ID, port and GID.
    pub fn listen(&mut self, listen: Listen) -> Result<ListenerId, ListenError> {
        todo!()
    }

    /// Takes no more requests. Those that have been reported are the caller's to accept or reject.
    pub fn unlisten(&mut self, listener: ListenerId) {
        todo!()
    }

    /// Sends a REQ. What comes of it is told by [`Event::Reply`] or a final event.
    ///
    /// # Errors
    /// [`ConnectError`]; then nothing was sent.
    pub fn connect(&mut self, now: Instant, connect: Connect) -> Result<ConnHandle, ConnectError> {
        todo!()
    }

    /// What our queue pair has to be programmed with for RESET to INIT before [`connect`](Self::connect). `connect.qpn`
    /// is not looked at.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_init(&self, connect: &Connect) -> Result<Init, ConnectError> {
        todo!()
    }

    /// What our queue pair has to be programmed with before [`accept`](Self::accept) is called with the same `accept`.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn accept_attrs(&self, conn: ConnHandle, accept: &Accept) -> Result<Attrs, CommandError> {
        todo!()
    }

    /// Passive side: sends the REP. The queue pair must have its receives and be in RTS (at least RTR) already. Ends in
    /// [`Event::Established`] or a final event.
    ///
    /// # Errors
    /// [`CommandError`]; then nothing was sent. [`CommandError::Gone`] if the peer has withdrawn.
    pub fn accept(&mut self, now: Instant, conn: ConnHandle, accept: Accept) -> Result<(), CommandError> {
        todo!()
    }

    /// Active side, after [`Event::Reply`]: sends the RTU; the connection is established. The queue pair must be in RTS
    /// already, by [`attrs`](Self::attrs).
    ///
    /// # Errors
    /// [`CommandError`]; then nothing was sent. [`CommandError::Gone`] if the peer has given up.
    pub fn ready(
        &mut self,
        now: Instant,
        conn: ConnHandle,
        rtu_data: PrivateData<224>,
    ) -> Result<(), CommandError> {
        todo!()
    }

    /// Rejects a request (after [`Event::Request`]) or a reply (after [`Event::Reply`]). The same REJ meets each
    /// repetition for a while. Only [`Event::Released`] follows.
    ///
    /// # Errors
    /// [`CommandError`]; then nothing was sent. [`CommandError::Gone`] if the peer has withdrawn.
    pub fn reject(&mut self, now: Instant, conn: ConnHandle, reject: Reject) -> Result<(), CommandError> {
        todo!()
    }

    /// Sends a DREQ, re-sends included, on a connection that is established or whose REP is out. Ends in
    /// [`Event::Disconnected`]. Does nothing if the connection is disconnecting or in TimeWait already.
    ///
    /// # Errors
    /// [`CommandError`]; then nothing was sent.
    pub fn disconnect(
        &mut self,
        now: Instant,
        conn: ConnHandle,
        disconnect: Disconnect,
    ) -> Result<(), CommandError> {
        todo!()
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
        todo!()
    }

    /// Ends the connection from whatever state it is in, as fast as the protocol allows: REJ 4 if a REQ is out, REJ 28
    /// if an answer is owed or a REP is out, the whole DREQ exchange if it is established. Only [`Event::Released`]
    /// follows. Does nothing if the handle is dead.
    pub fn abort(&mut self, now: Instant, conn: ConnHandle) {
        todo!()
    }

    /// Like [`abort`](Self::abort), but no event follows: the handle is forgotten, the exchange goes on. Until TimeWait
    /// is over the queue pair's number stays refused for new connections.
    pub fn detach(&mut self, now: Instant, conn: ConnHandle) {
        todo!()
    }

    /// The first packet arrived on this queue pair: its peer considers the connection established. Counts as the RTU
    /// if that is missing; otherwise ignored.
    pub fn comm_established(&mut self, now: Instant, qpn: Qpn) {
        todo!()
    }

    /// The device is gone: each connection ends in [`Event::DeviceRemoved`] and [`Event::Released`], or in the latter
    /// alone if it had ended before. Nothing is sent any more, every command fails.
    pub fn device_removed(&mut self) {
        todo!()
    }

    /// Takes in a MAD that arrived.
    pub fn handle_mad(&mut self, now: Instant, from: &MadSource, mad: &[u8; MAD_LEN]) {
        todo!()
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        todo!()
    }

    /// The next MAD to send. The timer for its answer starts now.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<OutgoingMad> {
        todo!()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        todo!()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due, unless another input comes first.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        todo!()
    }

    /// The state of a connection; `None` if the handle is dead.
    pub fn state(&self, conn: ConnHandle) -> Option<State> {
        todo!()
    }

    /// What is known of a connection; `None` if the handle is dead.
    pub fn info(&self, conn: ConnHandle) -> Option<Info> {
        todo!()
    }

    /// What our queue pair has to be programmed with; `None` until the peer's reply or our acceptance settled it.
    pub fn attrs(&self, conn: ConnHandle) -> Option<Attrs> {
        todo!()
    }

    /// How many connections there are in this state.
    pub fn count(&self, state: State) -> usize {
        todo!()
    }

    /// How many connections there are, in any state, TimeWait included. With none, the engine is idle: remembered
    /// rejections need no time.
    pub fn connections(&self) -> usize {
        todo!()
    }

    /// How many requests of this listener are undecided; `None` if there is no such listener.
    pub fn pending_requests(&self, listener: ListenerId) -> Option<usize> {
        todo!()
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        todo!()
    }
}
