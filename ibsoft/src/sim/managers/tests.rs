//! Subnets whose links, nodes and managers come and go: in the end everything is as the managers want it.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use ibdev::Device;
use ibsa::mad::SaHeader;
use ibsa::record::{InformInfo, Layout, PortInfo, VlWeight};
use ibwire::mad::{AttributeId, MadHeader, Method, MgmtClass};
use ibwire::packet::{Bth, Lrh, NextHeader, Opcode, link_frame};
use ibwire::{Psn, Qpn, ServiceLevel, TransactionId};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::super::manager::tests::groups::membership;
use super::super::node::ports_of;
use super::super::{BuildSubnet, Faults, Mishap};
use super::*;
use crate::manager::{Peer, PortAt, Qos};

/// Up to four switches in a row with some more links, and up to five HCAs.
fn any_subnet(rng: &mut ChaCha8Rng, seed: u64) -> (BuildSubnet, usize) {
    let switches = rng.random_range(1..=4);
    let mut build = (0..switches).fold(Subnet::builder(), |build, n| build.switch(format!("s{n}")));
    for n in 1..switches {
        build = build.link(&format!("s{}", n - 1), &format!("s{n}"));
        if rng.random() {
            let other = rng.random_range(0..n);
            build = build.link(&format!("s{other}"), &format!("s{n}"));
        }
    }
    for n in 0..rng.random_range(1..=5) {
        let name = format!("h{n}");
        let switch = format!("s{}", rng.random_range(0..switches));
        build = build.hca(&name).link(&name, &switch);
    }
    (build.lmc(rng.random_range(0..=2)).seed(seed).managed(), switches)
}

/// What is not as its manager wants it.
fn flaws(net: &Subnet) -> Vec<String> {
    let fabric = net.0.wires.fabric();
    let mut flaws = Vec::new();
    for host in fabric.hosts() {
        let mut part = BTreeSet::from([host.node]);
        let mut next = vec![host.node];
        while let Some(node) = next.pop() {
            let ports = (1..=fabric.nodes[node].port_count()).map(|port| PortId { node, port });
            next.extend(
                ports.filter_map(|id| fabric.linked(id)).map(|peer| peer.node).filter(|n| part.insert(*n)),
            );
        }
        let masters: Vec<_> = part
            .iter()
            .filter_map(|node| fabric.managers.get(node)?.sm())
            .filter(|sm| sm.state() == SmState::MASTER)
            .collect();
        let [master] = masters[..] else {
            let states = part.iter().filter_map(|node| {
                let sm = fabric.managers.get(node)?.sm()?;
                Some(format!("{}: {:?} {}", fabric.nodes[*node].name, sm.state(), sm.is_settled()))
            });
            flaws.push(format!("not one master: {:?}", states.collect::<Vec<_>>()));
            continue;
        };
        let topology = master.sa().topology();
        if topology.nodes.len() != part.len() {
            flaws.push(format!("{} nodes are known, {} are there", topology.nodes.len(), part.len()));
        }
        let own = topology.at_guid(master.config().guid).and_then(|at| topology.port(at));
        let sm_lid = own.map(|port| port.info.lid);
        for (number, known) in topology.nodes.iter().enumerate() {
            let Some(node) = fabric.nodes.iter().find(|node| node.guid == known.info.node_guid) else {
                flaws.push(format!("{} is not there", known.description));
                continue;
            };
            for (port, want) in &known.ports {
                let Some(is) = node.port(*port) else { continue };
                if want.peer.is_some() && !is.is_active() {
                    flaws.push(format!("{}/{port}: {:?}", node.name, is.info.port_state));
                }
                let enforces = |info: &PortInfo| {
                    (info.partition_enforcement_inbound, info.partition_enforcement_outbound)
                };
                let no_p_key = is.pkeys.iter().rposition(|key| key.0 != 0).map_or(0, |last| last + 1);
                let has_table = !node.is_switch() || enforces(&want.info) != (false, false);
                if enforces(&is.info) != enforces(&want.info)
                    || want.peer.is_some() && has_table && is.pkeys[..no_p_key] != want.p_keys
                {
                    flaws.push(format!("{}/{port}: P_Keys {:?}", node.name, &is.pkeys[..no_p_key]));
                }
                let is_end = topology.end_port_of(PortAt { node: number, port: *port }).port == *port;
                if is_end
                    && (is.info.lid, is.info.lmc, Some(is.info.master_sm_lid))
                        != (want.info.lid, want.info.lmc, sm_lid)
                {
                    flaws.push(format!(
                        "{}/{port}: LID {:?}, not {:?}",
                        node.name, is.info.lid, want.info.lid
                    ));
                }
            }
            let Some((tables, want)) = node.forwarding.as_ref().zip(known.switch.as_ref()) else { continue };
            for lid in (1..want.linear.len() as u16).map(Lid) {
                if tables.port(lid) != want.route(lid) {
                    flaws.push(format!(
                        "{}: {lid:?} by {:?}, not {:?}",
                        node.name,
                        tables.port(lid),
                        want.route(lid)
                    ));
                }
            }
            for mlid in (0xc000..0xffff).map(Lid) {
                let is = tables.ports(mlid).filter(|mask| **mask != [0; 16]);
                let is: BTreeSet<u8> = is.map(|mask| ports_of(mask).collect()).unwrap_or_default();
                let none = BTreeSet::new();
                if is != *want.multicast.get(&mlid).unwrap_or(&none) {
                    flaws.push(format!("{}: {mlid:?} to {is:?}", node.name));
                }
            }
        }
        let ends: Vec<_> = part
            .iter()
            .filter(|node| !fabric.nodes[**node].is_switch())
            .map(|node| PortId { node: *node, port: 1 })
            .collect();
        for (from, to) in ends.iter().flat_map(|from| ends.iter().map(move |to| (*from, *to))) {
            let Some(info) = fabric.nodes[to.node].port(to.port).map(|port| &port.info) else { continue };
            for lid in (0..1 << info.lmc).map(|bits| Lid(info.lid.0 + bits)) {
                let end = fabric.route(from, lid).last().and_then(|out| fabric.linked(*out));
                if from != to && end != Some(to) {
                    flaws.push(format!("{} does not reach {}", fabric.name(from), fabric.name(to)));
                }
            }
        }
    }
    flaws
}

