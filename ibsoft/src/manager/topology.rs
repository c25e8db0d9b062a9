//! What a subnet consists of: nodes, ports, links, LIDs, tables. The database that a subnet manager fills and that subnet
//! administration answers from.

use std::collections::{BTreeMap, BTreeSet};

use ibsa::record::{NodeInfo, NodeType, PortCapabilities, PortInfo, PortState, SwitchInfo, Text, VlWeight};
use ibwire::{Gid, Guid, Lid, PKey, Rate};

/// A node by its number in [`Topology::nodes`].
pub type NodeId = usize;

/// A port: its node and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortAt {
    /// The node.
    pub node: NodeId,
    /// Its port; 0 is a switch's own.
    pub port: u8,
}

/// A node and all that is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// NodeInfo as it is the same from every port; port GUID and local port are the ports'.
    pub info: NodeInfo,
    /// What it is called.
    pub description: Text<64>,
    /// Its ports by number; a switch has port 0.
    pub ports: BTreeMap<u8, Port>,
    /// What only switches have.
    pub switch: Option<Switch>,
}

/// A port and its tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Its state, LID and capabilities.
    pub info: PortInfo,
    /// Its GUIDs: first its own, then aliases.
    pub guids: Vec<Guid>,
    /// Its partitions.
    pub p_keys: Vec<PKey>,
    /// The VL of each SL. One table for all ports of entry.
    pub vls: [u8; 16],
    /// Its arbitration tables: low priority first and second half, high priority first and second half.
    pub arbitration: [[VlWeight; 32]; 4],
    /// What it is plugged to.
    pub peer: Option<PortAt>,
}

/// What only switches have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Switch {
    /// What it can do.
    pub info: SwitchInfo,
    /// The port towards each LID; 255 is no way. LIDs behind its end have none.
    pub linear: Vec<u8>,
    /// The ports of each multicast LID.
    pub multicast: BTreeMap<Lid, BTreeSet<u8>>,
}

impl Switch {
    /// No way in a linear forwarding table.
    pub const NO_PORT: u8 = 255;

    /// The port towards a LID.
    pub fn route(&self, lid: Lid) -> Option<u8> {
        self.linear.get(usize::from(lid.0)).copied().filter(|port| *port != Self::NO_PORT)
    }

    /// Sets the port towards a LID.
    pub fn set_route(&mut self, lid: Lid, port: u8) {
        let at = usize::from(lid.0);
        if self.linear.len() <= at {
            self.linear.resize(at + 1, Self::NO_PORT);
        }
        self.linear[at] = port;
    }
}

impl Port {
    /// A port with this GUID in the default partition.
    pub fn new(guid: Guid, info: PortInfo) -> Self {
        let (guids, p_keys, arbitration) = (vec![guid], vec![PKey::DEFAULT], Default::default());
        Self { info, guids, p_keys, vls: [0; 16], arbitration, peer: None }
    }

    /// Its own GUID.
    pub fn guid(&self) -> Guid {
        self.guids.first().copied().unwrap_or_default()
    }

    /// How many LIDs it has.
    pub const fn lids(&self) -> u16 {
        1 << self.info.lmc
    }

    /// Whether a link is up here.
    pub fn is_up(&self) -> bool {
        self.info.port_state > PortState::DOWN
    }
}

impl Node {
    /// Whether it is a switch.
    pub fn is_switch(&self) -> bool {
        self.info.node_type == NodeType::SWITCH
    }

    /// Whether it is a switch whose SwitchInfo says where its multicast table ends.
    pub fn has_multicast_top(&self) -> bool {
        let own = self.ports.get(&0).filter(|_| self.is_switch());
        own.is_some_and(|port| port.info.capability_mask.contains(PortCapabilities::MULTICAST_FDB_TOP))
    }

