//! Managers on nodes whose links take no time.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ibsa::mad::SaHeader;
use ibsa::record::{JoinState, Layout, McMemberRecord, PortCapabilities, PortState, SmState};
use ibwire::mad::{AttributeId, MadHeader, MadStatus, Method, MgmtClass};
use ibwire::{Gid, Guid, Lid, Mtu, PKey, QKey, Rate, TransactionId};

use super::super::node::{Change, Handled, Node, PortShape, Smp, Step};
use super::*;
use crate::manager::{GroupTree, PortAt, SmConfig};

type Port = (usize, u8);

/// Nodes, cables, and managers on some switches.
struct World {
    now: Instant,
    nodes: Vec<Node>,
    cables: BTreeMap<Port, Port>,
    managers: BTreeMap<usize, SubnetManager>,
    /// Ports that were asked to register again.
    reregistered: Vec<Port>,
}

fn shape(number: u8, guid: u64) -> PortShape {
    PortShape { number, guid: Guid(guid), mtu: Mtu::B4096, rate: Rate::GBPS_100 }
}

impl World {
    /// Two switches with two cables between them; hosts a and c at the first, b and d at the second.
    fn new() -> Self {
        let switch =
            |n: u64| Node::switch(format!("switch{n}"), Guid(0x10 * n), (1..=4).map(|port| shape(port, 0)));
        let host = |name: &str, guid: u64| Node::hca(name.into(), Guid(guid), [shape(1, guid + 1)]);
        let nodes = vec![
            switch(1),
            switch(2),
            host("a", 0x100),
            host("b", 0x200),
            host("c", 0x300),
            host("d", 0x400),
        ];
        let now = Instant::now();
        let mut world =
            Self { now, nodes, cables: BTreeMap::new(), managers: BTreeMap::new(), reregistered: Vec::new() };
        let cables = [
            ((0, 3), (1, 3)),
            ((0, 4), (1, 4)),
            ((2, 1), (0, 1)),
            ((3, 1), (1, 1)),
            ((4, 1), (0, 2)),
            ((5, 1), (1, 2)),
        ];
        cables.into_iter().for_each(|(a, b)| world.plug(a, b));
        world
    }

    fn plug(&mut self, a: Port, b: Port) {
        for (here, there) in [(a, b), (b, a)] {
            self.cables.insert(here, there);
            self.nodes[here.0].set_link(self.now, here.1, true);
        }
    }

    fn unplug(&mut self, a: Port) {
        let b = self.cables[&a];
        for here in [a, b] {
            self.cables.remove(&here);
            self.nodes[here.0].set_link(self.now, here.1, false);
        }
    }

    fn attach(&mut self, node: usize, config: SmConfig) {
        let now = self.now;
        self.nodes[node].set_capabilities(now, 0, |info| info.capability_mask |= PortCapabilities::SM);
        self.managers.insert(node, SubnetManager::new(config));
        self.managers.get_mut(&node).unwrap().handle_timeout(now);
    }

    /// Moves what managers and agents send until nothing is left.
    fn run(&mut self) {
        loop {
            let mut sent = VecDeque::new();
            for (node, manager) in &mut self.managers {
                while let Some(mad) = Manager::poll_transmit(manager, self.now) {
                    sent.push_back((*node, 0, mad.lid, mad));
                }
            }
            for node in 0..self.nodes.len() {
                while let Some((port, to, trap)) = self.nodes[node].poll_trap(self.now) {
                    sent.push_back((node, port, to, by_qp0(to, trap.to_mad())));
                }
            }
            if sent.is_empty() {
                return;
            }
            for (node, port, to, mad) in sent {
                if mad.qp == Qpn::SMI {
                    self.carry((node, port), to, Smp::parse(&mad.mad).unwrap());
                }
            }
        }
    }

