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

/// `TABLES[k][byte]` is the CRC of `byte` with `k` zero bytes behind it: eight bytes are looked up at a time.
static TABLES: [[u16; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = crc >> 1 ^ POLYNOMIAL & (crc & 1).wrapping_neg();
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut k = 1;
    while k < 8 {
        let mut byte = 0;
        while byte < 256 {
            let shorter = tables[k - 1][byte];
            tables[k][byte] = shorter >> 8 ^ tables[0][(shorter & 0xff) as usize];
            byte += 1;
        }
        k += 1;
    }
    tables
};

/// The VCRC of a packet: `bytes` is all from the LRH through the ICRC, nothing is masked.
pub fn of(bytes: &[u8]) -> Vcrc {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let crc = chunks.iter().fold(0xffff, |crc: u16, chunk| {
        let [low, high] = crc.to_le_bytes();
        let [a, b, c, d, e, f, g, h] = *chunk;
        let look_up = |k: usize, byte: u8| TABLES[k][usize::from(byte)];
        look_up(7, a ^ low)
            ^ look_up(6, b ^ high)
            ^ look_up(5, c)
            ^ look_up(4, d)
            ^ look_up(3, e)
            ^ look_up(2, f)
            ^ look_up(1, g)
            ^ look_up(0, h)
    });
    let crc = rest.iter().fold(crc, |crc, &byte| crc >> 8 ^ TABLES[0][usize::from(crc as u8 ^ byte)]);
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
