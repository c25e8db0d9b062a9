//! Datagram extended transport header.

use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::codec::{codec, u24, u24_bytes};
use crate::{DecodeError, QKey, Qpn};

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DethLayout {
    qkey: U32,
    reserved: u8,
    src_qp: [u8; 3],
}

/// The datagram extended transport header of UD packets (IBTA vol. 1, 9.3; spec/softhca.md 1.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Deth {
    /// The key of the destination QP.
    pub qkey: QKey,
    /// Who sent it.
    pub src_qp: Qpn,
    /// Reserved byte. Send 0, ignore.
    pub reserved: u8,
}

codec!(Deth, DethLayout, 8, "DETH");

impl Deth {
    /// A header with the reserved byte 0.
    pub const fn new(qkey: QKey, src_qp: Qpn) -> Self {
        Self { qkey, src_qp, reserved: 0 }
    }

    fn decode(l: &DethLayout) -> Result<Self, DecodeError> {
        Ok(Self { qkey: QKey(l.qkey.get()), src_qp: Qpn::truncate(u24(l.src_qp)), reserved: l.reserved })
    }

    fn encode(&self) -> DethLayout {
        DethLayout {
            qkey: U32::new(self.qkey.0),
            reserved: self.reserved,
            src_qp: u24_bytes(self.src_qp.get()),
        }
    }
}
