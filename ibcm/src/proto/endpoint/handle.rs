//! Names for what an endpoint holds.

use ibwire::{CommId, Guid, Qpn};

use super::super::connection::{Role, State};
use super::super::transport::Transport;

/// A connection of an [`Endpoint`](super::Endpoint). It never means another one, even when its slot is used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnHandle {
    slot: u32,
    generation: u32,
}

impl ConnHandle {
    pub(crate) const fn new(slot: u32, generation: u32) -> Self {
        Self { slot, generation }
    }

    pub(in super::super) const fn slot(self) -> u32 {
        self.slot
    }
}

/// A listener of an [`Endpoint`](super::Endpoint).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId {
    pub(in super::super) slot: u32,
    pub(in super::super) generation: u32,
}

/// What is known of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// Which side we are.
    pub role: Role,
    /// The state.
    pub state: State,
    /// The transport.
    pub transport: Transport,
    /// Our ID.
    pub local_comm_id: CommId,
    /// The peer's ID, [`CommId::NONE`] until it is known.
    pub remote_comm_id: CommId,
    /// Our queue pair, with reliable datagrams our EE context, 0 until it is known.
    pub local_qpn: Qpn,
    /// The peer's queue pair, with XRC its target if it is the passive side, with reliable datagrams its EE context, 0 until
    /// it is known.
    pub remote_qpn: Qpn,
    /// The node GUID of the peer's CA, 0 until it is known.
    pub remote_ca_guid: Guid,
}
