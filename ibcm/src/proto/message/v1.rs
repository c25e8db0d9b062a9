//! The messages of class version 1 (IBTA 1.0a), to read what old peers and captures say. The engine rejects them.
//!
//! MRA, REJ, RTU, DREQ and DREP lie as in class version 2. The others differ in a few fields (spec/cm.md 2).

use ibwire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use ibwire::{CommId, PrivateData, QKey, Qpn, ServiceId};

use super::number::u24;
use super::{Ari, Attribute, DecodeError, Drep, Dreq, Lap, Mra, PAYLOAD_LEN, Rej, Rep, Req, Rtu, SidrReq};

/// The class version of IBTA 1.0a.
pub const CLASS_VERSION: u8 = 1;

/// A message of class version 1.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Message {
    /// A request for communication.
    Req(Req1),
    /// The answer takes longer.
    Mra(Mra),
    /// A rejection.
    Rej(Rej),
    /// The reply to a REQ.
    Rep(Rep1),
    /// The active side is ready.
    Rtu(Rtu),
    /// A request to disconnect.
    Dreq(Dreq),
    /// The reply to a DREQ.
    Drep(Drep),
    /// A request to load an alternate path.
    Lap(Lap1),
    /// The answer to a LAP.
    Apr(Apr1),
    /// A request for the queue pair of a datagram service; its P_Key field is reserved.
    SidrReq(SidrReq),
    /// The reply to a SIDR_REQ.
    SidrRep(SidrRep1),
}

/// A REQ of class version 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Req1 {
    /// The fields that both versions have. The rate of the paths means nothing, the bits of SRQ and of the extended
    /// transport type are reserved.
    pub req: Req,
    /// The Q_Key of the sender's GSI.
    pub local_cm_qkey: QKey,
    /// Inter-packet delay of the primary path.
    pub primary_packet_delay: u8,
    /// Inter-packet delay of the alternate path.
    pub alternate_packet_delay: u8,
}

/// A REP of class version 1: it does not name the sender's CA, its private data begins there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rep1 {
    /// The fields that both versions have. GUID and private data mean nothing, the SRQ bit is reserved.
    pub rep: Rep,
    /// The application's bytes.
    pub private_data: PrivateData<204>,
}

/// A LAP of class version 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lap1 {
    /// The fields that both versions have.
    pub lap: Lap,
    /// The Q_Key of the sender's GSI.
    pub local_cm_qkey: QKey,
}

/// An APR of class version 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Apr1 {
    /// The sender's ID.
    pub local_comm_id: CommId,
    /// The receiver's ID.
    pub remote_comm_id: CommId,
    /// Whether the path is loaded, or why not: 4 bits.
    pub status: u8,
    /// What goes with the status; how much of it counts is not said.
    pub info: Ari,
    /// The application's bytes.
    pub private_data: PrivateData<151>,
}

/// A SIDR_REP of class version 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SidrRep1 {
    /// That of the request.
    pub request_id: CommId,
    /// The queue pair; it means something with status 0 only.
    pub qpn: Qpn,
    /// Whether there is a queue pair, or why not.
    pub status: u8,
    /// The service ID of the request.
    pub service_id: ServiceId,
    /// The Q_Key of the queue pair; it means something with status 0 only.
    pub qkey: QKey,
    /// A ClassPortInfo with status 4; how much of it counts is not said.
    pub info: Ari,
    /// The application's bytes.
    pub private_data: PrivateData<140>,
}

impl Message {
    /// Reads a MAD of class version 1.
    ///
    /// # Errors
    /// [`DecodeError`] if it is none. Any bytes are read without panic.
    pub fn decode(mad: &[u8; MAD_LEN]) -> Result<(MadHeader, Self), DecodeError> {
        let header = MadHeader::parse(mad).expect("24 of 256 bytes");
        let payload: &[u8; PAYLOAD_LEN] = mad.last_chunk().expect("232 of 256 bytes");
        let MadHeader { class_version: version, method, .. } = header;
        let attribute = Attribute::from(header.attribute);
        if header.base_version != MadHeader::BASE_VERSION {
            return Err(DecodeError::BaseVersion(header.base_version));
        }
        if header.class != MgmtClass::CM {
            return Err(DecodeError::Class(header.class));
        }
        if version != CLASS_VERSION {
            return Err(DecodeError::ClassVersion { version, attribute });
        }
        if method != Method::SEND {
            return Err(DecodeError::Method { method, attribute });
        }
        let message = match attribute {
            Attribute::REQ => Self::Req(Req1::decode(payload)),
            Attribute::MRA => Self::Mra(Mra::decode(payload)),
            Attribute::REJ => Self::Rej(Rej::decode(payload)),
            Attribute::REP => Self::Rep(Rep1 { rep: Rep::decode(payload), private_data: area(payload, 28) }),
            Attribute::RTU => Self::Rtu(Rtu::decode(payload)),
            Attribute::DREQ => Self::Dreq(Dreq::decode(payload)),
            Attribute::DREP => Self::Drep(Drep::decode(payload)),
            Attribute::LAP => {
                Self::Lap(Lap1 { lap: Lap::decode(payload), local_cm_qkey: QKey(word(payload, 8)) })
            }
            Attribute::APR => Self::Apr(Apr1::decode(payload)),
            Attribute::SIDR_REQ => Self::SidrReq(SidrReq::decode(payload)),
            Attribute::SIDR_REP => Self::SidrRep(SidrRep1::decode(payload)),
            known if known.name().is_some() => return Err(DecodeError::Unsupported(known)),
            unknown => return Err(DecodeError::UnknownAttribute(unknown)),
        };
        Ok((header, message))
    }
}

impl Req1 {
    fn decode(payload: &[u8; PAYLOAD_LEN]) -> Self {
        Self {
            req: Req::decode(payload),
            local_cm_qkey: QKey(word(payload, 24)),
            primary_packet_delay: payload[91],
            alternate_packet_delay: payload[135],
        }
    }
}

impl Apr1 {
    fn decode(payload: &[u8; PAYLOAD_LEN]) -> Self {
        Self {
            local_comm_id: CommId(word(payload, 0)),
            remote_comm_id: CommId(word(payload, 4)),
            status: payload[80] >> 4,
            info: info(payload, 8),
            private_data: area(payload, 81),
        }
    }
}

impl SidrRep1 {
    fn decode(payload: &[u8; PAYLOAD_LEN]) -> Self {
        Self {
            request_id: CommId(word(payload, 0)),
            qpn: Qpn::truncate(u24(bytes(payload, 4))),
            status: payload[7],
            service_id: ServiceId(u64::from_be_bytes(bytes(payload, 8))),
            qkey: QKey(word(payload, 16)),
            info: info(payload, 20),
            private_data: area(payload, 92),
        }
    }
}

/// So many bytes from `at` on. All positions are fixed, and within the payload.
fn bytes<const N: usize>(payload: &[u8; PAYLOAD_LEN], at: usize) -> [u8; N] {
    std::array::from_fn(|i| payload[at + i])
}

fn word(payload: &[u8; PAYLOAD_LEN], at: usize) -> u32 {
    u32::from_be_bytes(bytes(payload, at))
}

fn area<const N: usize>(payload: &[u8; PAYLOAD_LEN], at: usize) -> PrivateData<N> {
    PrivateData::from_area(bytes(payload, at))
}

fn info(payload: &[u8; PAYLOAD_LEN], at: usize) -> Ari {
    Ari::from_area(&bytes(payload, at), Ari::MAX_LEN)
}
