//! The ICRC of many packets between the same addresses: what their headers contribute is computed once.
//!
//! A CRC is linear: what one byte changes does not depend on the others. So the Identification is added to headers that
//! have none, and the masked byte of the BTH is taken back before the BTH comes: the rest of the packet is one piece.

use super::{IPV4_UDP_LEN, Icrc, MASKED_BTH_BYTE, POLYNOMIAL, mask_class_flow_hops};
use crate::packet::{Grh, Lrh};

/// The part of an ICRC that lies in front of the BTH. It is the same for all packets with the same headers there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcrcStart(u32);

impl IcrcStart {
    /// CRC-32 of the eight bytes 0xff that stand for the LRH where there is none, or where all of it may change.
    const PSEUDO_LRH: u32 = 0x2144_df1c;

    /// Of an InfiniBand packet without a GRH.
    pub fn local(lrh: &Lrh) -> Self {
        Self::behind_lrh(&lrh.to_bytes())
    }

    /// Of an InfiniBand packet with this GRH. It does not depend on the LRH.
    pub fn global(grh: &Grh) -> Self {
        Self::behind_grh(&grh.to_bytes())
    }

    pub(super) fn behind_lrh(lrh: &[u8; Lrh::LEN]) -> Self {
        let mut lrh = *lrh;
        lrh[0] |= 0xf0;
        Self(crc32fast::hash(&lrh))
    }

    pub(super) fn behind_grh(grh: &[u8; Grh::LEN]) -> Self {
        let mut grh = *grh;
        mask_class_flow_hops(&mut grh);
        Self::behind_pseudo_lrh(&grh)
    }

    pub(super) fn behind_pseudo_lrh(masked_headers: &[u8]) -> Self {
        let mut crc = crc32fast::Hasher::new_with_initial(Self::PSEUDO_LRH);
        crc.update(masked_headers);
        Self(crc.finalize())
    }

    /// The ICRC of the packet with `transport`, BTH through padding. A start that was made for a length is for this one.
    #[inline]
    pub fn icrc(self, transport: &[u8]) -> Icrc {
        let mask = transport.get(MASKED_BTH_BYTE).map_or(0, |byte| TAKEN_BACK[usize::from(*byte)]);
        let mut crc = crc32fast::Hasher::new_with_initial(self.0 ^ mask);
        crc.update(transport);
        Icrc(crc.finalize().to_le_bytes())
    }
}

/// The [`IcrcStart`] of a packet over IPv4 with Identification 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv4Start(IcrcStart);

impl Ipv4Start {
    pub(super) const fn new(start: IcrcStart) -> Self {
        Self(start)
    }

    /// The start of the same packet with another Identification.
    #[inline]
    pub fn with_id(self, id: u16) -> IcrcStart {
        let [high, low] = id.to_be_bytes();
        IcrcStart(self.0.0 ^ ID_HIGH[usize::from(high)] ^ ID_LOW[usize::from(low)])
    }
}

/// Where the Identification stands in the IPv4 header.
const ID_AT: usize = 4;

/// By the value of a byte: how it changes the CRC of headers that had 0 there.
static ID_HIGH: [u32; 256] = each_byte(0, (IPV4_UDP_LEN - ID_AT) as i32);
static ID_LOW: [u32; 256] = each_byte(0, (IPV4_UDP_LEN - ID_AT - 1) as i32);

/// By the value of the masked byte: what a CRC that starts with it makes of it is what the other makes of 0xff.
static TAKEN_BACK: [u32; 256] = each_byte(0xff, -(MASKED_BTH_BYTE as i32));

/// For each value of a byte: its difference from another one, times x to the power of eight times `bytes`.
const fn each_byte(other: u8, bytes: i32) -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut difference = byte as u32 ^ other as u32;
        let mut bit = 0;
        while bit < 8 * bytes {
            difference = difference >> 1 ^ POLYNOMIAL & (difference & 1).wrapping_neg();
            bit += 1;
        }
        while bit > 8 * bytes {
            let reduced = difference >> 31 != 0;
            difference = if reduced { (difference ^ POLYNOMIAL) << 1 | 1 } else { difference << 1 };
            bit -= 1;
        }
        table[byte] = difference;
        byte += 1;
    }
    table
}
