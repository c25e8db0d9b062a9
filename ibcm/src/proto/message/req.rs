//! REQ: a request for communication.

use ibwire::{CommId, Guid, Lid, Mtu, PKey, PrivateData, Psn, QKey, Qpn, ServiceId, TimeCode};
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute_mut, transmute_ref};

use super::number::{u24, u24_bytes};
use super::path::PathWire;
use super::{CmRetries, Eecn, PAYLOAD_LEN, PathBlock, RetryCount, TransportService, VendorId};

/// A request for communication, from the active to the passive side (IBTA vol. 1, 12.6.5; spec/cm.md 2.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Req {
    /// The active side's ID.
    pub local_comm_id: CommId,
    /// Whose ECE options the attribute modifier carries.
    pub vendor_id: VendorId,
    /// Which service is wanted.
    pub service_id: ServiceId,
    /// The node GUID of the sender's CA.
    pub local_ca_guid: Guid,
    /// RD only.
    pub local_qkey: QKey,
    /// The sender's QP; with XRC its initiator QP.
    pub local_qpn: Qpn,
    /// How many RDMA reads and atomics the sender can have inbound. 0 with UC.
    pub responder_resources: u8,
    /// RD only.
    pub local_eecn: Eecn,
    /// How many RDMA reads and atomics the sender wants outbound.
    pub initiator_depth: u8,
    /// RD only.
    pub remote_eecn: Eecn,
    /// Within which time the receiver must answer; flight time comes on top.
    pub remote_cm_response_timeout: TimeCode,
    /// The transport service wanted.
    pub transport: TransportService,
    /// Whether the sender's receive queue returns end-to-end credits.
    pub end_to_end_flow_control: bool,
    /// The first PSN that the **receiver** of the REQ will send (spec/cm.md 5.3).
    pub starting_psn: Psn,
    /// How long the passive side waits for the answer to its REP; flight time both ways is included.
    pub local_cm_response_timeout: TimeCode,
    /// For the passive QP.
    pub retry_count: RetryCount,
    /// The partition of the connection.
    pub pkey: PKey,
    /// The MTU of both paths; 4 bits go onto the wire.
    pub path_mtu: Mtu,
    /// RD only: the channel exists already.
    pub rdc_exists: bool,
    /// For the passive QP.
    pub rnr_retry_count: RetryCount,
    /// How often REQ, REP and DREQ may be re-sent.
    pub max_cm_retries: CmRetries,
    /// Whether the sender's QP uses a shared receive queue.
    pub srq: bool,
    /// The path of the connection.
    pub primary: PathBlock,
    /// The alternate path block as it came; whether it counts is what [`Req::alternate_path`] says.
    pub alternate: PathBlock,
    /// Whether the sender understands SAP, a suggestion of an alternate path.
    pub sap_supported: bool,
    /// The application's bytes.
    pub private_data: PrivateData<92>,
}

