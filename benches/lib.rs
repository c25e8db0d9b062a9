//! What the benches share: how a bench is called, how cases are timed side by side, the machine, tables, traffic between
//! two ends.
#![forbid(unsafe_code)]

pub mod engines;
mod machine;
mod options;
mod table;
mod timing;
pub mod traffic;

pub use machine::{machine, resident_bytes};
pub use options::Options;
pub use table::Table;
pub use timing::{Case, Clock, Estimate, Sample, Sampling, side_by_side};

/// Bytes at the beginning of a cache line, so that where they happen to lie does not tell in the times.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub struct Aligned<T>(pub T);
