//! Reliable transfers of more than one MAD (IBTA vol. 1, 13.6; spec/sa.md section 2), sans-IO.
//!
//! A [`Sender`] takes a whole message and yields segments; a [`Receiver`] takes segments and yields the message. Both yield the
//! ACK, STOP and ABORT MADs that go back. Which transfer a MAD belongs to is for their owner to know: the peer, the
//! transaction ID, the class and the direction.

mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use std::time::Duration;

use ibwire::mad::Method;

use crate::mad::{RmppHeader, RmppStatus, RmppType, SaHeader};

pub use receiver::{Received, Receiver};
pub use sender::{Sender, Sent};

/// A MAD on the wire.
pub type Mad = [u8; ibwire::mad::MAD_LEN];

/// Bytes of the SA header that count as payload in every segment.
const HEADER_IN_PAYLOAD: usize = 20;

/// Limits of transfers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RmppConfig {
    /// How many segments a peer may send before it waits for an ACK. At least 1; the device needs as many receives. Default 64.
    pub window: u32,
    /// After so long without progress a sender repeats what is not acknowledged. At least
    /// [`SHORTEST_RESEND`](Self::SHORTEST_RESEND). Default 2 s.
    pub resend: Duration,
    /// How often it does so without progress. Default 7.
    pub retries: u32,
    /// How long a message may take to arrive. Default 40 s.
    pub total: Duration,
    /// How long a finished transfer answers repeated segments. Default 10 s.
    pub linger: Duration,
    /// The longest message that is taken, bytes. Default 64 MiB.
    pub max_len: usize,
}

impl RmppConfig {
    /// The least that a sender waits for an ACK.
    pub const SHORTEST_RESEND: Duration = Duration::from_millis(1);
}

impl Default for RmppConfig {
    fn default() -> Self {
        Self {
            window: 64,
            resend: Duration::from_secs(2),
            retries: 7,
            total: Duration::from_secs(40),
            linger: Duration::from_secs(10),
            max_len: 64 << 20,
        }
    }
}

/// Why a transfer failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RmppError {
    /// The peer broke it off.
    #[error("the peer broke the transfer off: {0}")]
    Aborted(RmppStatus),
    /// The peer has no resources for it.
    #[error("the peer has no resources for the transfer")]
    Stopped,
    /// The peer broke a rule, and was told so.
    #[error("the peer broke a rule of transfers, it was told {0}")]
    Broken(RmppStatus),
    /// Segments were not acknowledged.
    #[error("segment {segment} was not acknowledged")]
    Unacknowledged {
        /// The first that was not.
        segment: u32,
    },
    /// It did not arrive in time.
    #[error("{segments} segments arrived in time, but not the whole message")]
    TimedOut {
        /// How many arrived without a gap.
        segments: u32,
    },
    /// It is longer than the limit.
    #[error("the message is longer than {limit} bytes")]
    TooLong {
        /// [`RmppConfig::max_len`].
        limit: usize,
    },
}

/// A MAD that goes back for `about`: its headers with the response bit flipped and nothing else.
fn control(about: &SaHeader, kind: RmppType, status: RmppStatus, segment: u32, window: u32) -> Mad {
    let mut header = *about;
    header.mad.method = Method(header.mad.method.0 ^ 0x80);
    header.rmpp = RmppHeader {
        version: RmppHeader::VERSION,
        kind,
        resp_time: about.rmpp.resp_time,
        flags: RmppHeader::ACTIVE,
        status,
        segment,
        length_or_window: window,
    };
    whole(&header, &[])
}

/// The ABORT that answers `about`.
pub(crate) fn abort(about: &SaHeader, status: RmppStatus) -> Mad {
    control(about, RmppType::ABORT, status, 0, 0)
}

/// The ACK that turns the direction of a dual-sided transfer: "send your answer, window 1". Unlike others it keeps the
/// requester's method (spec/sa.md 2.5).
pub fn turn_around(request: &SaHeader) -> Mad {
    let mut header = *request;
    header.mad.method = Method(request.mad.method.0 ^ 0x80);
    control(&header, RmppType::ACK, RmppStatus::OK, 0, 1)
}

/// Headers and at most 200 bytes of data as a MAD.
pub(crate) fn whole(header: &SaHeader, data: &[u8]) -> Mad {
    let mut mad = [0; ibwire::mad::MAD_LEN];
    mad[..SaHeader::LEN].copy_from_slice(&header.to_bytes());
    mad[SaHeader::LEN..SaHeader::LEN + data.len()].copy_from_slice(data);
    mad
}

/// Whether the peer may end a transfer with this status.
const fn ends(status: RmppStatus) -> bool {
    status.0 >= RmppStatus::TIME_TOO_LONG.0 && status.0 <= RmppStatus::UNSPECIFIED.0
}
