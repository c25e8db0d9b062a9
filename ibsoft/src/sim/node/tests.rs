use ibsa::record::{Layout, Notice, NoticeDetails, PortInfo, PortPhysicalState, PortState, SwitchInfo};
use ibwire::mad::{AttributeId, MadHeader, MadStatus, Method, MgmtClass};
use ibwire::{Guid, Lid, Mtu, PKey, Rate};

use super::smp::attribute;
use super::*;

/// All attributes that the agent answers.
const ANSWERED: [AttributeId; 10] = [
    attribute::NODE_DESCRIPTION,
    attribute::NODE_INFO,
    attribute::SWITCH_INFO,
    attribute::GUID_INFO,
    attribute::PORT_INFO,
    attribute::P_KEY_TABLE,
    attribute::SL_TO_VL,
    attribute::VL_ARBITRATION,
    attribute::LINEAR_FORWARDING,
    attribute::MULTICAST_FORWARDING,
];

/// The header of a request.
fn request(class: MgmtClass, method: Method, attribute: AttributeId, modifier: u32) -> MadHeader {
    let tid = ibwire::TransactionId(7);
    MadHeader {
        attribute_modifier: modifier,
        ..MadHeader::new(class, Smp::CLASS_VERSION, method, attribute, tid)
    }
}

fn shape(number: u8, guid: u64) -> PortShape {
    PortShape { number, guid: Guid(guid), mtu: Mtu::B4096, rate: Rate::GBPS_100 }
}

fn switch() -> Node {
    Node::switch("switch".into(), Guid(0x10), (1..=4).map(|number| shape(number, 0)))
}

fn hca() -> Node {
    Node::hca("hca".into(), Guid(0x20), [shape(1, 0x21), shape(2, 0x22)])
}

fn ask(
    node: &mut Node,
    entered: u8,
    method: Method,
    attribute: AttributeId,
    modifier: u32,
    data: &[u8],
) -> Smp {
    let header = request(MgmtClass::SUBN_LID_ROUTED, method, attribute, modifier);
    match node.handle_smp(Instant::now(), entered, Smp::by_lid(header, 0, data)) {
        Handled::Answer(smp) => smp,
        other => panic!("{other:?}"),
    }
}

fn get(node: &mut Node, entered: u8, attribute: AttributeId, modifier: u32) -> Smp {
    let answer = ask(node, entered, Method::GET, attribute, modifier, &[]);
    assert_eq!(answer.header.status, MadStatus::OK, "{attribute}");
    answer
}

fn port_info(node: &mut Node, number: u8) -> PortInfo {
    PortInfo::parse(get(node, number, attribute::PORT_INFO, number.into()).data()).unwrap()
}

#[test]
fn every_attribute_can_be_read_where_it_is() {
    for attribute in ANSWERED {
        let modifier = match attribute {
            attribute::VL_ARBITRATION => 1 << 16 | 1,
            attribute::SL_TO_VL => 0x0101,
            _ => 0,
        };
        let on_switch = ask(&mut switch(), 1, Method::GET, attribute, modifier, &[]).header.status;
        let on_hca = ask(&mut hca(), 1, Method::GET, attribute, modifier, &[]).header.status;
        let switches_alone =
            [attribute::SWITCH_INFO, attribute::LINEAR_FORWARDING, attribute::MULTICAST_FORWARDING];
        // The switch's port 0 has GUIDs as well.
        let here =
            if switches_alone.contains(&attribute) { MadStatus::BAD_METHOD_ATTRIBUTE } else { MadStatus::OK };
        assert_eq!((on_switch, on_hca), (MadStatus::OK, here), "{attribute}");
    }
    let unknown = ask(&mut hca(), 1, Method::GET, AttributeId(0x77), 0, &[]);
    assert_eq!(unknown.header.status, MadStatus::BAD_METHOD_ATTRIBUTE);
    for (attribute, modifier) in [
        (attribute::PORT_INFO, 9),
        (attribute::P_KEY_TABLE, 2),
        (attribute::GUID_INFO, 4),
        (attribute::GUID_INFO, u32::MAX),
        (attribute::LINEAR_FORWARDING, 0xc000 / 64),
        (attribute::LINEAR_FORWARDING, u32::MAX),
        (attribute::VL_ARBITRATION, 5 << 16 | 1),
        (attribute::VL_ARBITRATION, 1),
    ] {
        let answer = ask(&mut switch(), 1, Method::GET, attribute, modifier, &[]);
        assert_eq!(answer.header.status, MadStatus::INVALID_FIELD, "{attribute} {modifier:#x}");
    }
}

