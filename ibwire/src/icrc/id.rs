//! Which Identification an IPv4 packet had, from its ICRC (spec/softhca.md 1.10).
//!
//! A CRC is linear: the difference between the received ICRC and the one for Identification 0 is the difference
//! of the header bytes, as a polynomial, times x to the number of bits behind them. That factor has an inverse,
//! so one multiplication gives the header bytes that make the ICRC right. They are believed only if they differ
//! in the Identification alone, or also in DF.

use super::{Icrc, Ipv4Pseudo, Ipv4Start, POLYNOMIAL};
use crate::packet::{Ipv4Header, UdpHeader};

/// How an Identification was found, from the strongest check of the ICRC to the weakest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IdClass {
    /// It is 0: 32 bits of the ICRC were checked.
    Zero,
    /// It is one of the next numbers of a sender that counts: about 30 bits were checked.
    Predicted,
    /// It was solved for: 16 bits were checked.
    Solved,
    /// It was solved for, and the packet must have been sent without DF: 16 bits were checked.
    SolvedWithoutDf,
}

/// The Identification that makes a packet's ICRC right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FoundId {
    /// The Identification.
    pub id: u16,
    /// How it was found, so how far the ICRC can be trusted.
    pub class: IdClass,
}

/// How far ahead of the last Identification the next one is looked for.
const PREDICTED_AHEAD: u16 = 4;

impl Ipv4Pseudo {
    /// Checks the ICRC of a received packet whose Identification the socket did not show.
    ///
    /// `transport` is the packet from the BTH through the padding, `received` the ICRC behind it. `last` is the
    /// Identification of the sender's previous packet, if known. [`id`](Self::id) and
    /// [`dont_fragment`](Self::dont_fragment) are not looked at. `None`: the packet is damaged.
    pub fn find_id(&self, transport: &[u8], received: Icrc, last: Option<u16>) -> Option<FoundId> {
        let assumed = Self { dont_fragment: true, ..*self };
        assumed.start(transport.len()).find_id(transport, received, last, 0)
    }
}

impl Ipv4Start {
    /// The same as [`Ipv4Pseudo::find_id`]; this start was made for a packet of that length with DF. It is found faster if
    /// it is `guess`.
    pub fn find_id(self, transport: &[u8], received: Icrc, last: Option<u16>, guess: u16) -> Option<FoundId> {
        let difference = self.with_id(guess).icrc(transport).value() ^ received.value();
        let (difference, flags, fragment) = if difference == 0 {
            (0, 0, 0)
        } else {
            let behind = Ipv4Header::LEN - ID_AND_FLAGS_END + UdpHeader::LEN + transport.len();
            let [high, low, flags, fragment] = difference_before(difference, behind).to_le_bytes();
            (u16::from_be_bytes([high, low]), flags, fragment)
        };
        let id = guess ^ difference;
        let class = match (flags, fragment) {
            (0, 0) if id == 0 => IdClass::Zero,
            (0, 0) if is_predicted(id, last) => IdClass::Predicted,
            (0, 0) => IdClass::Solved,
            (0x40, 0) => IdClass::SolvedWithoutDf,
            _ => return None,
        };
        Some(FoundId { id, class })
    }
}

fn is_predicted(id: u16, last: Option<u16>) -> bool {
    last.is_some_and(|last| (1..=PREDICTED_AHEAD).contains(&id.wrapping_sub(last)))
}

/// Where the flags end in the IPv4 header; Identification and flags are the four bytes before.
const ID_AND_FLAGS_END: usize = 8;

/// The four bytes that make a CRC differ by `difference` when `behind` equal bytes follow them.
fn difference_before(difference: u32, behind: usize) -> u32 {
    // A CRC-32 is the message times x^32.
    let mut bytes = behind + 4;
    let mut product = difference;
    for power in &INVERSE_POWERS {
        if bytes & 1 != 0 {
            product = times(power, product);
        }
        bytes >>= 1;
    }
    product
}

/// The multiples of a polynomial by each value of each four bits of another.
type Multiples = [[u32; 16]; 8];

fn times(multiples: &Multiples, factor: u32) -> u32 {
    let part = |(k, multiples): (usize, &[u32; 16])| multiples[(factor >> (4 * k)) as usize % 16];
    multiples.iter().enumerate().map(part).fold(0, |sum, part| sum ^ part)
}

/// x to the power of -8 * 2^k. 17 of them reach beyond the longest packet.
static INVERSE_POWERS: [Multiples; 17] = {
    let mut inverse = 1 << 31;
    let mut bit = 0;
    while bit < 8 {
        inverse = if inverse >> 31 != 0 { (inverse ^ POLYNOMIAL) << 1 | 1 } else { inverse << 1 };
        bit += 1;
    }
    let mut powers = [[[0; 16]; 8]; 17];
    let mut k = 0;
    while k < powers.len() {
        powers[k] = multiples(inverse);
        inverse = multiply(inverse, inverse);
        k += 1;
    }
    powers
};

const fn multiples(polynomial: u32) -> Multiples {
    let mut multiples = [[0; 16]; 8];
    let mut k = 0;
    while k < 8 * 16 {
        multiples[k / 16][k % 16] = multiply((k as u32 % 16) << (4 * (k / 16)), polynomial);
        k += 1;
    }
    multiples
}

/// Product modulo the CRC-32 polynomial.
const fn multiply(a: u32, b: u32) -> u32 {
    let (mut a, mut b, mut product) = (a, b, 0);
    let mut bit = 0;
    while bit < 32 {
        product ^= b & (a >> 31).wrapping_neg();
        a <<= 1;
        b = b >> 1 ^ POLYNOMIAL & (b & 1).wrapping_neg();
        bit += 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pseudo() -> Ipv4Pseudo {
        Ipv4Pseudo::new("192.0.2.1:49441".parse().unwrap(), "192.0.2.2:4791".parse().unwrap())
    }

    #[test]
    fn every_id_is_found_at_every_length() {
        for len in (12..300).chain([4096 + 28, 65_503]) {
            let transport = vec![0x5a; len];
            let id = (len as u16).wrapping_mul(40_503) | 1;
            let icrc = Ipv4Pseudo { id, ..pseudo() }.icrc(&transport);
            assert_eq!(
                pseudo().find_id(&transport, icrc, None),
                Some(FoundId { id, class: IdClass::Solved })
            );
        }
    }

    #[test]
    fn classes() {
        let transport = [7; 32];
        let find = |id, dont_fragment, last| {
            let icrc = Ipv4Pseudo { id, dont_fragment, ..pseudo() }.icrc(&transport);
            let found = pseudo().find_id(&transport, icrc, last).unwrap();
            assert_eq!(found.id, id);
            found.class
        };
        assert_eq!(find(0, true, Some(0xffff)), IdClass::Zero);
        assert_eq!(find(2, true, Some(0xfffe)), IdClass::Predicted);
        assert_eq!(find(3, true, Some(0xfffe)), IdClass::Solved);
        assert_eq!(find(9, true, Some(9)), IdClass::Solved);
        assert_eq!(find(9, false, Some(8)), IdClass::SolvedWithoutDf);
        assert_eq!(find(0, false, None), IdClass::SolvedWithoutDf);
    }
}
