//! What happens without being asked for, as streams.

mod history;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use futures::Stream;
use ibwire::PathRecord;

pub(crate) use history::History;
use history::{Found, Reader};

/// Something that happened to an HCA. When it is told, [`Port`](crate::Port) shows it already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HcaEvent {
    /// A port carries traffic again.
    PortUp {
        /// Its number, from 1.
        port: u8,
    },
    /// A port carries no traffic any more. Its connections stay, and end if their retries do before it is up again.
    PortDown {
        /// Its number, from 1.
        port: u8,
    },
    /// The GIDs of a port have changed: an IP address came or went, or the subnet has another prefix. What peers were told
    /// to dial may be another one now.
    GidChange {
        /// The port's number, from 1.
        port: u8,
    },
    /// The LID of a port has changed: peers that were told the old one do not reach it any more. InfiniBand only.
    LidChange {
        /// The port's number, from 1.
        port: u8,
    },
    /// The P_Key table of a port has changed.
    PkeyChange {
        /// The port's number, from 1.
        port: u8,
    },
    /// A port has another master subnet manager, or that is elsewhere. InfiniBand only.
    SmChange {
        /// The port's number, from 1.
        port: u8,
    },
    /// The subnet manager has forgotten who has joined groups, offers services and wants reports, and asks to be told again.
    /// InfiniBand only.
    ClientReregister {
        /// The port's number, from 1.
        port: u8,
    },
    /// The device was removed, and with it everything that was made on it. The last event.
    Removed,
    /// The stream was not read for long: so many events were missed, of any port. Those that follow are whole again.
    Lagged(u64),
}

impl HcaEvent {
    /// The port that it is about; `None` if it is about all of them.
    pub const fn port(&self) -> Option<u8> {
        match self {
            Self::PortUp { port }
            | Self::PortDown { port }
            | Self::GidChange { port }
            | Self::LidChange { port }
            | Self::PkeyChange { port }
            | Self::SmChange { port }
            | Self::ClientReregister { port } => Some(*port),
            Self::Removed | Self::Lagged(_) => None,
        }
    }
}

/// Something that happened to a connection and does not end it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// The peer's device has our message and its program needs longer for an answer: it sent an MRA. Told once a message.
    PeerBusy {
        /// Until when the answer is waited for before the message is repeated, unless another MRA comes; by the clock of
        /// the runtime.
        until: Instant,
    },
    /// An alternate path is loaded into the queue pair, beside the one that is used. Both sides are told.
    AlternateLoaded,
    /// The connection goes by its alternate path from now on, and none is loaded any more: the old path failed, or the peer
    /// has migrated.
    Migrated {
        /// The local port, from 1.
        port: u8,
        /// The path from there; with that port [`Path::from_record`](crate::Path::from_record) makes a path of it.
        primary: PathRecord,
    },
    /// The peer has migrated to another path than the one that is loaded here, so that nothing of it arrives. Told once a
    /// loaded path.
    PathFailed,
    /// The stream was not read for long: so many events were missed. Those that follow are whole again.
    Lagged(u64),
}

/// The events of an [`Hca`](crate::Hca) or of one of its ports, from the call that made it on.
///
/// The last 64 are kept for all streams together; one that is not read costs nothing and learns by
/// [`HcaEvent::Lagged`] how many it missed. It ends when the HCA is closed, or its device removed, and does not keep the
/// HCA open.
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct HcaEvents {
    reader: Reader<HcaEvent>,
    /// `None`: all of them.
    port: Option<u8>,
}

/// The events of a [`Connection`](crate::Connection), also those of the time when it was being made.
///
/// The last 64 are kept for all streams together; one that is not read costs nothing and learns by
/// [`ConnectionEvent::Lagged`] how many it missed. It ends when the connection does ([`Connection::closed`] tells how),
/// and does not keep it.
///
/// [`Connection::closed`]: crate::Connection::closed
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct ConnectionEvents {
    reader: Reader<ConnectionEvent>,
}

impl HcaEvents {
    pub(crate) fn new(history: &Arc<History<HcaEvent>>, port: Option<u8>) -> Self {
        Self { reader: history.from_now(), port }
    }
}

impl ConnectionEvents {
    pub(crate) fn new(history: &Arc<History<ConnectionEvent>>) -> Self {
        Self { reader: history.from_start() }
    }
}

impl Stream for HcaEvents {
    type Item = HcaEvent;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<HcaEvent>> {
        let Self { reader, port } = self.get_mut();
        loop {
            let event = match ready!(reader.poll_next(cx)) {
                Some(Found::Event(event)) => event,
                Some(Found::Missed(count)) => HcaEvent::Lagged(count),
                None => return Poll::Ready(None),
            };
            if port.is_none() || event.port().is_none() || event.port() == *port {
                return Poll::Ready(Some(event));
            }
        }
    }
}

impl Stream for ConnectionEvents {
    type Item = ConnectionEvent;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ConnectionEvent>> {
        Poll::Ready(match ready!(self.get_mut().reader.poll_next(cx)) {
            Some(Found::Event(event)) => Some(event),
            Some(Found::Missed(count)) => Some(ConnectionEvent::Lagged(count)),
            None => None,
        })
    }
}
