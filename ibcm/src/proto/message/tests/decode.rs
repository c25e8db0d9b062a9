//! What is refused and why, and what is overlooked.

use ibwire::{FlowLabel, Gid, Lid, PrivateData, Rate, ServiceId, ServiceLevel};

use super::golden::{self, golden_req, vector};
use super::*;

fn req_with(change: impl FnOnce(&mut [u8; MAD_LEN])) -> Result<(MadHeader, Message), DecodeError> {
    let mut mad = vector(Attribute::REQ, golden::REQ, 0x55);
    change(&mut mad);
    Message::decode(&mad)
}

#[test]
fn each_refusal_has_its_cause() {
    assert_eq!(req_with(|mad| mad[0] = 2), Err(DecodeError::BaseVersion(2)));
    assert_eq!(req_with(|mad| mad[1] = 0x03), Err(DecodeError::Class(MgmtClass::SA)));
    assert_eq!(
        req_with(|mad| mad[3] = 0x01),
        Err(DecodeError::Method { method: Method(0x01), attribute: Attribute::REQ })
    );
    assert_eq!(
        req_with(|mad| mad[3] = 0x83),
        Err(DecodeError::Method { method: Method(0x83), attribute: Attribute::REQ })
    );
    assert_eq!(
        req_with(|mad| (mad[3], mad[17]) = (0x01, 0x01)),
        Err(DecodeError::Method { method: Method(0x01), attribute: Attribute::CLASS_PORT_INFO })
    );
    for attribute in 0x1b..=0x1c {
        let got = req_with(|mad| mad[17] = attribute);
        assert_eq!(got, Err(DecodeError::Unsupported(Attribute(attribute.into()))));
    }
    for attribute in [0x00, 0x0f, 0x1d] {
        let got = req_with(|mad| mad[17] = attribute);
        assert_eq!(got, Err(DecodeError::UnknownAttribute(Attribute(attribute.into()))));
    }
    assert_eq!(req_with(|mad| mad[16] = 1), Err(DecodeError::UnknownAttribute(Attribute(0x0110))));
}

#[test]
fn a_req_of_another_class_version_can_be_answered() {
    let tid = TransactionId(0x1122_3344_5566_7788);
    let header = MadHeader { class_version: 1, ..header_of(&golden_req().into(), tid) };
    let local_comm_id = CommId(0xa1a2_a3a4);
    assert_eq!(
        req_with(|mad| mad[2] = 1),
        Err(DecodeError::ReqClassVersion { version: 1, header, local_comm_id })
    );
    let mut sidr = vector(Attribute::SIDR_REQ, "a1a2a3a4 fffe0000 00000000 01111234", 0);
    sidr[2] = 1;
    assert_eq!(
        Message::decode(&sidr),
        Err(DecodeError::SidrReqClassVersion {
            version: 1,
            header: MadHeader { attribute: Attribute::SIDR_REQ.into(), ..header },
            request_id: local_comm_id,
            service_id: ServiceId::udp_port(0x1234),
        })
    );
    let mut rtu = vector(Attribute::RTU, "a1a2a3a4 b1b2b3b4", 0);
    rtu[2] = 3;
    assert_eq!(
        Message::decode(&rtu),
        Err(DecodeError::ClassVersion { version: 3, attribute: Attribute::RTU })
    );
}

#[test]
fn cm_t51_an_alternate_path_needs_both_lids() {
    let mut req = golden_req();
    assert_eq!(req.alternate_path(), Some(&req.alternate));
    req.alternate.local_lid = Lid::NONE;
    assert_eq!(req.alternate_path(), None);
    req.alternate.local_lid = Lid(0x0b01);
    req.alternate.remote_lid = Lid::NONE;
    assert_eq!(req.alternate_path(), None);
    req.alternate = PathBlock::NONE;
    assert_eq!(req.alternate_path(), None);
}

