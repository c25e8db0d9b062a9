//! Every captured RoCEv2 packet is decoded, encoded again byte for byte, and its ICRC checked.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its data fails")]

use std::fs::File;
use std::net::SocketAddrV4;
use std::path::PathBuf;

use ibwire::icrc::{self, FoundId, Icrc, IdClass, Ipv4Pseudo};
use ibwire::packet::{Bth, Grh, GrhArea, Ipv4Header, Opcode, PacketError, TransportPacket, UdpHeader};
use pcap_file::pcap::PcapReader;

const ETHERNET_LEN: usize = 14;

/// A RoCEv2 packet out of a capture file.
struct Frame {
    /// File and frame number, from 1.
    place: (String, usize),
    ip: GrhArea,
    /// From the IP header through the padding.
    packet: Vec<u8>,
    icrc: Icrc,
}

impl Frame {
    fn ip_len(&self) -> usize {
        match self.ip {
            GrhArea::Ipv4(_) => Ipv4Header::LEN,
            GrhArea::Grh(_) => Grh::LEN,
        }
    }

    fn udp(&self) -> UdpHeader {
        UdpHeader::parse(&self.packet[self.ip_len()..]).unwrap()
    }

    fn transport(&self) -> &[u8] {
        &self.packet[self.ip_len() + UdpHeader::LEN..]
    }

    fn has_right_icrc(&self) -> bool {
        let expected = match self.ip {
            GrhArea::Ipv4(_) => icrc::of_ipv4_frame(&self.packet),
            GrhArea::Grh(_) => icrc::of_ipv6_frame(&self.packet),
        };
        expected == Ok(self.icrc)
    }

    fn find_id(&self) -> Option<FoundId> {
        let GrhArea::Ipv4(ip) = self.ip else { panic!("{:?} is not IPv4", self.place) };
        let udp = self.udp();
        let (src, dst) = (SocketAddrV4::new(ip.src, udp.src_port), SocketAddrV4::new(ip.dst, udp.dst_port));
        Ipv4Pseudo::new(src, dst).find_id(self.transport(), self.icrc, None)
    }
}

fn captured_files() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/captures");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "pcap"));
    files.sort();
    files
}

/// The RoCEv2 packet in an Ethernet frame, if there is one.
fn roce(place: (String, usize), ethernet: &[u8]) -> Option<Frame> {
    let network = &ethernet[ETHERNET_LEN..];
    let (ip, len) = match ethernet[12..14] {
        [0x08, 0x00] => {
            let ip = Ipv4Header::parse(network).ok().filter(|ip| ip.protocol == Ipv4Header::UDP)?;
            assert_eq!(ip.checksum, ip.computed_checksum(), "{place:?}");
            (GrhArea::Ipv4(ip), usize::from(ip.total_len))
        }
        [0x86, 0xdd] => {
            let ip = Grh::parse(network).ok().filter(|ip| ip.next_header == Grh::NEXT_UDP)?;
            (GrhArea::Grh(ip), Grh::LEN + usize::from(ip.payload_len))
        }
        _ => return None,
    };
    let (packet, icrc) = network[..len].split_last_chunk().unwrap();
    let frame = Frame { place, ip, packet: packet.to_vec(), icrc: Icrc(*icrc) };
    (frame.udp().dst_port == UdpHeader::ROCE_PORT).then_some(frame)
}

fn captured() -> Vec<Frame> {
    let mut frames = Vec::new();
    for path in captured_files() {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut reader = PcapReader::new(File::open(&path).unwrap()).unwrap();
        let mut number = 0;
        while let Some(packet) = reader.next_packet() {
            number += 1;
            frames.extend(roce((name.clone(), number), &packet.unwrap().data));
        }
    }
    frames
}

