use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ibsa::record::{
    Layout, NodeInfo, NodeType, Notice, NoticeDetails, NoticeType, Offender, PortInfo, PortState,
};
use ibwire::mad::{AttributeId, MadHeader, Method, MgmtClass};
use ibwire::{Guid, TransactionId};

use super::super::fabric::{BY_HAND, Event, Link};
use super::super::node::{Node, PortShape};
use super::*;
use crate::manager::SubnetManager;

/// What the manager of a test has to send, and what it heard.
#[derive(Debug, Default)]
struct Book {
    out: VecDeque<ManagerMad>,
    heard: Vec<(Instant, ManagerMad)>,
}

#[derive(Debug, Default, Clone)]
struct Scripted(Arc<Mutex<Book>>);

impl Manager for Scripted {
    fn handle_mad(&mut self, now: Instant, mad: &ManagerMad) {
        self.0.lock().unwrap().heard.push((now, *mad));
    }

    fn handle_timeout(&mut self, _now: Instant) {}

    fn poll_transmit(&mut self, _now: Instant) -> Option<ManagerMad> {
        self.0.lock().unwrap().out.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn sm(&self) -> Option<&SubnetManager> {
        None
    }

    fn sm_mut(&mut self) -> Option<&mut SubnetManager> {
        None
    }
}

/// HCA "a" at port 1 of switch "near", that by its port 2 to port 3 of switch "far", HCA "b" at port 1 of that. Nothing is
/// configured; a manager is on "near".
struct World {
    fabric: Fabric,
    manager: Scripted,
    start: Instant,
}

const A: usize = 0;
const B: usize = 1;
const NEAR: usize = 2;
const FAR: usize = 3;

impl World {
    fn new() -> Self {
        let start = Instant::now();
        let shape =
            |number, guid| PortShape { number, guid: Guid(guid), mtu: Fabric::MTU, rate: Fabric::RATE };
        let switch =
            |name: &str, guid| Node::switch(name.into(), Guid(guid), (1..=3).map(|port| shape(port, 0)));
        let nodes = vec![
            Node::hca("a".into(), Guid(0x10), [shape(1, 0x11)]),
            Node::hca("b".into(), Guid(0x20), [shape(1, 0x21)]),
            switch("near", 0x30),
            switch("far", 0x40),
        ];
        let at = |node, port| PortId { node, port };
        let links = [Link(at(A, 1), at(NEAR, 1)), Link(at(NEAR, 2), at(FAR, 3)), Link(at(B, 1), at(FAR, 1))];
        let mut fabric = Fabric::new(nodes, &links, 7, start);
        let manager = Scripted::default();
        fabric.attach(start, NEAR, Box::new(manager.clone()));
        Self { fabric, manager, start }
    }

    /// Lets the manager send a packet and returns what it hears.
    fn ask(&mut self, lid: Lid, smp: [u8; MAD_LEN]) -> Vec<ManagerMad> {
        let (sl, pkey) = (ServiceLevel::truncate(0), PKey::DEFAULT);
        let out = ManagerMad { qp: Qpn::SMI, remote_qp: Qpn::SMI, lid, gid: None, sl, pkey, mad: smp };
        self.manager.0.lock().unwrap().out.push_back(out);
        self.fabric.manager_timeout(self.start, NEAR);
        self.run(self.start);
        self.heard()
    }

    fn heard(&self) -> Vec<ManagerMad> {
        self.manager.0.lock().unwrap().heard.drain(..).map(|(_, mad)| mad).collect()
    }

    fn run(&mut self, until: Instant) {
        while let Some((_, event)) = self.fabric.next_event(until) {
            assert!(matches!(event, Event::Configured(_)), "{event:?}");
        }
    }

    /// Sends by a directed route and reads the answer.
    fn directed(&mut self, path: &[u8], method: Method, attribute: u16, modifier: u32, data: &[u8]) -> Smp {
        let answers = self.ask(Lid::PERMISSIVE, request(path, method, attribute, modifier, data));
        assert_eq!(answers.len(), 1, "{:?}", self.fabric.counters);
        Smp::parse(&answers[0].mad).unwrap()
    }

    fn set_port(&mut self, path: &[u8], number: u8, change: impl Fn(&mut PortInfo)) {
        let info = self.directed(path, Method::GET, 0x15, number.into(), &[]);
        let mut info = PortInfo::parse(info.data()).unwrap();
        (info.port_state, info.port_physical_state.0) = (PortState(0), 0);
        change(&mut info);
        let answer = self.directed(path, Method::SET, 0x15, number.into(), &info.to_bytes());
        assert_eq!(answer.header.status.0 & 0x7fff, 0, "{info}");
    }
}

fn request(path: &[u8], method: Method, attribute: u16, modifier: u32, data: &[u8]) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    let header = MadHeader {
        class_specific: path.len() as u16,
        attribute_modifier: modifier,
        ..MadHeader::new(MgmtClass::SUBN_DIRECTED_ROUTE, 1, method, AttributeId(attribute), TransactionId(5))
    };
    header.write_to(&mut mad);
    mad[32..36].fill(0xff);
    mad[64..64 + data.len()].copy_from_slice(data);
    mad[129..129 + path.len()].copy_from_slice(path);
    mad
}

