//! P_Keys of hosts, and at the switches that enforce them.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::*;

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

/// A switch that enforces nothing lets through everything, whatever it did not take.
#[test]
fn a_host_gets_its_partitions_where_a_switch_takes_none() {
    let mut world = World::new();
    let p_keys = vec![PKey::DEFAULT, PKey(0x1234)];
    world.loses = Some(Box::new(|smp| {
        let is_of_switch = smp.header.attribute_modifier >> 16 != 0;
        [smp.header.attribute == AttributeId(0x16) && is_of_switch, false]
    }));
    world.attach(0, SmConfig { p_keys: [(Guid(0x101), p_keys.clone())].into(), ..config(0x10) });
    world.wait(Duration::from_secs(5));
    let (host, leaf) = (world.nodes[2].port(1).unwrap(), world.nodes[0].port(1).unwrap());
    assert_eq!(host.pkeys[..2], p_keys);
    let info = &leaf.info;
    assert!(!info.partition_enforcement_inbound && !info.partition_enforcement_outbound);
    assert_eq!(info.port_state, PortState::ACTIVE);
}

/// Whatever is lost on the way, and however often: what a host may send, its switch lets through.
#[test]
fn switches_let_through_what_members_send_while_that_changes() {
    let keys = |range: std::ops::Range<u16>| range.map(|n| PKey(0x9000 + n)).collect::<Vec<_>>();
    // The fourth is too much for a switch. Who lost a P_Key never gets it again: it may have it still, if that write was lost.
    let steps = [keys(0..3), keys(2..40), keys(39..42), keys(39..90), keys(60..70), keys(66..100)];
    let hosts = [(2, Guid(0x101)), (3, Guid(0x201)), (4, Guid(0x301))];
    let mut given_up = 0;
    for seed in 0..20 {
        let mut world = World::new();
        for switch in [0, 1] {
            world.nodes[switch].forwarding.as_mut().unwrap().info.partition_enforcement_cap = 48;
        }
        world.attach(0, config(0x10));
        world.run();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let chance = [0.2, 0.6][seed as usize % 2];
        world.loses = Some(Box::new(move |smp| {
            let is_write = smp.header.method == Method::SET;
            [(); 2].map(|()| is_write && rng.random_bool(chance))
        }));
        world.watch = Some(Box::new(move |world| {
            for (host, guid) in hosts {
                let port = world.nodes[host].port(1).unwrap();
                let leaf = world.cables[&(host, 1)];
                let leaf = world.nodes[leaf.0].port(leaf.1).unwrap();
                let sm = &world.managers.get(&0).map(|sm| sm.config().p_keys.get(&guid).cloned());
                let member =
                    |key: &&PKey| sm.as_ref().and_then(Option::as_ref).is_some_and(|keys| keys.contains(key));
                for key in port.pkeys.iter().filter(member) {
                    let lets_in = !leaf.info.partition_enforcement_inbound || leaf.grants(*key);
                    let lets_out = !leaf.info.partition_enforcement_outbound || leaf.admits(*key);
                    assert!(lets_in && lets_out, "seed {seed}: {key:?} of host {host}");
                }
            }
        }));
        for step in &steps {
            for (_, guid) in hosts {
                world.managers.get_mut(&0).unwrap().set_p_keys(guid, step.clone());
            }
            world.wait(Duration::from_secs(3));
        }
        given_up += world.managers[&0].counters().unanswered;
        // In the end all is as it should be.
        world.loses = None;
        world.managers.get_mut(&0).unwrap().request_sweep();
        world.wait(Duration::from_secs(60));
        assert!(world.managers[&0].is_settled());
        for (host, _) in hosts {
            let leaf = world.cables[&(host, 1)];
            for at in [(host, 1), leaf] {
                let port = world.nodes[at.0].port(at.1).unwrap();
                let has: Vec<_> = port.pkeys.iter().copied().filter(|key| key.0 != 0).collect();
                assert_eq!(&has, steps.last().unwrap(), "seed {seed}: {at:?}");
            }
            let info = &world.nodes[leaf.0].port(leaf.1).unwrap().info;
            assert!(info.partition_enforcement_inbound && info.partition_enforcement_outbound);
        }
    }
    assert!(given_up > 100, "{given_up}");
}
