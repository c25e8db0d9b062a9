//! The forty bytes in front of a datagram's payload.

use super::{Grh, Ipv4Header};
use crate::{DecodeError, Gid};

/// The first 40 bytes of a UD receive on RoCEv2, or on InfiniBand if the packet had a GRH (spec/softhca.md 1.15).
///
/// After a packet without a GRH they are undefined; the completion says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GrhArea {
    /// An IPv4 header in the last 20 bytes. The first 20 are written as zeros and ignored.
    Ipv4(Ipv4Header),
    /// A GRH, or the IPv6 header of a RoCEv2 packet.
    Grh(Grh),
}

impl GrhArea {
    /// Length in bytes.
    pub const LEN: usize = Grh::LEN;

    const IPV4_AT: usize = Self::LEN - Ipv4Header::LEN;

    /// Reads the first 40 bytes of a receive buffer: IPv4 if such a header with a right checksum is there, else a GRH.
    ///
    /// # Errors
    /// [`DecodeError`] if there are fewer bytes, or if there is neither.
    pub fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        let area: &[u8; Self::LEN] = bytes.first_chunk().ok_or(DecodeError::Truncated {
            what: "GRH area",
            need: Self::LEN,
            have: bytes.len(),
        })?;
        match Ipv4Header::parse(&area[Self::IPV4_AT..]) {
            Ok(header) if header.checksum == header.computed_checksum() => Ok(Self::Ipv4(header)),
            _ => Grh::parse(area).map(Self::Grh),
        }
    }

    /// The bytes as a receiver finds them.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        match self {
            Self::Ipv4(header) => {
                let mut area = [0; Self::LEN];
                header.write_to(&mut area[Self::IPV4_AT..]);
                area
            }
            Self::Grh(grh) => grh.to_bytes(),
        }
    }

    /// Whom the datagram came from.
    pub fn sgid(&self) -> Gid {
        match self {
            Self::Ipv4(header) => header.src.into(),
            Self::Grh(grh) => grh.sgid,
        }
    }

    /// Whom it was sent to.
    pub fn dgid(&self) -> Gid {
        match self {
            Self::Ipv4(header) => header.dst.into(),
            Self::Grh(grh) => grh.dgid,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_carriers_are_told_apart() {
        let v4 = Ipv4Header {
            tos: 0,
            total_len: 308,
            id: 0,
            flags_fragment: Ipv4Header::DONT_FRAGMENT,
            ttl: 64,
            protocol: Ipv4Header::UDP,
            checksum: 0,
            src: [10, 77, 0, 2].into(),
            dst: [10, 77, 0, 1].into(),
        };
        // V20 of spec/softhca.md 1.17
        assert_eq!(v4.computed_checksum(), 0x251d);
        let area = GrhArea::Ipv4(v4.with_checksum());
        assert_eq!(area.sgid().to_string(), "::ffff:10.77.0.2");
        assert_eq!(GrhArea::parse(&area.to_bytes()), Ok(area));
        // Some devices leave the first 20 bytes untouched.
        let mut dirty = area.to_bytes();
        dirty[..20].fill(0x66);
        assert_eq!(GrhArea::parse(&dirty), Ok(area));

        let mut v6 = [0; 40];
        v6[0] = 0x60;
        v6[20] = 0x45;
        let area = GrhArea::parse(&v6).unwrap();
        assert_eq!((area.to_bytes(), area.dgid().0[0]), (v6, 0));
        assert!(matches!(area, GrhArea::Grh(_)));
        assert!(GrhArea::parse(&[0; 40]).is_err());
        assert!(GrhArea::parse(&v6[..39]).is_err());
    }
}