fn seconds(range: RangeInclusive<u64>) -> RangeInclusive<Duration> {
    Duration::from_secs(*range.start())..=Duration::from_secs(*range.end())
}

/// HCAs join groups, or leave them, whoever is master.
fn change_groups(net: &Subnet, rng: &mut ChaCha8Rng) {
    let mut fabric = net.0.wires.fabric();
    let hcas: Vec<_> = fabric.nodes.iter().filter(|node| !node.is_switch()).collect();
    let ends: Vec<_> =
        hcas.iter().filter_map(|hca| hca.port(1)).map(|port| (port.info.lid, port.guids[0])).collect();
    let now = tokio::time::Instant::now().into_std();
    let count = rng.random_range(0..200);
    fabric.tell_managers(now, |sm| {
        for group in 0..count {
            let (lid, guid) = ends[usize::from(group) % ends.len()];
            let (sl, p_key) = (ServiceLevel::default(), PKey::DEFAULT);
            let from = Peer { lid, qpn: Qpn::GSI, gid: None, sl, p_key };
            let method = if group % 3 == 2 { Method::DELETE } else { Method::SET };
            sm.handle_sa(now, from, &membership(method, group / 3 * 2, guid));
        }
    });
}

/// A subnet on which everything happens, with what is not right in the end.
async fn run(seed: u64) -> (Subnet, Vec<String>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (build, switches) = any_subnet(&mut rng, seed);
    let net = build.await.unwrap();
    change_groups(&net, &mut rng);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(flaws(&net), [] as [&str; 0], "seed {seed}, at first");
    if switches > 1 && rng.random() {
        net.sm("s1").start(rng.random_range(0..3));
    }
    let faults = net.faults().loss(0.03).duplicate(0.02).corrupt(0.01).reorder(0.1);
    let mut faults = faults.delay(Duration::ZERO..=Duration::from_millis(5));
    for what in [Mishap::Link, Mishap::Hca, Mishap::Switch, Mishap::Partition, Mishap::Manager] {
        if rng.random() {
            faults = faults.happen(what, seconds(1..=10), seconds(0..=6));
        }
    }
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        change_groups(&net, &mut rng);
        let p_keys: Vec<_> = (0..rng.random_range(1..=64)).map(|n| PKey(0x8001 + n)).collect();
        net.set_p_keys("h0", &p_keys);
    }
    faults.clear();
    tokio::time::sleep(Duration::from_secs(40)).await;
    let flaws = flaws(&net);
    (net, flaws)
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_tables_end_as_the_manager_wants_them() {
    // More of them by hand: IBSOFT_SUBNETS=5000.
    let count = std::env::var("IBSOFT_SUBNETS").ok().and_then(|count| count.parse().ok()).unwrap_or(20);
    for seed in 0..count {
        let (net, flaws) = run(seed).await;
        assert_eq!(flaws, [] as [&str; 0], "seed {seed}: {:?}", net.counters());
    }
}

