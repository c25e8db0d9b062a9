//! What came of everything, for the judgement.

use std::time::Duration;

use ibcm::{AcceptError, Closed, ConnectError, How, OpCause, Qpn, QueryError, RecvError, Role};

/// What came of everything.
#[derive(Debug, Default)]
pub struct Records {
    pub attempts: Vec<Attempt>,
    pub answers: Vec<Answered>,
    pub sides: Vec<Side>,
    pub outages: Vec<Outage>,
}

/// What came of a call on the side that connects.
#[derive(Debug)]
pub struct Attempt {
    pub call: usize,
    pub came_to: Attempted,
}

#[derive(Debug)]
pub enum Attempted {
    /// There is a [`Side`] of it.
    Connected,
    Failed(ConnectError),
    GaveUp,
    NoPath(QueryError),
}

/// What came of one request. A call that was ignored makes another one.
#[derive(Debug)]
pub struct Answered {
    pub call: usize,
    /// The queue pair of the side that connects.
    pub peer_qpn: Qpn,
    pub came_to: Answer,
}

#[derive(Debug)]
pub enum Answer {
    /// There is a [`Side`] of it.
    Connected,
    Failed(AcceptError),
    GaveUp,
    Ignored,
    Rejected,
    Dropped,
}

/// A connection as one of its two programs has seen it.
#[derive(Debug)]
pub struct Side {
    pub call: usize,
    pub host: usize,
    pub role: Role,
    /// `None` if it was over already.
    pub qpn: Option<Qpn>,
    pub peer_qpn: Qpn,
    pub since: Duration,
    /// What became of the messages, by their numbers.
    pub sent: Vec<Fate>,
    /// The numbers of the messages that came, in their order.
    pub received: Vec<usize>,
    /// How receiving ended, if the program received until the end.
    pub ended: Option<Result<(), RecvError>>,
    /// What the program did to end it.
    pub left: Left,
    /// How it ended, if the program waited for that.
    pub closed: Option<Ended>,
}

/// How a connection ended.
#[derive(Debug)]
pub struct Ended {
    pub at: Duration,
    pub how: How,
    /// The private data, without the zeros behind it.
    pub data: Vec<u8>,
}

impl Ended {
    pub fn new(at: Duration, closed: &Closed) -> Self {
        let data = closed.private_data();
        let len = data.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        Self { at, how: closed.how, data: data[..len].to_vec() }
    }
}

/// What became of a message.
#[derive(Debug, Clone)]
pub enum Fate {
    /// The peer's device has it.
    Done,
    Failed(OpCause),
    /// Nobody waited.
    Unknown,
}

/// What a program did to end a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Nothing.
    No,
    Disconnected,
    Dropped,
}

/// A host whose HCA was closed or removed.
#[derive(Debug)]
pub struct Outage {
    pub host: usize,
    /// Or closed.
    pub removed: bool,
    pub began: Duration,
    /// When closing was over.
    pub over: Duration,
}