    /// Carries a packet to where it goes, and its answer back.
    fn carry(&mut self, from: Port, to: Lid, mut smp: Smp) {
        let (mut at, mut entered) = (from, None);
        loop {
            let node = &self.nodes[at.0];
            let out = match smp.is_directed() {
                true => match smp.step(entered, node.is_switch()) {
                    Step::Here => break,
                    Step::Out(port) => port,
                    _ => return,
                },
                false if node.port_of_lid(to).is_some_and(|own| own == 0 || own == at.1) => break,
                false => match &node.forwarding {
                    Some(tables) => match tables.port(to) {
                        Some(port) => port,
                        None => return,
                    },
                    None => from.1,
                },
            };
            let Some(peer) = self.cables.get(&(at.0, out)) else { return };
            (at, entered) = (*peer, Some(peer.1));
        }
        let handled = self.nodes[at.0].handle_smp(self.now, entered.unwrap_or(0), smp);
        for change in self.nodes[at.0].take_changes() {
            if let Change::Reregister(port) = change {
                self.reregistered.push((at.0, port));
            }
        }
        let end = if self.nodes[at.0].is_switch() { 0 } else { at.1 };
        match handled {
            Handled::Answer(answer) => self.carry((at.0, end), Lid::PERMISSIVE, answer),
            Handled::Manager(smp) => {
                let lid = if smp.is_directed() { Lid::PERMISSIVE } else { self.lid(from.0) };
                if let Some(manager) = self.managers.get_mut(&at.0) {
                    manager.handle_mad(self.now, &by_qp0(lid, smp.to_mad()));
                }
            }
            Handled::Done => {}
        }
    }

    /// Lets time pass, with all that is due.
    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.run();
            let managers = self.managers.values().filter_map(Manager::poll_timeout);
            let due = managers.chain(self.nodes.iter().filter_map(Node::poll_timeout)).min();
            let Some(due) = due.filter(|due| *due <= end) else { break };
            self.now = self.now.max(due);
            let now = self.now;
            self.managers.values_mut().for_each(|manager| Manager::handle_timeout(manager, now));
        }
        self.now = end;
    }

    fn lid(&self, node: usize) -> Lid {
        let port = u8::from(!self.nodes[node].is_switch());
        self.nodes[node].port(port).unwrap().info.lid
    }

    /// The nodes that a packet passes on its way from a host to another.
    fn way(&self, from: usize, to: usize) -> Option<Vec<usize>> {
        let (mut at, mut way) = (*self.cables.get(&(from, 1))?, vec![from]);
        while at.0 != to {
            way.push(at.0);
            let out = self.nodes[at.0].forwarding.as_ref()?.port(self.lid(to))?;
            at = *self.cables.get(&(at.0, out)).filter(|_| way.len() < 9)?;
        }
        way.push(to);
        Some(way)
    }

    fn state(&self, port: Port) -> PortState {
        self.nodes[port.0].port(port.1).unwrap().info.port_state
    }
}

fn config(guid: u64) -> SmConfig {
    SmConfig::new(Guid(guid))
}

#[test]
fn a_sweep_gives_lids_and_routes_and_brings_ports_into_service() {
    let mut world = World::new();
    world.attach(0, config(0x10));
    world.run();
    let manager = &world.managers[&0];
    assert_eq!((manager.state(), manager.is_settled()), (SmState::MASTER, true));
    assert_eq!(manager.counters().unanswered + manager.counters().refused, 0);
    assert_eq!(world.lid(0), Lid(1), "the manager's own port comes first");
    let mut lids: Vec<_> = (0..6).map(|node| world.lid(node).0).collect();
    lids.sort_unstable();
    assert_eq!(lids, [1, 2, 3, 4, 5, 6]);
    for port in world.cables.keys() {
        assert_eq!(world.state(*port), PortState::ACTIVE, "{port:?}");
    }
    for host in 2..6 {
        let info = &world.nodes[host].port(1).unwrap().info;
        assert_eq!((info.master_sm_lid, info.subnet_timeout.get()), (Lid(1), 18));
    }
    assert_eq!(world.way(2, 4), Some(vec![2, 0, 4]));
    assert_eq!(world.way(2, 3), Some(vec![2, 0, 1, 3]));
    let topology = world.managers[&0].sa().topology();
    assert_eq!(topology.nodes.len(), 6);
    assert_eq!(topology.nodes[topology.at_guid(Guid(0x301)).unwrap().node].description.to_string(), "c");
}

