//! The records of class version 1 as IBA 1.0a printed them.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its data fails")]

use ibsa::record::v1::*;
use ibsa::record::{Is, Layout, NodeInfo, NodeType, Record, SmState, SwitchInfo, Template};
use ibwire::mad::{MadHeader, Method, MgmtClass};
use ibwire::{DecodeError, Gid, Lid, Mtu, PKey, Rate, TransactionId};
use proptest::prelude::*;

#[test]
fn the_worked_example_in_its_first_encoding() {
    let gid = Gid([0; 16]);
    let wanted = Template::<PathRecord>::new()
        .dgid(gid)
        .sgid(gid)
        .raw_traffic(false)
        .num_paths(2u8)
        .p_key(0x1234u16)
        .sls(1u16 << 3)
        .mtu(Is::LessThan(Mtu::B2048))
        .rate(Is::Exactly(Rate::GBPS_2_5));
    let (record, mask) = wanted.checked().unwrap();
    assert_eq!(mask, 0x7_f04c);
    let bytes = record.to_bytes();
    assert_eq!(bytes[49..57], [0x02, 0x12, 0x34, 0x00, 0x08, 0x44, 0x82, 0x00]);
    assert_eq!(PathRecord::parse(&bytes).unwrap(), record);
}

#[test]
fn rids_name_a_lid_a_port_and_a_number() {
    let rid = Rid::new(Lid(0x0102), 3, 4);
    assert_eq!((rid.0, rid.lid(), rid.port(), rid.enumeration()), (0x0102_0304, Lid(0x0102), 3, 4));
    assert_eq!((rid.block(), rid.to_string().as_str()), (0x0304, "LID 258 port 3 #4"));
}

#[test]
fn headers_carried_their_own_segments() {
    let mad = MadHeader::new(
        MgmtClass::SA,
        Header::CLASS_VERSION,
        Method::GET_TABLE,
        PathRecord::ATTRIBUTE,
        TransactionId(9),
    );
    let header = Header {
        mad: MadHeader { attribute_modifier: Header::TEMPLATE, ..mad },
        sa_key: 1,
        sm_key: 2,
        segment_number: 3,
        payload_length: 4,
        fragment_flag: 5,
        edit_modifier: EditModifier(6),
        window: 7,
        end_rid: 8,
        component_mask: 0x7_f04c,
    };
    let bytes = header.to_bytes();
    assert_eq!((bytes[40 + 3], bytes[47], bytes[48], bytes[49], bytes[51]), (3, 4, 5, 6, 7));
    assert_eq!(Header::parse(&bytes).unwrap(), header);
    assert!(Header::parse(&bytes[..63]).is_err());
}

#[test]
fn what_records_share_with_today_is_read_as_today() {
    let mut bytes = [0; 108];
    bytes[..4].copy_from_slice(&[0, 7, 1, 0]);
    bytes[6] = 2;
    let node = NodeRecord::parse(&bytes).unwrap();
    assert_eq!((node.node_rid.lid(), node.node_info.node_type), (Lid(7), NodeType::SWITCH));
    assert_eq!(node.node_info.to_bytes().len(), NodeInfo::LEN);

    let mut bytes = [0; 58];
    bytes[4 + 16..4 + 18].copy_from_slice(&[0, 9]);
    bytes[4 + 36] = 0x40;
    let port = PortInfoRecord::parse(&bytes).unwrap().port_info();
    assert_eq!((port.lid, port.neighbor_mtu), (Lid(9), Mtu::B2048));

    let mut bytes = [0; 21];
    (bytes[4], bytes[20]) = (0x01, 0x80);
    let switch = SwitchInfoRecord::parse(&bytes).unwrap().switch_info();
    let expected = SwitchInfo { linear_fdb_cap: 0x0100, inbound_enforcement_cap: true, ..Default::default() };
    assert_eq!(switch, expected);

    let mut bytes = [0; 25];
    (bytes[1], bytes[24]) = (5, 0x23);
    let manager = SmInfoRecord::parse(&bytes).unwrap().sm_info();
    assert_eq!((manager.lid, manager.priority, manager.sm_state), (Lid(5), 2, SmState::MASTER));
}

