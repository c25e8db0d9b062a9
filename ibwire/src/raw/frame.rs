//! Raw packets as they go over an InfiniBand link.

use super::{EtherType, Ipv6Header, Rwh, size};
use crate::DecodeError;
use crate::packet::{Lrh, NextHeader};
use crate::vcrc::{self, Vcrc};

/// The packet that carries `payload` under an EtherType: LRH, RWH, payload, padding, VCRC.
///
/// What the LRH says of the packet's length and of what follows it is overwritten by what is so. How long a payload
/// may be is [`size::max_ether_payload`].
pub fn ether_frame(lrh: Lrh, ether_type: EtherType, payload: &[u8]) -> Vec<u8> {
    let padding = size::ether_padding(payload.len());
    let lrh = Lrh { next: NextHeader::RawEtherType, ..lrh };
    frame(lrh, &[&Rwh::new(ether_type).to_bytes(), payload], padding)
}

/// The packet around an IPv6 packet with its header: LRH, `ipv6`, padding, VCRC.
///
/// What the LRH says of the packet's length and of what follows it is overwritten by what is so. `ipv6` goes out as it
/// is. How long it may be is [`size::max_ipv6_payload`] and its header.
pub fn ipv6_frame(lrh: Lrh, ipv6: &[u8]) -> Vec<u8> {
    frame(Lrh { next: NextHeader::RawIpv6, ..lrh }, &[ipv6], size::ipv6_padding(ipv6.len()))
}

fn frame(lrh: Lrh, parts: &[&[u8]], padding: usize) -> Vec<u8> {
    let covered = Lrh::LEN + parts.iter().map(|part| part.len()).sum::<usize>() + padding;
    let lrh = Lrh { words: (covered / 4) as u16, ..lrh };
    let mut frame = Vec::with_capacity(covered + Vcrc::LEN);
    frame.extend_from_slice(&lrh.to_bytes());
    for part in parts {
        frame.extend_from_slice(part);
    }
    frame.resize(covered, 0);
    let vcrc = vcrc::of(&frame);
    frame.extend_from_slice(&vcrc.0);
    frame
}

/// What stands behind the LRH of a raw packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawHeader {
    /// A raw EtherType packet.
    EtherType(Rwh),
    /// A raw IPv6 packet.
    Ipv6(Ipv6Header),
}

/// The checked view of a raw packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawPacket<'a> {
    /// The link layer.
    pub lrh: Lrh,
    /// What kind it is.
    pub header: RawHeader,
    /// What the header is followed by. Of IPv6 what its header counts; of an EtherType the padding too, which
    /// nothing tells from data.
    pub payload: &'a [u8],
    /// All behind the LRH, header and padding included.
    pub message: &'a [u8],
}

/// Why bytes are not a raw packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RawPacketError {
    /// The VCRC does not match.
    #[error("the VCRC is {found}, not {expected}")]
    Vcrc {
        /// Of the bytes before it.
        expected: Vcrc,
        /// What stands there.
        found: Vcrc,
    },
    /// A header cannot be read.
    #[error(transparent)]
    Header(#[from] DecodeError),
    /// It has a transport header.
    #[error("not a raw packet: {0:?} follows the LRH")]
    NotRaw(NextHeader),
    /// The LRH says another length than the packet has, in words.
    #[error("the LRH counts {counted} words, {have} bytes are there")]
    Length {
        /// What the LRH says.
        counted: u16,
        /// How many bytes there are without the VCRC.
        have: usize,
    },
    /// Fewer words than a packet of its kind has.
    #[error("{words} words are less than {least}")]
    TooShort {
        /// What the LRH says.
        words: u16,
        /// The least.
        least: u16,
    },
    /// More words than one MTU and its headers can be, on a link of any MTU.
    #[error("{words} words are more than {most}")]
    TooLong {
        /// What the LRH says.
        words: u16,
        /// The most.
        most: u16,
    },
    /// The IPv6 header counts more bytes than there are, or leaves more than padding.
    #[error("the IPv6 header counts {counted} bytes of payload, {have} are there")]
    Ipv6Length {
        /// What the IPv6 header says.
        counted: u16,
        /// Bytes behind it, padding included.
        have: usize,
    },
}

/// A packet of the greatest MTU.
const MOST_WORDS: u16 = match size::max_words(crate::Mtu::B4096) {
    Some(words) => words,
    None => panic!("an MTU of the table"),
};

impl<'a> RawPacket<'a> {
    /// Reads and checks a packet from its LRH through its VCRC.
    ///
    /// # Errors
    /// [`RawPacketError`], the first in the order in which a port looks: CRC, LRH, lengths, header.
    pub fn parse(frame: &'a [u8]) -> Result<Self, RawPacketError> {
        let Some((covered, found)) = frame.split_last_chunk::<{ Vcrc::LEN }>() else {
            let (what, need, have) = ("raw packet", Lrh::LEN + Vcrc::LEN, frame.len());
            return Err(DecodeError::Truncated { what, need, have }.into());
        };
        let (expected, found) = (vcrc::of(covered), Vcrc(*found));
        if expected != found {
            return Err(RawPacketError::Vcrc { expected, found });
        }
        Self::parse_covered(covered)
    }

    /// As [`parse`](Self::parse), of the bytes before a VCRC which was checked already.
    ///
    /// # Errors
    /// [`RawPacketError`].
    pub fn parse_covered(covered: &'a [u8]) -> Result<Self, RawPacketError> {
        let lrh = Lrh::parse(covered)?;
        let least = match lrh.next {
            NextHeader::RawEtherType => size::MIN_ETHER_WORDS,
            NextHeader::RawIpv6 => size::MIN_IPV6_WORDS,
            next => return Err(RawPacketError::NotRaw(next)),
        };
        let words = lrh.words;
        if usize::from(words) * 4 != covered.len() {
            return Err(RawPacketError::Length { counted: words, have: covered.len() });
        }
        if words < least {
            return Err(RawPacketError::TooShort { words, least });
        }
        if words > MOST_WORDS {
            return Err(RawPacketError::TooLong { words, most: MOST_WORDS });
        }
        let message = &covered[Lrh::LEN..];
        let (header, payload) = if lrh.next == NextHeader::RawEtherType {
            (RawHeader::EtherType(Rwh::parse(message)?), &message[Rwh::LEN..])
        } else {
            let header = Ipv6Header::parse(message)?;
            let rest = &message[Ipv6Header::LEN..];
            let counted = usize::from(header.payload_len);
            if rest.len() < counted || rest.len() - counted > 3 {
                return Err(RawPacketError::Ipv6Length { counted: header.payload_len, have: rest.len() });
            }
            (RawHeader::Ipv6(header), &rest[..counted])
        };
        Ok(Self { lrh, header, payload, message })
    }
}
