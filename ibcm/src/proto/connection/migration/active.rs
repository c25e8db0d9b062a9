//! The active side: LAP out, APR in.

use std::time::Instant;

use ibdev::MadAddr;
use ibwire::{QKey, Qpn};

use super::super::super::attrs::ack_timeout;
use super::super::super::command::LoadPath;
use super::super::super::core::Core;
use super::super::super::error::PathError;
use super::super::super::event::Event;
use super::super::super::exchange::Patience;
use super::super::super::invalid::{Invalid, Limit, Value};
use super::super::super::local::LocalCa;
use super::super::super::message::Lap as LapMessage;
use super::super::super::message::{ApInfo, ApStatus, Apr, FailoverAccepted, Message, PathBlock, Rep};
use super::super::super::path::Path;
use super::super::super::transport::Transport;
use super::super::{Connection, Role, State};
use super::{Alternate, Lap, Migration};

/// What a path comes to on this CA beside the primary one.
#[derive(Debug, Clone, Copy)]
pub(in super::super::super) struct AlternatePlan {
    pub(super) address: MadAddr,
    pub(in super::super) block: PathBlock,
    path: Path,
}

impl AlternatePlan {
    /// Checks that the device can have it, and that it fits the primary path.
    pub(in super::super::super) fn new(
        ca: &LocalCa,
        transport: Transport,
        path: &Path,
        primary: &Path,
    ) -> Result<Self, Invalid> {
        let (record, first) = (&path.record, &primary.record);
        let must = |value, must| Err(Invalid::new("alternate path", value, Limit::Must(must)));
        if transport != Transport::Rc {
            return must(Value::Transport(transport), "left out: only reliable connections migrate");
        }
        if !ca.path_migration {
            return must(Value::Gid(record.dgid), "left out: the device cannot migrate paths");
        }
        let Some(port) = ca.port(path.port).filter(|port| port.active) else {
            return must(Value::Number(path.port.into()), "of a port of the device that is up");
        };
        let Some(sgid_index) = port.gid_index(record.sgid) else {
            return must(Value::Gid(record.sgid), "from a GID of its port");
        };
        let Some(pkey_index) = port.pkey_index(first.pkey).filter(|_| record.pkey == first.pkey) else {
            return must(Value::PKey(record.pkey), "in the partition of the primary path, on its port, too");
        };
        if record.mtu < first.mtu || port.mtu < first.mtu {
            return must(
                Value::Mtu(record.mtu.min(port.mtu)),
                "one that carries the MTU of the primary path",
            );
        }
        let ends =
            |path: &Path| (path.port, path.record.sgid, path.record.dgid, path.record.slid, path.record.dlid);
        if ends(path) == ends(primary) {
            return must(Value::Gid(record.dgid), "another one than the primary path");
        }
        let av = path.address_vector(port, sgid_index);
        let address = MadAddr { av, qpn: Qpn::GSI, qkey: QKey::GSI, pkey_index };
        let block = path.alternate_block(port, ack_timeout(path.life_time(), ca.ack_delay));
        Ok(Self { address, block, path: *path })
    }

    fn alternate(&self, core: &mut Core) -> Alternate {
        let timeout = self.block.local_ack_timeout.min(core.config.max_ack_timeout);
        let address = core.sgids.address(self.address);
        Alternate { address, remote_gid: self.path.record.dgid, life_time: self.path.life_time(), timeout }
    }
}

impl Connection {
    /// The REQ proposes an alternate path.
    pub(in super::super) fn propose(&mut self, core: &mut Core, plan: &AlternatePlan) {
        self.migration().proposed = Some(plan.alternate(core));
    }

    /// The REP says what became of the alternate path in the REQ, and whether the peer can migrate at all.
    pub(in super::super) fn take_failover(&mut self, core: &Core, rep: &Rep) {
        self.peer_ack_delay = rep.target_ack_delay;
        let answer = rep.failover_accepted;
        if !matches!(answer, FailoverAccepted::ACCEPTED | FailoverAccepted::REJECTED) {
            self.migration().closed = true;
        }
        let proposed = self.migrating_mut().and_then(|migration| migration.proposed.take());
        if let Some(path) = proposed {
            self.failover = Some(answer);
            let timeout = self.timeout_on(core, path.life_time);
            if answer == FailoverAccepted::ACCEPTED {
                self.migration().loaded = Some(Alternate { timeout, ..path });
            }
        }
    }