/// All headers as values, then the bytes of these values.
fn encoded_again(frame: &Frame) -> Vec<u8> {
    let mut bytes = match frame.ip {
        GrhArea::Ipv4(ip) => ip.to_bytes().to_vec(),
        GrhArea::Grh(ip) => ip.to_bytes().to_vec(),
    };
    bytes.extend(frame.udp().to_bytes());
    let transport = frame.transport();
    let bth = Bth::parse(transport).unwrap();
    bytes.extend(bth.to_bytes());
    match TransportPacket::parse(transport) {
        Ok(packet) => {
            bytes.extend(packet.deth().iter().flat_map(|header| header.to_bytes()));
            bytes.extend(packet.reth().iter().flat_map(|header| header.to_bytes()));
            bytes.extend(packet.atomic_eth().iter().flat_map(|header| header.to_bytes()));
            bytes.extend(packet.aeth().iter().flat_map(|header| header.to_bytes()));
            bytes.extend(packet.atomic_ack().iter().flat_map(|header| header.to_bytes()));
            bytes.extend(packet.immdt().iter().flat_map(|header| header.to_bytes()));
            bytes.extend(packet.ieth().iter().flat_map(|header| header.to_bytes()));
            bytes.extend(packet.payload());
            bytes.extend(packet.padding());
        }
        Err(PacketError::UnknownOpcode(_) | PacketError::BadVersion(_)) => {
            bytes.extend(&transport[Bth::LEN..]);
        }
        Err(error @ PacketError::TooShort { .. }) => panic!("{:?}: {error}", frame.place),
    }
    bytes
}

#[test]
fn captured_packets_decode_and_encode_again() {
    let frames = captured();
    let (mut unknown, mut bad_version) = (Vec::new(), Vec::new());
    for frame in &frames {
        assert_eq!(encoded_again(frame), frame.packet, "{:?}", frame.place);
        match TransportPacket::parse(frame.transport()) {
            Ok(_) => {}
            Err(PacketError::UnknownOpcode(opcode)) => unknown.push(opcode),
            Err(PacketError::BadVersion(1)) => bad_version.push(frame.place.0.as_str()),
            Err(error) => panic!("{:?}: {error}", frame.place),
        }
    }
    assert_eq!(frames.len(), 825);
    assert_eq!(unknown, [Opcode(0x15), Opcode(0x18)]);
    // Once over IPv4 and once over IPv6 to QP1, once to an RC QP.
    let (userspace_req, raw_requester) = ("20-userspace-req-rej", "30-raw-requester-vs-rxe");
    assert_eq!(bad_version, [userspace_req, userspace_req, raw_requester]);
}

#[test]
fn captured_packets_have_the_right_icrc_but_for_those_made_wrong() {
    let frames = captured();
    let (right, wrong): (Vec<_>, Vec<_>) = frames.iter().partition(|frame| frame.has_right_icrc());
    let wrong: Vec<_> = wrong.iter().map(|frame| (frame.place.0.as_str(), frame.place.1)).collect();
    assert_eq!(
        wrong,
        [
            ("20-userspace-req-rej", 3),
            ("20-userspace-req-rej", 4),
            ("20-userspace-req-rej", 5),
            ("20-userspace-req-rej", 27),
            ("30-raw-requester-vs-rxe", 16),
        ]
    );
    assert_eq!(right.len(), 820);
}

#[test]
fn hca_t02_the_id_of_every_captured_ipv4_packet_is_found() {
    let (mut zero, mut solved) = (0, 0);
    for frame in captured().iter().filter(|frame| frame.has_right_icrc()) {
        let GrhArea::Ipv4(ip) = frame.ip else { continue };
        let class = if ip.id == 0 { IdClass::Zero } else { IdClass::Solved };
        assert_eq!(frame.find_id(), Some(FoundId { id: ip.id, class }), "{:?}", frame.place);
        *(if ip.id == 0 { &mut zero } else { &mut solved }) += 1;
    }
    assert_eq!((zero, solved), (158, 620));
}

#[test]
fn hca_t02_a_wrong_icrc_is_told_from_an_unexpected_id() {
    let found: Vec<_> = captured()
        .iter()
        .filter(|frame| !frame.has_right_icrc() && matches!(frame.ip, GrhArea::Ipv4(_)))
        .map(|frame| (frame.place.1, frame.find_id()))
        .collect();
    let expected = [
        (3, None),
        (4, Some(FoundId { id: 1, class: IdClass::Solved })),
        (5, Some(FoundId { id: 0, class: IdClass::SolvedWithoutDf })),
        (16, None),
    ];
    assert_eq!(found, expected);
}
