//! An InfiniBand packet as an ERF record.

use std::time::Duration;

/// A packet from the LRH through the VCRC in an Extensible Record Format record (spec/raw.md 1.8).
#[derive(Debug, Clone, Copy)]
pub struct ErfRecord<'a> {
    /// When it was sent.
    pub since_epoch: Duration,
    /// Whether it never arrived: Wireshark shows such a record with "RX error".
    pub lost: bool,
    /// The packet.
    pub packet: &'a [u8],
}

impl ErfRecord<'_> {
    const HEADER_LEN: usize = 16;
    const INFINIBAND: u8 = 21;
    const VARYING_LENGTH: u8 = 0x04;
    const RX_ERROR: u8 = 0x10;

    /// Appends the record.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        let fraction = (u64::from(self.since_epoch.subsec_nanos()) << 32) / 1_000_000_000;
        let timestamp = self.since_epoch.as_secs() << 32 | fraction;
        let len = self.packet.len() as u16;
        out.extend_from_slice(&timestamp.to_le_bytes());
        out.push(Self::INFINIBAND);
        out.push(Self::VARYING_LENGTH | if self.lost { Self::RX_ERROR } else { 0 });
        out.extend_from_slice(&(Self::HEADER_LEN as u16 + len).to_be_bytes());
        out.extend_from_slice(&0u16.to_be_bytes());
        out.extend_from_slice(&len.to_be_bytes());
        out.extend_from_slice(self.packet);
    }
}