#[test]
fn a_manager_looks_at_nodes_that_have_no_lids() {
    let mut world = World::new();
    for (path, kind, guid, entered) in [
        (&[][..], NodeType::SWITCH, 0x30, 0),
        (&[1], NodeType::CA, 0x10, 1),
        (&[2], NodeType::SWITCH, 0x40, 3),
        (&[2, 1], NodeType::CA, 0x20, 1),
        // There and back again.
        (&[2, 3, 1], NodeType::CA, 0x10, 1),
    ] {
        let answer = world.directed(path, Method::GET, 0x11, 0, &[]);
        let info = NodeInfo::parse(answer.data()).unwrap();
        assert_eq!(
            (info.node_type, info.node_guid, info.local_port_num),
            (kind, Guid(guid), entered),
            "{path:?}"
        );
    }
    assert_eq!(world.ask(Lid::PERMISSIVE, request(&[3], Method::GET, 0x11, 0, &[])), [], "no link there");
    assert_eq!(world.ask(Lid::PERMISSIVE, request(&[1, 1], Method::GET, 0x11, 0, &[])), [], "through an HCA");
    assert_eq!((world.fabric.counters.link_down, world.fabric.counters.smp_discarded), (1, 1));
}

/// A packet to QP1.
fn to_qp1(lids: (u16, u16), gids: Option<(Gid, Gid)>, p_key: PKey, payload: &[u8; MAD_LEN]) -> Bytes {
    let lids = (Lid(lids.0), Lid(lids.1));
    datagram(0, lids, gids, ServiceLevel::truncate(0), p_key, (Qpn::GSI, Qpn::GSI), payload)
}

/// A subnet in service: LID 1 near, 2 far, 3 a, 4 b.
fn in_service() -> World {
    let mut world = World::new();
    // The switches, then their tables, then the ports.
    for (path, lid) in [(&[][..], 1), (&[2][..], 2)] {
        world.set_port(path, 0, |info| (info.lid, info.master_sm_lid) = (Lid(lid), Lid(1)));
    }
    let mut near = [255; 64];
    near[1..5].copy_from_slice(&[0, 2, 1, 2]);
    let mut far = [255; 64];
    far[1..5].copy_from_slice(&[3, 0, 3, 1]);
    for (path, table) in [(&[][..], near), (&[2][..], far)] {
        world.directed(path, Method::SET, 0x19, 0, &table);
        let info = world.directed(path, Method::GET, 0x12, 0, &[]);
        let mut data = info.data()[..20].to_vec();
        data[7] = 4;
        world.directed(path, Method::SET, 0x12, 0, &data);
    }
    for state in [PortState::ARMED, PortState::ACTIVE] {
        for (path, number) in [(&[][..], 1), (&[], 2), (&[2][..], 1), (&[2], 3)] {
            world.set_port(path, number, |info| info.port_state = state);
        }
        for (path, lid) in [(&[1][..], 3), (&[2, 1][..], 4)] {
            world.set_port(path, 1, |info| {
                (info.lid, info.master_sm_lid, info.port_state) = (Lid(lid), Lid(1), state);
            });
        }
    }
    world
}