#[test]
fn lids_stay_over_sweeps_and_a_lost_cable_is_routed_around() {
    let mut world = World::new();
    world.attach(0, config(0x10));
    world.run();
    let before: Vec<_> = (0..6).map(|node| world.lid(node)).collect();
    let out = world.nodes[0].forwarding.as_ref().unwrap().port(world.lid(3)).unwrap();
    world.unplug((0, out));
    assert_eq!(world.way(2, 3), None, "nobody has looked yet");
    world.wait(Duration::from_secs(1)); // the switches' traps
    assert_eq!(world.way(2, 3), Some(vec![2, 0, 1, 3]));
    assert!(world.managers[&0].counters().traps > 0);
    assert_eq!((0..6).map(|node| world.lid(node)).collect::<Vec<_>>(), before);
}

#[test]
fn a_light_sweep_finds_a_change_whose_trap_was_lost() {
    let mut world = World::new();
    world.attach(0, config(0x10));
    world.run();
    // The links came up when there was no master.
    world.wait(Duration::from_secs(2));
    let (sweeps, looks) =
        (world.managers[&0].counters().heavy_sweeps, world.managers[&0].counters().light_sweeps);
    world.wait(Duration::from_secs(30));
    assert_eq!(world.managers[&0].counters().heavy_sweeps, sweeps, "nothing has changed");
    assert!((2..=3).contains(&(world.managers[&0].counters().light_sweeps - looks)));
    world.nodes[1].forwarding.as_mut().unwrap().info.port_state_change = true;
    world.wait(Duration::from_secs(10));
    assert_eq!(world.managers[&0].counters().heavy_sweeps, sweeps + 1);
}

#[test]
fn lmc_gives_hosts_several_lids_over_several_cables() {
    let mut world = World::new();
    world.attach(0, SmConfig { lmc: 1, ..config(0x10) });
    world.run();
    let (base, tables) = (world.lid(3), world.nodes[0].forwarding.as_ref().unwrap());
    assert_eq!(base.0 % 2, 0);
    let ports = [tables.port(base), tables.port(Lid(base.0 + 1))];
    assert!(ports == [Some(3), Some(4)] || ports == [Some(4), Some(3)], "{ports:?}");
}

#[test]
fn partitions_are_those_of_the_configuration() {
    let mut world = World::new();
    let p_keys = [(Guid(0x201), vec![PKey::DEFAULT, PKey(0x1234)])].into();
    world.attach(0, SmConfig { p_keys, ..config(0x10) });
    world.run();
    assert!(world.nodes[3].port(1).unwrap().admits(PKey(0x9234)));
    assert!(!world.nodes[2].port(1).unwrap().admits(PKey(0x9234)));
}

#[test]
fn switches_enforce_the_partitions_of_hosts() {
    let mut world = World::new();
    let many: Vec<_> = (0..40).map(|n| PKey(0x9000 + n)).collect();
    let p_keys = [(Guid(0x101), many.clone()), (Guid(0x201), vec![PKey::DEFAULT, PKey(0x1234)])].into();
    // The second switch can look at what leaves alone, and for 32 P_Keys.
    let info = &mut world.nodes[1].forwarding.as_mut().unwrap().info;
    (info.inbound_enforcement_cap, info.partition_enforcement_cap) = (false, 32);
    world.attach(0, SmConfig { p_keys, ..config(0x10) });
    world.run();
    let port = |world: &World, at: Port| {
        let port = world.nodes[at.0].port(at.1).unwrap();
        let used = port.pkeys.iter().rposition(|key| key.0 != 0).unwrap() + 1;
        let info = &port.info;
        let enforces = (info.partition_enforcement_inbound, info.partition_enforcement_outbound);
        (port.pkeys[..used].to_vec(), enforces)
    };
    let default = vec![PKey::DEFAULT];
    assert_eq!(port(&world, (0, 1)), (many.clone(), (true, true)));
    assert_eq!(port(&world, (1, 1)), (vec![PKey::DEFAULT, PKey(0x1234)], (false, true)));
    for at in [(0, 3), (0, 4), (1, 3), (1, 4)] {
        assert_eq!(port(&world, at), (default.clone(), (false, false)), "another switch is there");
    }
    // Of ports in service, too, and what is too much for a switch it leaves to the host.
    let manager = world.managers.get_mut(&0).unwrap();
    manager.set_p_keys(Guid(0x101), default.clone());
    manager.set_p_keys(Guid(0x201), many);
    world.wait(Duration::from_secs(20));
    assert_eq!(port(&world, (0, 1)), (default, (true, true)));
    assert_eq!(port(&world, (1, 1)).1, (false, false));
    let manager = &world.managers[&0];
    assert_eq!((manager.is_settled(), manager.counters().refused), (true, 0));
    // Administration shows it.
    let topology = manager.sa().topology();
    let host = topology.at_guid(Guid(0x101)).and_then(|host| topology.port(host)).unwrap();
    let leaf = host.peer.and_then(|leaf| topology.port(leaf)).unwrap();
    assert!(leaf.info.partition_enforcement_inbound && leaf.p_keys == host.p_keys);
}

