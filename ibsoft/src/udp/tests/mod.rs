#[path = "../../../tests/common/loopback.rs"]
mod loopback;
mod shell;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddrV4;

use ibwire::icrc::{Icrc, Ipv4Pseudo};
use ibwire::packet::{Bth, Opcode, TransportPacket};
use ibwire::{Gid, Psn, Qpn, ServiceLevel};

use self::loopback::Loopback;
use super::outbox::Packets;
use super::receive::{Received, Receiver};
use super::socket::RoceSocket;
use super::transmit::{Progress, Transmitter};
use super::*;
use crate::engine::{NetHeader, NetRoute};

fn socket(lo: Loopback, host: u8) -> RoceSocket {
    let address = LocalAddress::look_up(lo.address(host).into());
    RoceSocket::bind(&address, UdpHeader::ROCE_PORT).unwrap()
}

fn net(from: &RoceSocket, to: &RoceSocket) -> NetHeader {
    NetHeader::roce(NetRoute {
        sgid: from.local.ip().into(),
        dgid: to.local.ip().into(),
        flow_label: ibwire::FlowLabel::default(),
        traffic_class: 0,
        hop_limit: 64,
        ip_id: 0,
    })
}

/// A transport packet with `len` bytes of payload, a multiple of 4.
fn packet(psn: u32, len: usize) -> Vec<u8> {
    let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::truncate(7), Psn::truncate(psn));
    let mut bytes = bth.to_bytes().to_vec();
    bytes.resize(bytes.len() + len, psn as u8);
    bytes
}

/// Packets to this place, as the engine makes them.
fn packets(packets: impl IntoIterator<Item = (NetHeader, Vec<u8>)>) -> Packets {
    let mut outbox = Packets::default();
    for (net, bytes) in packets {
        outbox.next().extend_from_slice(&bytes);
        outbox.next().extend_from_slice(&[0; Icrc::LEN]);
        outbox.push(&net, bytes.len() + Icrc::LEN, 1);
    }
    outbox
}

/// A transmitter that has them.
fn transmitter(packets: &mut Packets) -> Transmitter {
    let mut transmitter = Transmitter::new(UdpHeader::ROCE_PORT);
    transmitter.take(packets);
    transmitter
}

/// Receives a batch when there is one.
async fn receive(receiver: &mut Receiver, to: &RoceSocket) -> Received {
    loop {
        match to.socket.try_recv(|| receiver.recv(to, None)) {
            Ok(received) => return received,
            Err(_) => poll_fn(|cx| to.socket.poll_recv_ready(cx)).await.unwrap(),
        }
    }
}

/// Sends packets of these payload lengths and returns what arrives, with the counters of both sides.
async fn send(
    from: &RoceSocket,
    to: &RoceSocket,
    lengths: &[usize],
) -> (Vec<Vec<u8>>, Transmitter, Receiver) {
    let net = net(from, to);
    let mut outbox = packets(lengths.iter().zip(0..).map(|(len, psn)| (net, packet(psn, *len))));
    let mut transmitter = transmitter(&mut outbox);
    while let Progress::Blocked(_) = transmitter.drain(std::slice::from_ref(from), None) {
        poll_fn(|cx| from.poll_room(cx)).await.unwrap();
    }
    let (mut receiver, mut arrived) = (Receiver::new(1), Vec::new());
    while arrived.len() < lengths.len() {
        receive(&mut receiver, to).await;
        arrived.extend(receiver.batch().map(|(_, transport)| transport.to_vec()));
    }
    (arrived, transmitter, receiver)
}

#[tokio::test]
async fn equal_lengths_leave_in_one_call_and_arrive_whole() {
    let lo = Loopback::claim();
    let (from, to) = (socket(lo, 1), socket(lo, 2));
    let segmentation = from.gso_segments() > 1;
    // One run up to the shorter packet, one of ten acknowledgements, a single one.
    let lengths = [&[1024; 40][..], &[16][..], &[4; 10], &[1024]].concat();
    let (arrived, transmitter, receiver) = send(&from, &to, &lengths).await;
    for ((bytes, psn), len) in arrived.iter().zip(0..).zip(&lengths) {
        assert_eq!(bytes, &packet(psn, *len));
    }
    assert_eq!(transmitter.counters.datagrams, lengths.len() as u64);
    if segmentation {
        assert_eq!(transmitter.counters.batches, 3);
    }
    assert_eq!(receiver.counters.drop_icrc, 0);
}

