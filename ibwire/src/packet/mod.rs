//! Packet headers as owned values, and [`TransportPacket`], the checked view of a whole packet.
//!
//! Each header has `LEN`, `parse`, `to_bytes` and `write_to`. Headers are at most 40 bytes and `Copy`, so a value
//! costs no more than a view of its bytes would. All bits of a packet are in the values, reserved ones included,
//! because CRCs cover them: what was read is written back bit by bit. Only another version of the LRH, GRH or
//! IPv4 header cannot be read.

mod aeth;
mod atomic;
mod bth;
mod deth;
mod grh;
mod grh_area;
mod ieth;
mod immdt;
mod ip;
mod link_frame;
mod lrh;
mod opcode;
mod reth;
mod transport;

pub use aeth::{Aeth, Credits, NakCode, Syndrome, SyndromeKind};
pub use atomic::{AtomicAckEth, AtomicEth};
pub use bth::Bth;
pub use deth::Deth;
pub use grh::Grh;
pub use grh_area::GrhArea;
pub use ieth::Ieth;
pub use immdt::ImmDt;
pub use ip::{Ipv4Header, UdpHeader};
pub use link_frame::link_frame;
pub use lrh::{Lrh, NextHeader};
pub use opcode::{Opcode, Operation, Transport};
pub use reth::Reth;
pub use transport::{PacketError, TransportPacket};
