//! The wires: who reaches whom, packets under way, timers, in one order of time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use ibdev::PortTables;
use ibsa::record::PortState;
use ibwire::{Gid, Guid, Lid, Mtu, Rate};

use super::at_once::Orders;
use super::counters::FabricCounters;
use super::faults::FaultDice;
use super::frame::FrameError;
use super::management::Manager;
use super::managers::Absent;
use super::mishaps::Mishaps;
use super::node::{Change, Node, Smp};
use super::trace::{Fate, Passage, Trace};
use super::way::{self, Hop, Label, Way};
use crate::manager::{SaMode, SubnetManager};

/// A port of the subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PortId {
    /// The node's index: HCAs come first.
    pub node: usize,
    /// The port's number, from 1; 0 is a switch's own.
    pub port: u8,
}

/// Something that is due.
#[derive(Debug)]
pub(super) enum Event {
    /// A frame reaches a port of an HCA.
    Arrival { to: PortId, frame: Bytes },
    /// An HCA's timer.
    Timer { hca: usize },
    /// A port of an HCA was configured.
    Configured(Configured),
    /// Something happens by chance.
    Mishap,
}

/// What an HCA learns of one of its ports.
#[derive(Debug)]
pub(super) struct Configured {
    pub hca: usize,
    pub tables: PortTables,
    /// Whether its users are to register again.
    pub reregister: bool,
}

/// Whose timer it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// An HCA's engine.
    Hca(usize),
    /// A node's management agent.
    Agent(usize),
    /// The manager on a node.
    Manager(usize),
    /// What happens by chance.
    Mishaps,
}

/// Who does something that can be undone: the user. Mishaps have other numbers.
pub(super) const BY_HAND: u64 = 0;

/// A cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Link(pub PortId, pub PortId);

/// The whole state of a subnet but its HCAs' engines.
#[derive(Debug)]
pub(super) struct Fabric {
    pub nodes: Vec<Node>,
    pub removed: Vec<bool>,
    pub dice: FaultDice,
    pub mishaps: Mishaps,
    pub trace: Trace,
    pub counters: FabricCounters,
    /// Whether packets take their time on each link.
    pub timed: bool,
    /// Whether a manager configures the subnet.
    pub managed: bool,
    pub managers: BTreeMap<usize, Box<dyn Manager>>,
    /// Those that configure it at once if it has none, and where they are.
    pub operators: Vec<(PortId, SubnetManager)>,
    /// What all of them are told.
    pub orders: Orders,
    /// The LIDs that ports were given without managers.
    pub lids: BTreeMap<Guid, Lid>,
    /// How subnet administration behaves.
    pub sa_mode: SaMode,
    /// How many managers were started by hand.
    pub started: u64,
    /// The managers that start again later.
    pub absent: BTreeMap<usize, Absent>,
    /// The other end of each port's cable, by node and port.
    peers: Vec<Vec<Option<PortId>>>,
    /// Ports that were taken down, and by whom: [`BY_HAND`], or by which mishap.
    unplugged: BTreeSet<(PortId, u64)>,
    /// Nodes that were taken out, and by whom.
    pub held_out: BTreeSet<(usize, u64)>,
    /// Until when each port sends what it has.
    pub busy: Vec<Vec<Option<Instant>>>,
    /// Which ports are connected with each other at all, by node and port.
    subnets: Vec<Vec<usize>>,
    /// The ports with a GID.
    pub gids: BTreeMap<Gid, Vec<PortId>>,
    pub gids_are_old: bool,
    /// The LID of each multicast group of a subnet without a manager.
    pub mlids: BTreeMap<(usize, Gid), Lid>,
    /// The ports that take what is sent to a group's LID, each with the addresses for which it does.
    pub members: BTreeMap<(usize, Lid), BTreeSet<(PortId, Gid)>>,
    /// Pairs of groups that do not reach each other, and who made each.
    cuts: Vec<(u64, BTreeSet<usize>, BTreeSet<usize>)>,
    flying: BTreeMap<(Instant, u64), Flight>,
    flights: u64,
    /// How many packets are under way to each port.
    heading_to: BTreeMap<PortId, usize>,
    /// When the last packet between two ports arrives: those behind it do not overtake it by themselves.
    last_arrival: BTreeMap<(PortId, PortId), Instant>,
    timers: BTreeSet<(Instant, Owner)>,
    armed: BTreeMap<Owner, Instant>,
    /// Ports of HCAs that have changed, and whether their users are to register again.
    configured: BTreeMap<(usize, u8), bool>,
    /// Ports whose links are to be trained anew.
    retrain: Vec<PortId>,
}

