//! What began the answer to a SubnAdmGetBulk: the tables that follow.

use std::fmt;

use ibwire::DecodeError;

/// One of the tables of a bulk answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TableEnd {
    /// Which table, the attribute of its records.
    pub table: u16,
    /// Where it ends, in bytes from the beginning of the SAResponse.
    pub end: u32,
}

/// SAResponse: which tables the bulk data holds and where each ends.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SaResponse {
    /// Current key of the SA.
    pub current_key: u32,
    /// The tables in their order.
    pub tables: Vec<TableEnd>,
}

/// Without the key.
impl fmt::Debug for SaResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SaResponse").field("tables", &self.tables).finish_non_exhaustive()
    }
}

impl SaResponse {
    const HEAD: usize = 8;
    const ENTRY: usize = 6;

    /// Reads it, and returns the bulk data behind it.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if there are fewer bytes than it says, [`DecodeError::Invalid`] if the offset of the bulk
    /// data does not fit a whole number of tables.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        const WHAT: &str = "SAResponse";
        let truncated = |need| DecodeError::Truncated { what: WHAT, need, have: bytes.len() };
        let be32 = |at: usize| Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        let (end, current_key) = be32(0).zip(be32(4)).ok_or_else(|| truncated(Self::HEAD))?;
        let within = end as usize;
        let list = within.checked_sub(Self::HEAD).filter(|list| list % Self::ENTRY == 0);
        if list.is_none() {
            return Err(DecodeError::Invalid { what: "SAResponse EndOfTableRIDs", offset: 0, value: end });
        }
        let (head, data) = bytes.split_at_checked(within).ok_or_else(|| truncated(within))?;
        let tables = head[Self::HEAD..].chunks_exact(Self::ENTRY).map(|entry| TableEnd {
            table: u16::from_be_bytes([entry[0], entry[1]]),
            end: u32::from_be_bytes([entry[2], entry[3], entry[4], entry[5]]),
        });
        Ok((Self { current_key, tables: tables.collect() }, data))
    }

    /// It as it stood on the wire, without the bulk data.
    pub fn to_bytes(&self) -> Vec<u8> {
        let len = Self::HEAD + Self::ENTRY * self.tables.len();
        let mut out = Vec::with_capacity(len);
        out.extend_from_slice(&(len as u32).to_be_bytes());
        out.extend_from_slice(&self.current_key.to_be_bytes());
        for table in &self.tables {
            out.extend_from_slice(&table.table.to_be_bytes());
            out.extend_from_slice(&table.end.to_be_bytes());
        }
        out
    }
}
