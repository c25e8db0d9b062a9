//! The groups of a subnet that stand for those of a link.

use ibwire::{Gid, PKey};

use crate::{Group, LinkAddress, RawError};

/// The group of all stations of IP over InfiniBand with the default P_Key.
pub(super) const BROADCAST: Gid =
    Gid([0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);

/// The group of a subnet. That of an IPv6 address is the one of IP over InfiniBand (RFC 4391; spec/raw.md 4.2): its low 80 bits
/// under the default P_Key, so that several have the same. That of an address of Ethernet has a signature of its own.
pub(super) fn mgid(group: &Group) -> Result<Gid, RawError> {
    let mut mgid = [0; 16];
    let [high, low] = PKey::DEFAULT.0.to_be_bytes();
    let signature = |mgid: &mut [u8; 16], a, b| mgid[..6].copy_from_slice(&[0xff, 0x12, a, b, high, low]);
    match group {
        Group::Ipv6(address) => {
            signature(&mut mgid, 0x60, 0x1b);
            mgid[6..].copy_from_slice(&address.octets()[6..]);
        }
        Group::Link(address) => {
            signature(&mut mgid, 0xe7, 0x0e);
            mgid[10..].copy_from_slice(ethernet(address)?);
        }
    }
    Ok(Gid(mgid))
}

fn ethernet(address: &LinkAddress) -> Result<&[u8], RawError> {
    match address.as_bytes() {
        bytes if bytes.len() == 6 && bytes[0] & 1 == 1 => Ok(bytes),
        _ => Err(RawError::InvalidGroup(address.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec/raw.md 4.2.
    #[test]
    fn groups_of_ipv6_in_a_subnet() {
        for (group, gid) in [
            ("ff02::1", "ff12:601b:ffff::1"),
            ("ff02::1:ff12:3456", "ff12:601b:ffff::1:ff12:3456"),
            ("ff05::1234:5678:9abc:def0", "ff12:601b:ffff:0:1234:5678:9abc:def0"),
            ("ff3e:30:2001:db8::4321", "ff12:601b:ffff:db8::4321"),
        ] {
            assert_eq!(mgid(&Group::ipv6(group).unwrap()).unwrap(), gid.parse().unwrap(), "{group}");
        }
        let link = Group::link([0x33, 0x33, 0, 0, 0x88, 0xb5]).unwrap();
        assert_eq!(mgid(&link).unwrap(), "ff12:e70e:ffff::3333:0:88b5".parse().unwrap());
    }
}
