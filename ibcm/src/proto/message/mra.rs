//! MRA: message receipt acknowledged, the answer will take longer.

use ibwire::{CommId, PrivateData, TimeCode};
use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute_mut, transmute_ref};

use super::{MessageId, PAYLOAD_LEN};

/// The message has arrived, the answer comes within the service timeout (IBTA vol. 1, 12.6.6; spec/cm.md 2.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mra {
    /// The sender's ID.
    pub local_comm_id: CommId,
    /// The receiver's ID.
    pub remote_comm_id: CommId,
    /// Which message is acknowledged: REQ, REP or LAP.
    pub message: MessageId,
    /// How much longer to wait.
    pub service_timeout: TimeCode,
    /// The application's bytes.
    pub private_data: PrivateData<222>,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct MraWire {
    local_comm_id: U32,
    remote_comm_id: U32,
    /// MessageMRAed 7:6.
    message: u8,
    /// ServiceTimeout 7:3.
    service_timeout: u8,
    private_data: [u8; 222],
}

const _: () = assert!(size_of::<MraWire>() == PAYLOAD_LEN);

impl Mra {
    pub(super) fn decode(payload: &[u8; PAYLOAD_LEN]) -> Self {
        let wire: &MraWire = transmute_ref!(payload);
        Self {
            local_comm_id: CommId(wire.local_comm_id.get()),
            remote_comm_id: CommId(wire.remote_comm_id.get()),
            message: MessageId::truncate(wire.message >> 6),
            service_timeout: TimeCode::truncate(wire.service_timeout >> 3),
            private_data: PrivateData::from_area(wire.private_data),
        }
    }

    pub(super) fn encode(&self, payload: &mut [u8; PAYLOAD_LEN]) {
        let wire: &mut MraWire = transmute_mut!(payload);
        *wire = MraWire {
            local_comm_id: U32::new(self.local_comm_id.0),
            remote_comm_id: U32::new(self.remote_comm_id.0),
            message: self.message.get() << 6,
            service_timeout: self.service_timeout.get() << 3,
            private_data: *self.private_data.as_bytes(),
        };
    }
}
