//! The header of every MAD.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{AttributeId, MadStatus, Method, MgmtClass};
use crate::codec::codec;
use crate::{DecodeError, TransactionId};

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct MadHeaderLayout {
    base_version: u8,
    class: u8,
    class_version: u8,
    method: u8,
    status: U16,
    class_specific: U16,
    tid: U64,
    attribute: U16,
    reserved: U16,
    attribute_modifier: U32,
}

/// The common MAD header (IBTA vol. 1, 13.4.3; spec/cm.md 1.2).
///
/// The reserved field is ignored and written as 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MadHeader {
    /// Version of the MAD format: [`MadHeader::BASE_VERSION`]; others are to be dropped.
    pub base_version: u8,
    /// Management class.
    pub class: MgmtClass,
    /// Version of the class.
    pub class_version: u8,
    /// Method.
    pub method: Method,
    /// Status of a response.
    pub status: MadStatus,
    /// A field that only some classes use.
    pub class_specific: u16,
    /// Transaction.
    pub tid: TransactionId,
    /// What the MAD is about.
    pub attribute: AttributeId,
    /// Which part or variant of it.
    pub attribute_modifier: u32,
}

codec!(MadHeader, MadHeaderLayout, 24, "MAD header");

impl MadHeader {
    /// The only version of the MAD format.
    pub const BASE_VERSION: u8 = 1;

    /// The header of a request: status, class-specific field and attribute modifier are 0.
    pub const fn new(
        class: MgmtClass,
        class_version: u8,
        method: Method,
        attribute: AttributeId,
        tid: TransactionId,
    ) -> Self {
        Self {
            base_version: Self::BASE_VERSION,
            class,
            class_version,
            method,
            status: MadStatus::OK,
            class_specific: 0,
            tid,
            attribute,
            attribute_modifier: 0,
        }
    }

    /// The header of the answer to this request.
    #[must_use]
    pub const fn response(self, status: MadStatus) -> Self {
        Self { method: self.method.response(), status, ..self }
    }

    fn decode(l: &MadHeaderLayout) -> Result<Self, DecodeError> {
        Ok(Self {
            base_version: l.base_version,
            class: MgmtClass(l.class),
            class_version: l.class_version,
            method: Method(l.method),
            status: MadStatus(l.status.get()),
            class_specific: l.class_specific.get(),
            tid: TransactionId(l.tid.get()),
            attribute: AttributeId(l.attribute.get()),
            attribute_modifier: l.attribute_modifier.get(),
        })
    }

    fn encode(&self) -> MadHeaderLayout {
        MadHeaderLayout {
            base_version: self.base_version,
            class: self.class.0,
            class_version: self.class_version,
            method: self.method.0,
            status: U16::new(self.status.0),
            class_specific: U16::new(self.class_specific),
            tid: U64::new(self.tid.0),
            attribute: U16::new(self.attribute.0),
            reserved: U16::ZERO,
            attribute_modifier: U32::new(self.attribute_modifier),
        }
    }
}
