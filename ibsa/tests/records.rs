//! Records against what OpenSM really sends and what its clients really ask.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its data fails")]

mod common;

use common::{data, files, message, messages, record, request};
use ibsa::mad::{SaHeader, table};
use ibsa::record::*;
use ibwire::mad::{AttributeId, MadHeader, MadStatus, Method, MgmtClass};
use ibwire::{
    FlowLabel, Gid, Guid, Lid, Mtu, PKey, PacketLifeTime, QKey, Qpn, Rate, Selector, ServiceId, TransactionId,
};
use proptest::prelude::*;

fn header_of(file: &str, label: &str) -> SaHeader {
    SaHeader::parse(&message(file, label)).unwrap()
}

/// Parses the records of the answers in a capture, encodes them again and compares.
fn round_trip<R: Record>(bytes: &[u8]) {
    let record = R::parse(bytes).unwrap();
    let again = record.to_bytes();
    assert_eq!(again, bytes[..R::LEN], "{record:#}");
    record.check().unwrap();
}

#[test]
fn every_captured_header_is_read_and_written_alike() {
    let mut count = 0;
    for file in files() {
        for (label, bytes) in messages(&file) {
            let header = SaHeader::parse(&bytes).unwrap();
            assert_eq!(header.mad.class, MgmtClass::SA, "{file} {label}");
            assert_eq!(header.to_bytes(), bytes[..SaHeader::LEN], "{file} {label}");
            count += 1;
        }
    }
    assert!(count > 250, "{count} messages");
}

#[test]
fn every_captured_record_is_written_as_it_was_read() {
    let (nodes, _) = data("04-noderecord-gettable-13seg", "node13");
    nodes.chunks_exact(112).for_each(round_trip::<NodeRecord>);
    let (paths, _) = data("09-pathrecord-gettable-170seg", "path170");
    assert_eq!(paths.chunks_exact(64).map(round_trip::<PathRecord>).count(), 529);
    let (ports, _) = data("05-portinforecord", "portinfo-table-lid2");
    ports.chunks_exact(72).for_each(round_trip::<PortInfoRecord>);
    let of = |file: &str, exchange: &str| message(file, &format!("{exchange}/sa1"))[SaHeader::LEN..].to_vec();
    let other = |exchange: &str| of("15-other-records", exchange);
    round_trip::<Sl2VlTableRecord>(&other("sl2vl-get"));
    round_trip::<SwitchInfoRecord>(&other("swinfo-get"));
    round_trip::<LftRecord>(&other("lft-get"));
    round_trip::<SmInfoRecord>(&other("sminfo-get"));
    round_trip::<GuidInfoRecord>(&other("guidinfo-get"));
    round_trip::<PKeyTableRecord>(&other("pkey-get"));
    round_trip::<VlArbitrationTableRecord>(&other("vlarb-get"));
    let (links, offset) = data("15-other-records", "link-table");
    links.chunks_exact(8 * usize::from(offset)).for_each(round_trip::<LinkRecord>);
    let (groups, offset) = data("15-other-records", "mft-table");
    groups.chunks_exact(8 * usize::from(offset)).for_each(round_trip::<MftRecord>);
    round_trip::<ServiceRecord>(&of("12-servicerecord", "svc-get-trusted"));
    round_trip::<ClassPortInfo>(&of("01-classportinfo-get", "cpi-get"));
    let (subscriptions, offset) = data("13-informinfo", "informrec-table");
    assert_eq!(offset, 8);
    subscriptions.chunks_exact(64).for_each(round_trip::<InformInfoRecord>);
    round_trip::<InformInfo>(&of("13-informinfo", "inform-set-66"));
    round_trip::<Notice>(&of("14-reports", "report-66"));
    for exchange in ["mc-create", "mc-join-full", "mc-get", "mc-leave-full", "mc-create-mgid0"] {
        round_trip::<McMemberRecord>(&of("11-mcmember", exchange));
    }
}