#[tokio::test]
async fn a_batch_that_ends_within_a_message_says_so() {
    let lo = Loopback::claim();
    let (from, to) = (socket(lo, 1), socket(lo, 2));
    let net = net(&from, &to);
    let mut receiver = Receiver::new(1);
    for (opcode, goes_on) in [
        (Opcode::RC_SEND_FIRST, true),
        (Opcode::RC_SEND_MIDDLE, true),
        (Opcode::RC_SEND_LAST, false),
        (Opcode::RC_RDMA_WRITE_FIRST, true),
        (Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, true),
        (Opcode::RC_SEND_ONLY, false),
        (Opcode::RC_ACKNOWLEDGE, false),
    ] {
        let bytes = [&[opcode.0][..], &packet(1, 1024)[1..]].concat();
        let mut transmitter = transmitter(&mut packets([(net, packet(0, 1024)), (net, bytes)]));
        assert_eq!(transmitter.drain(std::slice::from_ref(&from), None), Progress::Done);
        let mut arrived = 0;
        while arrived < 2 {
            let received = receive(&mut receiver, &to).await;
            arrived += received.datagrams;
            assert_eq!(received.goes_on, goes_on && arrived == 2, "{opcode}");
        }
    }
}

/// One call is for one peer, and holds no more than an IP datagram can.
#[tokio::test]
async fn runs_end_where_one_call_has_to() {
    let lo = Loopback::claim();
    let (from, a, b) = (socket(lo, 1), socket(lo, 2), socket(lo, 3));
    let segmentation = from.gso_segments() > 1;
    let (to_a, to_b) = (net(&from, &a), net(&from, &b));
    let nets = [to_a, to_b, to_b, to_a].into_iter().chain([to_a; 20]);
    let mut transmitter = transmitter(&mut packets(nets.zip(0..).map(|(net, psn)| (net, packet(psn, 4096)))));
    assert_eq!(transmitter.drain(std::slice::from_ref(&from), None), Progress::Done);
    if segmentation {
        // 15 of 4112 bytes are one call.
        assert_eq!((transmitter.counters.gso_fallbacks, transmitter.counters.batches), (0, 4));
    }
    for (socket, count) in [(a, 22), (b, 2)] {
        let mut receiver = Receiver::new(1);
        let mut arrived = 0;
        while arrived < count {
            receive(&mut receiver, &socket).await;
            arrived += receiver.batch().count();
        }
        assert_eq!((arrived, receiver.counters.drop_icrc), (count, 0));
    }
}

/// A peer that takes no merged datagrams, such as rdma_rxe, sees them numbered from 0.
#[tokio::test]
async fn hca_t03_segments_of_one_call_have_the_icrc_of_their_number() {
    let lo = Loopback::claim();
    let from = socket(lo, 1);
    let segmentation = from.gso_segments() > 1;
    let to = SocketAddrV4::new(lo.address(2), UdpHeader::ROCE_PORT);
    let plain = std::net::UdpSocket::bind(to).unwrap();
    plain.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
    let route = NetRoute { dgid: Gid::from(*to.ip()), ..net(&from, &from).route.unwrap() };
    let mut transmitter = transmitter(&mut packets((0..4).map(|n| (NetHeader::roce(route), packet(n, 256)))));
    assert_eq!(transmitter.drain(std::slice::from_ref(&from), None), Progress::Done);
    let std::net::SocketAddr::V4(src) = from.local else { panic!("an IPv4 socket") };
    for k in 0..4 {
        let mut buf = [0; 2048];
        let len = plain.recv(&mut buf).unwrap();
        let (transport, icrc) = buf[..len].split_last_chunk().unwrap();
        let found = Ipv4Pseudo::new(src, to).find_id(transport, Icrc(*icrc), None).unwrap();
        let expected = if segmentation { k } else { 0 };
        assert_eq!(found.id, expected);
    }
}

#[tokio::test]
async fn where_segmentation_fails_each_packet_leaves_by_itself() {
    let lo = Loopback::claim();
    let (from, to) = (socket(lo, 1), socket(lo, 2));
    // More segments than any kernel takes.
    from.force_gso_segments(usize::MAX);
    let lengths = [4; 1000];
    let (arrived, transmitter, receiver) = send(&from, &to, &lengths).await;
    assert_eq!(arrived.len(), 1000);
    assert_eq!(from.gso_segments(), 1);
    assert_eq!((transmitter.counters.gso_fallbacks, transmitter.counters.datagrams), (1, 1000));
    assert_eq!((receiver.counters.icrc_full, receiver.counters.drop_icrc), (1000, 0));
}

/// A peer behind a small MTU: all but the last, shorter datagram are too long, in one call and each by itself.
#[tokio::test]
async fn datagrams_that_are_too_long_do_not_end_segmentation() {
    let lo = Loopback::claim();
    let (from, to) = (socket(lo, 1), socket(lo, 2));
    // Also where the kernel has none: it is never asked for it.
    from.force_gso_segments(64);
    *from.refuse.lock().unwrap() =
        Some(|transmit| (transmit.contents.len() > 500).then(|| io::Error::from_raw_os_error(22)));
    let net = net(&from, &to);
    let mut transmitter = transmitter(&mut packets([1024, 1024, 4].map(|len| (net, packet(1, len)))));
    assert_eq!(transmitter.drain(std::slice::from_ref(&from), None), Progress::Done);
    assert_eq!((transmitter.counters.drop_refused, transmitter.counters.datagrams), (2, 1));
    assert!(from.gso_segments() > 1);
}

