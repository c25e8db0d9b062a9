//! The vectors of spec/cm.md 9, both ways, byte for byte.

use ibwire::{
    FlowLabel, Gid, Guid, Lid, Mtu, PKey, PrivateData, Psn, QKey, Qpn, Rate, RejReason, ServiceId,
    ServiceLevel, TimeCode,
};

use super::*;

const TID: TransactionId = TransactionId(0x1122_3344_5566_7788);
const LOCAL: CommId = CommId(0xa1a2_a3a4);
const REMOTE: CommId = CommId(0xb1b2_b3b4);

pub(super) const REQ: &str = "
    a1a2a3a4 000d0e0f 00000000 01061234
    11112222 33334444 00000000 c0c1c2c3
    00012311 00045612 000789a7 abcde19d
    fffe4e99 0a010a02 10111213 14151617
    18191a1b 1c1d1e1f 20212223 24252627
    28292a2b 2c2d2e2f 54321007 5c406888
    0b010b02 30313233 34353637 38393a3b
    3c3d3e3f 40414243 44454647 48494a4b
    4c4d4e4f 65432012 6c415090 00401234
    00000000 00000000 00000000 0a000001
    00000000 00000000 00000000 0a000002";

/// The MAD of a vector: header, payload, and `fill` as private data.
pub(super) fn vector(attribute: Attribute, payload: &str, fill: u8) -> [u8; MAD_LEN] {
    mad_from_hex(
        &format!("01070203 00000000 1122334455667788 {:04x} 0000 00000000 {payload}", attribute.0),
        fill,
    )
}

#[track_caller]
fn check(mad: [u8; MAD_LEN], message: impl Into<Message>) {
    let message = message.into();
    let (header, decoded) = Message::decode(&mad).unwrap();
    assert_eq!(decoded, message);
    assert_eq!(header, header_of(&message, TID));
    assert_eq!(encoded(&message, TID), mad);
}

fn gid(first: u8) -> Gid {
    Gid(std::array::from_fn(|i| first + i as u8))
}

pub(super) fn golden_req() -> Req {
    let header = IpHeader::new("10.0.0.1:4660".parse().unwrap(), "10.0.0.2".parse().unwrap()).unwrap();
    Req {
        local_comm_id: LOCAL,
        vendor_id: VendorId::truncate(0x0d0e0f),
        service_id: ServiceId(0x0106_1234),
        local_ca_guid: Guid(0x1111_2222_3333_4444),
        local_qkey: QKey(0xc0c1_c2c3),
        local_qpn: Qpn::truncate(0x123),
        responder_resources: 0x11,
        local_eecn: Eecn::truncate(0x456),
        initiator_depth: 0x12,
        remote_eecn: Eecn::truncate(0x789),
        remote_cm_response_timeout: TimeCode::truncate(20),
        transport: TransportService::XRC,
        end_to_end_flow_control: true,
        starting_psn: Psn::truncate(0xab_cde1),
        local_cm_response_timeout: TimeCode::truncate(19),
        retry_count: RetryCount::truncate(5),
        pkey: PKey(0xfffe),
        path_mtu: Mtu::B2048,
        rdc_exists: true,
        rnr_retry_count: RetryCount::truncate(6),
        max_cm_retries: CmRetries::truncate(9),
        srq: true,
        primary: PathBlock {
            local_lid: Lid(0x0a01),
            remote_lid: Lid(0x0a02),
            local_gid: gid(0x10),
            remote_gid: gid(0x20),
            flow_label: FlowLabel::truncate(0x54321),
            rate: Rate::GBPS_40,
            traffic_class: 0x5c,
            hop_limit: 0x40,
            sl: ServiceLevel::truncate(6),
            subnet_local: true,
            local_ack_timeout: TimeCode::truncate(17),
        },
        alternate: PathBlock {
            local_lid: Lid(0x0b01),
            remote_lid: Lid(0x0b02),
            local_gid: gid(0x30),
            remote_gid: gid(0x40),
            flow_label: FlowLabel::truncate(0x65432),
            rate: Rate::GBPS_300,
            traffic_class: 0x6c,
            hop_limit: 0x41,
            sl: ServiceLevel::truncate(5),
            subnet_local: false,
            local_ack_timeout: TimeCode::truncate(18),
        },
        sap_supported: false,
        private_data: header.private_data(&[0x55; 56]).unwrap(),
    }
}

