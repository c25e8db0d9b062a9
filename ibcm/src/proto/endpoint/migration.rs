//! Alternate paths: commands, and the messages about them.

use std::time::Instant;

use ibdev::MadSource;
use ibwire::{PrivateData, Qpn, TransactionId};

use super::super::command::LoadPath;
use super::super::connection::Connection;
use super::super::core::Core;
use super::super::error::PathError;
use super::super::message::{ApInfo, ApStatus, Apr, Ari, FailoverAccepted, Lap};
use super::super::path::Path;
use super::{ConnHandle, Endpoint};

impl Endpoint {
    /// Active side: asks the peer to load an alternate path (LAP). Ends in
    /// [`Event::AlternateLoaded`](super::super::Event::AlternateLoaded),
    /// [`Event::AlternateRefused`](super::super::Event::AlternateRefused) or
    /// [`Event::AlternateTimeout`](super::super::Event::AlternateTimeout), or with the connection.
    ///
    /// # Errors
    /// [`PathError`]; then nothing was sent.
    pub fn load_path(&mut self, now: Instant, conn: ConnHandle, load: &LoadPath) -> Result<(), PathError> {
        self.path_command(conn, |conn, core| conn.load_path(core, now, load))
    }

    /// After [`Event::AlternateLoaded`](super::super::Event::AlternateLoaded): our queue pair did not take the path.
    pub fn unload_path(&mut self, conn: ConnHandle) {
        if self.get(conn).is_some() {
            self.on(conn.slot(), |conn, _| conn.unload_path());
        }
    }

    /// Passive side, after [`Event::AlternateRequest`](super::super::Event::AlternateRequest): our queue pair has the path.
    ///
    /// # Errors
    /// [`PathError`]; then nothing was sent. [`PathError::NotAsked`] if no LAP is undecided.
    pub fn accept_path(
        &mut self,
        _now: Instant,
        conn: ConnHandle,
        private_data: PrivateData<148>,
    ) -> Result<(), PathError> {
        let (status, info) = (ApStatus::LOADED, ApInfo::None);
        self.path_command(conn, |conn, core| conn.answer_lap(core, status, &info, private_data))
    }

    /// Passive side, after [`Event::AlternateRequest`](super::super::Event::AlternateRequest): our queue pair will not have
    /// the path. `status` is any but [`ApStatus::LOADED`], which counts as [`ApStatus::REJECTED`].
    ///
    /// # Errors
    /// As [`accept_path`](Self::accept_path).
    pub fn reject_path(
        &mut self,
        _now: Instant,
        conn: ConnHandle,
        status: ApStatus,
        info: &ApInfo,
        private_data: PrivateData<148>,
    ) -> Result<(), PathError> {
        let status = if status == ApStatus::LOADED { ApStatus::REJECTED } else { status };
        self.path_command(conn, |conn, core| conn.answer_lap(core, status, info, private_data))
    }

    /// The queue pair of the connection has migrated: the alternate path is the primary one from now on, for MADs as
    /// well. [`Event::Migrated`](super::super::Event::Migrated) follows. Returns what was the primary path.
    ///
    /// # Errors
    /// [`PathError::NotLoaded`] if there was none to migrate to; [`PathError::Gone`], [`PathError::State`].
    pub fn migrated(&mut self, _now: Instant, conn: ConnHandle) -> Result<Path, PathError> {
        self.path_command(conn, |conn, core| conn.migrated(core))
    }

    /// The same, by the number of the queue pair, from the device's event. Ignored if it means nothing.
    pub fn path_migrated(&mut self, now: Instant, qpn: Qpn) {
        let Some(conn) = self.connection_of(qpn) else { return };
        if let Err(error) = self.migrated(now, conn) {
            tracing::debug!(%qpn, %error, "migrated unexpectedly");
        }
    }

    /// What the passive side made of the alternate path in the REQ; `None` if there was none, before it is known, and if
    /// the handle is dead.
    pub fn failover(&self, conn: ConnHandle) -> Option<FailoverAccepted> {
        self.get(conn)?.failover()
    }

    fn path_command<R>(
        &mut self,
        handle: ConnHandle,
        act: impl FnOnce(&mut Connection, &mut Core) -> Result<R, PathError>,
    ) -> Result<R, PathError> {
        match self.get(handle) {
            Some(_) => self.on(handle.slot(), act),
            None => Err(PathError::Gone),
        }
    }

    pub(super) fn handle_lap(&mut self, now: Instant, from: &MadSource, tid: TransactionId, lap: &Lap) {
        match self.find(lap.remote_comm_id, lap.local_comm_id) {
            Some(slot) if self.is_from_peer(now, slot, from) => {
                self.on(slot, |conn, core| conn.handle_lap(core, now, from, tid, lap));
            }
            _ => {
                self.core.stats.dropped_unknown_id += 1;
                if self.core.may_answer(now, from) {
                    let apr = Apr {
                        local_comm_id: lap.remote_comm_id,
                        remote_comm_id: lap.local_comm_id,
                        status: ApStatus::INVALID_COMM_ID,
                        info: Ari::EMPTY,
                        private_data: PrivateData::EMPTY,
                    };
                    self.core.answer_with(from.reply(), tid, apr);
                }
            }
        }
    }

    pub(super) fn handle_apr(&mut self, now: Instant, from: &MadSource, tid: TransactionId, apr: &Apr) {
        match self.find(apr.remote_comm_id, apr.local_comm_id) {
            Some(slot) if self.is_from_peer(now, slot, from) => {
                self.on(slot, |conn, core| conn.handle_apr(core, now, tid, apr));
            }
            _ => self.core.stats.dropped_unknown_id += 1,
        }
    }
}
