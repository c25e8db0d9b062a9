//! MAD headers, ClassPortInfo and PathRecords as OpenSM and its clients wrote them.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its data fails")]

use ibwire::mad::{AttributeId, ClassPortInfo, MadHeader, MadStatus, Method, MgmtClass};
use ibwire::{
    Gid, Lid, Mtu, PKey, PacketLifeTime, PathRecord, QKey, Qpn, Rate, Selector, ServiceLevel, TimeCode,
    TransactionId,
};

/// MAD header, RMPP header and SA header.
const SA_DATA_AT: usize = 56;

fn mad(name: &str) -> Vec<u8> {
    let text = include_str!("data/sa-mads.txt");
    let hex = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap();
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

fn record(name: &str, index: usize) -> PathRecord {
    let bytes = &mad(name)[SA_DATA_AT + index * PathRecord::LEN..][..PathRecord::LEN];
    let record = PathRecord::parse(bytes).unwrap();
    assert_eq!(record.to_bytes(), bytes, "{name}");
    record
}

fn gid(text: &str) -> Gid {
    text.parse().unwrap()
}

#[test]
fn headers_of_a_query_and_its_answer() {
    let query = MadHeader::parse(&mad("path-get/client1")).unwrap();
    let path_record = AttributeId(0x0035);
    let tid = TransactionId(0x0000_0002_0001_0007);
    assert_eq!(query, MadHeader::new(MgmtClass::SA, 2, Method::GET, path_record, tid));
    let answer = MadHeader::parse(&mad("path-get/sa1")).unwrap();
    assert_eq!(answer, query.response(MadStatus::OK));
    for name in ["cpi-get/client1", "cpi-get/sa1", "path-get/client1", "path-get/sa1", "path-table-pair/sa1"]
    {
        let bytes = mad(name);
        assert_eq!(MadHeader::parse(&bytes).unwrap().to_bytes(), bytes[..MadHeader::LEN], "{name}");
    }
}

#[test]
fn class_port_info_of_opensm() {
    let bytes = &mad("cpi-get/sa1")[SA_DATA_AT..][..ClassPortInfo::LEN];
    let info = ClassPortInfo::parse(bytes).unwrap();
    assert_eq!((info.base_version, info.class_version), (1, 2));
    assert_eq!((info.capability_mask, info.capability_mask2), (0x2602, 0xb5e8));
    assert_eq!(info.resp_time, TimeCode::truncate(16));
    assert!(info.redirect.is_none() && info.trap.is_none());
    assert_eq!((info.redirect.qpn, info.redirect.qkey), (Qpn::GSI, QKey::GSI));
    assert_eq!((info.trap.qpn, info.trap.qkey), (Qpn::SMI, QKey::GSI));
    assert_eq!(info.to_bytes(), bytes);
}

#[test]
fn class_port_info_fields_stand_where_the_table_says() {
    // spec/cm.md 1.6: each byte of the wire holds its own offset, but for the reserved one.
    let mut bytes: [u8; ClassPortInfo::LEN] = std::array::from_fn(|at| at as u8);
    bytes[32] = 0;
    let info = ClassPortInfo::parse(&bytes).unwrap();
    assert_eq!(info.redirect.gid.0[0], 8);
    assert_eq!((info.redirect.traffic_class, info.redirect.sl.get()), (24, 25 >> 4));
    assert_eq!(info.redirect.flow_label.get(), 0x9_1a1b);
    assert_eq!((info.redirect.lid, info.redirect.pkey), (Lid(0x1c1d), PKey(0x1e1f)));
    assert_eq!((info.redirect.qpn.get(), info.redirect.qkey), (0x21_2223, QKey(0x2425_2627)));
    assert_eq!((info.trap.gid.0[0], info.trap.traffic_class), (40, 56));
    assert_eq!((info.trap.lid, info.trap.pkey), (Lid(0x3c3d), PKey(0x3e3f)));
    assert_eq!((info.trap_hop_limit, info.trap.qpn.get()), (64, 0x41_4243));
    assert_eq!(info.trap.qkey, QKey(0x4445_4647));
    assert_eq!(info.to_bytes(), bytes);
}

#[test]
fn path_record_of_a_pair() {
    let expected = PathRecord {
        dgid: gid("fe80::10:1"),
        sgid: gid("fe80::10:4"),
        dlid: Lid(1),
        slid: Lid(4),
        reversible: true,
        pkey: PKey::DEFAULT,
        mtu_selector: Selector::Exactly,
        mtu: Mtu::B2048,
        rate_selector: Selector::Exactly,
        rate: Rate::GBPS_10,
        packet_life_time_selector: Selector::Exactly,
        packet_life_time: PacketLifeTime::truncate(18),
        ..PathRecord::default()
    };
    assert_eq!(record("path-get/sa1", 0), expected);
    assert_eq!(record("path-table-pair/sa1", 0), expected);
    assert_eq!(
        expected.to_string(),
        "fe80::10:4 -> fe80::10:1, LID 4 -> 1, P_Key 0xffff, SL 0, MTU 2048, rate 10 Gb/s, \
         lifetime 18 (1.073741824s), reversible"
    );
}

#[test]
fn path_records_with_exact_values() {
    let answer = record("path-table-pair/sa1", 0);
    let (mtu, rate, life_time) = (answer.mtu, answer.rate, answer.packet_life_time);
    let made = PathRecord::exact(answer.sgid, answer.dgid, mtu, rate, life_time);
    // OpenSM leaves the number of paths at 0.
    assert_eq!(PathRecord { slid: Lid(4), dlid: Lid(1), num_paths: 0, ..made }, answer);
    let [sgid, dgid] = ["10.0.0.1", "10.0.0.2"].map(|ip| Gid::from_ip(ip.parse().unwrap()));
    assert_eq!(
        PathRecord::roce(sgid, dgid, Mtu::B1024).to_string(),
        "::ffff:10.0.0.1 -> ::ffff:10.0.0.2, P_Key 0xffff, SL 0, MTU 1024, rate port current, \
         lifetime 16 (268.435456ms), hop limit 64, reversible"
    );
}

#[test]
fn path_record_to_a_group() {
    let path = record("path-get-mgid/sa1", 0);
    assert!(path.dgid.is_multicast() && path.dlid.is_multicast() && !path.reversible);
    assert_eq!((path.slid, path.num_paths, path.hop_limit), (Lid::NONE, 1, 0xff));
}

#[test]
fn path_record_query_and_its_two_answers() {
    let query = record("seed-example/client1", 0);
    assert_eq!((query.num_paths, query.pkey), (2, PKey(0x1234)));
    assert_eq!((query.mtu_selector, query.mtu), (Selector::LessThan, Mtu::B2048));
    assert_eq!((query.rate_selector, query.rate), (Selector::Exactly, Rate::GBPS_2_5));
    assert!(
        query
            .to_string()
            .ends_with("SL 3, MTU less than 2048, rate 2.5 Gb/s, lifetime more than 0 (4.096µs)")
    );
    for (index, dlid, slid) in [(0, 8, 6), (1, 9, 7)] {
        let path = record("seed-example/sa1", index);
        assert_eq!((path.dlid, path.slid), (Lid(dlid), Lid(slid)));
        assert_eq!((path.pkey, path.mtu), (PKey(0x1234), Mtu::B1024));
        assert_eq!(Some(path.sl), ServiceLevel::new(3));
    }
}

#[test]
fn path_record_field_by_field() {
    let text = format!("{:#}", record("path-get/sa1", 0));
    let expected = "\
PathRecord:
  service_id......... 0x0000000000000000
  dgid............... fe80::10:1
  sgid............... fe80::10:4
  dlid............... 0x0001 (1)
  slid............... 0x0004 (4)
  raw_traffic........ false
  flow_label......... 0x00000
  hop_limit.......... 0
  traffic_class...... 0x00
  reversible......... true
  num_paths.......... 0
  pkey............... 0xffff
  qos_class.......... 0
  sl................. 0
  mtu................ 2048
  rate............... 10 Gb/s
  packet_life_time... 18 (1.073741824s)
  preference......... 0";
    assert_eq!(text, expected);
}

#[test]
fn default_path_record_is_all_zero() {
    assert_eq!(PathRecord::default().to_bytes(), [0; PathRecord::LEN]);
}
