//! The wires: who reaches whom, packets under way, timers of the HCAs, in one order of time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use bytes::Bytes;
use ibwire::{Gid, Guid, Lid, Mtu, PacketLifeTime, PathRecord, Rate};

use super::faults::FaultDice;
use super::frame::FrameError;
use super::trace::{Fate, Passage, Trace};

/// A port of an HCA of the subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PortId {
    /// The HCA's index.
    pub hca: usize,
    /// The port's number, from 1.
    pub port: u8,
}

/// An HCA as the wires see it.
#[derive(Debug)]
pub(super) struct Node {
    pub name: String,
    pub guid: Guid,
    /// Port 1 first.
    pub ports: Vec<Plug>,
    pub removed: bool,
}

/// Where a port is plugged in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plug {
    /// Ports reach ports of the same rail only.
    pub rail: usize,
    pub lid: Lid,
    pub gid: Gid,
    pub up: bool,
}

/// Something that is due.
#[derive(Debug)]
pub(super) enum Event {
    /// A frame reaches a port.
    Arrival { to: PortId, frame: Bytes },
    /// An HCA's timer.
    Timer { hca: usize },
}

/// What the wires have counted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FabricCounters {
    pub sent: u64,
    pub delivered: u64,
    pub duplicated: u64,
    pub lost: u64,
    pub partitioned: u64,
    pub link_down: u64,
    pub no_route: u64,
    pub removed: u64,
    pub overrun: u64,
    pub corrupted: u64,
    pub damaged: u64,
}

/// The whole state of a subnet but its HCAs.
#[derive(Debug)]
pub(super) struct Fabric {
    pub nodes: Vec<Node>,
    pub dice: FaultDice,
    pub trace: Trace,
    pub counters: FabricCounters,
    /// Where a LID of a rail is.
    routes: BTreeMap<(usize, Lid), PortId>,
    /// The LID of each multicast group of a rail, and the members of it.
    mlids: BTreeMap<(usize, Gid), Lid>,
    members: BTreeMap<(usize, Lid), BTreeSet<PortId>>,
    /// Pairs of groups that do not reach each other.
    cuts: Vec<(BTreeSet<usize>, BTreeSet<usize>)>,
    flying: BTreeMap<(Instant, u64), Flight>,
    flights: u64,
    /// How many packets are under way to each port.
    heading_to: BTreeMap<PortId, usize>,
    /// When the last packet between two ports arrives: those behind it do not overtake it by themselves.
    last_arrival: BTreeMap<(PortId, PortId), Instant>,
    timers: BTreeSet<(Instant, usize)>,
    armed: Vec<Option<Instant>>,
}

#[derive(Debug)]
struct Flight {
    from: PortId,
    to: PortId,
    frame: Bytes,
    number: u64,
}

/// Most packets under way to one port.
const MOST_FLYING: usize = 1 << 16;

impl Fabric {
    pub(super) fn new(nodes: Vec<Node>, seed: u64, start: Instant) -> Self {
        let routes = ports_of(&nodes).map(|(id, plug)| ((plug.rail, plug.lid), id)).collect();
        Self {
            armed: vec![None; nodes.len()],
            nodes,
            routes,
            dice: FaultDice::new(seed),
            trace: Trace::new(start),
            counters: FabricCounters::default(),
            mlids: BTreeMap::new(),
            members: BTreeMap::new(),
            cuts: Vec::new(),
            flying: BTreeMap::new(),
            flights: 0,
            heading_to: BTreeMap::new(),
            last_arrival: BTreeMap::new(),
            timers: BTreeSet::new(),
        }
    }

    /// Takes a frame from a port: to the port that has the LID, or a copy to each member of a group.
    pub(super) fn send(&mut self, now: Instant, from: PortId, dlid: Lid, frame: Bytes) {
        let members = self.members.get(&(self.plug(from).rail, dlid)).filter(|members| !members.is_empty());
        match members.cloned() {
            Some(members) => {
                members.into_iter().for_each(|to| self.send_to(now, from, Some(to), frame.clone()));
            }
            None => self.send_to(now, from, self.route(from, dlid), frame),
        }
    }

    /// Decides the fate of a frame.
    fn send_to(&mut self, now: Instant, from: PortId, to: Option<PortId>, frame: Bytes) {
        self.counters.sent += 1;
        if let Err(fate) = self.passable(from, to) {
            self.stop(now, from, to, frame, fate);
            return;
        }
        let Some(to) = to else { return };
        if self.dice.loses() {
            self.stop(now, from, Some(to), frame, Fate::Lost);
            return;
        }
        let twice = self.dice.duplicates();
        let frame = match self.dice.corrupts(frame.len() * 8) {
            Some(bit) => {
                self.counters.corrupted += 1;
                let mut frame = frame.to_vec();
                frame[bit / 8] ^= 1 << (bit % 8);
                frame.into()
            }
            None => frame,
        };
        self.fly(now, from, to, frame.clone(), false);
        if twice {
            self.counters.duplicated += 1;
            self.fly(now, from, to, frame, true);
        }
    }

