//! A subnet manager: it finds what there is, gives LIDs, writes routes, brings ports into service, and looks whether anything
//! has changed (IBTA vol. 1, chapter 14). Its subnet administration answers from what it found.

mod configure;
mod discovery;
mod election;
mod partitions;
mod qos;
mod smp;
mod trees;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use ibsa::proto::after;
use ibsa::proto::rmpp::Mad;
use ibsa::record::{Layout, Notice, SmState};
use ibwire::mad::{AttributeId, MadHeader, Method, MgmtClass};
use ibwire::{Guid, Lid, PKey, TimeCode, TransactionId};

use super::routing::Routing;
use super::sa::{GroupTree, Peer, Sa, SaConfig, SaMad};
use super::topology::{PortAt, Topology};
use configure::Plan;
use discovery::Discovery;
use election::Rival;
pub use qos::Qos;
use smp::{Path, attribute};

/// How a manager is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SmConfig {
    /// GUID of the port where it runs. Of two managers with the same priority the lower one becomes master.
    pub guid: Guid,
    /// The highest becomes master, 0 to 15. Default 0.
    pub priority: u8,
    /// Every host port has 2^LMC LIDs, 0 to 7. Default 0.
    pub lmc: u8,
    /// Whether LIDs that ports have already are kept. Default: they are.
    pub keep_lids: bool,
    /// LIDs that ports with these GUIDs have had: they get them again, and no others do unless there are no more. Every LID that it
    /// gives is added.
    pub lids: BTreeMap<Guid, Lid>,
    /// Where the search for free LIDs begins; behind the last it goes on at the first. Default 1.
    pub first_lid: Lid,
    /// Whether it is there to be asked. One that is not configures the subnet and is never heard of: ports learn of no subnet
    /// manager, keep the prefix of their GIDs, and need not register again. Default: it is.
    pub stays: bool,
    /// P_Keys of ports by their GUID; the default partition for those that are not named. Switches that can enforce them at the
    /// ports where hosts are plugged in.
    pub p_keys: BTreeMap<Guid, Vec<PKey>>,
    /// Virtual lanes and their arbitration. Default: none.
    pub qos: Option<Qos>,
    /// Subnet timeout of all ports. Default 18.
    pub subnet_timeout: TimeCode,
    /// How often it looks whether a switch has changed. Default 10 s.
    pub sweep: Duration,
    /// A packet that is not answered is sent again after so long. Default 200 ms.
    pub timeout: Duration,
    /// So often. Default 3.
    pub retries: u32,
    /// A sweep in which something was not answered is done again after so long, and each time after twice as long, up to
    /// [`sweep`](Self::sweep). Default 1 s.
    pub again: Duration,
    /// The transaction ID before its first. Default 0.
    pub last_tid: u64,
    /// Packets without an answer at once, 1 if it is 0. Default 64.
    pub window: usize,
    /// How often a standby asks its master. Default 1 s.
    pub poll: Duration,
    /// So many unanswered questions in a row make the standby take over. Default 3.
    pub polls: u32,
    /// Its subnet administration.
    pub sa: SaConfig,
}

impl SmConfig {
    /// The manager of a port with this GUID.
    pub fn new(guid: Guid) -> Self {
        Self {
            guid,
            priority: 0,
            lmc: 0,
            keep_lids: true,
            lids: BTreeMap::new(),
            first_lid: Lid(1),
            stays: true,
            p_keys: BTreeMap::new(),
            qos: None,
            subnet_timeout: TimeCode::truncate(18),
            sweep: Duration::from_secs(10),
            timeout: Duration::from_millis(200),
            retries: 3,
            again: Duration::from_secs(1),
            last_tid: 0,
            window: 64,
            poll: Duration::from_secs(1),
            polls: 3,
            sa: SaConfig::default(),
        }
    }
}

