//! Class version 1: what lies where, and what is shared with version 2.

use ibwire::{CommId, QKey, Qpn, ServiceId};
use proptest::prelude::*;

use super::super::v1::{self, Message as V1};
use super::golden::{self, golden_req, vector};
use super::*;

fn old(attribute: Attribute, payload: &str, fill: u8) -> [u8; MAD_LEN] {
    let mut mad = vector(attribute, payload, fill);
    mad[2] = v1::CLASS_VERSION;
    mad
}

#[track_caller]
fn decoded(mad: &[u8; MAD_LEN]) -> V1 {
    let (header, message) = V1::decode(mad).unwrap();
    assert_eq!(header.class_version, 1);
    message
}

#[test]
fn req() {
    let payload = golden::REQ
        .replacen("33334444 00000000", "33334444 d0d1d2d3", 1)
        .replacen("54321007", "543210e7", 1)
        .replacen("65432012", "654320f2", 1);
    let V1::Req(v1::Req1 { req, local_cm_qkey, primary_packet_delay, alternate_packet_delay }) =
        decoded(&old(Attribute::REQ, &payload, 0x55))
    else {
        panic!()
    };
    assert_eq!(local_cm_qkey, QKey(0xd0d1_d2d3));
    assert_eq!((primary_packet_delay, alternate_packet_delay), (0xe7, 0xf2));
    let golden = golden_req();
    assert_eq!(
        (req.local_qpn, req.starting_psn, req.private_data),
        (golden.local_qpn, golden.starting_psn, golden.private_data)
    );
    assert_eq!(
        (req.primary.local_gid, req.alternate.remote_gid),
        (golden.primary.local_gid, golden.alternate.remote_gid)
    );
}

#[test]
fn rep_lap_and_what_is_as_ever() {
    let rep = old(Attribute::REP, "a1a2a3a4 b1b2b3b4 c0c1c2c3 00012300 00045600 abcde100 13147bc0", 0x50);
    let V1::Rep(v1::Rep1 { rep, private_data }) = decoded(&rep) else { panic!() };
    assert_eq!((rep.local_qpn, rep.initiator_depth), (Qpn::truncate(0x123), 0x14));
    assert_eq!(private_data[..], [0x50; 204]);
    let lap = old(Attribute::LAP, "a1a2a3a4 b1b2b3b4 d0d1d2d3 000123a8", 0x4c);
    let V1::Lap(v1::Lap1 { lap, local_cm_qkey }) = decoded(&lap) else { panic!() };
    assert_eq!((lap.remote_qpn, local_cm_qkey), (Qpn::truncate(0x123), QKey(0xd0d1_d2d3)));
    for attribute in [
        Attribute::MRA,
        Attribute::REJ,
        Attribute::RTU,
        Attribute::DREQ,
        Attribute::DREP,
        Attribute::SIDR_REQ,
    ] {
        let payload = "a1a2a3a4 b1b2b3b4 40100004 11112222 33334444";
        let old = format!("{:?}", decoded(&old(attribute, payload, 0x11)));
        let (_, new) = Message::decode(&vector(attribute, payload, 0x11)).unwrap();
        assert_eq!(old, format!("{new:?}"));
    }
}

#[test]
fn apr() {
    let info: String = (0..72).map(|byte| format!("{byte:02x}")).collect();
    let V1::Apr(apr) = decoded(&old(Attribute::APR, &format!("a1a2a3a4 b1b2b3b4 {info} 5f"), 0x41)) else {
        panic!()
    };
    assert_eq!((apr.local_comm_id, apr.remote_comm_id), (CommId(0xa1a2_a3a4), CommId(0xb1b2_b3b4)));
    assert_eq!((apr.status, apr.info.as_bytes().len(), apr.info.as_bytes()[71]), (5, 72, 71));
    assert_eq!(apr.private_data[..], [0x41; 151]);
}

/// The queue pair number lies elsewhere than in class version 2.
#[test]
fn cm_t66_sidr_rep_of_version_1() {
    let info: String = (0..72).map(|byte| format!("{byte:02x}")).collect();
    let payload = format!("a1a2a3a4 00012304 00000000 01111234 01234567 {info}");
    let V1::SidrRep(rep) = decoded(&old(Attribute::SIDR_REP, &payload, 0x54)) else { panic!() };
    assert_eq!((rep.qpn, rep.status), (Qpn::truncate(0x123), 4));
    assert_eq!((rep.service_id, rep.qkey), (ServiceId(0x0111_1234), QKey(0x0123_4567)));
    assert_eq!((rep.info.as_bytes()[0], rep.private_data[..].len(), rep.private_data[139]), (0, 140, 0x54));
}

#[test]
fn what_is_none() {
    let good = old(Attribute::RTU, "", 0);
    let with = |at: usize, byte| {
        let mut mad = good;
        mad[at] = byte;
        V1::decode(&mad).unwrap_err()
    };
    assert_eq!(with(0, 2), DecodeError::BaseVersion(2));
    assert_eq!(with(1, 3), DecodeError::Class(MgmtClass::SA));
    assert_eq!(with(2, 2), DecodeError::ClassVersion { version: 2, attribute: Attribute::RTU });
    assert_eq!(with(3, 1), DecodeError::Method { method: Method::GET, attribute: Attribute::RTU });
    assert_eq!(with(17, 0x1b), DecodeError::Unsupported(Attribute::SAP));
    assert_eq!(with(17, 0x2b), DecodeError::UnknownAttribute(Attribute(0x2b)));
}

proptest! {
    #[test]
    fn any_payload_decodes(attribute in 0x10u16..0x1b, payload in proptest::collection::vec(any::<u8>(), 232)) {
        let mut mad = mad_from_hex(&format!("01070103 00000000 0000000000000000 {attribute:04x}"), 0);
        mad[24..].copy_from_slice(&payload);
        prop_assert!(V1::decode(&mad).is_ok());
    }
}
