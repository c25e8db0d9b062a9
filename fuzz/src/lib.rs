//! What peers can send, and whoever fuzzes: a function for each target, over any bytes.
//!
//! A target panics when a promise is broken. It runs in three ways: under libFuzzer (README.md), over the seeds that
//! [`seeds`] makes of the captures and vectors of the other crates, and over random bytes, both as plain tests.
#![forbid(unsafe_code)]

pub mod cm_engine;
mod input;
pub mod mad;
pub mod packet;
pub mod raw;
pub mod rmpp;
pub mod sa_engine;
pub mod sa_records;
pub mod seeds;
pub mod transport_engine;

pub use input::Input;
pub use seeds::Seed;

/// A target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, that of its binary too.
    pub name: &'static str,
    /// Runs over one input.
    pub run: fn(&[u8]),
    /// Inputs to start from.
    pub seeds: fn() -> Vec<Seed>,
}

/// All of them.
pub const TARGETS: [Target; 8] = [
    Target { name: "packet", run: packet::run, seeds: packet::seeds },
    Target { name: "mad", run: mad::run, seeds: mad::seeds },
    Target { name: "raw", run: raw::run, seeds: raw::seeds },
    Target { name: "cm-engine", run: cm_engine::run, seeds: cm_engine::seeds },
    Target { name: "transport-engine", run: transport_engine::run, seeds: transport_engine::seeds },
    Target { name: "sa-records", run: sa_records::run, seeds: sa_records::seeds },
    Target { name: "rmpp", run: rmpp::run, seeds: rmpp::seeds },
    Target { name: "sa-engine", run: sa_engine::run, seeds: sa_engine::seeds },
];
