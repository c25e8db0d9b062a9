use std::time::{Duration, Instant};

use ibwire::packet::Opcode;
use ibwire::{Gid, Guid, Mtu, PKey, Psn, Qpn, ServiceLevel, TimeCode};

use super::super::fabric::Link;
use super::super::node::{Node, PortShape};
use super::*;

/// Four HCAs, two at each of two switches; by the HCAs' order: nodes 0 to 3, then the switches.
fn fabric() -> (Fabric, Instant) {
    let start = Instant::now();
    let shape = |number, guid| PortShape { number, guid: Guid(guid), mtu: Fabric::MTU, rate: Fabric::RATE };
    let hca = |n: u64| Node::hca(format!("hca {n}"), Guid(n << 8), [shape(1, n << 8 | 1)]);
    let switch =
        |n: u64| Node::switch(format!("switch {n}"), Guid(n << 8), (1..=3).map(|port| shape(port, 0)));
    let nodes = vec![hca(1), hca(2), hca(3), hca(4), switch(5), switch(6)];
    let at = |node, port| PortId { node, port };
    let links = [
        Link(at(0, 1), at(4, 1)),
        Link(at(1, 1), at(4, 2)),
        Link(at(2, 1), at(5, 1)),
        Link(at(3, 1), at(5, 2)),
        Link(at(4, 3), at(5, 3)),
    ];
    let mut fabric = Fabric::new(nodes, &links, 7, start);
    assert_eq!(fabric.configure_at_once(start), 0);
    (fabric, start)
}

const FIRST: PortId = PortId { node: 0, port: 1 };

/// A packet for a LID: 1 and 2 are the switches, 3 to 6 the HCAs.
fn label(lid: u16) -> Label {
    Label { dlid: Lid(lid), sl: 0, bytes: 284, pkey: Some(PKey::DEFAULT) }
}

/// Where a packet of the first HCA gets, or why not.
fn ends(fabric: &mut Fabric, now: Instant, label: Label) -> Vec<Result<usize, Fate>> {
    let end = |way: Way| way.stopped.map_or_else(|| Ok(way.to.map_or(99, |to| to.node)), Err);
    fabric.ways(now, FIRST, label).into_iter().map(end).collect()
}

fn port(fabric: &mut Fabric, node: usize, number: u8) -> &mut super::super::node::Port {
    fabric.nodes[node].port_mut(number).unwrap()
}

#[test]
fn packets_follow_the_tables() {
    let (mut fabric, now) = fabric();
    for (lid, node) in [(1, 4), (2, 5), (3, 0), (4, 1), (5, 2), (6, 3)] {
        assert_eq!(ends(&mut fabric, now, label(lid)), [Ok(node)]);
    }
    assert_eq!(ends(&mut fabric, now, label(7)), [Err(Fate::NoRoute)]);
    assert_eq!(fabric.route(FIRST, Lid(5)).iter().map(|out| out.node).collect::<Vec<_>>(), [0, 4, 5]);
    // The switches point at each other.
    for switch in [4, 5] {
        fabric.nodes[switch].forwarding.as_mut().unwrap().replace_routes(&[(9, 3)]);
    }
    assert_eq!(ends(&mut fabric, now, label(9)), [Err(Fate::Circling)]);
    assert_eq!(fabric.route(FIRST, Lid(9)).len(), MOST_HOPS);
}

