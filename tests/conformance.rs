//! The device contract (crate ibdev) as one suite: each case runs on each kind of device that has what it needs, by the
//! contract alone. What a device lacks is listed with it, and a case of its own checks that it refuses that.
//!
//! `cargo test --test conformance subnet::` runs those of one kind. To put another device under test, add a fixture.
#![forbid(unsafe_code)]
#![allow(unreachable_pub, reason = "a test has no users")]
#![allow(clippy::unwrap_used, reason = "a test")]

/// [`bench`](self::conformance::bench) says what a device is tested with, [`end`](self::conformance::end) is one end of a
/// connection; `subnet`, `soft_udp` and `rxe` are the devices, `lacking` their refusals, `differs` what they do otherwise than
/// others, the rest are the cases by subject.
mod conformance {
    pub mod agents;
    pub mod attributes;
    pub mod bench;
    pub mod cancel;
    pub mod case;
    pub mod datagrams;
    pub mod differs;
    pub mod drops;
    pub mod end;
    pub mod events;
    pub mod lacking;
    pub mod limits;
    pub mod memory;
    pub mod messages;
    pub mod migration;
    pub mod multicast;
    pub mod order;
    pub mod raw;
    pub mod refused;
    pub mod retries;
    #[cfg(feature = "verbs")]
    pub mod rxe;
    pub mod shared_receives;
    pub mod soft_udp;
    pub mod states;
    pub mod subnet;
    pub mod uc;
    pub mod waiting;
}

use std::process::ExitCode;

use conformance::bench::Fixture;
use conformance::case::{Case, trials};
use conformance::{
    agents, attributes, cancel, datagrams, drops, events, limits, memory, messages, migration, multicast,
    order, raw, refused, retries, shared_receives, soft_udp, states, subnet, uc, waiting,
};
use libtest_mimic::Arguments;

const DEVICES: &[&dyn Fixture] = &[
    &soft_udp::SoftUdp,
    &subnet::InSubnet,
    &subnet::OverSwitches { managed: false },
    &subnet::OverSwitches { managed: true },
    #[cfg(feature = "verbs")]
    &conformance::rxe::Rxe,
];

const CASES: &[&[Case]] = &[
    attributes::CASES,
    agents::CASES,
    messages::CASES,
    memory::CASES,
    refused::CASES,
    retries::CASES,
    order::CASES,
    migration::CASES,
    states::CASES,
    limits::CASES,
    drops::CASES,
    cancel::CASES,
    waiting::CASES,
    events::CASES,
    datagrams::CASES,
    multicast::CASES,
    raw::CASES,
    uc::CASES,
    shared_receives::CASES,
];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let all = DEVICES.iter().flat_map(|device| trials(*device, CASES.iter().copied().flatten().copied()));
    libtest_mimic::run(&arguments, all.collect()).exit_code()
}
