//! The CM engine: sans-IO, one [`Endpoint`] per HCA.
//!
//! It speaks the seven messages of a reliable connection's life (REQ, MRA, REJ, REP, RTU, DREQ, DREP) in the active and
//! the passive role, with their timers, repetitions, rejections and TimeWait, and derives the attributes that the queue
//! pair needs at each step. It never touches a socket, a clock, a runtime or global randomness.

mod address;
mod attrs;
mod class_port_info;
mod command;
mod config;
mod connection;
mod core;
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
mod rate_limit;
mod rejections;
mod slot_table;
mod stats;
mod timers;

pub use attrs::{Attrs, ack_timeout};
pub use command::{Accept, Connect, Disconnect, Listen, Reject};
pub use config::Config;
pub use connection::{Role, State};
pub use endpoint::{ConnHandle, Endpoint, Info, ListenerId};
pub use error::{CommandError, ConnectError, ListenError};
pub use event::{DisconnectCause, Effort, Event, Rejection, Request};
pub use invalid::{Invalid, Limit, Value};
pub use local::{LocalCa, LocalPort};
pub use path::Path;
pub use stats::Stats;

#[cfg(test)]
mod tests;
