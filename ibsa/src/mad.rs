//! The 256 bytes that carry SA records: MAD header, RMPP header, SA header, data (spec/sa.md 1.1).

use std::fmt;

use ibwire::DecodeError;
use ibwire::mad::MadHeader;

use crate::record::{Layout, Record};

/// What a segment is (spec/sa.md 2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RmppType(pub u8);

impl RmppType {
    /// None: the MAD is whole.
    pub const NONE: Self = Self(0);
    /// A segment of data.
    pub const DATA: Self = Self(1);
    /// What has arrived, and how much more may be sent.
    pub const ACK: Self = Self(2);
    /// The sender has no resources for more.
    pub const STOP: Self = Self(3);
    /// The transfer is broken off.
    pub const ABORT: Self = Self(4);
}

/// Why a transfer ends (spec/sa.md 2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RmppStatus(pub u8);

impl RmppStatus {
    /// All is well.
    pub const OK: Self = Self(0);
    /// Resources are exhausted; only in a STOP.
    pub const RESOURCES_EXHAUSTED: Self = Self(1);
    /// The whole took too long.
    pub const TIME_TOO_LONG: Self = Self(118);
    /// The last payload length does not fit the first.
    pub const INCONSISTENT_LENGTH: Self = Self(119);
    /// FIRST and the segment number do not fit.
    pub const INCONSISTENT_SEGMENT: Self = Self(120);
    /// Unknown type.
    pub const BAD_TYPE: Self = Self(121);
    /// The window ends before the segment that is acknowledged.
    pub const WINDOW_TOO_SMALL: Self = Self(122);
    /// A segment is acknowledged that was not sent.
    pub const SEGMENT_TOO_BIG: Self = Self(123);
    /// This type may not have this status.
    pub const ILLEGAL_STATUS: Self = Self(124);
    /// Unknown version.
    pub const UNSUPPORTED_VERSION: Self = Self(125);
    /// Too many retries.
    pub const TOO_MANY_RETRIES: Self = Self(126);
    /// Another reason.
    pub const UNSPECIFIED: Self = Self(127);
}

impl fmt::Display for RmppStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::OK => "ok",
            Self::RESOURCES_EXHAUSTED => "resources exhausted",
            Self::TIME_TOO_LONG => "time too long",
            Self::INCONSISTENT_LENGTH => "inconsistent length",
            Self::INCONSISTENT_SEGMENT => "inconsistent segment number",
            Self::BAD_TYPE => "bad type",
            Self::WINDOW_TOO_SMALL => "window too small",
            Self::SEGMENT_TOO_BIG => "segment number too big",
            Self::ILLEGAL_STATUS => "illegal status",
            Self::UNSUPPORTED_VERSION => "unsupported version",
            Self::TOO_MANY_RETRIES => "too many retries",
            Self::UNSPECIFIED => "unspecified",
            Self(code) => return write!(f, "status {code}"),
        };
        write!(f, "{name} ({})", self.0)
    }
}

/// The RMPP header (spec/sa.md 2.1). All zero in a MAD that is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RmppHeader {
    /// 1 where RMPP is used.
    pub version: u8,
    /// What the segment is.
    pub kind: RmppType,
    /// How long the sender takes for an answer, 5 bits; 31 says nothing.
    pub resp_time: u8,
    /// [`ACTIVE`](Self::ACTIVE), [`FIRST`](Self::FIRST), [`LAST`](Self::LAST); 3 bits.
    pub flags: u8,
    /// Why the transfer ends.
    pub status: RmppStatus,
    /// Segment number of DATA and ACK.
    pub segment: u32,
    /// Payload length of DATA, new last segment of the window of ACK.
    pub length_or_window: u32,
}

impl RmppHeader {
    /// Flag: RMPP is used at all.
    pub const ACTIVE: u8 = 1;
    /// Flag: the first segment.
    pub const FIRST: u8 = 2;
    /// Flag: the last segment.
    pub const LAST: u8 = 4;
    /// The only version.
    pub const VERSION: u8 = 1;

    /// Whether RMPP is used: without the flag the other fields mean nothing.
    pub const fn is_active(&self) -> bool {
        self.flags & Self::ACTIVE != 0
    }
}

