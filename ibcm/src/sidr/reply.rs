//! What was found.

use std::time::Duration;

use ibwire::{PrivateData, QKey, Qpn};

use crate::path::Path;
use crate::proto::Effort;
use crate::proto::message::SidrRep;
use crate::ud::Peer;

/// The answer to a query: a datagram socket.
#[derive(Debug, Clone)]
pub struct Reply {
    path: Path,
    rep: Box<SidrRep>,
    effort: Effort,
}

impl Reply {
    pub(super) const fn new(path: Path, rep: Box<SidrRep>, effort: Effort) -> Self {
        Self { path, rep, effort }
    }

    /// The socket, to send to.
    pub fn peer(&self) -> Peer {
        Peer::new(&self.path, self.rep.qpn, self.rep.qkey)
    }

    /// What the peer's program sent along, zero-padded.
    pub fn private_data(&self) -> &PrivateData<136> {
        &self.rep.private_data
    }

    /// The path to the socket: that of the query, or where that was redirected to.
    pub const fn path(&self) -> &Path {
        &self.path
    }

    /// The socket's queue pair.
    pub const fn qpn(&self) -> Qpn {
        self.rep.qpn
    }

    /// The socket's Q_Key.
    pub const fn qkey(&self) -> QKey {
        self.rep.qkey
    }

    /// How many requests it took.
    pub const fn sent(&self) -> u8 {
        self.effort.sent
    }

    /// From the first request to the answer.
    pub const fn waited(&self) -> Duration {
        self.effort.waited
    }
}
