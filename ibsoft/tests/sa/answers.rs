//! The form of answers (spec/sa.md section 10, rules 5 to 8).

use std::time::Duration;

use ibsa::mad::{RmppHeader, RmppType, SaHeader};
use ibsa::record::{InformInfo, NodeRecord, PathRecord};
use ibsoft::manager::{MulticastTree, Port, PortAt, SaConfig, Topology};
use ibwire::mad::Method;
use ibwire::{Guid, Lid, PKey};

use crate::net::{TWO_SWITCHES, request, subnet};
use crate::rules::{CREATE, FULL, GET, PATH, SERVICE, SET, TABLE, World, gid, registration};

/// Every record that a subnet has: attribute, bytes of its fields, and from one to the next in units of 8.
const RECORDS: [(u16, usize, u16); 15] = [
    (0x11, 108, 14),
    (0x12, 68, 9),
    (0x13, 16, 2),
    (0x14, 24, 3),
    (0x15, 72, 9),
    (0x17, 72, 9),
    (0x18, 25, 4),
    (0x20, 6, 1),
    (0x30, 72, 9),
    (0x31, 176, 22),
    (0x33, 72, 9),
    (0x35, 64, 8),
    (0x36, 72, 9),
    (0x38, 52, 7),
    (0xf3, 60, 8),
];

/// All records of a type, asked for with the SM_Key.
fn all(world: &mut World, from: u16, attribute: u16) -> (SaHeader, Vec<u8>) {
    world.tid += 1;
    let mut mad = request(TABLE, attribute, world.tid, &PathRecord::default(), 0);
    mad[43] = 1;
    world.exchange(from, &mad)
}

/// A subnet in which there is something of everything.
fn busy(topology: Topology) -> World {
    let switch = topology.nodes.iter().position(|node| node.switch.is_some()).unwrap();
    let mut world = World::new(topology, SaConfig::default());
    let (status, group) = world.join(4, 2, FULL, CREATE, |_| ());
    assert_eq!(status, 0);
    world.sa.set_tree(group.mlid, &MulticastTree { ports: vec![(switch, [1].into())] });
    assert_eq!(world.ask(4, SET, SERVICE, &registration(60), 0x17).0, 0);
    assert_eq!(world.ask(4, SET, 3, &InformInfo::trap(InformInfo::ANY), 0).0, 0);
    world
}

#[test]
fn records_have_their_stride_and_nothing_behind_them() {
    let mut world = busy(subnet(TWO_SWITCHES, 0));
    for (attribute, size, offset) in RECORDS {
        let (header, data) = all(&mut world, 4, attribute);
        let stride = 8 * usize::from(offset);
        assert_eq!((header.mad.status.0, header.attribute_offset), (0, offset), "{attribute:#x}");
        assert!(!data.is_empty() && data.len() % stride == 0, "{attribute:#x}: {} bytes", data.len());
        for record in data.chunks(stride) {
            assert!(record[size..].iter().all(|byte| *byte == 0), "{attribute:#x}: {record:x?}");
        }
    }
}

#[test]
fn sa_t30_a_get_is_for_one_record_and_a_table_is_always_a_transfer() {
    let mut world = World::plain();
    let node = |lid| NodeRecord { lid: Lid(lid), ..NodeRecord::default() };
    assert_eq!(world.ask(4, GET, 0x11, &node(0), 0).0, 0x0400);
    assert_eq!(world.ask(4, GET, 0x11, &node(99), 1).0, 0x0300);
    assert_eq!(world.ask(4, GET, 0x11, &node(5), 1).0, 0);
    assert_eq!(world.ask(4, GET, PATH, &PathRecord::default(), 0).0, 0, "of several paths the best one");
    for (lid, records) in [(99, 0), (5, 1)] {
        let mads = world.send(4, &request(TABLE, 0x11, lid, &node(lid as u16), 1));
        let header = SaHeader::parse(&mads[0]).unwrap();
        let RmppHeader { kind, flags, segment, length_or_window: length, .. } = header.rmpp;
        let whole = RmppHeader::ACTIVE | RmppHeader::FIRST | RmppHeader::LAST;
        assert_eq!((header.mad.status.0, kind, flags, segment), (0, RmppType::DATA, whole, 1));
        assert_eq!((length, header.attribute_offset), (20 + 112 * records, 14 * records as u16));
    }
}

