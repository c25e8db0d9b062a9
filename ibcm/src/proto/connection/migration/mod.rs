//! Alternate paths of a connection (spec/cm.md 4.11): what is proposed, loaded, and becomes the path.

mod active;
mod passive;

use std::time::Instant;

use ibdev::qp::AlternatePath;
use ibdev::{AddressVector, MAD_LEN, MadAddr, MadSource};
use ibwire::{Gid, PKey, PathRecord, Selector, TimeCode, TransactionId};

use super::super::attrs::ack_timeout;
use super::super::core::Core;
use super::super::error::PathError;
use super::super::event::Event;
use super::super::message::{FailoverAccepted, PathBlock};
use super::super::path::Path;
use super::super::sgids::Address;
use super::super::transport::Transport;
use super::{Connection, Role, State, is_at};

pub(in super::super) use active::AlternatePlan;
pub(in super::super) use passive::Proposal;

/// A path that the connection may migrate to.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Alternate {
    address: Address,
    remote_gid: Gid,
    /// Life time of a packet on it.
    life_time: TimeCode,
    /// What our queue pair waits for an acknowledgement there.
    timeout: TimeCode,
}

/// A LAP that is not done.
#[derive(Debug)]
enum Lap {
    /// Active: ours is out, or the peer wants more time for it.
    Sent { tid: TransactionId, path: Alternate },
    /// Passive: the peer's is here, we have not answered it.
    Received { tid: TransactionId, block: PathBlock, path: Alternate, asked_for_time: bool },
}

/// How many transactions of LAPs that are over are remembered.
const REMEMBERED: usize = 8;

/// What a connection that has to do with alternate paths remembers.
#[derive(Debug, Default)]
pub(in super::super) struct Migration {
    /// In the REQ, and not yet decided.
    proposed: Option<Alternate>,
    /// In our queue pair, or about to be.
    loaded: Option<Alternate>,
    lap: Option<Lap>,
    /// The peer cannot, or did not answer: a late APR could be taken for that of a later LAP.
    closed: bool,
    /// A LAP was answered: a REJ is late from now on.
    exchanged: bool,
    /// Transactions of LAPs that are over, the newest last: ours, or the peer's before the one that we answered last.
    over: Vec<TransactionId>,
    /// The last LAP that we answered, and how.
    answered: Option<(TransactionId, Box<[u8; MAD_LEN]>)>,
    /// The primary path of before the last migration: what the peer sent by it may be under way.
    old: Option<AddressVector>,
}

impl Alternate {
    /// As the queue pair wants it; `None` while the port does not have our GID.
    fn attr(&self, core: &Core) -> Option<AlternatePath> {
        let MadAddr { av, pkey_index, .. } = core.sgids.resolve(&self.address)?;
        Some(AlternatePath { av, pkey_index, timeout: self.timeout })
    }

    /// Whether it goes the same way as another one.
    fn is_like(&self, other: &Address) -> bool {
        let way = |av: &AddressVector| {
            (av.port, av.dlid, av.path_bits, av.grh.map(|grh| (grh.dgid, grh.sgid_index)))
        };
        way(self.address.av()) == way(other.av())
    }
}

impl Migration {
    /// A LAP with this transaction is over: what comes of it from now on is late.
    fn end(&mut self, tid: TransactionId) {
        if self.over.len() == REMEMBERED {
            self.over.remove(0);
        }
        self.over.push(tid);
    }

    /// The peer's LAP is answered with `mad`. It has one out at a time, so the one before is over.
    fn remember_answer(&mut self, tid: TransactionId, mad: [u8; MAD_LEN]) {
        if let Some((before, _)) = self.answered.replace((tid, Box::new(mad))) {
            self.end(before);
        }
    }

    /// Whether a MAD comes by the alternate path, or by the one of before the last migration.
    pub(super) fn knows(&self, from: &MadSource) -> bool {
        self.loaded.as_ref().is_some_and(|path| is_at(path.address.av(), from))
            || self.old.as_ref().is_some_and(|av| is_at(av, from))
    }
}

impl Connection {
    /// Whether our queue pair can have an alternate path.
    fn can_migrate(&self, core: &Core) -> bool {
        core.ca.path_migration && self.transport == Transport::Rc
    }

    pub(super) fn migrating(&self) -> Option<&Migration> {
        self.extras.as_ref()?.migration.as_deref()
    }

    fn migrating_mut(&mut self) -> Option<&mut Migration> {
        self.extras.as_mut()?.migration.as_deref_mut()
    }

    fn migration(&mut self) -> &mut Migration {
        self.extras().migration.get_or_insert_default()
    }