#[test]
fn sa_t01_class_port_info_says_what_opensm_can_do() {
    let header = header_of("01-classportinfo-get", "cpi-get/sa1");
    // An attribute offset of 0 in the answer to a Get is one record.
    assert_eq!(header.attribute_offset, 0);
    let info: ClassPortInfo = record("01-classportinfo-get", "cpi-get/sa1");
    assert_eq!((info.capability_mask, info.capability_mask2), (0x2602, 0xb5e8));
    assert_eq!((info.resp_time.get(), info.redirect.qpn), (16, Qpn::GSI));
}

#[test]
fn sa_t02_records_longer_than_known_are_read_by_their_stride() {
    let (bytes, offset) = data("04-noderecord-gettable-13seg", "node13");
    assert_eq!((bytes.len(), offset), (2576, 14));
    let nodes: Vec<NodeRecord> = table(&bytes, offset).unwrap();
    assert_eq!(nodes.len(), 23);
    let switches = nodes.iter().filter(|node| node.node_info.node_type == NodeType::SWITCH).count();
    assert!(switches > 0 && switches < 23, "{switches}");
    assert!(nodes.iter().all(|node| node.lid != Lid::NONE && node.node_info.base_version == 1));
}

#[test]
fn sa_t03_a_stride_below_the_fields_is_malformed() {
    let error = table::<NodeRecord>(&[0; 224], 13).unwrap_err();
    assert_eq!(error.to_string(), "NodeRecord takes 108 bytes, but a table of 224 bytes has records of 104");
    assert!(table::<NodeRecord>(&[0; 8], 0).is_err());
    assert_eq!(table::<NodeRecord>(&[0; 111], 14).unwrap(), []); // not one whole record
}

#[test]
fn sa_t04_an_empty_table_has_no_stride() {
    let (bytes, offset) = data("07-pathrecord-gettable-1seg", "path-table-empty");
    assert_eq!((bytes.len(), offset), (0, 0));
    assert_eq!(table::<PathRecord>(&bytes, offset).unwrap(), []);
}

#[test]
fn sa_t05_the_offset_of_inform_info_does_not_count() {
    assert_eq!(header_of("13-informinfo", "inform-set-66/sa1").attribute_offset, 4);
    let info: InformInfo = record("13-informinfo", "inform-set-66/sa1");
    assert_eq!((info.trap_or_device, info.subscribe, info.is_generic), (66, 1, 1));
}

#[test]
fn sa_t06_what_follows_a_record_is_not_looked_at() {
    let mut bytes = message("02-noderecord-get", "node-get/sa1");
    let node = NodeRecord::parse(&bytes[SaHeader::LEN..]).unwrap();
    bytes[SaHeader::LEN + NodeRecord::LEN..].fill(0xa5);
    assert_eq!(NodeRecord::parse(&bytes[SaHeader::LEN..]).unwrap(), node);
    let mut out = [0xff; 112];
    node.write_to(&mut out);
    assert_eq!(out[2..4], [0, 0], "reserved fields are written as 0");
}

#[test]
fn sa_t07_random_bytes_around_a_notice_do_not_matter() {
    let details = |label| record::<Notice>("14-reports", label).details();
    let group: Gid = "ff15:a01b:fe80::777".parse().unwrap();
    let port = Gid::link_local(Guid(0x10_000a));
    assert_eq!(details("report-66/sa1"), NoticeDetails::GroupCreated(group));
    assert_eq!(details("report-67/sa1"), NoticeDetails::GroupDeleted(group));
    assert_eq!(details("report-65/sa1"), NoticeDetails::GidOut(port));
    assert_eq!(details("report-64/sa1"), NoticeDetails::GidIn(port));
    let notice: Notice = record("14-reports", "report-65/sa1");
    assert_eq!((notice.issuer_lid, notice.producer_or_vendor), (Lid(1), 4));
    assert_eq!(notice.notice_type, NoticeType::SUBNET_MANAGEMENT);
    assert_eq!(notice.to_string(), "fe80::10:a is out of service");
}

