//! The requests that OpenSM was sent, and its answers: on the same subnet ours are the same, byte for byte, but for what is
//! listed with its reason.

use std::path::Path;
use std::time::Instant;

use ibsa::mad::{RmppType, SaHeader};
use ibsa::record::{JoinState, Layout, McMemberRecord};
use ibsoft::manager::{Sa, SaConfig};
use ibwire::mad::Method;
use ibwire::{Gid, Guid, QKey};

use crate::net::{TWO_SWITCHES, peer, request, service, subnet};

/// The client, Hca2.
const CLIENT: u16 = 4;

/// All messages of a file with their labels.
fn messages(file: &str) -> Vec<(String, [u8; 256])> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../ibsa/tests/captures/{file}.hex"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut messages: Vec<(String, Vec<u8>)> = Vec::new();
    for line in text.lines() {
        if let Some(head) = line.strip_prefix("@ ") {
            messages.push((head.split(' ').next().unwrap().into(), Vec::new()));
        } else if !line.starts_with('#') && !line.is_empty() {
            let (_, bytes) = messages.last_mut().expect("bytes follow a label");
            bytes.extend(line.split(' ').map(|byte| u8::from_str_radix(byte, 16).unwrap()));
        }
    }
    messages.into_iter().map(|(label, bytes)| (label, bytes.try_into().unwrap())).collect()
}

/// The captured subnet. OpenSM made the broadcast group of IPoIB by itself; here Hca1 does.
fn sa(now: Instant) -> Sa {
    let mut sa = service(subnet(TWO_SWITCHES, 0), SaConfig::default(), now);
    let broadcast = McMemberRecord {
        mgid: "ff12:401b:ffff::ffff:ffff".parse().unwrap(),
        port_gid: Gid::link_local(Guid(0x10_0001)),
        q_key: QKey(0x0b1b),
        p_key: ibwire::PKey::DEFAULT,
        join_state: JoinState::FULL_MEMBER,
        ..McMemberRecord::default()
    };
    sa.handle_mad(now, peer(1), &request(Method::SET, 0x38, 1, &broadcast, 0x1_30c7));
    assert_eq!(SaHeader::parse(&sa.poll_transmit(now).unwrap().mad).unwrap().mad.status.0, 0);
    sa
}

/// An answer: its header and the bytes of its record or records, each by itself.
#[derive(Debug, Clone, PartialEq)]
struct Answered {
    header: SaHeader,
    records: Vec<Vec<u8>>,
}

/// Takes the MADs of one answer apart. Bytes behind the record are nobody's.
fn answered(mads: &[[u8; 256]]) -> Answered {
    let mut header = SaHeader::parse(&mads[0]).unwrap();
    header.mad.tid.0 &= 0xffff_ffff; // ibsim writes the rest
    let stride = usize::from(header.attribute_offset) * 8;
    if header.rmpp.kind != RmppType::DATA {
        let len = stride.min(168); // ibsim's bytes begin there
        return Answered { header, records: vec![mads[0][56..56 + len].to_vec()] };
    }
    let mut data = Vec::new();
    for mad in mads {
        let header = SaHeader::parse(mad).unwrap();
        let is_last = header.rmpp.flags & 4 != 0;
        data.extend(&mad[56..if is_last { 36 + header.rmpp.length_or_window as usize } else { 256 }]);
    }
    let mut records: Vec<_> = data.chunks(stride.max(1)).map(<[u8]>::to_vec).collect();
    records.sort();
    Answered { header, records }
}

/// Plays one exchange of a file: what OpenSM answered and what we do.
fn exchange(sa: &mut Sa, now: Instant, file: &str, name: &str, from: u16) -> (Answered, Answered) {
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    let messages = messages(file);
    for (label, bytes) in messages.iter().filter(|(label, _)| label.split('/').next() == Some(name)) {
        match label.contains("/client") {
            true => sa.handle_mad(now, peer(from), bytes),
            false => theirs.push(*bytes),
        }
        ours.extend(std::iter::from_fn(|| sa.poll_transmit(now)).map(|sent| sent.mad));
    }
    assert!(!theirs.is_empty(), "{name} is not in {file}");
    assert!(!ours.is_empty(), "no answer to {name} of {file}");
    (answered(&theirs), answered(&ours))
}

