//! Each CM message as a tracing event.

use ibdev::MAD_LEN;
use ibwire::{Gid, Lid};
use tracing::Level;

use crate::proto::message::Message;

/// The target of the events: one per CM message, at level TRACE.
///
/// Their fields: `hca`, the device's name; `direction`, `out` or `in`; `mad`, the message's name; `peer`, the
/// address it goes to or comes from; `local` and `remote`, the communication IDs in the message, `local` being
/// the sender's. What is no message of the CM class has the reason as `error` instead of the last three.
pub const MAD_TARGET: &str = "ibcm::mad";

/// Which way a message passed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Direction {
    In,
    Out,
}

impl Direction {
    const fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
        }
    }
}

/// Emits the event for one MAD. Decodes only if someone listens.
pub(crate) fn mad(hca: &str, direction: Direction, peer: Option<Gid>, lid: Lid, mad: &[u8; MAD_LEN]) {
    if !tracing::enabled!(target: MAD_TARGET, Level::TRACE) {
        return;
    }
    let direction = direction.name();
    let peer = peer.map_or_else(|| format!("LID {}", lid.0), |gid| gid.to_string());
    match Message::decode(mad) {
        Ok((_, message)) => tracing::trace!(
            target: MAD_TARGET,
            hca,
            direction,
            mad = %message.attribute(),
            %peer,
            local = %message.local_comm_id(),
            remote = %message.remote_comm_id(),
        ),
        Err(error) => tracing::trace!(target: MAD_TARGET, hca, direction, %peer, %error),
    }
}