#[test]
fn sa_t08_both_bits_of_proxy_join_are_understood() {
    let (bytes, offset) = data("11-mcmember", "mc-table-trusted");
    let members: Vec<McMemberRecord> = table(&bytes, offset).unwrap();
    let at = members.iter().position(|member| member.proxy_join.0).unwrap();
    let joined = &members[at];
    assert_eq!(bytes[at * 56 + 49], 0x01, "what the SA sets");
    assert_eq!(joined.to_bytes()[49], 0x80);
    assert!(McMemberRecord::parse(&joined.to_bytes()).unwrap().proxy_join.0);
}

#[test]
fn sa_t09_a_group_is_asked_for_byte_for_byte() {
    let captured = message("20-path-mgid-flowlabel", "mc-create-flowlabel/client1");
    let header = SaHeader::parse(&captured).unwrap();
    let asked = McMemberRecord::parse(&captured[SaHeader::LEN..]).unwrap();
    assert_eq!((asked.flow_label, asked.hop_limit), (FlowLabel::truncate(0x12345), 7));
    let wanted = Template::<McMemberRecord>::new()
        .mgid(asked.mgid)
        .port_gid(asked.port_gid)
        .join_state(JoinState::FULL_MEMBER)
        .scope(5u8)
        .mtu(Is::Exactly(Mtu::B1024))
        .rate(Is::Exactly(Rate::GBPS_2_5))
        .packet_life_time(Is::Exactly(PacketLifeTime::truncate(18)))
        .q_key(0x1234u32)
        .traffic_class(asked.traffic_class)
        .p_key(asked.p_key)
        .sl(asked.sl)
        .flow_label(0x12345u32)
        .hop_limit(7u8);
    let (record, mask) = wanted.checked().unwrap();
    assert_eq!((mask, header.component_mask), (0x1_fff7, 0x1_fff7));
    assert_eq!(request(header, &record), captured);
}

#[test]
fn sa_t10_a_group_has_its_flow_label_from_its_own_record() {
    let group: McMemberRecord = record("20-path-mgid-flowlabel", "mc-create-flowlabel/sa1");
    assert_eq!((group.flow_label, group.hop_limit), (FlowLabel::truncate(0x12345), 7));
    let path: PathRecord = record("20-path-mgid-flowlabel", "path-get-mgid-flowlabel/sa1");
    assert_ne!(path.flow_label, group.flow_label, "what the SA gets wrong");
    assert_eq!((path.dlid, path.hop_limit), (group.mlid, 0xff));
}

#[test]
fn sa_t13_the_scope_of_a_group_is_in_its_mgid() {
    let group: McMemberRecord = record("11-mcmember", "mc-create/sa1");
    assert_eq!(group.mgid.0[1] & 0x0f, 5);
    assert_eq!(group.scope, 0);
}

#[test]
fn sa_t14_rates_are_compared_by_their_speed() {
    let (five, ten, unknown) = (Rate::GBPS_5, Rate::GBPS_10, Rate(0x3e));
    assert!(five.0 > ten.0 && five.mbps() < ten.mbps(), "the codes are in no order");
    assert_eq!(unknown.mbps(), None);
}

#[test]
fn sa_t19_a_selector_comes_with_its_value() {
    for (mask, template) in [
        (0b11 << 16, Template::<PathRecord>::new().mtu(Is::Best)),
        (0b11 << 18, Template::<PathRecord>::new().rate(Is::GreaterThan(Rate::GBPS_10))),
        (0b11 << 20, Template::<PathRecord>::new().packet_life_time(Is::Best)),
    ] {
        assert_eq!(template.mask(), mask);
    }
    let (group, mask) = Template::<McMemberRecord>::new().mtu(Is::Exactly(Mtu::B2048)).checked().unwrap();
    assert_eq!((mask, group.mtu_selector, group.mtu), (0b11 << 4, Selector::Exactly, Mtu::B2048));
}

#[test]
fn sa_t20_a_service_has_both_of_its_bits() {
    assert_eq!(Template::<PathRecord>::new().service_id(7u64).mask(), 0b11);
    assert_eq!(Template::<MultiPathRecord>::new().service_id(ServiceId(7)).mask(), 1 << 16 | 1 << 21);
}

