//! Subnets whose links, nodes and managers come and go: in the end everything is as the managers want it.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use ibsa::record::VlWeight;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::super::node::ports_of;
use super::super::{BuildSubnet, Mishap};
use super::*;
use crate::manager::{PortAt, Qos};

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
            for mlid in (0xc000..0xc020).map(Lid) {
                let is: BTreeSet<u8> =
                    tables.ports(mlid).map(|mask| ports_of(mask).collect()).unwrap_or_default();
                if is != want.multicast.get(&mlid).cloned().unwrap_or_default() {
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

/// A subnet on which everything happens, with what is not right in the end.
async fn run(seed: u64) -> (Subnet, Vec<String>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (build, switches) = any_subnet(&mut rng, seed);
    let net = build.await.unwrap();
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
    tokio::time::sleep(Duration::from_secs(30)).await;
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