/// A MAD that a manager sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SmMad {
    /// By QP0: to a LID, or by its own directed route if that is [`Lid::PERMISSIVE`].
    Smp(Lid, Mad),
    /// By QP1.
    Sa(SaMad),
}

/// What a manager has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SmCounters {
    /// Sweeps through the whole subnet.
    pub heavy_sweeps: u64,
    /// Looks at the switches only.
    pub light_sweeps: u64,
    /// Packets that were sent, repetitions included.
    pub sent: u64,
    /// Packets that nobody answered.
    pub unanswered: u64,
    /// Answers with a status.
    pub refused: u64,
    /// Traps that were heard.
    pub traps: u64,
    /// Times that it became master.
    pub elected: u64,
    /// Ports without a LID because there are no more.
    pub lids_lacking: u64,
    /// Dropped: answers to nothing, what is no packet of the class or nothing that managers ask each other, traps that are for the master.
    pub dropped: u64,
}

impl SmCounters {
    /// All of them by name.
    pub const fn named(&self) -> [(&'static str, u64); 9] {
        [
            ("heavy_sweeps", self.heavy_sweeps),
            ("light_sweeps", self.light_sweeps),
            ("smps_sent", self.sent),
            ("smps_unanswered", self.unanswered),
            ("smps_refused", self.refused),
            ("traps", self.traps),
            ("elected", self.elected),
            ("lids_lacking", self.lids_lacking),
            ("smps_dropped", self.dropped),
        ]
    }
}

/// How often the subnet is looked at again if not everything has answered.
const LOOKS: u32 = 2;

/// What a request is for.
#[derive(Debug, Clone)]
enum Purpose {
    /// Who is at the end of this path, and by which port of which node it was reached.
    Node(Option<PortAt>),
    /// Part of a node's description.
    Describe(usize),
    SwitchInfo(usize),
    /// The bit that says that a switch has changed is taken back, before its ports are looked at.
    Clear(usize),
    PortInfo(PortAt),
    Guids(PortAt, u8),
    Manager,
    /// A write: nothing follows from its answer.
    Write,
    /// A write by which this port of a switch lets through what a host is about to send.
    Admit(PortAt),
    /// Whether a switch has changed.
    Look,
    /// Whether a switch's port is as it was told.
    Compare(PortAt),
    /// What the manager with this GUID is now.
    Watch(Guid),
    /// Whether the master lives.
    Poll,
    /// The mastership is given to the manager with this GUID.
    HandOver(Guid),
    /// A master that is above us hears that we are none any more.
    GiveWay,
}

/// A request to be sent.
#[derive(Debug)]
struct Request {
    method: Method,
    attribute: AttributeId,
    modifier: u32,
    path: Path,
    data: Vec<u8>,
    purpose: Purpose,
}

/// A request without an answer.
#[derive(Debug)]
struct Pending {
    mad: Mad,
    purpose: Purpose,
    due: Instant,
    left: u32,
}

/// What the manager is doing.
#[derive(Debug)]
enum Phase {
    /// Nothing: the next look is due.
    Idle,
    /// Finding what there is.
    Discover(Box<Discovery>),
    /// Having switches let through what hosts may send from now on.
    Admit(Box<Plan>),
    /// Writing LIDs, partitions and routes.
    Configure(Box<Plan>),
    /// Taking ports to Armed.
    Arm(Box<Topology>),
    /// Taking ports to Active.
    Activate(Box<Topology>),
    /// Looking at the switches.
    Look,
}

/// The manager itself, without I/O.
#[derive(Debug)]
pub struct SubnetManager {
    config: SmConfig,
    state: SmState,
    phase: Phase,
    sa: Sa,
    /// How each end port is reached.
    paths: BTreeMap<PortAt, Path>,
    queue: VecDeque<Request>,
    pending: BTreeMap<u64, Pending>,
    out: VecDeque<(Lid, Mad)>,
    last_tid: u64,
    act_count: u32,
    /// When the next look or poll is due.
    next: Option<Instant>,
    /// Whether a whole sweep is due as soon as nothing else is going on.
    is_stale: bool,
    /// Whether something was not answered or refused since the last whole sweep began, and how many times in a row.
    is_partial: bool,
    partial: u32,
    /// Whether a switch said that it has changed, and that was not taken back.
    is_said: bool,
    /// Whether the ports are to be asked to register again.
    reregister: bool,
    rivals: Vec<Rival>,
    /// Whether a rival above us becomes master after this sweep.
    hands_over: bool,
    /// Our master, and the polls that it did not answer.
    master: Option<(Rival, u32)>,
    /// The ways through the subnet as it was configured last.
    routing: Option<Routing>,
    /// The blocks of multicast tables that were written, by switch.
    written: BTreeMap<(Guid, u16, u8), [u16; 32]>,
    /// Blocks that may be other than they should, at any switch.
    unsure: BTreeSet<u16>,
    counters: SmCounters,
}

impl SubnetManager {
    /// A manager that begins to look around with the first call of [`handle_timeout`](Self::handle_timeout).
    pub fn new(config: SmConfig) -> Self {
        Self {
            sa: Sa::new(config.sa.clone()),
            last_tid: config.last_tid,
            config,
            state: SmState::DISCOVERING,
            phase: Phase::Idle,
            paths: BTreeMap::new(),
            queue: VecDeque::new(),
            pending: BTreeMap::new(),
            out: VecDeque::new(),
            act_count: 0,
            next: None,
            is_stale: true,
            is_partial: false,
            partial: 0,
            is_said: false,
            reregister: true,
            rivals: Vec::new(),
            hands_over: false,
            master: None,
            routing: None,
            written: BTreeMap::new(),
            unsure: BTreeSet::new(),
            counters: SmCounters::default(),
        }
    }

