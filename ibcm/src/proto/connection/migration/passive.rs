//! The passive side: LAP in, APR out.

use std::time::Instant;

use ibdev::{MAD_LEN, MadSource};
use ibwire::{PrivateData, TransactionId};

use super::super::super::core::{Core, encoded};
use super::super::super::endpoint::alternate_back;
use super::super::super::error::PathError;
use super::super::super::event::{AlternateRequest, Event};
use super::super::super::message::Lap as LapMessage;
use super::super::super::message::{ApInfo, ApStatus, Apr, Ari, FailoverAccepted, MessageId, PathBlock};
use super::super::super::path::Path;
use super::super::{Connection, Role, State};
use super::{Alternate, Lap};

/// What an alternate path in a REQ is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super::super) enum Proposal {
    /// There is none.
    None,
    /// It is one of ours, and another one than the primary path.
    Usable(Path, ibdev::MadAddr, PathBlock),
    /// It is not.
    Unusable,
}

impl Proposal {
    pub(in super::super) fn path(&self) -> Option<Path> {
        match self {
            Self::Usable(path, ..) => Some(*path),
            Self::None | Self::Unusable => None,
        }
    }
}

impl Connection {
    /// Takes note of the alternate path in the REQ.
    pub(in super::super) fn take_proposal(&mut self, core: &mut Core, proposal: &Proposal) {
        match proposal {
            Proposal::None => {}
            Proposal::Usable(_, address, block) => {
                let path = received(core, *address, block);
                if path.is_like(&self.primary) {
                    self.failover = Some(FailoverAccepted::REJECTED);
                } else {
                    self.migration().proposed = Some(path);
                }
            }
            Proposal::Unusable => self.failover = Some(FailoverAccepted::REJECTED),
        }
        if self.failover.is_some() && !self.can_migrate(core) {
            self.failover = Some(FailoverAccepted::UNSUPPORTED);
        }
    }

    /// What the REP says of the alternate path if the user takes it or does not.
    pub(in super::super) fn failover_answer(&self, core: &Core, takes: bool) -> FailoverAccepted {
        match (self.proposed(), self.failover) {
            (Some(_), _) if !self.can_migrate(core) => FailoverAccepted::UNSUPPORTED,
            (Some(_), _) if takes => FailoverAccepted::ACCEPTED,
            (Some(_), _) => FailoverAccepted::REJECTED,
            // Without a proposal it means nothing.
            (None, failover) => failover.unwrap_or(FailoverAccepted::ACCEPTED),
        }
    }

    /// The alternate path that the queue pair is to have when the request is accepted.
    pub(in super::super) fn accepted_path(
        &self,
        core: &Core,
        takes: bool,
    ) -> Option<ibdev::qp::AlternatePath> {
        let accepted = self.failover_answer(core, takes) == FailoverAccepted::ACCEPTED;
        self.proposed().filter(|_| accepted)?.attr(core)
    }

    /// The request is accepted.
    pub(in super::super) fn decide_on_path(&mut self, core: &Core, takes: bool) -> FailoverAccepted {
        // The GID may have gone since the user asked for the attributes.
        let loads = self.accepted_path(core, takes).is_some();
        let answer = match self.failover_answer(core, takes) {
            FailoverAccepted::ACCEPTED if self.proposed().is_some() && !loads => FailoverAccepted::REJECTED,
            answer => answer,
        };
        self.takes_paths = takes;
        if let Some(migration) = self.migrating_mut()
            && let Some(path) = migration.proposed.take()
        {
            migration.loaded = (answer == FailoverAccepted::ACCEPTED).then_some(path);
            self.failover = Some(answer);
        }
        answer
    }

    /// A LAP with both IDs of this connection.
    pub(in super::super::super) fn handle_lap(
        &mut self,
        core: &mut Core,
        now: Instant,
        from: &MadSource,
        tid: TransactionId,
        lap: &LapMessage,
    ) {
        // It knows our QP, so it has our REP, and considers the connection established.
        if self.role == Role::Passive && lap.remote_qpn == self.local_qpn {
            self.handle_implied_rtu(core);
        }
        if self.role == Role::Active || self.state != State::Established {
            core.stats.dropped_state += 1;
            return;
        }
        if let Some((_, mad)) =
            self.migrating().and_then(|m| m.answered.as_ref()).filter(|(of, _)| *of == tid)
        {
            core.stats.repeated_answers += 1;
            core.answer(from.reply(), **mad);
            return;
        }
        if self.migrating().is_some_and(|migration| migration.over.contains(&tid)) {
            core.stats.dropped_duplicate += 1;
            return;
        }
        let refusal = match self.look_at_lap(core, from, tid, lap) {
            Ok(Some((path, to))) => {
                let block = lap.alternate;
                self.migration().lap = Some(Lap::Received { tid, block, path: to, asked_for_time: false });
                self.start_timer(core, now + lap.remote_cm_response_timeout.duration() / 2);
                core.stats.alternate_requests += 1;
                let Some(attr) = to.attr(core) else { return };
                let request = Box::new(AlternateRequest { lap: lap.clone(), path, attr });
                self.report(core, Event::AlternateRequest { conn: self.handle, request });
                return;
            }
            Ok(None) => return,
            Err(refusal) => refusal,
        };
        let mad = encoded(tid, self.apr(refusal.0, refusal.1.encode(), PrivateData::EMPTY));
        core.stats.refused_alternates += u64::from(refusal.0 != ApStatus::LOADED);
        // What is refused for good needs no memory. What is not may come again when it would not be refused any more.
        if !matches!(refusal.0, ApStatus::WRONG_QPN | ApStatus::UNSUPPORTED) {
            self.migration().remember_answer(tid, mad);
        }
        core.answer(from.reply(), mad);
    }