#[test]
fn a_host_has_no_partitions_of_the_one_that_was_there_before() {
    let mut world = World::new();
    let many: Vec<_> = (0..40).map(|n| PKey(0x9000 + n)).collect();
    world.attach(0, SmConfig { p_keys: [(Guid(0x101), many.clone())].into(), ..config(0x10) });
    world.run();
    let admits = |world: &World, at: Port| world.nodes[at.0].port(at.1).unwrap().admits(many[39]);
    assert_eq!([admits(&world, (0, 1)), admits(&world, (0, 2))], [true, false]);
    // Hosts a and c change places.
    world.unplug((2, 1));
    world.unplug((4, 1));
    world.plug((2, 1), (0, 2));
    world.plug((4, 1), (0, 1));
    world.wait(Duration::from_secs(20));
    assert_eq!([admits(&world, (0, 1)), admits(&world, (0, 2))], [false, true]);
}

#[test]
fn the_standby_takes_over_and_asks_the_ports_to_register_again() {
    let mut world = World::new();
    world.attach(0, config(0x10));
    world.run();
    world.attach(1, config(0x20));
    world.run();
    assert_eq!(world.managers[&1].state(), SmState::STANDBY);
    let lids: Vec<_> = (0..6).map(|node| world.lid(node)).collect();
    world.reregistered.clear();
    world.managers.remove(&0);
    let now = world.now;
    world.nodes[5].set_capabilities(now, 1, |info| {
        info.capability_mask -= PortCapabilities::CLIENT_REREGISTRATION;
    });
    world.wait(Duration::from_secs(15));
    assert_eq!(world.managers[&1].state(), SmState::MASTER);
    for host in 2..6 {
        assert_eq!(world.nodes[host].port(1).unwrap().info.master_sm_lid, world.lid(1));
        assert_eq!(world.reregistered.contains(&(host, 1)), host != 5, "{:?}", world.reregistered);
    }
    assert_eq!((0..6).map(|node| world.lid(node)).collect::<Vec<_>>(), lids, "LIDs are kept");
}

#[test]
fn a_standby_is_busy_as_administration() {
    let mut world = World::new();
    world.attach(0, config(0x10));
    world.run();
    world.attach(1, config(0x20));
    world.run();
    for (manager, busy) in [(0, 0), (1, 1)] {
        for (method, answered) in [(Method::GET, true), (Method::REPORT.response(), false)] {
            let header =
                SaHeader::new(MadHeader::new(MgmtClass::SA, 2, method, AttributeId(1), TransactionId(9)));
            let mut mad = [0; 256];
            mad[..SaHeader::LEN].copy_from_slice(&header.to_bytes());
            let mad = ManagerMad { qp: Qpn::GSI, remote_qp: Qpn::GSI, ..by_qp0(world.lid(2), mad) };
            let (now, it) = (world.now, world.managers.get_mut(&manager).unwrap());
            it.handle_mad(now, &mad);
            let answer =
                Manager::poll_transmit(it, now).map(|mad| MadHeader::parse(&mad.mad).unwrap().status.0);
            assert_eq!(answer, answered.then_some(busy));
        }
        let counters = world.managers[&manager].sa().counters();
        assert_eq!((counters.busy, counters.drop_response), (busy.into(), 1));
    }
}