    /// What it is at the moment.
    pub const fn state(&self) -> SmState {
        self.state
    }

    /// Whether it has configured the subnet and nothing is going on.
    pub fn is_settled(&self) -> bool {
        let idle = matches!(self.phase, Phase::Idle) && self.queue.is_empty() && self.pending.is_empty();
        idle && !self.is_stale && !self.is_partial
    }

    /// How it is set up now.
    pub const fn config(&self) -> &SmConfig {
        &self.config
    }

    /// Its subnet administration.
    pub const fn sa(&self) -> &Sa {
        &self.sa
    }

    /// Its subnet administration, to change how it behaves.
    pub const fn sa_mut(&mut self) -> &mut Sa {
        &mut self.sa
    }

    /// What has happened so far.
    pub const fn counters(&self) -> &SmCounters {
        &self.counters
    }

    /// A MAD that arrived at QP1 of the manager's port. Before it is master and has finished a sweep every request is answered
    /// with "busy".
    pub fn handle_sa(&mut self, now: Instant, from: Peer, mad: &Mad) {
        self.sa.handle_mad(now, from, mad);
        self.proceed(now);
    }

    /// A MAD that arrived at QP0 of the manager's port: an answer, a trap, another manager's question.
    pub fn handle_smp(&mut self, now: Instant, from: Lid, mad: &Mad) {
        let Ok(header) = MadHeader::parse(mad) else {
            self.counters.dropped += 1;
            return;
        };
        let is_of_class = matches!(header.class, MgmtClass::SUBN_DIRECTED_ROUTE | MgmtClass::SUBN_LID_ROUTED);
        match header.method {
            _ if !is_of_class => self.counters.dropped += 1,
            Method::TRAP => self.handle_trap(now, from, header, mad),
            method if method.is_response() => self.handle_answer(now, header, mad),
            _ if header.attribute == attribute::SM_INFO => self.handle_sm_info(from, header, mad),
            _ => self.counters.dropped += 1,
        }
        self.proceed(now);
    }