    /// What a LAP comes to: a path to ask the user about, nothing, or an answer at once.
    fn look_at_lap(
        &mut self,
        core: &mut Core,
        from: &MadSource,
        tid: TransactionId,
        lap: &LapMessage,
    ) -> Result<Option<(Path, Alternate)>, (ApStatus, ApInfo)> {
        let plain = |status| (status, ApInfo::None);
        if lap.remote_qpn != self.local_qpn {
            return Err(plain(ApStatus::WRONG_QPN));
        }
        if !self.can_migrate(core) || !self.takes_paths {
            return Err(plain(ApStatus::UNSUPPORTED));
        }
        if let Some(Lap::Received { tid: of, block, asked_for_time, .. }) =
            self.migrating().and_then(|migration| migration.lap.as_ref())
        {
            if *of != tid && *block != lap.alternate {
                return Err(plain(ApStatus::REJECTED));
            }
            if *asked_for_time {
                let mra = self.mra(MessageId::LAP);
                core.answer_with(from.reply(), tid, mra);
                core.stats.repeated_answers += 1;
            } else {
                core.stats.dropped_duplicate += 1;
            }
            return Ok(None);
        }
        let (pkey, mtu) = (self.pkey(core), self.terms.path_mtu);
        let (path, address) = alternate_back(&core.ca, from, &lap.alternate, pkey, mtu)?;
        let to = received(core, address, &lap.alternate);
        if to.is_like(&self.primary) {
            return Err(plain(ApStatus::CURRENT_PATH));
        }
        match self.loaded() {
            Some(loaded) if loaded.is_like(&to.address) => Err(plain(ApStatus::LOADED)),
            Some(_) => Err(plain(ApStatus::REJECTED)),
            None => Ok(Some((path, to))),
        }
    }

    fn apr(&self, status: ApStatus, info: Ari, private_data: PrivateData<148>) -> Apr {
        Apr { local_comm_id: self.local_id, remote_comm_id: self.remote_id, status, info, private_data }
    }

    /// The answer to a LAP is undecided for long.
    pub(super) fn ask_for_time_on_lap(&mut self, core: &mut Core) {
        let mra = self.mra(MessageId::LAP);
        let Some(Lap::Received { tid, asked_for_time, .. }) =
            self.migrating_mut().and_then(|migration| migration.lap.as_mut())
        else {
            return;
        };
        *asked_for_time = true;
        let mad = encoded(*tid, mra);
        core.stats.mras_sent += 1;
        self.send_by_primary(core, mad);
    }

    fn send_by_primary(&self, core: &mut Core, mad: [u8; MAD_LEN]) {
        if let Some(out) = core.mad(&self.primary, mad) {
            core.answer(out.to, out.mad);
        }
    }

    /// The user answers the LAP: its queue pair has the path, or will not have it.
    pub(in super::super::super) fn answer_lap(
        &mut self,
        core: &mut Core,
        status: ApStatus,
        info: &ApInfo,
        private_data: PrivateData<148>,
    ) -> Result<(), PathError> {
        if self.state != State::Established {
            return Err(self.refusal().into());
        }
        let Some(migration) = self.migrating_mut() else { return Err(PathError::NotAsked) };
        let Some(Lap::Received { tid, path, .. }) = &migration.lap else { return Err(PathError::NotAsked) };
        let (tid, path) = (*tid, *path);
        migration.lap = None;
        migration.exchanged = true;
        if status == ApStatus::LOADED {
            migration.loaded = Some(path);
        }
        core.timers.stop(&mut self.timer);
        let mad = encoded(tid, self.apr(status, info.encode(), private_data));
        self.migration().remember_answer(tid, mad);
        self.send_by_primary(core, mad);
        Ok(())
    }
}

/// An alternate path of the peer's, turned round.
fn received(core: &mut Core, address: ibdev::MadAddr, block: &PathBlock) -> Alternate {
    let timeout = match block.local_ack_timeout.get() {
        0 => core.config.max_ack_timeout,
        _ => block.local_ack_timeout.min(core.config.max_ack_timeout),
    };
    let address = core.sgids.address(address);
    Alternate {
        address,
        remote_gid: block.local_gid,
        life_time: block.local_ack_timeout.saturating_sub(1),
        timeout,
    }
}
