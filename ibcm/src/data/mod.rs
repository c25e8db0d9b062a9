//! The data side of a connection: a queue pair, its completion queue and its buffers.

mod queues;
mod recv_pool;
mod setup;
mod spares;

pub(crate) use queues::{CopyBuf, Counters, News, Posting, Queues, Sent};
pub(crate) use recv_pool::RecvPool;
pub(crate) use setup::{Fresh, SetupError, to_rts};
pub(crate) use spares::Spares;
