//! The variant CRC at the end of a packet on an InfiniBand link (IBTA vol. 1, 7.8.2; spec/softhca.md 1.9).

use std::fmt;

/// The two bytes at the end of a packet, in the order in which they stand there: least significant first.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Vcrc(pub [u8; 2]);

impl Vcrc {
    /// Length in bytes.
    pub const LEN: usize = 2;
}

impl fmt::Display for Vcrc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", u16::from_le_bytes(self.0))
    }
}

impl fmt::Debug for Vcrc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vcrc({self})")
    }
}

/// The polynomial 0x100b with its bits reversed.
const POLYNOMIAL: u16 = 0xd008;

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = crc >> 1 ^ POLYNOMIAL & (crc & 1).wrapping_neg();
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The VCRC of a packet: `bytes` is all from the LRH through the ICRC, nothing is masked.
pub fn of(bytes: &[u8]) -> Vcrc {
    let crc = bytes.iter().fold(0xffff, |crc: u16, &byte| crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)]);
    Vcrc((!crc).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_value() {
        assert_eq!(of(b"123456789").to_string(), "0x0a3d");
    }
}
