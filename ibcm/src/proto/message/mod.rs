//! The messages of the CM class as values: [`Message::decode`] and [`Message::encode`] between a 256-byte MAD and
//! one struct per message.
//!
//! Reserved fields are ignored on receive and zero on send; private data fills its area to the end. Nothing here
//! decides anything: which message may come when is the engine's affair.

mod ap_status;
mod apr;
mod ari;
mod attribute;
mod code;
mod drep;
mod dreq;
mod ip_header;
mod lap;
mod mra;
mod number;
mod path;
mod rej;
mod rep;
mod req;
mod rtu;
mod sidr_rep;
mod sidr_req;
mod sidr_status;
pub mod v1;

pub use ap_status::{ApInfo, ApStatus};
pub use apr::Apr;
pub use ari::{Ari, RejectInfo};
pub use attribute::Attribute;
pub use code::{FailoverAccepted, MessageId, TransportService};
pub use drep::Drep;
pub use dreq::Dreq;
pub use ip_header::{IpHeader, IpHeaderError};
pub use lap::Lap;
pub use mra::Mra;
pub use number::{CmRetries, Eecn, RetryCount, VendorId};
pub use path::PathBlock;
pub use rej::Rej;
pub use rep::Rep;
pub use req::Req;
pub use rtu::Rtu;
pub use sidr_rep::SidrRep;
pub use sidr_req::SidrReq;
pub use sidr_status::{SidrInfo, SidrStatus};

use ibwire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use ibwire::{CommId, ServiceId, TransactionId};

/// The class version of IBTA 1.1 and later.
pub const CLASS_VERSION: u8 = 2;

/// What a MAD has behind its header, bytes.
const PAYLOAD_LEN: usize = MAD_LEN - MadHeader::LEN;

/// A CM message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Message {
    /// A request for communication.
    Req(Req),
    /// The answer takes longer.
    Mra(Mra),
    /// A rejection.
    Rej(Rej),
    /// The reply to a REQ.
    Rep(Rep),
    /// The active side is ready.
    Rtu(Rtu),
    /// A request to disconnect.
    Dreq(Dreq),
    /// The reply to a DREQ.
    Drep(Drep),
    /// A request to load an alternate path.
    Lap(Lap),
    /// The answer to a LAP.
    Apr(Apr),
    /// A request for the queue pair of a datagram service.
    SidrReq(SidrReq),
    /// The reply to a SIDR_REQ.
    SidrRep(SidrRep),
}

/// Why a MAD is no message of [`Message`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The base version is not 1.
    #[error("MAD base version {0}")]
    BaseVersion(u8),
    /// The management class is not that of communication management.
    #[error("management class {0}")]
    Class(MgmtClass),
    /// The class version is not 2.
    #[error("CM class version {version} in {attribute}")]
    ClassVersion {
        /// The version that came.
        version: u8,
        /// The message that came.
        attribute: Attribute,
    },
    /// A REQ of another class version. Header and ID lie where they always did, so that it can be rejected.
    #[error("CM class version {version} in a REQ")]
    ReqClassVersion {
        /// The version that came.
        version: u8,
        /// The header of the REQ.
        header: MadHeader,
        /// The sender's ID.
        local_comm_id: CommId,
    },
    /// A SIDR_REQ of another class version. Header, ID and service lie where they always did, so that it can be answered.
    #[error("CM class version {version} in a SIDR_REQ")]
    SidrReqClassVersion {
        /// The version that came.
        version: u8,
        /// The header of the SIDR_REQ.
        header: MadHeader,
        /// The sender's ID.
        request_id: CommId,
        /// The service that is asked for.
        service_id: ServiceId,
    },
    /// The method is not Send.
    #[error("method {method} with {attribute}")]
    Method {
        /// The method that came.
        method: Method,
        /// The attribute that came.
        attribute: Attribute,
    },
    /// A CM message that this SDK does not speak.
    #[error("{0} is not supported")]
    Unsupported(Attribute),
    /// The attribute is no CM message.
    #[error("unknown attribute {0}")]
    UnknownAttribute(Attribute),
}

