//! Who is addressed: GID, GUID, LID.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A global identifier: 128 bits with the shape of an IPv6 address (IBTA vol. 1, 4.1).
///
/// On RoCEv2 a GID is an IP address; IPv4 addresses are written IPv4-mapped (`::ffff:a.b.c.d`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The reserved GID, all bits zero: no address.
    pub const UNSPECIFIED: Self = Self([0; 16]);

    /// The GID made of a 64-bit subnet prefix and a port GUID.
    pub const fn from_parts(prefix: u64, guid: Guid) -> Self {
        Self((((prefix as u128) << 64) | guid.0 as u128).to_be_bytes())
    }

    /// The link-local GID (prefix `fe80::/64`) of a port GUID.
    pub const fn link_local(guid: Guid) -> Self {
        Self::from_parts(0xfe80 << 48, guid)
    }

    /// The GID that RoCEv2 uses for `ip`: IPv4 becomes IPv4-mapped.
    pub const fn from_ip(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }

    /// The IP address of this GID; an IPv4-mapped GID gives the IPv4 address.
    pub const fn to_ip(self) -> IpAddr {
        Ipv6Addr::from_bits(u128::from_be_bytes(self.0)).to_canonical()
    }

    /// The upper 64 bits.
    pub const fn prefix(self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    /// The lower 64 bits: the port GUID of a unicast GID.
    pub const fn interface_id(self) -> u64 {
        u128::from_be_bytes(self.0) as u64
    }

    /// Whether all bits are zero.
    pub const fn is_unspecified(self) -> bool {
        u128::from_be_bytes(self.0) == 0
    }

    /// Whether this is a multicast GID: `ff00::/8`, or an IPv4-mapped multicast address on RoCEv2.
    pub const fn is_multicast(self) -> bool {
        match self.to_ip() {
            IpAddr::V4(v4) => v4.is_multicast(),
            IpAddr::V6(v6) => v6.is_multicast(),
        }
    }

    /// Whether this is a link-local GID, `fe80::/10`.
    pub const fn is_link_local(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from_bits(u128::from_be_bytes(self.0)), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        Self::from_ip(ip)
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(ip: Ipv4Addr) -> Self {
        Self::from_ip(IpAddr::V4(ip))
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(ip: Ipv6Addr) -> Self {
        Self::from_ip(IpAddr::V6(ip))
    }
}

/// The text is neither an IPv6 nor an IPv4 address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a GID: an IPv6 or IPv4 address is expected")]
pub struct ParseGidError {
    text: String,
}

impl FromStr for Gid {
    type Err = ParseGidError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<IpAddr>()
            .map(Self::from_ip)
            .map_err(|_| ParseGidError { text: text.chars().take(64).collect() })
    }
}

/// An EUI-64 of a node, port or system (IBTA vol. 1, 4.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Guid(pub u64);

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guid({self})")
    }
}

/// The text is not a GUID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a GUID: up to 16 hexadecimal digits are expected, with or without 0x")]
pub struct ParseGuidError {
    text: String,
}

impl FromStr for Guid {
    type Err = ParseGuidError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
        plain
            .then(|| u64::from_str_radix(digits, 16).ok())
            .flatten()
            .map(Self)
            .ok_or_else(|| ParseGuidError { text: text.chars().take(64).collect() })
    }
}

/// A local identifier: the 16-bit address of a port within its subnet (IBTA vol. 1, 4.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lid(pub u16);

impl Lid {
    /// Reserved: no LID. RoCE has none.
    pub const NONE: Self = Self(0);
    /// The permissive LID: whoever receives it.
    pub const PERMISSIVE: Self = Self(0xffff);

    /// Whether this is a unicast LID, 0x0001..=0xbfff.
    pub const fn is_unicast(self) -> bool {
        self.0 >= 1 && self.0 <= 0xbfff
    }

    /// Whether this is a multicast LID, 0xc000..=0xfffe.
    pub const fn is_multicast(self) -> bool {
        self.0 >= 0xc000 && self.0 <= 0xfffe
    }
}

impl fmt::Display for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

impl fmt::Debug for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gid_and_ip_convert_both_ways() {
        let v4: IpAddr = "10.77.0.1".parse().unwrap();
        assert_eq!(Gid::from_ip(v4).to_string(), "::ffff:10.77.0.1");
        assert_eq!(Gid::from_ip(v4).to_ip(), v4);
        assert_eq!("10.77.0.1".parse::<Gid>(), "::ffff:10.77.0.1".parse::<Gid>());
        let v6: IpAddr = "fd77::2".parse().unwrap();
        assert_eq!(Gid::from_ip(v6).to_ip(), v6);
        assert!("10.77.0".parse::<Gid>().is_err());
    }

    #[test]
    fn gid_parts() {
        let gid = Gid::link_local(Guid(0x0000_00ff_fe00_0001));
        assert_eq!(gid.to_string(), "fe80::ff:fe00:1");
        assert!(gid.is_link_local() && !gid.is_multicast());
        assert_eq!((gid.prefix(), gid.interface_id()), (0xfe80_0000_0000_0000, 0xff_fe00_0001));
        assert!(Gid::from(Ipv4Addr::new(239, 1, 1, 1)).is_multicast());
    }

    #[test]
    fn guid_text() {
        assert_eq!("0x1111222233334444".parse(), Ok(Guid(0x1111_2222_3333_4444)));
        assert_eq!(Guid(1).to_string(), "0x0000000000000001");
        for bad in ["", "0x", "+1", "g", "11111111111111111"] {
            assert!(bad.parse::<Guid>().is_err(), "{bad}");
        }
    }
}
