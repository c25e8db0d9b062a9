//! What a device counts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one device, agents and queues included.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($(#[$doc])* pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            pub(crate) fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// MADs that the kernel took.
    mads_sent,
    /// MADs that the kernel refused: no neighbour, no such GID index, no memory.
    mads_refused,
    /// MADs that were still waiting a while after their agent was dropped.
    mads_unsent,
    /// Writes of a MAD that were repeated because one with the same transaction ID was still on its way.
    mads_repeated,
    /// MADs that arrived.
    mads_received,
    /// Requests that nobody answered within the kernel's time.
    mads_unanswered,
    /// What umad delivered and is no MAD of 256 bytes.
    mads_malformed,
    /// Work requests for send queues that the driver took.
    sends_posted,
    /// Work requests for receive queues, shared ones too, that the driver took.
    receives_posted,
    /// Completions that the driver gave, of unsignaled work that failed too.
    completions,
    /// Completions of work whose queue pair was reset or destroyed before.
    completions_late,
    /// Completion queues that could not be polled or armed.
    cq_failures,
    /// Completion and shared receive queues that the device gave up.
    queue_failures,
    /// Asynchronous events of unknown numbers.
    events_ignored,
    /// Objects that libibverbs could not destroy; they and what they may access are leaked.
    destroy_failures,
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    add(counter, 1);
}

pub(crate) fn add(counter: &AtomicU64, number: usize) {
    counter.fetch_add(number as u64, Relaxed);
}
