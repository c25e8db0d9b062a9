//! Between engine and link: the network layer's fields, and packets on their way out.

use std::net::IpAddr;

use ibdev::LinkLayer;
use ibwire::icrc::Icrc;
use ibwire::packet::{Bth, Grh, GrhArea, Ipv4Header, TransportPacket, UdpHeader};
use ibwire::{FlowLabel, Gid, Lid, Qpn, ServiceLevel};

use super::arrival::Behind;

/// What stands in front of the BTH: LRH and GRH on InfiniBand, the IP header on RoCE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetHeader {
    /// Source LID; [`Lid::NONE`] on RoCE.
    pub slid: Lid,
    /// Destination LID; [`Lid::NONE`] on RoCE.
    pub dlid: Lid,
    /// Service level; 0 on RoCE.
    pub sl: ServiceLevel,
    /// GRH or IP header; always there on RoCE.
    pub route: Option<NetRoute>,
}

/// GRH or IP header of a packet. GIDs that are IPv4-mapped stand for IPv4 on RoCE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetRoute {
    /// Source.
    pub sgid: Gid,
    /// Destination.
    pub dgid: Gid,
    /// Flow label; 0 with IPv4.
    pub flow_label: FlowLabel,
    /// Traffic class, TOS with IPv4.
    pub traffic_class: u8,
    /// Hop limit, TTL with IPv4.
    pub hop_limit: u8,
    /// IPv4 identification of a received packet as far as the link knows it; else 0. Only a datagram's GRH area
    /// shows it.
    pub ip_id: u16,
}

impl NetHeader {
    const NONE: Self = Self { slid: Lid::NONE, dlid: Lid::NONE, sl: ServiceLevel::truncate(0), route: None };

    /// The header of a RoCE packet.
    pub const fn roce(route: NetRoute) -> Self {
        Self { route: Some(route), ..Self::NONE }
    }

    /// The 40 bytes in front of a datagram with `transport_len` bytes from the BTH through the padding
    /// (spec/softhca.md 1.15). Zeros if there was no GRH.
    pub(super) fn grh_area(&self, link_layer: LinkLayer, transport_len: usize) -> [u8; GrhArea::LEN] {
        let Some(route) = self.route else { return [0; GrhArea::LEN] };
        let behind = transport_len + Icrc::LEN;
        let grh = |len: usize, next_header| {
            GrhArea::Grh(Grh {
                traffic_class: route.traffic_class,
                flow_label: route.flow_label,
                payload_len: len as u16,
                next_header,
                hop_limit: route.hop_limit,
                sgid: route.sgid,
                dgid: route.dgid,
            })
        };
        let area = match (link_layer, route.sgid.to_ip(), route.dgid.to_ip()) {
            (LinkLayer::Ethernet, IpAddr::V4(src), IpAddr::V4(dst)) => GrhArea::Ipv4(
                Ipv4Header {
                    tos: route.traffic_class,
                    total_len: (Ipv4Header::LEN + UdpHeader::LEN + behind) as u16,
                    id: route.ip_id,
                    flags_fragment: Ipv4Header::DONT_FRAGMENT,
                    ttl: route.hop_limit,
                    protocol: Ipv4Header::UDP,
                    checksum: 0,
                    src,
                    dst,
                }
                .with_checksum(),
            ),
            (LinkLayer::Ethernet, ..) => grh(UdpHeader::LEN + behind, Grh::NEXT_UDP),
            _ => grh(behind, Grh::NEXT_BTH),
        };
        area.to_bytes()
    }
}

/// A packet that has arrived.
#[derive(Debug)]
pub(super) struct Ingress<'a> {
    /// The local port, from 1.
    pub(super) port: u8,
    pub(super) net: &'a NetHeader,
    pub(super) packet: &'a TransportPacket<'a>,
    /// Bytes from the BTH through the padding.
    pub(super) len: usize,
    /// What may be handled with it.
    pub(super) behind: Behind<'a>,
}

/// Where a packet goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Destination {
    /// The local port that it leaves by, from 1.
    pub(super) port: u8,
    pub(super) net: NetHeader,
    pub(super) framing: Framing,
}

impl Destination {
    /// Of no packet.
    pub(super) const NONE: Self = Self { port: 0, net: NetHeader::NONE, framing: Framing::Transport };
}

/// What the link gets of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Framing {
    /// BTH through padding; the ICRC is still to come.
    Transport,
    /// RWH, message and padding; only the VCRC is still to come.
    RawEtherType,
    /// IPv6 header, message and padding; only the VCRC is still to come.
    RawIpv6,
}

/// Why a link has not handed in a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkError {
    /// The VCRC does not match: it was damaged between two ports.
    Vcrc,
    /// The ICRC does not match: it was damaged elsewhere.
    Icrc,
    /// Headers or lengths are wrong.
    Malformed,
}

/// Packets to send, one unless a run was asked for. Their bytes, BTH through padding, were appended to the buffer given to
/// [`Engine::poll_transmit`](super::Engine::poll_transmit) or [`Engine::poll_run`](super::Engine::poll_run); the link puts
/// the network layer in front and the ICRC behind each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Egress<'a> {
    /// The local port that it leaves by, from 1.
    pub port: u8,
    /// Where it goes. Its source is the port's own address.
    pub net: &'a NetHeader,
    /// What its bytes are.
    pub framing: Framing,
    /// The QP that sends it; [`Qpn::GSI`] for MADs.
    pub qpn: Qpn,
    /// The length of each in bytes, a multiple of 4.
    pub len: usize,
    /// How many there are, at least 1.
    pub packets: usize,
}

/// How many more packets of one length may follow one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    /// Length of each, BTH through padding.
    pub(super) len: usize,
    /// Zeros behind each.
    pub(super) room: usize,
    /// At most so many.
    pub(super) most: u32,
}

impl Run {
    /// Appends `packets` packets without extended headers and padding, `bth` with ascending PSNs in front of what `payload`
    /// appends.
    pub(super) fn write(
        self,
        out: &mut Vec<u8>,
        bth: Bth,
        packets: u32,
        mut payload: impl FnMut(&mut Vec<u8>, u32),
    ) {
        out.reserve(packets as usize * (self.len + self.room));
        for k in 0..packets {
            out.extend_from_slice(&Bth { psn: bth.psn.offset(k), ..bth }.to_bytes());
            payload(out, k);
            out.resize(out.len() + self.room, 0);
        }
    }
}

/// Appends a packet without payload and returns its length.
pub(super) fn write_header(out: &mut Vec<u8>, bth: Bth, extended: &[&[u8]]) -> usize {
    write_packet(out, bth, extended, 0, |_| {})
}

/// Appends a packet whose payload of `len` bytes `payload` appends, padding included, and returns its length.
pub(super) fn write_packet(
    out: &mut Vec<u8>,
    bth: Bth,
    extended: &[&[u8]],
    len: usize,
    payload: impl FnOnce(&mut Vec<u8>),
) -> usize {
    let start = out.len();
    let pad = Bth::pad_for(len);
    out.extend_from_slice(&Bth { pad, ..bth }.to_bytes());
    for header in extended {
        out.extend_from_slice(header);
    }
    payload(out);
    out.resize(out.len() + usize::from(pad), 0);
    out.len() - start
}
