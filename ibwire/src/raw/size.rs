//! How long raw packets may be (spec/raw.md 2).
//!
//! The length field of an LRH counts words of 4 bytes from the LRH through the last byte of the padded payload; the VCRC
//! is not counted. All headers of a packet may have 124 bytes beside a payload of one MTU, and what headers a raw packet
//! lacks its payload may use.

use super::{Ipv6Header, Rwh};
use crate::Mtu;
use crate::packet::Lrh;

/// Bytes of headers that a packet may have beside one MTU of payload.
pub const HEADERS: usize = 124;

/// The least words of a raw EtherType packet: a shorter payload is padded to 8 bytes.
pub const MIN_ETHER_WORDS: u16 = 5;

/// The least words of a raw IPv6 packet: LRH and IPv6 header.
pub const MIN_IPV6_WORDS: u16 = 12;

/// The most words that a raw packet has on a link of this MTU; `None` for a code that is no MTU.
pub const fn max_words(mtu: Mtu) -> Option<u16> {
    match mtu.bytes() {
        Some(bytes) => Some(((bytes as usize + HEADERS) / 4) as u16),
        None => None,
    }
}

/// The longest payload behind an RWH in bytes; `None` for a code that is no MTU.
pub const fn max_ether_payload(mtu: Mtu) -> Option<usize> {
    match max_words(mtu) {
        Some(words) => Some(words as usize * 4 - Lrh::LEN - Rwh::LEN),
        None => None,
    }
}

/// The longest payload behind the IPv6 header in bytes; `None` for a code that is no MTU.
pub const fn max_ipv6_payload(mtu: Mtu) -> Option<usize> {
    match max_words(mtu) {
        Some(words) => Some(words as usize * 4 - Lrh::LEN - Ipv6Header::LEN),
        None => None,
    }
}

/// Zeros behind the payload of a raw EtherType packet of `len` bytes.
pub const fn ether_padding(len: usize) -> usize {
    let least = MIN_ETHER_WORDS as usize * 4 - Lrh::LEN - Rwh::LEN;
    if len < least { least - len } else { len.next_multiple_of(4) - len }
}

/// Zeros behind a raw IPv6 packet of `len` bytes, its header included.
pub const fn ipv6_padding(len: usize) -> usize {
    len.next_multiple_of(4) - len
}
