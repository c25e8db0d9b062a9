//! Trees of multicast groups.

use super::*;

/// A request of a port for the membership of a group.
pub(in crate::sim) fn membership(method: Method, group: u16, port: Guid) -> [u8; 256] {
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
