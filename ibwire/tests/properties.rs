//! Values survive the wire. What arbitrary bytes do to a parser is the fuzz target `packet`'s to check.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its data fails")]

use std::net::Ipv4Addr;

use ibwire::icrc::{Icrc, IdClass, Ipv4Pseudo};
use ibwire::packet::{Bth, Opcode, TransportPacket};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::FileFailurePersistence;

fn known_opcodes() -> Vec<Opcode> {
    (0..=255).map(Opcode).filter(|opcode| opcode.is_known()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_failure_persistence(FileFailurePersistence::WithSource("regressions")))]

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
        (src_port, dst_port, id, guess) in any::<(u16, u16, u16, u16)>(),
        dont_fragment in any::<bool>(),
        transport in proptest::collection::vec(any::<u8>(), 12..=200),
    ) {
        let (src, dst) = (Ipv4Addr::from_bits(src), Ipv4Addr::from_bits(dst));
        let sent = Ipv4Pseudo { src, dst, src_port, dst_port, id, dont_fragment };
        prop_assert_eq!(sent.start(transport.len()).with_id(id).icrc(&transport), sent.icrc(&transport));
        let found = Ipv4Pseudo { id: 0, ..sent }.find_id(&transport, sent.icrc(&transport), None).unwrap();
        prop_assert_eq!(found.id, id);
        if dont_fragment {
            let start = sent.start(transport.len());
            let icrc = sent.icrc(&transport);
            prop_assert_eq!(start.find_id(&transport, icrc, None, id), Some(found));
            prop_assert_eq!(start.find_id(&transport, icrc, None, guess), Some(found));
        }
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