#[test]
fn sa_t15_an_unknown_rate_is_kept() {
    let mut bytes = record::<PathRecord>("06-pathrecord-get", "path-get/sa1").to_bytes();
    bytes[55] = 0x80 | 60;
    let path = <PathRecord as Layout>::parse(&bytes).unwrap();
    assert_eq!((path.rate, path.rate.mbps()), (Rate(60), None));
    assert_eq!(Layout::to_bytes(&path), bytes);
}

#[test]
fn sa_t16_a_description_needs_neither_nul_nor_utf8() {
    let mut node: NodeRecord = record("02-noderecord-get", "node-get/sa1");
    let mut bytes = node.to_bytes();
    bytes[44..].fill(0xff);
    node = NodeRecord::parse(&bytes).unwrap();
    assert_eq!(node.node_description.as_bytes().len(), 64);
    assert_eq!(node.node_description.to_string(), "\u{fffd}".repeat(64));
    assert_eq!(node.to_bytes(), bytes);
}

#[test]
fn nodes_ports_and_paths_are_what_the_sheet_says() {
    let node: NodeRecord = record("02-noderecord-get", "node-get/sa1");
    assert_eq!((node.lid, node.node_info.node_type, node.node_info.num_ports), (Lid(4), NodeType::CA, 2));
    assert_eq!(node.node_info.port_guid, Guid(0x10_0004));
    assert_eq!(header_of("02-noderecord-get", "node-get-toomany/sa1").mad.status, MadStatus(0x0400));

    let port: PortInfoRecord = record("05-portinforecord", "portinfo-get/sa1");
    assert_eq!((port.end_port_lid, port.port_num), (Lid(4), 1));
    let info = &port.port_info;
    assert_eq!(info.capability_mask.bits(), 0x0050_c048);
    assert_eq!((info.port_state, info.port_physical_state), (PortState::ACTIVE, PortPhysicalState::LINK_UP));
    assert_eq!((info.rate(), info.neighbor_mtu), (Some(Rate::GBPS_10), Mtu::B2048));

    let path: PathRecord = record("06-pathrecord-get", "path-get/sa1");
    assert_eq!((path.dlid, path.slid, path.pkey, path.mtu), (Lid(1), Lid(4), PKey::DEFAULT, Mtu::B2048));
    assert_eq!((path.rate, path.packet_life_time.get(), path.reversible), (Rate::GBPS_10, 18, true));
    let group: PathRecord = record("06-pathrecord-get", "path-get-mgid/sa1");
    assert_eq!((group.dlid, group.slid, group.hop_limit, group.num_paths), (Lid(0xc001), Lid(0), 0xff, 1));
}

#[test]
fn groups_services_and_managers_are_what_the_sheet_says() {
    let joined: McMemberRecord = record("11-mcmember", "mc-join-full/sa1");
    assert_eq!(joined.join_state, JoinState::FULL_MEMBER | JoinState::SEND_ONLY_NON_MEMBER);
    let assigned: McMemberRecord = record("11-mcmember", "mc-create-mgid0/sa1");
    assert_eq!((assigned.mgid, assigned.mlid), ("ff12:a01b:fe80::".parse().unwrap(), Lid(0xc002)));

    let set: ServiceRecord = record("12-servicerecord", "svc-set/sa1");
    assert_eq!((set.service_p_key, set.service_key, set.service_lease), (PKey::DEFAULT, [0; 16], 3600));
    let trusted: ServiceRecord = record("12-servicerecord", "svc-get-trusted/sa1");
    assert_eq!(trusted.service_key, [0x4b; 16]);
    assert_eq!(trusted.service_data64[0], 0x3031_3233_3435_3637);

    let manager: SmInfoRecord = record("15-other-records", "sminfo-get/sa1");
    assert_eq!((manager.guid, manager.priority, manager.sm_state), (Guid(0x10_0001), 0, SmState::MASTER));
    assert_eq!(manager.sm_key, 0);
}

