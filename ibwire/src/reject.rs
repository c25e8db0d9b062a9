//! Why a CM request, reply or connection was rejected.

use std::fmt;

/// The reason field of a REJ (IBTA vol. 1, 12.6.7.2; spec/cm.md 2.14). Unknown codes are kept as they came.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RejReason(pub u16);

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        impl RejReason {
            $($(#[$doc])* pub const $name: Self = Self($code);)*

            /// What the code stands for, `None` if this SDK does not know it.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

reasons! {
    /// The passive side has no QP left.
    NO_QP = 1, "no QP available";
    /// The passive side has no end-to-end context left.
    NO_EEC = 2, "no EE context available";
    /// The peer is out of memory or of another resource.
    NO_RESOURCES = 3, "no resources available";
    /// The peer gave up waiting, or cancelled.
    TIMEOUT = 4, "timeout";
    /// The peer does not support the request.
    UNSUPPORTED_REQUEST = 5, "unsupported request";
    /// No connection has this communication ID.
    INVALID_COMM_ID = 6, "invalid communication ID";
    /// IDs and QPN do not belong to one connection.
    INVALID_COMM_INSTANCE = 7, "invalid communication instance";
    /// Nobody listens on the service ID.
    INVALID_SERVICE_ID = 8, "invalid service ID";
    /// The listener does not offer the transport service type.
    INVALID_TRANSPORT = 9, "invalid transport service type";
    /// The QPN belongs to a connection that the peer still holds.
    STALE_CONNECTION = 10, "stale connection";
    /// The RD channel does not exist.
    RDC_NOT_EXIST = 11, "RDC does not exist";
    /// The primary GID is not one of the peer's port; the extra information may name one that is.
    PRIMARY_GID = 12, "primary remote port GID rejected";
    /// The primary LID is not one of the peer's port; the extra information may name one that is.
    PRIMARY_LID = 13, "primary remote port LID rejected";
    /// The primary path's service level is unusable.
    PRIMARY_SL = 14, "invalid primary SL";
    /// The primary path's traffic class is unusable.
    PRIMARY_TRAFFIC_CLASS = 15, "invalid primary traffic class";
    /// The primary path's hop limit is unusable.
    PRIMARY_HOP_LIMIT = 16, "invalid primary hop limit";
    /// The primary path's packet rate is unusable.
    PRIMARY_PACKET_RATE = 17, "invalid primary packet rate";
    /// The alternate GID is not one of the peer's port.
    ALTERNATE_GID = 18, "alternate remote port GID rejected";
    /// The alternate LID is not one of the peer's port.
    ALTERNATE_LID = 19, "alternate remote port LID rejected";
    /// The alternate path's service level is unusable.
    ALTERNATE_SL = 20, "invalid alternate SL";
    /// The alternate path's traffic class is unusable.
    ALTERNATE_TRAFFIC_CLASS = 21, "invalid alternate traffic class";
    /// The alternate path's hop limit is unusable.
    ALTERNATE_HOP_LIMIT = 22, "invalid alternate hop limit";
    /// The alternate path's packet rate is unusable.
    ALTERNATE_PACKET_RATE = 23, "invalid alternate packet rate";
    /// Port and CM are elsewhere; the extra information is a ClassPortInfo.
    PORT_AND_CM_REDIRECT = 24, "port and CM redirection";
    /// The port is elsewhere; the extra information is the GID to use.
    PORT_REDIRECT = 25, "port redirection";
    /// The path MTU is too large; the extra information may name the largest.
    INVALID_PATH_MTU = 26, "invalid path MTU";
    /// The reply offers too few responder resources. As the answer to a REQ: Intel's numbering of [`RejReason::CONSUMER`].
    INSUFFICIENT_RESPONDER_RESOURCES = 27, "insufficient responder resources";
    /// The application refused.
    CONSUMER = 28, "consumer reject";
    /// The RNR retry count is unusable.
    RNR_RETRY_COUNT = 29, "RNR retry count rejected";
    /// The communication ID belongs to another connection of the same peer.
    DUPLICATE_COMM_ID = 30, "duplicate local communication ID";
    /// The CM class version is not supported; the extra information is the highest that is.
    UNSUPPORTED_CLASS_VERSION = 31, "unsupported class version";
    /// The primary path's flow label is unusable.
    PRIMARY_FLOW_LABEL = 32, "invalid primary flow label";
    /// The alternate path's flow label is unusable.
    ALTERNATE_FLOW_LABEL = 33, "invalid alternate flow label";
    /// The vendor option (ECE) is refused.
    VENDOR_OPTION = 35, "vendor option not supported";
}

impl fmt::Display for RejReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "reason {}", self.0),
        }
    }
}

impl fmt::Debug for RejReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RejReason({self})")
    }
}