/// Plays exchanges whose answers are the same.
fn same(file: &str, names: &[&str]) {
    let now = Instant::now();
    let mut sa = sa(now);
    for name in names {
        let (theirs, ours) = exchange(&mut sa, now, file, name, CLIENT);
        assert_eq!(ours, theirs, "{file} {name}");
    }
}

#[test]
fn nodes_and_ports_are_those_of_opensm() {
    same("02-noderecord-get", &["node-get", "node-get-toomany"]);
    same("03-noderecord-gettable-4seg", &["node-table"]);
    same("05-portinforecord", &["portinfo-get"]);
}

#[test]
fn tables_routes_and_links_are_those_of_opensm() {
    let names = ["sl2vl-get", "sl2vl-table-lid4", "swinfo-get", "lft-get", "link-table", "guidinfo-get"];
    same("15-other-records", &names);
    same("15-other-records", &["pkey-get-nosmkey", "pkey-get", "vlarb-get"]);
}

/// OpenSM's manager had counted to another number.
#[test]
fn the_subnet_manager_is_that_of_opensm() {
    let now = Instant::now();
    let (mut theirs, ours) = exchange(&mut sa(now), now, "15-other-records", "sminfo-get", CLIENT);
    theirs.records[0][20..24].fill(0);
    assert_eq!(ours, theirs);
}

#[test]
fn paths_are_those_of_opensm() {
    same("06-pathrecord-get", &["path-get"]);
    same("07-pathrecord-gettable-1seg", &["path-table-pair", "path-table-empty"]);
    same("08-pathrecord-gettable-2seg", &["path-table-sgid"]);
    same("10-pathrecord-errors", &["path-get-norecords", "path-get-reqinvalid", "path-get-insufcomp"]);
    same("16-multipath-getmulti", &["multipath-notrmpp"]);
}

/// The capabilities that OpenSM names and ours lacks are not named: reading notices, MulticastFDBTop, multicast services.
#[test]
fn class_port_info_is_that_of_opensm_but_for_what_is_not_there() {
    let now = Instant::now();
    let (theirs, ours) = exchange(&mut sa(now), now, "01-classportinfo-get", "cpi-get", CLIENT);
    assert_eq!(ours.header, theirs.header);
    let (theirs, ours) = (messages("01-classportinfo-get")[1].1, {
        let mut sa = sa(now);
        sa.handle_mad(now, peer(CLIENT), &messages("01-classportinfo-get")[0].1);
        sa.poll_transmit(now).unwrap().mad
    });
    let mut expected = theirs;
    expected[59] &= !0x02;
    let second = u32::from_be_bytes(theirs[60..64].try_into().unwrap());
    expected[60..64].copy_from_slice(&(second & !(1 << 8 | 1 << 13)).to_be_bytes());
    assert_eq!(ours[..128], expected[..128]);
}

/// The answer is a transfer both ways; OpenSM's refusal is one, too, and ours is a plain MAD.
#[test]
fn multi_path_queries_are_answered_as_by_opensm() {
    let now = Instant::now();
    let file = "16-multipath-getmulti";
    let theirs: Vec<_> = messages(file).into_iter().filter(|(label, _)| label.contains("/sa")).collect();
    let mut sa = sa(now);
    let mut ours = Vec::new();
    for (_, bytes) in
        messages(file).into_iter().filter(|(label, _)| label.starts_with("multipath-getmulti/client"))
    {
        sa.handle_mad(now, peer(CLIENT), &bytes);
        ours.extend(std::iter::from_fn(|| sa.poll_transmit(now)).map(|sent| sent.mad));
    }
    assert_eq!(ours.len(), 2);
    assert_eq!((ours[0], ours[1]), (theirs[0].1, theirs[1].1));

    let query =
        messages(file).into_iter().find(|(label, _)| label == "multipath-getmulti-norec/client1").unwrap().1;
    sa.handle_mad(now, peer(CLIENT), &query);
    let (_, refusal) = (sa.poll_transmit(now).unwrap(), sa.poll_transmit(now).unwrap());
    let header = SaHeader::parse(&refusal.mad).unwrap();
    assert_eq!((header.mad.status.0, header.mad.attribute.0, header.rmpp.is_active()), (0x0500, 0x35, false));
}

