//! ICRC and VCRC against packets of Linux's rdma_rxe, of hardware and of the standard (spec/softhca.md 1.17).

#![allow(clippy::unwrap_used, reason = "a test that cannot read its data fails")]
use std::net::SocketAddrV4;

use ibwire::DecodeError;
use ibwire::icrc::{self, FoundId, Icrc, IcrcStart, IdClass, Ipv4Pseudo, Ipv6Pseudo};
use ibwire::packet::{Grh, Ipv4Header, Lrh, NextHeader, UdpHeader};
use ibwire::vcrc;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Carrier {
    Ipv4,
    Ipv6,
    Ib,
}

struct Vector {
    id: &'static str,
    carrier: Carrier,
    frame: Vec<u8>,
    icrc: Icrc,
    vcrc: Option<Vec<u8>>,
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn vectors() -> Vec<Vector> {
    let lines = include_str!("data/icrc-vectors.txt").lines().filter(|line| !line.starts_with('#'));
    let vectors: Vec<_> = lines
        .map(|line| {
            let [id, carrier, frame, icrc, vcrc]: [&str; 5] =
                line.split(' ').collect::<Vec<_>>().try_into().unwrap();
            let carrier = match carrier {
                "ipv4" => Carrier::Ipv4,
                "ipv6" => Carrier::Ipv6,
                "ib" => Carrier::Ib,
                other => panic!("carrier {other}"),
            };
            let icrc = Icrc(unhex(icrc).try_into().unwrap());
            Vector { id, carrier, frame: unhex(frame), icrc, vcrc: (vcrc != "-").then(|| unhex(vcrc)) }
        })
        .collect();
    assert_eq!(vectors.len(), 26);
    vectors
}

fn icrc_of(carrier: Carrier, frame: &[u8]) -> Result<Icrc, DecodeError> {
    match carrier {
        Carrier::Ipv4 => icrc::of_ipv4_frame(frame),
        Carrier::Ipv6 => icrc::of_ipv6_frame(frame),
        Carrier::Ib => icrc::of_ib_frame(frame),
    }
}

/// Headers and transport part of a frame over IPv4.
fn split_ipv4(frame: &[u8]) -> (Ipv4Pseudo, &[u8]) {
    let ip = Ipv4Header::parse(frame).unwrap();
    let udp = UdpHeader::parse(&frame[20..]).unwrap();
    let (src, dst) = (SocketAddrV4::new(ip.src, udp.src_port), SocketAddrV4::new(ip.dst, udp.dst_port));
    let mut pseudo = Ipv4Pseudo::new(src, dst);
    pseudo.id = ip.id;
    pseudo.dont_fragment = ip.flags_fragment == Ipv4Header::DONT_FRAGMENT;
    (pseudo, &frame[28..])
}

#[test]
fn hca_t01_vectors() {
    for Vector { id, carrier, frame, icrc, vcrc } in vectors() {
        assert_eq!(icrc_of(carrier, &frame), Ok(icrc), "{id}");
        if let Some(vcrc) = vcrc {
            let through_icrc = [&frame[..], &icrc.0[..]].concat();
            assert_eq!(vcrc::of(&through_icrc).0[..], vcrc, "{id}");
        }
    }
}

#[test]
fn hca_t01_vectors_from_headers() {
    for Vector { id, carrier, frame, icrc, .. } in vectors() {
        let (start, transport) = match carrier {
            Carrier::Ipv4 => {
                let (pseudo, transport) = split_ipv4(&frame);
                assert_eq!(pseudo.icrc(transport), icrc, "{id}");
                (pseudo.start(transport.len()).with_id(pseudo.id), transport)
            }
            Carrier::Ipv6 => {
                let ip = Grh::parse(&frame).unwrap();
                let udp = UdpHeader::parse(&frame[40..]).unwrap();
                let (src, dst) = (ip.sgid.0.into(), ip.dgid.0.into());
                let pseudo = Ipv6Pseudo { src, dst, src_port: udp.src_port, dst_port: udp.dst_port };
                assert_eq!(pseudo.icrc(&frame[48..]), icrc, "{id}");
                (pseudo.start(frame.len() - 48), &frame[48..])
            }
            Carrier::Ib => {
                let lrh = Lrh::parse(&frame).unwrap();
                match lrh.next {
                    NextHeader::Bth => (IcrcStart::local(&lrh), &frame[8..]),
                    _ => (IcrcStart::global(&Grh::parse(&frame[8..]).unwrap()), &frame[48..]),
                }
            }
        };
        let mut transport = transport.to_vec();
        for masked in 0..=0xff {
            transport[4] = masked;
            assert_eq!(start.icrc(&transport), icrc, "{id} with {masked} in the byte that is not covered");
        }
    }
}

/// The bits of byte `at` that the ICRC does not cover.
fn masked_bits(carrier: Carrier, frame: &[u8], at: usize) -> u8 {
    let grh_or_ipv6 = |at| match at {
        0 => 0x0f,
        1..=3 | 7 => 0xff,
        _ => 0,
    };
    let global = carrier == Carrier::Ib && frame[1] & 3 == 3;
    match (carrier, at) {
        (Carrier::Ipv4, 1 | 8 | 10 | 11 | 26 | 27 | 32) => 0xff,
        (Carrier::Ipv4, _) => 0,
        (Carrier::Ipv6, 46 | 47 | 52) => 0xff,
        (Carrier::Ipv6, at) => grh_or_ipv6(at),
        // VL; of the other LRH bits of a packet with GRH all but version and next header, which say what it is.
        (Carrier::Ib, 0) => 0xf0,
        (Carrier::Ib, 1) if global => 0xfc,
        (Carrier::Ib, 2..8) if global => 0xff,
        (Carrier::Ib, 52) if global => 0xff,
        (Carrier::Ib, 8..48) if global => grh_or_ipv6(at - 8),
        (Carrier::Ib, 12) if !global => 0xff,
        (Carrier::Ib, _) => 0,
    }
}

#[test]
fn hca_t01_a_flipped_bit_counts_exactly_where_it_is_not_masked() {
    let (mut covered, mut masked) = (0, 0);
    for Vector { id, carrier, mut frame, icrc, .. } in vectors() {
        for at in 0..frame.len() {
            for bit in 0..8 {
                let is_masked = masked_bits(carrier, &frame, at) >> bit & 1 != 0;
                frame[at] ^= 1 << bit;
                assert_eq!(icrc_of(carrier, &frame) == Ok(icrc), is_masked, "{id}, byte {at}, bit {bit}");
                frame[at] ^= 1 << bit;
                *(if is_masked { &mut masked } else { &mut covered }) += 1;
            }
        }
    }
    assert!(covered > 10_000 && masked > 1_000, "{covered} bits covered, {masked} masked");
}

#[test]
fn hca_t02_the_id_is_solved_for() {
    let mut solved = Vec::new();
    let (mut flipped, mut without_df) = (0, 0);
    for Vector { id, carrier, frame, icrc, .. } in vectors() {
        if carrier != Carrier::Ipv4 {
            continue;
        }
        let (sent, transport) = split_ipv4(&frame);
        let unknown = Ipv4Pseudo { id: 0, ..sent };
        let class = if sent.id == 0 { IdClass::Zero } else { IdClass::Solved };
        assert_eq!(unknown.find_id(transport, icrc, None), Some(FoundId { id: sent.id, class }), "{id}");
        if sent.id != 0 {
            let found = unknown.find_id(transport, icrc, Some(sent.id.wrapping_sub(1)));
            assert_eq!(found.map(|found| found.class), Some(IdClass::Predicted), "{id}");
        }
        solved.push(sent.id);

        let mut damaged = transport.to_vec();
        for at in (0..damaged.len()).filter(|&at| at != 4) {
            for bit in 0..8 {
                damaged[at] ^= 1 << bit;
                match unknown.find_id(&damaged, icrc, Some(sent.id)).map(|found| found.class) {
                    None => {}
                    Some(IdClass::SolvedWithoutDf) => without_df += 1,
                    Some(class) => panic!("{id}, byte {at}, bit {bit}: {class:?}"),
                }
                flipped += 1;
                damaged[at] ^= 1 << bit;
            }
        }
    }
    assert_eq!(solved[..3], [0xdf78, 0x419a, 0xdf73]);
    assert_eq!(solved.len(), 21);
    // The weakest class lets one damaged packet in 2^16 pass: here bit 3 of byte 173 of the transport part of V20
    // and V21, two packets of one length.
    assert_eq!((flipped, without_df), (8_824, 2));
}

#[test]
fn frames_without_an_icrc_are_refused() {
    let v1 = &vectors()[0].frame;
    for len in 0..40 {
        assert!(icrc::of_ipv4_frame(&v1[..len]).is_err(), "{len}");
    }
    assert!(icrc::of_ipv6_frame(v1).is_err());
    let raw = [0x00, 0x01, 0, 2, 0, 7, 0, 1];
    assert_eq!(
        icrc::of_ib_frame(&[raw, [0; 8], [0; 8]].concat()),
        Err(DecodeError::Invalid { what: "LRH next header", offset: 1, value: 1 })
    );
}
