//! One connection: its state, what it remembers, and what each message, timer and command does to it (spec/cm.md 4).

mod active;
mod attrs;
mod close;
mod migration;
mod passive;
mod peer;
mod state;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ibdev::{AddressVector, MAD_LEN, MadSource, OutgoingMad};
use ibwire::{CommId, Gid, Guid, PrivateData, Qpn, TimeCode, TransactionId};
use rand::Rng as _;

use super::core::{Core, encoded};
use super::endpoint::{ConnHandle, Info, ListenerId};
use super::error::CommandError;
use super::event::{Effort, Event};
use super::exchange::{Exchange, Patience};
use super::ids::{RemoteKeys, RemoteNames};
use super::message::{FailoverAccepted, MessageId, Mra};
use super::outbox::Owed;
use super::sgids::Address;
use super::timers::Timer;
use super::transport::Transport;

pub(super) use active::Plan;
use attrs::Terms;
use migration::Migration;
pub(super) use migration::{AlternatePlan, Proposal};
pub(super) use passive::{Admission, Arrival};
pub(super) use peer::Crossing;
use peer::Peering;
pub use state::{Role, State};

/// Which events the owner of the handle wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reports {
    /// What happens.
    All,
    /// The end is told, or was ordered; only the release is left to tell.
    Release,
    /// Nothing: the handle is forgotten.
    Nothing,
}

/// A connection, from its REQ to the end of its TimeWait.
///
/// Of very many connections none is in the caches when something happens to it. So by what messages find it and what its
/// end needs stands first, on two cache lines; then comes what only its beginning needs.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Connection {
    handle: ConnHandle,
    local_id: CommId,
    /// The peer's ID: from the REQ on the passive side, from the REP on the active side.
    remote_id: CommId,
    local_qpn: Qpn,
    remote_qpn: Qpn,
    /// Under which the peer's ID and QPN are in the maps.
    remote_keys: Option<RemoteKeys>,
    timer: Timer,
    /// While a REQ, REP or DREQ is unanswered.
    exchange: Option<Box<Exchange>>,
    extras: Option<Box<Extras>>,
    /// From one REQ, REP or DREQ to the next.
    period: Nanos,
    time_wait: Nanos,
    /// The primary path, for MADs.
    primary: Address,
    role: Role,
    state: State,
    reports: Reports,
    /// The slot can be used again.
    released: bool,
    /// At which port the exchange's message is in the queue of outgoing MADs.
    queued_at: Option<u8>,
    /// The RTU is in the queue of outgoing MADs.
    owes_rtu: bool,
    max_cm_retries: u8,
    /// While the request is undecided.
    listener: Option<ListenerId>,
    /// Transaction of the handshake.
    tid: TransactionId,
    remote_guid: Guid,
    /// Where the peer's REQ or REP came from, and what answers it goes to.
    answer_to: Address,
    transport: Transport,
    /// Life time of a packet on the path.
    life_time: TimeCode,
    /// How long our MRAs ask for.
    mra_timeout: TimeCode,
    /// What became of the alternate path in the REQ, if there was one.
    failover: Option<FailoverAccepted>,
    /// How long the peer's CA may delay an acknowledgement: 0 on the passive side, which is not told.
    peer_ack_delay: TimeCode,
    /// Passive: LAPs are put to the user.
    takes_paths: bool,
    terms: Terms,
    /// Where the primary path ends; within a subnet the address does not say so.
    remote_gid: Gid,
    /// How long we have to answer the peer's REQ or REP.
    answer_within: Duration,
}

const _: () = assert!(std::mem::offset_of!(Connection, max_cm_retries) < 128);

/// What few connections have.
#[derive(Debug, Default)]
struct Extras {
    /// How far it has got with its peer, if both may ask.
    peering: Option<Peering>,
    /// What has to do with alternate paths.
    migration: Option<Box<Migration>>,
    /// What our MRAs carry, unless that is nothing.
    mra_data: Option<Arc<PrivateData<222>>>,
    /// What the RTU carried, unless it was empty.
    rtu_data: Option<Box<PrivateData<224>>>,
    /// What a DREP carries, unless it is empty.
    drep_data: Option<Box<PrivateData<224>>>,
}

