//! REP: the reply to a request for communication.

use ibwire::{CommId, Guid, PrivateData, Psn, QKey, Qpn, TimeCode};
use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute_mut, transmute_ref};

use super::number::{u24, u24_bytes};
use super::{Eecn, FailoverAccepted, PAYLOAD_LEN, RetryCount, VendorId};

/// The passive side accepts the request (IBTA vol. 1, 12.6.8; spec/cm.md 2.4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rep {
    /// The passive side's ID.
    pub local_comm_id: CommId,
    /// The active side's ID.
    pub remote_comm_id: CommId,
    /// RD only.
    pub local_qkey: QKey,
    /// The passive side's QP. 0 with XRC, whose target QP is in [`Rep::local_eecn`].
    pub local_qpn: Qpn,
    /// Whose ECE options the attribute modifier carries.
    pub vendor_id: VendorId,
    /// RD; with XRC the target QPN.
    pub local_eecn: Eecn,
    /// The first PSN that the **active side** will send (spec/cm.md 5.3).
    pub starting_psn: Psn,
    /// How many RDMA reads and atomics the passive side can have inbound.
    pub responder_resources: u8,
    /// How many RDMA reads and atomics the passive side wants outbound.
    pub initiator_depth: u8,
    /// How long the passive side's CA may delay an ack.
    pub target_ack_delay: TimeCode,
    /// What became of the alternate path.
    pub failover_accepted: FailoverAccepted,
    /// Whether the passive side's receive queue returns end-to-end credits.
    pub end_to_end_flow_control: bool,
    /// For the active QP.
    pub rnr_retry_count: RetryCount,
    /// Whether the passive side's QP uses a shared receive queue.
    pub srq: bool,
    /// The node GUID of the passive side's CA.
    pub local_ca_guid: Guid,
    /// The application's bytes.
    pub private_data: PrivateData<196>,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RepWire {
    local_comm_id: U32,
    remote_comm_id: U32,
    local_qkey: U32,
    local_qpn: [u8; 3],
    vendor_id_23_16: u8,
    local_eecn: [u8; 3],
    vendor_id_15_8: u8,
    starting_psn: [u8; 3],
    vendor_id_7_0: u8,
    responder_resources: u8,
    initiator_depth: u8,
    /// TargetAckDelay 7:3, FailoverAccepted 2:1, EndToEndFlowControl 0.
    delay_failover_flow: u8,
    /// RNRRetryCount 7:5, SRQ 4.
    rnr_srq: u8,
    local_ca_guid: U64,
    private_data: [u8; 196],
}

const _: () = assert!(size_of::<RepWire>() == PAYLOAD_LEN);

impl Rep {
    pub(super) fn decode(payload: &[u8; PAYLOAD_LEN]) -> Self {
        let wire: &RepWire = transmute_ref!(payload);
        Self {
            local_comm_id: CommId(wire.local_comm_id.get()),
            remote_comm_id: CommId(wire.remote_comm_id.get()),
            local_qkey: QKey(wire.local_qkey.get()),
            local_qpn: Qpn::truncate(u24(wire.local_qpn)),
            vendor_id: VendorId::truncate(u24([
                wire.vendor_id_23_16,
                wire.vendor_id_15_8,
                wire.vendor_id_7_0,
            ])),
            local_eecn: Eecn::truncate(u24(wire.local_eecn)),
            starting_psn: Psn::truncate(u24(wire.starting_psn)),
            responder_resources: wire.responder_resources,
            initiator_depth: wire.initiator_depth,
            target_ack_delay: TimeCode::truncate(wire.delay_failover_flow >> 3),
            failover_accepted: FailoverAccepted::truncate(wire.delay_failover_flow >> 1),
            end_to_end_flow_control: wire.delay_failover_flow & 0x01 != 0,
            rnr_retry_count: RetryCount::truncate(wire.rnr_srq >> 5),
            srq: wire.rnr_srq & 0x10 != 0,
            local_ca_guid: Guid(wire.local_ca_guid.get()),
            private_data: PrivateData::from_area(wire.private_data),
        }
    }

    pub(super) fn encode(&self, payload: &mut [u8; PAYLOAD_LEN]) {
        let wire: &mut RepWire = transmute_mut!(payload);
        let [vendor_id_23_16, vendor_id_15_8, vendor_id_7_0] = u24_bytes(self.vendor_id.get());
        *wire = RepWire {
            local_comm_id: U32::new(self.local_comm_id.0),
            remote_comm_id: U32::new(self.remote_comm_id.0),
            local_qkey: U32::new(self.local_qkey.0),
            local_qpn: u24_bytes(self.local_qpn.get()),
            vendor_id_23_16,
            local_eecn: u24_bytes(self.local_eecn.get()),
            vendor_id_15_8,
            starting_psn: u24_bytes(self.starting_psn.get()),
            vendor_id_7_0,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            delay_failover_flow: self.target_ack_delay.get() << 3
                | self.failover_accepted.get() << 1
                | u8::from(self.end_to_end_flow_control),
            rnr_srq: self.rnr_retry_count.get() << 5 | u8::from(self.srq) << 4,
            local_ca_guid: U64::new(self.local_ca_guid.0),
            private_data: *self.private_data.as_bytes(),
        };
    }
}
