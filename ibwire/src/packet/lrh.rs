//! Local route header: the link layer of InfiniBand.

use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::codec::codec;
use crate::{DecodeError, Lid, ServiceLevel};

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LrhLayout {
    vl_lver: u8,
    sl_lnh: u8,
    dlid: U16,
    length: U16,
    slid: U16,
}

/// The local route header of an InfiniBand packet (IBTA vol. 1, 7.7; spec/softhca.md 1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lrh {
    /// Virtual lane, 0..=15; 15 is for management on QP0 only. The low four bits are written.
    pub vl: u8,
    /// Service level.
    pub sl: ServiceLevel,
    /// What follows this header.
    pub next: NextHeader,
    /// Destination.
    pub dlid: Lid,
    /// Length of the packet in words of 4 bytes, from this header through the ICRC. The low eleven bits are written.
    pub words: u16,
    /// Source: base LID plus path bits.
    pub slid: Lid,
    /// The reserved bits as the ICRC covers them: 2 bits beside the LNH in bits 6..5, 5 bits above the length
    /// in bits 4..0. Send 0.
    pub reserved: u8,
}

/// The link next header field of an LRH, 2 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NextHeader {
    /// A raw packet with an EtherType.
    RawEtherType = 0,
    /// A raw IPv6 packet.
    RawIpv6 = 1,
    /// A BTH: the packet stays in its subnet.
    Bth = 2,
    /// A GRH, then a BTH.
    Grh = 3,
}

codec!(Lrh, LrhLayout, 8, "LRH");

impl Lrh {
    fn decode(l: &LrhLayout) -> Result<Self, DecodeError> {
        let lver = l.vl_lver & 0xf;
        if lver != 0 {
            return Err(DecodeError::Invalid { what: "LRH version", offset: 0, value: lver.into() });
        }
        Ok(Self {
            vl: l.vl_lver >> 4,
            sl: ServiceLevel::truncate(l.sl_lnh >> 4),
            next: match l.sl_lnh & 3 {
                0 => NextHeader::RawEtherType,
                1 => NextHeader::RawIpv6,
                2 => NextHeader::Bth,
                _ => NextHeader::Grh,
            },
            dlid: Lid(l.dlid.get()),
            words: l.length.get() & 0x7ff,
            slid: Lid(l.slid.get()),
            reserved: (l.sl_lnh >> 2 & 3) << 5 | (l.length.get() >> 11) as u8,
        })
    }

    fn encode(&self) -> LrhLayout {
        let reserved = u16::from(self.reserved);
        LrhLayout {
            vl_lver: self.vl << 4,
            sl_lnh: self.sl.get() << 4 | (self.reserved >> 5 & 3) << 2 | self.next as u8,
            dlid: U16::new(self.dlid.0),
            length: U16::new((reserved & 0x1f) << 11 | self.words & 0x7ff),
            slid: U16::new(self.slid.0),
        }
    }
}
