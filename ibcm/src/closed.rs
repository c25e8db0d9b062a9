//! How a connection ended.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use ibdev::Status;
use ibwire::RejReason;

use crate::data::Fault;
use crate::proto::DisconnectCause;
use crate::slot::End;

/// How a connection ended: a report, not an error.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Closed {
    /// How.
    pub how: How,
    private_data: Cow<'static, [u8]>,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum How {
    /// The peer sent a DREQ.
    ByPeer,
    /// This side sent a DREQ, and the peer confirmed.
    Confirmed,
    /// This side sent DREQs, and the peer confirmed none.
    Unconfirmed {
        /// How many DREQs were sent.
        sent: u8,
        /// How long was waited.
        waited: Duration,
    },
    /// The peer rejected the established connection: it never saw it that way.
    Rejected(RejReason),
    /// The peer uses the connection's queue pair or ID for another connection: it has restarted.
    Stale,
    /// An operation failed.
    Broken(Status),
    /// Nothing was heard from the peer for so long: see [`Connect::keepalive`](crate::Connect::keepalive).
    Silent(Duration),
    /// The device was removed.
    DeviceGone,
    /// The HCA was closed or its runtime ended.
    HcaClosed,
}

/// Of the private data only how long it is.
impl fmt::Debug for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.private_data.len();
        f.debug_struct("Closed").field("how", &self.how).field("private_data", &len).finish()
    }
}

impl Closed {
    pub(crate) fn new(end: &End, fault: Option<Fault>) -> Self {
        if let Some(fault) = fault {
            return Self { how: fault.into(), private_data: Cow::Borrowed(&[]) };
        }
        let (how, private_data): (How, &[u8]) = match end {
            End::Disconnected(closed) => return closed.clone(),
            End::Timeout(effort) => (How::Unconfirmed { sent: effort.sent, waited: effort.waited }, &[]),
            End::Rejected(rejection, _) => (How::Rejected(rejection.reason), &rejection.private_data),
            End::ReplyRefused(reason, _) => (How::Rejected(*reason), &[]),
            End::DeviceRemoved => (How::DeviceGone, &[]),
            End::Withdrawn | End::Closed => (How::HcaClosed, &[]),
        };
        Self { how, private_data: owned_area(private_data) }
    }

    pub(crate) fn disconnected(cause: &DisconnectCause) -> Self {
        let (how, private_data): (How, &[u8]) = match cause {
            DisconnectCause::Peer { private_data } => (How::ByPeer, private_data),
            DisconnectCause::Local { private_data } => (How::Confirmed, private_data),
            DisconnectCause::Timeout(effort) => {
                (How::Unconfirmed { sent: effort.sent, waited: effort.waited }, &[])
            }
            DisconnectCause::Rejected(rejection) => {
                (How::Rejected(rejection.reason), &rejection.private_data)
            }
            DisconnectCause::Stale => (How::Stale, &[]),
        };
        Self { how, private_data: owned_area(private_data) }
    }

    /// What the peer's program sent along, zero-padded: in a DREQ 220 bytes, in a DREP 224, in a REJ 148; else
    /// empty.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }
}

/// Keeps what a peer sent along. Zeros, which are all that comes along mostly, take no memory.
pub(crate) fn owned_area(area: &[u8]) -> Cow<'static, [u8]> {
    static ZEROS: [u8; 256] = [0; 256];
    match ZEROS.get(..area.len()) {
        Some(zeros) if zeros == area => Cow::Borrowed(zeros),
        _ => Cow::Owned(area.to_vec()),
    }
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.how.fmt(f)
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByPeer => f.write_str("disconnected by the peer"),
            Self::Confirmed => f.write_str("disconnected, the peer confirmed"),
            Self::Unconfirmed { sent, waited } => {
                let s = if *sent == 1 { "" } else { "s" };
                write!(f, "disconnected without an answer to {sent} request{s} in {waited:?}")
            }
            Self::Rejected(reason) => write!(f, "rejected by the peer: {reason}"),
            Self::Stale => f.write_str("the peer has restarted"),
            Self::Broken(status) => write!(f, "broken: {status}"),
            Self::Silent(silence) => write!(f, "the peer was silent for {silence:?}"),
            Self::DeviceGone => f.write_str("the device is gone"),
            Self::HcaClosed => f.write_str("the HCA was closed"),
        }
    }
}