#[test]
fn a_master_hands_over_to_a_standby_of_higher_priority() {
    let mut world = World::new();
    world.attach(0, config(0x10));
    world.run();
    world.attach(1, SmConfig { priority: 9, ..config(0x20) });
    world.wait(Duration::from_secs(1));
    world.managers.get_mut(&0).unwrap().request_sweep();
    world.wait(Duration::from_secs(30));
    let states: Vec<_> = world.managers.values().map(SubnetManager::state).collect();
    assert_eq!(states, [SmState::STANDBY, SmState::MASTER]);
    assert_eq!(world.nodes[2].port(1).unwrap().info.master_sm_lid, world.lid(1));
}

#[test]
fn two_that_begin_together_agree() {
    let mut world = World::new();
    world.attach(1, config(0x20));
    world.attach(0, config(0x10));
    world.wait(Duration::from_secs(5));
    let states: Vec<_> = world.managers.values().map(SubnetManager::state).collect();
    assert_eq!(states, [SmState::MASTER, SmState::STANDBY]);
}

#[test]
fn a_restarted_manager_may_give_new_lids() {
    let mut world = World::new();
    world.attach(0, config(0x10));
    world.run();
    world.managers.clear();
    world.reregistered.clear();
    world.attach(1, SmConfig { keep_lids: false, ..config(0x20) });
    world.wait(Duration::from_secs(5)); // nobody answers where the old one was
    assert_eq!(world.lid(1), Lid(1));
    assert_eq!(world.way(2, 3), Some(vec![2, 0, 1, 3]));
    assert_eq!(world.reregistered.iter().filter(|(node, _)| *node > 1).count(), 4);
}

/// A request of a port for the membership of a group.
pub(in super::super) fn membership(method: Method, group: u16, port: Guid) -> [u8; 256] {
    let mut mgid: Gid = "ff15:a01b::".parse().unwrap();
    mgid.0[14..].copy_from_slice(&group.to_be_bytes());
    let member = McMemberRecord {
        mgid,
        port_gid: Gid::link_local(port),
        q_key: QKey(7),
        p_key: PKey::DEFAULT,
        join_state: JoinState::FULL_MEMBER,
        ..McMemberRecord::default()
    };
    let tid = TransactionId(port.0 << 16 | u64::from(group));
    let header = MadHeader::new(MgmtClass::SA, 2, method, AttributeId(0x38), tid);
    let header = SaHeader { component_mask: 0x1_30c7, ..SaHeader::new(header) };
    let mut mad = [0; 256];
    mad[..SaHeader::LEN].copy_from_slice(&header.to_bytes());
    member.write_to(&mut mad[SaHeader::LEN..]);
    mad
}

impl World {
    /// Host `host` asks the manager on a switch for the membership of a group.
    fn ask_for_group(&mut self, manager: usize, method: Method, group: u16, host: usize) {
        let guid = self.nodes[host].port(1).unwrap().guids[0];
        let mad = by_qp0(self.lid(host), membership(method, group, guid));
        let mad = ManagerMad { qp: Qpn::GSI, remote_qp: Qpn::GSI, ..mad };
        let now = self.now;
        self.managers.get_mut(&manager).unwrap().handle_mad(now, &mad);
        self.run();
    }

    /// The groups that a switch passes on.
    fn groups(&self, switch: usize) -> Vec<u16> {
        let tables = self.nodes[switch].forwarding.as_ref().unwrap();
        let has_ports =
            |mlid: &u16| tables.ports(Lid(*mlid)).is_some_and(|mask| mask.iter().any(|bits| *bits != 0));
        (0xc000..0xffff).filter(has_ports).collect()
    }

    fn masters(&self) -> usize {
        self.managers.values().filter(|manager| manager.state() == SmState::MASTER).count()
    }
}