    /// As if there had never been a word of alternate paths.
    pub(super) fn forget_paths(&mut self) {
        self.failover = None;
        if let Some(extras) = &mut self.extras {
            extras.migration = None;
        }
    }

    /// The alternate path that the REQ proposed, as long as nobody has decided on it.
    fn proposed(&self) -> Option<&Alternate> {
        self.migrating()?.proposed.as_ref()
    }

    fn loaded(&self) -> Option<&Alternate> {
        self.migrating()?.loaded.as_ref()
    }

    /// What became of the alternate path in the REQ, once the passive side has said so; `None` if there was none.
    pub(in super::super) fn failover(&self) -> Option<FailoverAccepted> {
        self.failover
    }

    /// The loaded path, for the queue pair.
    pub(super) fn loaded_attr(&self, core: &Core) -> Option<AlternatePath> {
        self.loaded()?.attr(core)
    }

    /// Whether a LAP was ever answered.
    pub(super) fn has_exchanged_paths(&self) -> bool {
        self.migrating().is_some_and(|migration| migration.exchanged)
    }

    /// The queue pair has migrated: the alternate path is the primary one, MADs included.
    ///
    /// # Errors
    /// [`PathError::NotLoaded`].
    pub(in super::super) fn migrated(&mut self, core: &mut Core) -> Result<Path, PathError> {
        if !matches!(self.state, State::Established | State::DreqSent) {
            return Err(self.refusal().into());
        }
        let old = self.path(core);
        let old_av = *self.primary.av();
        let Some(migration) = self.migrating_mut() else { return Err(PathError::NotLoaded) };
        let Some(path) = migration.loaded.take() else { return Err(PathError::NotLoaded) };
        migration.old = Some(old_av);
        self.primary = path.address;
        self.remote_gid = path.remote_gid;
        self.life_time = path.life_time;
        self.terms.ack_timeout = path.timeout;
        let round_trip = 2 * path.life_time.duration();
        let time_wait = match self.role {
            Role::Active => round_trip + self.peer_ack_delay.duration(),
            Role::Passive => path.timeout.duration(),
        };
        self.time_wait = core.time_wait(time_wait).into();
        core.stats.migrations += 1;
        tracing::debug!(local = %self.local_id, port = path.address.port(), "migrated");
        if self.exchange.is_some() && self.queued_at.is_some() {
            self.queue_exchange(core);
        }
        let primary = self.path(core);
        self.report(core, Event::Migrated { conn: self.handle, primary: Box::new(primary) });
        Ok(old)
    }

    /// The primary path, as it can be told from what is kept of it.
    fn path(&self, core: &Core) -> Path {
        let av = self.primary.av();
        let port = core.ca.port(av.port);
        let route = av.grh.unwrap_or(ibdev::GlobalRoute {
            dgid: Default::default(),
            sgid_index: 0,
            flow_label: Default::default(),
            hop_limit: 0,
            traffic_class: 0,
        });
        let sgid = core.sgids.gid(&self.primary).or_else(|| port?.preferred_gid()).unwrap_or_default();
        let record = PathRecord {
            dgid: self.remote_gid,
            sgid,
            dlid: av.dlid,
            slid: port.map_or(Default::default(), |port| port.lid_with(av.path_bits)),
            flow_label: route.flow_label,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
            reversible: true,
            pkey: self.pkey(core),
            sl: av.sl,
            mtu_selector: Selector::Exactly,
            mtu: self.terms.path_mtu,
            rate_selector: Selector::Exactly,
            rate: av.rate,
            packet_life_time_selector: Selector::Exactly,
            packet_life_time: self.life_time.into(),
            ..PathRecord::default()
        };
        Path { port: av.port, record }
    }

    /// The P_Key of the connection.
    fn pkey(&self, core: &Core) -> PKey {
        let index = core.sgids.resolve(&self.primary).map_or(0, |to| to.pkey_index);
        let port = core.ca.port(self.primary.port());
        port.and_then(|port| port.pkeys.get(usize::from(index)).copied()).unwrap_or_default()
    }

    /// What our queue pair waits for an acknowledgement on a path with this life time.
    fn timeout_on(&self, core: &Core, life_time: TimeCode) -> TimeCode {
        ack_timeout(life_time, self.peer_ack_delay).min(core.config.max_ack_timeout)
    }

    /// The timer has run out while the connection is established: that of a LAP.
    pub(super) fn handle_lap_timer(&mut self, core: &mut Core, now: Instant) {
        match self.migrating().and_then(|migration| migration.lap.as_ref()) {
            Some(Lap::Sent { .. }) => self.handle_silence(core, now),
            Some(Lap::Received { .. }) => self.ask_for_time_on_lap(core),
            None => {}
        }
    }
}