    /// The user wants another path loaded; the LAP is queued.
    pub(in super::super::super) fn load_path(
        &mut self,
        core: &mut Core,
        now: Instant,
        load: &LoadPath,
    ) -> Result<(), PathError> {
        if self.role == Role::Passive {
            return Err(PathError::PassiveSide);
        }
        if self.state != State::Established {
            return Err(self.refusal().into());
        }
        if core.ca.port(load.path.port).is_some_and(|port| !port.active) {
            return Err(PathError::PortDown(load.path.port));
        }
        let plan = AlternatePlan::new(&core.ca, self.transport, &load.path, &self.path(core))?;
        match self.migrating() {
            Some(Migration { lap: Some(_), .. }) => return Err(PathError::Busy),
            Some(Migration { loaded: Some(_), .. }) => return Err(PathError::Loaded),
            Some(Migration { closed: true, .. }) => return Err(PathError::PeerUnable),
            _ => {}
        }
        let mut path = plan.alternate(core);
        path.timeout = self.timeout_on(core, path.life_time);
        let tid = core.draw_tid();
        let lap = LapMessage {
            local_comm_id: self.local_id,
            remote_comm_id: self.remote_id,
            remote_qpn: self.remote_qpn,
            remote_cm_response_timeout: load.response_timeout,
            alternate: plan.block,
            private_data: load.private_data,
        };
        let flight = 2 * path.life_time.max(self.life_time).duration();
        let period = load.response_timeout.duration() + flight;
        let patience = Patience { period, ..self.patience(core, now, load.deadline) };
        let exchange = core.exchanges.make(patience, |mad| Message::Lap(lap).encode(tid, mad));
        self.migration().lap = Some(Lap::Sent { tid, path });
        self.start_exchange(core, exchange);
        Ok(())
    }

    /// Whether our LAP is out.
    pub(in super::super) fn awaits_apr(&self) -> bool {
        let lap = self.migrating().and_then(|migration| migration.lap.as_ref());
        self.state == State::Established && matches!(lap, Some(Lap::Sent { .. }))
    }

    /// An APR with both IDs of this connection. It counts unless it answers a LAP that is over: peers that echo another
    /// transaction are understood.
    pub(in super::super::super) fn handle_apr(
        &mut self,
        core: &mut Core,
        now: Instant,
        tid: ibwire::TransactionId,
        apr: &Apr,
    ) {
        let is_over = self.migrating().is_some_and(|migration| migration.over.contains(&tid));
        if !self.awaits_apr() || is_over || !self.exchange.as_ref().is_some_and(|exchange| exchange.is_sent())
        {
            core.stats.dropped_state += 1;
            return;
        }
        let Some(path) = self.end_lap(core) else { return };
        let migration = self.migration();
        migration.exchanged = true;
        let conn = self.handle;
        if apr.status == ApStatus::LOADED {
            match path.attr(core) {
                Some(attr) => {
                    self.migration().loaded = Some(path);
                    self.report(core, Event::AlternateLoaded { conn, path: Box::new(attr) });
                }
                // Our GID went away meanwhile. What the peer has loaded will never be armed.
                None => self.report(
                    core,
                    Event::AlternateTimeout { conn, effort: self.effort(now).unwrap_or_default() },
                ),
            }
            return;
        }
        if apr.status == ApStatus::UNSUPPORTED {
            self.migration().closed = true;
        }
        let info = ApInfo::decode(apr.status, &apr.info);
        let (status, private_data) = (apr.status, apr.private_data);
        self.report(
            core,
            Event::AlternateRefused {
                conn,
                status,
                info: Box::new(info),
                private_data: Box::new(private_data),
            },
        );
    }

    /// Our LAP is over.
    fn end_lap(&mut self, core: &mut Core) -> Option<Alternate> {
        self.stop_exchange(core);
        let migration = self.migrating_mut()?;
        let Some(Lap::Sent { tid, path }) = migration.lap.take() else { return None };
        migration.end(tid);
        Some(path)
    }

    /// Our LAP was never answered. The connection stays.
    pub(in super::super) fn give_up_lap(&mut self, core: &mut Core, now: Instant) {
        let Some(effort) = self.effort(now) else { return };
        self.end_lap(core);
        self.migration().closed = true;
        core.stats.lap_timeouts += 1;
        self.report(core, Event::AlternateTimeout { conn: self.handle, effort });
    }

    /// Our queue pair did not take the path that the peer has loaded.
    pub(in super::super::super) fn unload_path(&mut self) {
        if let Some(migration) = self.migrating_mut() {
            migration.loaded = None;
        }
    }
}
