//! IPv4 and UDP headers around a RoCEv2 packet. The IPv6 header is a [`Grh`](super::Grh).

use std::net::Ipv4Addr;

use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::DecodeError;
use crate::codec::codec;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Ipv4Layout {
    version_ihl: u8,
    tos: u8,
    total_len: U16,
    id: U16,
    flags_fragment: U16,
    ttl: u8,
    protocol: u8,
    checksum: U16,
    src: [u8; 4],
    dst: [u8; 4],
}

/// An IPv4 header without options (RFC 791).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ipv4Header {
    /// Type of service: DSCP, and ECN in the low two bits.
    pub tos: u8,
    /// Length in bytes of this header and all behind it.
    pub total_len: u16,
    /// Identification.
    pub id: u16,
    /// Flags in the upper three bits, fragment offset below.
    pub flags_fragment: u16,
    /// Time to live.
    pub ttl: u8,
    /// What follows: [`Ipv4Header::UDP`].
    pub protocol: u8,
    /// Header checksum; see [`Ipv4Header::computed_checksum`].
    pub checksum: u16,
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
}

codec!(Ipv4Header, Ipv4Layout, 20, "IPv4 header");

impl Ipv4Header {
    /// The flag DF in [`flags_fragment`](Self::flags_fragment).
    pub const DONT_FRAGMENT: u16 = 0x4000;
    /// UDP follows.
    pub const UDP: u8 = 17;
    /// Version 4, five words: the first byte of a header without options.
    pub(crate) const VERSION_IHL: u8 = 0x45;

    /// The checksum that belongs to the other fields.
    pub fn computed_checksum(&self) -> u16 {
        let bytes = Self { checksum: 0, ..*self }.to_bytes();
        let sum: u32 =
            bytes.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
        // Ten words carry at most 9, so folding twice is enough.
        let sum = (sum & 0xffff) + (sum >> 16);
        !((sum & 0xffff) + (sum >> 16)) as u16
    }

    /// This header with the checksum that belongs to it.
    #[must_use]
    pub fn with_checksum(self) -> Self {
        Self { checksum: self.computed_checksum(), ..self }
    }

    fn decode(l: &Ipv4Layout) -> Result<Self, DecodeError> {
        if l.version_ihl != Self::VERSION_IHL {
            return Err(DecodeError::Invalid {
                what: "IPv4 version and header length",
                offset: 0,
                value: l.version_ihl.into(),
            });
        }
        Ok(Self {
            tos: l.tos,
            total_len: l.total_len.get(),
            id: l.id.get(),
            flags_fragment: l.flags_fragment.get(),
            ttl: l.ttl,
            protocol: l.protocol,
            checksum: l.checksum.get(),
            src: l.src.into(),
            dst: l.dst.into(),
        })
    }

    fn encode(&self) -> Ipv4Layout {
        Ipv4Layout {
            version_ihl: Self::VERSION_IHL,
            tos: self.tos,
            total_len: U16::new(self.total_len),
            id: U16::new(self.id),
            flags_fragment: U16::new(self.flags_fragment),
            ttl: self.ttl,
            protocol: self.protocol,
            checksum: U16::new(self.checksum),
            src: self.src.octets(),
            dst: self.dst.octets(),
        }
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct UdpLayout {
    src_port: U16,
    dst_port: U16,
    len: U16,
    checksum: U16,
}

/// A UDP header (RFC 768).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UdpHeader {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Length in bytes of this header and all behind it.
    pub len: u16,
    /// Checksum; 0 means none, as RoCEv2 senders write it over IPv6 too.
    pub checksum: u16,
}

codec!(UdpHeader, UdpLayout, 8, "UDP header");

impl UdpHeader {
    /// The destination port of RoCEv2 packets.
    pub const ROCE_PORT: u16 = 4791;
    /// The hop limit (IPv4: TTL) of RoCEv2 packets where nothing else is asked for, as Linux writes it (spec/sa.md 7.4).
    pub const ROCE_HOP_LIMIT: u8 = 64;

    fn decode(l: &UdpLayout) -> Result<Self, DecodeError> {
        Ok(Self {
            src_port: l.src_port.get(),
            dst_port: l.dst_port.get(),
            len: l.len.get(),
            checksum: l.checksum.get(),
        })
    }

    fn encode(&self) -> UdpLayout {
        UdpLayout {
            src_port: U16::new(self.src_port),
            dst_port: U16::new(self.dst_port),
            len: U16::new(self.len),
            checksum: U16::new(self.checksum),
        }
    }
}
