//! The header that requests addressed by IP carry at the start of their private data.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ibwire::{PrivateData, PrivateDataTooLong};

/// The IP addressing annex's header: who connects from which address and port to which address (spec/cm.md 7.2).
///
/// It fills the first 36 bytes of the private data of a REQ or SIDR_REQ. The destination's port is in the service ID.
///
/// ```
/// use ibcm::{PrivateData, proto::message::IpHeader};
/// let header = IpHeader::new("10.0.0.1:4660".parse()?, "10.0.0.2".parse()?).ok_or("one v4, one v6")?;
/// let area: PrivateData<92> = header.private_data(b"hello")?;
/// let (read, user) = IpHeader::split(&area)?;
/// assert_eq!(read, header);
/// assert_eq!(&user[..5], b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IpHeader {
    source_port: u16,
    addresses: Addresses,
}

/// Both of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Addresses {
    V4 { source: Ipv4Addr, destination: Ipv4Addr },
    V6 { source: Ipv6Addr, destination: Ipv6Addr },
}

/// The first 36 bytes of the private data are no IP header; such a REQ is to be rejected with reason 28, such a SIDR_REQ
/// refused with status 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IpHeaderError {
    /// The version is not 0.0.
    #[error("IP CM header version {major}.{minor}")]
    Version {
        /// Bits 7:4 of the first byte.
        major: u8,
        /// Bits 3:0 of the first byte.
        minor: u8,
    },
    /// The IP version is neither 4 nor 6.
    #[error("IP version {0} in the IP CM header")]
    IpVersion(u8),
}

impl IpHeader {
    /// Length of the header, bytes.
    pub const LEN: usize = 36;
    /// What it leaves of a REQ's private data, bytes.
    pub const USER_LEN: usize = 92 - Self::LEN;
    /// What it leaves of a SIDR_REQ's private data, bytes.
    pub const SIDR_USER_LEN: usize = 216 - Self::LEN;

    /// The header of a connection from `source` to `destination`, `None` if they are of different families.
    pub const fn new(source: SocketAddr, destination: IpAddr) -> Option<Self> {
        let addresses = match (source.ip(), destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Addresses::V4 { source, destination },
            (IpAddr::V6(source), IpAddr::V6(destination)) => Addresses::V6 { source, destination },
            _ => return None,
        };
        Some(Self { source_port: source.port(), addresses })
    }

    /// Who connects.
    pub const fn source(&self) -> SocketAddr {
        let ip = match self.addresses {
            Addresses::V4 { source, .. } => IpAddr::V4(source),
            Addresses::V6 { source, .. } => IpAddr::V6(source),
        };
        SocketAddr::new(ip, self.source_port)
    }

    /// Who is wanted.
    pub const fn destination(&self) -> IpAddr {
        match self.addresses {
            Addresses::V4 { destination, .. } => IpAddr::V4(destination),
            Addresses::V6 { destination, .. } => IpAddr::V6(destination),
        }
    }

    /// Reads the header. Of an IPv4 address only the last four of its 16 bytes count.
    ///
    /// # Errors
    /// [`IpHeaderError`] for an unknown version.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, IpHeaderError> {
        let [version, ip_version, port_high, port_low, addresses @ ..] = bytes;
        if *version != 0 {
            return Err(IpHeaderError::Version { major: version >> 4, minor: version & 0x0f });
        }
        let [source, destination] = [0, 16].map(|at| {
            let mut address = [0; 16];
            address.copy_from_slice(&addresses[at..at + 16]);
            address
        });
        let v4 = |[.., a, b, c, d]: [u8; 16]| Ipv4Addr::new(a, b, c, d);
        let addresses = match ip_version >> 4 {
            4 => Addresses::V4 { source: v4(source), destination: v4(destination) },
            6 => Addresses::V6 { source: source.into(), destination: destination.into() },
            other => return Err(IpHeaderError::IpVersion(other)),
        };
        Ok(Self { source_port: u16::from_be_bytes([*port_high, *port_low]), addresses })
    }

    /// Writes the header.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[2..4].copy_from_slice(&self.source_port.to_be_bytes());
        match self.addresses {
            Addresses::V4 { source, destination } => {
                bytes[1] = 4 << 4;
                bytes[16..20].copy_from_slice(&source.octets());
                bytes[32..36].copy_from_slice(&destination.octets());
            }
            Addresses::V6 { source, destination } => {
                bytes[1] = 6 << 4;
                bytes[4..20].copy_from_slice(&source.octets());
                bytes[20..36].copy_from_slice(&destination.octets());
            }
        }
        bytes
    }

    /// The private data of a REQ or SIDR_REQ: this header, `user`, zeros.
    ///
    /// # Errors
    /// [`PrivateDataTooLong`] if `user` is longer than what the header leaves of the `N` bytes.
    pub fn private_data<const N: usize>(&self, user: &[u8]) -> Result<PrivateData<N>, PrivateDataTooLong> {
        const { assert!(N >= Self::LEN, "no room for the IP header") };
        let max = N - Self::LEN;
        if user.len() > max {
            return Err(PrivateDataTooLong { len: user.len(), max });
        }
        let mut area = [0; N];
        area[..Self::LEN].copy_from_slice(&self.encode());
        area[Self::LEN..][..user.len()].copy_from_slice(user);
        Ok(PrivateData::from_area(area))
    }

    /// Takes the private data of a REQ or SIDR_REQ apart: the header, and what is left for the application.
    ///
    /// # Errors
    /// [`IpHeaderError`] if there is no header of a known version.
    pub fn split<const N: usize>(private_data: &PrivateData<N>) -> Result<(Self, &[u8]), IpHeaderError> {
        const { assert!(N >= Self::LEN, "no room for the IP header") };
        let (header, user) = private_data.as_bytes().split_first_chunk().expect("it has room for the header");
        Ok((Self::decode(header)?, user))
    }
}