    /// Which port has a LID, seen from another port.
    fn route(&self, from: PortId, dlid: Lid) -> Option<PortId> {
        self.routes.get(&(self.plug(from).rail, dlid)).copied()
    }

    fn plug(&self, id: PortId) -> &Plug {
        &self.nodes[id.hca].ports[usize::from(id.port) - 1]
    }

    /// Whether packets pass between two ports at this moment.
    fn passable(&self, from: PortId, to: Option<PortId>) -> Result<(), Fate> {
        let to = to.ok_or(Fate::NoRoute)?;
        if self.nodes[to.hca].removed {
            return Err(Fate::Removed);
        }
        if !self.plug(from).up || !self.plug(to).up {
            return Err(Fate::LinkDown);
        }
        let cut = self.cuts.iter().any(|(a, b)| {
            a.contains(&from.hca) && b.contains(&to.hca) || b.contains(&from.hca) && a.contains(&to.hca)
        });
        if cut { Err(Fate::Partitioned) } else { Ok(()) }
    }

    fn stop(&mut self, now: Instant, from: PortId, to: Option<PortId>, frame: Bytes, fate: Fate) {
        self.count(fate);
        let sent = now.saturating_duration_since(self.trace.start);
        self.trace.push(Passage { sent, from, to, duplicate: false, frame, fate });
    }

    fn count(&mut self, fate: Fate) {
        let counters = &mut self.counters;
        *match fate {
            Fate::Flying => return,
            Fate::Delivered(_) => &mut counters.delivered,
            Fate::Lost => &mut counters.lost,
            Fate::Partitioned => &mut counters.partitioned,
            Fate::LinkDown => &mut counters.link_down,
            Fate::NoRoute => &mut counters.no_route,
            Fate::Removed => &mut counters.removed,
            Fate::Overrun => &mut counters.overrun,
        } += 1;
    }

    fn fly(&mut self, now: Instant, from: PortId, to: PortId, frame: Bytes, duplicate: bool) {
        let travel = self.dice.travel();
        let heading_to = self.heading_to.entry(to).or_default();
        if *heading_to >= MOST_FLYING {
            self.stop(now, from, Some(to), frame, Fate::Overrun);
            return;
        }
        *heading_to += 1;
        let last = self.last_arrival.entry((from, to)).or_insert(now);
        let in_order = (now + travel.delay).max(*last);
        let arrival = match travel.held {
            Some(held) => in_order + held,
            None => {
                *last = in_order;
                in_order
            }
        };
        let sent = now.saturating_duration_since(self.trace.start);
        let passage =
            Passage { sent, from, to: Some(to), duplicate, frame: frame.clone(), fate: Fate::Flying };
        let number = self.trace.push(passage);
        self.flights += 1;
        self.flying.insert((arrival, self.flights), Flight { from, to, frame, number });
    }

    /// Sees to it that the HCA's timer comes up at `at`, or never.
    pub(super) fn set_timer(&mut self, hca: usize, at: Option<Instant>) {
        if self.armed[hca] == at {
            return;
        }
        if let Some(old) = self.armed[hca].take() {
            self.timers.remove(&(old, hca));
        }
        if let Some(at) = at {
            self.timers.insert((at, hca));
            self.armed[hca] = Some(at);
        }
    }