/// All headers of an SA MAD.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SaHeader {
    /// Class, method, status, transaction, attribute.
    pub mad: MadHeader,
    /// Its part of a longer message.
    pub rmpp: RmppHeader,
    /// Makes the request a trusted one; 0 does not.
    pub sm_key: u64,
    /// Bytes from one record of a table to the next, in units of 8.
    pub attribute_offset: u16,
    /// Which components of the record count.
    pub component_mask: u64,
}

/// Without the key.
impl fmt::Debug for SaHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mad, rmpp, sm_key: _, attribute_offset, component_mask } = self;
        let mut shown = f.debug_struct("SaHeader");
        shown.field("mad", mad).field("rmpp", rmpp).field("attribute_offset", attribute_offset);
        shown.field("component_mask", component_mask).finish_non_exhaustive()
    }
}

impl SaHeader {
    /// Bytes of all headers: where the data begins.
    pub const LEN: usize = 56;
    /// Bytes of data in one MAD.
    pub const DATA_LEN: usize = 200;
    /// Version of the class.
    pub const CLASS_VERSION: u8 = 2;

    /// The headers of a MAD that is whole.
    pub const fn new(mad: MadHeader) -> Self {
        let rmpp = RmppHeader {
            version: 0,
            kind: RmppType::NONE,
            resp_time: 0,
            flags: 0,
            status: RmppStatus::OK,
            segment: 0,
            length_or_window: 0,
        };
        Self { mad, rmpp, sm_key: 0, attribute_offset: 0, component_mask: 0 }
    }

    /// Reads the headers from the first 56 bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if there are fewer.
    pub fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        let Some(raw) = bytes.first_chunk::<{ Self::LEN }>() else {
            return Err(DecodeError::Truncated { what: "SA header", need: Self::LEN, have: bytes.len() });
        };
        let be32 = |at: usize| u32::from_be_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        let be64 = |at: usize| u64::from(be32(at)) << 32 | u64::from(be32(at + 4));
        Ok(Self {
            mad: MadHeader::parse(raw)?,
            rmpp: RmppHeader {
                version: raw[24],
                kind: RmppType(raw[25]),
                resp_time: raw[26] >> 3,
                flags: raw[26] & 7,
                status: RmppStatus(raw[27]),
                segment: be32(28),
                length_or_window: be32(32),
            },
            sm_key: be64(36),
            attribute_offset: u16::from_be_bytes([raw[44], raw[45]]),
            component_mask: be64(48),
        })
    }

    /// The headers as they stand on the wire.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        self.mad.write_to(&mut out);
        out[24] = self.rmpp.version;
        out[25] = self.rmpp.kind.0;
        out[26] = self.rmpp.resp_time << 3 | self.rmpp.flags & 7;
        out[27] = self.rmpp.status.0;
        out[28..32].copy_from_slice(&self.rmpp.segment.to_be_bytes());
        out[32..36].copy_from_slice(&self.rmpp.length_or_window.to_be_bytes());
        out[36..44].copy_from_slice(&self.sm_key.to_be_bytes());
        out[44..46].copy_from_slice(&self.attribute_offset.to_be_bytes());
        out[48..56].copy_from_slice(&self.component_mask.to_be_bytes());
        out
    }
}

/// A table's data is not a row of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{record} takes {need} bytes, but a table of {len} bytes has records of {stride}")]
#[non_exhaustive]
pub struct MalformedTable {
    /// The record.
    pub record: &'static str,
    /// Bytes of its fields.
    pub need: usize,
    /// Bytes from one record to the next, as the answer says.
    pub stride: usize,
    /// Bytes of the table.
    pub len: usize,
}

/// The records of a table: `data` is what came behind the SA header, all segments together, and `attribute_offset` what that
/// header says. Records longer than what is known here are read as far as they are known; what is left behind the last
/// whole record is ignored.
///
/// # Errors
/// [`MalformedTable`]: the records are shorter than their fields, or their length is 0 although there is data.
pub fn table<R: Record>(data: &[u8], attribute_offset: u16) -> Result<Vec<R>, MalformedTable> {
    let stride = usize::from(attribute_offset) * 8;
    if data.is_empty() {
        return Ok(Vec::new());
    }
    if stride < R::LEN {
        return Err(MalformedTable { record: R::NAME, need: R::LEN, stride, len: data.len() });
    }
    Ok(data.chunks_exact(stride).map(R::read_from).collect())
}

/// The attribute offset of a table of these records: their length in units of 8 bytes, rounded up.
pub const fn attribute_offset<L: Layout>() -> u16 {
    L::LEN.div_ceil(8) as u16
}
