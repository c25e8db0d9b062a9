//! One packet of every kind that we send, made with our encoders, its values as far apart from zero and from each other as
//! they go.

use std::net::{IpAddr, SocketAddr};

use ibcm::proto::message::{
    Ari, CmRetries, Drep, Dreq, Eecn, FailoverAccepted, IpHeader, Message, MessageId, Mra, PathBlock, Rej,
    Rep, Req, RetryCount, Rtu, TransportService, VendorId,
};
use ibwire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use ibwire::packet::{Aeth, Bth, Credits, Deth, ImmDt, NakCode, Opcode, Syndrome, TransportPacket};
use ibwire::{
    CommId, FlowLabel, Gid, Guid, Lid, Msn, Mtu, PKey, PrivateData, Psn, QKey, Qpn, Rate, RejReason,
    RnrTimer, ServiceId, ServiceLevel, TimeCode, TransactionId,
};

use super::fields::{self, Fields};

/// A packet made with our encoders.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Its kind, for the name of a test.
    pub name: &'static str,
    /// BTH through padding.
    pub transport: Vec<u8>,
    /// What it carries behind its headers.
    pub inside: Fields,
}

const LOCAL: CommId = CommId(0xa1a2_a3a4);
const REMOTE: CommId = CommId(0xb1b2_b3b4);

/// All of them, for one pair of addresses.
pub fn samples(source: SocketAddr, destination: SocketAddr) -> Vec<Sample> {
    let ip_header = IpHeader::new(SocketAddr::new(source.ip(), 4660), destination.ip());
    let ip_header = ip_header.expect("both of a family");
    let native = PrivateData::from(&[0x55; 92]);
    let ip = ip_header.private_data(&[0x56; 56]).expect("56 bytes fit");
    let ends = [source.ip(), destination.ip()];
    vec![
        mad("req_native", req(ServiceId::new(0x1000_0000_0000_0001), native, ends)),
        mad("req_ip", req(ServiceId::tcp_port(0x1234), ip, ends)),
        mad("mra", mra()),
        mad("rej", rej()),
        mad("rep", rep()),
        mad(
            "rtu",
            Rtu {
                local_comm_id: LOCAL,
                remote_comm_id: REMOTE,
                private_data: PrivateData::from(&[0x52; 224]),
            },
        ),
        mad("dreq", dreq()),
        mad(
            "drep",
            Drep {
                local_comm_id: LOCAL,
                remote_comm_id: REMOTE,
                private_data: PrivateData::from(&[0x53; 224]),
            },
        ),
        request("rc_send_first", Opcode::RC_SEND_FIRST, None, 1024),
        request("rc_send_middle", Opcode::RC_SEND_MIDDLE, None, 1024),
        request("rc_send_last", Opcode::RC_SEND_LAST, None, 6),
        request("rc_send_last_imm", Opcode::RC_SEND_LAST_WITH_IMM, Some(IMM), 5),
        request("rc_send_only", Opcode::RC_SEND_ONLY, None, 8),
        request("rc_send_only_imm", Opcode::RC_SEND_ONLY_WITH_IMM, Some(IMM), 33),
        request("rc_send_only_empty", Opcode::RC_SEND_ONLY, None, 0),
        answer("rc_ack", Syndrome::ACK),
        answer("rc_ack_credits", Syndrome::ack(Credits(10))),
        answer("rc_rnr_nak", Syndrome::rnr(RnrTimer::truncate(14))),
        answer("rc_nak_sequence", Syndrome::nak(NakCode::PSN_SEQUENCE_ERROR)),
        answer("rc_nak_invalid_request", Syndrome::nak(NakCode::INVALID_REQUEST)),
        answer("rc_nak_remote_access", Syndrome::nak(NakCode::REMOTE_ACCESS_ERROR)),
        answer("rc_nak_operational", Syndrome::nak(NakCode::REMOTE_OPERATIONAL_ERROR)),
        datagram("ud_send", Opcode::UD_SEND_ONLY, None, 30),
        datagram("ud_send_imm", Opcode::UD_SEND_ONLY_WITH_IMM, Some(IMM), 64),
    ]
}

const IMM: ImmDt = ImmDt([0xde, 0xad, 0xbe, 0xef]);

fn bth(opcode: Opcode, payload: usize) -> Bth {
    let bth = Bth::new(opcode, Qpn::truncate(0xa1_b2c3), Psn::truncate(0xfe_dcba));
    Bth {
        solicited: true,
        mig_req: true,
        ack_req: true,
        pad: Bth::pad_for(payload),
        pkey: PKey(0xfffe),
        ..bth
    }
}

fn packet(name: &'static str, bth: Bth, headers: &[&[u8]], payload: usize) -> Sample {
    let payload: Vec<u8> = (1..=payload).map(|byte| byte as u8).collect();
    let padding = [0; 3];
    let parts = [&bth.to_bytes()[..], &headers.concat(), &payload, &padding[..bth.pad.into()]];
    let transport = parts.concat();
    let view = TransportPacket::parse(&transport).expect("made by us");
    let inside = if payload.is_empty() { Vec::new() } else { fields::payload(&view) };
    Sample { name, transport, inside }
}