#[test]
fn cm_t53_reserved_bits_and_ece_options_are_no_obstacle() {
    let (header, message) = req_with(|mad| {
        (mad[4], mad[7], mad[19]) = (0xff, 0xff, 0xff); // status, class-specific, reserved
        mad[20..24].copy_from_slice(&[0xde, 0xad, 0xbe, 0xef]);
        let payload = &mut mad[24..];
        payload[4] = 0xff;
        payload[24..28].fill(0xff);
        for path in [52, 96] {
            payload[path + 38] |= 0x0f; // reserved bits between flow label and rate
            payload[path + 39] |= 0xc0;
            payload[path + 42] |= 0x07;
            payload[path + 43] |= 0x03;
        }
    })
    .unwrap();
    assert_eq!(header.attribute_modifier, 0xdead_beef);
    assert_eq!(message, golden_req().into());
    let answer = encoded(&message, header.tid);
    assert_eq!(answer, vector(Attribute::REQ, golden::REQ, 0x55), "reserved bits of ours are zero");

    // The reserved bits of the other messages.
    let rej = |fill: u8| {
        let mut mad = vector(Attribute::REJ, "a1a2a3a4 b1b2b3b4 40100004", 0);
        (mad[24 + 8], mad[24 + 9]) = (0x40 | fill & 0x3f, 0x10 | fill & 0x01);
        Message::decode(&mad).unwrap().1
    };
    assert_eq!(rej(0xff), rej(0));
    let mra = |fill: u8| {
        let mut mad = vector(Attribute::MRA, "a1a2a3a4 b1b2b3b4", 0);
        (mad[24 + 8], mad[24 + 9]) = (0x40 | fill & 0x3f, 0xa0 | fill & 0x07);
        Message::decode(&mad).unwrap().1
    };
    assert_eq!(mra(0xff), mra(0));
    let rep = |fill: u8| {
        let mut mad = vector(Attribute::REP, "a1a2a3a4 b1b2b3b4", 0);
        mad[24 + 27] = 0xd0 | fill & 0x0f;
        Message::decode(&mad).unwrap().1
    };
    assert_eq!(rep(0xff), rep(0));
    let dreq = |fill: u8| {
        let mut mad = vector(Attribute::DREQ, "a1a2a3a4 b1b2b3b4", 0);
        mad[24 + 11] = fill;
        Message::decode(&mad).unwrap().1
    };
    assert_eq!(dreq(0xff), dreq(0));
    let sidr_req = |fill: u8| {
        let mut mad = vector(Attribute::SIDR_REQ, "a1a2a3a4 fffe", 0);
        mad[24 + 6..24 + 8].fill(fill);
        Message::decode(&mad).unwrap().1
    };
    assert_eq!(sidr_req(0xff), sidr_req(0));
}

/// A SIDR_REP may claim up to 255 bytes of additional information, and has 72.
#[test]
fn the_information_of_a_sidr_rep() {
    let rep = |status: u8, len: u8| {
        let mut mad = vector(Attribute::SIDR_REP, "a1a2a3a4", 7);
        (mad[24 + 4], mad[24 + 5]) = (status, len);
        let Message::SidrRep(rep) = Message::decode(&mad).unwrap().1 else { panic!() };
        rep
    };
    assert_eq!(rep(4, 255).info.as_bytes(), [7; 72]);
    let info = |status, len| {
        let rep = rep(status, len);
        SidrInfo::decode(rep.status, &rep.info)
    };
    assert!(matches!(info(4, 72), SidrInfo::Redirect(info) if info.redirect.gid.0 == [7; 16]));
    assert_eq!(info(4, 71), SidrInfo::Bytes(Ari::new(&[7; 71]).unwrap()));
    assert_eq!(info(5, 1), SidrInfo::ClassVersion(7));
    assert_eq!((info(5, 0), info(4, 0)), (SidrInfo::None, SidrInfo::None));
    assert_eq!(info(2, 3), SidrInfo::Bytes(Ari::new(&[7; 3]).unwrap()));
    for (status, len) in [(4, 71), (5, 1), (2, 3), (0, 0)] {
        assert_eq!(info(status, len).encode().as_bytes(), [7; 72].split_at(len.into()).0);
    }
    assert_eq!(SidrStatus(2).to_string(), "rejected by the service provider (2)");
    assert_eq!(SidrStatus(99).to_string(), "SIDR status 99");
}

#[test]
fn transport_codes() {
    use TransportService as T;
    assert_eq!(T::new(0, 5).and_then(T::known), Some(T::RC)); // an extension means nothing there
    assert_eq!(T::new(1, 0), Some(T::UC));
    assert_eq!(T::new(3, 1), Some(T::XRC));
    for extension in [0, 2, 3, 4, 5, 6, 7] {
        assert_eq!(T::new(3, extension).unwrap().known(), None);
    }
    assert_eq!(T::new(4, 0), None);
    assert_eq!(T::new(0, 8), None);
    assert_eq!(
        [T::RC, T::UC, T::RD, T::XRC, T::new(3, 2).unwrap()].map(|t| t.to_string()),
        ["RC", "UC", "RD", "XRC", "transport type 3.2"]
    );
}

