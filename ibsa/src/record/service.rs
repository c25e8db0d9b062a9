//! Services that nodes have registered.

use std::fmt;

use ibwire::mad::AttributeId;
use ibwire::{Gid, PKey, ServiceId};

use super::bits::{be16, be32, be64, bytes};
use super::layout::{Masked, Record, layout};
use super::value::Text;

layout! {
    /// ServiceRecord (IBTA vol. 1, 15.2.5.14; spec/sa.md 3.10).
    pub struct ServiceRecord, "ServiceRecord", 176 bytes {
        /// The service.
        service_id: ServiceId = be64(0) => mask(0);
        /// The port that offers it.
        service_gid: Gid = bytes(8, 16) => mask(1);
        /// The partition in which it does.
        service_p_key: PKey = be16(24) => mask(2);
        /// For how many seconds; [`ServiceRecord::FOR_EVER`] without end. Some SAs answer with what was asked for, not with
        /// what is left.
        service_lease: u32 = be32(28) => mask(4);
        /// Who knows it may change the record.
        service_key: [u8; 16] = bytes(32, 16) => mask(5), secret;
        /// UTF-8 name.
        service_name: Text<64> = bytes(48, 64) => mask(6);
        /// Data of the service.
        service_data8: [u8; 16] = bytes(112, 16) => each(7);
        /// Data of the service.
        service_data16: [u16; 8] = bytes(128, 16) => each(23);
        /// Data of the service.
        service_data32: [u32; 4] = bytes(144, 16) => each(31);
        /// Data of the service.
        service_data64: [u64; 2] = bytes(160, 16) => each(35);
    }
}

impl ServiceRecord {
    /// A lease without end.
    pub const FOR_EVER: u32 = u32::MAX;

    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} \"{}\" at {}, P_Key {}, ",
            self.service_id, self.service_name, self.service_gid, self.service_p_key
        )?;
        match self.service_lease {
            Self::FOR_EVER => f.write_str("for ever"),
            seconds => write!(f, "for {seconds} s"),
        }
    }
}

impl Record for ServiceRecord {
    const ATTRIBUTE: AttributeId = AttributeId(0x0031);

    fn is_named(&self, wanted: &Self, mask: u64) -> bool {
        self.matches(wanted, mask & 0b11)
    }
}

layout! {
    /// ServiceAssociationRecord (spec/sa.md 3.17): which key belongs to a name.
    pub struct ServiceAssociationRecord, "ServiceAssociationRecord", 80 bytes {
        /// The key.
        service_key: [u8; 16] = bytes(0, 16) => mask(0), secret;
        /// The name.
        service_name: Text<64> = bytes(16, 64) => mask(1);
    }
}

impl ServiceAssociationRecord {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" has key {:032x}", self.service_name, u128::from_be_bytes(self.service_key))
    }
}

impl Record for ServiceAssociationRecord {
    const ATTRIBUTE: AttributeId = AttributeId(0x003b);
}
