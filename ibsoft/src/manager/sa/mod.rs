//! Subnet administration: the service that answers what the subnet consists of, how to get somewhere, who is in a group, who
//! offers a service, and that tells its subscribers what happens.

mod answer;
mod config;
mod counters;
mod groups;
mod guids;
mod multi;
mod paths;
mod records;
mod request;
mod services;
mod subscriptions;
mod transfers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use ibsa::mad::{RmppType, SaHeader};
use ibsa::proto::after;
use ibsa::proto::rmpp::Mad;
use ibsa::record::{NoticeDetails, SmInfoRecord};
use ibwire::mad::{MadHeader, MadStatus, Method, MgmtClass};
use ibwire::{Gid, Lid, PKey, Qpn, ServiceLevel};

use super::topology::{PortAt, Topology};
use groups::Groups;
use multi::Incoming;
use request::Request;
use services::Services;
use subscriptions::Subscriptions;
use transfers::Transfers;

pub use config::{Partition, SaConfig, SaLimits, SaMode};
pub use counters::SaCounters;
pub use groups::GroupTree;

/// The other end of a MAD's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// Its LID; of a port with several the one that the MAD came from.
    pub lid: Lid,
    /// Its queue pair.
    pub qpn: Qpn,
    /// Its GID, if the packet has a GRH.
    pub gid: Option<Gid>,
    /// Service level.
    pub sl: ServiceLevel,
    /// Partition of the packet.
    pub p_key: PKey,
}

/// A MAD and whom it is for, or from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaMad {
    /// The other end.
    pub peer: Peer,
    /// The MAD.
    pub mad: Mad,
}

/// The service itself, without I/O: MADs, times and changes of the subnet in, MADs out.
///
/// Until it is told a first [`Topology`] it is busy: it answers every request with status 0x0001.
#[derive(Debug)]
pub struct Sa {
    config: SaConfig,
    mode: SaMode,
    topology: Topology,
    is_ready: bool,
    managers: Vec<SmInfoRecord>,
    groups: Groups,
    services: Services,
    subscriptions: Subscriptions,
    transfers: Transfers,
    incoming: BTreeMap<transfers::Key, Incoming>,
    out: VecDeque<SaMad>,
    /// Answers that [`SaMode::Slow`] holds back.
    late: VecDeque<(Instant, SaMad)>,
    counters: SaCounters,
}

impl Sa {
    /// A service that does not know the subnet yet.
    pub fn new(config: SaConfig) -> Self {
        Self {
            topology: Topology::new(config.prefix),
            transfers: Transfers::new(&config),
            config,
            mode: SaMode::Normal,
            is_ready: false,
            managers: Vec::new(),
            groups: Groups::default(),
            services: Services::default(),
            subscriptions: Subscriptions::default(),
            incoming: BTreeMap::new(),
            out: VecDeque::new(),
            late: VecDeque::new(),
            counters: SaCounters::default(),
        }
    }

    /// The subnet as it answers from it.
    pub const fn topology(&self) -> &Topology {
        &self.topology
    }

    /// What has happened so far.
    pub const fn counters(&self) -> &SaCounters {
        &self.counters
    }

    /// How it behaves from now on.
    pub fn set_mode(&mut self, mode: SaMode) {
        self.mode = mode;
    }

    /// The subnet managers that it knows of; the first is its own.
    pub fn set_managers(&mut self, managers: Vec<SmInfoRecord>) {
        self.managers = managers;
    }

    /// The subnet as it is from now on: routed, its LIDs assigned. Subscribers hear of GIDs that came and went; what ports that
    /// are gone had joined, registered and subscribed to ends. Alias GUIDs stay.
    pub fn set_topology(&mut self, now: Instant, mut topology: Topology) {
        self.keep_aliases(&mut topology);
        topology.index();
        let (old, was_ready) = (std::mem::replace(&mut self.topology, topology), self.is_ready);
        self.is_ready = true;
        let (came, went) = (self.topology.end_ports(), old.end_ports());
        let came: Vec<_> = came
            .filter(|(_, p)| old.at_guid(p.guid()).is_none())
            .map(|(at, _)| self.topology.gid(at))
            .collect();
        let went: BTreeSet<PortAt> =
            went.filter(|(_, port)| self.topology.at_guid(port.guid()).is_none()).map(|(at, _)| at).collect();
        // By whatever GID it was known: its own, an alias, one with the default prefix.
        let is_gone = |gid: Gid| old.at_gid(gid).is_some_and(|at| went.contains(&at));
        self.services.forget(is_gone, &mut self.counters);
        self.subscriptions.forget(is_gone);
        for mgid in self.groups.forget(is_gone) {
            self.notify(now, NoticeDetails::GroupDeleted(mgid));
        }
        self.readdress();
        if was_ready {
            went.into_iter().for_each(|at| self.notify(now, NoticeDetails::GidOut(old.gid(at))));
            came.into_iter().for_each(|gid| self.notify(now, NoticeDetails::GidIn(gid)));
        }
    }

