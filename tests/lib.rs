//! Shared pieces of the tests.
#![forbid(unsafe_code)]

pub mod children;
pub mod decode;
#[cfg(doctest)]
mod docs;
pub mod guest;
pub mod ibsim;
pub mod veth;

/// The groups of conformance cases, by their files, that the guest runs on its devices: one case of the guest for each.
pub const CONFORMANCE_IN_GUEST: [&str; 18] = [
    "attributes",
    "agents",
    "messages",
    "memory",
    "refused",
    "retries",
    "order",
    "states",
    "limits",
    "drops",
    "cancel",
    "waiting",
    "events",
    "datagrams",
    "multicast",
    "uc",
    "shared_receives",
    "lacking",
];
