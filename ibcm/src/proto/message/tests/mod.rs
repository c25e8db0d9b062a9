//! The codecs against bytes that others wrote, and against themselves.

mod captured;
mod decode;
mod golden;
mod ip_header;
mod properties;
mod reject;
mod v1;

use super::*;

/// The header that our own messages carry.
fn header_of(message: &Message, tid: TransactionId) -> MadHeader {
    MadHeader::new(MgmtClass::CM, 2, Method::SEND, message.attribute().into(), tid)
}

/// A MAD from a hex dump; blanks are skipped, what is missing is `fill`.
fn mad_from_hex(hex: &str, fill: u8) -> [u8; MAD_LEN] {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let mut mad = [fill; MAD_LEN];
    for (byte, pair) in mad.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    }
    mad
}

fn encoded(message: &Message, tid: TransactionId) -> [u8; MAD_LEN] {
    let mut mad = [0xee; MAD_LEN]; // what an earlier message left in the buffer
    message.encode(tid, &mut mad);
    mad
}
