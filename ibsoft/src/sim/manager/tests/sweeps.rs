//! What a sweep finds, gives and writes.

use super::*;

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
