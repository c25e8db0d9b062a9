//! The headers of an SA MAD of class version 1.

use std::fmt;

use ibwire::DecodeError;
use ibwire::mad::MadHeader;

/// What a Set does to the record (spec/sa.md 3.30.1). The numbers are not known from any wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct EditModifier(pub u8);

/// MAD header and SA header of class version 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Header {
    /// Class, method, status, transaction, attribute. The attribute modifier is the record's RID, or all ones for a query
    /// by component mask.
    pub mad: MadHeader,
    /// Key of the SA.
    pub sa_key: u64,
    /// Makes the request a trusted one.
    pub sm_key: u64,
    /// Number of the segment.
    pub segment_number: u32,
    /// Bytes of the whole message.
    pub payload_length: u32,
    /// Which segment this is.
    pub fragment_flag: u8,
    /// What a Set does.
    pub edit_modifier: EditModifier,
    /// How many segments may be under way.
    pub window: u16,
    /// The last record of a table that is wanted.
    pub end_rid: u32,
    /// Which components of the record count.
    pub component_mask: u64,
}

/// Without the keys.
impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Header");
        shown.field("mad", &self.mad).field("segment_number", &self.segment_number);
        shown.field("payload_length", &self.payload_length).field("fragment_flag", &self.fragment_flag);
        shown.field("edit_modifier", &self.edit_modifier).field("window", &self.window);
        shown.field("end_rid", &self.end_rid).field("component_mask", &self.component_mask);
        shown.finish_non_exhaustive()
    }
}

impl Header {
    /// Bytes of all headers: where the data begins.
    pub const LEN: usize = 64;
    /// Bytes of data in one MAD.
    pub const DATA_LEN: usize = 192;
    /// Version of the class.
    pub const CLASS_VERSION: u8 = 1;
    /// The attribute modifier of a query by component mask.
    pub const TEMPLATE: u32 = u32::MAX;

    /// Reads the headers from the first 64 bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if there are fewer.
    pub fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        let Some(raw) = bytes.first_chunk::<{ Self::LEN }>() else {
            return Err(DecodeError::Truncated {
                what: "SA header of class version 1",
                need: Self::LEN,
                have: bytes.len(),
            });
        };
        let be32 = |at: usize| u32::from_be_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        let be64 = |at: usize| u64::from(be32(at)) << 32 | u64::from(be32(at + 4));
        Ok(Self {
            mad: MadHeader::parse(raw)?,
            sa_key: be64(24),
            sm_key: be64(32),
            segment_number: be32(40),
            payload_length: be32(44),
            fragment_flag: raw[48],
            edit_modifier: EditModifier(raw[49]),
            window: u16::from_be_bytes([raw[50], raw[51]]),
            end_rid: be32(52),
            component_mask: be64(56),
        })
    }

    /// The headers as they stood on the wire.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        self.mad.write_to(&mut out);
        out[24..32].copy_from_slice(&self.sa_key.to_be_bytes());
        out[32..40].copy_from_slice(&self.sm_key.to_be_bytes());
        out[40..44].copy_from_slice(&self.segment_number.to_be_bytes());
        out[44..48].copy_from_slice(&self.payload_length.to_be_bytes());
        out[48] = self.fragment_flag;
        out[49] = self.edit_modifier.0;
        out[50..52].copy_from_slice(&self.window.to_be_bytes());
        out[52..56].copy_from_slice(&self.end_rid.to_be_bytes());
        out[56..64].copy_from_slice(&self.component_mask.to_be_bytes());
        out
    }
}