#[test]
fn groups_of_a_predecessor_are_cleared_wherever_they_are() {
    for says_where_they_end in [true, false] {
        let mut world = World::new();
        for switch in [0, 1] {
            let now = world.now;
            let end = PortCapabilities::MULTICAST_FDB_TOP;
            world.nodes[switch].set_capabilities(now, 0, |info| {
                info.capability_mask.set(end, says_where_they_end);
            });
            if !says_where_they_end {
                world.nodes[switch].forwarding.as_mut().unwrap().info.multicast_fdb_top = Lid::NONE;
            }
        }
        world.attach(0, config(0x10));
        world.run();
        // More than a block of the table, each of them over both switches.
        for (group, host) in (0..40).flat_map(|group| [(group, 2), (group, 3)]) {
            world.ask_for_group(0, Method::SET, group, host);
        }
        let all: Vec<_> = (0xc000..0xc000 + 40).collect();
        assert_eq!([world.groups(0), world.groups(1)], [all.clone(), all]);
        world.managers.clear();
        world.attach(1, config(0x20));
        world.wait(Duration::from_secs(15));
        assert_eq!(world.masters(), 1);
        assert_eq!([world.groups(0), world.groups(1)], [[], []]);
        // The table is used again, from the first LID on.
        world.ask_for_group(1, Method::SET, 7, 2);
        assert_eq!([world.groups(0), world.groups(1)], [vec![0xc000], vec![]]);
        let manager = &world.managers[&1];
        assert_eq!((manager.is_settled(), manager.counters().refused), (true, 0));
    }
}

#[test]
fn multicast_tables_may_be_of_any_length() {
    let mut world = World::new();
    for (switch, cap) in [(0, u16::MAX), (1, 64)] {
        let now = world.now;
        world.nodes[switch].set_capabilities(now, 0, |info| {
            info.capability_mask -= PortCapabilities::MULTICAST_FDB_TOP;
        });
        let info = &mut world.nodes[switch].forwarding.as_mut().unwrap().info;
        (info.multicast_fdb_cap, info.multicast_fdb_top) = (cap, Lid::NONE);
    }
    world.attach(0, config(0x10));
    world.run();
    for host in [2, 3] {
        world.ask_for_group(0, Method::SET, 7, host);
    }
    assert_eq!([world.groups(0), world.groups(1)], [[0xc000], [0xc000]]);
    let manager = &world.managers[&0];
    assert_eq!((manager.is_settled(), manager.counters().refused), (true, 0));
}

#[test]
fn there_is_a_master_while_one_of_higher_priority_looks_around() {
    let mut world = World::new();
    world.attach(0, config(0x10));
    world.run();
    // The first one sweeps while the second one waits for its answers.
    world.attach(1, SmConfig { priority: 9, ..config(0x20) });
    world.managers.get_mut(&0).unwrap().request_sweep();
    let (now, mut held) = (world.now, Vec::new());
    world.managers.get_mut(&0).unwrap().handle_timeout(now);
    let poll = |world: &mut World| {
        let mut next =
            |node: usize| Some((node, Manager::poll_transmit(world.managers.get_mut(&node)?, now)?));
        next(0).or_else(|| next(1))
    };
    while let Some((node, mad)) = poll(&mut world) {
        let smp = Smp::parse(&mad.mad).unwrap();
        match node == 1 && !smp.header.method.is_response() {
            true => held.push((mad.lid, smp)),
            false => world.carry((node, 0), mad.lid, smp),
        }
        assert_eq!(world.managers[&0].state(), SmState::MASTER);
    }
    assert_eq!(world.managers[&1].state(), SmState::DISCOVERING);
    held.into_iter().for_each(|(lid, smp)| world.carry((1, 0), lid, smp));
    for _ in 0..100 {
        world.wait(Duration::from_millis(20));
        assert_eq!(world.masters(), 1);
    }
    assert_eq!(world.managers[&1].state(), SmState::MASTER);
}

#[test]
fn a_trap_is_heard_by_a_master_alone() {
    let mut world = World::new();
    world.attach(0, config(0x10));
    world.wait(Duration::from_secs(2));
    world.managers.clear();
    world.attach(0, config(0x10));
    // While it looks around a host says something.
    let now = world.now;
    world.nodes[2].set_capabilities(now, 1, |info| info.capability_mask |= PortCapabilities::VENDOR_CLASS);
    let (_, to, trap) = world.nodes[2].poll_trap(now).unwrap();
    assert_eq!(world.managers[&0].state(), SmState::DISCOVERING);
    world.carry((2, 1), to, trap);
    world.run();
    let manager = &world.managers[&0];
    assert_eq!(
        (manager.state(), manager.counters().heavy_sweeps, manager.counters().traps),
        (SmState::MASTER, 1, 0)
    );
    world.wait(Duration::from_secs(2));
    let counters = world.managers[&0].counters();
    assert!(counters.traps == 1 && counters.heavy_sweeps >= 2, "{counters:?}");
    assert!(!world.nodes[2].has_traps());
}