    /// Forgets groups, services and subscriptions, as a service that starts anew. The new master asks the ports to register
    /// again.
    pub fn restart(&mut self) {
        self.groups = Groups::default();
        self.services = Services::default();
        self.subscriptions.restart();
        self.transfers = Transfers::new(&self.config);
        self.topology = Topology::new(self.config.prefix);
        self.incoming.clear();
        self.out.clear();
        self.late.clear();
        self.is_ready = false;
    }

    /// A MAD that arrived at QP1 of the service's port.
    pub fn handle_mad(&mut self, now: Instant, from: Peer, mad: &Mad) {
        self.counters.received += 1;
        let Ok(header) = SaHeader::parse(mad) else {
            self.counters.drop_malformed += 1;
            return;
        };
        if header.mad.base_version != MadHeader::BASE_VERSION || header.mad.class != MgmtClass::SA {
            self.counters.drop_malformed += 1;
            return;
        }
        if self.mode == SaMode::Silent {
            self.counters.drop_silent += 1;
            return;
        }
        if header.mad.method == Method::REPORT.response() {
            self.handle_report_response(&from, &header);
            return;
        }
        let rmpp = &header.rmpp;
        if rmpp.is_active() && (rmpp.kind != RmppType::DATA || header.mad.method.is_response()) {
            self.handle_control(now, from, &header);
            return;
        }
        if header.mad.method.is_response() {
            self.counters.drop_response += 1;
            return;
        }
        let mut data = [0; SaHeader::DATA_LEN];
        data.copy_from_slice(&mad[SaHeader::LEN..]);
        self.admit(now, Request { now, from, header, requester: None, is_trusted: false, data: &data });
    }

    /// Lets a request in, or says why not (spec/sa.md 10, rules 1 to 3).
    fn admit(&mut self, now: Instant, mut request: Request<'_>) {
        if request.header.mad.class_version != SaHeader::CLASS_VERSION {
            self.refuse(&request, MadStatus::BAD_VERSION);
            return;
        }
        let key = request.header.sm_key;
        if key != 0 && key != self.config.sm_key {
            self.counters.drop_sm_key += 1;
            return;
        }
        request.is_trusted = key != 0;
        if !self.is_ready || self.mode == SaMode::Busy {
            self.counters.busy += 1;
            self.refuse(&request, MadStatus::BUSY);
            return;
        }
        request.requester = self.topology.at_lid(request.from.lid);
        if request.requester.is_none() {
            self.counters.drop_unknown_requester += 1;
            return;
        }
        self.counters.requests += 1;
        if request.header.mad.method == Method::GET_MULTI && request.header.rmpp.is_active() {
            self.handle_multi(now, &request);
            return;
        }
        let answer = self.answer(&request);
        self.reply(&request, answer);
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while self.late.front().is_some_and(|(due, _)| *due <= now) {
            self.out.extend(self.late.pop_front().map(|(_, mad)| mad));
        }
        self.services.expire(now, &mut self.counters);
        self.repeat_reports(now);
        self.transfers.handle_timeout(now, &mut self.out, &mut self.counters);
        self.expire_incoming(now);
    }

    /// When to call [`handle_timeout`](Self::handle_timeout); `None` for never.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let late = self.late.front().map(|(due, _)| *due);
        let others =
            [self.services.poll_timeout(), self.subscriptions.poll_timeout(), self.transfers.poll_timeout()];
        let incoming = self.incoming.values().map(|it| it.receiver.poll_timeout());
        others.into_iter().flatten().chain(late).chain(incoming).min()
    }

    /// The next MAD to send from QP1 of the service's port.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<SaMad> {
        let next = self.out.pop_front().or_else(|| self.transfers.poll_transmit(now))?;
        self.counters.sent += 1;
        Some(next)
    }

    /// Puts a MAD that is no segment on its way.
    fn send(&mut self, now: Instant, peer: Peer, mad: Mad) {
        if self.out.len() + self.late.len() >= self.config.limits.answers {
            self.counters.drop_overrun += 1;
            return;
        }
        match self.mode {
            SaMode::Slow(delay) => {
                // Those that were held back longer may still be there.
                let due = after(now, delay);
                let at = self.late.partition_point(|(other, _)| *other <= due);
                self.late.insert(at, (due, SaMad { peer, mad }));
            }
            _ => self.out.push_back(SaMad { peer, mad }),
        }
    }
}
