//! What an endpoint may be told about its own behaviour.

use std::time::Duration;

use ibwire::{RnrTimer, TimeCode};

/// Bounds and habits of an [`Endpoint`](super::Endpoint). Every time that a peer supplies is clamped to these.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The service timeout in the MRAs that are sent automatically while a request or a reply is undecided.
    /// Default 20 (4.3 s).
    pub mra_service_timeout: TimeCode,
    /// The longest service timeout that a listener's [`turnaround`](super::Listen::turnaround) brings about. Default 23
    /// (34 s).
    pub max_mra_service_timeout: TimeCode,
    /// The longest wait that one MRA of a peer can ask for. Default 60 s.
    pub max_mra_wait: Duration,
    /// The shortest time between two transmissions of a REP or DREQ, which the peer chooses in its REQ; also the
    /// least that a deadline leaves. Default 1 ms.
    pub min_response_timeout: Duration,
    /// The longest. Default 60 s.
    pub max_response_timeout: Duration,
    /// How long a DREQ is tried at most, from its first transmission on, if the caller sets no deadline: period and
    /// number of retries are the peer's choice on the passive side. Default 90 s, which the retries of Linux and those of
    /// [`Connect`](super::Connect)'s defaults do not reach.
    pub max_disconnect_time: Duration,
    /// The longest ack timeout that a REQ can put into a QP; also what stands in for its 0, "for ever".
    /// Default 22 (17 s).
    pub max_ack_timeout: TimeCode,
    /// The shortest TimeWait. Default 10 ms.
    pub min_time_wait: Duration,
    /// The longest TimeWait. Default 60 s.
    pub max_time_wait: Duration,
    /// The RNR NAK timer of our QPs: how long a peer that finds no receive posted waits. Default 12 (0.64 ms).
    pub min_rnr_timer: RnrTimer,
    /// How many rejections are remembered, so that a repeated REQ or REP meets the same REJ; the oldest go first.
    /// Default 1024.
    pub max_rejections: usize,
    /// How long a rejection is remembered at most. Default 60 s.
    pub max_rejection_linger: Duration,
    /// How many answers to SIDR requests that were reported are remembered, so that a repeated request meets the same answer;
    /// the oldest go first. Default 1024.
    pub max_sidr_answers: usize,
    /// How long such an answer is remembered. Default 2 s.
    pub sidr_answer_linger: Duration,
    /// How many messages that belong to no connection are answered per second and source. Default 100.
    pub answers_per_second: u32,
    /// How many answers may wait to be sent at one port; further ones are dropped as if the network had lost them. REJs
    /// that end a connection of our own have as many places more. Default 4096.
    pub max_queued_answers: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mra_service_timeout: TimeCode::truncate(20),
            max_mra_service_timeout: TimeCode::truncate(23),
            max_mra_wait: Duration::from_secs(60),
            min_response_timeout: Duration::from_millis(1),
            max_response_timeout: Duration::from_secs(60),
            max_disconnect_time: Duration::from_secs(90),
            max_ack_timeout: TimeCode::truncate(22),
            min_time_wait: Duration::from_millis(10),
            max_time_wait: Duration::from_secs(60),
            min_rnr_timer: RnrTimer::truncate(12),
            max_rejections: 1024,
            max_rejection_linger: Duration::from_secs(60),
            max_sidr_answers: 1024,
            sidr_answer_linger: Duration::from_secs(2),
            answers_per_second: 100,
            max_queued_answers: 4096,
        }
    }
}