#[test]
fn managers_ask_and_hand_over_and_nothing_else() {
    let mut manager = SubnetManager::new(config(0x10));
    let now = Instant::now();
    let mut ask = |method, modifier| {
        let header =
            MadHeader::new(MgmtClass::SUBN_LID_ROUTED, 1, method, AttributeId(0x20), TransactionId(1));
        let header = MadHeader { attribute_modifier: modifier, ..header };
        manager.handle_smp(now, Lid(5), &Smp::by_lid(header, 0, &[]).to_mad());
        let answers = std::iter::from_fn(|| SubnetManager::poll_transmit(&mut manager, now));
        let answers = answers.filter_map(|mad| match mad {
            SmMad::Smp(Lid(5), mad) => Some(MadHeader::parse(&mad).unwrap().status),
            _ => None,
        });
        answers.last()
    };
    let (fine, invalid) = (Some(MadStatus::OK), Some(MadStatus::INVALID_FIELD));
    assert_eq!([ask(Method::GET, 0), ask(Method::SET, 2)], [fine, fine]);
    assert_eq!([ask(Method::SET, 0), ask(Method::SET, 9)], [invalid, invalid]);
    assert_eq!(ask(Method::SET, 1), invalid, "it does not know the subnet yet");
    for method in [Method::REPORT, Method::GET_TABLE, Method::DELETE, Method(0x7f)] {
        assert_eq!(ask(method, 0), None, "{method}");
    }
    assert_eq!(manager.counters().dropped, 4);
}

#[test]
fn durations_may_be_for_ever() {
    let long = Duration::MAX;
    let mut world = World::new();
    let long =
        |guid| SmConfig { sweep: long, timeout: long, again: long, poll: long, window: 0, ..config(guid) };
    world.attach(0, long(0x10));
    world.run();
    world.attach(1, long(0x20));
    world.wait(Duration::from_secs(60));
    let states: Vec<_> = world.managers.values().map(SubnetManager::state).collect();
    assert_eq!(states, [SmState::MASTER, SmState::STANDBY]);
}

#[test]
fn groups_that_cannot_be_are_left_out() {
    let mut world = World::new();
    world.attach(0, config(0x10));
    world.run();
    let (now, manager) = (world.now, world.managers.get_mut(&0).unwrap());
    let topology = manager.sa().topology();
    let (a, b) = (topology.at_guid(Guid(0x101)).unwrap(), topology.at_guid(Guid(0x301)).unwrap());
    let nowhere = [PortAt { node: 99, port: 1 }, PortAt { port: 9, ..a }];
    let tree = |mlid, receivers| GroupTree { mlid: Lid(mlid), receivers, senders: nowhere.to_vec() };
    let all = [&nowhere[..], &[a, b]].concat();
    manager.set_groups(now, &[tree(0xc001, all.clone()), tree(5, all.clone()), tree(0xffff, all)]);
    world.run();
    assert_eq!(world.groups(0), [0xc001]);
}

#[test]
fn trees_of_groups_are_written_and_taken_back() {
    let mut world = World::new();
    world.attach(0, config(0x10));
    world.run();
    let tables = |world: &World, node: usize| -> Vec<u8> {
        let mask = world.nodes[node].forwarding.as_ref().unwrap().ports(Lid(0xc000)).copied();
        (0..16).filter(|port| mask.is_some_and(|mask| mask[0] >> port & 1 != 0)).collect()
    };
    for (method, hosts, expected) in [
        (Method::SET, vec![2, 4, 3], [vec![1, 2, 3], vec![1, 3]]),
        (Method::DELETE, vec![3], [vec![1, 2], vec![]]),
        (Method::DELETE, vec![2, 4], [vec![], vec![]]),
    ] {
        for host in hosts {
            world.ask_for_group(0, method, 7, host);
        }
        assert_eq!([tables(&world, 0), tables(&world, 1)], expected);
    }
}