#[test]
fn services_are_registered_byte_for_byte() {
    let captured = message("12-servicerecord", "svc-set/client1");
    let header = SaHeader::parse(&captured).unwrap();
    let mut wanted = Template::<ServiceRecord>::new()
        .service_id(0x1000_0000_0000_0042u64)
        .service_gid(Gid::link_local(Guid(0x10_0004)))
        .service_p_key(0xffffu16)
        .service_lease(3600u32)
        .service_key([0x4b; 16])
        .service_name("svc.example");
    for index in 0..16 {
        wanted = wanted.service_data8(index, index as u8);
    }
    for index in 0..8 {
        let first = 0x10 + 2 * index as u16;
        wanted = wanted.service_data16(index, first << 8 | (first + 1));
    }
    assert_eq!(wanted.mask() | 1 << 3, 0x7fff_ffff); // the reserved component has a bit of its own
    let (mut record, _) = wanted.checked().unwrap();
    record.service_data32 = [0x2021_2223, 0x2425_2627, 0x2829_2a2b, 0x2c2d_2e2f];
    record.service_data64 = [0x3031_3233_3435_3637, 0x3839_3a3b_3c3d_3e3f];
    assert_eq!(request(header, &record), captured);
}

#[test]
fn every_query_of_a_capture_is_made_by_a_template() {
    let check = |file: &str, label: &str, (bytes, mask): (Vec<u8>, u64)| {
        assert_eq!(mask, header_of(file, label).component_mask, "{file} {label}");
        assert_eq!(bytes, message(file, label)[SaHeader::LEN..][..bytes.len()], "{file} {label}");
    };
    fn made<L: Layout>(template: Template<L>) -> (Vec<u8>, u64) {
        let (record, mask) = template.checked().unwrap();
        (record.to_bytes(), mask)
    }
    let here = Gid::link_local(Guid(0x10_0004));
    check("02-noderecord-get", "node-get/client1", made(Template::<NodeRecord>::new().lid(4u16)));
    check(
        "05-portinforecord",
        "portinfo-get/client1",
        made(Template::<PortInfoRecord>::new().end_port_lid(4u16).port_num(1u8)),
    );
    check(
        "06-pathrecord-get",
        "path-get/client1",
        made(
            Template::<PathRecord>::new()
                .sgid(here)
                .dgid(Gid::link_local(Guid(0x10_0001)))
                .reversible(true)
                .num_paths(1),
        ),
    );
    check(
        "08-pathrecord-gettable-2seg",
        "path-table-sgid/client1",
        made(Template::<PathRecord>::new().sgid(here)),
    );
    check(
        "22-portinfo-capmask-match",
        "portinfo-capmask-subset/client1",
        made(Template::<PortInfoRecord>::new().port_info(|port| port.capability_mask(PortCapabilities::SM))),
    );
    assert_eq!(
        header_of("22-portinfo-capmask-match", "portinfo-capmask-subset/client1").mad.attribute_modifier,
        PortInfoRecord::CAPABILITIES_AT_LEAST
    );
    check(
        "15-other-records",
        "sl2vl-get/client1",
        made(Template::<Sl2VlTableRecord>::new().lid(2u16).input_port_num(1u8).output_port_num(2u8)),
    );
    check(
        "21-guidinfo-alias",
        "guidinfo-set-1/client1",
        made({
            let asked: GuidInfoRecord = record("21-guidinfo-alias", "guidinfo-set-1/client1");
            Template::<GuidInfoRecord>::new().lid(asked.lid).block_num(0u8).guids(1, asked.guids[1])
        }),
    );
}

#[test]
fn sa_t74_a_refused_alias_shows_in_its_slot() {
    let header = header_of("21-guidinfo-alias", "guidinfo-set-duplicate/sa1");
    let refused: GuidInfoRecord = record("21-guidinfo-alias", "guidinfo-set-duplicate/sa1");
    assert_eq!((header.mad.status, refused.guids[1]), (MadStatus::OK, Guid(0)));
}

