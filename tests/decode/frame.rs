//! Packets in Ethernet frames, for captures made by hand.

use std::net::{IpAddr, SocketAddr, SocketAddrV4};

use ibwire::FlowLabel;
use ibwire::icrc::{Ipv4Pseudo, Ipv6Pseudo};
use ibwire::packet::{Grh, Ipv4Header, UdpHeader};

/// The RoCEv2 frame of a packet, `transport`: BTH through padding. The UDP checksum is there: RoCEv2 may leave
/// it out, over IPv6 too, but tshark minds.
pub fn roce(source: SocketAddr, destination: SocketAddr, transport: &[u8]) -> Vec<u8> {
    let (src_port, dst_port) = (source.port(), destination.port());
    let len = (UdpHeader::LEN + transport.len() + 4) as u16;
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    let icrc = match (source.ip(), destination.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            frame.extend_from_slice(&[0x08, 0x00]);
            let header = Ipv4Header {
                tos: 0,
                total_len: Ipv4Header::LEN as u16 + len,
                id: 0,
                flags_fragment: Ipv4Header::DONT_FRAGMENT,
                ttl: 64,
                protocol: Ipv4Header::UDP,
                checksum: 0,
                src,
                dst,
            };
            frame.extend_from_slice(&header.with_checksum().to_bytes());
            Ipv4Pseudo::new(SocketAddrV4::new(src, src_port), SocketAddrV4::new(dst, dst_port))
                .icrc(transport)
        }
        (src, dst) => {
            let [src, dst] = [src, dst].map(|ip| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            });
            frame.extend_from_slice(&[0x86, 0xdd]);
            let header = Grh {
                traffic_class: 0,
                flow_label: FlowLabel::default(),
                payload_len: len,
                next_header: Grh::NEXT_UDP,
                hop_limit: 64,
                sgid: src.into(),
                dgid: dst.into(),
            };
            frame.extend_from_slice(&header.to_bytes());
            Ipv6Pseudo { src, dst, src_port, dst_port }.icrc(transport)
        }
    };
    let addresses = match frame[12] {
        0x08 => frame[14 + 12..].to_vec(),
        _ => frame[14 + 8..].to_vec(),
    };
    let mut udp = UdpHeader { src_port, dst_port, len, checksum: 0 };
    let pseudo = [&[0, Ipv4Header::UDP][..], &len.to_be_bytes(), &udp.to_bytes(), transport, &icrc.0];
    udp.checksum = checksum(&[&addresses[..], &pseudo.concat()].concat());
    frame.extend_from_slice(&udp.to_bytes());
    frame.extend_from_slice(transport);
    frame.extend_from_slice(&icrc.0);
    frame
}

/// The Internet checksum over an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}
