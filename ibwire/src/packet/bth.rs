//! Base transport header: in every packet.

use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Opcode;
use crate::codec::{codec, u24, u24_bytes};
use crate::{DecodeError, PKey, Psn, Qpn};

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct BthLayout {
    opcode: u8,
    flags: u8,
    pkey: U16,
    congestion: u8,
    dest_qp: [u8; 3],
    ack: u8,
    psn: [u8; 3],
}

/// The base transport header (IBTA vol. 1, 9.2; spec/softhca.md 1.4).
///
/// Every bit is kept, so a value writes the bytes that it was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bth {
    /// Transport and operation.
    pub opcode: Opcode,
    /// SE: the receiver may wake those who wait for solicited events only.
    pub solicited: bool,
    /// M: the migration state; 1 if migrated, which is a connection's normal state.
    pub mig_req: bool,
    /// How many bytes of padding stand before the ICRC, 0..=3. The low two bits are written.
    pub pad: u8,
    /// Transport header version, 0; others are to be dropped. The low four bits are written.
    pub version: u8,
    /// Partition.
    pub pkey: PKey,
    /// F, FECN: the packet met congestion. The ICRC does not cover it.
    pub fecn: bool,
    /// B, BECN: packets in the other direction met congestion. The ICRC does not cover it.
    pub becn: bool,
    /// Six reserved bits of byte 4, which the ICRC does not cover. Send 0, ignore.
    pub reserved4: u8,
    /// Destination.
    pub dest_qp: Qpn,
    /// A: the responder shall acknowledge now.
    pub ack_req: bool,
    /// Seven reserved bits of byte 8, which the ICRC covers. Send 0, ignore.
    pub reserved8: u8,
    /// Packet sequence number.
    pub psn: Psn,
}

codec!(Bth, BthLayout, 12, "BTH");

impl Bth {
    /// A header with the default P_Key and all flags clear.
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            mig_req: false,
            pad: 0,
            version: 0,
            pkey: PKey::DEFAULT,
            fecn: false,
            becn: false,
            reserved4: 0,
            dest_qp,
            ack_req: false,
            reserved8: 0,
            psn,
        }
    }

    /// The pad count that brings a payload of `len` bytes to a multiple of 4.
    pub const fn pad_for(len: usize) -> u8 {
        (len.wrapping_neg() & 3) as u8
    }

    fn decode(l: &BthLayout) -> Result<Self, DecodeError> {
        Ok(Self {
            opcode: Opcode(l.opcode),
            solicited: l.flags & 0x80 != 0,
            mig_req: l.flags & 0x40 != 0,
            pad: l.flags >> 4 & 3,
            version: l.flags & 0xf,
            pkey: PKey(l.pkey.get()),
            fecn: l.congestion & 0x80 != 0,
            becn: l.congestion & 0x40 != 0,
            reserved4: l.congestion & 0x3f,
            dest_qp: Qpn::truncate(u24(l.dest_qp)),
            ack_req: l.ack & 0x80 != 0,
            reserved8: l.ack & 0x7f,
            psn: Psn::truncate(u24(l.psn)),
        })
    }

    fn encode(&self) -> BthLayout {
        let flags = u8::from(self.solicited) << 7
            | u8::from(self.mig_req) << 6
            | (self.pad & 3) << 4
            | self.version & 0xf;
        BthLayout {
            opcode: self.opcode.0,
            flags,
            pkey: U16::new(self.pkey.0),
            congestion: u8::from(self.fecn) << 7 | u8::from(self.becn) << 6 | self.reserved4 & 0x3f,
            dest_qp: u24_bytes(self.dest_qp.get()),
            ack: u8::from(self.ack_req) << 7 | self.reserved8 & 0x7f,
            psn: u24_bytes(self.psn.get()),
        }
    }
}