/// A time in half the space of a [`Duration`], at most 584 years.
#[derive(Debug, Clone, Copy)]
struct Nanos(u64);

impl From<Duration> for Nanos {
    fn from(time: Duration) -> Self {
        Self(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Nanos {
    const fn duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

impl Connection {
    fn extras(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    /// Something soon happens to it: the two lines that each message needs come into the caches.
    pub(super) fn touch(&self) {
        black_box((self.local_id, self.state));
    }

    pub(super) fn handle(&self) -> ConnHandle {
        self.handle
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    pub(super) fn info(&self) -> Info {
        Info {
            role: self.role,
            state: self.state,
            transport: self.transport,
            local_comm_id: self.local_id,
            remote_comm_id: self.remote_id,
            local_qpn: self.local_qpn,
            remote_qpn: self.remote_qpn,
            remote_ca_guid: self.remote_guid,
        }
    }

    pub(super) fn remote_id(&self) -> CommId {
        self.remote_id
    }

    pub(super) fn remote_qpn(&self) -> Qpn {
        self.remote_qpn
    }

    pub(super) fn transport(&self) -> Transport {
        self.transport
    }

    pub(super) fn remote_guid(&self) -> Guid {
        self.remote_guid
    }

    pub(super) fn timer(&self) -> &Timer {
        &self.timer
    }

    pub(super) fn is_released(&self) -> bool {
        self.released
    }

    /// Whether a MAD comes from this connection's peer.
    pub(super) fn is_from(&self, from: &MadSource) -> bool {
        is_at(self.primary.av(), from)
            || self.was_met_at(from)
            || self.migrating().is_some_and(|migration| migration.knows(from))
    }

    /// Whether a MAD comes from where the peer's REQ or REP came from. Where the path ends is only what a REQ says, so
    /// it tells nothing about a peer that does not know our ID.
    pub(super) fn was_met_at(&self, from: &MadSource) -> bool {
        is_at(self.answer_to.av(), from)
    }

    /// Whether the peer knows the connection by these two IDs.
    pub(super) fn has_ids(&self, local_id: CommId, remote_id: CommId) -> bool {
        self.local_id == local_id && self.is_peer_known() && self.remote_id == remote_id
    }

    /// Whether the peer's ID is known. 0 is an ID too.
    pub(super) fn is_peer_known(&self) -> bool {
        self.remote_keys.is_some()
    }

    /// Why a command does not fit this state. Who is in TimeWait has been told how it ended, or ended it.
    fn refusal(&self) -> CommandError {
        match self.state {
            State::TimeWait => CommandError::Gone,
            state => CommandError::State(state),
        }
    }

    /// Takes the peer's names for itself into the maps.
    fn meet_peer(&mut self, core: &mut Core, names: &RemoteNames) {
        (self.remote_guid, self.remote_id, self.remote_qpn) = (names.guid, names.id, names.qpn);
        core.ids.insert_remote(names.keys.id, self.handle.slot());
        core.ids.insert_remote(names.keys.qpn, self.handle.slot());
        self.remote_keys = Some(names.keys);
    }

    /// The peer's ID is another connection's now. This one, in TimeWait, is still found by our ID.
    pub(super) fn pass_on_id(&self, core: &mut Core) {
        if let Some(keys) = self.remote_keys {
            core.ids.remove_remote(keys.id, self.handle.slot());
        }
    }

    /// The same with the peer's QPN.
    pub(super) fn pass_on_qpn(&self, core: &mut Core) {
        if let Some(keys) = self.remote_keys {
            core.ids.remove_remote(keys.qpn, self.handle.slot());
        }
    }

    fn set_state(&mut self, core: &mut Core, state: State) {
        tracing::debug!(local = %self.local_id, remote = %self.remote_id, from = %self.state, to = %state, "state");
        core.states[self.state.index()] -= 1;
        core.states[state.index()] += 1;
        self.state = state;
    }

    fn start_timer(&mut self, core: &mut Core, at: Instant) {
        core.timers.start(&mut self.timer, self.handle.slot(), at);
    }

    /// Reports unless nobody listens, or the end is told already.
    fn report(&mut self, core: &mut Core, event: Event) {
        if self.reports != Reports::All {
            return;
        }
        if event.is_final() {
            self.reports = Reports::Release;
        }
        core.events.push_back(event);
    }

    /// The request, if it is one, is decided.
    fn decide(&mut self, core: &mut Core) {
        // Only then is there a listener, and the field worth a look.
        if self.is_undecided_request()
            && let Some(listener) = self.listener.take()
        {
            core.listeners.request_decided(listener);
        }
    }

    /// A message that has to be answered: queued, sent, and sent again.
    fn start_exchange(&mut self, core: &mut Core, exchange: Box<Exchange>) {
        self.stop_exchange(core);
        self.exchange = Some(exchange);
        self.queue_exchange(core);
    }

    /// Until the message has left, the end of it all is the timer.
    fn queue_exchange(&mut self, core: &mut Core) {
        if let Some(limit) = self.exchange.as_ref().and_then(|exchange| exchange.limit()) {
            self.start_timer(core, limit);
        }
        let port = self.exchange_address().port();
        if self.queued_at != Some(port) {
            self.queued_at = Some(port);
            core.outbox.owe(port, Owed::Exchange(self.handle));
        }
    }

    /// Where the exchange's message goes.
    fn exchange_address(&self) -> &Address {
        if self.awaits_rtu() { &self.answer_to } else { &self.primary }
    }

    fn stop_exchange(&mut self, core: &mut Core) {
        core.timers.stop(&mut self.timer);
        if let Some(exchange) = self.exchange.take() {
            core.exchanges.keep(exchange);
        }
    }

    /// What our REQ, REP or DREQ has taken, if it is not answered.
    fn effort(&self, now: Instant) -> Option<Effort> {
        self.exchange.as_ref().map(|exchange| exchange.effort(now))
    }

    /// A deadline that is too close, or has passed, leaves the time to send the message once.
    fn patience(&self, core: &Core, now: Instant, deadline: Option<Instant>) -> Patience {
        let soonest = now + core.config.min_response_timeout;
        Patience {
            period: self.period.duration(),
            jitter: Duration::ZERO,
            max_retries: self.max_cm_retries,
            max_mra_wait: core.config.max_mra_wait,
            max_time: Duration::MAX,
            deadline: deadline.map(|deadline| deadline.max(soonest)),
        }
    }

    /// What the queue of this port says that we owe, if we still do.
    #[inline]
    pub(super) fn pay(&mut self, core: &mut Core, now: Instant, owed: Owed, port: u8) -> Option<OutgoingMad> {
        if !self.owes(owed, port) {
            return None;
        }
        match owed {
            Owed::Exchange(_) => self.transmit(core, now),
            Owed::Rtu(_) => self.transmit_rtu(core),
            Owed::Query(_) => None,
        }
    }

    /// Whether the entry of this port's queue counts.
    pub(super) fn owes(&self, owed: Owed, port: u8) -> bool {
        match owed {
            Owed::Exchange(_) => self.queued_at == Some(port),
            Owed::Rtu(_) => self.owes_rtu,
            Owed::Query(_) => false,
        }
    }

    /// The queued message of the exchange, if there is still one; its timer starts.
    #[inline]
    fn transmit(&mut self, core: &mut Core, now: Instant) -> Option<OutgoingMad> {
        self.queued_at = None;
        let exchange = self.exchange.as_mut()?;
        let (mad, due) = exchange.transmit(now, || core.rng.next_u32());
        if exchange.is_resent() {
            core.stats.resent += 1;
            tracing::debug!(local = %self.local_id, state = %self.state, "sent again");
        }
        self.start_timer(core, due);
        core.mad(self.exchange_address(), mad)
    }

    /// Queues a MAD that answers the peer's REQ or REP.
    fn answer(&self, core: &mut Core, mad: [u8; MAD_LEN]) {
        if let Some(out) = core.mad(&self.answer_to, mad) {
            core.answer(out.to, out.mad);
        }
    }

    /// The timer has run out; [`Connection::handle_timer`] follows soon.
    pub(super) fn stop_timer(&mut self, core: &mut Core) {
        core.timers.stop(&mut self.timer);
    }

    /// If its TimeWait is over: its names soon go, and its slot is the first to be filled again, with all lines of it.
    pub(super) fn touch_end(&self, core: &Core) {
        if self.state == State::TimeWait {
            core.ids.touch(self.local_id, self.local_qpn, self.remote_keys);
            black_box((self.tid, self.terms, self.answer_to.port(), self.answer_within));
        }
    }

    /// What has to be done when the timer has run out.
    pub(super) fn handle_timer(&mut self, core: &mut Core, now: Instant) {
        match self.state {
            State::ReqSent | State::ReqMraRcvd | State::RepSent | State::RepMraRcvd | State::DreqSent => {
                self.handle_silence(core, now);
            }
            State::ReqRcvd => self.ask_for_time(core, MessageId::REQ, State::ReqMraSent),
            State::RepRcvd => self.ask_for_time(core, MessageId::REP, State::RepMraSent),
            State::TimeWait => self.release(core),
            State::Established => self.handle_lap_timer(core, now),
            State::ReqMraSent | State::RepMraSent => {}
        }
    }

    /// An answer did not come in time.
    fn handle_silence(&mut self, core: &mut Core, now: Instant) {
        match &self.exchange {
            Some(exchange) if exchange.is_exhausted(now) => return self.give_up(core, now),
            Some(_) => {}
            None => return,
        }
        match self.state {
            State::ReqMraRcvd => self.set_state(core, State::ReqSent),
            State::RepMraRcvd => self.set_state(core, State::RepSent),
            _ => {}
        }
        self.queue_exchange(core);
    }

    /// The answer to the peer is undecided for long.
    fn ask_for_time(&mut self, core: &mut Core, message: MessageId, next: State) {
        let mra = self.mra(message);
        self.answer(core, encoded(self.tid, mra));
        core.stats.mras_sent += 1;
        self.set_state(core, next);
    }

    fn mra(&self, message: MessageId) -> Mra {
        Mra {
            local_comm_id: self.local_id,
            remote_comm_id: self.remote_id,
            message,
            service_timeout: self.mra_timeout,
            private_data: kept(self.extras.as_ref().and_then(|extras| extras.mra_data.as_deref())),
        }
    }

    /// The peer asks for more time for its answer to our `message`.
    fn handle_busy(&mut self, core: &mut Core, now: Instant, mra: &Mra, next: State) {
        let Some(exchange) = self.exchange.as_mut().filter(|exchange| exchange.is_sent()) else {
            core.stats.dropped_state += 1;
            return;
        };
        let first = !exchange.is_busy();
        let due = exchange.extend(now, mra.service_timeout.duration() + self.life_time.duration());
        self.start_timer(core, due);
        if self.state != next {
            self.set_state(core, next);
        }
        if first {
            self.report(core, Event::Busy { conn: self.handle, mra: Box::new(mra.clone()), until: due });
        }
    }

    /// An MRA with our ID.
    pub(super) fn handle_mra(&mut self, core: &mut Core, now: Instant, mra: &Mra) {
        match (self.state, mra.message) {
            (State::ReqSent | State::ReqMraRcvd, MessageId::REQ) => {
                self.handle_busy(core, now, mra, State::ReqMraRcvd);
            }
            (State::RepSent | State::RepMraRcvd, MessageId::REP) if self.remote_id == mra.local_comm_id => {
                self.handle_busy(core, now, mra, State::RepMraRcvd);
            }
            (State::Established, MessageId::LAP)
                if self.awaits_apr() && self.remote_id == mra.local_comm_id =>
            {
                self.handle_busy(core, now, mra, State::Established);
            }
            _ => core.stats.dropped_state += 1,
        }
    }

    fn establish(&mut self, core: &mut Core) {
        self.stop_exchange(core);
        self.set_state(core, State::Established);
        core.stats.established += 1;
    }

    fn enter_time_wait(&mut self, core: &mut Core, now: Instant) {
        self.stop_exchange(core);
        self.decide(core);
        self.leave_peers(core);
        self.set_state(core, State::TimeWait);
        self.start_timer(core, now + self.time_wait.duration());
    }

    /// The connection is gone, its names are free.
    fn release(&mut self, core: &mut Core) {
        self.stop_exchange(core);
        self.decide(core);
        self.leave_peers(core);
        tracing::debug!(local = %self.local_id, remote = %self.remote_id, from = %self.state, "released");
        core.states[self.state.index()] -= 1;
        core.ids.remove_local_id(self.local_id, self.handle.slot());
        if self.local_qpn.get() != 0 {
            core.ids.remove_local_qpn(self.local_qpn, self.handle.slot());
        }
        if let Some(keys) = self.remote_keys {
            core.ids.remove_remote(keys.id, self.handle.slot());
            core.ids.remove_remote(keys.qpn, self.handle.slot());
        }
        if self.reports != Reports::Nothing {
            core.events.push_back(Event::Released { conn: self.handle });
        }
        self.released = true;
    }

    /// The device is gone.
    pub(super) fn handle_device_removed(&mut self, core: &mut Core) {
        self.report(core, Event::DeviceRemoved { conn: self.handle });
        self.release(core);
    }
}

/// Whether a MAD comes from the other end of `av`: by GID, or by LID where one of the two has no GRH.
pub(super) fn is_at(av: &AddressVector, from: &MadSource) -> bool {
    match (&from.grh, &av.grh) {
        (Some(theirs), Some(ours)) => theirs.dgid == ours.dgid,
        _ => from.slid.is_unicast() && from.slid == av.dlid,
    }
}

/// Data that is worth keeping: an empty area is sent the same without.
fn keep<const N: usize>(data: PrivateData<N>) -> Option<Box<PrivateData<N>>> {
    (data != PrivateData::EMPTY).then(|| Box::new(data))
}

/// What [`keep`] kept.
fn kept<const N: usize>(data: Option<&PrivateData<N>>) -> PrivateData<N> {
    data.copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use ibdev::GlobalRoute;
    use ibwire::{FlowLabel, Lid, Rate, ServiceLevel};

    use super::*;

    /// Without a GRH on both sides the LID decides, and one that is none says nothing.
    #[test]
    fn the_other_end_is_known_by_gid_or_lid() {
        let grh = |gid: &str| {
            let (flow_label, dgid) = (FlowLabel::default(), gid.parse().unwrap());
            Some(GlobalRoute { dgid, sgid_index: 0, flow_label, hop_limit: 1, traffic_class: 0 })
        };
        let from = |slid, grh| {
            let (sl, qpn) = (ServiceLevel::default(), Qpn::GSI);
            MadSource { port: 1, slid: Lid(slid), sl, path_bits: 0, qpn, pkey_index: 0, grh }
        };
        let av = |dlid, grh| {
            let (sl, rate) = (ServiceLevel::default(), Rate::PORT_CURRENT);
            AddressVector { port: 1, dlid: Lid(dlid), sl, path_bits: 0, rate, grh }
        };
        assert!(is_at(&av(7, grh("fe80::7")), &from(8, grh("fe80::7"))));
        assert!(!is_at(&av(7, grh("fe80::7")), &from(7, grh("fe80::8"))));
        assert!(
            is_at(&av(7, grh("fe80::7")), &from(7, None)) && is_at(&av(7, None), &from(7, grh("fe80::7")))
        );
        assert!(!is_at(&av(7, None), &from(8, None)));
        assert!(!is_at(&av(0, grh("fe80::7")), &from(0, None)), "no LID is none that both have");
    }
}