#[test]
fn what_is_set_is_read_again() {
    let mut node = switch();
    let blocks: [(AttributeId, u32); 6] = [
        (attribute::LINEAR_FORWARDING, 3),
        (attribute::MULTICAST_FORWARDING, 3 << 28 | 2),
        (attribute::P_KEY_TABLE, 2 << 16 | 1),
        (attribute::VL_ARBITRATION, 3 << 16 | 1),
        (attribute::SL_TO_VL, 0x0203),
        (attribute::GUID_INFO, 1),
    ];
    for (attribute, modifier) in blocks {
        let mut data: Vec<u8> = (0..64).map(|n| n & 0xf).collect();
        if attribute == attribute::SL_TO_VL {
            data[8..].fill(0);
        }
        let answer = ask(&mut node, 1, Method::SET, attribute, modifier, &data);
        assert_eq!(
            (answer.header.status, answer.header.method),
            (MadStatus::OK, Method::GET_RESP),
            "{attribute}"
        );
        assert_eq!(get(&mut node, 1, attribute, modifier).data(), data, "{attribute}");
    }
    assert_eq!(node.port(3).unwrap().vl(2, 5), 2);
    let switch = node.forwarding.as_mut().unwrap();
    assert_eq!(switch.port(Lid(3 * 64 + 5)), None, "the table ends at its top");
    switch.info.linear_fdb_top = 0x100;
    assert_eq!(switch.port(Lid(3 * 64 + 5)), Some(5));
    // Entry 1 of the block says 2 << 8 | 3 for ports 48 and following.
    assert_eq!(switch.ports(Lid(0xc000 + 2 * 32 + 1)), None, "so does this one");
    switch.info.multicast_fdb_top = Lid(0xc000 + 2 * 32 + 1);
    assert_eq!(switch.ports(Lid(0xc000 + 2 * 32 + 2)), None);
    assert_eq!(ports_of(switch.ports(Lid(0xc000 + 2 * 32 + 1)).unwrap()).collect::<Vec<_>>(), [48, 49, 57]);
}

#[test]
fn a_link_comes_up_and_is_configured() {
    let mut node = hca();
    let now = Instant::now();
    assert_eq!(port_info(&mut node, 1).port_state, PortState::DOWN);
    node.set_link(now, 1, true);
    let info = port_info(&mut node, 1);
    assert_eq!(
        (info.port_state, info.local_port_num, info.rate()),
        (PortState::INIT, 1, Some(Rate::GBPS_100))
    );
    // What is 0 stays.
    let info = PortInfo { port_physical_state: PortPhysicalState(0), ..info };
    let set = |node: &mut Node, asked: &PortInfo| {
        ask(node, 1, Method::SET, attribute::PORT_INFO, 1, &asked.to_bytes()).header.status
    };
    let asked =
        PortInfo { lid: Lid(4), lmc: 1, master_sm_lid: Lid(1), port_state: PortState::ACTIVE, ..info };
    assert_eq!(set(&mut node, &asked), MadStatus::INVALID_FIELD, "not armed yet");
    assert_eq!(set(&mut node, &PortInfo { port_state: PortState::ARMED, ..asked.clone() }), MadStatus::OK);
    assert_eq!(set(&mut node, &asked), MadStatus::OK);
    assert_eq!(
        (node.port_of_lid(Lid(4)), node.port_of_lid(Lid(5)), node.port_of_lid(Lid(6))),
        (Some(1), Some(1), None)
    );
    let tables = node.port(1).unwrap().tables(1);
    assert_eq!((tables.attr.lid, tables.attr.state), (Lid(4), ibdev::PortState::Active));
    assert_eq!((tables.pkeys, tables.gids.len()), (vec![PKey::DEFAULT], 1));
    for wrong in [
        PortInfo { lid: Lid(0xc001), ..asked.clone() },
        PortInfo { lid: Lid(5), ..asked.clone() },
        PortInfo { neighbor_mtu: Mtu(6), ..asked.clone() },
        PortInfo { operational_vls: 5, ..asked.clone() },
        PortInfo { port_state: PortState::INIT, ..asked.clone() },
    ] {
        assert_eq!(set(&mut node, &wrong), MadStatus::INVALID_FIELD, "{wrong}");
    }
    node.take_changes();
    let asks = PortInfo { client_reregister: true, port_state: PortState(0), ..asked };
    assert_eq!(set(&mut node, &asks), MadStatus::OK);
    assert_eq!(node.take_changes(), [Change::Port(1), Change::Reregister(1)]);
}