#[test]
fn services_were_text() {
    let service = Template::<ServiceRecord>::new()
        .partition(0x8001u16)
        .service_name("storage")
        .service_gid("FE80::2")
        .service_id("1000000000000042");
    let (record, mask) = service.checked().unwrap();
    assert_eq!(mask, 0b1110_0100);
    let bytes = record.to_bytes();
    assert_eq!((&bytes[8..10], &bytes[12..19]), (&[0x80, 0x01][..], &b"storage"[..]));
    assert_eq!((&bytes[136..143], &bytes[176..]), (&b"FE80::2"[..], &b"1000000000000042"[..]));
    let flags = ServiceRecord { service_specific_flags: 0x1000, ..record };
    assert_eq!(flags.check().unwrap_err().limit, 0x0fff);
}

#[test]
fn groups_and_members_stand_as_printed() {
    let group = McGroupRecord {
        q_key: 0x1234,
        mlid: Lid(0xc001),
        p_key: PKey(0xffff),
        hop_limit: 7,
        ..Default::default()
    };
    let bytes = group.to_bytes();
    assert_eq!(bytes[20..24], [0x12, 0x34, 0xc0, 0x01]);
    assert_eq!((&bytes[26..28], bytes[31]), (&[0xff, 0xff][..], 7));
    let member = McMemberRecord { llid: Lid(3), p_key: PKey(0xffff), ..Default::default() };
    let bytes = member.to_bytes();
    assert_eq!((bytes[25], &bytes[32..34]), (3, &[0xff, 0xff][..]));
}

#[test]
fn a_bulk_answer_begins_with_its_tables() {
    let response = SaResponse {
        current_key: 0xabcd,
        tables: vec![TableEnd { table: 0x11, end: 20 + 108 }, TableEnd { table: 0x35, end: 20 + 108 + 64 }],
    };
    let mut bytes = response.to_bytes();
    assert_eq!(bytes[..4], [0, 0, 0, 20]);
    bytes.extend_from_slice(b"bulk");
    assert_eq!(SaResponse::parse(&bytes).unwrap(), (response, &b"bulk"[..]));
    assert!(matches!(SaResponse::parse(&bytes[..19]), Err(DecodeError::Truncated { need: 20, .. })));
    assert!(SaResponse::parse(&[0, 0, 0, 7, 0, 0, 0, 0]).is_err());
    let in_part = [&[0, 0, 0, 13][..], &[0; 16]].concat();
    assert!(matches!(SaResponse::parse(&in_part), Err(DecodeError::Invalid { value: 13, .. })));
    assert!(SaResponse::parse(&[0xff; 40]).is_err());
    assert!(SaResponse::parse(&[]).is_err());
}

fn any_bytes_are<R: Record>(bytes: &[u8]) -> Result<(), TestCaseError> {
    let record = R::parse(bytes).unwrap();
    prop_assert!(record.check().is_ok(), "{}", R::NAME);
    prop_assert_eq!(&R::parse(&record.to_bytes()).unwrap(), &record);
    let _printed = format!("{record} {record:#}");
    Ok(())
}

proptest! {
    #[test]
    fn any_bytes_are_a_record(bytes in prop::collection::vec(any::<u8>(), 192)) {
        any_bytes_are::<NodeRecord>(&bytes)?;
        any_bytes_are::<PortInfoRecord>(&bytes)?;
        any_bytes_are::<SlToVlMappingTableRecord>(&bytes)?;
        any_bytes_are::<SwitchInfoRecord>(&bytes)?;
        any_bytes_are::<LinearForwardingTableRecord>(&bytes)?;
        any_bytes_are::<RandomForwardingTableRecord>(&bytes)?;
        any_bytes_are::<MulticastForwardingTableRecord>(&bytes)?;
        any_bytes_are::<SmInfoRecord>(&bytes)?;
        any_bytes_are::<LinkRecord>(&bytes)?;
        any_bytes_are::<GuidInfoRecord>(&bytes)?;
        any_bytes_are::<PartitionRecord>(&bytes)?;
        any_bytes_are::<VlArbitrationTableRecord>(&bytes)?;
        any_bytes_are::<InformRecord>(&bytes)?;
        any_bytes_are::<ServiceRecord>(&bytes)?;
        any_bytes_are::<RangeRecord>(&bytes)?;
        any_bytes_are::<McGroupRecord>(&bytes)?;
        any_bytes_are::<McMemberRecord>(&bytes)?;
        any_bytes_are::<PathRecord>(&bytes)?;
        let notice = NoticeRecord::parse(&bytes).unwrap();
        prop_assert_eq!(&NoticeRecord::parse(&notice.to_bytes()).unwrap(), &notice);
        let _parsed = SaResponse::parse(&bytes);
    }
}
