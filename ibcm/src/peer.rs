//! Who is at the other end.

use std::fmt;

use ibwire::{CommId, Gid, Guid, Lid, Qpn};

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// Its GID; on RoCE its IP address.
    pub gid: Gid,
    /// Its LID; [`Lid::NONE`] on RoCE.
    pub lid: Lid,
    /// The node GUID of its CA.
    pub ca_guid: Guid,
    /// Its queue pair.
    pub qpn: Qpn,
    /// Its name of the connection.
    pub comm_id: CommId,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.gid)
    }
}