#[test]
fn the_worked_example_asks_and_is_answered() {
    let captured = message("18-pathrecord-seed-example", "seed-example/client1");
    let header = SaHeader::parse(&captured).unwrap();
    let asked: PathRecord = record("18-pathrecord-seed-example", "seed-example/client1");
    let wanted = Template::<PathRecord>::new()
        .sgid(asked.sgid)
        .dgid(asked.dgid)
        .raw_traffic(false)
        .num_paths(2)
        .p_key(0x1234u16)
        .sl(3u8)
        .mtu(Is::LessThan(Mtu::B2048))
        .rate(Is::Exactly(Rate::GBPS_2_5));
    let (record, mask) = wanted.checked().unwrap();
    assert_eq!((mask, header.component_mask), (0x000f_b04c, 0x000f_b04c));
    assert_eq!(request(header, &record), captured);
    let example = "0000 0000 00000000 0002 1234 0003 44 82 00 00 000000000000";
    assert_eq!(hex(&Layout::to_bytes(&record)[40..]), example.replace(' ', ""));

    // The two records of the book, in today's encoding with Reversible set.
    let path = |dlid, mtu, life_time| PathRecord {
        dlid: Lid(dlid),
        slid: Lid(0x000a),
        reversible: true,
        num_paths: 2,
        pkey: PKey(0x1234),
        sl: record.sl,
        mtu_selector: Selector::Exactly,
        mtu,
        rate_selector: Selector::Exactly,
        rate: Rate::GBPS_2_5,
        packet_life_time_selector: Selector::Exactly,
        packet_life_time: PacketLifeTime::truncate(life_time),
        ..PathRecord::default()
    };
    for (path, expected) in [
        (path(8, Mtu::B1024, 2), "0008 000a 00000000 0082 1234 0003 83 82 82 00 000000000000"),
        (path(9, Mtu::B512, 10), "0009 000a 00000000 0082 1234 0003 82 82 8a 00 000000000000"),
    ] {
        assert_eq!(hex(&Layout::to_bytes(&path)[40..]), expected.replace(' ', ""));
    }

    // What OpenSM really answers.
    let answer = message("18-pathrecord-seed-example", "seed-example/sa1");
    let offset = SaHeader::parse(&answer).unwrap().attribute_offset;
    let paths: Vec<PathRecord> = table(&answer[SaHeader::LEN..], offset).unwrap();
    let lids: Vec<_> = paths.iter().map(|path| (path.dlid.0, path.slid.0)).collect();
    assert_eq!(lids, [(8, 6), (9, 7)]);
    assert!(
        paths.iter().all(|path| path.mtu == Mtu::B1024 && path.pkey == PKey(0x1234) && path.num_paths == 0)
    );
}

#[test]
fn several_paths_are_asked_for_byte_for_byte() {
    let captured = message("16-multipath-getmulti", "multipath-getmulti/client1");
    let header = SaHeader::parse(&captured).unwrap();
    assert_eq!(header.mad.attribute, MultiPathRecord::ATTRIBUTE);
    let gids: Vec<Gid> = captured[SaHeader::LEN + 24..][..48]
        .chunks_exact(16)
        .map(|gid| Gid(gid.try_into().unwrap()))
        .collect();
    let head = MultiPathRecord::parse(&captured[SaHeader::LEN..]).unwrap();
    let (sources, destinations) = gids.split_at(head.sgid_count.into());
    let query = MultiPath {
        wanted: Template::<MultiPathRecord>::new()
            .reversible(head.reversible)
            .num_paths(head.num_paths)
            .p_key(head.p_key),
        sources: sources.to_vec(),
        destinations: destinations.to_vec(),
    };
    let (bytes, mask) = query.to_bytes().unwrap();
    assert_eq!(bytes.len(), 24 + 3 * 16);
    assert_eq!(bytes[15..17], [head.sgid_count, head.dgid_count]);
    assert_eq!(mask & (1 << 19 | 1 << 20), header.component_mask & (1 << 19 | 1 << 20));
    let none = MultiPath { sources: Vec::new(), ..query.clone() };
    assert_eq!(none.to_bytes().unwrap_err().field, "sources");
    let service = Template::<MultiPathRecord>::new().service_id(ServiceId(0x0123_4567_89ab_cdef));
    let (record, mask) = service.checked().unwrap();
    let bytes = record.to_bytes();
    assert_eq!((bytes[13], &bytes[17..24]), (0x01, &[0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef][..]));
    assert_eq!(mask, 1 << 16 | 1 << 21);
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let refused = |template: Template<NodeRecord>| template.checked().unwrap_err().to_string();
    assert_eq!(
        refused(Template::<NodeRecord>::new().node_info(|info| info.vendor_id(0x0100_0000u32))),
        "NodeInfo vendor_id is 16777216, at most 16777215 is possible"
    );
    let long = "x".repeat(65);
    assert_eq!(
        refused(Template::<NodeRecord>::new().node_description(long.as_str())),
        "NodeRecord node_description is 65, at most 64 is possible"
    );
    let index = Template::<GuidInfoRecord>::new().guids(8, Guid(1)).checked().unwrap_err();
    assert_eq!((index.field, index.value, index.limit), ("guids", 8, 7));
    let record = PortInfo { lmc: 8, ..PortInfo::default() };
    assert_eq!(record.check().unwrap_err().field, "lmc");
    assert!(
        Template::with_mask(PortInfoRecord { port_info: record, ..Default::default() }, 1).checked().is_err()
    );
    assert_eq!(Template::<PathRecord>::new().num_paths(128).checked().unwrap_err().limit, 127);
    assert_eq!(Template::<PathRecord>::new().mtu(Is::Exactly(Mtu(64))).checked().unwrap_err().field, "mtu");
    assert_eq!(
        Template::<McMemberRecord>::new().rate(Is::LessThan(Rate(64))).checked().unwrap_err().limit,
        63
    );
}

