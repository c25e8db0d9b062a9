//! Why bytes could not be decoded.

/// The bytes are not what they should be.
///
/// Only what cannot be represented is an error. Unknown codes are kept (see the open enumerations of this crate).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// There are fewer bytes than the header or message has.
    #[error("{what} needs {need} bytes, {have} are there")]
    Truncated {
        /// The header or message.
        what: &'static str,
        /// Its length in bytes.
        need: usize,
        /// How many bytes there are.
        have: usize,
    },
    /// A field has a value that makes the rest unreadable, such as another protocol version.
    #[error("{what} at byte {offset} is {value:#x}")]
    Invalid {
        /// The header or message and the field, such as `GRH version`.
        what: &'static str,
        /// Where the field starts, in bytes from the start of its header or message.
        offset: usize,
        /// What stands there.
        value: u32,
    },
}
