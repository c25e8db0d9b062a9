//! Open codes of the messages.

use std::fmt;

/// Declares the status of an answer, one byte. Codes that are not assigned are kept.
macro_rules! status {
    ($(#[$meta:meta])* $name:ident, $what:literal { $($(#[$doc:meta])* $value:ident = $code:literal, $text:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u8);

        impl $name {
            $($(#[$doc])* pub const $value: Self = Self($code);)*
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.0 {
                    $($code => write!(f, "{} ({})", $text, $code),)*
                    other => write!(f, "{} {other}", $what),
                }
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }
    };
}

pub(super) use status;

/// The transport that a REQ asks for: transport service type and its extension (spec/cm.md 2.13).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TransportService {
    service_type: u8,
    extension: u8,
}

impl TransportService {
    /// Reliable connection.
    pub const RC: Self = Self { service_type: 0, extension: 0 };
    /// Unreliable connection.
    pub const UC: Self = Self { service_type: 1, extension: 0 };
    /// Reliable datagram.
    pub const RD: Self = Self { service_type: 2, extension: 0 };
    /// Extended reliable connection.
    pub const XRC: Self = Self { service_type: 3, extension: 1 };

    /// The service with this type (2 bits) and extension (3 bits), `None` if either does not fit its field.
    pub const fn new(service_type: u8, extension: u8) -> Option<Self> {
        if service_type <= 3 && extension <= 7 { Some(Self { service_type, extension }) } else { None }
    }

    pub(super) const fn truncate(service_type: u8, extension: u8) -> Self {
        Self { service_type: service_type & 3, extension: extension & 7 }
    }

    /// The TransportServiceType field, 0..=3.
    pub const fn service_type(self) -> u8 {
        self.service_type
    }

    /// The ExtendedTransportType field, 0..=7; it means something for type 3 only.
    pub const fn extension(self) -> u8 {
        self.extension
    }

    /// One of the four named services, `None` for a reserved code. The extension of types 0 to 2 is ignored:
    /// those bits were reserved before XRC.
    pub const fn known(self) -> Option<Self> {
        match (self.service_type, self.extension) {
            (0, _) => Some(Self::RC),
            (1, _) => Some(Self::UC),
            (2, _) => Some(Self::RD),
            (3, 1) => Some(Self::XRC),
            _ => None,
        }
    }
}

impl fmt::Display for TransportService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some(Self::RC) => f.write_str("RC"),
            Some(Self::UC) => f.write_str("UC"),
            Some(Self::RD) => f.write_str("RD"),
            Some(_) => f.write_str("XRC"),
            None => write!(f, "transport type {}.{}", self.service_type, self.extension),
        }
    }
}

impl fmt::Debug for TransportService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransportService({self})")
    }
}

/// Which message an MRA delays or a REJ rejects, 2 bits (spec/cm.md 2.12).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(u8);

impl MessageId {
    /// The REQ.
    pub const REQ: Self = Self(0);
    /// The REP.
    pub const REP: Self = Self(1);
    /// In an MRA: the LAP.
    pub const LAP: Self = Self(2);
    /// In a REJ: no message in particular.
    pub const OTHER: Self = Self(2);
    /// Not assigned. An MRA with it is to be dropped, a REJ with it read as [`MessageId::OTHER`].
    pub const RESERVED: Self = Self(3);

    /// The low two bits of `raw`.
    pub const fn truncate(raw: u8) -> Self {
        Self(raw & 3)
    }

    /// The plain code.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            0 => "MessageId(REQ)",
            1 => "MessageId(REP)",
            2 => "MessageId(LAP or other)",
            _ => "MessageId(reserved)",
        })
    }
}

/// What the passive side made of the alternate path in the REQ, 2 bits (spec/cm.md 2.15).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FailoverAccepted(u8);

impl FailoverAccepted {
    /// The alternate path is loaded; also sent, meaning nothing, when the REQ proposed none.
    pub const ACCEPTED: Self = Self(0);
    /// The CA cannot fail over.
    pub const UNSUPPORTED: Self = Self(1);
    /// The CA can fail over, but not to this path.
    pub const REJECTED: Self = Self(2);

    /// The low two bits of `raw`.
    pub const fn truncate(raw: u8) -> Self {
        Self(raw & 3)
    }

    /// The plain code.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for FailoverAccepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            0 => "accepted",
            1 => "unsupported",
            2 => "rejected",
            _ => "reserved",
        })
    }
}

impl fmt::Debug for FailoverAccepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FailoverAccepted({self})")
    }
}
