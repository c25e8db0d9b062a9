//! The data side of a connection: a queue pair, its completion queue and its buffers.

mod detached;
mod fault;
mod queues;
mod receives;
mod recv_pool;
mod request;
mod setup;

pub(crate) use fault::Fault;
pub(crate) use queues::{CopyBuf, Counters, Done, News, Place, Posting, Queues, Shelf};
pub(crate) use receives::RECV_ID;
pub(crate) use request::{Kind, Limits, Request};
pub(crate) use setup::{Fresh, SetupError, to_rts};
