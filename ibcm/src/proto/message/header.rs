//! The MAD header of CM messages.

use std::fmt;

use ibwire::TransactionId;
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute_mut, transmute_ref};

use super::{MAD_LEN, PAYLOAD_LEN};

/// The attribute ID of a MAD of the CM class (spec/cm.md 1.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attribute(pub u16);

macro_rules! attributes {
    ($($name:ident = $id:literal;)*) => {
        #[allow(missing_docs)]
        impl Attribute {
            $(pub const $name: Self = Self($id);)*

            /// The message's name, `None` if the ID is not assigned.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($id => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

attributes! {
    CLASS_PORT_INFO = 0x0001;
    REQ = 0x0010;
    MRA = 0x0011;
    REJ = 0x0012;
    REP = 0x0013;
    RTU = 0x0014;
    DREQ = 0x0015;
    DREP = 0x0016;
    SIDR_REQ = 0x0017;
    SIDR_REP = 0x0018;
    LAP = 0x0019;
    APR = 0x001a;
    SAP = 0x001b;
    SPR = 0x001c;
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "attribute {:#06x}", self.0),
        }
    }
}

impl fmt::Debug for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attribute({self})")
    }
}

/// What the MAD header of a CM message tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The transaction. Answers echo it; it never finds a connection.
    pub tid: TransactionId,
    /// ECE options of the vendor that the message names, 0 from most peers.
    pub attribute_modifier: u32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct HeaderWire {
    pub(super) base_version: u8,
    pub(super) class: u8,
    pub(super) class_version: u8,
    pub(super) method: u8,
    status: U16,
    class_specific: U16,
    tid: U64,
    attribute: U16,
    reserved_18: U16,
    attribute_modifier: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct MadWire {
    header: HeaderWire,
    payload: [u8; PAYLOAD_LEN],
}

const _: () = assert!(size_of::<HeaderWire>() == 24 && size_of::<MadWire>() == MAD_LEN);

impl HeaderWire {
    /// Communication management.
    pub(super) const CLASS: u8 = 0x07;
    /// That of IBTA 1.1 and later.
    pub(super) const CLASS_VERSION: u8 = 2;
    /// The method Send.
    pub(super) const SEND: u8 = 0x03;

    pub(super) fn split(mad: &[u8; MAD_LEN]) -> (&Self, &[u8; PAYLOAD_LEN]) {
        let wire: &MadWire = transmute_ref!(mad);
        (&wire.header, &wire.payload)
    }

    /// Writes the header of a Send; what remains is for the message.
    pub(super) fn send(
        attribute: Attribute,
        tid: TransactionId,
        mad: &mut [u8; MAD_LEN],
    ) -> &mut [u8; PAYLOAD_LEN] {
        let wire: &mut MadWire = transmute_mut!(mad);
        wire.header = Self {
            base_version: 1,
            class: Self::CLASS,
            class_version: Self::CLASS_VERSION,
            method: Self::SEND,
            status: U16::ZERO,
            class_specific: U16::ZERO,
            tid: U64::new(tid.0),
            attribute: U16::new(attribute.0),
            reserved_18: U16::ZERO,
            attribute_modifier: U32::ZERO,
        };
        &mut wire.payload
    }

    pub(super) fn attribute(&self) -> Attribute {
        Attribute(self.attribute.get())
    }

    pub(super) fn value(&self) -> Header {
        Header { tid: TransactionId(self.tid.get()), attribute_modifier: self.attribute_modifier.get() }
    }
}