/// Areas are filled to the last byte, a byte more does not fit.
#[test]
fn cm_t55_areas() {
    let area_of = |mad: &[u8; MAD_LEN]| match Message::decode(mad).unwrap().1 {
        Message::Req(m) => m.private_data.to_vec(),
        Message::Mra(m) => m.private_data.to_vec(),
        Message::Rej(m) => m.private_data.to_vec(),
        Message::Rep(m) => m.private_data.to_vec(),
        Message::Rtu(m) => m.private_data.to_vec(),
        Message::Dreq(m) => m.private_data.to_vec(),
        Message::Drep(m) => m.private_data.to_vec(),
        Message::Lap(m) => m.private_data.to_vec(),
        Message::Apr(m) => m.private_data.to_vec(),
        Message::SidrReq(m) => m.private_data.to_vec(),
        Message::SidrRep(m) => m.private_data.to_vec(),
    };
    let sizes = [
        (Attribute::REQ, 140, 92),
        (Attribute::MRA, 10, 222),
        (Attribute::REJ, 84, 148),
        (Attribute::REP, 36, 196),
        (Attribute::RTU, 8, 224),
        (Attribute::DREQ, 12, 220),
        (Attribute::DREP, 8, 224),
        (Attribute::LAP, 64, 168),
        (Attribute::APR, 84, 148),
        (Attribute::SIDR_REQ, 16, 216),
        (Attribute::SIDR_REP, 96, 136),
    ];
    for (attribute, start, len) in sizes {
        let mut mad = vector(attribute, "", 0);
        mad[24 + start..].fill(0xa5);
        assert_eq!(area_of(&mad), vec![0xa5; len], "{attribute}");
        let message = Message::decode(&mad).unwrap().1;
        assert_eq!(encoded(&message, TransactionId(0x1122_3344_5566_7788)), mad, "{attribute}");
    }
    assert!(PrivateData::<148>::new(&[1; 149]).is_err());
}

/// A buffer that held another message before does not show through: `encoded` starts from 0xee.
#[test]
fn cm_t56_the_tail_of_a_used_buffer_is_zero() {
    let rtu = Rtu {
        local_comm_id: CommId(1),
        remote_comm_id: CommId(2),
        private_data: PrivateData::new(&[7; 40]).unwrap(),
    };
    let mad = encoded(&rtu.into(), TransactionId(3));
    assert_eq!(mad[24 + 8..][..40], [7; 40]);
    assert_eq!(mad[24 + 48..], [0; 184]);
}

/// What an APR adds is read by its status, and never beyond the valid bytes.
#[test]
fn information_of_an_apr() {
    let info = |status: u8, len| ApInfo::decode(ApStatus(status), &Ari::new(&vec![0x7b; len]).unwrap());
    assert_eq!(info(8, 16), ApInfo::Gid(Gid([0x7b; 16])));
    assert_eq!(info(8, 15), ApInfo::Bytes(Ari::new(&[0x7b; 15]).unwrap()));
    assert_eq!(info(7, 2), ApInfo::Lid(Lid(0x7b7b)));
    assert_eq!(info(9, 3), ApInfo::FlowLabel(FlowLabel::truncate(0x7_b7b7)));
    assert_eq!((info(10, 1), info(11, 1)), (ApInfo::TrafficClass(0x7b), ApInfo::HopLimit(0x7b)));
    assert_eq!(info(12, 1), ApInfo::PacketRate(Rate(0x1e)));
    assert_eq!(info(13, 1), ApInfo::ServiceLevel(ServiceLevel::truncate(7)));
    assert!(matches!(info(4, 72), ApInfo::Redirect(_)));
    assert_eq!((info(8, 0), info(0, 0)), (ApInfo::None, ApInfo::None));
    assert_eq!(info(200, 3), ApInfo::Bytes(Ari::new(&[0x7b; 3]).unwrap()));
    for status in 7..=13 {
        let read = info(status, 72);
        assert_eq!(ApInfo::decode(ApStatus(status), &read.encode()), read);
    }
    assert_eq!(ApStatus::CURRENT_PATH.to_string(), "the path is the current one (5)");
    assert_eq!(ApStatus(99).to_string(), "AP status 99");
}
