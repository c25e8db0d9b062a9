//! Groups and destinations.

use std::fmt;
use std::net::Ipv6Addr;

use ibwire::raw::Ipv6Header;

use crate::{EtherType, LinkAddress, NextHeader, RawError};

/// A multicast group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Group {
    /// By its address on the link.
    Link(LinkAddress),
    /// By its IPv6 address. On the link it is what RFC 2464 makes of that.
    Ipv6(Ipv6Addr),
}

impl Group {
    /// A group of an Ethernet link.
    ///
    /// # Errors
    /// [`RawError::InvalidGroup`] if the address is that of one station: bit 0 of the first byte is 0.
    pub fn link(address: [u8; 6]) -> Result<Self, RawError> {
        let link = LinkAddress::new(&address).expect("six bytes fit");
        if address[0] & 1 == 0 {
            return Err(RawError::InvalidGroup(link.to_string()));
        }
        Ok(Self::Link(link))
    }

    /// A group of IPv6.
    ///
    /// # Errors
    /// [`RawError::InvalidGroup`] if it is not an IPv6 address of ff00::/8.
    pub fn ipv6(address: &str) -> Result<Self, RawError> {
        address.parse::<Ipv6Addr>().map_err(|_| RawError::InvalidGroup(address.into()))?.try_into()
    }

    /// The group as the destination of a packet of an EtherType.
    pub fn dest(&self, ether_type: EtherType) -> EtherDest {
        EtherDest { ether_type, to: self.on_link() }
    }

    /// The group as the destination of an IPv6 packet; `None` if it has no IPv6 address.
    pub fn ipv6_dest(&self, next_header: NextHeader) -> Option<Ipv6Dest> {
        match self {
            Self::Ipv6(addr) => Some(Ipv6Dest { addr: *addr, next_header }),
            Self::Link(_) => None,
        }
    }

    /// Its address on an Ethernet link.
    pub fn on_link(&self) -> LinkAddress {
        match self {
            Self::Link(address) => *address,
            Self::Ipv6(address) => {
                let [.., a, b, c, d] = address.octets();
                LinkAddress::new(&[0x33, 0x33, a, b, c, d]).expect("six bytes fit")
            }
        }
    }

    /// Its IPv6 address, if it has one.
    pub fn address(&self) -> Option<Ipv6Addr> {
        match self {
            Self::Ipv6(address) => Some(*address),
            Self::Link(_) => None,
        }
    }
}

impl TryFrom<Ipv6Addr> for Group {
    type Error = RawError;

    fn try_from(address: Ipv6Addr) -> Result<Self, RawError> {
        if address.is_multicast() {
            Ok(Self::Ipv6(address))
        } else {
            Err(RawError::InvalidGroup(address.to_string()))
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link(address) => address.fmt(f),
            Self::Ipv6(address) => address.fmt(f),
        }
    }
}

/// Where a packet of an EtherType goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EtherDest {
    /// What the packet is.
    pub ether_type: EtherType,
    /// The address on the link.
    pub to: LinkAddress,
}

impl EtherDest {
    /// A station on an Ethernet link.
    pub fn station(address: [u8; 6], ether_type: EtherType) -> Self {
        Self { ether_type, to: LinkAddress::new(&address).expect("six bytes fit") }
    }

    /// The port or the group of a subnet that has this LID.
    #[cfg(feature = "soft")]
    pub fn lid(lid: ibwire::Lid, ether_type: EtherType) -> Self {
        Self { ether_type, to: crate::subnet::lid_address(lid) }
    }
}

/// Where an IPv6 packet goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ipv6Dest {
    /// The destination, on the socket's link.
    pub addr: Ipv6Addr,
    /// What follows the IPv6 header.
    pub next_header: NextHeader,
}

impl Ipv6Dest {
    /// Whether a packet begins with a header for this destination.
    pub(crate) fn check_header(&self, packet: &[u8]) -> Result<(), RawError> {
        let header = Ipv6Header::parse(packet).map_err(|_| RawError::Malformed("no IPv6 header"))?;
        if usize::from(header.payload_len) != packet.len() - Ipv6Header::LEN {
            return Err(RawError::Malformed("the IPv6 header counts another payload"));
        }
        if header.dst != self.addr || header.next_header != self.next_header {
            return Err(RawError::Malformed("the IPv6 header has another destination or next header"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_groups_are_groups() {
        assert!(matches!(Group::link([2, 0, 0, 0, 0, 1]), Err(RawError::InvalidGroup(_))));
        for address in ["fe80::1", "::", "nonsense", "ff02::1%1"] {
            assert!(matches!(Group::ipv6(address), Err(RawError::InvalidGroup(_))), "{address}");
        }
    }

    /// spec/raw.md 4.2.
    #[test]
    fn groups_of_ipv6_on_ethernet() {
        for (group, link) in [
            ("ff02::1", "33:33:00:00:00:01"),
            ("ff02::1:ff12:3456", "33:33:ff:12:34:56"),
            ("ff05::1234:5678:9abc:def0", "33:33:9a:bc:de:f0"),
            ("ff3e:30:2001:db8::4321", "33:33:00:00:43:21"),
        ] {
            assert_eq!(Group::ipv6(group).unwrap().on_link().to_string(), link);
        }
    }
}
