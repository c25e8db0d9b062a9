//! The additional information of a REJ, by reason.

use ibwire::mad::{ClassPortInfo, Redirect};
use ibwire::{CommId, FlowLabel, Gid, Guid, Lid, Mtu, PrivateData, QKey, Qpn, Rate, RejReason, ServiceLevel};

use super::golden::vector;
use super::*;

/// A REJ as a peer might send it: reason, claimed length of the information, information.
fn rej(reason: u16, claimed: u8, info: &[u8]) -> Rej {
    let mut mad = vector(Attribute::REJ, "00000000 a1a2a3a4 00", 0);
    let payload = &mut mad[24..];
    payload[9] = claimed << 1;
    payload[10..12].copy_from_slice(&reason.to_be_bytes());
    payload[12..12 + info.len()].copy_from_slice(info);
    match Message::decode(&mad).unwrap().1 {
        Message::Rej(rej) => rej,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn check(reason: RejReason, bytes: &[u8], info: RejectInfo) {
    let ari = Ari::new(bytes).unwrap();
    assert_eq!(RejectInfo::decode(reason, &ari), info);
    assert_eq!(info.encode(), ari);
    let rej = rej(reason.0, bytes.len() as u8, bytes);
    assert_eq!(RejectInfo::decode(rej.reason, &rej.ari), info);
}

#[test]
fn each_reason_has_its_shape() {
    let gid = Gid(std::array::from_fn(|i| 0x60 + i as u8));
    check(RejReason::TIMEOUT, &[1, 2, 3, 4, 5, 6, 7, 8], RejectInfo::CaGuid(Guid(0x0102_0304_0506_0708)));
    for reason in [RejReason::PRIMARY_GID, RejReason::ALTERNATE_GID, RejReason::PORT_REDIRECT] {
        check(reason, &gid.0, RejectInfo::Gid(gid));
    }
    for reason in [RejReason::PRIMARY_LID, RejReason::ALTERNATE_LID] {
        check(reason, &[0x0a, 0x02], RejectInfo::Lid(Lid(0x0a02)));
    }
    for reason in [RejReason::PRIMARY_SL, RejReason::ALTERNATE_SL] {
        check(reason, &[0x60], RejectInfo::ServiceLevel(ServiceLevel::truncate(6)));
    }
    for reason in [RejReason::PRIMARY_TRAFFIC_CLASS, RejReason::ALTERNATE_TRAFFIC_CLASS] {
        check(reason, &[0x5c], RejectInfo::TrafficClass(0x5c));
    }
    for reason in [RejReason::PRIMARY_HOP_LIMIT, RejReason::ALTERNATE_HOP_LIMIT] {
        check(reason, &[0x40], RejectInfo::HopLimit(0x40));
    }
    for reason in [RejReason::PRIMARY_PACKET_RATE, RejReason::ALTERNATE_PACKET_RATE] {
        check(reason, &[7 << 2], RejectInfo::PacketRate(Rate::GBPS_40));
    }
    let redirect = ClassPortInfo {
        base_version: 1,
        class_version: 2,
        redirect: Redirect { gid, lid: Lid(7), qpn: Qpn::GSI, qkey: QKey::GSI, ..Redirect::default() },
        ..ClassPortInfo::default()
    };
    check(RejReason::PORT_AND_CM_REDIRECT, &redirect.to_bytes(), RejectInfo::Redirect(redirect));
    check(RejReason::INVALID_PATH_MTU, &[0x40], RejectInfo::PathMtu(Mtu::B2048));
    check(RejReason::UNSUPPORTED_CLASS_VERSION, &[2], RejectInfo::ClassVersion(2));
    for reason in [RejReason::PRIMARY_FLOW_LABEL, RejReason::ALTERNATE_FLOW_LABEL] {
        let label = FlowLabel::truncate(0x54321);
        check(reason, &[0x54, 0x32, 0x10], RejectInfo::FlowLabel(label));
        // Whole words come too.
        assert_eq!(rej_info(reason, &[0x54, 0x32, 0x10, 0x00]), RejectInfo::FlowLabel(label));
    }
    for reason in [RejReason::CONSUMER, RejReason::NO_QP, RejReason(999)] {
        check(reason, b"own", RejectInfo::Bytes(Ari::new(b"own").unwrap()));
    }
    assert_eq!(rej_info(RejReason::PRIMARY_GID, &[]), RejectInfo::None);
}

fn rej_info(reason: RejReason, bytes: &[u8]) -> RejectInfo {
    RejectInfo::decode(reason, &Ari::new(bytes).unwrap())
}

/// What lies beyond the claimed length is not read, however plausible.
#[test]
fn cm_t34_information_shorter_than_its_reason_says() {
    for claimed in 0..8 {
        let rej = rej(4, claimed, &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(rej.ari.as_bytes(), &[1, 2, 3, 4, 5, 6, 7, 8][..usize::from(claimed)]);
        let info = RejectInfo::decode(rej.reason, &rej.ari);
        let expected = if claimed == 0 { RejectInfo::None } else { RejectInfo::Bytes(rej.ari) };
        assert_eq!(info, expected);
    }
    for reason in [RejReason::PRIMARY_GID, RejReason::PRIMARY_LID, RejReason::PRIMARY_FLOW_LABEL] {
        assert_eq!(rej_info(reason, &[1]), RejectInfo::Bytes(Ari::new(&[1]).unwrap()));
    }
}

#[test]
fn cm_t35_a_length_of_127_is_clamped() {
    let rej = rej(28, 127, &[0xaa; 72]);
    assert_eq!(rej.ari.as_bytes(), &[0xaa; 72]);
    let mad = encoded(&rej.into(), TransactionId(0));
    assert_eq!(mad[24 + 9], 72 << 1);
    assert_eq!(Ari::new(&[0; 73]), None);
}

#[test]
fn cm_t37_reason_27_is_kept() {
    assert_eq!(rej(27, 0, &[]).reason, RejReason::INSUFFICIENT_RESPONDER_RESOURCES);
}

#[test]
fn cm_t38_unknown_reasons_are_kept() {
    for raw in [0, 34, 36, 65535] {
        let rej = rej(raw, 0, &[]);
        assert_eq!(rej.reason, RejReason(raw));
        assert_eq!(rej.reason.name(), None);
    }
}

#[test]
fn cm_t47_private_data_is_148_bytes_whole() {
    let private_data = PrivateData::from_area(std::array::from_fn(|i| i as u8));
    let rej = Rej {
        local_comm_id: CommId::NONE,
        remote_comm_id: CommId(7),
        message: MessageId::REQ,
        reason: RejReason::CONSUMER,
        ari: Ari::EMPTY,
        private_data,
    };
    let mad = encoded(&rej.clone().into(), TransactionId(1));
    assert_eq!(mad[24 + 84..], private_data[..]);
    assert_eq!(Message::decode(&mad).unwrap().1, rej.into());
}