/// tshark 4.0 reads the flow label with the wrong mask and the rate from the byte before: the table of 2.1 is right.
#[test]
fn cm_t67_req() {
    check(vector(Attribute::REQ, REQ, 0x55), golden_req());
}

#[test]
fn req_single_bits() {
    let mut req = golden_req();
    req.sap_supported = true;
    req.alternate.subnet_local = true;
    req.primary.subnet_local = false;
    (req.srq, req.rdc_exists, req.end_to_end_flow_control) = (false, false, false);
    let mad = encoded(&req.clone().into(), TID);
    assert_eq!(mad[24 + 139], 0x94);
    assert_eq!((mad[24 + 94], mad[24 + 138]), (0x60, 0x58));
    assert_eq!((mad[24 + 51], mad[24 + 50], mad[24 + 43]), (0x91, 0x46, 0xa6));
    assert_eq!(Message::decode(&mad).unwrap().1, req.into());
}

#[test]
fn rep() {
    let payload = "a1a2a3a4 b1b2b3b4 c0c1c2c3 0001230d 0004560e abcde10f 13147bd0 55556666 77778888";
    let rep = Rep {
        local_comm_id: LOCAL,
        remote_comm_id: REMOTE,
        local_qkey: QKey(0xc0c1_c2c3),
        local_qpn: Qpn::truncate(0x123),
        vendor_id: VendorId::truncate(0x0d0e0f),
        local_eecn: Eecn::truncate(0x456),
        starting_psn: Psn::truncate(0xab_cde1),
        responder_resources: 0x13,
        initiator_depth: 0x14,
        target_ack_delay: TimeCode::truncate(15),
        failover_accepted: FailoverAccepted::UNSUPPORTED,
        end_to_end_flow_control: true,
        rnr_retry_count: RetryCount::truncate(6),
        srq: true,
        local_ca_guid: Guid(0x5555_6666_7777_8888),
        private_data: PrivateData::from_area([0x50; 196]),
    };
    check(vector(Attribute::REP, payload, 0x50), rep);
}

#[test]
fn mra() {
    let mra = Mra {
        local_comm_id: LOCAL,
        remote_comm_id: REMOTE,
        message: MessageId::LAP,
        service_timeout: TimeCode::truncate(24),
        private_data: PrivateData::from_area([0x4d; 222]),
    };
    check(vector(Attribute::MRA, "a1a2a3a4 b1b2b3b4 80c0", 0x4d), mra);
}

#[test]
fn rej() {
    let payload = format!("a1a2a3a4 b1b2b3b4 40100004 11112222 33334444 {:0128}", 0);
    let rej = Rej {
        local_comm_id: LOCAL,
        remote_comm_id: REMOTE,
        message: MessageId::REP,
        reason: RejReason::TIMEOUT,
        ari: RejectInfo::CaGuid(Guid(0x1111_2222_3333_4444)).encode(),
        private_data: PrivateData::from_area([0x4a; 148]),
    };
    check(vector(Attribute::REJ, &payload, 0x4a), rej);
}

#[test]
fn rtu_and_drep() {
    let private_data = PrivateData::from_area([0x52; 224]);
    let ids = "a1a2a3a4 b1b2b3b4";
    let (local_comm_id, remote_comm_id) = (LOCAL, REMOTE);
    check(vector(Attribute::RTU, ids, 0x52), Rtu { local_comm_id, remote_comm_id, private_data });
    check(vector(Attribute::DREP, ids, 0x52), Drep { local_comm_id, remote_comm_id, private_data });
}