    fn handle_answer(&mut self, now: Instant, header: MadHeader, mad: &Mad) {
        let Some(pending) = self.pending.remove(&header.tid.0) else {
            self.counters.dropped += 1;
            return;
        };
        if smp::status(&header).0 != 0 {
            self.counters.refused += 1;
            self.failed(now, &pending.purpose);
            return;
        }
        self.answered(now, pending, smp::data(mad));
    }

    fn answered(&mut self, now: Instant, pending: Pending, data: &[u8]) {
        match pending.purpose {
            Purpose::Write | Purpose::Admit(_) | Purpose::GiveWay => {}
            Purpose::Look => self.looked(data),
            Purpose::Compare(at) => self.compared(at, data),
            Purpose::Watch(rival) => self.watched(rival, data),
            Purpose::Poll => self.polled(now, data),
            Purpose::HandOver(heir) => self.handed_over(now, heir),
            purpose => self.discovered(purpose, &pending.mad, data),
        }
    }

    fn handle_trap(&mut self, now: Instant, from: Lid, header: MadHeader, mad: &Mad) {
        /// A link changed, a port's capabilities changed.
        const CHANGES: [u16; 2] = [128, 144];
        if self.state != SmState::MASTER {
            // Its sender goes on until the master has heard it.
            self.counters.dropped += 1;
            return;
        }
        self.counters.traps += 1;
        self.out.push_back((from, smp::repress(mad, header)));
        let mut raw = [0; Notice::LEN]; // in a packet of this class there is no room for the issuer's GID
        raw[..smp::data(mad).len()].copy_from_slice(smp::data(mad));
        let Ok(notice) = Notice::parse(&raw) else { return };
        if notice.is_generic && CHANGES.contains(&notice.trap_or_device) {
            self.is_stale = true;
        }
        let about = self.sa.topology().at_lid(notice.issuer_lid).map(|at| self.sa.topology().gid(at));
        self.sa.report(now, &notice, about.unwrap_or_default());
    }

    /// Asks for a sweep through the whole subnet. A standby leaves that to its master.
    pub fn request_sweep(&mut self) {
        self.is_stale |= self.state != SmState::STANDBY;
    }

    /// The P_Keys of a port with this GUID from the next sweep on, which this asks for.
    pub fn set_p_keys(&mut self, guid: Guid, p_keys: Vec<PKey>) {
        self.config.p_keys.insert(guid, p_keys);
        self.request_sweep();
    }

    /// Writes the trees of groups whose members are known otherwise than by subnet administration. Ports that are not in the
    /// [topology](Sa::topology) are left out, and groups whose LID is none of a group.
    pub fn set_groups(&mut self, now: Instant, groups: &[GroupTree]) {
        self.plant(groups);
        self.proceed(now);
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.sa.handle_timeout(now);
        let due: Vec<u64> =
            self.pending.iter().filter(|(_, it)| it.due <= now).map(|(tid, _)| *tid).collect();
        for tid in due {
            let Some(mut pending) = self.pending.remove(&tid) else { continue };
            if pending.left > 0 {
                pending.left -= 1;
                pending.due = after(now, self.config.timeout);
                self.counters.sent += 1;
                self.out.push_back((smp::BY_ROUTE, pending.mad));
                self.pending.insert(tid, pending);
                continue;
            }
            self.counters.unanswered += 1;
            self.failed(now, &pending.purpose);
        }
        if self.next.is_some_and(|next| next <= now) {
            self.next = None;
            match self.state {
                SmState::STANDBY => self.poll_master(),
                SmState::MASTER if !matches!(self.phase, Phase::Idle) => {}
                SmState::MASTER if self.is_partial => self.is_stale = true,
                SmState::MASTER => self.look(),
                _ => {}
            }
        }
        self.proceed(now);
    }

