//! Subnets of several switches, through the device contract alone.
#![allow(clippy::unwrap_used, reason = "test helpers outside #[test] functions")]

mod common;

use std::time::Duration;

use common::*;
use ibdev::{Device, DeviceError, DeviceEvent, Status};
use ibsoft::sim::{BuildSubnet, Subnet};
use ibwire::{Lid, Mtu, PKey, Rate};

/// Two switches with two links between them, and an HCA at each.
fn pair_of_switches() -> BuildSubnet {
    Subnet::builder()
        .switch("left")
        .switch("right")
        .link("left/10", "right/10")
        .link("left/11", "right/11")
        .hca("a")
        .link("a", "left")
        .hca("b")
        .link("b", "right")
}

fn counter(net: &Subnet, name: &str) -> u64 {
    net.counters().into_iter().find(|(counter, _)| *counter == name).expect("a counter").1
}

#[tokio::test(start_paused = true)]
async fn connections_pass_two_switches_and_survive_a_link() {
    let net = pair_of_switches().seed(1).await.unwrap();
    let (a, b) = pair(net.device("a"), net.device("b"), Options::default()).await;
    net.port_down("left", 10);
    soon(exchange(&a, &b, 1)).await;
    net.port_up("left", 10);
    net.port_down("right", 11);
    soon(exchange(&a, &b, 1)).await;
    drop((a, b));
    net.quiet().await.unwrap();
    assert_eq!(counter(&net, "drop_no_route"), 0);
}