#[test]
fn a_packet_of_another_partition_is_told_to_the_manager() {
    const OTHER: PKey = PKey(0x8001);
    let mut world = in_service();
    let (from, gids) = (PortId { node: A, port: 1 }, Some((Gid([1; 16]), Gid([2; 16]))));
    let frame = to_qp1((3, 4), gids, OTHER, &[0; MAD_LEN]);
    world.set_port(&[2], 1, |info| info.partition_enforcement_outbound = true);
    let told = |world: &mut World, at: Duration| {
        world.run(world.start + at);
        let heard = world.heard().into_iter().map(|mad| (mad.lid, Smp::parse(&mad.mad).unwrap()));
        let told: Vec<_> = heard
            .map(|(lid, smp)| {
                let mut notice = [0; Notice::LEN];
                notice[..64].copy_from_slice(smp.data());
                assert_eq!(smp.header.method, Method::TRAP);
                (lid, smp.header.tid.0, Notice::parse(&notice).unwrap())
            })
            .collect();
        told
    };
    for _ in 0..3 {
        world.fabric.send(world.start, from, frame.clone());
    }
    let first = told(&mut world, Duration::ZERO);
    let [(Lid(2), far, notice)] = &first[..] else { panic!("{first:?}") };
    assert_eq!((notice.notice_type, notice.trap_or_device), (NoticeType::SECURITY, 259));
    let (slid, dlid, sl) = (Lid(3), Lid(4), ServiceLevel::truncate(0));
    let (source_qp, destination_qp, sgid, dgid) = (Qpn::GSI, Qpn::GSI, Gid([1; 16]), Gid([2; 16]));
    let offender = Offender { slid, dlid, sl, source_qp, destination_qp, sgid, dgid };
    let wrong =
        NoticeDetails::BadPKeyAtSwitch { p_key: OTHER, offender, valid: 0xff, switch: Lid(2), port: 1 };
    assert_eq!(notice.details(), wrong);
    let violations = |world: &World| {
        let [near, far] =
            [(NEAR, 1), (FAR, 1)].map(|(node, port)| world.fabric.nodes[node].port(port).unwrap());
        [near, far].map(|port| port.info.p_key_violations)
    };
    assert_eq!((violations(&world), world.fabric.counters.pkey), ([0, 3], 3));
    // Where it comes in, without GIDs; the first one is still told.
    world.set_port(&[], 1, |info| info.partition_enforcement_inbound = true);
    world.fabric.send(world.start, from, to_qp1((3, 4), None, OTHER, &[0; MAD_LEN]));
    let second = told(&mut world, Duration::ZERO);
    let [(Lid(1), near, notice)] = &second[..] else { panic!("{second:?}") };
    let known = |notice: &Notice| match notice.details() {
        NoticeDetails::BadPKeyAtSwitch { valid, switch, port, .. } => (valid, switch, port),
        other => panic!("{other:?}"),
    };
    assert_eq!((known(notice), violations(&world)), ((0x3f, Lid(1), 1), [1, 3]));
    // They are told until they are heard, and not as often as such packets come.
    assert_eq!(told(&mut world, Duration::from_secs(1)).len(), 2);
    for (switch, tid) in [(1, near), (2, far)] {
        let mut repress = request(&[], Method::TRAP_REPRESS, 2, 0, &[]);
        repress[1] = MgmtClass::SUBN_LID_ROUTED.0;
        repress[8..16].copy_from_slice(&tid.to_be_bytes());
        world.ask(Lid(switch), repress);
    }
    assert!(!world.fabric.nodes[NEAR].has_traps() && !world.fabric.nodes[FAR].has_traps());
    for sent in [1100, 1200, 1900] {
        let now = world.start + Duration::from_millis(sent);
        world.fabric.send(now, from, frame.clone());
        world.run(now);
    }
    assert_eq!(told(&mut world, Duration::from_millis(1900)).len(), 1);
}

#[test]
fn what_a_manager_sets_carries_packets() {
    let mut world = in_service();
    // By LID now, to the last node.
    let mut by_lid = request(&[], Method::GET, 0x11, 0, &[]);
    by_lid[1] = MgmtClass::SUBN_LID_ROUTED.0;
    let answers = world.ask(Lid(4), by_lid);
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].lid, Lid(4));

    // And a packet of one HCA to the other.
    let frame = to_qp1((3, 4), None, PKey::DEFAULT, &[0; MAD_LEN]);
    world.fabric.send(world.start, PortId { node: A, port: 1 }, frame.clone());
    let arrival = std::iter::from_fn(|| world.fabric.next_event(world.start)).find_map(|(_, event)| {
        if let Event::Arrival { to, frame } = event { Some((to, frame)) } else { None }
    });
    assert_eq!(arrival, Some((PortId { node: B, port: 1 }, frame)));

    // One for the manager's own QP1, and one of a partition that its port is not in.
    for pkey in [PKey::DEFAULT, PKey(0x8001)] {
        let to_manager = to_qp1((3, 1), None, pkey, &[7; MAD_LEN]);
        world.fabric.send(world.start, PortId { node: A, port: 1 }, to_manager);
    }
    world.run(world.start);
    assert_eq!(world.fabric.counters.pkey, 1);
    let heard = world.heard();
    assert_eq!((heard.len(), heard[0].qp, heard[0].lid, heard[0].mad[0]), (1, Qpn::GSI, Lid(3), 7));

    // A link that goes down is told by a trap, until that is repressed.
    world.fabric.set_plugged(world.start, PortId { node: B, port: 1 }, BY_HAND, false);
    world.run(world.start);
    let heard = world.heard();
    assert_eq!((heard.len(), heard[0].lid, heard[0].mad[3]), (1, Lid(2), Method::TRAP.0));
    world.run(world.start + Duration::from_secs(1));
    let again = world.heard();
    assert_eq!(again, heard);
    let mut repress = heard[0].mad;
    repress[3] = Method::TRAP_REPRESS.0;
    world.ask(Lid(2), repress);
    world.run(world.start + Duration::from_secs(60));
    assert_eq!(world.heard(), []);
}
