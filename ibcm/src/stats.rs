//! Counters.

use crate::data::Counters;

/// The counters of an HCA at one moment: those of the connection manager, of the data of its connections, and
/// of its device.
///
/// ```
/// # use ibcm::Hca;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let hca = Hca::open("soft").await?;
/// for (name, value) in hca.stats().named().filter(|(_, value)| *value > 0) {
///     println!("{name} {value}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Stats {
    /// What the connection manager counted.
    pub cm: crate::proto::Stats,
    data: [(&'static str, u64); 17],
    device: Vec<(&'static str, u64)>,
}

impl Stats {
    pub(crate) fn new(
        cm: crate::proto::Stats,
        data: [(&'static str, u64); 17],
        device: Vec<(&'static str, u64)>,
    ) -> Self {
        Self { cm, data, device }
    }

    /// Each counter with its name, for exporters.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.cm.named().chain(self.data).chain(self.device.iter().copied())
    }

    /// The counter with this name.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.named().find(|(known, _)| *known == name).map(|(_, value)| value)
    }
}

/// What has gone over one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ConnectionStats {
    /// Messages that were sent and that the peer's device has acknowledged.
    pub messages_sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// Messages received, those included that were not read yet.
    pub messages_received: u64,
    /// Their bytes.
    pub bytes_received: u64,
    /// Messages that have arrived and were not read yet.
    pub messages_waiting: u64,
    /// Writes that the peer's device has acknowledged.
    pub writes: u64,
    /// Their bytes.
    pub bytes_written: u64,
    /// Reads whose data has come.
    pub reads: u64,
    /// Their bytes.
    pub bytes_read: u64,
    /// Atomics whose results have come.
    pub atomics: u64,
    /// Operations that failed.
    pub operations_failed: u64,
    /// Writes of no length that asked whether the peer is still there.
    pub keepalives_sent: u64,
}

/// What became of the requests that came to a [`Listener`](crate::Listener). `received` is the sum of all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ListenerStats {
    /// REQs, those not counted that repeat one which is being dealt with.
    pub received: u64,
    /// In the program's hands now: taken and not answered.
    pub in_window: u64,
    /// Waiting now to be taken.
    pub waiting: u64,
    /// Accepted: a REP was sent.
    pub accepted: u64,
    /// Rejected by the program, or because it dropped the request or the listener.
    pub rejected: u64,
    /// Ignored by the program.
    pub ignored: u64,
    /// Given up by their peers before they were answered.
    pub withdrawn: u64,
    /// Rejected because they lack a proper IP header.
    pub malformed: u64,
    /// Dropped because window and backlog were full ([`Overflow::Drop`](crate::Overflow::Drop)). Each repetition
    /// counts.
    pub dropped: u64,
    /// Rejected because window and backlog were full ([`Overflow::Reject`](crate::Overflow::Reject)).
    pub refused: u64,
}

impl From<Counters> for ConnectionStats {
    fn from(counters: Counters) -> Self {
        Self {
            messages_sent: counters.messages_sent,
            bytes_sent: counters.bytes_sent,
            messages_received: counters.messages_received,
            bytes_received: counters.bytes_received,
            messages_waiting: counters.messages_waiting,
            writes: counters.writes,
            bytes_written: counters.bytes_written,
            reads: counters.reads,
            bytes_read: counters.bytes_read,
            atomics: counters.atomics,
            operations_failed: counters.operations_failed,
            keepalives_sent: counters.keepalives_sent,
        }
    }
}
