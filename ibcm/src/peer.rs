//! Who is at the other end.

use std::fmt;

use ibwire::{CommId, Gid, Guid, Lid, Qpn};

use crate::proto::Request;

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

impl Peer {
    /// Who sent a REQ.
    pub(crate) fn of_request(request: &Request) -> Self {
        let (record, req) = (&request.path.record, &request.req);
        Self {
            gid: record.dgid,
            lid: record.dlid,
            ca_guid: req.local_ca_guid,
            qpn: req.local_qpn,
            comm_id: req.local_comm_id,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.gid)
    }
}
