//! Limits of the client.

use std::time::Duration;

use ibwire::TimeCode;

use crate::proto::rmpp::RmppConfig;

/// Limits of a [`Client`](super::Client).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// How many requests may be under way at once, at most; silence and BUSY answers make it fewer for a while. At least 1.
    /// Default 16.
    pub window: u32,
    /// How many requests there may be, under way, resting or waiting for their turn. Default 4,096.
    pub queue: usize,
    /// How long the first copy of a request waits for its answer; each further one twice as long, and each up to a quarter
    /// more or less. Default 2.4 s; see [`first_timeout_of`](Self::first_timeout_of).
    pub first_timeout: Duration,
    /// How often a request is sent before silence is an error. At least 1. Default 5.
    pub tries: u32,
    /// How long a request that was answered BUSY rests at least; twice as long each time. Default 268 ms.
    pub busy_rest: Duration,
    /// The longest rest after BUSY. Default 30 s.
    pub max_busy_rest: Duration,
    /// How many redirections a request follows. Default 3.
    pub redirects: u32,
    /// How many answered transfers are remembered, so that repeated segments get their ACK. Default 64.
    pub finished: usize,
    /// Transfers of more than one MAD.
    pub rmpp: RmppConfig,
}

impl Config {
    /// The least that the first copy of a request waits.
    pub const SHORTEST_TIMEOUT: Duration = Duration::from_millis(500);

    /// How long to wait for an answer where a packet takes `subnet_timeout` each way and the SA `resp_time` to answer
    /// (spec/sa.md 1.5). Both stand in the port's PortInfo.
    pub fn first_timeout_of(subnet_timeout: TimeCode, resp_time: TimeCode) -> Duration {
        (subnet_timeout.duration() * 2 + resp_time.duration()).max(Self::SHORTEST_TIMEOUT)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: 16,
            queue: 4096,
            first_timeout: Self::first_timeout_of(TimeCode::truncate(18), TimeCode::truncate(16)),
            tries: 5,
            busy_rest: TimeCode::truncate(16).duration(),
            max_busy_rest: Duration::from_secs(30),
            redirects: 3,
            finished: 64,
            rmpp: RmppConfig::default(),
        }
    }
}
