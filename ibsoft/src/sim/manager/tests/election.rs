//! Several managers: who is master.

use super::*;

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

/// The one above us is looked at again for as long as it is not ready.
#[test]
fn one_of_higher_priority_that_looks_around_for_long_is_waited_for() {
    let mut world = World::new();
    world.attach(0, config(0x10));
    world.run();
    world.wait(Duration::from_secs(5));
    // Its first question is lost.
    const OTHERS: u64 = 1 << 32;
    let mut lost = false;
    world.loses =
        Some(Box::new(move |smp| [smp.header.tid.0 > OTHERS && !std::mem::replace(&mut lost, true), false]));
    let timeout = Duration::from_secs(4);
    world.attach(1, SmConfig { priority: 9, timeout, last_tid: OTHERS, ..config(0x20) });
    world.managers.get_mut(&0).unwrap().request_sweep();
    world.wait(Duration::from_millis(3900));
    let states = |world: &World| world.managers.values().map(SubnetManager::state).collect::<Vec<_>>();
    assert_eq!(states(&world), [SmState::MASTER, SmState::DISCOVERING]);
    world.wait(Duration::from_secs(2));
    assert_eq!(states(&world), [SmState::STANDBY, SmState::MASTER]);
}

/// One that never is, and one that is gone, are waited for no longer than it takes to see that.
#[test]
fn one_that_is_gone_while_it_looks_around_is_not_waited_for() {
    let mut world = World::new();
    world.attach(0, config(0x10));
    world.run();
    world.wait(Duration::from_secs(5));
    world.loses = Some(Box::new(|smp| [smp.header.tid.0 > 1 << 32, false]));
    let timeout = Duration::from_secs(1000);
    world.attach(1, SmConfig { priority: 9, timeout, last_tid: 1 << 32, ..config(0x20) });
    world.managers.get_mut(&0).unwrap().request_sweep();
    world.wait(Duration::from_secs(10));
    let looks = |world: &World| world.managers[&0].counters().light_sweeps;
    let before = looks(&world);
    world.wait(Duration::from_secs(10));
    assert!((8..=11).contains(&(looks(&world) - before)), "{}", looks(&world) - before);
    world.loses = None;
    world.managers.remove(&1);
    world.wait(Duration::from_secs(3));
    let before = looks(&world);
    world.wait(Duration::from_secs(30));
    assert!(looks(&world) - before <= 4, "{}", looks(&world) - before);
}
