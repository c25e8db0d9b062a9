//! Codes of the common MAD header.

use std::fmt;

/// A management class (IBTA vol. 1, 13.4.4).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MgmtClass(pub u8);

impl MgmtClass {
    /// Subnet management, routed by LID.
    pub const SUBN_LID_ROUTED: Self = Self(0x01);
    /// Subnet administration.
    pub const SA: Self = Self(0x03);
    /// Performance counters.
    pub const PERFORMANCE: Self = Self(0x04);
    /// Baseboard management.
    pub const BASEBOARD: Self = Self(0x05);
    /// Device management.
    pub const DEVICE: Self = Self(0x06);
    /// Communication management.
    pub const CM: Self = Self(0x07);
    /// SNMP tunnelling.
    pub const SNMP: Self = Self(0x08);
    /// Subnet management, by directed route.
    pub const SUBN_DIRECTED_ROUTE: Self = Self(0x81);

    /// What the class is called, `None` if it has no name here.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::SUBN_LID_ROUTED => "SMP",
            Self::SA => "SA",
            Self::PERFORMANCE => "PerfMgt",
            Self::BASEBOARD => "BM",
            Self::DEVICE => "DevMgt",
            Self::CM => "CM",
            Self::SNMP => "SNMP",
            Self::SUBN_DIRECTED_ROUTE => "directed-route SMP",
            _ => return None,
        })
    }
}

impl fmt::Display for MgmtClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "class {:#04x}", self.0),
        }
    }
}

impl fmt::Debug for MgmtClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MgmtClass({self})")
    }
}

/// A MAD's method: seven bits and the response bit above them (IBTA vol. 1, 13.4.5; spec/sa.md 1.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Method(pub u8);

impl Method {
    /// Read an attribute.
    pub const GET: Self = Self(0x01);
    /// Write an attribute.
    pub const SET: Self = Self(0x02);
    /// A message that is no request. All CM messages are sent with it, answers included.
    pub const SEND: Self = Self(0x03);
    /// A notice from a port to the SM.
    pub const TRAP: Self = Self(0x05);
    /// A notice to a subscriber.
    pub const REPORT: Self = Self(0x06);
    /// A trap has been heard.
    pub const TRAP_REPRESS: Self = Self(0x07);
    /// All records that match.
    pub const GET_TABLE: Self = Self(0x12);
    /// The route of a path.
    pub const GET_TRACE_TABLE: Self = Self(0x13);
    /// A query that itself needs several packets.
    pub const GET_MULTI: Self = Self(0x14);
    /// Remove a record.
    pub const DELETE: Self = Self(0x15);
    /// Answer to a GET or SET.
    pub const GET_RESP: Self = Self(0x81);

    const RESPONSE: u8 = 0x80;

    /// Whether the response bit is set.
    pub const fn is_response(self) -> bool {
        self.0 & Self::RESPONSE != 0
    }

    /// The method of the answer to a request: the response bit is set, and SET is answered as GET is.
    #[must_use]
    pub const fn response(self) -> Self {
        match self {
            Self::SET => Self::GET_RESP,
            Self(request) => Self(request | Self::RESPONSE),
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match Self(self.0 & !Self::RESPONSE) {
            Self::GET => "Get",
            Self::SET => "Set",
            Self::SEND => "Send",
            Self::TRAP => "Trap",
            Self::REPORT => "Report",
            Self::TRAP_REPRESS => "TrapRepress",
            Self::GET_TABLE => "GetTable",
            Self::GET_TRACE_TABLE => "GetTraceTable",
            Self::GET_MULTI => "GetMulti",
            Self::DELETE => "Delete",
            _ => return write!(f, "method {:#04x}", self.0),
        };
        write!(f, "{name}{}", if self.is_response() { "Resp" } else { "" })
    }
}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Method({self})")
    }
}

/// What a MAD is about. Numbers from 0x10 on mean something else in each class.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttributeId(pub u16);

impl AttributeId {
    /// [`ClassPortInfo`](super::ClassPortInfo).
    pub const CLASS_PORT_INFO: Self = Self(0x0001);
    /// Notice.
    pub const NOTICE: Self = Self(0x0002);
    /// InformInfo: a subscription.
    pub const INFORM_INFO: Self = Self(0x0003);
}

impl fmt::Display for AttributeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

impl fmt::Debug for AttributeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AttributeId({self})")
    }
}

/// The status field of a response (IBTA vol. 1, 13.4.7; spec/sa.md 1.3).
///
/// Several bits may be set at once: test [`is_busy`](Self::is_busy) and [`is_redirect`](Self::is_redirect) first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MadStatus(pub u16);

impl MadStatus {
    /// Success.
    pub const OK: Self = Self(0);
    /// The MAD was discarded: try again later.
    pub const BUSY: Self = Self(0x0001);
    /// The class is served elsewhere: see the redirection in ClassPortInfo.
    pub const REDIRECT: Self = Self(0x0002);
    /// Base or class version not supported.
    pub const BAD_VERSION: Self = Self(0x0004);
    /// Method not supported.
    pub const BAD_METHOD: Self = Self(0x0008);
    /// This method does not go with this attribute.
    pub const BAD_METHOD_ATTRIBUTE: Self = Self(0x000c);
    /// A field of the attribute, or its modifier, is invalid.
    pub const INVALID_FIELD: Self = Self(0x001c);

    /// Whether the MAD was discarded because the receiver is busy.
    pub const fn is_busy(self) -> bool {
        self.0 & Self::BUSY.0 != 0
    }

    /// Whether a redirection is required.
    pub const fn is_redirect(self) -> bool {
        self.0 & Self::REDIRECT.0 != 0
    }

    /// Bits 4..2 in place, to compare with [`BAD_VERSION`](Self::BAD_VERSION) to
    /// [`INVALID_FIELD`](Self::INVALID_FIELD); [`OK`](Self::OK) if no field is invalid.
    #[must_use]
    pub const fn invalid_field(self) -> Self {
        Self(self.0 & Self::INVALID_FIELD.0)
    }

    /// The upper byte, whose meaning depends on the class.
    pub const fn class_specific(self) -> u8 {
        (self.0 >> 8) as u8
    }
}

impl fmt::Display for MadStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)?;
        if self.is_busy() {
            f.write_str(" busy")?;
        }
        if self.is_redirect() {
            f.write_str(" redirect")?;
        }
        f.write_str(match self.invalid_field() {
            Self::BAD_VERSION => " version not supported",
            Self::BAD_METHOD => " method not supported",
            Self::BAD_METHOD_ATTRIBUTE => " method not supported for this attribute",
            Self::INVALID_FIELD => " invalid field",
            _ => "",
        })
    }
}

impl fmt::Debug for MadStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MadStatus({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses() {
        assert_eq!(Method::SET.response(), Method::GET_RESP);
        assert_eq!(Method::GET.response(), Method::GET_RESP);
        assert_eq!(Method::GET_TABLE.response(), Method(0x92));
        assert_eq!(Method(0x92).to_string(), "GetTableResp");
        assert!(!Method::SEND.is_response() && Method(0x86).is_response());
    }

    #[test]
    fn status_bits_are_read_one_by_one() {
        let status = MadStatus(0x0301 | 0x000c);
        assert!(status.is_busy() && !status.is_redirect());
        assert_eq!(status.invalid_field(), MadStatus::BAD_METHOD_ATTRIBUTE);
        assert_eq!(status.class_specific(), 3);
        assert_eq!(status.to_string(), "0x030d busy method not supported for this attribute");
        assert_eq!(MadStatus(0x0300).invalid_field(), MadStatus::OK);
    }
}
