//! A packet as it goes over an InfiniBand link.

use super::{Grh, Lrh, NextHeader};
use crate::icrc::{Icrc, IcrcStart};
use crate::vcrc::{self, Vcrc};

/// The packet around `transport`, which is BTH through padding: LRH, GRH if there is one, `transport`, ICRC, VCRC.
///
/// What the headers say of the packet's length and of what follows them is overwritten by what is so.
pub fn link_frame(lrh: Lrh, grh: Option<Grh>, transport: &[u8]) -> Vec<u8> {
    let covered = Lrh::LEN + grh.map_or(0, |_| Grh::LEN) + transport.len() + Icrc::LEN;
    let next = if grh.is_some() { NextHeader::Grh } else { NextHeader::Bth };
    let lrh = Lrh { next, words: (covered / 4) as u16, ..lrh };
    let mut frame = Vec::with_capacity(covered + Vcrc::LEN);
    frame.extend_from_slice(&lrh.to_bytes());
    let start = match grh {
        Some(grh) => {
            let payload_len = (transport.len() + Icrc::LEN) as u16;
            let grh = Grh { payload_len, next_header: Grh::NEXT_BTH, ..grh };
            frame.extend_from_slice(&grh.to_bytes());
            IcrcStart::global(&grh)
        }
        None => IcrcStart::local(&lrh),
    };
    frame.extend_from_slice(transport);
    frame.extend_from_slice(&start.icrc(transport).0);
    let vcrc = vcrc::of(&frame);
    frame.extend_from_slice(&vcrc.0);
    frame
}