    /// A request was not answered, or was refused.
    fn failed(&mut self, now: Instant, purpose: &Purpose) {
        match purpose {
            Purpose::Poll => self.poll_failed(now),
            Purpose::Look | Purpose::Compare(_) => self.is_stale |= self.state == SmState::MASTER,
            // A manager that does not answer is none.
            Purpose::Watch(rival) => self.set_rival(*rival, SmState::NOT_ACTIVE),
            Purpose::Manager | Purpose::HandOver(_) | Purpose::GiveWay => {}
            _ if self.state == SmState::STANDBY => {}
            _ => {
                if let (Purpose::Admit(at), Phase::Admit(plan)) = (purpose, &mut self.phase) {
                    plan.unsure.insert(*at);
                }
                self.is_partial = true;
                if matches!(self.phase, Phase::Idle | Phase::Look) {
                    let again = after(now, self.pause());
                    self.next = Some(self.next.map_or(again, |next| next.min(again)));
                }
            }
        }
    }

    /// How long after a sweep the next one begins that looks at everything, or only at the switches.
    fn pause(&self) -> Duration {
        match self.is_partial {
            true => self.config.again.saturating_mul(1 << self.partial.min(16)).min(self.config.sweep),
            false => self.config.sweep,
        }
    }

    /// The same after a look: who is to be master may be ready soon.
    fn pause_after_look(&self) -> Duration {
        if self.has_coming_heir() { self.config.again.min(self.config.sweep) } else { self.pause() }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout); `None` for never.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let pending = self.pending.values().map(|pending| pending.due);
        pending.chain(self.next).chain(self.sa.poll_timeout()).min()
    }

    /// The next MAD to send.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<SmMad> {
        let smp = self.out.pop_front().map(|(to, mad)| SmMad::Smp(to, mad));
        smp.or_else(|| self.sa.poll_transmit(now).map(SmMad::Sa))
    }

    /// Puts a request into the queue.
    fn ask(
        &mut self,
        method: Method,
        attribute: AttributeId,
        modifier: u32,
        path: &[u8],
        data: &[u8],
        purpose: Purpose,
    ) {
        let (path, data) = (path.to_vec(), data.to_vec());
        self.queue.push_back(Request { method, attribute, modifier, path, data, purpose });
    }

    /// Sends what the window lets through, and goes on to the next phase when one is done.
    fn proceed(&mut self, now: Instant) {
        loop {
            while self.pending.len() < self.config.window.max(1) {
                let Some(request) = self.queue.pop_front() else { break };
                self.send(now, request);
            }
            if !self.pending.is_empty() || !self.queue.is_empty() || !self.next_phase(now) {
                return;
            }
        }
    }

    fn send(&mut self, now: Instant, request: Request) {
        let Request { method, attribute, modifier, path, data, purpose } = request;
        self.last_tid += 1;
        let mad = smp::request(method, attribute, modifier, TransactionId(self.last_tid), &path, &data);
        let (due, left) = (after(now, self.config.timeout), self.config.retries);
        self.pending.insert(self.last_tid, Pending { mad, purpose, due, left });
        self.counters.sent += 1;
        self.out.push_back((smp::BY_ROUTE, mad));
    }

    /// What comes when everything that was asked is answered. Whether there is more to ask.
    fn next_phase(&mut self, now: Instant) -> bool {
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Idle | Phase::Look if self.state == SmState::STANDBY => return false,
            Phase::Idle | Phase::Look if self.is_stale => self.discover(),
            Phase::Idle => return self.plant_trees(),
            Phase::Look => self.next = Some(after(now, self.pause_after_look())),
            // What was not found may be there all the same, and would lose what it has registered.
            Phase::Discover(_) if self.is_partial && self.partial < LOOKS => {
                self.partial += 1;
                self.discover();
            }
            Phase::Discover(found) => {
                self.is_partial |= !Self::is_consistent(&found.topology);
                self.elect(now, *found);
            }
            Phase::Admit(plan) => self.carry_out(*plan),
            Phase::Configure(plan) => self.arm(*plan),
            Phase::Arm(topology) => self.activate(*topology),
            Phase::Activate(topology) => self.finish(now, *topology),
        }
        true
    }
}