/// Who sent a request is told by the port that it names; the flag of joins for others is our bit 7, and ours is also in the
/// answer to the join.
#[test]
fn groups_are_those_of_opensm() {
    let now = Instant::now();
    let mut sa = sa(now);
    let file = "11-mcmember";
    for name in
        ["mc-create", "mc-join-conflict", "mc-join-sendonly", "mc-join-full", "mc-join-proxy", "mc-get"]
    {
        let query =
            messages(file).into_iter().find(|(label, _)| *label == format!("{name}/client1")).unwrap().1;
        let port = McMemberRecord::parse(&query[56..]).unwrap().port_gid;
        let at = sa.topology().at_gid(port).and_then(|at| sa.topology().port(at));
        let own = at.map_or(CLIENT, |port| port.info.lid.0);
        let from = if name == "mc-join-proxy" { CLIENT } else { own };
        let (theirs, mut ours) = exchange(&mut sa, now, file, name, from);
        if name == "mc-join-proxy" {
            assert_eq!(std::mem::take(&mut ours.records[0][49]), 0x80);
        }
        assert_eq!(ours, theirs, "{name}");
    }
    let (mut theirs, mut ours) = exchange(&mut sa, now, file, "mc-table-trusted", CLIENT);
    let proxies = |table: &mut Answered| -> Vec<bool> {
        table.records.iter_mut().map(|record| std::mem::take(&mut record[49]) != 0).collect()
    };
    assert_eq!(proxies(&mut ours), proxies(&mut theirs));
    assert_eq!(ours, theirs);
}

#[test]
fn services_are_those_of_opensm() {
    let names = ["svc-set", "svc-get", "svc-get-trusted", "svc-table", "svc-delete", "svc-get-norecords"];
    let now = Instant::now();
    let mut sa = sa(now);
    for name in names {
        let (mut theirs, mut ours) = exchange(&mut sa, now, "12-servicerecord", name, CLIENT);
        // Of a table the last 8 bytes were written by ibsim.
        for record in theirs.records.iter_mut().chain(&mut ours.records) {
            record.truncate(168);
        }
        assert_eq!(ours, theirs, "{name}");
    }
}

/// OpenSM gives all subscriptions number 0.
#[test]
fn subscriptions_are_those_of_opensm() {
    let now = Instant::now();
    let mut sa = sa(now);
    for name in ["inform-set-66", "inform-set-67"] {
        let (theirs, ours) = exchange(&mut sa, now, "13-informinfo", name, CLIENT);
        assert_eq!(ours, theirs, "{name}");
    }
    let (theirs, mut ours) = exchange(&mut sa, now, "13-informinfo", "informrec-table", CLIENT);
    ours.records.iter_mut().for_each(|record| record[16..18].fill(0));
    assert_eq!(ours, theirs);
    for name in ["inform-unsub-66", "inform-unsub-67", "inform-get-unsupported"] {
        let (theirs, ours) = exchange(&mut sa, now, "13-informinfo", name, CLIENT);
        assert_eq!(ours, theirs, "{name}");
    }
}

#[test]
fn alias_guids_are_those_of_opensm() {
    let names = ["guidinfo-set-1", "guidinfo-set-2-sa-assigned", "guidinfo-set-0-readonly"];
    same(
        "21-guidinfo-alias",
        &[&names[..], &["guidinfo-set-duplicate", "path-get-alias", "guidinfo-delete-1"]].concat(),
    );
}

/// OpenSM's path to a group has the flow label's bytes in the wrong order (T10); ours has what the group has.
#[test]
fn sa_t10_the_path_to_a_group_has_its_flow_label() {
    let now = Instant::now();
    let mut sa = sa(now);
    let file = "20-path-mgid-flowlabel";
    let (theirs, ours) = exchange(&mut sa, now, file, "mc-create-flowlabel", CLIENT);
    assert_eq!(ours, theirs);
    let (theirs, ours) = exchange(&mut sa, now, file, "path-get-mgid-flowlabel", CLIENT);
    assert_eq!(theirs.records[0][44..48], [0x00, 0x45, 0x23, 0xff]);
    assert_eq!(ours.records[0][44..47], [0x01, 0x23, 0x45]);
    let but = |answer: &Answered| [&answer.records[0][..44], &answer.records[0][48..]].concat();
    assert_eq!((but(&ours), ours.header), (but(&theirs), theirs.header));
}
