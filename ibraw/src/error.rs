//! What can go wrong.

use std::io;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use crate::{EtherType, Group};

/// Why a datagram was not sent or received, or a socket not bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RawError {
    /// The process may not.
    #[error("raw sockets need {needs}")]
    Permission {
        /// The capability that is missing.
        needs: &'static str,
    },
    /// There is no network interface with this name.
    #[error("there is no network interface {0:?}")]
    NoSuchLink(String),
    /// The name is that of an RDMA device. Its raw packet queue pairs are not spoken yet: open the network interface of its port,
    /// which `rdma link` names.
    #[error(
        "{0:?} is an RDMA device: raw packet queue pairs are not supported yet, open the network interface of its port"
    )]
    RawPacketQp(String),
    /// The link is down. Said once each time it goes down; the socket receives again when it is up.
    #[error("the link is down")]
    LinkDown,
    /// The link was removed.
    #[error("the link was removed")]
    LinkGone,
    /// The socket was closed.
    #[error("the socket was closed")]
    Closed,
    /// What this link cannot do.
    #[error("{0} is not supported on this link")]
    Unsupported(&'static str),
    /// The link carries other EtherTypes only.
    #[error("{ether_type} cannot go over this link: {why}")]
    EtherTypeNotOnLink {
        /// What was asked for.
        ether_type: EtherType,
        /// What the link carries.
        why: &'static str,
    },
    /// A socket needs something to receive.
    #[error("the filter is empty: name what the socket receives")]
    NoFilter,
    /// Another socket has claimed a part of the filter, or holds it when this one claims it.
    #[error("{0} is claimed by another socket")]
    FilterConflict(String),
    /// Not the address of a group.
    #[error("{0} is not the address of a group")]
    InvalidGroup(String),
    /// Left without having joined.
    #[error("not a member of {0}")]
    NotMember(Group),
    /// A group that the socket has joined on a subnet has changed, or the SA does not say whether it has, and the socket could not
    /// follow: perhaps nothing of it comes until that has been tried again with success, which is done by itself. Said once for each
    /// time that it was tried in vain, to one who receives.
    #[error("the group {group} is lost for now")]
    GroupLost {
        /// The group.
        group: Group,
        /// Why.
        source: Arc<RawError>,
    },
    /// The subnet's SA, which alone knows the way to a group or an IPv6 address, was silent or busy all the time, or the port has none at
    /// the moment. From joining, and from sending to what was not sent to before or was lost: then nothing was joined or
    /// sent. It passes, so try again; until then the socket receives, and sends where it knows the way.
    #[error("the SA of the subnet does not answer")]
    SaUnavailable {
        /// Why not.
        source: io::Error,
    },
    /// The destination is of another kind of link.
    #[error("no destination on this link: {0}")]
    InvalidDest(&'static str),
    /// A setting is out of range.
    #[error("{field} is {value}, the limit is {limit}")]
    Invalid {
        /// What it is.
        field: &'static str,
        /// What was given.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// A socket is bound to, or sends from, an address that is not its own.
    #[error("{0} is not an address of this port or machine")]
    NotOwnAddress(Ipv6Addr),
    /// What is no filter program: a jump or a load out of bounds, an operation that there is none of, or no return at the end.
    #[error("the kernel does not take the filter program: it is not valid")]
    InvalidFilter,
    /// Longer than a packet of this link.
    #[error("{len} bytes are more than the {max} of a packet on this link")]
    TooLarge {
        /// What was given.
        len: usize,
        /// The most.
        max: usize,
    },
    /// What was received did not fit its buffer.
    #[error("a datagram of {wire} bytes was cut to {buffer}")]
    Truncated {
        /// Its length.
        wire: usize,
        /// What there was room for.
        buffer: usize,
    },
    /// What is to be sent is not what it says it is.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// The link took nothing within the time for that.
    #[error("the link took nothing for {within:?}")]
    NoBuffers {
        /// How long it was tried.
        within: Duration,
    },
    /// The queue pair of the socket could not carry out a send, on a subnet (class B of spec/raw.md 3.4): that one and those behind it
    /// are lost. The next ones go out again; receiving goes on all the time.
    #[error("{lost} datagrams were not sent: the device could not carry one of them out")]
    SendFault {
        /// How many, of this call and of those before it.
        lost: usize,
    },
    /// The queue pair of the socket has failed for good, on a subnet (classes A, C, F and G of spec/raw.md 3.4).
    #[error("the socket's queue pair has failed")]
    QueueFailed,
    /// The system refused.
    #[error("cannot {what}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
}

/// What to do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Go on: the next datagram may come or go.
    Transient,
    /// The socket is of no use any more.
    Fatal,
    /// The call was wrong.
    Caller,
}

impl RawError {
    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::LinkDown
            | Self::Truncated { .. }
            | Self::NoBuffers { .. }
            | Self::GroupLost { .. }
            | Self::SaUnavailable { .. }
            | Self::SendFault { .. } => ErrorKind::Transient,
            Self::LinkGone | Self::Closed | Self::QueueFailed | Self::Io { .. } | Self::Permission { .. } => {
                ErrorKind::Fatal
            }
            _ => ErrorKind::Caller,
        }
    }

    /// Whether the same socket may go on.
    pub fn is_transient(&self) -> bool {
        self.kind() == ErrorKind::Transient
    }

    pub(crate) fn io(what: &'static str, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::PermissionDenied {
            return Self::Permission { needs: "CAP_NET_RAW" };
        }
        Self::Io { what, source }
    }
}

impl From<RawError> for io::Error {
    fn from(error: RawError) -> Self {
        let kind = match &error {
            RawError::Io { source, .. } | RawError::SaUnavailable { source } => {
                return io::Error::new(source.kind(), error);
            }
            RawError::Permission { .. } => io::ErrorKind::PermissionDenied,
            RawError::NoSuchLink(_) | RawError::LinkGone => io::ErrorKind::NotFound,
            RawError::LinkDown => io::ErrorKind::NetworkDown,
            RawError::GroupLost { .. } => io::ErrorKind::NetworkUnreachable,
            RawError::NoBuffers { .. } => io::ErrorKind::TimedOut,
            RawError::SendFault { .. } | RawError::QueueFailed => io::ErrorKind::Other,
            RawError::Closed => io::ErrorKind::NotConnected,
            RawError::Unsupported(_) | RawError::RawPacketQp(_) => io::ErrorKind::Unsupported,
            RawError::FilterConflict(_) => io::ErrorKind::AddrInUse,
            RawError::NotOwnAddress(_) => io::ErrorKind::AddrNotAvailable,
            _ => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, error)
    }
}
