//! Management datagrams: the common header and the attribute that all classes share.

mod class_port_info;
mod code;
mod header;

pub use class_port_info::{ClassPortInfo, Redirect};
pub use code::{AttributeId, MadStatus, Method, MgmtClass};
pub use header::MadHeader;

/// Length of a MAD in bytes.
pub const MAD_LEN: usize = 256;
