//! Counters.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a socket has counted since it was bound. Never less than before.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct RawStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            pub(crate) fn read(&self) -> RawStats {
                RawStats { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

stats! {
    /// Datagrams received.
    rx_packets,
    /// Their payload in bytes.
    rx_bytes,
    /// Datagrams lost because the socket's queue was full.
    rx_dropped,
    /// How often the socket's ring had no block to put frames in.
    rx_ring_full,
    /// Datagrams longer than the socket's buffer.
    rx_truncated,
    /// For other stations, and on a subnet for other addresses than that of [`bind_addr`](crate::Bind::bind_addr).
    rx_other_host,
    /// Frames of other VLANs.
    rx_other_vlan,
    /// Multicast of groups that the socket has not joined.
    rx_not_member,
    /// On a subnet, ICMPv6 of other types than [`icmp_filter`](crate::Bind::icmp_filter) names. On an interface 0: the kernel does not
    /// count.
    rx_filtered,
    /// Shorter than their header.
    rx_malformed,
    /// Received by a stream that was dropped before they were taken from it.
    rx_unread,
    /// What a codec left over of a datagram, or made nothing of.
    rx_undecoded,
    /// Datagrams sent.
    tx_packets,
    /// Their payload in bytes.
    tx_bytes,
    /// How often the link had no buffers; who waits tries again.
    tx_nobufs,
    /// How often the socket's buffer was full.
    tx_would_block,
    /// Datagrams that the queue pair of a subnet had taken and could not send.
    tx_faults,
    /// Items that a sink had taken when it was dropped.
    tx_unsent,
    /// How often the link went down.
    link_down_events,
}

pub(crate) fn count(counter: &AtomicU64) {
    add(counter, 1);
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Relaxed);
}
