//! What the engines sent, as a pcap file for Wireshark: each MAD in the RoCEv2 packet that a device would have sent.

use std::io::{Read, Seek, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use ibwire::icrc::{self, Ipv4Pseudo};
use ibwire::packet::{Bth, Deth, Ipv4Header, Opcode, TransportPacket, UdpHeader};
use ibwire::{Gid, Psn, QKey, Qpn};
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use pcap_file::{DataLink, PcapError, TsResolution};

use super::pair::{A, Flight, Net, P};

const ETHERNET_LEN: usize = 14;
const ROCE_PORT: u16 = 4791;

/// Writes `flights` of hosts with IPv4 addresses, each with its time.
pub(super) fn write<'a>(
    to: impl Write,
    net: &Net,
    flights: impl IntoIterator<Item = (Duration, &'a Flight)>,
) -> Result<(), PcapError> {
    let header = PcapHeader {
        datalink: DataLink::ETHERNET,
        ts_resolution: TsResolution::NanoSecond,
        ..PcapHeader::default()
    };
    let mut file = PcapWriter::with_header(to, header)?;
    for (at, flight) in flights {
        let destination = flight.sent.to.av.grh.map_or(Gid::UNSPECIFIED, |grh| grh.dgid);
        let frame =
            frame(net.hosts[flight.from].address.gid_of(flight.sent.to.av.port), destination, flight.bytes());
        file.write_packet(&PcapPacket::new(at, frame.len() as u32, &frame))?;
    }
    Ok(())
}

fn ipv4(gid: Gid) -> Ipv4Addr {
    match gid.to_ip() {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    }
}

fn frame(source: Gid, destination: Gid, mad: &[u8]) -> Vec<u8> {
    let [src, dst] = [source, destination].map(|gid| SocketAddrV4::new(ipv4(gid), ROCE_PORT));
    let mut transport = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::truncate(0)).to_bytes().to_vec();
    transport.extend(Deth::new(QKey::GSI, Qpn::GSI).to_bytes());
    transport.extend(mad);
    let icrc = Ipv4Pseudo::new(src, dst).icrc(&transport);
    let udp_len = UdpHeader::LEN + transport.len() + icrc::Icrc::LEN;
    let ip = Ipv4Header {
        tos: 0,
        total_len: (Ipv4Header::LEN + udp_len) as u16,
        id: 0,
        flags_fragment: Ipv4Header::DONT_FRAGMENT,
        ttl: 64,
        protocol: Ipv4Header::UDP,
        checksum: 0,
        src: *src.ip(),
        dst: *dst.ip(),
    };
    let udp = UdpHeader { src_port: ROCE_PORT, dst_port: ROCE_PORT, len: udp_len as u16, checksum: 0 };
    let mac = |ip: &Ipv4Addr| [&[2, 0], &ip.octets()[..]].concat();
    let ethertype = [8, 0];
    [
        &mac(dst.ip())[..],
        &mac(src.ip()),
        &ethertype,
        &ip.with_checksum().to_bytes(),
        &udp.to_bytes(),
        &transport,
        &icrc.0,
    ]
    .concat()
}

/// The frames of a file, and when each was sent.
fn read(from: impl Read) -> Vec<(Duration, Vec<u8>)> {
    let mut frames = Vec::new();
    let mut file = PcapReader::new(from).unwrap();
    while let Some(packet) = file.next_packet() {
        let packet = packet.unwrap();
        frames.push((packet.timestamp, packet.data.into_owned()));
    }
    frames
}

#[test]
fn what_was_sent_can_be_read() {
    let mut net = Net::pair();
    let sent = net.disconnected();
    let flights = [&sent.req, &sent.rep, &sent.rtu, &sent.dreq, &sent.drep];
    let times = || (1..).map(Duration::from_millis);
    let mut file = std::io::Cursor::new(Vec::new());
    write(&mut file, &net, times().zip(flights)).unwrap();
    file.rewind().unwrap();
    let frames = read(file);
    assert_eq!(frames.len(), flights.len());
    for ((at, frame), (time, flight)) in frames.iter().zip(times().zip(flights)) {
        assert_eq!(*at, time);
        let (packet, crc) = frame[ETHERNET_LEN..].split_at(frame.len() - ETHERNET_LEN - icrc::Icrc::LEN);
        assert_eq!(icrc::of_ipv4_frame(packet).unwrap().0, crc);
        let ip = Ipv4Header::parse(packet).unwrap();
        let hosts = [flight.from, flight.to.unwrap()].map(|host| ipv4(net.hosts[host].address.gid));
        assert_eq!([ip.src, ip.dst], hosts);
        assert_eq!((ip.computed_checksum(), usize::from(ip.total_len)), (ip.checksum, packet.len() + 4));
        let transport = TransportPacket::parse(&packet[Ipv4Header::LEN + UdpHeader::LEN..]).unwrap();
        assert_eq!(transport.payload(), flight.bytes());
    }
    assert_eq!([sent.req.from, sent.rep.from], [A, P]);
}
