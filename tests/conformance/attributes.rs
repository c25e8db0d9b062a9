//! What a device says of itself, and its ports' tables.

use std::collections::HashSet;

use ibdev::{Access, DeviceError, GidKind, LinkLayer, PortState};
use ibwire::mad::{Method, MgmtClass};
use ibwire::{Gid, Guid, Lid, PKey};

use super::bench::Bench;
use super::case::cases;
use super::end::{Options, message, pair, remote, write};

cases! {
    attributes_are_stated;
    node_guid_is_stable;
    closed_device_opens_again_as_the_same [Close];
    ports_count_from_one;
    gids_have_a_type_and_an_index;
    link_layer_goes_with_lids_and_gids;
    pkeys_begin_with_the_default;
    second_port_has_tables_of_its_own [TwoPorts];
    counters_have_names_and_grow;
    limits_that_are_stated_are_held;
    region_says_where_it_is [Regions];
}

async fn attributes_are_stated(bench: Bench) {
    for device in [&bench.a, &bench.b] {
        let attr = device.attr();
        assert!(!attr.name.is_empty() && attr.ports > 0 && attr.node_guid != Guid(0), "{attr:?}");
        assert!(attr.max_qp_wr > 0 && attr.max_cqe >= attr.max_qp_wr && attr.max_sge > 0, "{attr:?}");
        assert!(attr.max_message >= 1 << 20, "{attr:?}");
        assert_eq!(device.attr(), device.attr());
    }
    if !std::sync::Arc::ptr_eq(&bench.a, &bench.b) {
        assert_ne!(bench.a.attr().node_guid, bench.b.attr().node_guid);
        assert_ne!(bench.a.attr().name, bench.b.attr().name);
    }
}

async fn node_guid_is_stable(bench: Bench) {
    let Bench { a, b, hands, .. } = bench;
    let attr = a.attr().clone();
    drop((a, b));
    assert_eq!(*hands.open_a().await.attr(), attr);
}

/// While handles of it are still there.
async fn closed_device_opens_again_as_the_same(bench: Bench) {
    let cq = bench.a.create_cq(1).await.unwrap();
    bench.a.close().await;
    assert!(matches!(bench.a.create_cq(1).await, Err(DeviceError::Gone)));
    let again = bench.hands.open_a().await;
    assert_eq!(again.attr(), bench.a.attr());
    again.create_cq(1).await.unwrap();
    bench.a.close().await;
    again.create_cq(1).await.unwrap();
    drop(cq);
}

async fn ports_count_from_one(bench: Bench) {
    let device = &bench.a;
    let ports = device.attr().ports;
    for port in 1..=ports {
        assert_eq!(device.port(port).unwrap().number, port);
        assert_eq!(device.port(port).unwrap().state, PortState::Active);
    }
    for port in [0, ports + 1] {
        let spec =
            ibdev::AgentSpec { port, class: MgmtClass::CM, class_version: 2, methods: &[Method::SEND] };
        for refused in [
            device.port(port).map(drop),
            device.gids(port).map(drop),
            device.pkeys(port).map(drop),
            device.open_agent(spec).map(drop),
        ] {
            match refused {
                Err(DeviceError::Limit { value, limit, .. }) => {
                    assert_eq!((value, limit), (port.into(), ports.into()));
                }
                other => panic!("port {port}: {other:?}"),
            }
        }
    }
}

async fn gids_have_a_type_and_an_index(bench: Bench) {
    let gids = bench.a.gids(1).unwrap();
    assert!(!gids.is_empty());
    let indices: HashSet<_> = gids.iter().map(|entry| entry.index).collect();
    assert_eq!(indices.len(), gids.len());
    assert!(gids.iter().all(|entry| entry.gid != Gid::UNSPECIFIED), "{gids:?}");
}

async fn link_layer_goes_with_lids_and_gids(bench: Bench) {
    let port = bench.a.port(1).unwrap();
    let is_ib = port.link_layer == LinkLayer::InfiniBand;
    assert_eq!(port.lid != Lid::NONE, is_ib);
    for entry in bench.a.gids(1).unwrap() {
        assert_eq!(entry.kind == GidKind::Infiniband, is_ib, "{entry:?}");
    }
}

async fn pkeys_begin_with_the_default(bench: Bench) {
    assert_eq!(bench.a.pkeys(1).unwrap()[0], PKey::DEFAULT);
}

async fn second_port_has_tables_of_its_own(bench: Bench) {
    let gids = |port| -> Vec<_> { bench.a.gids(port).unwrap().iter().map(|entry| entry.gid).collect() };
    assert!(gids(1).iter().all(|gid| !gids(2).contains(gid)));
    let [first, second] = [1, 2].map(|port| bench.a.port(port).unwrap());
    assert!(first.link_layer == LinkLayer::Ethernet || first.lid != second.lid);
}

async fn counters_have_names_and_grow(bench: Bench) {
    let sum = || bench.b.counters().iter().map(|(_, value)| value).sum::<u64>();
    let before = sum();
    let (a, b) = pair(&bench, Options::default()).await;
    b.receives(0, 1, 8).await;
    a.send(0, b"counted").await;
    assert!(a.completion().await.status.is_ok());
    assert!(sum() > before);
    let counters = bench.b.counters();
    let names: HashSet<_> = counters.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), counters.len());
}

/// Queues as long as the device says that they may be.
async fn limits_that_are_stated_are_held(bench: Bench) {
    let attr = bench.a.attr();
    let cq = bench.a.create_cq(attr.max_cqe).await.unwrap();
    let depth = attr.max_qp_wr.min(attr.max_cqe / 2);
    let spec = ibdev::qp::QpSpec {
        max_sge: attr.max_sge,
        ..ibdev::qp::QpSpec::new(ibdev::qp::QpType::Rc, &cq, depth, depth)
    };
    bench.a.domain().create_qp(spec).await.unwrap();
    if attr.max_srq_wr > 0 {
        bench.a.domain().create_srq(attr.max_srq_wr, attr.max_sge).await.unwrap();
    }
}

/// Handles of regions travel as bytes.
async fn region_says_where_it_is(bench: Bench) {
    let (a, b) = pair(&bench, Options::default()).await;
    let region = b.expose(100, Access::REMOTE_WRITE).await;
    assert_eq!((region.len(), region.access()), (100, Access::REMOTE_WRITE));
    let told = ibdev::RemoteRegion::from_bytes(&region.remote().to_bytes()).unwrap();
    assert_eq!(told, region.remote());
    let part = told.slice(40, 20).unwrap();
    assert_eq!((part.addr(), part.rkey()), (remote(&region, 40).addr, told.rkey()));
    let to = ibdev::RemoteAddr { addr: part.addr(), rkey: part.rkey() };
    assert!(a.carry_out(write(to), &message(1, 20)).await.status.is_ok());
    let mut there = [0; 20];
    region.copy_to(40, &mut there).unwrap();
    assert_eq!(there[..], message(1, 20));
}
