//! InfiniBand packets from the LRH through the VCRC.

use std::ops::Range;

use ibwire::icrc::{self, Icrc};
use ibwire::packet::{Bth, Grh, Lrh, NextHeader, link_frame};
use ibwire::vcrc::{self, Vcrc};

use crate::engine::{NetHeader, NetRoute};

/// Why a frame was dropped by the port that received it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    /// It ends before its headers do.
    #[error("too short")]
    TooShort,
    /// PktLen or PayLen are not what arrived.
    #[error("wrong length field")]
    Length,
    /// Changed between two ports.
    #[error("wrong VCRC")]
    Vcrc,
    /// Changed between two HCAs.
    #[error("wrong ICRC")]
    Icrc,
    /// No transport packet.
    #[error("raw packet or unknown header")]
    Header,
}

/// The frame around `transport`, which is BTH through padding.
pub(super) fn encode(net: &NetHeader, transport: &[u8]) -> Vec<u8> {
    let grh = net.route.map(|route| Grh {
        traffic_class: route.traffic_class,
        flow_label: route.flow_label,
        payload_len: 0,
        next_header: Grh::NEXT_BTH,
        hop_limit: route.hop_limit,
        sgid: route.sgid,
        dgid: route.dgid,
    });
    let lrh = Lrh {
        vl: 0,
        sl: net.sl,
        next: NextHeader::Bth,
        dlid: net.dlid,
        words: 0,
        slid: net.slid,
        reserved: 0,
    };
    link_frame(lrh, grh, transport)
}

/// What a port finds in a frame: the network layer, and where BTH through padding stand. Both CRCs are checked.
pub(super) fn decode(frame: &[u8]) -> Result<(NetHeader, Range<usize>), FrameError> {
    let (covered, vcrc) = frame.split_last_chunk().ok_or(FrameError::TooShort)?;
    if vcrc::of(covered) != Vcrc(*vcrc) {
        return Err(FrameError::Vcrc);
    }
    let lrh = Lrh::parse(covered).map_err(|_| FrameError::Header)?;
    if usize::from(lrh.words) * 4 != covered.len() {
        return Err(FrameError::Length);
    }
    let (packet, icrc) = covered.split_last_chunk().ok_or(FrameError::TooShort)?;
    let (route, bth_at) = match lrh.next {
        NextHeader::Bth => (None, Lrh::LEN),
        NextHeader::Grh => {
            let grh = Grh::parse(&covered[Lrh::LEN..]).map_err(|_| FrameError::Header)?;
            let bth_at = Lrh::LEN + Grh::LEN;
            if grh.next_header != Grh::NEXT_BTH {
                return Err(FrameError::Header);
            }
            if usize::from(grh.payload_len) != covered.len() - bth_at {
                return Err(FrameError::Length);
            }
            (Some(grh), bth_at)
        }
        _ => return Err(FrameError::Header),
    };
    if packet.len() < bth_at + Bth::LEN {
        return Err(FrameError::TooShort);
    }
    if icrc::of_ib_frame(packet) != Ok(Icrc(*icrc)) {
        return Err(FrameError::Icrc);
    }
    let route = route.map(|grh| NetRoute {
        sgid: grh.sgid,
        dgid: grh.dgid,
        flow_label: grh.flow_label,
        traffic_class: grh.traffic_class,
        hop_limit: grh.hop_limit,
        ip_id: 0,
    });
    Ok((NetHeader { slid: lrh.slid, dlid: lrh.dlid, sl: lrh.sl, route }, bth_at..packet.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ibwire::{FlowLabel, Gid, Guid, Lid, ServiceLevel};

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    /// N2 and N3 of spec/softhca.md 1.17.
    const LOCAL: &str = "00020002000800010400ffff00000011801111110001020304050607f92e27fab135";
    const GLOBAL: &str = "00030002001200016120034500181b40fe80000000000000020000fffe000001fe80000000000000\
        020000fffe0000020400ffff0000001180111111000102030405060701bbc29c7069";

    fn net(route: Option<NetRoute>) -> NetHeader {
        NetHeader { slid: Lid(1), dlid: Lid(2), sl: ServiceLevel::truncate(0), route }
    }

    fn route() -> NetRoute {
        NetRoute {
            sgid: Gid::link_local(Guid(0x0200_00ff_fe00_0001)),
            dgid: Gid::link_local(Guid(0x0200_00ff_fe00_0002)),
            flow_label: FlowLabel::truncate(0x345),
            traffic_class: 0x12,
            hop_limit: 64,
            ip_id: 0,
        }
    }

    #[test]
    fn hca_t01_frames_are_those_of_the_vectors() {
        for (bytes, net) in [(LOCAL, net(None)), (GLOBAL, net(Some(route())))] {
            let frame = hex(bytes);
            let (header, transport) = decode(&frame).unwrap();
            assert_eq!(header, net);
            assert_eq!(encode(&header, &frame[transport]), frame);
        }
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        for bytes in [LOCAL, GLOBAL] {
            let frame = hex(bytes);
            for bit in 0..frame.len() * 8 {
                let mut frame = frame.clone();
                frame[bit / 8] ^= 1 << (bit % 8);
                assert!(decode(&frame).is_err(), "bit {bit}");
            }
            for len in 0..frame.len() {
                assert!(decode(&frame[..len]).is_err(), "{len} bytes");
            }
        }
    }

    /// A packet with a GRH has an ICRC that does not cover the LRH, and a VCRC is soon made.
    #[test]
    fn lengths_have_to_be_what_arrived() {
        let mut frame = hex(GLOBAL);
        let covered = frame.len() - Vcrc::LEN;
        frame[5] += 1;
        let vcrc = vcrc::of(&frame[..covered]);
        frame[covered..].copy_from_slice(&vcrc.0);
        assert_eq!(decode(&frame), Err(FrameError::Length));
    }

    #[test]
    fn a_switch_that_damages_a_packet_is_caught_by_the_icrc() {
        let mut frame = hex(LOCAL);
        let covered = frame.len() - Vcrc::LEN;
        frame[covered - Icrc::LEN - 1] ^= 1;
        let vcrc = vcrc::of(&frame[..covered]);
        frame[covered..].copy_from_slice(&vcrc.0);
        assert_eq!(decode(&frame), Err(FrameError::Icrc));
    }
}
