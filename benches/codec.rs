//! How long a CM message takes to and from its 256 bytes, next to a copy of 256 bytes.

use std::hint::black_box;
use std::time::Duration;

use benches::{Aligned, Case, Clock, Options, Sampling, Table, side_by_side};
use ibcm::proto::message::{
    Ari, CmRetries, Drep, Dreq, Eecn, FailoverAccepted, Message, MessageId, Mra, PathBlock, Rej, Rep, Req,
    RetryCount, Rtu, TransportService, VendorId,
};
use ibwire::mad::MAD_LEN;
use ibwire::{
    CommId, FlowLabel, Gid, Guid, Lid, Mtu, PKey, PrivateData, Psn, QKey, Qpn, Rate, RejReason, ServiceId,
    ServiceLevel, TimeCode, TransactionId,
};

const MEMCPY: &str = "copy of 256 bytes";
const TID: TransactionId = TransactionId(0x0123_4567_89ab_cdef);

fn main() {
    let options = Options::start("codec: CM messages to and from their MADs");
    let sampling = Sampling::new(&options, Clock::Cpu, Duration::from_millis(2), 201);
    let messages = messages();
    let mads: Vec<_> = messages.iter().map(|message| Aligned(encoded(message))).collect();

    let (source, mut target) = (Aligned([0x5a; MAD_LEN]), Aligned([0; MAD_LEN]));
    let mut cases = vec![Case::new(MEMCPY, |count| {
        for _ in 0..count {
            black_box(&mut target.0).copy_from_slice(black_box(&source.0));
        }
    })];
    for (message, mad) in messages.iter().zip(&mads) {
        let name = message.attribute();
        cases.push(Case::new(format!("{name} encode"), move |count| {
            let mut mad = Aligned([0; MAD_LEN]);
            for _ in 0..count {
                black_box(message).encode(TID, black_box(&mut mad.0));
            }
        }));
        cases.push(Case::new(format!("{name} decode"), move |count| {
            for _ in 0..count {
                black_box(
                    Message::decode(black_box(&mad.0)).is_ok_and(|decoded| black_box(decoded).0.tid == TID),
                );
            }
        }));
    }
    let estimates = side_by_side(sampling, cases);

    let copy = estimates[0].median;
    let mut table = Table::new(["per message", "ns", "quartiles", "of a copy"]);
    for case in estimates.iter().filter(|case| options.selects(&case.name)) {
        table.row([
            case.name.clone(),
            format!("{:.1}", case.median),
            case.spread(),
            format!("{:.1}", case.median / copy),
        ]);
    }
    print!("{table}");
}

fn encoded(message: &Message) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    message.encode(TID, &mut mad);
    let (header, decoded) = Message::decode(&mad).expect("a message that we encoded");
    assert_eq!((header.tid, &decoded), (TID, message));
    mad
}

/// One of each, no field zero that need not be, private data to the end.
fn messages() -> Vec<Message> {
    let (local_comm_id, remote_comm_id) = (CommId(0x1122_3344), CommId(0x5566_7788));
    let (local_qpn, local_ca_guid) = (Qpn::truncate(0x12_3456), Guid(0x0002_c903_0011_2233));
    let path = PathBlock {
        local_lid: Lid(1),
        remote_lid: Lid(2),
        local_gid: Gid::from_ip([10, 0, 0, 1].into()),
        remote_gid: Gid::from_ip([10, 0, 0, 2].into()),
        flow_label: FlowLabel::truncate(0xabcde),
        rate: Rate::GBPS_100,
        traffic_class: 8,
        hop_limit: 64,
        sl: ServiceLevel::truncate(3),
        subnet_local: true,
        local_ack_timeout: TimeCode::truncate(17),
    };
    vec![
        Message::Req(Req {
            local_comm_id,
            vendor_id: VendorId::truncate(0x00_02c9),
            service_id: ServiceId::new(0x0000_0000_0106_4d2a),
            local_ca_guid,
            local_qkey: QKey(0x8001_0000),
            local_qpn,
            responder_resources: 16,
            local_eecn: Eecn::truncate(1),
            initiator_depth: 16,
            remote_eecn: Eecn::truncate(2),
            remote_cm_response_timeout: TimeCode::truncate(20),
            transport: TransportService::RC,
            end_to_end_flow_control: true,
            starting_psn: Psn::truncate(0xab_cdef),
            local_cm_response_timeout: TimeCode::truncate(20),
            retry_count: RetryCount::truncate(7),
            pkey: PKey::DEFAULT,
            path_mtu: Mtu::B4096,
            rdc_exists: true,
            rnr_retry_count: RetryCount::truncate(7),
            max_cm_retries: CmRetries::truncate(15),
            srq: true,
            primary: path,
            alternate: path,
            sap_supported: true,
            private_data: PrivateData::from_area([0xda; 92]),
        }),
        Message::Mra(Mra {
            local_comm_id,
            remote_comm_id,
            message: MessageId::REP,
            service_timeout: TimeCode::truncate(20),
            private_data: PrivateData::from_area([0xda; 222]),
        }),
        Message::Rej(Rej {
            local_comm_id,
            remote_comm_id,
            message: MessageId::REP,
            reason: RejReason::CONSUMER,
            ari: Ari::new(&[0xa1; Ari::MAX_LEN]).expect("as long as allowed"),
            private_data: PrivateData::from_area([0xda; 148]),
        }),
        Message::Rep(Rep {
            local_comm_id,
            remote_comm_id,
            local_qkey: QKey(0x8001_0000),
            local_qpn,
            vendor_id: VendorId::truncate(0x00_02c9),
            local_eecn: Eecn::truncate(1),
            starting_psn: Psn::truncate(0xab_cdef),
            responder_resources: 16,
            initiator_depth: 16,
            target_ack_delay: TimeCode::truncate(15),
            failover_accepted: FailoverAccepted::UNSUPPORTED,
            end_to_end_flow_control: true,
            rnr_retry_count: RetryCount::truncate(7),
            srq: true,
            local_ca_guid,
            private_data: PrivateData::from_area([0xda; 196]),
        }),
        Message::Rtu(Rtu {
            local_comm_id,
            remote_comm_id,
            private_data: PrivateData::from_area([0xda; 224]),
        }),
        Message::Dreq(Dreq {
            local_comm_id,
            remote_comm_id,
            remote_qpn: local_qpn,
            private_data: PrivateData::from_area([0xda; 220]),
        }),
        Message::Drep(Drep {
            local_comm_id,
            remote_comm_id,
            private_data: PrivateData::from_area([0xda; 224]),
        }),
    ]
}