#[test]
fn an_m_key_protects() {
    let mut node = hca();
    node.configure(1, |port| (port.info.m_key, port.info.m_key_protect_bits) = (9, 1));
    let header = request(MgmtClass::SUBN_LID_ROUTED, Method::SET, attribute::P_KEY_TABLE, 0);
    assert_eq!(node.handle_smp(Instant::now(), 1, Smp::by_lid(header, 8, &[])), Handled::Done);
    assert_eq!((node.counters.drop_m_key, node.port(1).unwrap().info.m_key_violations), (1, 1));
    assert_eq!(port_info(&mut node, 1).m_key, 0, "it is not shown");
    assert!(matches!(node.handle_smp(Instant::now(), 1, Smp::by_lid(header, 9, &[])), Handled::Answer(_)));
    // From 2 on it protects what is read, too.
    let read = request(MgmtClass::SUBN_LID_ROUTED, Method::GET, attribute::NODE_INFO, 0);
    assert!(matches!(node.handle_smp(Instant::now(), 1, Smp::by_lid(read, 0, &[])), Handled::Answer(_)));
    node.configure(1, |port| port.info.m_key_protect_bits = 2);
    assert_eq!(node.handle_smp(Instant::now(), 1, Smp::by_lid(read, 0, &[])), Handled::Done);
    assert!(matches!(node.handle_smp(Instant::now(), 1, Smp::by_lid(read, 9, &[])), Handled::Answer(_)));
}

#[test]
fn counts_of_violations_can_only_be_cleared() {
    let mut node = hca();
    node.configure(1, |port| port.info.m_key_violations = 3);
    for (asked, is) in [(7, 3), (0, 0)] {
        let info = PortInfo { port_physical_state: PortPhysicalState(0), ..port_info(&mut node, 1) };
        let info = PortInfo { m_key_violations: asked, port_state: PortState(0), ..info };
        let answer = ask(&mut node, 1, Method::SET, attribute::PORT_INFO, 1, &info.to_bytes());
        assert_eq!(answer.header.status, MadStatus::OK);
        assert_eq!(port_info(&mut node, 1).m_key_violations, is);
    }
}

#[test]
fn a_forwarding_table_does_not_end_behind_what_there_is() {
    let mut node = switch();
    let cap = node.forwarding.as_ref().unwrap().info.linear_fdb_cap;
    for (linear_fdb_top, status) in [(cap - 1, MadStatus::OK), (cap, MadStatus::INVALID_FIELD)] {
        let info = SwitchInfo { linear_fdb_top, ..SwitchInfo::default() };
        let answer = ask(&mut node, 0, Method::SET, attribute::SWITCH_INFO, 0, &info.to_bytes());
        assert_eq!(answer.header.status, status);
    }
}

/// Takes a packet along: SM (port 0 of a switch), by its port 2 to a second switch, by its port 3 to an HCA.
#[test]
fn a_directed_route_leads_there_and_back() {
    let header = request(MgmtClass::SUBN_DIRECTED_ROUTE, Method::GET, attribute::NODE_INFO, 0);
    let mut smp = Smp::directed(header, &[2, 3]);
    assert_eq!(smp.step(None, true), Step::Out(2));
    assert_eq!(smp.step(Some(4), true), Step::Out(3));
    assert_eq!(smp.step(Some(1), false), Step::Here);
    let Handled::Answer(mut answer) = hca().handle_smp(Instant::now(), 1, smp) else { panic!("no answer") };
    assert!(answer.is_returning());
    assert_eq!(answer.step(None, false), Step::Out(1));
    assert_eq!(answer.step(Some(3), true), Step::Out(4));
    assert_eq!(answer.step(Some(2), true), Step::Here);
    // It is what a port reads from the wire.
    assert_eq!(Smp::parse(&answer.to_mad()).map(Smp::to_mad), Some(answer.to_mad()));

    let mut own = Smp::directed(header, &[]);
    assert_eq!(own.step(None, true), Step::Here);
    let Handled::Answer(mut answer) = switch().handle_smp(Instant::now(), 0, own) else {
        panic!("no answer")
    };
    assert_eq!(answer.step(None, true), Step::Here);
}

