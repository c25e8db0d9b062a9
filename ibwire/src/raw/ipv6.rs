//! The IPv6 header, which a raw IPv6 packet begins with.

use std::net::Ipv6Addr;

use super::NextHeader;
use crate::packet::Grh;
use crate::{DecodeError, FlowLabel, Gid};

/// The fixed header of IPv6 (RFC 8200, 3; spec/raw.md 1.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ipv6Header {
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label.
    pub flow_label: FlowLabel,
    /// Bytes behind this header.
    pub payload_len: u16,
    /// What follows.
    pub next_header: NextHeader,
    /// How many routers the packet may pass.
    pub hop_limit: u8,
    /// Source.
    pub src: Ipv6Addr,
    /// Destination.
    pub dst: Ipv6Addr,
}

impl Ipv6Header {
    /// Length in bytes.
    pub const LEN: usize = Grh::LEN;

    /// Reads the header from the first 40 bytes; what follows is not looked at.
    ///
    /// # Errors
    /// [`DecodeError`] if there are fewer bytes, or if the version is not 6.
    pub fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        Grh::parse(bytes).map(Self::from)
    }

    /// The header as it stands on the wire.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        Grh::from(*self).to_bytes()
    }

    /// The header as a router sends it on, or `None` if it does not: the hop limit is used up, or source or destination are of one
    /// link only (RFC 4291, 2.5.6 and 2.7; spec/raw.md 4.1).
    pub fn forwarded(self) -> Option<Self> {
        // Scopes 0 and 1 leave no interface, 2 no link.
        let stays = match self.dst.octets() {
            [0xff, flags_and_scope, ..] => flags_and_scope & 0xf <= 2,
            _ => self.dst.is_unicast_link_local(),
        };
        if stays || self.src.is_unicast_link_local() || self.hop_limit <= 1 {
            return None;
        }
        Some(Self { hop_limit: self.hop_limit - 1, ..self })
    }

    /// Writes the header over the first 40 bytes of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than 40 bytes.
    pub fn write_to(&self, out: &mut [u8]) {
        Grh::from(*self).write_to(out);
    }
}

/// The GRH is the same 40 bytes.
impl From<Grh> for Ipv6Header {
    fn from(grh: Grh) -> Self {
        Self {
            traffic_class: grh.traffic_class,
            flow_label: grh.flow_label,
            payload_len: grh.payload_len,
            next_header: NextHeader(grh.next_header),
            hop_limit: grh.hop_limit,
            src: Ipv6Addr::from(grh.sgid.0),
            dst: Ipv6Addr::from(grh.dgid.0),
        }
    }
}

impl From<Ipv6Header> for Grh {
    fn from(header: Ipv6Header) -> Self {
        Self {
            traffic_class: header.traffic_class,
            flow_label: header.flow_label,
            payload_len: header.payload_len,
            next_header: header.next_header.0,
            hop_limit: header.hop_limit,
            sgid: Gid(header.src.octets()),
            dgid: Gid(header.dst.octets()),
        }
    }
}
