//! Whatever reads the bytes of a packet: headers, transport packets, ICRC and VCRC.
//!
//! Read from the front are all headers, as if each could stand there; the input as a whole is a packet from the IP
//! header, the LRH or the BTH on.

use ibwire::icrc::{self, Icrc, IdClass, Ipv4Pseudo};
use ibwire::packet::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Grh, GrhArea, Ieth, ImmDt, Ipv4Header, Lrh, PacketError, Reth,
    TransportPacket, UdpHeader,
};
use ibwire::{DecodeError, vcrc};

use crate::seeds::{self, Seed};

/// Each header: an error exactly if the bytes are too few or of another version, else the same bytes back.
macro_rules! check_headers {
    ($bytes:expr; $($header:ident)*) => {
        $(match $header::parse($bytes) {
            Ok(header) => {
                assert_eq!(header.to_bytes(), $bytes[..$header::LEN], "{header:?}");
                let mut out = [0xaa; $header::LEN + 1];
                header.write_to(&mut out);
                assert_eq!((&out[..$header::LEN], out[$header::LEN]), (&$bytes[..$header::LEN], 0xaa));
            }
            Err(DecodeError::Truncated { need, have, .. }) => {
                assert!(need == $header::LEN && have == $bytes.len() && have < need);
            }
            Err(error) => assert!(matches!(error, DecodeError::Invalid { offset: 0, .. }), "{error}"),
        })*
    };
}

/// The target.
pub fn run(bytes: &[u8]) {
    check_headers!(bytes; Lrh Grh Bth Deth Aeth Reth ImmDt AtomicEth AtomicAckEth Ieth Ipv4Header UdpHeader);
    if let Ok(area) = GrhArea::parse(bytes) {
        assert_eq!(GrhArea::parse(&area.to_bytes()), Ok(area));
    }
    check_transport(bytes);
    check_crcs(bytes);
}

/// A packet that can be read is all of the bytes: headers, payload and padding, each as long as opcode and pad count
/// say.
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
    let (payload, padding) = bytes[Bth::LEN + opcode.headers_len()..].split_at(packet.payload().len());
    assert_eq!((packet.payload(), packet.padding()), (payload, padding), "{opcode}");
    assert_eq!(padding.len(), usize::from(packet.bth().pad));
}

/// What an ICRC does not cover does not change it; an Identification that is found makes it right.
fn check_crcs(bytes: &[u8]) {
    vcrc::of(bytes);
    let mut changed = bytes.to_vec();
    if let Ok(icrc) = icrc::of_ipv4_frame(bytes) {
        let masked = [1, 8, 10, 11, 26, 27, 32];
        masked.into_iter().for_each(|at| changed[at] ^= 0x55);
        assert_eq!(icrc::of_ipv4_frame(&changed), Ok(icrc));
        masked.into_iter().for_each(|at| changed[at] ^= 0x55);
        // The Identification is covered.
        changed[4] ^= 1;
        assert_ne!(icrc::of_ipv4_frame(&changed), Ok(icrc));
        changed[4] ^= 1;
    }
    if let Ok(icrc) = icrc::of_ipv6_frame(bytes) {
        [1, 2, 3, 7, 46, 47, 52].into_iter().for_each(|at| changed[at] ^= 0x55);
        assert_eq!(icrc::of_ipv6_frame(&changed), Ok(icrc));
        [1, 2, 3, 7, 46, 47, 52].into_iter().for_each(|at| changed[at] ^= 0x55);
    }
    if let Ok(icrc) = icrc::of_ib_frame(bytes) {
        // The virtual lane.
        changed[0] ^= 0xf0;
        assert_eq!(icrc::of_ib_frame(&changed), Ok(icrc));
    }

    let (transport, received) = match bytes.split_last_chunk() {
        Some((transport, received)) => (transport, Icrc(*received)),
        None => return,
    };
    let (src, dst) = ([10, 77, 0, 1].into(), [10, 77, 0, 2].into());
    let pseudo = Ipv4Pseudo { src, dst, src_port: 0xc112, dst_port: 4791, id: 0, dont_fragment: true };
    for last in [None, Some(u16::from_be_bytes([received.0[0], received.0[1]]))] {
        if let Some(found) = pseudo.find_id(transport, received, last) {
            let dont_fragment = found.class != IdClass::SolvedWithoutDf;
            assert_eq!(Ipv4Pseudo { id: found.id, dont_fragment, ..pseudo }.icrc(transport), received);
        }
    }
}

/// The packets of all captures, from the IP header on and from the BTH on, and the vectors, native InfiniBand
/// included.
pub fn seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for frame in seeds::frames() {
        seeds.push(Seed { name: format!("{}-transport", frame.name), bytes: frame.transport().to_vec() });
        seeds.push(Seed { name: frame.name, bytes: frame.packet });
    }
    seeds.extend(seeds::vectors());
    seeds
}
