use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;

use super::*;

/// V2 of spec/softhca.md 1.17: an RC acknowledgement from 10.77.0.2 to 10.77.0.1, from the IP header on.
const V2: &str =
    "45000030419a40004011e4860a4d00020a4d0001c12112b7001c00001100ffff00000011001111111f000001f29299f5";

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn ethernet_frames_are_what_went_over_the_wire() {
    let packet = hex(V2);
    let mut file = PcapWriter::new(Vec::new(), LinkType::Ethernet).unwrap();
    let frame = RoceFrame {
        src: "10.77.0.2:49441".parse().unwrap(),
        dst: "10.77.0.1:4791".parse().unwrap(),
        id: 0x419a,
        dont_fragment: true,
        datagram: &packet[28..],
    };
    file.write(Duration::new(7, 123_456_789), |out| frame.write_to(out)).unwrap();

    let bytes = file.into_inner();
    let mut reader = PcapReader::new(&bytes[..]).unwrap();
    assert_eq!(reader.header().datalink, DataLink::ETHERNET);
    let read = reader.next_packet().unwrap().unwrap();
    assert_eq!(read.timestamp, Duration::new(7, 123_456_789));
    assert_eq!(read.data[..14], [2, 0, 10, 77, 0, 1, 2, 0, 10, 77, 0, 2, 8, 0]);
    // All but the UDP checksum, which rdma_rxe leaves out.
    assert_eq!(read.data[14..40], packet[..26]);
    assert_ne!(read.data[40..42], [0, 0]);
    assert_eq!(read.data[42..], packet[28..]);
    assert!(reader.next_packet().is_none());
}

#[test]
fn erf_records_hold_the_packet() {
    // N2 of spec/softhca.md 1.17
    let packet = hex("00020002000800010400ffff00000011801111110001020304050607f92e27fab135");
    let time = Duration::new(3, 500_000_000);
    let mut file = PcapWriter::new(Vec::new(), LinkType::Erf).unwrap();
    for lost in [false, true] {
        let record = ErfRecord { since_epoch: time, lost, packet: &packet };
        file.write(time, |out| record.write_to(out)).unwrap();
    }

    let bytes = file.into_inner();
    let mut reader = PcapReader::new(&bytes[..]).unwrap();
    assert_eq!(reader.header().datalink, DataLink::ERF);
    for flags in [0x04, 0x14] {
        let read = reader.next_packet().unwrap().unwrap();
        assert_eq!(read.data[..8], [0, 0, 0, 0x80, 3, 0, 0, 0]);
        assert_eq!(read.data[8..16], [21, flags, 0, 50, 0, 0, 0, 34]);
        assert_eq!(read.data[16..], packet);
    }
}