impl Req {
    /// The alternate path, `None` unless both its LIDs are there.
    pub fn alternate_path(&self) -> Option<&PathBlock> {
        let lids = [self.alternate.local_lid, self.alternate.remote_lid];
        (!lids.contains(&Lid::NONE)).then_some(&self.alternate)
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ReqWire {
    local_comm_id: U32,
    reserved_4: u8,
    vendor_id: [u8; 3],
    service_id: U64,
    local_ca_guid: U64,
    reserved_24: [u8; 4],
    local_qkey: U32,
    local_qpn: [u8; 3],
    responder_resources: u8,
    local_eecn: [u8; 3],
    initiator_depth: u8,
    remote_eecn: [u8; 3],
    /// RemoteCMResponseTimeout 7:3, TransportServiceType 2:1, EndToEndFlowControl 0.
    remote_timeout_transport_flow: u8,
    starting_psn: [u8; 3],
    /// LocalCMResponseTimeout 7:3, RetryCount 2:0.
    local_timeout_retry: u8,
    pkey: U16,
    /// PathPacketPayloadMTU 7:4, RDCExists 3, RNRRetryCount 2:0.
    mtu_rdc_rnr: u8,
    /// MaxCMRetries 7:4, SRQ 3, ExtendedTransportType 2:0.
    retries_srq_extension: u8,
    primary: PathWire,
    alternate: PathWire,
    private_data: [u8; 92],
}

const _: () = assert!(size_of::<ReqWire>() == PAYLOAD_LEN);

impl Req {
    pub(super) fn decode(payload: &[u8; PAYLOAD_LEN]) -> Self {
        let wire: &ReqWire = transmute_ref!(payload);
        Self {
            local_comm_id: CommId(wire.local_comm_id.get()),
            vendor_id: VendorId::truncate(u24(wire.vendor_id)),
            service_id: ServiceId(wire.service_id.get()),
            local_ca_guid: Guid(wire.local_ca_guid.get()),
            local_qkey: QKey(wire.local_qkey.get()),
            local_qpn: Qpn::truncate(u24(wire.local_qpn)),
            responder_resources: wire.responder_resources,
            local_eecn: Eecn::truncate(u24(wire.local_eecn)),
            initiator_depth: wire.initiator_depth,
            remote_eecn: Eecn::truncate(u24(wire.remote_eecn)),
            remote_cm_response_timeout: TimeCode::truncate(wire.remote_timeout_transport_flow >> 3),
            transport: TransportService::truncate(
                wire.remote_timeout_transport_flow >> 1,
                wire.retries_srq_extension,
            ),
            end_to_end_flow_control: wire.remote_timeout_transport_flow & 0x01 != 0,
            starting_psn: Psn::truncate(u24(wire.starting_psn)),
            local_cm_response_timeout: TimeCode::truncate(wire.local_timeout_retry >> 3),
            retry_count: RetryCount::truncate(wire.local_timeout_retry),
            pkey: PKey(wire.pkey.get()),
            path_mtu: Mtu(wire.mtu_rdc_rnr >> 4),
            rdc_exists: wire.mtu_rdc_rnr & 0x08 != 0,
            rnr_retry_count: RetryCount::truncate(wire.mtu_rdc_rnr),
            max_cm_retries: CmRetries::truncate(wire.retries_srq_extension >> 4),
            srq: wire.retries_srq_extension & 0x08 != 0,
            primary: wire.primary.decode(),
            alternate: wire.alternate.decode(),
            sap_supported: wire.alternate.sap_supported(),
            private_data: PrivateData::from_area(wire.private_data),
        }
    }

    pub(super) fn encode(&self, payload: &mut [u8; PAYLOAD_LEN]) {
        let wire: &mut ReqWire = transmute_mut!(payload);
        *wire = ReqWire {
            local_comm_id: U32::new(self.local_comm_id.0),
            reserved_4: 0,
            vendor_id: u24_bytes(self.vendor_id.get()),
            service_id: U64::new(self.service_id.0),
            local_ca_guid: U64::new(self.local_ca_guid.0),
            reserved_24: [0; 4],
            local_qkey: U32::new(self.local_qkey.0),
            local_qpn: u24_bytes(self.local_qpn.get()),
            responder_resources: self.responder_resources,
            local_eecn: u24_bytes(self.local_eecn.get()),
            initiator_depth: self.initiator_depth,
            remote_eecn: u24_bytes(self.remote_eecn.get()),
            remote_timeout_transport_flow: self.remote_cm_response_timeout.get() << 3
                | self.transport.service_type() << 1
                | u8::from(self.end_to_end_flow_control),
            starting_psn: u24_bytes(self.starting_psn.get()),
            local_timeout_retry: self.local_cm_response_timeout.get() << 3 | self.retry_count.get(),
            pkey: U16::new(self.pkey.0),
            mtu_rdc_rnr: self.path_mtu.0 << 4 | u8::from(self.rdc_exists) << 3 | self.rnr_retry_count.get(),
            retries_srq_extension: self.max_cm_retries.get() << 4
                | u8::from(self.srq) << 3
                | self.transport.extension(),
            primary: PathWire::encode(&self.primary),
            alternate: PathWire::encode(&self.alternate).with_sap_supported(self.sap_supported),
            private_data: *self.private_data.as_bytes(),
        };
    }
}