#[test]
fn masks_have_the_bits_of_the_sheet() {
    // The last component of each record, so that a shifted row would show.
    assert_eq!(Template::<NodeRecord>::new().node_description("x").mask(), 1 << 14);
    assert_eq!(Template::<NodeRecord>::new().node_info(|part| part.vendor_id(1u32)).mask(), 1 << 13);
    assert_eq!(
        Template::<PortInfoRecord>::new()
            .port_info(|part| part.link_speed_ext_enabled(LinkSpeedExt::EDR))
            .mask(),
        1 << 57
    );
    assert_eq!(
        Template::<SwitchInfoRecord>::new().switch_info(|part| part.multicast_fdb_top(Lid(0xc001))).mask(),
        1 << 20
    );
    assert_eq!(
        Template::<InformInfoRecord>::new().inform_info(|part| part.producer_or_vendor(4u32)).mask(),
        1 << 15
    );
    assert_eq!(Template::<ServiceRecord>::new().service_data64(1, 1u64).mask(), 1 << 36);
    assert_eq!(Template::<McMemberRecord>::new().proxy_join(ProxyJoin(true)).mask(), 1 << 17);
    assert_eq!(Template::<SmInfoRecord>::new().sm_state(SmState::MASTER).mask(), 1 << 6);
    assert_eq!(Template::<LinkRecord>::new().to_lid(1u16).mask(), 1 << 3);
    assert_eq!(Template::<TraceRecord>::new().exit_port(1u8).mask(), 1 << 9);
    assert_eq!(Template::<MftRecord>::new().block_num(1u16).mask(), 1 << 3);
    assert_eq!(Template::<PathRecord>::new().preference(1).mask(), 1 << 22);
    assert_eq!(Template::<MultiPathRecord>::new().gid_scope(1u8).mask(), 1 << 18);
    assert_eq!(Template::<PathRecord>::new().service_id(1u64).mask(), 0b11);
}

#[test]
fn records_read_as_people_expect() {
    let node: NodeRecord = record("02-noderecord-get", "node-get/sa1");
    assert_eq!(
        node.to_string(),
        format!("LID 4, CA {}, port 1 of 2, \"{}\"", node.node_info.node_guid, node.node_description)
    );
    let whole = format!("{node:#}");
    assert!(whole.starts_with("NodeRecord:\n  lid..................... 0x0004"), "{whole}");
    assert!(whole.contains("\n  node_info:\n    base_version............ 1\n"), "{whole}");
    let port: PortInfoRecord = record("05-portinforecord", "portinfo-get/sa1");
    assert_eq!(
        port.to_string(),
        "LID 4 port 1: LID 4, Active (LinkUp), X4 at 10 Gb/s, MTU 2048 of 2048, LMC 0"
    );
    let link = LinkRecord { from_lid: Lid(1), from_port: 2, to_port: 3, to_lid: Lid(4) };
    assert_eq!(link.to_string(), "LID 1 port 2 -> LID 4 port 3");
    let group: McMemberRecord = record("11-mcmember", "mc-join-full/sa1");
    let shown = group.to_string();
    assert!(
        shown.starts_with("ff15:a01b:") && shown.contains("FULL_MEMBER | SEND_ONLY_NON_MEMBER"),
        "{shown}"
    );
    assert_eq!(InformInfo::trap(66).to_string(), "subscribe to trap 66, QP 0x000000");
}

