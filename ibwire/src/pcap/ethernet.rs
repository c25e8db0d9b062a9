//! A RoCEv2 packet with the Ethernet, IP and UDP headers that a UDP socket never shows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::FlowLabel;
use crate::packet::{Grh, Ipv4Header, UdpHeader};

/// What the kernel put in front of a datagram, as far as it is known here.
#[derive(Debug, Clone, Copy)]
pub struct RoceFrame<'a> {
    /// Sender.
    pub src: SocketAddr,
    /// Receiver; of the same family as the sender.
    pub dst: SocketAddr,
    /// The IPv4 Identification that the ICRC was computed with.
    pub id: u16,
    /// The IPv4 flag DF.
    pub dont_fragment: bool,
    /// From the BTH through the ICRC.
    pub datagram: &'a [u8],
}

impl RoceFrame<'_> {
    /// Appends the frame.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        let udp_len = (UdpHeader::LEN + self.datagram.len()) as u16;
        let mut udp =
            UdpHeader { src_port: self.src.port(), dst_port: self.dst.port(), len: udp_len, checksum: 0 };
        out.extend_from_slice(&mac(self.dst.ip()));
        out.extend_from_slice(&mac(self.src.ip()));
        match (self.src.ip().to_canonical(), self.dst.ip().to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                out.extend_from_slice(&[0x08, 0x00]);
                out.extend_from_slice(&self.ipv4(src, dst, udp_len).to_bytes());
                udp.checksum =
                    checksum(&[&src.octets(), &dst.octets(), &udp.to_bytes(), self.datagram], udp_len);
            }
            (src, dst) => {
                let (src, dst) = (ipv6(src), ipv6(dst));
                let header = Grh {
                    traffic_class: 0,
                    flow_label: FlowLabel::default(),
                    payload_len: udp_len,
                    next_header: Grh::NEXT_UDP,
                    // It cannot be seen of a received packet.
                    hop_limit: UdpHeader::ROCE_HOP_LIMIT,
                    sgid: src.into(),
                    dgid: dst.into(),
                };
                out.extend_from_slice(&[0x86, 0xdd]);
                out.extend_from_slice(&header.to_bytes());
                udp.checksum =
                    checksum(&[&src.octets(), &dst.octets(), &udp.to_bytes(), self.datagram], udp_len);
            }
        }
        out.extend_from_slice(&udp.to_bytes());
        out.extend_from_slice(self.datagram);
    }

    fn ipv4(&self, src: Ipv4Addr, dst: Ipv4Addr, udp_len: u16) -> Ipv4Header {
        Ipv4Header {
            tos: 0,
            total_len: Ipv4Header::LEN as u16 + udp_len,
            id: self.id,
            flags_fragment: if self.dont_fragment { Ipv4Header::DONT_FRAGMENT } else { 0 },
            ttl: UdpHeader::ROCE_HOP_LIMIT,
            protocol: Ipv4Header::UDP,
            checksum: 0,
            src,
            dst,
        }
        .with_checksum()
    }
}

fn ipv6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// A locally administered address that tells which IP address it stands for.
fn mac(ip: IpAddr) -> [u8; 6] {
    let [.., a, b, c, d] = ipv6(ip).octets();
    [0x02, 0x00, a, b, c, d]
}

/// The UDP checksum over the pseudo header and `parts`, of which all but the last have an even length.
fn checksum(parts: &[&[u8]], udp_len: u16) -> u16 {
    let mut sum = u64::from(Ipv4Header::UDP) + u64::from(udp_len);
    for part in parts {
        let words = part.chunks_exact(2);
        let odd = words.remainder().first().map_or(0, |last| u64::from(*last) << 8);
        sum += odd + words.map(|word| u64::from(u16::from_be_bytes([word[0], word[1]]))).sum::<u64>();
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // 0 means that there is no checksum; the other zero is written instead.
    match !(sum as u16) {
        0 => 0xffff,
        checksum => checksum,
    }
}