/// What is under way.
#[derive(Debug, Clone)]
pub(super) enum Cargo {
    /// A packet, as its sender built it.
    Frame,
    /// A subnet management packet, as it arrives, and the port by which it came in.
    Smp { smp: Box<Smp>, entered: u8, slid: Lid },
}

#[derive(Debug)]
struct Flight {
    from: PortId,
    to: PortId,
    hops: Arc<[Hop]>,
    frame: Bytes,
    cargo: Cargo,
    number: u64,
}

/// Most packets under way to one port.
const MOST_FLYING: usize = 1 << 16;

impl Fabric {
    pub(super) fn new(nodes: Vec<Node>, links: &[Link], seed: u64, start: Instant) -> Self {
        let by_port = |node: &Node| usize::from(node.port_count()) + 1;
        let mut fabric = Self {
            removed: vec![false; nodes.len()],
            peers: nodes.iter().map(|node| vec![None; by_port(node)]).collect(),
            busy: nodes.iter().map(|node| vec![None; by_port(node)]).collect(),
            subnets: nodes.iter().map(|node| vec![usize::MAX; by_port(node)]).collect(),
            nodes,
            dice: FaultDice::new(seed),
            mishaps: Mishaps::new(seed),
            trace: Trace::new(start),
            counters: FabricCounters::default(),
            timed: false,
            managed: false,
            managers: BTreeMap::new(),
            operators: Vec::new(),
            orders: Orders::default(),
            lids: BTreeMap::new(),
            sa_mode: SaMode::Normal,
            started: 0,
            absent: BTreeMap::new(),
            held_out: BTreeSet::new(),
            unplugged: BTreeSet::new(),
            gids: BTreeMap::new(),
            gids_are_old: true,
            mlids: BTreeMap::new(),
            members: BTreeMap::new(),
            cuts: Vec::new(),
            flying: BTreeMap::new(),
            flights: 0,
            heading_to: BTreeMap::new(),
            last_arrival: BTreeMap::new(),
            timers: BTreeSet::new(),
            armed: BTreeMap::new(),
            configured: BTreeMap::new(),
            retrain: Vec::new(),
        };
        for Link(a, b) in links {
            fabric.peers[a.node][usize::from(a.port)] = Some(*b);
            fabric.peers[b.node][usize::from(b.port)] = Some(*a);
        }
        fabric.find_subnets();
        for Link(a, b) in links {
            fabric.refresh_link(start, *a);
            fabric.refresh_link(start, *b);
        }
        fabric
    }

    /// Gives the ports that are connected with each other the same number.
    fn find_subnets(&mut self) {
        let mut next = 0;
        for node in 0..self.nodes.len() {
            for port in self.nodes[node].numbers() {
                if self.subnets[node][usize::from(port)] == usize::MAX {
                    let mut found = vec![PortId { node, port }];
                    while let Some(at) = found.pop() {
                        let number = &mut self.subnets[at.node][usize::from(at.port)];
                        if std::mem::replace(number, next) == next {
                            continue;
                        }
                        found.extend(self.peer(at));
                        if self.nodes[at.node].is_switch() {
                            let all = self.nodes[at.node].numbers();
                            found.extend(all.map(|port| PortId { node: at.node, port }));
                        }
                    }
                    next += 1;
                }
            }
        }
    }

    pub(super) fn subnet_of(&self, id: PortId) -> usize {
        self.subnets[id.node][usize::from(id.port)]
    }

