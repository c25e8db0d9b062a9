//! What is known of a received datagram.

use std::net::Ipv6Addr;
use std::time::SystemTime;

use bytes::Bytes;
use ibwire::{Lid, ServiceLevel};

use crate::{EtherType, LinkAddress, NextHeader};

/// A datagram and what is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram<M> {
    /// The payload: what follows the link's header, or the IPv6 header.
    pub data: Bytes,
    /// What is known of it.
    pub meta: M,
}

/// Whom a frame is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FrameKind {
    /// This station.
    Host,
    /// All.
    Broadcast,
    /// A group.
    Multicast,
    /// Another station.
    OtherHost,
    /// It was sent by this station.
    Outgoing,
}

/// A VLAN tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Vlan {
    /// The VLAN, 0..=4095; 0 is a priority alone.
    pub id: u16,
    /// Priority, 0..=7.
    pub priority: u8,
    /// May be dropped before others.
    pub drop_eligible: bool,
}

/// What a subnet tells of a packet beside its sender (spec/raw.md 3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubnetMeta {
    /// The LID of the port that sent it.
    pub slid: Lid,
    /// Its service level.
    pub sl: ServiceLevel,
    /// Low bits of the LID that it was sent to; `None` for multicast.
    pub path_bits: Option<u8>,
}

/// What is known of a packet of an EtherType.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct EtherMeta {
    /// What it is.
    pub ether_type: EtherType,
    /// Who sent it; `None` where the link does not say.
    pub src: Option<LinkAddress>,
    /// Where it was sent to; `None` where the link does not say.
    pub dst: Option<LinkAddress>,
    /// Whom it is for.
    pub kind: FrameKind,
    /// Its VLAN tag. Only sockets that take tagged frames are told.
    pub vlan: Option<Vlan>,
    /// Length of the payload in bytes, also if it was cut. Padding of the link is in it: no length field tells it apart.
    pub wire_len: usize,
    /// The payload is longer than the socket's buffer.
    pub truncated: bool,
    /// Its checksum is not filled in: it was sent by this machine.
    pub checksum_partial: bool,
    /// Datagrams that the socket lost between the one before and this one, because its queue was full.
    pub drops_before: u32,
    /// When the kernel took it from the link, by the system's clock. Only sockets with [`timestamps`](crate::Bind::timestamps) are
    /// told.
    pub time: Option<SystemTime>,
    /// On a subnet: how it came there.
    pub subnet: Option<SubnetMeta>,
}

/// What is known of an IPv6 packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ipv6Meta {
    /// What follows the IPv6 header.
    pub next_header: NextHeader,
    /// Who sent it.
    pub src: Ipv6Addr,
    /// Where it was sent to.
    pub dst: Ipv6Addr,
    /// What was left of its hop limit.
    pub hop_limit: u8,
    /// Its traffic class.
    pub traffic_class: u8,
    /// Length of the payload in bytes, also if it was cut.
    pub wire_len: usize,
    /// The payload is longer than the socket's buffer.
    pub truncated: bool,
    /// Datagrams that the socket lost between the one before and this one, because its queue was full.
    pub drops_before: u32,
    /// When the kernel took it from the link, by the system's clock. Only sockets with [`timestamps`](crate::Bind::timestamps) are
    /// told.
    pub time: Option<SystemTime>,
    /// On a subnet: how it came there.
    pub subnet: Option<SubnetMeta>,
}

/// What was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sent {
    /// Length of the payload in bytes as it went out, padding included.
    pub wire_len: usize,
}