#[test]
fn forwarding_tables_answer_for_a_lid() {
    let table: LftRecord = record("15-other-records", "lft-get/sa1");
    assert_eq!(table.port(Lid(table.block_num * 64)), None);
    assert!(table.ports.iter().any(|port| *port != 255));
    let groups = MftRecord {
        position: 1,
        block_num: 0,
        port_masks: std::array::from_fn(|at| u16::from(at == 1) * 0b101),
        ..Default::default()
    };
    assert_eq!(groups.ports(Lid(0xc001)).collect::<Vec<_>>(), [16, 18]);
    assert_eq!(groups.ports(Lid(0xc021)).count() + groups.ports(Lid(7)).count(), 0);
}

#[test]
fn headers_are_made_as_requests_are() {
    let mad = MadHeader::new(
        MgmtClass::SA,
        SaHeader::CLASS_VERSION,
        Method::GET,
        NodeRecord::ATTRIBUTE,
        TransactionId(7),
    );
    let header = SaHeader::new(mad);
    assert_eq!(SaHeader::parse(&header.to_bytes()).unwrap(), header);
    assert!(!header.rmpp.is_active());
    assert_eq!(AttributeId(0x11), header.mad.attribute);
    assert!(SaHeader::parse(&[0; 55]).is_err());
    assert_eq!(QKey::GSI.0, 0x8001_0000);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Any bytes are a record, and a record read twice is the same.
fn any_bytes_are<R: Record>(bytes: &[u8]) -> Result<(), TestCaseError> {
    let record = <R as Layout>::parse(bytes).unwrap();
    prop_assert!(record.check().is_ok(), "{}", R::NAME);
    let written = Layout::to_bytes(&record);
    prop_assert_eq!(&<R as Layout>::parse(&written).unwrap(), &record);
    let _printed = format!("{record} {record:#}");
    prop_assert!(<R as Layout>::parse(&bytes[..R::LEN - 1]).is_err());
    Ok(())
}

proptest! {
    #[test]
    fn any_bytes_are_a_record(bytes in prop::collection::vec(any::<u8>(), 200)) {
        any_bytes_are::<NodeRecord>(&bytes)?;
        any_bytes_are::<PortInfoRecord>(&bytes)?;
        any_bytes_are::<PortInfoExtendedRecord>(&bytes)?;
        any_bytes_are::<SwitchInfoRecord>(&bytes)?;
        any_bytes_are::<Sl2VlTableRecord>(&bytes)?;
        any_bytes_are::<LftRecord>(&bytes)?;
        any_bytes_are::<RftRecord>(&bytes)?;
        any_bytes_are::<MftRecord>(&bytes)?;
        any_bytes_are::<PKeyTableRecord>(&bytes)?;
        any_bytes_are::<VlArbitrationTableRecord>(&bytes)?;
        any_bytes_are::<GuidInfoRecord>(&bytes)?;
        any_bytes_are::<SmInfoRecord>(&bytes)?;
        any_bytes_are::<LinkRecord>(&bytes)?;
        any_bytes_are::<TraceRecord>(&bytes)?;
        any_bytes_are::<ServiceRecord>(&bytes)?;
        any_bytes_are::<ServiceAssociationRecord>(&bytes)?;
        any_bytes_are::<McMemberRecord>(&bytes)?;
        any_bytes_are::<InformInfo>(&bytes)?;
        any_bytes_are::<InformInfoRecord>(&bytes)?;
        any_bytes_are::<Notice>(&bytes)?;
        any_bytes_are::<PathRecord>(&bytes)?;
    }
}