    /// The other end of a port's cable.
    pub(super) fn peer(&self, id: PortId) -> Option<PortId> {
        self.peers[id.node].get(usize::from(id.port)).copied().flatten()
    }

    /// Takes a frame from a port of an HCA: to the port that has the LID, or a copy to each member of a group.
    pub(super) fn send(&mut self, now: Instant, from: PortId, frame: Bytes) {
        let Some(label) = Label::of(&frame) else { return };
        for way in self.ways(now, from, label) {
            if let (Some(Fate::PKey), Some(at)) = (way.stopped, way.to)
                && let Some((p_key, offender)) = way::offender(&frame)
            {
                self.nodes[at.node].refuse_p_key(now, at.port, p_key, offender);
                self.changed(at.node);
            }
            self.send_on(now, from, way, frame.clone(), Cargo::Frame);
        }
    }

    /// Decides the fate of a copy.
    pub(super) fn send_on(&mut self, now: Instant, from: PortId, way: Way, frame: Bytes, cargo: Cargo) {
        self.counters.sent += 1;
        let fate = way.stopped.or_else(|| way.to.and_then(|to| self.impassable(from, to)));
        if let Some(fate) = fate {
            self.stop(now, from, &way, frame, fate);
            return;
        }
        if self.dice.loses() {
            self.stop(now, from, &way, frame, Fate::Lost);
            return;
        }
        let twice = self.dice.duplicates();
        let frame = match self.dice.corrupts(frame.len() * 8) {
            // The CRCs of a management packet are not looked at: it is lost.
            Some(_) if matches!(cargo, Cargo::Smp { .. }) => {
                self.counters.corrupted += 1;
                self.stop(now, from, &way, frame, Fate::Damaged);
                return;
            }
            Some(bit) => {
                self.counters.corrupted += 1;
                let mut frame = frame.to_vec();
                frame[bit / 8] ^= 1 << (bit % 8);
                frame.into()
            }
            None => frame,
        };
        self.fly(now, from, &way, frame.clone(), cargo.clone(), false);
        if twice {
            self.counters.duplicated += 1;
            self.fly(now, from, &way, frame, cargo, true);
        }
    }

    /// Why nothing passes between two ports at this moment, wherever the way leads.
    fn impassable(&self, from: PortId, to: PortId) -> Option<Fate> {
        if self.removed[to.node] {
            return Some(Fate::Removed);
        }
        let cut = self.cuts.iter().any(|(_, a, b)| {
            a.contains(&from.node) && b.contains(&to.node) || b.contains(&from.node) && a.contains(&to.node)
        });
        cut.then_some(Fate::Partitioned)
    }

    fn stop(&mut self, now: Instant, from: PortId, way: &Way, frame: Bytes, fate: Fate) {
        self.counters.count(fate);
        let sent = now.saturating_duration_since(self.trace.start);
        self.trace.push(Passage {
            sent,
            from,
            to: way.to,
            hops: way.hops.clone(),
            duplicate: false,
            frame,
            fate,
        });
    }

    fn fly(&mut self, now: Instant, from: PortId, way: &Way, frame: Bytes, cargo: Cargo, duplicate: bool) {
        let Some(to) = way.to else { return };
        let travel = self.dice.travel();
        let heading_to = self.heading_to.entry(to).or_default();
        if *heading_to >= MOST_FLYING {
            self.stop(now, from, way, frame, Fate::Overrun);
            return;
        }
        *heading_to += 1;
        let at = way.at + travel.delay;
        let in_order = self.last_arrival.get(&(from, to)).map_or(at, |last| at.max(*last));
        let is_smp = matches!(cargo, Cargo::Smp { .. });
        let arrival = match travel.held {
            Some(held) if !is_smp => in_order + held,
            held => {
                // The VL of management packets keeps their order: those behind one that is held back wait with it.
                let in_order = in_order + held.unwrap_or_default();
                // What is there already is overtaken by nothing.
                if in_order > now {
                    self.last_arrival.insert((from, to), in_order);
                }
                in_order
            }
        };
        let sent = now.saturating_duration_since(self.trace.start);
        let (hops, fate) = (way.hops.clone(), Fate::Flying);
        let passage =
            Passage { sent, from, to: Some(to), hops: hops.clone(), duplicate, frame: frame.clone(), fate };
        let number = self.trace.push(passage);
        self.flights += 1;
        self.flying.insert((arrival, self.flights), Flight { from, to, hops, frame, cargo, number });
    }