    /// When the next event is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let arrival = self.flying.first_key_value().map(|((at, _), _)| *at);
        let timer = self.timers.first().map(|(at, _)| *at);
        match (arrival, timer) {
            (Some(arrival), Some(timer)) => Some(arrival.min(timer)),
            (arrival, timer) => arrival.or(timer),
        }
    }

    /// Takes the next event that is due, with its time. Arrivals come before timers of the same moment.
    pub(super) fn next_event(&mut self, now: Instant) -> Option<(Instant, Event)> {
        loop {
            let due = self.next_due().filter(|due| *due <= now)?;
            match self.flying.first_entry().filter(|first| first.key().0 == due) {
                Some(first) => {
                    let Flight { from, to, frame, number } = first.remove();
                    self.heading_to.entry(to).and_modify(|n| *n -= 1);
                    let fate = match self.passable(from, Some(to)) {
                        Ok(()) => Fate::Delivered(due.saturating_duration_since(self.trace.start)),
                        Err(fate) => fate,
                    };
                    self.count(fate);
                    self.trace.settle(number, fate);
                    if let Fate::Delivered(_) = fate {
                        return Some((due, Event::Arrival { to, frame }));
                    }
                }
                None => {
                    let (_, hca) = self.timers.pop_first()?;
                    self.armed[hca] = None;
                    return Some((due, Event::Timer { hca }));
                }
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
    pub(super) fn partition(&mut self, a: BTreeSet<usize>, b: BTreeSet<usize>) {
        self.cuts.push((a, b));
    }

    /// Takes all partitions back.
    pub(super) fn heal(&mut self) {
        self.cuts.clear();
    }

    /// Whether that is a change.
    pub(super) fn set_up(&mut self, id: PortId, up: bool) -> bool {
        let plug = &mut self.nodes[id.hca].ports[usize::from(id.port) - 1];
        std::mem::replace(&mut plug.up, up) != up
    }

    /// Gives a port another GID, or says why not.
    pub(super) fn set_gid(&mut self, id: PortId, gid: Gid) -> Result<(), &'static str> {
        if ports_of(&self.nodes).any(|(other, plug)| other != id && plug.gid == gid) {
            return Err("another port of the subnet has that GID");
        }
        let index = usize::from(id.port).checked_sub(1);
        let plug = index.and_then(|index| self.nodes[id.hca].ports.get_mut(index));
        plug.ok_or("the HCA has no such port")?.gid = gid;
        Ok(())
    }

    /// Unplugs an HCA for good.
    pub(super) fn remove(&mut self, hca: usize) {
        self.nodes[hca].removed = true;
        self.set_timer(hca, None);
    }

    /// The path from a port to a GID, if it is on the same rail. Whether packets pass at the moment does not matter.
    pub(super) fn path(&mut self, from: PortId, dgid: Gid) -> Option<PathRecord> {
        let source = *self.nodes[from.hca].ports.get(usize::from(from.port).checked_sub(1)?)?;
        if dgid.is_multicast() {
            let dlid = self.mlid(source.rail, dgid)?;
            let record = PathRecord::exact(source.gid, dgid, Self::MTU, Self::RATE, Self::LIFE_TIME);
            // Packets to groups always have a GRH.
            return Some(PathRecord { slid: source.lid, dlid, hop_limit: Self::GROUP_HOPS, ..record });
        }
        let (_, target) =
            ports_of(&self.nodes).find(|(_, plug)| plug.gid == dgid && plug.rail == source.rail)?;
        let record = PathRecord::exact(source.gid, dgid, Self::MTU, Self::RATE, Self::LIFE_TIME);
        Some(PathRecord { slid: source.lid, dlid: target.lid, ..record })
    }

    /// The LID of a group, made with the first who asks.
    fn mlid(&mut self, rail: usize, mgid: Gid) -> Option<Lid> {
        let next = u16::try_from(self.mlids.len()).ok().and_then(|n| Self::FIRST_MLID.checked_add(n));
        match self.mlids.get(&(rail, mgid)) {
            Some(mlid) => Some(*mlid),
            None => {
                let mlid = Lid(next.filter(|mlid| *mlid <= Self::LAST_MLID)?);
                self.mlids.insert((rail, mgid), mlid);
                Some(mlid)
            }
        }
    }

    /// The port gets a copy of what is sent to the group from now on. `None` if there are no LIDs left for groups.
    pub(super) fn join(&mut self, id: PortId, mgid: Gid) -> Option<()> {
        let rail = self.plug(id).rail;
        let mlid = self.mlid(rail, mgid)?;
        self.members.entry((rail, mlid)).or_default().insert(id);
        Some(())
    }

    /// No more.
    pub(super) fn leave(&mut self, id: PortId, mgid: Gid) {
        let rail = self.plug(id).rail;
        if let Some(mlid) = self.mlids.get(&(rail, mgid))
            && let Some(members) = self.members.get_mut(&(rail, *mlid))
        {
            members.remove(&id);
        }
    }

    /// LIDs of multicast groups.
    const FIRST_MLID: u16 = 0xc000;
    const LAST_MLID: u16 = 0xfffe;
    /// Hop limit of packets to groups.
    const GROUP_HOPS: u8 = 64;

    /// MTU of every port.
    pub(super) const MTU: Mtu = Mtu::B4096;
    /// Rate of every port.
    pub(super) const RATE: Rate = Rate::GBPS_100;
    /// 268 ms, so that packets that a fault holds back are not taken for lost.
    const LIFE_TIME: PacketLifeTime = PacketLifeTime::truncate(16);

    /// A port's name: the HCA's, and the number if there are several.
    pub(super) fn name(&self, id: PortId) -> String {
        let node = &self.nodes[id.hca];
        if node.ports.len() == 1 { node.name.clone() } else { format!("{}/{}", node.name, id.port) }
    }
}

/// All ports of all nodes.
fn ports_of(nodes: &[Node]) -> impl Iterator<Item = (PortId, &Plug)> {
    nodes.iter().enumerate().flat_map(|(hca, node)| {
        node.ports.iter().zip(1..).map(move |(plug, port)| (PortId { hca, port }, plug))
    })
}

impl FabricCounters {
    /// All of them by name.
    pub(super) fn named(&self) -> [(&'static str, u64); 11] {
        [
            ("sent", self.sent),
            ("delivered", self.delivered),
            ("duplicated", self.duplicated),
            ("lost", self.lost),
            ("corrupted", self.corrupted),
            ("drop_damaged", self.damaged),
            ("drop_partitioned", self.partitioned),
            ("drop_link_down", self.link_down),
            ("drop_no_route", self.no_route),
            ("drop_removed", self.removed),
            ("drop_overrun", self.overrun),
        ]
    }
}

#[cfg(test)]
mod tests;
