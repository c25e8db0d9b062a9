//! Packet headers, each as an owned value: `LEN`, `parse`, `to_bytes`, `write_to`.
//!
//! Headers are at most 40 bytes and `Copy`, so a value costs no more than a view of its bytes.
//! Reserved bits that the ICRC covers are fields of the values: what was read is written back bit by bit.

mod aeth;
mod atomic;
mod bth;
mod deth;
mod grh;
mod ieth;
mod immdt;
mod lrh;
mod opcode;
mod reth;

pub use aeth::{Aeth, Credits, NakCode, Syndrome, SyndromeKind};
pub use atomic::{AtomicAckEth, AtomicEth};
pub use bth::Bth;
pub use deth::Deth;
pub use grh::Grh;
pub use ieth::Ieth;
pub use immdt::ImmDt;
pub use lrh::{Lrh, NextHeader};
pub use opcode::{Opcode, Operation, Transport};
pub use reth::Reth;