    /// Sees to it that a timer comes up at `at`, or never.
    pub(super) fn set_timer(&mut self, owner: Owner, at: Option<Instant>) {
        let old = match at {
            Some(at) => self.armed.insert(owner, at),
            None => self.armed.remove(&owner),
        };
        if old == at {
            return;
        }
        if let Some(old) = old {
            self.timers.remove(&(old, owner));
        }
        if let Some(at) = at {
            self.timers.insert((at, owner));
        }
    }

    /// When the next event is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let arrival = self.flying.first_key_value().map(|((at, _), _)| *at);
        let timer = self.timers.first().map(|(at, _)| *at);
        let waiting = (!self.configured.is_empty()).then_some(self.trace.start);
        [arrival, timer, waiting].into_iter().flatten().min()
    }

    /// Takes the next event that is due, with its time. Arrivals come before timers of the same moment.
    pub(super) fn next_event(&mut self, now: Instant) -> Option<(Instant, Event)> {
        loop {
            if let Some(configured) = self.take_configured() {
                return Some((now, Event::Configured(configured)));
            }
            let due = self.next_due().filter(|due| *due <= now)?;
            match self.flying.first_entry().filter(|first| first.key().0 == due) {
                Some(first) => {
                    let flight = first.remove();
                    if let Some(frame) = self.land(due, &flight) {
                        return Some((due, Event::Arrival { to: flight.to, frame }));
                    }
                }
                None => {
                    let (_, owner) = self.timers.pop_first()?;
                    self.armed.remove(&owner);
                    match owner {
                        Owner::Hca(hca) => return Some((due, Event::Timer { hca })),
                        Owner::Agent(node) => self.agent_timeout(due, node),
                        Owner::Manager(node) => self.manager_timeout(due, node),
                        Owner::Mishaps => return Some((due, Event::Mishap)),
                    }
                }
            }
        }
    }

    /// Lets a packet arrive; what an HCA's engine takes is returned.
    fn land(&mut self, due: Instant, flight: &Flight) -> Option<Bytes> {
        let Flight { from, to, hops, frame, cargo, number } = flight;
        self.heading_to.entry(*to).and_modify(|n| *n -= 1);
        if self.flying.is_empty() {
            self.last_arrival.clear();
        }
        let closed = (!self.is_open(hops)).then_some(Fate::LinkDown);
        let fate = self.impassable(*from, *to).or(closed);
        let fate = fate.unwrap_or_else(|| Fate::Delivered(due.saturating_duration_since(self.trace.start)));
        self.counters.count(fate);
        self.trace.settle(*number, fate);
        let Fate::Delivered(_) = fate else { return None };
        match cargo {
            Cargo::Frame if self.nodes[to.node].is_switch() => {
                self.deliver_to_switch(due, to.node, frame);
                None
            }
            Cargo::Frame => Some(match hops.last() {
                Some(hop) if hop.vl != 0 => super::frame::on_vl(frame, hop.vl),
                _ => frame.clone(),
            }),
            Cargo::Smp { smp, entered, slid } => {
                self.deliver_smp(due, to.node, *entered, *slid, **smp);
                None
            }
        }
    }

    /// Packets under way.
    pub(super) fn under_way(&self) -> usize {
        self.flying.len()
    }

    /// Counts a frame that its receiver refused.
    pub(super) fn count_damaged(&mut self, to: PortId, error: FrameError) {
        self.counters.damaged += 1;
        tracing::debug!(to = %self.name(to), %error, "frame dropped");
    }

    /// No packet passes between the two groups from now on, in either direction.
    pub(super) fn partition(&mut self, by: u64, a: BTreeSet<usize>, b: BTreeSet<usize>) {
        self.cuts.push((by, a, b));
    }

    /// Takes the partition of a mishap back.
    pub(super) fn heal_one(&mut self, by: u64) {
        self.cuts.retain(|(other, ..)| *other != by);
    }

    /// Takes all partitions back.
    pub(super) fn heal(&mut self) {
        self.cuts.clear();
    }

    /// Plugs a port's cable in or pulls it. The user plugs it in whoever has pulled it, a mishap only if nobody else has. A
    /// mishap takes a cable, which has two ends, the user a port: at the other end that is as it was.
    pub(super) fn set_plugged(&mut self, now: Instant, id: PortId, by: u64, plugged: bool) {
        let peer = self.peer(id);
        match (plugged, by) {
            (false, _) => _ = self.unplugged.insert((id, by)),
            (true, BY_HAND) => {
                let holds = |other, by| other != id && (Some(other) != peer || by == BY_HAND);
                self.unplugged.retain(|(other, by)| holds(*other, *by));
            }
            (true, _) => _ = self.unplugged.remove(&(id, by)),
        }
        self.refresh_link(now, id);
    }

    /// A link is up if both its ends are there, plugged in and not switched off.
    pub(super) fn refresh_link(&mut self, now: Instant, id: PortId) {
        let Some(peer) = self.peer(id) else { return };
        let is_on = |id: PortId| {
            let port = self.nodes[id.node].port(id.port);
            !self.removed[id.node]
                && self.unplugged.range((id, u64::MIN)..=(id, u64::MAX)).next().is_none()
                && port.is_some_and(|port| !port.is_disabled())
        };
        let up = is_on(id) && is_on(peer);
        for end in [id, peer] {
            let node = &mut self.nodes[end.node];
            let was_up = node.port(end.port).is_some_and(|port| port.info.port_state != PortState::DOWN);
            if was_up != up {
                node.set_link(now, end.port, up);
                self.changed(end.node);
            }
        }
    }

    /// Trains the links of ports that were told to: down, and up again unless they are switched off.
    pub(super) fn retrain(&mut self, now: Instant) {
        for id in std::mem::take(&mut self.retrain) {
            for end in [Some(id), self.peer(id)].into_iter().flatten() {
                self.nodes[end.node].set_link(now, end.port, false);
                self.changed(end.node);
            }
            self.refresh_link(now, id);
        }
    }

    /// Sees to what has changed at a node.
    pub(super) fn changed(&mut self, node: usize) {
        for change in self.nodes[node].take_changes() {
            match change {
                Change::Port(number) => {
                    self.gids_are_old = true;
                    self.report(node, number, false);
                }
                Change::Reregister(number) => self.report(node, number, true),
                Change::Retrain(port) => self.retrain.push(PortId { node, port }),
                Change::Trap => self.set_timer(Owner::Agent(node), self.nodes[node].poll_timeout()),
            }
        }
    }

    fn report(&mut self, hca: usize, number: u8, reregister: bool) {
        if self.nodes[hca].is_switch() {
            return;
        }
        *self.configured.entry((hca, number)).or_default() |= reregister;
    }

    /// What HCAs are to learn.
    pub(super) fn take_configured(&mut self) -> Option<Configured> {
        loop {
            let ((hca, number), reregister) = self.configured.pop_first()?;
            if let Some(port) = self.nodes[hca].port(number) {
                return Some(Configured { hca, tables: port.tables(number), reregister });
            }
        }
    }

    /// MTU of every port, unless its link has another one.
    pub(super) const MTU: Mtu = Mtu::B4096;
    /// Rate of every port, unless its link has another one.
    pub(super) const RATE: Rate = Rate::GBPS_100;
    /// A port's name: the node's, and the number if there are several.
    pub(super) fn name(&self, id: PortId) -> String {
        let node = &self.nodes[id.node];
        if node.port_count() == 1 || id.port == 0 {
            node.name.clone()
        } else {
            format!("{}/{}", node.name, id.port)
        }
    }
}

#[cfg(test)]
mod tests;
