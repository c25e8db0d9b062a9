//! The CM engine: sans-IO, one [`Endpoint`] per HCA.
//!
//! It speaks the seven messages of a reliable connection's life (REQ, MRA, REJ, REP, RTU, DREQ, DREP) in the active and
//! the passive role, with their timers, repetitions, rejections and TimeWait, and derives the attributes that the queue
//! pair needs at each step; the two messages (LAP, APR) by which alternate paths are loaded; and the two (SIDR_REQ,
//! SIDR_REP) by which datagram services are found. It never touches a socket, a clock, a runtime or global randomness.
//!
//! # Names in TimeWait
//!
//! Our own ID and queue pair number rest until TimeWait is over. The peer's need not: its TimeWait ends when it says so,
//! mostly not together with ours. The formulas differ with what each side knows (spec/cm.md 3.4: 671 ms on the active side
//! against 537 ms on the passive one, for instance), and a lost DREP keeps one side waiting for a retransmission longer.
//! So a connection in TimeWait is met by the messages that name it, and by repetitions of the very REQ that it was made of
//! (REJ 10), but it lays no claim to its peer's ID and queue pair: a REQ or REP in which the peer uses one of them anew is
//! taken, and the name passes on. That departs from spec/cm.md 4.3 (rows 4 and 5), 4.4 and 4.6, which have a REQ rejected
//! with reason 30 or 10 and a REP dropped until the longer of the two TimeWaits is over. Device drivers hand out a queue
//! pair number again as soon as they may, so that a busy peer would meet that often. In every other state, DreqSent
//! included, such a message means that the peer has restarted: the connection is stale (spec/cm.md 4.8).

mod attrs;
mod class_port_info;
mod command;
mod config;
mod connection;
mod core;
mod discriminator;
mod endpoint;
mod error;
mod event;
mod exchange;
mod ids;
mod invalid;
mod listeners;
mod local;
pub mod message;
mod outbox;
mod path;
mod peers;
mod rate_limit;
mod rejections;
mod sgids;
mod sidr;
mod slot_table;
mod slots;
mod stats;
mod timers;
mod transport;

pub use attrs::{Attrs, ack_timeout};
pub use command::{Accept, Connect, Disconnect, Listen, LoadPath, Overflow, Reject};
pub use config::Config;
pub use connection::{Role, State};
pub use discriminator::Discriminator;
pub use endpoint::{ConnHandle, Endpoint, Info, ListenerId};
pub use error::{CommandError, ConnectError, ListenError, PathError};
#[cfg(feature = "runtime")]
pub(crate) use event::is_consumer;
pub use event::{AlternateRequest, DisconnectCause, Effort, Event, Rejection, Request};
pub use invalid::{Invalid, Limit, Value};
pub use local::{LocalCa, LocalPort};
pub use path::Path;
pub use sidr::{
    SidrAnswer, SidrEvent, SidrHandling, SidrQuery, SidrQueryHandle, SidrRequest, SidrRequestHandle,
    SidrServe, SidrServiceId,
};
pub use stats::Stats;
pub use transport::{RdEnd, Transport, Transports};

#[cfg(test)]
mod tests;