    /// The ports that have a LID of their own: port 0 of a switch, the ports of others that have a link.
    pub fn end_ports(&self) -> impl Iterator<Item = (u8, &Port)> {
        let is_switch = self.is_switch();
        self.ports
            .iter()
            .filter(move |(number, port)| if is_switch { **number == 0 } else { port.peer.is_some() })
            .map(|(number, port)| (*number, port))
    }
}

/// A whole subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// The nodes, in the order in which they were found.
    pub nodes: Vec<Node>,
    /// Subnet prefix of its GIDs.
    pub prefix: u64,
    by_lid: Vec<Option<PortAt>>,
    by_guid: BTreeMap<Guid, PortAt>,
}

impl Topology {
    /// The prefix of subnets that were given none.
    pub const DEFAULT_PREFIX: u64 = 0xfe80 << 48;
    /// The last LID of an end port.
    pub const LAST_LID: u16 = 0xbfff;

    /// No nodes yet.
    pub fn new(prefix: u64) -> Self {
        Self { nodes: Vec::new(), prefix, by_lid: Vec::new(), by_guid: BTreeMap::new() }
    }

    /// Adds a node.
    pub fn add(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Plugs two ports together.
    ///
    /// # Panics
    /// If one of them is not there.
    pub fn link(&mut self, a: PortAt, b: PortAt) {
        for (here, there) in [(a, b), (b, a)] {
            let port = self.nodes[here.node].ports.get_mut(&here.port);
            port.expect("both ports are there").peer = Some(there);
        }
    }

    /// The port there.
    pub fn port(&self, at: PortAt) -> Option<&Port> {
        self.nodes.get(at.node)?.ports.get(&at.port)
    }

    /// The port there, to be changed. After a change of LIDs or GUIDs [`index`](Self::index) is due.
    pub fn port_mut(&mut self, at: PortAt) -> Option<&mut Port> {
        self.nodes.get_mut(at.node)?.ports.get_mut(&at.port)
    }

    /// All ports that have LIDs of their own.
    pub fn end_ports(&self) -> impl Iterator<Item = (PortAt, &Port)> {
        self.nodes
            .iter()
            .enumerate()
            .flat_map(|(node, it)| it.end_ports().map(move |(port, end)| (PortAt { node, port }, end)))
    }

    /// The end port that belongs to a port: of a switch its port 0.
    pub fn end_port_of(&self, at: PortAt) -> PortAt {
        match self.nodes.get(at.node).is_some_and(Node::is_switch) {
            true => PortAt { port: 0, ..at },
            false => at,
        }
    }

    /// Gives every end port that has no LID of its own 2^`lmc` of them (one at a switch): those that `known` has for it, or the
    /// next free ones, from `from` on and behind the last from 1 on. LIDs that are there stay if they are possible and no
    /// other port has them; those that are known for others are given only if there are no more. `first`, where the subnet
    /// manager is, comes first, then the others by the bytes of their GUID from the last to the first, which is OpenSM's
    /// order. What was given is known from then on.
    ///
    /// # Errors
    /// The number of ports that are left without a LID, if there are not enough.
    pub fn assign_lids(
        &mut self,
        first: Option<PortAt>,
        lmc: u8,
        known: &mut BTreeMap<Guid, Lid>,
        from: Lid,
    ) -> Result<(), usize> {
        let mut order: Vec<_> = self.end_ports().map(|(at, port)| (at, port.guid())).collect();
        order.sort_by_key(|(at, guid)| (Some(*at) != first, guid.0.swap_bytes()));
        let mut lids = Lids::new(from);
        for lacking in [false, true] {
            for (at, guid) in &order {
                let lmc = if at.port == 0 { 0 } else { lmc & 7 };
                let Some(port) = self.port_mut(*at) else { continue };
                port.info.lmc = lmc;
                let wanted =
                    if lacking { known.get(guid).copied().unwrap_or_default() } else { port.info.lid };
                if lids.take(wanted, lmc) {
                    port.info.lid = wanted;
                    lids.given.insert(*at);
                }
                if !lacking && !lids.given.contains(at) {
                    port.info.lid = Lid::NONE;
                }
            }
            order.retain(|(at, _)| !lids.given.contains(at));
        }
        for lid in known.values() {
            lids.reserve(*lid);
        }
        let mut without = 0;
        for (at, _) in order {
            let Some(port) = self.port_mut(at) else { continue };
            match lids.find(port.info.lmc) {
                Some(lid) => port.info.lid = lid,
                None => without += 1,
            }
        }
        if known.len() > usize::from(Self::LAST_LID) {
            known.clear();
        }
        known.extend(self.end_ports().map(|(_, port)| (port.guid(), port.info.lid)));
        self.index();
        if without == 0 { Ok(()) } else { Err(without) }
    }

    /// Looks all LIDs and GUIDs up again.
    pub fn index(&mut self) {
        let (mut by_lid, mut by_guid) = (Vec::new(), BTreeMap::new());
        for (at, port) in self.end_ports() {
            for guid in port.guids.iter().filter(|guid| guid.0 != 0) {
                by_guid.entry(*guid).or_insert(at);
            }
            if port.info.lid.is_unicast() {
                let base = usize::from(port.info.lid.0);
                let end = base + usize::from(port.lids());
                if by_lid.len() < end {
                    by_lid.resize(end, None);
                }
                by_lid[base..end].fill(Some(at));
            }
        }
        (self.by_lid, self.by_guid) = (by_lid, by_guid);
    }

    /// The end port that has a LID, its own or one of its LMC range.
    pub fn at_lid(&self, lid: Lid) -> Option<PortAt> {
        self.by_lid.get(usize::from(lid.0)).copied().flatten()
    }

    /// The highest LID in use.
    pub fn highest_lid(&self) -> Lid {
        Lid(self.by_lid.len().saturating_sub(1) as u16)
    }

    /// The end port that has a GUID, its own or an alias.
    pub fn at_guid(&self, guid: Guid) -> Option<PortAt> {
        self.by_guid.get(&guid).copied()
    }

    /// The end port that has a GID of this subnet; the default prefix is taken, too.
    pub fn at_gid(&self, gid: Gid) -> Option<PortAt> {
        self.is_local(gid).then(|| self.at_guid(Guid(gid.interface_id()))).flatten()
    }

    /// Whether a GID has a prefix of this subnet.
    pub fn is_local(&self, gid: Gid) -> bool {
        gid.prefix() == self.prefix || gid.prefix() == Self::DEFAULT_PREFIX
    }

    /// The GID of an end port.
    pub fn gid(&self, at: PortAt) -> Gid {
        self.port(at).map_or(Gid::UNSPECIFIED, |port| Gid::from_parts(self.prefix, port.guid()))
    }

    /// Whether two ports share a partition.
    pub fn share_p_key(&self, a: PortAt, b: PortAt) -> bool {
        let (Some(a), Some(b)) = (self.port(a), self.port(b)) else { return false };
        a.p_keys.iter().any(|a| b.p_keys.iter().any(|b| a.matches(*b)))
    }

    /// Whether any port of one device shares a partition with a port (spec/sa.md 4.6).
    pub fn device_shares_p_key(&self, device: NodeId, port: PortAt) -> bool {
        let ports = self.nodes.get(device).into_iter().flat_map(Node::end_ports);
        ports.map(|(port, _)| PortAt { node: device, port }).any(|own| self.share_p_key(own, port))
    }

    /// The ports that a packet passes from an end port to a LID, those where it leaves and arrives included, as the forwarding
    /// tables are. `None` if it does not get there.
    pub fn way(&self, from: PortAt, to: Lid) -> Option<Vec<PortAt>> {
        let target = self.at_lid(to)?;
        let mut way = vec![from];
        let mut here = from;
        for _ in 0..=self.nodes.len() {
            if here.node == target.node && (here.port == target.port || target.port == 0) {
                if here.port != target.port {
                    way.push(target);
                }
                return Some(way);
            }
            let node = self.nodes.get(here.node)?;
            let out = match &node.switch {
                Some(switch) => PortAt { port: switch.route(to)?, ..here },
                None if here == from => from,
                None => return None,
            };
            if out != from {
                way.push(out);
            }
            here = self.port(out).filter(|port| port.is_up())?.peer?;
            way.push(here);
        }
        None
    }
}

/// Which LIDs are free.
struct Lids {
    taken: Vec<bool>,
    reserved: Vec<bool>,
    /// Where the search goes on.
    next: usize,
    /// Where it goes on among what was left out before, for the sake of alignment or of others, by LMC.
    again: [[usize; 8]; 2],
    /// The ports that have theirs.
    given: BTreeSet<PortAt>,
}

impl Lids {
    fn new(from: Lid) -> Self {
        let none = vec![false; usize::from(Topology::LAST_LID) + 1];
        let (mut taken, given) = (none.clone(), BTreeSet::new());
        taken[0] = true;
        Self { taken, reserved: none, next: usize::from(from.0), again: [[0; 8]; 2], given }
    }

