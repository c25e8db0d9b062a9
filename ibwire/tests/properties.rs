//! No bytes make a parser panic; what is read is written back; values survive the wire.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its data fails")]

use std::net::Ipv4Addr;

use ibwire::icrc::{self, Icrc, IdClass, Ipv4Pseudo};
use ibwire::mad::{ClassPortInfo, MadHeader};
use ibwire::packet::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Grh, GrhArea, Ieth, ImmDt, Ipv4Header, Lrh, Opcode,
    PacketError, Reth, TransportPacket, UdpHeader,
};
use ibwire::{DecodeError, PathRecord, vcrc};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::FileFailurePersistence;

/// Parses `$bytes` as each header: an error exactly if they are too few or of another version, else the bytes back.
/// Headers after a `;` have reserved fields that are not kept: they come back as equal values.
macro_rules! check_headers {
    ($bytes:expr; $($exact:ident)*; $($lossy:ident)*) => {
        $(match $exact::parse($bytes) {
            Ok(header) => {
                assert_eq!(header.to_bytes(), $bytes[..$exact::LEN], "{header:?}");
                let mut out = [0xaa; $exact::LEN + 1];
                header.write_to(&mut out);
                assert_eq!(&out[..$exact::LEN], &$bytes[..$exact::LEN]);
                assert_eq!(out[$exact::LEN], 0xaa);
            }
            Err(DecodeError::Truncated { need, have, .. }) => {
                assert!(need == $exact::LEN && have == $bytes.len() && have < need);
            }
            Err(error) => assert!(matches!(error, DecodeError::Invalid { offset: 0, .. }), "{error}"),
        })*
        $(match $lossy::parse($bytes) {
            Ok(value) => assert_eq!($lossy::parse(&value.to_bytes()), Ok(value)),
            Err(error) => assert_eq!(error.to_string(), too_few::<{ $lossy::LEN }>($bytes, &error)),
        })*
    };
}

fn too_few<const LEN: usize>(bytes: &[u8], error: &DecodeError) -> String {
    let DecodeError::Truncated { what, .. } = error else { panic!("{error}") };
    assert!(bytes.len() < LEN);
    format!("{what} needs {LEN} bytes, {} are there", bytes.len())
}

/// Everything that reads bytes of a peer, over these bytes.
fn check_all(bytes: &[u8]) {
    check_headers!(bytes;
        Lrh Grh Bth Deth Aeth Reth ImmDt AtomicEth AtomicAckEth Ieth Ipv4Header UdpHeader;
        MadHeader ClassPortInfo PathRecord);
    if let Ok(area) = GrhArea::parse(bytes) {
        assert_eq!(GrhArea::parse(&area.to_bytes()), Ok(area));
        assert!(!area.sgid().is_unspecified() || area.to_bytes()[8..24] == [0; 16]);
    }
    let of_frame = [icrc::of_ipv4_frame(bytes), icrc::of_ipv6_frame(bytes), icrc::of_ib_frame(bytes)];
    assert!(bytes.len() >= 20 || of_frame.iter().all(Result::is_err));
    vcrc::of(bytes);
    check_transport(bytes);
}

fn check_transport(bytes: &[u8]) {
    let packet = match TransportPacket::parse(bytes) {
        Ok(packet) => packet,
        Err(PacketError::TooShort { need, have }) => return assert!(have == bytes.len() && have < need),
        Err(PacketError::UnknownOpcode(opcode)) => {
            return assert!(!opcode.is_known() && opcode.0 == bytes[0]);
        }
        Err(PacketError::BadVersion(version)) => return assert!(version == bytes[1] & 0xf && version != 0),
    };
    let opcode = packet.bth().opcode;
    let headers = [
        packet.deth().map(|_| Deth::LEN),
        packet.reth().map(|_| Reth::LEN),
        packet.atomic_eth().map(|_| AtomicEth::LEN),
        packet.aeth().map(|_| Aeth::LEN),
        packet.atomic_ack().map(|_| AtomicAckEth::LEN),
        packet.immdt().map(|_| ImmDt::LEN),
        packet.ieth().map(|_| Ieth::LEN),
    ];
    assert_eq!(headers.into_iter().flatten().sum::<usize>(), opcode.headers_len(), "{opcode}");
    let rest = [packet.payload(), packet.padding()].concat();
    assert_eq!(rest, bytes[Bth::LEN + opcode.headers_len()..], "{opcode}");
    assert_eq!(packet.padding().len(), usize::from(packet.bth().pad));
}