#[test]
fn sa_t12_answers_have_the_method_of_their_request() {
    let mut world = World::plain();
    let mut method = |mad| SaHeader::parse(&world.send(4, &mad)[0]).unwrap().mad.method.0;
    assert_eq!(method(request(SET, SERVICE, 1, &registration(60), 0x17)), 0x81);
    assert_eq!(method(request(GET, SERVICE, 2, &registration(60), 0x7)), 0x81);
    assert_eq!(method(request(TABLE, SERVICE, 3, &registration(60), 0x7)), 0x92);
    assert_eq!(method(request(Method::DELETE, SERVICE, 4, &registration(60), 0x7)), 0x95);
}

/// One segment at first, then as many as the window lets through, and those again after 2 s.
#[test]
fn a_table_obeys_the_window() {
    let mut world = World::plain();
    let ask = request(TABLE, PATH, 7, &PathRecord::default(), 0);
    let segments = |mads: &[[u8; 256]]| -> Vec<u32> {
        mads.iter().map(|mad| SaHeader::parse(mad).unwrap().rmpp.segment).collect()
    };
    let first = world.send(4, &ask);
    assert_eq!(segments(&first), [1]);
    let ack = |segment, last| {
        let mut header = SaHeader::parse(&first[0]).unwrap();
        header.mad.method = TABLE;
        (header.rmpp.kind, header.rmpp.segment, header.rmpp.length_or_window) =
            (RmppType::ACK, segment, last);
        let mut mad = [0; 256];
        mad[..SaHeader::LEN].copy_from_slice(&header.to_bytes());
        mad
    };
    assert_eq!(segments(&world.send(4, &ack(1, 3))), [2, 3]);
    assert_eq!(world.sa.poll_timeout(), Some(world.now + Duration::from_secs(2)));
    world.wait(Duration::from_secs(2));
    let again: Vec<_> =
        std::iter::from_fn(|| world.sa.poll_transmit(world.now)).map(|sent| sent.mad).collect();
    assert_eq!(segments(&again), [2, 3]);
    // 36 paths of 64 bytes.
    assert_eq!(segments(&world.send(4, &ack(3, 99))), (4..=12).collect::<Vec<_>>());
    world.send(4, &ack(12, 99));
    assert_eq!((world.sa.poll_timeout(), world.sa.counters().transfers_failed), (None, 0));
}

/// Which ports of a subnet Hca3 sees, whose first port is in a partition of its own and whose second one has these P_Keys.
fn seen(second: &[u16]) -> Vec<(u16, usize)> {
    let mut topology = subnet(TWO_SWITCHES, 0);
    let at = topology.at_gid(gid(3)).unwrap();
    let first = topology.port_mut(at).unwrap();
    first.p_keys = vec![PKey(0x8005)];
    let mut other = Port::new(Guid(0x99), first.info.clone());
    other.info.lid = Lid(30);
    other.peer = first.peer;
    other.p_keys = second.iter().copied().map(PKey).collect();
    topology.nodes[at.node].ports.insert(2, other);
    topology.index();
    let own: Vec<_> = [1, 2].map(|port| PortAt { port, ..at }).to_vec();
    let lids: Vec<u16> = own.iter().map(|at| topology.port(*at).unwrap().info.lid.0).collect();
    assert_eq!(lids, [5, 30]);
    let mut world = busy(topology);
    let found = RECORDS.map(|(attribute, _, offset)| {
        let (header, data) = all(&mut world, 5, attribute);
        assert_eq!(header.mad.status.0, 0, "{attribute:#x}");
        let records = data.chunks(8 * usize::from(offset));
        let is_own = |record: &&[u8]| match attribute {
            PATH => {
                [40, 42].iter().all(|at| lids.contains(&u16::from_be_bytes([record[*at], record[at + 1]])))
            }
            _ => lids.contains(&u16::from_be_bytes([record[0], record[1]])),
        };
        (attribute, records.filter(|record| !is_own(record)).count())
    });
    found.to_vec()
}

/// Records of others are for those of whose ports any shares a partition with any of theirs (spec/sa.md 4.6).
#[test]
fn records_are_visible_within_a_partition() {
    for (attribute, others) in seen(&[0x8006]) {
        // Who knows the SM_Key sees all groups and services.
        let is_for_the_trusted = [SERVICE, 0x38].contains(&attribute);
        assert_eq!(others > 0, is_for_the_trusted, "{attribute:#x}: {others}");
    }
    for (attribute, others) in seen(&[0xffff]) {
        assert!(others > 0, "{attribute:#x}");
    }
}