#[tokio::test(start_paused = true)]
async fn without_a_way_packets_are_dropped_and_counted() {
    let net = pair_of_switches().await.unwrap();
    let options = Options { retry_count: 1, ..Options::default() };
    let (a, b) = pair(net.device("a"), net.device("b"), options).await;
    b.post_recv(1, 16);
    net.remove_switch("right");
    assert_eq!(soon(event(&b.device)).await, DeviceEvent::PortDown(1));
    a.post_send(1, b"nobody hears", None);
    assert_eq!(soon(a.completions(1)).await[0].status, Status::RETRY_EXC_ERR);
    assert_eq!(counter(&net, "drop_no_route"), 2);
    net.put_switch_back("right");
    assert_eq!(soon(event(&b.device)).await, DeviceEvent::PortUp(1));
    let (a, b) = pair(net.device("a"), net.device("b"), Options::default()).await;
    soon(exchange(&a, &b, 1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_path_is_as_wide_as_its_narrowest_link() {
    let net = Subnet::builder()
        .rate(Rate::GBPS_200)
        .switch("left")
        .switch("right")
        .link("left", "right")
        .rate(Rate::GBPS_25)
        .mtu(Mtu::B1024)
        .hca("a")
        .link("a", "left")
        .hca_with_ports("b", 2)
        .link("b/2", "right")
        .await
        .unwrap();
    let (a, b) = (net.device("a"), net.device("b"));
    let path = a.resolve(1, b.gids(2).unwrap()[0].gid).unwrap();
    assert_eq!((path.mtu, path.rate, path.dlid), (Mtu::B1024, Rate::GBPS_25, b.port(2).unwrap().lid));
    assert_eq!(a.port(1).unwrap().rate, Rate::GBPS_200);
    assert!(a.resolve(1, b.gids(1).unwrap()[0].gid).is_none(), "the other port has no link");

    let (a, b) = (End::on_port(a, 1).await, End::on_port(b, 2).await);
    a.ready(&b, Options::default()).await;
    b.ready(&a, Options::default()).await;
    soon(exchange(&a, &b, 1)).await;
    assert_eq!(counter(&net, "drop_too_long"), 0);
}

#[tokio::test(start_paused = true)]
async fn packets_take_their_time_on_each_link() {
    // 2.5 Gb/s: 3.2 ns a byte, over three links.
    let net = pair_of_switches().timed().await.unwrap();
    let fast = elapsed(&net).await;
    let slow = Subnet::builder()
        .rate(Rate::GBPS_2_5)
        .switch("s")
        .hca("a")
        .link("a", "s")
        .hca("b")
        .link("b", "s")
        .timed()
        .await
        .unwrap();
    let slow = elapsed(&slow).await;
    // 4 MiB take 13.4 ms at 2.5 Gb/s, and 0.3 ms at 100 Gb/s.
    assert!((13..20).contains(&slow.as_millis()) && fast.as_millis() < 4, "{slow:?} {fast:?}");
}

/// How long 4 MiB take.
async fn elapsed(net: &Subnet) -> Duration {
    let (a, b) = pair(net.device("a"), net.device("b"), Options::default()).await;
    let start = tokio::time::Instant::now();
    let message = vec![7; 1 << 20];
    b.post_recv(4, 1 << 20);
    (0..4).for_each(|_| a.post_send(1, &message, None));
    soon(a.completions(4)).await;
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn every_lid_of_a_port_leads_to_it() {
    let net = pair_of_switches().lmc(2).await.unwrap();
    let (a, b) = (net.device("a"), net.device("b"));
    let (from, to) = (a.port(1).unwrap(), b.port(1).unwrap());
    assert_eq!((from.lid, from.lmc, to.lid, to.lmc), (Lid(4), 2, Lid(8), 2));
    let (agent_a, agent_b) = (a.open_agent(CM).unwrap(), b.open_agent(CM).unwrap());
    let gid = b.gids(1).unwrap()[0].gid;
    for bits in 0..4 {
        let mut to = to_gsi(&a, gid);
        to.av.dlid = Lid(8 + u16::from(bits));
        to.av.path_bits = bits;
        send_all(&*agent_a, [ibdev::OutgoingMad { to, mad: mad(bits.into()) }]).await;
        let got = soon(receive(&*agent_b, 1)).await;
        assert_eq!((got[0].from.path_bits, got[0].from.slid), (bits, Lid(4 + u16::from(bits))));
    }
    drop(agent_a);
    // Different LIDs go by different links.
    let file = tempfile("lmc.pcap");
    net.write_pcap_of_link("left/10", &file).unwrap();
    let (one, all) = (packets(&file), net.log().len());
    assert!(one > 0 && one < all, "{one} of {all}");
    std::fs::remove_file(file).unwrap();
}

fn tempfile(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("ibsoft-{}-{name}", std::process::id()))
}

fn packets(file: &std::path::Path) -> usize {
    let mut reader = pcap_file::pcap::PcapReader::new(std::fs::File::open(file).unwrap()).unwrap();
    std::iter::from_fn(|| reader.next_packet().map(|packet| drop(packet.unwrap()))).count()
}

#[tokio::test(start_paused = true)]
async fn p_keys_are_those_that_were_given() {
    let net = Subnet::builder()
        .switch("s")
        .hca("a")
        .p_keys([PKey(0x8005), PKey::DEFAULT])
        .link("a", "s")
        .hca("b")
        .link("b", "s")
        .await
        .unwrap();
    assert_eq!(net.device("a").pkeys(1).unwrap(), [PKey(0x8005), PKey::DEFAULT]);
    assert_eq!(net.device("b").pkeys(1).unwrap(), [PKey::DEFAULT]);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_is_refused_where_it_is_asked_for() {
    let refused = |build: BuildSubnet| async { build.await.map(drop).unwrap_err() };
    let star = || Subnet::builder().switch("s").hca("a").link("a", "s");
    for build in [star().hca("s"), star().switch("a")] {
        assert!(matches!(refused(build).await, DeviceError::InUse { .. }));
    }
    let twice = star().switch("t").link("s/5", "t/1").link("s/5", "t/2");
    assert!(matches!(refused(twice).await, DeviceError::InUse { what: "a port", .. }));
    for (build, what) in [
        (star().switch("t").link("a", "t"), "links of a node"),
        (star().lmc(8), "LMC"),
        (star().hca_with_ports("b", 0), "ports of an HCA"),
        (star().hca("b").p_keys([]), "P_Keys"),
        (Subnet::rails(0, ["a"]), "rails"),
    ] {
        assert!(
            matches!(refused(build).await, DeviceError::Limit { what: got, .. } if got == what),
            "{what}"
        );
    }
    for end in ["t", "a/2", "s/255", "s/0", "s/x"] {
        let named = std::panic::catch_unwind(|| drop(star().link("s", end)));
        assert!(named.is_err(), "{end}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_star_of_many_has_leaves() {
    let net = Subnet::star((0..600).map(|n| format!("hca {n}"))).await.unwrap();
    let (a, b) = pair(net.device("hca 3"), net.device("hca 599"), Options::default()).await;
    soon(exchange(&a, &b, 1)).await;
}
