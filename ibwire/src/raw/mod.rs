//! Raw datagrams: packets without a transport header, which carry an EtherType or an IPv6 packet (spec/raw.md 1, 2).
//!
//! ```
//! use ibwire::packet::{Lrh, NextHeader as Next};
//! use ibwire::raw::{EtherType, RawHeader, RawPacket, ether_frame};
//! use ibwire::{Lid, ServiceLevel};
//!
//! let lrh = Lrh {
//!     vl: 0,
//!     sl: ServiceLevel::truncate(3),
//!     next: Next::RawEtherType,
//!     dlid: Lid(1),
//!     words: 0, // overwritten
//!     slid: Lid(2),
//!     reserved: 0,
//! };
//! let frame = ether_frame(lrh, EtherType::LOCAL_1, b"hello");
//! let packet = RawPacket::parse(&frame)?;
//! assert!(matches!(packet.header, RawHeader::EtherType(rwh) if rwh.ether_type == EtherType::LOCAL_1));
//! assert_eq!(packet.payload, b"hello\0\0\0"); // nothing says where the padding begins
//! # Ok::<(), ibwire::raw::RawPacketError>(())
//! ```

mod ether_type;
mod frame;
mod ipv6;
mod next_header;
mod rwh;
pub mod size;
#[cfg(test)]
mod tests;

pub use ether_type::EtherType;
pub use frame::{RawHeader, RawPacket, RawPacketError, ether_frame, ipv6_frame};
pub use ipv6::Ipv6Header;
pub use next_header::NextHeader;
pub use rwh::Rwh;
