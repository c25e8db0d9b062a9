//! Raw datagrams: [`RawEtherSocket`] for packets of an EtherType, [`RawIpv6Socket`] for IPv6 packets by next header.
//!
//! A socket is bound to a [`Link`] and receives when `bind` returns. It takes what its filter names, and of multicast what
//! it has joined ([`Membership`] is the guard). Each datagram comes whole with its metadata; what was lost before it is in
//! there, too, because on a link of datagrams nothing holds a sender back.
//!
//! | to receive | to send |
//! |---|---|
//! | [`recv`](RawSocket::recv) one, owned | [`send_to`](RawSocket::send_to) one |
//! | [`recv_from`](RawSocket::recv_from) one, into a buffer | |
//! | [`recv_batch`](RawSocket::recv_batch) up to 64 with one system call, not copied | [`send_batch`](RawSocket::send_batch) up to 64 with one system call |
//! | [`stream`](RawSocket::stream) | [`sink`](RawSocket::sink) |
//! | [`framed`](RawSocket::framed) with a codec | the same |
//!
//! `try_recv`, `try_recv_from`, `try_recv_batch`, `try_send_to` and `try_send_batch` are the same without waiting; what can be polled
//! are stream and sink.
//!
//! All methods take `&self`; sockets are cheap handles and [`Clone`]. Many tasks may receive: each datagram goes to one of
//! them. Sources: spec/raw.md, packet(7), raw(7), RFC 3542.
//!
//! # Features
//! `soft` (default): links of in-process subnets, `Link::from(device)`. Without it there are network interfaces only.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(missing_docs)]
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

mod backend;
mod batch;
mod bind;
mod core;
mod error;
mod ether;
mod framed;
mod group;
mod ipv6;
mod link;
mod membership;
mod meta;
mod net;
mod outages;
mod ring;
mod sink;
mod socket;
mod stats;
mod stream;
#[cfg(feature = "soft")]
mod subnet;

pub use batch::Batch;
pub use bind::Bind;
pub use core::OnTruncate;
pub use error::{ErrorKind, RawError};
pub use ether::{BindEther, RawEtherSocket, VlanPolicy};
pub use framed::Framed;
pub use group::{EtherDest, Group, Ipv6Dest};
pub use ibcm_sys::packet::{Instruction, LinkAddress};
pub use ibwire::raw::{EtherType, NextHeader};
pub use ipv6::{BindIpv6, RawIpv6Socket};
pub use link::{Link, LinkKind};
pub use membership::Membership;
pub use meta::{Datagram, EtherMeta, FrameKind, Ipv6Meta, Sent, SubnetMeta, Vlan};
pub use ring::Ring;
pub use sink::DatagramSink;
pub use socket::RawSocket;
pub use stats::RawStats;
pub use stream::Datagrams;

/// What [`RawEtherSocket`] and [`RawIpv6Socket`] differ in. Not for other types.
pub mod protocol {
    pub use crate::backend::{Ether, Ipv6, Protocol};
}

#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;