#[test]
fn dreq() {
    let dreq = Dreq {
        local_comm_id: LOCAL,
        remote_comm_id: REMOTE,
        remote_qpn: Qpn::truncate(0x123),
        private_data: PrivateData::from_area([0x44; 220]),
    };
    check(vector(Attribute::DREQ, "a1a2a3a4 b1b2b3b4 00012300", 0x44), dreq);
}

fn golden_lap() -> Lap {
    let Req { alternate, .. } = golden_req();
    Lap {
        local_comm_id: LOCAL,
        remote_comm_id: REMOTE,
        remote_qpn: Qpn::truncate(0x123),
        remote_cm_response_timeout: TimeCode::truncate(21),
        alternate: PathBlock { rate: Rate(7), subnet_local: true, ..alternate },
        private_data: PrivateData::from_area([0x4c; 168]),
    }
}

const LAP: &str = "
    a1a2a3a4 b1b2b3b4 00000000 000123a8
    00000000 0b010b02 30313233 34353637
    38393a3b 3c3d3e3f 40414243 44454647
    48494a4b 4c4d4e4f 6543206c 41075890";

#[test]
fn lap() {
    check(vector(Attribute::LAP, LAP, 0x4c), golden_lap());
}

/// Traffic class, hop limit and rate stand at 59, 60 and 61, not where a REQ has them.
#[test]
fn cm_t50_lap_has_an_order_of_its_own() {
    let mad = encoded(&golden_lap().into(), TID);
    assert_eq!(mad[24 + 59..24 + 62], [0x6c, 0x41, 7]);
    let like_a_req = LAP.replace("6543206c 41075890", "65432007 6c415890");
    let (_, decoded) = Message::decode(&vector(Attribute::LAP, &like_a_req, 0x4c)).unwrap();
    assert_ne!(decoded, golden_lap().into());
}

#[test]
fn apr() {
    let info: String = (0x60..0x70).map(|byte| format!("{byte:02x}")).collect();
    let payload = format!("a1a2a3a4 b1b2b3b4 10080000 {info} {:0112}", 0);
    let apr = Apr {
        local_comm_id: LOCAL,
        remote_comm_id: REMOTE,
        status: ApStatus::REMOTE_GID,
        info: ApInfo::Gid(gid(0x60)).encode(),
        private_data: PrivateData::from_area([0x41; 148]),
    };
    check(vector(Attribute::APR, &payload, 0x41), apr);
}

#[test]
fn sidr_req() {
    let req = SidrReq {
        request_id: LOCAL,
        pkey: PKey(0xfffe),
        service_id: ServiceId::udp_port(0x1234),
        private_data: PrivateData::from_area([0x53; 216]),
    };
    check(vector(Attribute::SIDR_REQ, "a1a2a3a4 fffe0000 00000000 01111234", 0x53), req);
}

/// The layout of IBTA 1.0a would have the queue pair number elsewhere.
#[test]
fn cm_t66_sidr_rep() {
    let info: String = (0x80..0xc8).map(|byte| format!("{byte:02x}")).collect();
    let payload = format!("a1a2a3a4 0448000d 0001230f 00000000 01111234 01234567 {info}");
    let rep = SidrRep {
        request_id: LOCAL,
        status: SidrStatus::REDIRECT,
        info: Ari::new(&std::array::from_fn::<u8, 72, _>(|i| 0x80 + i as u8)).unwrap(),
        vendor_id: VendorId::truncate(0x00_0d0f),
        qpn: Qpn::truncate(0x123),
        service_id: ServiceId::udp_port(0x1234),
        qkey: QKey(0x0123_4567),
        private_data: PrivateData::from_area([0x54; 136]),
    };
    check(vector(Attribute::SIDR_REP, &payload, 0x54), rep);
}
