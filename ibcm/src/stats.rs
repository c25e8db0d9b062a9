//! Counters.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::data;

/// Declares a snapshot of counters with their names in one place.
macro_rules! snapshot {
    ($(#[$about:meta])* $snapshot:ident { $($(#[$doc:meta])* $name:ident,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct $snapshot {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl $snapshot {
            /// Each counter with its name, for exporters.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

/// Declares a [`snapshot!`] and the counters that it is taken of.
macro_rules! counters {
    ($(#[$about:meta])* $snapshot:ident { $($(#[$doc:meta])* $name:ident,)* }) => {
        snapshot! {
            $(#[$about])*
            $snapshot { $($(#[$doc])* $name,)* }
        }

        /// The counters of the shell.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> $snapshot {
                $snapshot { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

/// The counters of an HCA at one moment: those of the connection manager, of what its handles did, and of its device.
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
    /// What connections carried, and what became of requests and MADs behind the connection manager.
    pub hca: HcaStats,
    /// What the device counted, by the device's own names. Those of a software HCA are the fields of
    /// `ibsoft::engine::Counters`, and with `link_` in front those of its UDP link.
    pub device: Vec<(&'static str, u64)>,
}

impl Stats {
    /// Each counter with its name, for exporters. All of them only ever grow. No name comes twice.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.cm.named().chain(self.hca.named()).chain(self.device.iter().copied())
    }

    /// The counter with this name.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.named().find(|(known, _)| *known == name).map(|(_, value)| value)
    }
}

counters! {
    /// What the connections of an HCA have carried so far, those that are over included, and what became of requests and
    /// MADs behind the connection manager.
    HcaStats {
        /// Messages that were sent and that the peers' devices have acknowledged.
        messages_sent,
        /// Their bytes.
        bytes_sent,
        /// Messages received.
        messages_received,
        /// Their bytes.
        bytes_received,
        /// Messages received and never read: their connections were dropped before.
        messages_unread,
        /// RDMA writes that the peers' devices have acknowledged.
        writes,
        /// Their bytes.
        bytes_written,
        /// RDMA reads whose data has come.
        reads,
        /// Their bytes.
        bytes_read,
        /// Atomics whose results have come.
        atomics,
        /// Operations that failed: those that were posted when their connection ended included.
        operations_failed,
        /// Datagrams that have left this host.
        datagrams_sent,
        /// Datagrams that failed to leave, those included that were posted when their queue pair failed.
        datagrams_failed,
        /// Datagrams received.
        datagrams_received,
        /// Their bytes.
        datagram_bytes_received,
        /// Groups of datagram sockets that are not heard any more: joined again after a change of the SM, they have other keys, or the
        /// device has not attached them; or the HCA's client of the SA has ended before the socket.
        groups_unheard,
        /// Writes of no length that asked whether a peer is still there.
        keepalives_sent,
        /// Connections that were ended because their peers did not answer a keepalive.
        connections_silent,
        /// Times that a shared receive queue had no buffers of its own left to post.
        shared_receives_exhausted,
        /// Requests that their peers withdrew before the program took them.
        requests_withdrawn,
        /// Requests for IP listeners without a proper IP header, which were rejected.
        requests_malformed,
        /// MADs to a port that was down, and those that were under way to one when the device was removed or the HCA
        /// closed.
        mads_unsent,
        /// MADs that could not be written to the pcap file ([`Open::pcap`](crate::Open::pcap)), at least so many.
        mads_uncaptured,
    }
}

snapshot! {
    /// What has gone over one connection.
    ConnectionStats {
        /// Messages that were sent and that the peer's device has acknowledged.
        messages_sent,
        /// Their bytes.
        bytes_sent,
        /// Messages received, those included that were not read yet.
        messages_received,
        /// Their bytes.
        bytes_received,
        /// Messages that have arrived and were not read yet.
        messages_waiting,
        /// Writes that the peer's device has acknowledged.
        writes,
        /// Their bytes.
        bytes_written,
        /// Reads whose data has come.
        reads,
        /// Their bytes.
        bytes_read,
        /// Atomics whose results have come.
        atomics,
        /// Operations that failed.
        operations_failed,
        /// Writes of no length that asked whether the peer is still there.
        keepalives_sent,
    }
}

snapshot! {
    /// What became of the requests that came to a [`Listener`](crate::Listener). `received` is the sum of all others.
    ListenerStats {
        /// REQs, those not counted that repeat one which is being dealt with.
        received,
        /// In the program's hands now: taken and not answered.
        in_window,
        /// Waiting now to be taken.
        waiting,
        /// Accepted: a REP was sent.
        accepted,
        /// Rejected by the program, or because it dropped the request or the listener.
        rejected,
        /// Ignored by the program.
        ignored,
        /// Given up by their peers before they were answered.
        withdrawn,
        /// Rejected because they lack a proper IP header.
        malformed,
        /// Dropped because window and backlog were full ([`Overflow::Drop`](crate::Overflow::Drop)). Each repetition
        /// counts.
        dropped,
        /// Rejected because window and backlog were full ([`Overflow::Reject`](crate::Overflow::Reject)).
        refused,
    }
}

impl From<data::Counters> for ConnectionStats {
    fn from(counters: data::Counters) -> Self {
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
