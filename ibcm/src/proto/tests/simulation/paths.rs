//! Alternate paths in the simulation: loaded by whom and when the seed says, and migrated to.

use ibwire::{PrivateData, TimeCode};
use rand::RngExt as _;

use super::super::pair::{A, P};
use super::{Info, Move, Role, Sim, State};
use crate::proto::message::{ApInfo, ApStatus, FailoverAccepted};
use crate::proto::{Attrs, ConnHandle, Event, LoadPath, Path, PathError};

impl Sim {
    /// From one of the ports here to one of those there; the one from the first to the first is that of each REQ.
    pub(super) fn any_path(&mut self, host: usize) -> Path {
        let [here, there] = [(); 2].map(|()| self.rng.random_range(1..=2));
        let [from, to] = [host, 1 - host].map(|host| self.net.hosts[host].address);
        let mut path = from.path_between(here, &to, there);
        path.record.packet_life_time = TimeCode::truncate(12).into(); // 17 ms
        path
    }

    /// A connection is established here.
    pub(super) fn plan_paths(&mut self, host: usize, conn: ConnHandle) {
        if self.net.ep(host).failover(conn) == Some(FailoverAccepted::ACCEPTED) {
            self.outcomes.proposed += 1;
        }
        if self.calm {
            return;
        }
        for what in [Move::LoadPath, Move::Migrate].repeat(2) {
            if self.chance(0.5) {
                let after = self.pause(3_000);
                self.schedule(after, super::What::Move(host, what, conn));
            }
        }
    }

    pub(super) fn react_to_path(&mut self, host: usize, event: &Event) {
        let conn = event.conn();
        match event {
            Event::AlternateLoaded { path, .. } => {
                self.outcomes.loaded += 1;
                // An APR is never taken for that of another LAP.
                let asked = self.held[&(host, conn)].asked_for.expect("a path was asked for");
                assert_eq!((path.av.port, path.av.grh.unwrap().dgid), (asked.port, asked.record.dgid));
                self.plan_paths(host, conn);
            }
            Event::AlternateRefused { .. } => self.outcomes.paths_refused += 1,
            Event::AlternateTimeout { .. } => self.outcomes.laps_timed_out += 1,
            Event::AlternateRequest { request, .. } => {
                let is_new = self.laps.insert(request.lap.private_data);
                assert!(is_new, "a LAP that was there before");
                // Some are decided at once, others late or never.
                let what = self.draw(&[(Move::AcceptPath, 80), (Move::RejectPath, 20)]);
                if self.chance(0.4) {
                    self.act(host, what, conn);
                } else if self.chance(0.9) {
                    let after = self.pause(400);
                    self.schedule(after, super::What::Move(host, what, conn));
                }
            }
            Event::Migrated { .. } => self.outcomes.migrated += 1,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn load_path(&mut self, host: usize, conn: ConnHandle, info: &Info) -> bool {
        let mut load = LoadPath::new(self.any_path(host));
        load.response_timeout = TimeCode::truncate(self.rng.random_range(12..=16));
        self.next_number += 1;
        load.private_data = PrivateData::from(&self.next_number.to_be_bytes());
        let held = self.held.get_mut(&(host, conn));
        let host = &mut self.net.hosts[host];
        let result = host.ep.load_path(self.net.now, conn, &load);
        let awaits_answer = host.monitor.awaits_apr(conn);
        match result {
            Ok(()) => {
                host.monitor.ask_for_path(conn);
                held.expect("held").asked_for = Some(load.path);
            }
            // One at a time, whatever else is wrong with it.
            Err(PathError::Busy) => assert!(awaits_answer, "busy with nothing"),
            Err(PathError::PassiveSide) => assert_eq!(info.role, Role::Passive),
            Err(PathError::State(_) | PathError::Gone) => assert_ne!(info.state, State::Established),
            Err(PathError::Invalid(_) | PathError::Loaded | PathError::PeerUnable) => {}
            Err(error) => panic!("{error}"),
        }
        result.is_ok()
    }

    pub(super) fn answer_path(&mut self, host: usize, conn: ConnHandle, accepts: bool) -> bool {
        let (now, host) = (self.net.now, &mut self.net.hosts[host]);
        let result = if accepts {
            host.ep.accept_path(now, conn, PrivateData::EMPTY)
        } else {
            host.ep.reject_path(now, conn, ApStatus::REJECTED, &ApInfo::None, PrivateData::EMPTY)
        };
        match result {
            Ok(()) => host.monitor.answer_path(conn),
            Err(PathError::State(_) | PathError::Gone) => {
                assert_ne!(host.ep.state(conn), Some(State::Established));
            }
            Err(error) => panic!("{error}"),
        }
        result.is_ok()
    }

    /// As a queue pair does it: only if both ends are armed.
    pub(super) fn migrate(&mut self, host: usize, conn: ConnHandle, info: &Info) -> bool {
        let Some((peer, _)) = self.peer_of(host, info) else { return false };
        let is_armed = |sim: &mut Self, host: usize, conn| {
            let ep = sim.net.ep(host);
            ep.state(conn) == Some(State::Established)
                && ep.attrs(conn).is_some_and(|attrs| attrs.rts.alternate.is_some())
        };
        if !is_armed(self, host, conn) || !is_armed(self, 1 - host, peer) {
            return false;
        }
        self.go_over(host, info);
        let after = self.pause(100);
        self.schedule(after, super::What::Move(1 - host, Move::Follow, peer));
        true
    }

    pub(super) fn follow(&mut self, host: usize, conn: ConnHandle, info: &Info) -> bool {
        let is_loaded = self.net.ep(host).attrs(conn).is_some_and(|attrs| attrs.rts.alternate.is_some());
        if is_loaded {
            self.go_over(host, info);
        }
        is_loaded
    }

    fn go_over(&mut self, host: usize, info: &Info) {
        let now = self.net.now;
        self.net.ep(host).path_migrated(now, info.local_qpn);
    }

    /// What both ends have loaded is one path.
    pub(super) fn check_paths(&self, host: usize, ours: &Attrs, theirs: &Attrs) {
        let (Some(ours), Some(theirs)) = (ours.rts.alternate, theirs.rts.alternate) else { return };
        let [here, there] = [host, 1 - host].map(|host| &self.net.hosts[host].address);
        let (Some(out), Some(back)) = (ours.av.grh, theirs.av.grh) else { panic!("RoCE without a GRH") };
        assert_eq!((out.dgid, back.dgid), (there.gid_of(theirs.av.port), here.gid_of(ours.av.port)));
    }

    /// By now every LAP has been answered or has timed out, unless the application never says a word about it.
    pub(super) fn check_laps(&mut self) {
        for host in [A, P] {
            assert_eq!(self.net.ep(host).poll_timeout(), None, "host {host} waits for something");
        }
        for (host, conn, _) in self.established() {
            assert!(!self.net.hosts[host].monitor.awaits_apr(conn), "a LAP without an end");
        }
    }
}