fn request(name: &'static str, opcode: Opcode, imm: Option<ImmDt>, payload: usize) -> Sample {
    let imm = imm.map(|imm| imm.0.to_vec()).unwrap_or_default();
    packet(name, bth(opcode, payload), &[&imm], payload)
}

fn answer(name: &'static str, syndrome: Syndrome) -> Sample {
    let aeth = Aeth::new(syndrome, Msn::truncate(0x12_3456));
    let bth = Bth { ack_req: false, solicited: false, ..bth(Opcode::RC_ACKNOWLEDGE, 0) };
    packet(name, bth, &[&aeth.to_bytes()], 0)
}

fn datagram(name: &'static str, opcode: Opcode, imm: Option<ImmDt>, payload: usize) -> Sample {
    let deth = Deth::new(QKey(0x0123_4567), Qpn::truncate(0x45_6789));
    let imm = imm.map(|imm| imm.0.to_vec()).unwrap_or_default();
    packet(name, bth(opcode, payload), &[&deth.to_bytes(), &imm], payload)
}

/// A CM message as it leaves QP1.
fn mad(name: &'static str, message: impl Into<Message>) -> Sample {
    let message = message.into();
    let tid = TransactionId(0x1122_3344_5566_7788);
    let mut bytes = [0; MAD_LEN];
    message.encode(tid, &mut bytes);
    let header = MadHeader::new(MgmtClass::CM, 2, Method::SEND, message.attribute().into(), tid);
    let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::truncate(0x00_0102));
    let deth = Deth::new(QKey::GSI, Qpn::GSI);
    let transport = [&bth.to_bytes()[..], &deth.to_bytes(), &bytes].concat();
    Sample { name, transport, inside: fields::mad(&header, &message) }
}

fn req(service_id: ServiceId, private_data: PrivateData<92>, [local, remote]: [IpAddr; 2]) -> Req {
    let gid = |first: u8| Gid(std::array::from_fn(|at| first + at as u8));
    Req {
        local_comm_id: LOCAL,
        vendor_id: VendorId::truncate(0x0d_0e0f),
        service_id,
        local_ca_guid: Guid(0x1111_2222_3333_4444),
        local_qkey: QKey(0xc0c1_c2c3),
        local_qpn: Qpn::truncate(0xd1_d2d3),
        responder_resources: 0x11,
        local_eecn: Eecn::truncate(0x456),
        initiator_depth: 0x12,
        remote_eecn: Eecn::truncate(0x789),
        remote_cm_response_timeout: TimeCode::truncate(20),
        transport: TransportService::RC,
        end_to_end_flow_control: true,
        starting_psn: Psn::truncate(0xab_cde1),
        local_cm_response_timeout: TimeCode::truncate(19),
        retry_count: RetryCount::truncate(5),
        pkey: PKey(0xfffe),
        path_mtu: Mtu::B1024,
        rdc_exists: false,
        rnr_retry_count: RetryCount::truncate(6),
        max_cm_retries: CmRetries::truncate(9),
        srq: true,
        primary: PathBlock {
            local_lid: Lid(0xffff),
            remote_lid: Lid(0xffff),
            local_gid: local.into(),
            remote_gid: remote.into(),
            flow_label: FlowLabel::truncate(0x5_4321),
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
            flow_label: FlowLabel::truncate(0x6_5432),
            rate: Rate::GBPS_300,
            traffic_class: 0x6c,
            hop_limit: 0x41,
            sl: ServiceLevel::truncate(5),
            subnet_local: false,
            local_ack_timeout: TimeCode::truncate(18),
        },
        sap_supported: false,
        private_data,
    }
}

fn mra() -> Mra {
    Mra {
        local_comm_id: LOCAL,
        remote_comm_id: REMOTE,
        message: MessageId::REP,
        service_timeout: TimeCode::truncate(24),
        private_data: PrivateData::from(&[0x4d; 222]),
    }
}

fn rej() -> Rej {
    Rej {
        local_comm_id: LOCAL,
        remote_comm_id: REMOTE,
        message: MessageId::REP,
        reason: RejReason::CONSUMER,
        ari: Ari::new(b"additional information").expect("22 bytes fit"),
        private_data: PrivateData::from(&[0x4a; 148]),
    }
}

fn rep() -> Rep {
    Rep {
        local_comm_id: LOCAL,
        remote_comm_id: REMOTE,
        local_qkey: QKey(0xc0c1_c2c3),
        local_qpn: Qpn::truncate(0xd1_d2d3),
        vendor_id: VendorId::truncate(0x0d_0e0f),
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
        private_data: PrivateData::from(&[0x50; 196]),
    }
}

fn dreq() -> Dreq {
    Dreq {
        local_comm_id: LOCAL,
        remote_comm_id: REMOTE,
        remote_qpn: Qpn::truncate(0xd1_d2d3),
        private_data: PrivateData::from(&[0x44; 220]),
    }
}