#[tokio::test(start_paused = true)]
async fn a_sweep_does_not_wait_for_a_standby() {
    let net = Subnet::builder().switch("s").switch("t").link("s", "t").managed().await.unwrap();
    net.sm("t").start(0);
    net.sweep().await.unwrap();
    assert_eq!(["s", "t"].map(|name| net.sm(name).state()), [Some(SmState::MASTER), Some(SmState::STANDBY)]);
    let start = tokio::time::Instant::now();
    net.sweep().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn who_is_trusted_hears_of_packets_of_other_partitions() {
    let net = Subnet::builder().switch("s").hca("a").link("a", "s").hca("b").link("b", "s").managed();
    let net = net.await.unwrap();
    let count = |name| net.sm("s").counters().into_iter().find(|(n, _)| *n == name).unwrap().1;
    let lids = ["a", "b"].map(|name| net.device(name).port(1).unwrap().lid);
    net.change(|fabric, now| {
        // A subscription with the SM_Key to trap 259.
        let header = MadHeader::new(MgmtClass::SA, 2, Method::SET, AttributeId(3), TransactionId(1));
        let mut mad = [0; 256];
        mad[..SaHeader::LEN].copy_from_slice(&SaHeader { sm_key: 1, ..SaHeader::new(header) }.to_bytes());
        InformInfo::trap(259).write_to(&mut mad[SaHeader::LEN..]);
        let (sl, p_key) = (ServiceLevel::default(), PKey::DEFAULT);
        let peer = Peer { lid: lids[0], qpn: Qpn::GSI, gid: None, sl, p_key };
        fabric.tell_managers(now, |sm| sm.handle_sa(now, peer, &mad));
        let bth = Bth { pkey: PKey(0x8005), ..Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::truncate(0)) };
        let (next, dlid, slid) = (NextHeader::Bth, lids[1], lids[0]);
        let lrh = Lrh { vl: 0, sl, next, dlid, words: 0, slid, reserved: 0 };
        let frame = link_frame(lrh, None, &[&bth.to_bytes()[..], &[0; 8]].concat());
        fabric.send(now, PortId { node: 0, port: 1 }, frame.into());
    });
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!((count("traps"), count("reports"), net.0.wires.fabric().counters.pkey), (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_manager_alone_gives_gids() {
    let net = Subnet::star(["a"]).managed().await.unwrap();
    let set = || net.set_gid("a", 1, "fd00::1".parse().unwrap());
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(set)).unwrap_err();
    let text = *refused.downcast::<String>().unwrap();
    assert!(text.ends_with("its subnet manager alone gives GIDs"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn there_is_no_path_to_an_hca_without_a_lid() {
    for build in [Subnet::star(["a", "b"]), Subnet::star(["a", "b"]).managed()] {
        let net = build.await.unwrap();
        let (a, b) = (net.device("a"), net.device("b").gids(1).unwrap()[0].gid);
        let lid = a.resolve(1, b).unwrap().dlid;
        net.remove("b");
        assert_eq!(a.resolve(1, b), None);
        net.put_back("b");
        net.sweep().await.unwrap();
        assert_eq!(a.resolve(1, b).unwrap().dlid, lid);
    }
}

#[tokio::test(start_paused = true)]
async fn a_manager_on_a_switch_that_is_out_starts_when_that_is_back() {
    let net = Subnet::builder().switch("s").switch("t").link("s", "t").managed().await.unwrap();
    let sm = net.sm("t");
    net.remove_switch("t");
    sm.start(9);
    assert_eq!(sm.state(), None);
    sm.restart_with_new_lids();
    net.put_switch_back("t");
    net.sweep().await.unwrap();
    assert_eq!(sm.state(), Some(SmState::MASTER));
    net.remove_switch("t");
    assert_eq!(sm.state(), None);
    sm.kill();
    net.put_switch_back("t");
    tokio::time::sleep(Duration::from_secs(10)).await; // the standby takes over
    net.sweep().await.unwrap();
    assert_eq!((sm.state(), net.sm("s").state()), (None, Some(SmState::MASTER)));
    assert_eq!(flaws(&net), [] as [&str; 0]);
}

/// The mishap of this kind, begun.
async fn begun(net: &Subnet, what: Mishap) -> Faults {
    let faults = net.faults().happen(what, seconds(1..=1), seconds(100..=100));
    tokio::time::sleep(Duration::from_millis(1500)).await;
    faults
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_mishap_leaves_what_was_done_by_hand() {
    let net = Subnet::star(["a"]).managed().await.unwrap();
    let is_up = || net.0.wires.fabric().linked(PortId { node: 0, port: 1 }).is_some();
    let is_in = |node: usize| !net.0.wires.fabric().removed[node];
    let sm = net.sm("switch 1");
    let faults = begun(&net, Mishap::Link).await;
    assert!(!is_up());
    net.link_down("a");
    faults.clear();
    assert!(!is_up(), "it was taken down by hand, too");
    net.link_up("a");
    assert!(is_up());
    let faults = begun(&net, Mishap::Link).await;
    net.link_up("a");
    assert!(is_up());
    faults.clear();
    assert!(is_up());

    for (what, node) in [(Mishap::Hca, 0), (Mishap::Switch, 1)] {
        let [remove, put_back]: [&dyn Fn(); 2] = match what {
            Mishap::Hca => [&|| net.remove("a"), &|| drop(net.put_back("a"))],
            _ => [&|| net.remove_switch("switch 1"), &|| net.put_switch_back("switch 1")],
        };
        let faults = begun(&net, what).await;
        assert!(!is_in(node));
        remove();
        faults.clear();
        assert!(!is_in(node), "{what:?}");
        put_back();
        assert!(is_in(node));
        let faults = begun(&net, what).await;
        put_back();
        assert!(is_in(node));
        remove();
        faults.clear();
        assert!(!is_in(node), "{what:?}");
        put_back();
    }
    assert!(sm.state().is_some());

    let faults = begun(&net, Mishap::Manager).await;
    assert_eq!(sm.state(), None);
    sm.kill();
    faults.clear();
    assert_eq!(sm.state(), None);
    sm.start(0);
    let faults = begun(&net, Mishap::Manager).await;
    sm.start(0);
    sm.kill();
    faults.clear();
    assert_eq!(sm.state(), None);
    sm.start(0);
    // The switch goes and comes back before the mishap ends.
    let faults = begun(&net, Mishap::Manager).await;
    net.remove_switch("switch 1");
    net.put_switch_back("switch 1");
    assert_eq!(sm.state(), None);
    faults.clear();
    net.sweep().await.unwrap();
    assert_eq!((sm.state(), flaws(&net)), (Some(SmState::MASTER), vec![]));
}

#[tokio::test(start_paused = true)]
async fn mishaps_may_last_for_ever() {
    let net = Subnet::star(["a"]).await.unwrap();
    let (never, soon) = (Duration::MAX..=Duration::MAX, seconds(1..=1));
    let faults = net.faults().happen(Mishap::Link, soon.clone(), never.clone());
    let faults = faults.happen(Mishap::Hca, never.clone(), soon).happen(
        Mishap::Switch,
        Duration::ZERO..=Duration::MAX,
        never,
    );
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(net.0.wires.fabric().linked(PortId { node: 0, port: 1 }).is_none());
    faults.clear();
    assert!(net.0.wires.fabric().linked(PortId { node: 0, port: 1 }).is_some());
    let late = Duration::from_secs(1)..=Duration::ZERO;
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| net.faults().delay(late)));
    assert_eq!(*refused.unwrap_err().downcast::<&str>().unwrap(), "an empty range of times");
}

#[tokio::test(start_paused = true)]
async fn p_keys_that_are_taken_back_are_gone() {
    let many: Vec<_> = (0..40).map(|n| PKey(0x8001 + n)).collect();
    let one = [PKey::DEFAULT];
    let of_a = |net: &Subnet| net.0.wires.fabric().nodes[0].port(1).unwrap().tables(1).pkeys;
    let net = Subnet::star(["a"]).await.unwrap();
    for keys in [&many[..], &one] {
        net.set_p_keys("a", keys);
        assert_eq!(of_a(&net), keys);
    }
    let net = Subnet::star(["a"]).managed().await.unwrap();
    net.set_p_keys("a", &many);
    net.sweep().await.unwrap();
    assert_eq!(of_a(&net), many);
    // Another manager does not know of them, but of what was ordered while there was none.
    net.sm("switch 1").kill();
    net.set_p_keys("a", &one);
    net.sm("switch 1").start(0);
    net.sweep().await.unwrap();
    assert_eq!(of_a(&net), one);
    net.remove_switch("switch 1");
    net.set_p_keys("a", &many);
    net.put_switch_back("switch 1");
    net.sweep().await.unwrap();
    assert_eq!(of_a(&net), many);
}

#[tokio::test(start_paused = true)]
async fn lanes_are_those_of_the_configuration() {
    let weight = |vl, weight| VlWeight { vl, weight };
    let (low, high) = (vec![weight(0, 4), weight(1, 8)], vec![weight(2, 255)]);
    let vls = std::array::from_fn(|sl| if sl == 15 { 15 } else { sl as u8 });
    let qos = Qos { vls, low: low.clone(), high: high.clone(), high_limit: 7 };
    let build =
        || Subnet::builder().switch("s").switch("t").link("s", "t").hca("a").link("a", "s").qos(qos.clone());
    for build in [build(), build().managed()] {
        let net = build.await.unwrap();
        net.port_down("s", 1);
        net.port_up("s", 1);
        net.sweep().await.unwrap();
        let fabric = net.0.wires.fabric();
        for (node, port, entered) in [(0, 1, 0), (1, 1, 2), (1, 1, 0), (1, 2, 1), (2, 1, 0)] {
            let port = fabric.nodes[node].port(port).unwrap();
            for (sl, vl) in [(0, 0), (5, 5), (9, 1), (15, 15)] {
                assert_eq!(port.vl(entered, sl), vl, "{node}: SL {sl}");
            }
            assert_eq!((&port.arbitration[0][..2], &port.arbitration[2][..1]), (&low[..], &high[..]));
            assert_eq!(port.info.vl_high_limit, 7);
        }
    }
    let long = Qos { low: vec![weight(0, 1); 33], ..qos.clone() };
    let no_vl = Qos { vls: [16; 16], ..qos };
    for (qos, what) in [(long, "low priority entries"), (no_vl, "VL")] {
        let refused = Subnet::star(["a"]).qos(qos).await.map(drop).unwrap_err();
        assert!(matches!(refused, DeviceError::Limit { what: got, .. } if got == what), "{refused}");
    }
}
