//! The vectors of spec/raw.md 1.7 and its table of sizes, both ways.

use super::*;
use crate::packet::{Lrh, NextHeader as Next};
use crate::vcrc;
use crate::{Lid, Mtu, ServiceLevel};

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn lrh(vl: u8, sl: u8, dlid: u16, slid: u16) -> Lrh {
    let (sl, dlid, slid) = (ServiceLevel::truncate(sl), Lid(dlid), Lid(slid));
    Lrh { vl, sl, next: Next::Bth, dlid, words: 0, slid, reserved: 0 }
}

const V1: &str = "0000000100050002000088B5000102030405060782F1";
const V2: &str = "2030001000050020000088B568656C6C6F000000030A";
const V2B: &str = "5030001000050020000088B568656C6C6F000000B7D5";
const V3: &str = "1041C001000F000260000000000C1101FE800000000000000000000000000001FF02000000000000000000000000000104D2162E000C088070696E67D51E";
const V4: &str =
    "00010001000C00026000000000003B40FE800000000000000000000000000002FE800000000000000000000000000001469A";
const V5: &str = "0000FFFF000A00020000080600010800060400010200000000010A0000010000000000000A000002161E";
const V6: &str = "0001C0020010000260000000000D1101FE800000000000000000000000000001FF02000000000000000000000000000100010002000DD884616263646500000061AF";

#[test]
fn v0_a_packet_with_a_transport_is_none() {
    let v0 = bytes(
        "7012375C000E17D20A2024870087B1B3000DEC2A01710A1C015D400238F27A050000000EBB884D85FD5CFBA4728BC0690ED400009625B75A45FA",
    );
    assert_eq!(RawPacket::parse(&v0), Err(RawPacketError::NotRaw(Next::Bth)));
}

#[test]
fn raw_t01_v1_v2_v5_ether_types_both_ways() {
    let v5 = bytes(V5);
    for (hex, lrh, ether_type, payload) in [
        (V1, lrh(0, 0, 1, 2), EtherType::LOCAL_1, &[0, 1, 2, 3, 4, 5, 6, 7][..]),
        (V2, lrh(2, 3, 0x10, 0x20), EtherType::LOCAL_1, b"hello"),
        (V2B, lrh(5, 3, 0x10, 0x20), EtherType::LOCAL_1, b"hello"),
        (V5, lrh(0, 0, 0xffff, 2), EtherType::ARP, &v5[12..40]),
    ] {
        let frame = bytes(hex);
        assert_eq!(ether_frame(lrh, ether_type, payload), frame);
        let packet = RawPacket::parse(&frame).unwrap();
        assert_eq!(packet.header, RawHeader::EtherType(Rwh::new(ether_type)));
        let (data, padding) = packet.payload.split_at(payload.len());
        assert!(data == payload && padding.iter().all(|byte| *byte == 0));
        assert_eq!((packet.lrh.dlid, packet.lrh.sl, packet.lrh.vl), (lrh.dlid, lrh.sl, lrh.vl));
    }
}

#[test]
fn raw_t01_v3_v4_v6_ipv6_both_ways() {
    for (hex, lrh, next_header, payload, hop_limit) in [
        (V3, lrh(1, 4, 0xc001, 2), NextHeader::UDP, &b"\x04\xd2\x16\x2e\0\x0c\x08\x80ping"[..], 1),
        (V4, lrh(0, 0, 1, 2), NextHeader::NONE, b"", 64),
        (V6, lrh(0, 0, 0xc002, 2), NextHeader::UDP, b"\0\x01\0\x02\0\x0d\xd8\x84abcde", 1),
    ] {
        let frame = bytes(hex);
        let packet = RawPacket::parse(&frame).unwrap();
        let RawHeader::Ipv6(header) = packet.header else { panic!("{packet:?}") };
        assert_eq!((header.next_header, header.hop_limit), (next_header, hop_limit));
        assert_eq!((packet.payload, usize::from(header.payload_len)), (payload, payload.len()));
        assert_eq!(header.dst.is_multicast(), packet.lrh.dlid.is_multicast());
        let mut message = header.to_bytes().to_vec();
        message.extend_from_slice(payload);
        assert_eq!(ipv6_frame(lrh, &message), frame);
    }
}

