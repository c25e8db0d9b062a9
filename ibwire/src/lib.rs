//! InfiniBand and RoCE as bytes: addresses, codes, packet and MAD headers, ICRC and VCRC, PathRecord.
//!
//! No I/O, no async, no allocation in the hot path. Wire numbers are types that are checked where they enter
//! ([`Qpn`], [`Psn`], [`TimeCode`]); codes are open enumerations, so that an unknown value survives a round trip
//! ([`RejReason`], [`Rate`], [`packet::Opcode`]).
//!
//! | where | what |
//! |---|---|
//! | here | addresses, numbers, codes; [`PathRecord`]; [`PrivateData`] of CM messages |
//! | [`packet`] | LRH, GRH, BTH and the headers behind it; a packet as a whole: [`packet::TransportPacket`] |
//! | [`icrc`], [`vcrc`] | the two CRCs of a packet |
//! | [`mad`] | the header of management datagrams, ClassPortInfo |
//! | [`raw`] | raw datagrams: RWH, IPv6 header, EtherTypes, protocol numbers, sizes |
//! | [`pcap`] | packets in files for Wireshark |
//!
//! What a peer sent is read by a `parse` that cannot panic and says [`DecodeError`] if it cannot be represented;
//! `to_bytes` and `write_to` write it. Reserved bits of packet headers are kept, because CRCs cover them. Reserved
//! fields inside a MAD are ignored and written as 0.
//!
//! ```
//! use ibwire::icrc::Ipv4Pseudo;
//! use ibwire::packet::{Aeth, Bth, Opcode, Syndrome, TransportPacket};
//! use ibwire::{Msn, Psn, Qpn};
//!
//! // Acknowledge PSN 7 to queue pair 17.
//! let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, Qpn::truncate(17), Psn::truncate(7));
//! let aeth = Aeth::new(Syndrome::ACK, Msn::truncate(1));
//! let mut datagram = [0; Bth::LEN + Aeth::LEN + 4];
//! let (transport, icrc) = datagram.split_at_mut(Bth::LEN + Aeth::LEN);
//! bth.write_to(transport);
//! aeth.write_to(&mut transport[Bth::LEN..]);
//! let pseudo = Ipv4Pseudo::new("192.0.2.1:4791".parse()?, "192.0.2.2:4791".parse()?);
//! icrc.copy_from_slice(&pseudo.icrc(transport).0);
//!
//! let packet = TransportPacket::parse(transport)?;
//! assert_eq!((packet.bth(), packet.aeth()), (&bth, Some(aeth)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod addr;
mod code;
mod codec;
mod error;
pub mod icrc;
pub mod mad;
mod number;
pub mod packet;
mod path_record;
pub mod pcap;
mod private_data;
pub mod raw;
mod reject;
pub mod vcrc;

pub use addr::{Gid, Guid, Lid, ParseGidError, ParseGuidError};
pub use code::{Mtu, PacketLifeTime, Rate, RnrTimer, TimeCode};
pub use error::DecodeError;
pub use number::{
    CommId, FlowLabel, Msn, PKey, Psn, QKey, Qpn, RKey, ServiceId, ServiceLevel, TransactionId,
};
pub use path_record::{PathRecord, Selector};
pub use private_data::{PrivateData, PrivateDataTooLong};
pub use reject::RejReason;