#[test]
fn raw_groups_are_copied_to_members_and_not_back() {
    let (mut fabric, now) = fabric();
    let mgid = Gid([0xff; 16]);
    let nobody = Label { dlid: Lid(0xc000), ..label(0) };
    assert_eq!(ends(&mut fabric, now, nobody), [Err(Fate::NoRoute)]);
    for node in [1, 2, 3] {
        fabric.join(PortId { node, port: 1 }, mgid, nobody.dlid);
    }
    let raw = Label { pkey: None, ..nobody };
    for label in [nobody, raw] {
        let mut copies = ends(&mut fabric, now, label);
        copies.sort_by_key(|end| end.unwrap());
        assert_eq!(copies, [Ok(1), Ok(2), Ok(3)]);
    }
    // A member gets its own copy, once.
    fabric.join(FIRST, mgid, nobody.dlid);
    assert_eq!(ends(&mut fabric, now, nobody).iter().filter(|end| **end == Ok(0)).count(), 1);
    for node in [2, 3] {
        fabric.leave(PortId { node, port: 1 }, mgid, nobody.dlid);
    }
    let mut copies = ends(&mut fabric, now, nobody);
    copies.sort_by_key(|end| end.unwrap());
    assert_eq!(copies, [Ok(0), Ok(1)]);
    // Tables that lead in circles end.
    for switch in [4, 5] {
        fabric.nodes[switch].forwarding.as_mut().unwrap().set_ports(Lid(0xc000), {
            let mut ports = [0; 16];
            ports[0] = 0b1110;
            ports
        });
    }
    assert!(ends(&mut fabric, now, nobody).len() < 10);
}

#[test]
fn ports_of_switches_enforce() {
    let (mut fabric, now) = fabric();
    let raw = Label { pkey: None, ..label(5) };
    for (number, node, inbound) in [(1, 4, true), (3, 4, false), (3, 5, true), (1, 5, false)] {
        let info = &mut port(&mut fabric, node, number).info;
        match inbound {
            true => info.partition_enforcement_inbound = true,
            false => info.partition_enforcement_outbound = true,
        }
        assert_eq!(ends(&mut fabric, now, label(5)), [Ok(2)], "the table has it");
        assert_eq!(ends(&mut fabric, now, Label { pkey: Some(PKey(0x8005)), ..label(5) }), [Err(Fate::PKey)]);
        assert_eq!(ends(&mut fabric, now, raw), [Ok(2)], "raw packets have none");
        let info = &mut port(&mut fabric, node, number).info;
        (info.partition_enforcement_inbound, info.partition_enforcement_outbound) = (false, false);
        match inbound {
            true => info.filter_raw_inbound = true,
            false => info.filter_raw_outbound = true,
        }
        assert_eq!(ends(&mut fabric, now, raw), [Err(Fate::RawFiltered)]);
        let info = &mut port(&mut fabric, node, number).info;
        (info.filter_raw_inbound, info.filter_raw_outbound) = (false, false);
    }
}

#[test]
fn limited_members_send_as_such_and_hear_full_ones() {
    let (mut fabric, now) = fabric();
    let (full, limited) = (PKey(0x8005), PKey(0x0005));
    let with = |p_key| Label { pkey: Some(p_key), ..label(5) };
    for node in [4, 5] {
        port(&mut fabric, node, 1).info.partition_enforcement_inbound = false;
        port(&mut fabric, node, 1).info.partition_enforcement_outbound = false;
    }
    let mut fates = |number, node, table: PKey, inbound: bool| {
        let port = port(&mut fabric, node, number);
        port.pkeys[1] = table;
        port.info.partition_enforcement_inbound = inbound;
        port.info.partition_enforcement_outbound = !inbound;
        let fates = [full, limited].map(|p_key| ends(&mut fabric, now, with(p_key))[0]);
        let info = &mut self::port(&mut fabric, node, number).info;
        (info.partition_enforcement_inbound, info.partition_enforcement_outbound) = (false, false);
        fates
    };
    let stopped = Err(Fate::PKey);
    assert_eq!(fates(1, 4, limited, true), [stopped, Ok(2)], "from a limited member");
    assert_eq!(fates(1, 4, full, true), [Ok(2), Ok(2)]);
    assert_eq!(fates(1, 5, limited, false), [Ok(2), stopped], "to a limited member");
    assert_eq!(fates(1, 5, full, false), [Ok(2), Ok(2)]);
    assert_eq!(fates(1, 5, PKey(0), false), [stopped, stopped]);
}

