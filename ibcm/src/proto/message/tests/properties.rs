//! Values survive a round trip; bytes never panic.

use ibwire::{
    FlowLabel, Gid, Guid, Lid, Mtu, PKey, PrivateData, Psn, QKey, Qpn, Rate, RejReason, ServiceId,
    ServiceLevel, TimeCode,
};
use proptest::prelude::*;

use super::*;

fn area<const N: usize>() -> impl Strategy<Value = PrivateData<N>> {
    proptest::collection::vec(any::<u8>(), N).prop_map(|bytes| PrivateData::new(&bytes).unwrap())
}

fn time() -> impl Strategy<Value = TimeCode> {
    any::<u8>().prop_map(TimeCode::truncate)
}

fn retries() -> impl Strategy<Value = RetryCount> {
    any::<u8>().prop_map(RetryCount::truncate)
}

prop_compose! {
    fn path()(
        lids in any::<(u16, u16)>(),
        gids in any::<([u8; 16], [u8; 16])>(),
        flow_label in any::<u32>(),
        rate in 0u8..64,
        (traffic_class, hop_limit, sl) in any::<(u8, u8, u8)>(),
        subnet_local in any::<bool>(),
        local_ack_timeout in time(),
    ) -> PathBlock {
        PathBlock {
            local_lid: Lid(lids.0),
            remote_lid: Lid(lids.1),
            local_gid: Gid(gids.0),
            remote_gid: Gid(gids.1),
            flow_label: FlowLabel::truncate(flow_label),
            rate: Rate(rate),
            traffic_class,
            hop_limit,
            sl: ServiceLevel::truncate(sl),
            subnet_local,
            local_ack_timeout,
        }
    }
}

prop_compose! {
    fn req()(
        (local_comm_id, vendor_id, local_qkey) in any::<(u32, u32, u32)>(),
        (service_id, guid) in any::<(u64, u64)>(),
        (qpn, psn, local_eecn, remote_eecn) in any::<(u32, u32, u32, u32)>(),
        (responder_resources, initiator_depth, cm_retries) in any::<(u8, u8, u8)>(),
        (service_type, extension) in (0u8..4, 0u8..8),
        (remote_timeout, local_timeout, retry_count, rnr_retry_count) in (time(), time(), retries(), retries()),
        (flow_control, rdc_exists, srq, sap_supported) in any::<(bool, bool, bool, bool)>(),
        (pkey, mtu) in (any::<u16>(), 0u8..16),
        (primary, alternate) in (path(), path()),
        private_data in area(),
    ) -> Message {
        Message::Req(Req {
            local_comm_id: CommId(local_comm_id),
            vendor_id: VendorId::truncate(vendor_id),
            service_id: ServiceId(service_id),
            local_ca_guid: Guid(guid),
            local_qkey: QKey(local_qkey),
            local_qpn: Qpn::truncate(qpn),
            responder_resources,
            local_eecn: Eecn::truncate(local_eecn),
            initiator_depth,
            remote_eecn: Eecn::truncate(remote_eecn),
            remote_cm_response_timeout: remote_timeout,
            transport: TransportService::new(service_type, extension).unwrap(),
            end_to_end_flow_control: flow_control,
            starting_psn: Psn::truncate(psn),
            local_cm_response_timeout: local_timeout,
            retry_count,
            pkey: PKey(pkey),
            path_mtu: Mtu(mtu),
            rdc_exists,
            rnr_retry_count,
            max_cm_retries: CmRetries::truncate(cm_retries),
            srq,
            primary,
            alternate,
            sap_supported,
            private_data,
        })
    }
}

prop_compose! {
    fn rep()(
        (local, remote, local_qkey, vendor_id) in any::<(u32, u32, u32, u32)>(),
        (qpn, eecn, psn) in any::<(u32, u32, u32)>(),
        guid in any::<u64>(),
        (responder_resources, initiator_depth, failover) in any::<(u8, u8, u8)>(),
        (target_ack_delay, rnr_retry_count) in (time(), retries()),
        (end_to_end_flow_control, srq) in any::<(bool, bool)>(),
        private_data in area(),
    ) -> Message {
        Message::Rep(Rep {
            local_comm_id: CommId(local),
            remote_comm_id: CommId(remote),
            local_qkey: QKey(local_qkey),
            local_qpn: Qpn::truncate(qpn),
            vendor_id: VendorId::truncate(vendor_id),
            local_eecn: Eecn::truncate(eecn),
            starting_psn: Psn::truncate(psn),
            responder_resources,
            initiator_depth,
            target_ack_delay,
            failover_accepted: FailoverAccepted::truncate(failover),
            end_to_end_flow_control,
            rnr_retry_count,
            srq,
            local_ca_guid: Guid(guid),
            private_data,
        })
    }
}

fn ids() -> impl Strategy<Value = (CommId, CommId)> {
    any::<(u32, u32)>().prop_map(|(local, remote)| (CommId(local), CommId(remote)))
}

