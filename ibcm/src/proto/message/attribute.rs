//! The attribute IDs of the CM class.

use std::fmt;

use ibwire::mad::AttributeId;

/// The attribute ID of a MAD of the CM class (spec/cm.md 1.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attribute(pub u16);

macro_rules! attributes {
    ($($name:ident = $id:literal;)*) => {
        impl Attribute {
            $(
                #[doc = concat!("The attribute ID of ", stringify!($name), ".")]
                pub const $name: Self = Self($id);
            )*

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

impl From<AttributeId> for Attribute {
    fn from(id: AttributeId) -> Self {
        Self(id.0)
    }
}

impl From<Attribute> for AttributeId {
    fn from(attribute: Attribute) -> Self {
        Self(attribute.0)
    }
}