#[test]
fn sls_become_vls_on_each_link() {
    let (mut fabric, now) = fabric();
    let on = |sl| Label { sl, ..label(5) };
    port(&mut fabric, 0, 1).set_vls(0, std::array::from_fn(|sl| sl as u8 % 4));
    port(&mut fabric, 4, 3).set_vls(1, std::array::from_fn(|sl| if sl == 6 { 15 } else { 7 }));
    let ways = fabric.ways(now, FIRST, on(5));
    assert_eq!(ways[0].hops.iter().map(|hop| hop.vl).collect::<Vec<_>>(), [1, 7, 0]);
    assert_eq!(ends(&mut fabric, now, on(6)), [Err(Fate::NoVl)]);
    port(&mut fabric, 4, 3).info.operational_vls = 3;
    assert_eq!(ends(&mut fabric, now, on(5)), [Err(Fate::NoVl)], "VLs 0 to 3 are in use");
}

#[test]
fn long_packets_do_not_pass_small_links() {
    let (mut fabric, now) = fabric();
    port(&mut fabric, 4, 3).info.neighbor_mtu = Mtu::B256;
    assert_eq!(ends(&mut fabric, now, Label { bytes: 256 + 124, ..label(5) }), [Ok(2)]);
    assert_eq!(ends(&mut fabric, now, Label { bytes: 256 + 128, ..label(5) }), [Err(Fate::TooLong)]);
}

#[test]
fn packets_queue_and_are_dropped_when_they_wait_too_long() {
    let (mut fabric, now) = fabric();
    fabric.timed = true;
    port(&mut fabric, 4, 3).rate = Rate::GBPS_2_5;
    // 250 bytes: 20 ns at 100 Gb/s, 800 ns at 2.5 Gb/s.
    let packet = Label { bytes: 250, ..label(5) };
    let mut at = |packet, now| fabric.ways(now, FIRST, packet)[0].at - now;
    assert_eq!(at(packet, now), Duration::from_nanos(20 + 800 + 20));
    assert_eq!(at(packet, now), Duration::from_nanos(20 + 1600 + 20), "behind the first");
    let later = now + Duration::from_millis(1);
    assert_eq!(at(packet, later), Duration::from_nanos(20 + 800 + 20));
    // Code 0: 4.096 us, which is more than five packets and less than six.
    port(&mut fabric, 4, 3).info.hoq_life = TimeCode::truncate(0);
    let later = now + Duration::from_millis(2);
    let fates: Vec<_> = (0..9).flat_map(|_| ends(&mut fabric, later, packet)).collect();
    assert!(
        fates[..5].iter().all(|fate| *fate == Ok(2)) && fates.last() == Some(&Err(Fate::HoqLife)),
        "{fates:?}"
    );
}

#[test]
fn an_armed_port_is_activated_by_its_neighbour() {
    let (mut fabric, now) = fabric();
    port(&mut fabric, 5, 3).info.port_state = PortState::ARMED;
    assert_eq!(ends(&mut fabric, now, label(5)), [Ok(2)]);
    assert!(port(&mut fabric, 5, 3).is_active());
    port(&mut fabric, 5, 3).info.port_state = PortState::INIT;
    assert_eq!(ends(&mut fabric, now, label(5)), [Err(Fate::LinkDown)]);
}

#[test]
fn labels_are_read_whatever_follows_the_lrh() {
    let bth = Bth { pkey: PKey(0x8123), ..Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::truncate(0)) };
    let frame = |next, behind: &[u8]| {
        let (sl, dlid, slid) = (ServiceLevel::truncate(3), Lid(2), Lid(1));
        [&Lrh { vl: 0, sl, next, dlid, words: 20, slid, reserved: 0 }.to_bytes()[..], behind].concat()
    };
    let local = Label::of(&frame(NextHeader::Bth, &bth.to_bytes())).unwrap();
    assert_eq!((local.dlid, local.sl, local.bytes, local.pkey), (Lid(2), 3, 80, Some(PKey(0x8123))));
    let global = [&[0; Grh::LEN][..], &bth.to_bytes()].concat();
    assert_eq!(Label::of(&frame(NextHeader::Grh, &global)).unwrap().pkey, Some(PKey(0x8123)));
    for next in [NextHeader::RawEtherType, NextHeader::RawIpv6] {
        assert_eq!(Label::of(&frame(next, &[0; 40])).unwrap().pkey, None);
    }
    assert!(Label::of(&[0; 7]).is_none());
}