    /// Whether these LIDs were free and possible, and are taken now.
    fn take(&mut self, base: Lid, lmc: u8) -> bool {
        let base = usize::from(base.0);
        match self.taken.get_mut(base..base + (1 << lmc)) {
            Some(lids) if base % (1 << lmc) == 0 && !lids.contains(&true) => lids.fill(true),
            _ => return false,
        }
        true
    }

    /// Someone who is not there has had this LID.
    fn reserve(&mut self, lid: Lid) {
        if let Some(reserved) = self.reserved.get_mut(usize::from(lid.0)) {
            *reserved = true;
        }
    }

    /// The next free ones.
    fn find(&mut self, lmc: u8) -> Option<Lid> {
        let (step, lmc) = (1 << lmc, usize::from(lmc));
        let search = |from: usize, spares: bool| {
            let mut bases = (from.next_multiple_of(step)..self.taken.len()).step_by(step);
            bases.find(|base| {
                let is_free =
                    |lids: &Vec<bool>| lids.get(*base..base + step).is_some_and(|lids| !lids.contains(&true));
                is_free(&self.taken) && (!spares || is_free(&self.reserved))
            })
        };
        let (found, goes_on) = match search(self.next, true) {
            Some(base) => (Some(base), &mut self.next),
            None => match search(self.again[0][lmc], true) {
                Some(base) => (Some(base), &mut self.again[0][lmc]),
                None => (search(self.again[1][lmc], false), &mut self.again[1][lmc]),
            },
        };
        *goes_on = found.map_or(self.taken.len(), |base| base + step);
        let base = found?;
        self.taken[base..base + step].fill(true);
        Some(Lid(base as u16))
    }
}

/// Rates by speed, as OpenSM orders them (spec/sa.md 4.2).
const RATES: [Rate; 24] = [
    Rate::GBPS_2_5,
    Rate::GBPS_5,
    Rate::GBPS_10,
    Rate::GBPS_14,
    Rate::GBPS_20,
    Rate::GBPS_30,
    Rate::GBPS_25,
    Rate::GBPS_28,
    Rate::GBPS_40,
    Rate::GBPS_60,
    Rate::GBPS_50,
    Rate::GBPS_56,
    Rate::GBPS_80,
    Rate::GBPS_120,
    Rate::GBPS_100,
    Rate::GBPS_112,
    Rate::GBPS_168,
    Rate::GBPS_200,
    Rate::GBPS_300,
    Rate::GBPS_400,
    Rate::GBPS_600,
    Rate::GBPS_800,
    Rate::GBPS_1200,
    Rate::GBPS_1600,
];

/// The place of a rate in the order of speeds, `None` for a code that is none.
pub(super) fn rank(rate: Rate) -> Option<usize> {
    RATES.iter().position(|other| *other == rate)
}

/// The rate at a place.
pub(super) fn ranked(rank: usize) -> Rate {
    RATES[rank]
}
