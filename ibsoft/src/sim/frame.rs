//! InfiniBand packets from the LRH through the VCRC.

use std::ops::Range;

use bytes::Bytes;
use ibwire::icrc::{self, Icrc};
use ibwire::packet::{Bth, Grh, Lrh, NextHeader, link_frame};
use ibwire::vcrc::{self, Vcrc};

use crate::engine::{Framing, LinkError, NetHeader, NetRoute};

/// What a port finds in a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    /// The network layer, and where BTH through padding stand. Both CRCs are right.
    Transport(NetHeader, Range<usize>),
    /// A raw packet: it has no ICRC. Where all before the VCRC stands.
    Raw(Range<usize>),
}

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
    #[error("unknown header")]
    Header,
}

impl From<FrameError> for LinkError {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Vcrc => Self::Vcrc,
            FrameError::Icrc => Self::Icrc,
            FrameError::TooShort | FrameError::Length | FrameError::Header => Self::Malformed,
        }
    }
}

/// The frame around what an engine sends.
pub(super) fn encode(net: &NetHeader, framing: Framing, packet: &[u8]) -> Vec<u8> {
    let next = match framing {
        Framing::Transport => return transport_frame(net, packet),
        Framing::RawEtherType => NextHeader::RawEtherType,
        Framing::RawIpv6 => NextHeader::RawIpv6,
    };
    let covered = Lrh::LEN + packet.len();
    let lrh = Lrh { next, words: (covered / 4) as u16, ..lrh(net) };
    let mut frame = Vec::with_capacity(covered + Vcrc::LEN);
    frame.extend_from_slice(&lrh.to_bytes());
    frame.extend_from_slice(packet);
    let vcrc = vcrc::of(&frame);
    frame.extend_from_slice(&vcrc.0);
    frame
}

fn lrh(net: &NetHeader) -> Lrh {
    Lrh { vl: 0, sl: net.sl, next: NextHeader::Bth, dlid: net.dlid, words: 0, slid: net.slid, reserved: 0 }
}

/// The frame around `transport`, which is BTH through padding.
fn transport_frame(net: &NetHeader, transport: &[u8]) -> Vec<u8> {
    let grh = net.route.map(|route| Grh {
        traffic_class: route.traffic_class,
        flow_label: route.flow_label,
        payload_len: 0,
        next_header: Grh::NEXT_BTH,
        hop_limit: route.hop_limit,
        sgid: route.sgid,
        dgid: route.dgid,
    });
    link_frame(lrh(net), grh, transport)
}

/// The frame on another VL, as switches pass it on. One that is damaged stays so.
pub(super) fn on_vl(frame: &[u8], vl: u8) -> Bytes {
    let mut frame = frame.to_vec();
    if let Some((covered, vcrc)) = frame.split_last_chunk_mut()
        && vcrc::of(covered) == Vcrc(*vcrc)
    {
        covered[0] = vl << 4 | covered[0] & 0xf;
        *vcrc = vcrc::of(covered).0;
    }
    frame.into()
}

/// What a port finds in a frame. CRCs and lengths are checked, but not what a raw packet carries.
pub(super) fn decode(frame: &[u8]) -> Result<Content, FrameError> {
    let (covered, vcrc) = frame.split_last_chunk().ok_or(FrameError::TooShort)?;
    if vcrc::of(covered) != Vcrc(*vcrc) {
        return Err(FrameError::Vcrc);
    }
    let lrh = Lrh::parse(covered).map_err(|_| FrameError::Header)?;
    if usize::from(lrh.words) * 4 != covered.len() {
        return Err(FrameError::Length);
    }
    if matches!(lrh.next, NextHeader::RawEtherType | NextHeader::RawIpv6) {
        return Ok(Content::Raw(0..covered.len()));
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
    let net = NetHeader { slid: lrh.slid, dlid: lrh.dlid, sl: lrh.sl, route };
    Ok(Content::Transport(net, bth_at..packet.len()))
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
            let Content::Transport(header, transport) = decode(&frame).unwrap() else { panic!("raw") };
            assert_eq!(header, net);
            assert_eq!(encode(&header, Framing::Transport, &frame[transport]), frame);
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

    /// V2 and V3 of spec/raw.md 1.7.
    const ETHER: &str = "2030001000050020000088b568656c6c6f000000030a";
    const IPV6: &str = "1041c001000f000260000000000c1101fe800000000000000000000000000001ff0200000000000000000000\
        0000000104d2162e000c088070696e67d51e";

    #[test]
    fn raw_frames_are_those_of_the_vectors() {
        for (bytes, framing) in [(ETHER, Framing::RawEtherType), (IPV6, Framing::RawIpv6)] {
            let mut frame = hex(bytes);
            let Content::Raw(covered) = decode(&frame).unwrap() else { panic!("a transport packet") };
            let lrh = Lrh::parse(&frame[covered.clone()]).unwrap();
            let net = NetHeader { slid: lrh.slid, dlid: lrh.dlid, sl: lrh.sl, route: None };
            let built = encode(&net, framing, &frame[Lrh::LEN..covered.end]);
            // An HCA sends on VL 0 here.
            frame[0] = 0;
            let vcrc = vcrc::of(&frame[..covered.end]);
            frame[covered.end..].copy_from_slice(&vcrc.0);
            assert_eq!(built, frame);
        }
    }

    #[test]
    fn raw_t02_every_flipped_bit_of_a_raw_packet_is_counted() {
        let mut engine = crate::engine::Engine::new(crate::engine::Config::new(
            crate::engine::device_attr("raw", Guid(1), 1),
            Vec::new(),
            [0; 32],
        ));
        let mut frame = hex(IPV6);
        let bits = frame.len() as u64 * 8;
        for bit in 0..frame.len() * 8 {
            frame[bit / 8] ^= 1 << (bit % 8);
            engine.handle_link_error(decode(&frame).unwrap_err().into());
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(engine.counters().drop_vcrc, bits);
        assert!(decode(&frame).is_ok());
    }

    #[test]
    fn raw_t03_a_hop_to_another_lane_has_another_vcrc() {
        let mut moved = hex(ETHER);
        moved[0] = 0x50;
        let covered = moved.len() - Vcrc::LEN;
        assert_eq!(decode(&moved), Err(FrameError::Vcrc));
        let damaged = moved.clone();
        moved[covered..].copy_from_slice(&[0xb7, 0xd5]);
        assert_eq!(decode(&moved), Ok(Content::Raw(0..covered)));
        assert_eq!(on_vl(&hex(ETHER), 5), moved);
        assert_eq!(decode(&on_vl(&damaged, 2)), Err(FrameError::Vcrc), "a switch repairs nothing");
    }
}