fn message() -> impl Strategy<Value = Message> {
    let id = || any::<u8>().prop_map(MessageId::truncate);
    let ari = || proptest::collection::vec(any::<u8>(), 0..=72).prop_map(|bytes| Ari::new(&bytes).unwrap());
    prop_oneof![
        req(),
        rep(),
        (ids(), id(), time(), area()).prop_map(
            |((local_comm_id, remote_comm_id), message, service_timeout, private_data)| {
                Mra { local_comm_id, remote_comm_id, message, service_timeout, private_data }.into()
            }
        ),
        (ids(), id(), any::<u16>(), ari(), area()).prop_map(
            |((local_comm_id, remote_comm_id), message, reason, ari, private_data)| {
                let reason = RejReason(reason);
                Rej { local_comm_id, remote_comm_id, message, reason, ari, private_data }.into()
            }
        ),
        (ids(), area()).prop_map(|((local_comm_id, remote_comm_id), private_data)| {
            Rtu { local_comm_id, remote_comm_id, private_data }.into()
        }),
        (ids(), any::<u32>(), area()).prop_map(|((local_comm_id, remote_comm_id), qpn, private_data)| {
            Dreq { local_comm_id, remote_comm_id, remote_qpn: Qpn::truncate(qpn), private_data }.into()
        }),
        (ids(), area()).prop_map(|((local_comm_id, remote_comm_id), private_data)| {
            Drep { local_comm_id, remote_comm_id, private_data }.into()
        }),
        (ids(), any::<u32>(), time(), path(), area()).prop_map(
            |((local_comm_id, remote_comm_id), qpn, remote_cm_response_timeout, alternate, private_data)| {
                let remote_qpn = Qpn::truncate(qpn);
                Lap {
                    local_comm_id,
                    remote_comm_id,
                    remote_qpn,
                    remote_cm_response_timeout,
                    alternate,
                    private_data,
                }
                .into()
            }
        ),
        (ids(), any::<u8>(), ari(), area()).prop_map(
            |((local_comm_id, remote_comm_id), status, info, private_data)| {
                Apr { local_comm_id, remote_comm_id, status: ApStatus(status), info, private_data }.into()
            }
        ),
        (any::<(u32, u16, u64)>(), area()).prop_map(|((id, pkey, service), private_data)| {
            let (request_id, service_id) = (CommId(id), ServiceId(service));
            SidrReq { request_id, pkey: PKey(pkey), service_id, private_data }.into()
        }),
        (any::<(u32, u8, u32, u32, u64, u32)>(), ari(), area()).prop_map(
            |((id, status, vendor, qpn, service, qkey), info, private_data)| {
                SidrRep {
                    request_id: CommId(id),
                    status: SidrStatus(status),
                    info,
                    vendor_id: VendorId::truncate(vendor),
                    qpn: Qpn::truncate(qpn),
                    service_id: ServiceId(service),
                    qkey: QKey(qkey),
                    private_data,
                }
                .into()
            }
        ),
    ]
}

proptest! {
    #[test]
    fn values_survive_a_round_trip(message in message(), tid in any::<u64>()) {
        let tid = TransactionId(tid);
        let mad = encoded(&message, tid);
        let (header, decoded) = Message::decode(&mad).unwrap();
        prop_assert_eq!(header, header_of(&message, tid));
        prop_assert_eq!(&decoded, &message);
        prop_assert_eq!(decoded.attribute(), message.attribute());
    }

    /// What was decoded is fixed from then on: encode, decode and encode again change nothing.
    #[test]
    fn any_payload_decodes_and_settles(
        attribute in 0x0fu16..0x1e,
        payload in proptest::collection::vec(any::<u8>(), 232),
    ) {
        let mut mad = mad_from_hex(&format!("01070203 00000000 0000000000000000 {attribute:04x}"), 0);
        mad[24..].copy_from_slice(&payload);
        if let Ok((header, message)) = Message::decode(&mad) {
            let again = Message::decode(&encoded(&message, header.tid)).unwrap();
            prop_assert_eq!(&again.1, &message);
            if let Message::Rej(rej) = &message {
                let info = RejectInfo::decode(rej.reason, &rej.ari);
                prop_assert!(info.encode().as_bytes().len() <= rej.ari.as_bytes().len());
            }
            if let Message::Req(req) = &message {
                let _ = IpHeader::split(&req.private_data);
            }
            if let Message::SidrReq(req) = &message {
                let _ = IpHeader::split(&req.private_data);
            }
            if let Message::Apr(apr) = &message {
                let info = ApInfo::decode(apr.status, &apr.info);
                prop_assert!(info.encode().as_bytes().len() <= apr.info.as_bytes().len());
            }
            if let Message::SidrRep(rep) = &message {
                let info = SidrInfo::decode(rep.status, &rep.info);
                prop_assert!(info.encode().as_bytes().len() <= rep.info.as_bytes().len());
            }
        }
    }

    #[test]
    fn any_mad_decodes_or_says_why(bytes in proptest::collection::vec(any::<u8>(), MAD_LEN)) {
        let mad: &[u8; MAD_LEN] = bytes.as_slice().try_into().unwrap();
        if let Err(error) = Message::decode(mad) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn ip_headers_survive_a_round_trip(bytes in any::<[u8; 32]>(), port in any::<u16>(), v6 in any::<bool>()) {
        let mut header = [0; 36];
        header[1] = if v6 { 0x60 } else { 0x40 };
        header[2..4].copy_from_slice(&port.to_be_bytes());
        header[4..].copy_from_slice(&bytes);
        let decoded = IpHeader::decode(&header).unwrap();
        if v6 {
            prop_assert_eq!(decoded.encode(), header);
        }
        prop_assert_eq!(IpHeader::decode(&decoded.encode()), Ok(decoded));
        prop_assert_eq!(IpHeader::new(decoded.source(), decoded.destination()), Some(decoded));
    }
}
