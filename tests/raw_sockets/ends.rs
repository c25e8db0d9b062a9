//! Sockets of ours, and frames as they go over the link.

use ibraw::{EtherType, Link, NextHeader, RawError, RawEtherSocket, RawIpv6Socket};

use tests::veth::{Net, Side};

use crate::case::Place;

/// What the cases speak unless they say otherwise.
pub(crate) const TYPE: EtherType = EtherType::LOCAL_1;

/// No machine's own: all hear it.
pub(crate) const BROADCAST: [u8; 6] = [0xff; 6];

/// A group of link addresses.
pub(crate) const GROUP: [u8; 6] = [0x33, 0x33, 0, 0, 0x88, 0xb5];

/// The link of a side. The calling thread belongs to that side from then on.
pub(crate) fn link(net: &Net, side: Side) -> Result<Link, RawError> {
    net.enter(side).expect("the namespace lives as long as the net");
    Link::open(side.interface())
}

/// A socket with all defaults.
pub(crate) async fn ether(net: &Place, side: Side) -> Result<RawEtherSocket, RawError> {
    net.bind(&link(net, side)?, [TYPE]).await
}

/// A socket with all defaults.
pub(crate) async fn ipv6(net: &Net, side: Side, next: NextHeader) -> Result<RawIpv6Socket, RawError> {
    RawIpv6Socket::bind(&link(net, side)?, [next]).await
}

/// The header of an Ethernet frame.
pub(crate) fn head(to: [u8; 6], from: Side, ether_type: u16) -> Vec<u8> {
    [&to[..], &from.mac(), &ether_type.to_be_bytes()].concat()
}

/// A frame.
pub(crate) fn frame(to: [u8; 6], from: Side, ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = head(to, from, ether_type);
    frame.extend_from_slice(payload);
    frame
}

/// The number at the beginning of a payload of the peer's flood.
pub(crate) fn number(payload: &[u8]) -> u32 {
    u32::from_be_bytes(*payload.first_chunk().expect("the flood's payloads begin with a number"))
}