#[tokio::test]
async fn what_cannot_be_sent_is_counted() {
    let lo = Loopback::claim();
    let (from, to) = (socket(lo, 1), socket(lo, 2));
    let foreign = net(&to, &from);
    let other_family =
        NetHeader::roce(NetRoute { dgid: "fd00::1".parse().unwrap(), ..net(&from, &to).route.unwrap() });
    let too_long = net(&from, &to);
    let queue = [(foreign, 4), (other_family, 4), (too_long, 65_504)];
    let mut transmitter = transmitter(&mut packets(queue.map(|(net, len)| (net, packet(0, len)))));
    assert_eq!(transmitter.drain(std::slice::from_ref(&from), None), Progress::Done);
    let counters = transmitter.counters;
    assert_eq!((counters.drop_no_source, counters.drop_too_long, counters.datagrams), (2, 1, 0));
}

/// Of the traffic class the two ECN bits pass, each packet with its own.
#[tokio::test]
async fn ecn_bits_pass() {
    let lo = Loopback::claim();
    let (from, to) = (socket(lo, 1), socket(lo, 2));
    let classes = [0x2a, 0x03, 0x03, 0x01, 0x00];
    let of_class = |traffic_class| {
        let route = NetRoute { traffic_class, ..net(&from, &to).route.unwrap() };
        (NetHeader::roce(route), packet(1, 8))
    };
    let mut transmitter = transmitter(&mut packets(classes.map(of_class)));
    assert_eq!(transmitter.drain(std::slice::from_ref(&from), None), Progress::Done);
    let (mut receiver, mut arrived) = (Receiver::new(1), Vec::new());
    while arrived.len() < classes.len() {
        receive(&mut receiver, &to).await;
        arrived.extend(receiver.batch().map(|(net, _)| net.route.unwrap().traffic_class));
    }
    assert_eq!(arrived, classes.map(|class| class & 3));
}

#[tokio::test]
async fn damaged_datagrams_are_dropped_each_for_its_cause() {
    let lo = Loopback::claim();
    let (peer, here) = (socket(lo, 1), socket(lo, 2));
    let (std::net::SocketAddr::V4(src), std::net::SocketAddr::V4(dst)) = (peer.local, here.local) else {
        panic!("IPv4 sockets")
    };
    let mut receiver = Receiver::new(1);
    let datagram = |id, dont_fragment| {
        let mut bytes = packet(1, 8);
        let icrc = Ipv4Pseudo { id, dont_fragment, ..Ipv4Pseudo::new(src, dst) }.icrc(&bytes);
        bytes.extend_from_slice(&icrc.0);
        bytes
    };
    let mut damaged = datagram(0, true);
    damaged[13] ^= 1;
    let short = datagram(0, true)[..15].to_vec();
    let sent = [datagram(0, true), datagram(7, true), datagram(8, true), datagram(9, false), damaged, short];
    let mut arrived = 0;
    for bytes in sent {
        socket2::SockRef::from(&peer.socket).send_to(&bytes, &here.local.into()).unwrap();
        receive(&mut receiver, &here).await;
        for (net, transport) in receiver.batch() {
            arrived += 1;
            let route = net.route.unwrap();
            assert_eq!((route.sgid, route.dgid), (src.ip().to_owned().into(), dst.ip().to_owned().into()));
            assert_eq!(net.sl, ServiceLevel::default());
            assert!(TransportPacket::parse(transport).is_ok());
        }
    }
    let counters = receiver.counters;
    assert_eq!((arrived, counters.datagrams), (3, 6));
    assert_eq!((counters.drop_icrc, counters.drop_too_short, counters.drop_without_df), (1, 1, 1));
    let classes = (counters.icrc_full, counters.icrc_solved_id, counters.icrc_predicted_id);
    assert_eq!(classes, (1, 1, 1));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn hca_t04_ipv6_sockets_take_datagrams_without_checksum() {
    use std::os::fd::AsFd;
    let address = LocalAddress::look_up("::1".parse().unwrap());
    let socket = RoceSocket::bind(&address, Loopback::claim().port()).unwrap();
    assert!(ibcm_sys::socket::no_check6_rx(socket.socket.as_fd()).unwrap());
}

#[test]
fn guids_are_stable_and_distinct() {
    let a: IpAddr = "127.0.0.1".parse().unwrap();
    let b: IpAddr = "127.0.0.2".parse().unwrap();
    assert_eq!(node_guid(a, 4791), node_guid(a, 4791));
    assert_ne!(node_guid(a, 4791), node_guid(b, 4791));
    assert_ne!(node_guid(a, 4791), node_guid(a, 4792));
    assert_eq!(node_guid(a, 4791).0 >> 56 & 3, 2);
}

#[test]
fn the_window_fits_the_receive_buffer() {
    assert_eq!(windows(212_992), [92, 92, 92, 48, 25]);
    assert_eq!(windows(16 << 20), [512, 512, 512, 496, 256]);
    assert_eq!(windows(0), [4; 5]);
}