#[test]
fn hca_t09_every_length_and_every_opcode() {
    for len in 0..=100 {
        for fill in [0x00, 0x45, 0x60, 0xff] {
            check_all(&vec![fill; len]);
        }
        for opcode in 0..=255 {
            for flags in [0x00, 0x10, 0x20, 0x30, 0x31] {
                let mut bytes = vec![0; len];
                bytes.iter_mut().zip([opcode, flags]).for_each(|(byte, value)| *byte = value);
                check_transport(&bytes);
            }
        }
    }
}

fn known_opcodes() -> Vec<Opcode> {
    (0..=255).map(Opcode).filter(|opcode| opcode.is_known()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_failure_persistence(FileFailurePersistence::WithSource("regressions")))]

    #[test]
    fn hca_t09_random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..=100)) {
        check_all(&bytes);
    }

    #[test]
    fn hca_t09_random_packets(
        opcode in any::<u8>(),
        pad in 0..4u8,
        mut bytes in proptest::collection::vec(any::<u8>(), 12..=400),
    ) {
        bytes[0] = opcode;
        bytes[1] = pad << 4;
        check_transport(&bytes);
    }

    #[test]
    fn a_whole_packet_comes_back(
        opcode in select(known_opcodes()),
        payload in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let pad = Bth::pad_for(payload.len());
        let headers = vec![0x11; opcode.headers_len()];
        let bth = Bth { pad, ..Bth::new(opcode, ibwire::Qpn::GSI, ibwire::Psn::MAX) };
        let bytes = [&bth.to_bytes()[..], &headers, &payload, &vec![0; pad.into()]].concat();
        prop_assert_eq!(bytes.len() % 4, 0);
        let packet = TransportPacket::parse(&bytes).unwrap();
        prop_assert_eq!(packet.bth(), &bth);
        prop_assert_eq!(packet.payload(), &payload);
    }

    #[test]
    fn the_id_is_always_found(
        (src, dst) in any::<(u32, u32)>(),
        (src_port, dst_port, id) in any::<(u16, u16, u16)>(),
        dont_fragment in any::<bool>(),
        transport in proptest::collection::vec(any::<u8>(), 12..=200),
    ) {
        let (src, dst) = (Ipv4Addr::from_bits(src), Ipv4Addr::from_bits(dst));
        let sent = Ipv4Pseudo { src, dst, src_port, dst_port, id, dont_fragment };
        let found = Ipv4Pseudo { id: 0, ..sent }.find_id(&transport, sent.icrc(&transport), None).unwrap();
        prop_assert_eq!(found.id, id);
        prop_assert_eq!(found.class == IdClass::SolvedWithoutDf, !dont_fragment);
    }

    #[test]
    fn no_icrc_makes_the_search_panic(
        received in any::<[u8; 4]>(),
        last in any::<Option<u16>>(),
        transport in proptest::collection::vec(any::<u8>(), 0..=64),
    ) {
        let pseudo = Ipv4Pseudo::new("10.77.0.1:4791".parse().unwrap(), "10.77.0.2:4791".parse().unwrap());
        if let Some(found) = pseudo.find_id(&transport, Icrc(received), last) {
            let dont_fragment = found.class != IdClass::SolvedWithoutDf;
            let right = Ipv4Pseudo { id: found.id, dont_fragment, ..pseudo };
            prop_assert_eq!(right.icrc(&transport), Icrc(received));
        }
    }
}