#[test]
fn raw_t01_v7_v8_the_longest() {
    let payload: Vec<u8> = (0..=255).chain([0; 112]).collect();
    assert_eq!(Some(payload.len()), size::max_ether_payload(Mtu::B256));
    let v7 = ether_frame(lrh(0, 0, 1, 2), EtherType::LOCAL_1, &payload);
    assert_eq!((v7.len(), &v7[v7.len() - 2..]), (95 * 4 + 2, &[0x27, 0x72][..]));
    assert_eq!(RawPacket::parse(&v7).unwrap().payload, payload);
    let header = Ipv6Header {
        traffic_class: 0,
        flow_label: crate::FlowLabel::truncate(0),
        payload_len: 4172,
        next_header: NextHeader::EXPERIMENT_1,
        hop_limit: 64,
        src: "fe80::2".parse().unwrap(),
        dst: "fe80::1".parse().unwrap(),
    };
    let mut message = header.to_bytes().to_vec();
    message.resize(Ipv6Header::LEN + 4172, 0);
    let v8 = ipv6_frame(lrh(0, 0, 1, 2), &message);
    assert_eq!(v8[..8], bytes("00010001041F0002"));
    assert_eq!(v8[v8.len() - 2..], [0x19, 0xf9]);
    assert_eq!(RawPacket::parse(&v8).unwrap().header, RawHeader::Ipv6(header));
}

#[test]
fn sizes_of_every_mtu() {
    for (mtu, words, ipv6, ether) in [
        (Mtu::B256, 95, 332, 368),
        (Mtu::B512, 159, 588, 624),
        (Mtu::B1024, 287, 1100, 1136),
        (Mtu::B2048, 543, 2124, 2160),
        (Mtu::B4096, 1055, 4172, 4208),
    ] {
        assert_eq!(size::max_words(mtu), Some(words));
        assert_eq!((size::max_ipv6_payload(mtu), size::max_ether_payload(mtu)), (Some(ipv6), Some(ether)));
    }
    assert_eq!(size::max_words(Mtu(0)), None);
}

#[test]
fn padding_makes_whole_words_and_the_least_packet() {
    for (len, padding) in [(0, 8), (1, 7), (7, 1), (8, 0), (9, 3), (12, 0), (367, 1)] {
        assert_eq!(size::ether_padding(len), padding, "{len}");
    }
    for (len, padding) in [(40, 0), (41, 3), (43, 1), (44, 0)] {
        assert_eq!(size::ipv6_padding(len), padding, "{len}");
    }
    let short = ether_frame(lrh(0, 0, 1, 2), EtherType::LOCAL_2, b"");
    assert_eq!(RawPacket::parse(&short).unwrap().payload, [0; 8]);
}

/// With the VCRC that fits.
fn sealed(mut covered: Vec<u8>) -> Vec<u8> {
    let vcrc = vcrc::of(&covered);
    covered.extend_from_slice(&vcrc.0);
    covered
}

#[test]
fn what_is_no_raw_packet_is_refused() {
    use RawPacketError::*;
    let v4 = bytes(V4);
    let mut flipped = v4.clone();
    flipped[30] ^= 1;
    assert!(matches!(RawPacket::parse(&flipped), Err(Vcrc { .. })));
    for len in 0..2 {
        assert!(matches!(RawPacket::parse(&v4[..len]), Err(Header(_))));
    }
    let changed = |at: usize, byte: u8, len: usize| {
        let mut covered = v4[..len].to_vec();
        covered[at] = byte;
        sealed(covered)
    };
    assert_eq!(RawPacket::parse(&changed(5, 13, 48)), Err(Length { counted: 13, have: 48 }));
    assert_eq!(RawPacket::parse(&changed(5, 11, 44)), Err(TooShort { words: 11, least: 12 }));
    assert_eq!(RawPacket::parse(&changed(13, 1, 48)), Err(Ipv6Length { counted: 1, have: 0 }));
    assert!(matches!(RawPacket::parse(&changed(8, 0x40, 48)), Err(Header(_))), "version 4");
    let mut ether = bytes(V1);
    ether.truncate(16);
    ether[5] = 4;
    assert_eq!(RawPacket::parse(&sealed(ether)), Err(TooShort { words: 4, least: 5 }));
    let long = ether_frame(lrh(0, 0, 1, 2), EtherType::LOCAL_1, &[0; 4212]);
    assert_eq!(RawPacket::parse(&long), Err(TooLong { words: 1056, most: 1055 }));
}

#[test]
fn next_headers_know_their_names() {
    for (number, name) in [
        (0, "HOPOPT"),
        (19, "DCN-MEAS"),
        (33, "DCCP"),
        (48, "DSR"),
        (58, "IPv6-ICMP"),
        (61, "any host internal protocol"),
        (66, "RVD"),
        (84, "IPTM"),
        (124, "ISIS over IPv4"),
        (147, "BIT-EMU"),
        (253, "experimentation and testing"),
        (255, "Reserved"),
    ] {
        assert_eq!(NextHeader(number).name(), Some(name));
    }
    assert!((148..=252).all(|number| NextHeader(number).name().is_none()));
    assert_eq!((0..=255).filter(|number| NextHeader(*number).is_extension()).count(), 12);
    assert_eq!(format!("{:?} {:?}", NextHeader(17), NextHeader(200)), "NextHeader(17, UDP) NextHeader(200)");
    assert_eq!(format!("{:?}", EtherType(0x0400)), "EtherType(0x0400)");
}