#[test]
fn a_directed_route_that_cannot_be_is_discarded() {
    let header = request(MgmtClass::SUBN_DIRECTED_ROUTE, Method::GET, attribute::NODE_INFO, 0);
    let mut not_begun = Smp::directed(header, &[2, 3]);
    assert_eq!(not_begun.step(Some(1), true), Step::Discard);
    let mut through_an_hca = Smp::directed(header, &[2, 3]);
    through_an_hca.step(None, true);
    assert_eq!(through_an_hca.step(Some(1), false), Step::Discard);
    // A part by LID, there or back, is used by nobody.
    for (at, back) in [(34, false), (32, true)] {
        let mut mad = Smp::directed(header, &[2]).to_mad();
        mad[at..at + 2].copy_from_slice(&[0, 7]);
        let mut by_lid = Smp::parse(&mad).unwrap();
        assert_eq!(by_lid.step(None, true), Step::Out(2));
        let end = by_lid.step(Some(1), false);
        if back {
            assert_eq!(end, Step::Here);
            let mut answer = by_lid.answer(MadStatus::OK);
            assert_eq!(answer.step(None, false), Step::Out(1));
            assert_eq!(answer.step(Some(2), true), Step::Discard);
        } else {
            assert_eq!(end, Step::Discard);
        }
    }
    // An answer on its way back: from the node that gives it, then through switches.
    let mut smp = Smp::directed(header, &[2, 3]);
    smp.step(None, true);
    smp.step(Some(1), true);
    smp.step(Some(1), false);
    let mut answer = smp.answer(MadStatus::OK);
    assert_eq!(answer.step(Some(1), true), Step::Discard, "it has not begun yet");
    assert_eq!(answer.step(None, false), Step::Out(1));
    assert_eq!(answer.step(Some(1), false), Step::Discard, "through an HCA");
    for pointer in 0..=255u8 {
        for (count, back) in
            [(0, 0), (2, 0), (63, 0), (64, 0), (255, 0), (2, 1 << 15), (63, 1 << 15), (255, 1 << 15)]
        {
            let mut smp = Smp::directed(header, &[]);
            smp.header.class_specific = u16::from_be_bytes([pointer, count]);
            smp.header.status = MadStatus(back);
            for (entered, is_switch) in [(None, false), (None, true), (Some(1), false), (Some(1), true)] {
                smp.step(entered, is_switch);
            }
        }
    }
}

#[test]
fn a_trap_is_sent_until_it_is_heard() {
    let mut node = switch();
    let now = Instant::now();
    node.set_link(now, 2, true);
    assert_eq!(node.poll_trap(now), None, "there is no SM");
    node.configure(0, |port| (port.info.lid, port.info.master_sm_lid) = (Lid(2), Lid(1)));
    node.set_link(now, 2, false);
    assert!(node.take_changes().contains(&Change::Trap));
    let (port, to, trap) = node.poll_trap(now).unwrap();
    let notice = Notice::parse(&[trap.data(), &[0; 16]].concat()).unwrap();
    assert_eq!((port, to, notice.details()), (0, Lid(1), NoticeDetails::LinkStateChanged(Lid(2))));
    assert_eq!(node.poll_trap(now), None);
    let again = node.poll_timeout().unwrap();
    assert!(again > now && node.poll_trap(again).is_some());

    let info = SwitchInfo::parse(get(&mut node, 1, attribute::SWITCH_INFO, 0).data()).unwrap();
    assert!(info.port_state_change);
    let mut repress = trap;
    repress.header.method = Method::TRAP_REPRESS;
    assert_eq!(node.handle_smp(now, 1, repress), Handled::Done);
    assert_eq!(node.poll_timeout(), None);

    node.set_link(now, 3, true);
    node.set_link(now, 3, false);
    assert!(node.poll_trap(now).is_some() && node.poll_trap(now).is_none(), "one for both changes");
    let mut at = now;
    while let Some(due) = node.poll_timeout() {
        at = due;
        node.poll_trap(at);
    }
    assert_eq!((node.counters.traps_given_up, (at - now).as_secs()), (1, 8));
}
