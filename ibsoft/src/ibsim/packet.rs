//! The two kinds of datagrams: control messages of 80 bytes, packets of 288.

use ibdev::MAD_LEN;
use ibwire::{Lid, Qpn};

/// A control message (spec/sa.md 8.2): numbers in the machine's own order.
#[derive(Debug, Clone, Copy)]
pub(super) struct Control {
    pub slot: u32,
    pub kind: u32,
    pub data: [u8; 64],
}

impl Control {
    pub(super) const LEN: usize = 80;
    pub(super) const CONNECT: u32 = 1;
    pub(super) const DISCONNECT: u32 = 2;
    pub(super) const GET_PORTINFO: u32 = 8;
    pub(super) const GET_PKEYS: u32 = 10;
    const MAGIC: u32 = 0xdead_beef;

    pub(super) fn new(slot: u32, kind: u32) -> Self {
        Self { slot, kind, data: [0; 64] }
    }

    /// The request to be attached to a node. Packets for QP1 that are no answers go to who says that it has an SM.
    pub(super) fn connect(id: u32, node: &str) -> Self {
        let mut data = [0; 64];
        data[..4].copy_from_slice(&id.to_ne_bytes());
        data[4..8].copy_from_slice(&Qpn::GSI.get().to_ne_bytes());
        data[8..12].copy_from_slice(&1u32.to_ne_bytes());
        data[12..12 + node.len()].copy_from_slice(node.as_bytes());
        Self { slot: 0, kind: Self::CONNECT, data }
    }

    /// The longest name of a node; a NUL follows it.
    pub(super) const MAX_NODE: usize = 31;

    pub(super) fn to_bytes(self) -> [u8; Self::LEN] {
        let used: u32 = match self.kind {
            Self::CONNECT => 44,
            _ => 64,
        };
        let mut out = [0; Self::LEN];
        for (at, word) in [Self::MAGIC, self.slot, self.kind, used].into_iter().enumerate() {
            out[4 * at..][..4].copy_from_slice(&word.to_ne_bytes());
        }
        out[16..].copy_from_slice(&self.data);
        out
    }

    /// `None` for what is no control message.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let data = *bytes.last_chunk()?;
        (word(0) == Self::MAGIC).then(|| Self { slot: word(4), kind: word(8), data })
    }

    /// The slot that a reply to [`connect`](Self::connect) gives.
    pub(super) fn given_slot(&self) -> u32 {
        u32::from_ne_bytes([self.data[0], self.data[1], self.data[2], self.data[3]])
    }
}

/// A packet (spec/sa.md 8.3).
#[derive(Debug, Clone)]
pub(super) struct Packet {
    pub dlid: Lid,
    pub slid: Lid,
    pub dqp: Qpn,
    pub sqp: Qpn,
    /// 0, or 110 if nobody is there: then it is our own that comes back.
    pub status: u32,
    pub mad: [u8; MAD_LEN],
}

impl Packet {
    pub(super) const LEN: usize = 288;

    pub(super) fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..2].copy_from_slice(&self.dlid.0.to_be_bytes());
        out[4..6].copy_from_slice(&self.slid.0.to_be_bytes());
        out[8..12].copy_from_slice(&self.dqp.get().to_be_bytes());
        out[12..16].copy_from_slice(&self.sqp.get().to_be_bytes());
        out[16..20].copy_from_slice(&self.status.to_be_bytes());
        out[24..32].copy_from_slice(&(MAD_LEN as u64).to_be_bytes());
        out[32..].copy_from_slice(&self.mad);
        out
    }

    /// `None` for what is no packet.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let be16 = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let be32 = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Some(Self {
            dlid: Lid(be16(0)),
            slid: Lid(be16(4)),
            dqp: Qpn::truncate(be32(8)),
            sqp: Qpn::truncate(be32(12)),
            status: be32(16),
            mad: *bytes.last_chunk()?,
        })
    }
}