impl Message {
    /// Reads a MAD.
    ///
    /// # Errors
    /// [`DecodeError`] if it is no CM message, or none that this SDK speaks. Any bytes are read without panic.
    pub fn decode(mad: &[u8; MAD_LEN]) -> Result<(MadHeader, Self), DecodeError> {
        let header = MadHeader::parse(mad).expect("24 of 256 bytes");
        let payload = mad.last_chunk().expect("232 of 256 bytes");
        let MadHeader { class_version: version, method, .. } = header;
        let attribute = Attribute::from(header.attribute);
        if header.base_version != MadHeader::BASE_VERSION {
            return Err(DecodeError::BaseVersion(header.base_version));
        }
        if header.class != MgmtClass::CM {
            return Err(DecodeError::Class(header.class));
        }
        if version != CLASS_VERSION {
            return Err(match attribute {
                Attribute::REQ if method == Method::SEND => {
                    let local_comm_id = Req::decode(payload).local_comm_id;
                    DecodeError::ReqClassVersion { version, header, local_comm_id }
                }
                Attribute::SIDR_REQ if method == Method::SEND => {
                    let SidrReq { request_id, service_id, .. } = SidrReq::decode(payload);
                    DecodeError::SidrReqClassVersion { version, header, request_id, service_id }
                }
                _ => DecodeError::ClassVersion { version, attribute },
            });
        }
        if method != Method::SEND {
            return Err(DecodeError::Method { method, attribute });
        }
        let message = match attribute {
            Attribute::REQ => Self::Req(Req::decode(payload)),
            Attribute::MRA => Self::Mra(Mra::decode(payload)),
            Attribute::REJ => Self::Rej(Rej::decode(payload)),
            Attribute::REP => Self::Rep(Rep::decode(payload)),
            Attribute::RTU => Self::Rtu(Rtu::decode(payload)),
            Attribute::DREQ => Self::Dreq(Dreq::decode(payload)),
            Attribute::DREP => Self::Drep(Drep::decode(payload)),
            Attribute::LAP => Self::Lap(Lap::decode(payload)),
            Attribute::APR => Self::Apr(Apr::decode(payload)),
            Attribute::SIDR_REQ => Self::SidrReq(SidrReq::decode(payload)),
            Attribute::SIDR_REP => Self::SidrRep(SidrRep::decode(payload)),
            known if known.name().is_some() => return Err(DecodeError::Unsupported(known)),
            unknown => return Err(DecodeError::UnknownAttribute(unknown)),
        };
        Ok((header, message))
    }

    /// Writes the whole MAD: status 0, attribute modifier 0.
    pub fn encode(&self, tid: TransactionId, mad: &mut [u8; MAD_LEN]) {
        MadHeader::new(MgmtClass::CM, CLASS_VERSION, Method::SEND, self.attribute().into(), tid)
            .write_to(mad);
        let payload = mad.last_chunk_mut().expect("232 of 256 bytes");
        match self {
            Self::Req(message) => message.encode(payload),
            Self::Mra(message) => message.encode(payload),
            Self::Rej(message) => message.encode(payload),
            Self::Rep(message) => message.encode(payload),
            Self::Rtu(message) => message.encode(payload),
            Self::Dreq(message) => message.encode(payload),
            Self::Drep(message) => message.encode(payload),
            Self::Lap(message) => message.encode(payload),
            Self::Apr(message) => message.encode(payload),
            Self::SidrReq(message) => message.encode(payload),
            Self::SidrRep(message) => message.encode(payload),
        }
    }

    /// The attribute ID of this message.
    pub const fn attribute(&self) -> Attribute {
        match self {
            Self::Req(_) => Attribute::REQ,
            Self::Mra(_) => Attribute::MRA,
            Self::Rej(_) => Attribute::REJ,
            Self::Rep(_) => Attribute::REP,
            Self::Rtu(_) => Attribute::RTU,
            Self::Dreq(_) => Attribute::DREQ,
            Self::Drep(_) => Attribute::DREP,
            Self::Lap(_) => Attribute::LAP,
            Self::Apr(_) => Attribute::APR,
            Self::SidrReq(_) => Attribute::SIDR_REQ,
            Self::SidrRep(_) => Attribute::SIDR_REP,
        }
    }

    /// The sender's ID; a SIDR_REP has none.
    pub const fn local_comm_id(&self) -> CommId {
        match self {
            Self::Req(message) => message.local_comm_id,
            Self::Mra(message) => message.local_comm_id,
            Self::Rej(message) => message.local_comm_id,
            Self::Rep(message) => message.local_comm_id,
            Self::Rtu(message) => message.local_comm_id,
            Self::Dreq(message) => message.local_comm_id,
            Self::Drep(message) => message.local_comm_id,
            Self::Lap(message) => message.local_comm_id,
            Self::Apr(message) => message.local_comm_id,
            Self::SidrReq(message) => message.request_id,
            Self::SidrRep(_) => CommId::NONE,
        }
    }

    /// The receiver's ID; a REQ and a SIDR_REQ have none.
    pub const fn remote_comm_id(&self) -> CommId {
        match self {
            Self::Req(_) | Self::SidrReq(_) => CommId::NONE,
            Self::Mra(message) => message.remote_comm_id,
            Self::Rej(message) => message.remote_comm_id,
            Self::Rep(message) => message.remote_comm_id,
            Self::Rtu(message) => message.remote_comm_id,
            Self::Dreq(message) => message.remote_comm_id,
            Self::Drep(message) => message.remote_comm_id,
            Self::Lap(message) => message.remote_comm_id,
            Self::Apr(message) => message.remote_comm_id,
            Self::SidrRep(message) => message.request_id,
        }
    }
}

macro_rules! from {
    ($($message:ident),*) => {
        $(impl From<$message> for Message {
            fn from(message: $message) -> Self {
                Self::$message(message)
            }
        })*
    };
}

from!(Req, Mra, Rej, Rep, Rtu, Dreq, Drep, Lap, Apr, SidrReq, SidrRep);

#[cfg(test)]
mod tests;
