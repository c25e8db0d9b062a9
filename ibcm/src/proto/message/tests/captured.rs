//! MADs that Linux's ib_cm and a user-space CM put onto the wire.

use ibwire::{Guid, Lid, Mtu, PKey, Psn, Qpn, Rate, RejReason, ServiceId, TimeCode};

use super::*;

/// File, frame and MAD of each line of captured.txt.
fn captures() -> impl Iterator<Item = (&'static str, u32, [u8; MAD_LEN])> {
    include_str!("captured.txt").lines().filter(|line| !line.starts_with('#')).map(|line| {
        let mut words = line.split(' ');
        let mut next = || words.next().unwrap();
        (next(), next().parse().unwrap(), mad_from_hex(next(), 0))
    })
}

fn frame(file: &str, number: u32) -> Message {
    let (_, _, mad) = captures().find(|(f, n, _)| f.starts_with(file) && *n == number).unwrap();
    Message::decode(&mad).unwrap().1
}

#[test]
fn all_decode_and_re_encode_exactly() {
    let mut kinds = std::collections::BTreeMap::new();
    for (file, number, mad) in captures() {
        let (header, message) = Message::decode(&mad).unwrap();
        assert_eq!(encoded(&message, header.tid), mad, "{file} frame {number}");
        *kinds.entry(message.attribute()).or_insert(0) += 1;
    }
    use Attribute as A;
    let expected = [(A::REQ, 8), (A::REJ, 3), (A::REP, 5), (A::RTU, 5), (A::DREQ, 5), (A::DREP, 5)];
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), {
        let mut sorted = expected.to_vec();
        sorted.sort();
        sorted
    });
}

#[test]
fn handshake_of_rping() {
    let Message::Req(req) = frame("14", 1) else { panic!() };
    assert_eq!(req.local_comm_id, CommId(0x087b_4657));
    assert_eq!(req.service_id, ServiceId::tcp_port(7174));
    assert_eq!(req.local_ca_guid, Guid(0xff_fe00_0001));
    assert_eq!((req.local_qpn, req.starting_psn), (Qpn::truncate(0x11), Psn::truncate(0x25183f)));
    assert_eq!((req.responder_resources, req.initiator_depth), (1, 1));
    assert_eq!(req.transport, TransportService::RC);
    assert_eq!(req.remote_cm_response_timeout, TimeCode::truncate(20));
    assert_eq!(req.local_cm_response_timeout, TimeCode::truncate(20));
    assert_eq!((req.retry_count, req.rnr_retry_count), (RetryCount::truncate(7), RetryCount::RNR_INFINITE));
    assert_eq!(req.max_cm_retries, CmRetries::MAX);
    assert_eq!((req.pkey, req.path_mtu), (PKey::DEFAULT, Mtu::B1024));
    assert_eq!((req.primary.local_lid, req.primary.remote_lid), (Lid::PERMISSIVE, Lid::PERMISSIVE));
    assert_eq!(req.primary.local_gid, "10.77.0.1".parse().unwrap());
    assert_eq!(req.primary.remote_gid, "10.77.0.2".parse().unwrap());
    assert_eq!((req.primary.flow_label.get(), req.primary.rate), (0x337ba, Rate::PORT_CURRENT));
    assert_eq!((req.primary.hop_limit, req.primary.local_ack_timeout.get()), (64, 19));
    assert!(!req.primary.subnet_local && !req.srq && !req.end_to_end_flow_control && !req.sap_supported);
    assert_eq!(req.alternate_path(), None);
    let (header, user) = IpHeader::split(&req.private_data).unwrap();
    assert_eq!(header.source(), "10.77.0.1:40396".parse().unwrap());
    assert_eq!(header.destination(), "10.77.0.2".parse::<std::net::IpAddr>().unwrap());
    assert_eq!(user, &[0; 56]);

    let Message::Rep(rep) = frame("14", 2) else { panic!() };
    assert_eq!((rep.local_comm_id, rep.remote_comm_id), (CommId(0x0b7b_4657), req.local_comm_id));
    assert_eq!((rep.local_qpn, rep.starting_psn), (Qpn::truncate(0x11), Psn::truncate(0xedf27a)));
    assert_eq!((rep.responder_resources, rep.initiator_depth), (1, 1));
    assert_eq!((rep.target_ack_delay.get(), rep.rnr_retry_count.get()), (15, 7));
    assert_eq!(rep.failover_accepted, FailoverAccepted::ACCEPTED);
    assert_eq!(rep.local_ca_guid, Guid(0xff_fe00_0002));

    let Message::Rtu(rtu) = frame("14", 3) else { panic!() };
    assert_eq!((rtu.local_comm_id, rtu.remote_comm_id), (req.local_comm_id, rep.local_comm_id));
    let Message::Dreq(dreq) = frame("14", 40) else { panic!() };
    assert_eq!((dreq.local_comm_id, dreq.remote_comm_id), (req.local_comm_id, rep.local_comm_id));
    assert_eq!(dreq.remote_qpn, rep.local_qpn);
    let Message::Drep(drep) = frame("14", 41) else { panic!() };
    assert_eq!((drep.local_comm_id, drep.remote_comm_id), (rep.local_comm_id, req.local_comm_id));
}

#[test]
fn rejection_of_an_unknown_service() {
    for (file, number) in [("15", 1), ("20", 1), ("20", 25)] {
        let Message::Req(req) = frame(file, number) else { panic!() };
        let Message::Rej(rej) = frame(file, number + 1) else { panic!() };
        assert_eq!((rej.local_comm_id, rej.remote_comm_id), (CommId::NONE, req.local_comm_id));
        assert_eq!((rej.message, rej.reason), (MessageId::REQ, RejReason::INVALID_SERVICE_ID));
        assert_eq!(RejectInfo::decode(rej.reason, &rej.ari), RejectInfo::None);
    }
}

#[test]
fn ipv6_req() {
    let Message::Req(req) = frame("21", 28) else { panic!() };
    assert_eq!(req.primary.local_gid, "fd77::1".parse().unwrap());
    let (header, _) = IpHeader::split(&req.private_data).unwrap();
    assert_eq!(header.source(), "[fd77::1]:43504".parse().unwrap());
    assert_eq!(header.destination(), "fd77::2".parse::<std::net::IpAddr>().unwrap());
    assert_eq!((req.responder_resources, req.initiator_depth), (128, 128));
}
