//! Raw queue pairs: what they send, and who takes what arrives. The scenarios are those of spec/raw.md 9.

use std::time::Instant;

use ibdev::qp::QpType;
use ibdev::{Completion, PostError, RawDest, RawFilter, RawTypes, RawView, SendFlags, Status};
use ibwire::packet::{Lrh, NextHeader as Next};
use ibwire::raw::{EtherType, RawPacket, ether_frame, ipv6_frame};
use ibwire::vcrc::Vcrc;

use super::super::{CqId, Framing, PortGroup, QpCreate};
use super::*;

/// The DUT's LID; it has room for four path bits.
pub(super) const OWN: u16 = 0x10;
const PEER: Lid = Lid(0x20);
pub(super) const CHAT: EtherType = EtherType::LOCAL_1;

pub(super) struct Dut {
    pub(super) engine: Engine,
    pub(super) now: Instant,
}

/// A raw QP with a completion queue of its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    pub(super) qpn: Qpn,
    pub(super) cq: CqId,
}

impl Dut {
    /// A port with an MTU of 256.
    pub(super) fn new() -> Self {
        let mut port = ib_port(OWN);
        port.attr.active_mtu = Mtu::B256;
        let mut attr = device_attr("raw", Guid(1), 1);
        (attr.max_raw_ipv6_qp, attr.max_raw_ethertype_qp, attr.raw_multicast) = (4, 4, true);
        Self { engine: Engine::new(Config::new(attr, vec![port], [9; 32])), now: Instant::now() }
    }

    pub(super) fn create(&mut self, kind: QpType, cqe: u32) -> End {
        let cq = self.engine.create_cq(cqe).unwrap();
        let create = QpCreate { max_sge: 4, ..QpCreate::new(kind, cq, 8, 8) };
        let end = End { qpn: self.engine.create_qp(&create).unwrap(), cq };
        self.engine.modify(end.qpn, Transition::Init(INIT)).unwrap();
        end
    }

    pub(super) fn ready(&mut self, end: End) {
        self.engine.modify(end.qpn, Transition::DatagramRtr).unwrap();
        self.engine.modify(end.qpn, Transition::DatagramRts { sq_psn: Psn::default() }).unwrap();
    }

    /// A QP in RTS that takes what the filter lets in.
    pub(super) fn open(&mut self, kind: QpType, filter: RawFilter) -> End {
        let end = self.create(kind, 16);
        self.engine.set_raw_filter(end.qpn, filter).unwrap();
        self.ready(end);
        end
    }

    pub(super) fn post_recv(&mut self, end: End, id: u64, len: usize) {
        self.engine.post_recv(end.qpn, &mut one(recv(id, len))).unwrap();
    }

    pub(super) fn completion(&mut self, end: End) -> Option<Completion> {
        let mut out = Vec::new();
        self.engine.poll_cq(end.cq, &mut out, 1);
        out.pop()
    }

    /// What a receive brought.
    fn received(&mut self, end: End) -> Option<Vec<u8>> {
        let completion = self.completion(end)?;
        assert_eq!((completion.status, completion.len as usize), (Status::SUCCESS, completion.sg[0].len()));
        Some(completion.sg[0].to_vec())
    }

    pub(super) fn send(&mut self, end: End, op: SendOp, bytes: &[u8]) -> Result<(), PostError> {
        let mut buf = Buf::unregistered(bytes.len());
        buf.copy_from_slice(bytes);
        self.engine.post_send(end.qpn, &mut one(SendWr::new(1, op, buf)))
    }

    /// The next packet on the link, VCRC included, checked by the codec.
    fn transmit(&mut self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let egress = self.engine.poll_transmit(self.now, &mut out)?;
        let net = *egress.net;
        let next = match egress.framing {
            Framing::RawEtherType => Next::RawEtherType,
            Framing::RawIpv6 => Next::RawIpv6,
            Framing::Transport => panic!("a transport packet"),
        };
        let words = ((Lrh::LEN + out.len()) / 4) as u16;
        let lrh = Lrh { vl: 0, sl: net.sl, next, dlid: net.dlid, words, slid: net.slid, reserved: 0 };
        let mut frame = [&lrh.to_bytes()[..], &out].concat();
        frame.extend(ibwire::vcrc::of(&frame).0);
        RawPacket::parse(&frame).unwrap();
        Some(frame)
    }

    /// Hands in a packet.
    pub(super) fn arrive(&mut self, frame: &[u8]) {
        self.engine.handle_raw_packet(1, &frame[..frame.len() - Vcrc::LEN]);
    }
}

pub(super) fn lrh(dlid: u16) -> Lrh {
    let (vl, words, reserved) = (0, 0, 0);
    Lrh { vl, sl: ServiceLevel::truncate(3), next: Next::Bth, dlid: Lid(dlid), words, slid: PEER, reserved }
}

pub(super) fn to(dlid: u16) -> RawDest {
    RawDest { dlid: Lid(dlid), sl: ServiceLevel::truncate(2), path_bits: 1, rate: Rate::PORT_CURRENT }
}

pub(super) fn ether(dlid: u16) -> SendOp {
    SendOp::RawEtherType { to: to(dlid), ether_type: CHAT }
}

fn only(values: &[u16]) -> RawFilter {
    RawFilter::new(RawTypes::Only(values.to_vec()))
}

fn chat() -> RawFilter {
    only(&[CHAT.0])
}

/// An IPv6 packet whose header counts `counted` bytes, with `behind` bytes behind it.
fn ipv6(next: u8, counted: u16, behind: usize) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, next, 1];
    packet[4..6].copy_from_slice(&counted.to_be_bytes());
    for address in ["fe80::2", "ff02::1"] {
        packet.extend(address.parse::<std::net::Ipv6Addr>().unwrap().octets());
    }
    packet.extend((0..behind).map(|i| i as u8));
    packet
}

#[test]
fn raw_t04_a_short_message_is_padded_and_the_receiver_cannot_tell() {
    let mut dut = Dut::new();
    let end = dut.open(QpType::RawEtherType, chat());
    for (len, words, padded) in [(0, 5, 8), (1, 5, 8), (7, 5, 8), (8, 5, 8), (9, 6, 12)] {
        let message = vec![0xa5; len];
        dut.send(end, ether(0x20), &message).unwrap();
        let frame = dut.transmit().unwrap();
        let packet = RawPacket::parse(&frame).unwrap();
        assert_eq!((packet.lrh.words, packet.payload.len()), (words, padded));
        assert_eq!(
            (&packet.payload[..len], &packet.payload[len..]),
            (&message[..], &vec![0; padded - len][..])
        );
        assert_eq!((packet.lrh.slid, packet.lrh.dlid, packet.lrh.sl.get()), (Lid(OWN | 1), Lid(0x20), 2));
        assert_eq!(dut.completion(end).unwrap().status, Status::SUCCESS);

        dut.post_recv(end, 7, 64);
        dut.arrive(&ether_frame(lrh(OWN + 2), CHAT, &message));
        let completion = dut.completion(end).unwrap();
        assert_eq!((completion.len as usize, completion.sg[0].len()), (padded, padded));
        let source = completion.raw.unwrap();
        assert_eq!((source.slid, source.sl.get(), source.path_bits), (PEER, 3, Some(2)));
        assert_eq!((source.ether_type, source.group, completion.from), (Some(CHAT), None, None));
    }
}

#[test]
fn raw_t05_the_longest_ethertype_message() {
    let mut dut = Dut::new();
    let end = dut.open(QpType::RawEtherType, chat());
    dut.send(end, ether(0x20), &[1; 368]).unwrap();
    assert_eq!(RawPacket::parse(&dut.transmit().unwrap()).unwrap().lrh.words, 95);
    for len in [369, 372] {
        assert_eq!(dut.send(end, ether(0x20), &vec![1; len]), Err(PostError::TooLong { len, limit: 368 }));
    }
    assert_eq!(dut.transmit(), None);
}

#[test]
fn raw_t06_the_longest_ipv6_message() {
    let mut dut = Dut::new();
    let end = dut.open(QpType::RawIpv6, RawFilter::default());
    let op = || SendOp::RawIpv6 { to: to(0xc001) };
    dut.send(end, op(), &ipv6(253, 332, 332)).unwrap();
    assert_eq!(RawPacket::parse(&dut.transmit().unwrap()).unwrap().lrh.words, 95);
    assert_eq!(dut.send(end, op(), &ipv6(253, 333, 333)), Err(PostError::TooLong { len: 373, limit: 372 }));
    let short = dut.send(end, op(), &[0x60; 39]).unwrap_err();
    assert_eq!(short, PostError::Limit { what: "too short for an IPv6 header: bytes", value: 39, limit: 40 });
    let other = dut.send(end, ether(0x20), b"12345678").unwrap_err();
    assert!(matches!(other, PostError::Invalid { .. }), "{other}");
    assert_eq!(dut.transmit(), None);
}

#[test]
fn raw_t07_impossible_lengths_take_no_receive() {
    let mut dut = Dut::new();
    let (chat, ip) =
        (dut.open(QpType::RawEtherType, chat()), dut.open(QpType::RawIpv6, RawFilter::default()));
    for end in [chat, ip] {
        dut.post_recv(end, 1, 8192);
    }
    let cut = |frame: Vec<u8>, words: u8| {
        let mut frame = frame[..usize::from(words) * 4 + Vcrc::LEN].to_vec();
        frame[5] = words;
        frame
    };
    dut.arrive(&cut(ipv6_frame(lrh(OWN), &ipv6(59, 0, 0)), 11));
    dut.arrive(&cut(ether_frame(lrh(OWN), CHAT, b"1234"), 4));
    dut.arrive(&ether_frame(lrh(OWN), CHAT, &[0; 1056 * 4 - 12]));
    // More than this port's MTU allows.
    dut.arrive(&ether_frame(lrh(OWN), CHAT, &[0; 369]));
    // Another length than what arrived.
    dut.engine.handle_raw_packet(1, &ether_frame(lrh(OWN), CHAT, b"12345678"));
    assert_eq!(dut.engine.counters().drop_raw_malformed, 5);
    assert_eq!((dut.engine.outstanding(chat.qpn), dut.engine.cq_len(chat.cq)), (Some((0, 1)), 0));
    assert_eq!((dut.engine.outstanding(ip.qpn), dut.engine.cq_len(ip.cq)), (Some((0, 1)), 0));
}

#[test]
fn raw_t08_ipv6_that_counts_other_bytes_than_there_are() {
    let mut dut = Dut::new();
    let strict = dut.open(QpType::RawIpv6, RawFilter::default());
    dut.post_recv(strict, 1, 128);
    for (counted, behind) in [(9, 8), (0xffff, 8), (4, 8), (0, 4)] {
        dut.arrive(&ipv6_frame(lrh(OWN), &ipv6(253, counted, behind)));
    }
    let mut old = ipv6(253, 8, 8);
    old[0] = 0x40;
    dut.arrive(&ipv6_frame(lrh(OWN), &old));
    assert_eq!((dut.engine.counters().drop_raw_malformed, dut.completion(strict).is_none()), (5, true));
    let lenient = dut.open(QpType::RawIpv6, RawFilter { lenient: true, ..RawFilter::default() });
    dut.post_recv(lenient, 2, 128);
    dut.arrive(&ipv6_frame(lrh(OWN), &ipv6(253, 4, 8)));
    assert_eq!(dut.received(lenient).unwrap(), ipv6(253, 4, 4));
    assert!(dut.completion(strict).is_none());
    assert_eq!(dut.engine.raw_counters(lenient.qpn).unwrap().excess, 1);
    assert_eq!(dut.engine.counters().drop_raw_malformed, 5);
}

#[test]
fn raw_t09_padding_is_not_part_of_an_ipv6_packet() {
    let mut dut = Dut::new();
    let end = dut.open(QpType::RawIpv6, RawFilter::default());
    dut.post_recv(end, 1, 128);
    let packet = ipv6(17, 13, 13);
    let frame = ipv6_frame(lrh(0xc002), &packet);
    assert_eq!(frame.len(), 8 + 56 + 2);
    dut.arrive(&frame);
    let completion = dut.completion(end).unwrap();
    assert_eq!((&completion.sg[0][..], completion.len), (&packet[..], 53));
    let source = completion.raw.unwrap();
    assert_eq!((source.path_bits, source.group, source.ether_type), (None, Some(Lid(0xc002)), None));
}

#[test]
fn raw_t10_without_a_receive_a_packet_is_lost() {
    let mut dut = Dut::new();
    let end = dut.open(QpType::RawEtherType, chat());
    dut.arrive(&ether_frame(lrh(OWN), CHAT, b"lost"));
    assert_eq!((dut.engine.poll_event(), dut.engine.cq_len(end.cq)), (None, 0));
    dut.post_recv(end, 1, 64);
    dut.arrive(&ether_frame(lrh(OWN), CHAT, b"received"));
    let completion = dut.completion(end).unwrap();
    assert_eq!((&completion.sg[0][..], completion.raw.unwrap().lost_before), (&b"received"[..], 1));
    let counters = dut.engine.raw_counters(end.qpn).unwrap();
    assert_eq!((counters.no_receive, counters.received, counters.too_long), (1, 1, 0));
    assert_eq!(dut.engine.counters().drop_raw_no_receive, 1);
    // It is told once.
    dut.post_recv(end, 2, 64);
    dut.arrive(&ether_frame(lrh(OWN), CHAT, b"received"));
    assert_eq!(dut.completion(end).unwrap().raw.unwrap().lost_before, 0);
}

#[test]
fn raw_t10_a_queue_pair_that_is_set_up_twice_gets_one_copy() {
    let mut dut = Dut::new();
    let end = dut.create(QpType::RawEtherType, 16);
    dut.engine.modify(end.qpn, Transition::Init(INIT)).unwrap();
    dut.engine.set_raw_filter(end.qpn, chat()).unwrap();
    dut.ready(end);
    (0..2).for_each(|id| dut.post_recv(end, id, 64));
    dut.arrive(&ether_frame(lrh(OWN), CHAT, b"received"));
    assert_eq!(dut.engine.cq_len(end.cq), 1);
}

#[test]
fn raw_t11_a_receive_that_is_too_short_stays() {
    let mut dut = Dut::new();
    let end = dut.open(QpType::RawEtherType, chat());
    dut.post_recv(end, 1, 15);
    dut.arrive(&ether_frame(lrh(OWN), CHAT, &[1; 16]));
    assert_eq!((dut.engine.cq_len(end.cq), dut.engine.counters().drop_raw_too_long), (0, 1));
    dut.arrive(&ether_frame(lrh(OWN), CHAT, &[2; 12]));
    let completion = dut.completion(end).unwrap();
    assert_eq!((completion.id, &completion.sg[0][..]), (1, &[2; 12][..]));
    assert_eq!(completion.raw.unwrap().lost_before, 1);
}

#[test]
fn raw_t14_each_queue_pair_whose_filter_fits_gets_a_copy() {
    let mut dut = Dut::new();
    let udp = dut.open(QpType::RawIpv6, RawFilter { view: RawView::Port, ..only(&[17]) });
    let both = dut.open(QpType::RawIpv6, RawFilter { view: RawView::Port, ..only(&[17, 58]) });
    for end in [udp, both] {
        (0..4).for_each(|id| dut.post_recv(end, id, 128));
    }
    dut.arrive(&ipv6_frame(lrh(0xc001), &ipv6(17, 8, 8)));
    dut.arrive(&ipv6_frame(lrh(0xc001), &ipv6(58, 8, 8)));
    dut.arrive(&ipv6_frame(lrh(OWN), &ipv6(253, 8, 8)));
    // Of another kind.
    dut.arrive(&ether_frame(lrh(OWN), EtherType(17), b"12345678"));
    assert_eq!(dut.received(udp), Some(ipv6(17, 8, 8)));
    assert_eq!(dut.received(udp), None);
    assert_eq!(dut.received(both), Some(ipv6(17, 8, 8)));
    assert_eq!(dut.received(both), Some(ipv6(58, 8, 8)));
    assert_eq!(dut.received(both), None);
    assert_eq!(dut.engine.counters().drop_raw_unclaimed, 2);
}

#[test]
fn raw_t15_a_claimed_protocol_has_one_queue_pair() {
    let mut dut = Dut::new();
    let exclusive = RawFilter { exclusive: true, ..chat() };
    let first = dut.open(QpType::RawEtherType, exclusive.clone());
    let second = dut.create(QpType::RawEtherType, 16);
    for filter in [chat(), RawFilter::default(), exclusive] {
        let error = dut.engine.set_raw_filter(second.qpn, filter).unwrap_err();
        assert!(matches!(error, ibdev::DeviceError::InUse { .. }), "{error}");
    }
    dut.engine.set_raw_filter(second.qpn, only(&[0x88b6])).unwrap();
    let ip = dut.create(QpType::RawIpv6, 16);
    let third = dut.create(QpType::RawEtherType, 16);
    dut.engine.set_raw_filter(third.qpn, RawFilter { exclusive: true, ..only(&[58]) }).unwrap();
    dut.engine.set_raw_filter(ip.qpn, only(&[58])).unwrap(); // a number of another kind
    drop(dut.engine.destroy_qp(first.qpn));
    dut.engine.set_raw_filter(second.qpn, chat()).unwrap();
    let late = dut.engine.set_raw_filter(second.qpn, chat());
    assert!(late.is_ok());
    let fourth = dut.create(QpType::RawEtherType, 16);
    let alone = RawFilter { exclusive: true, ..chat() };
    assert!(dut.engine.set_raw_filter(fourth.qpn, alone).is_err(), "what another one has nobody has alone");
    dut.ready(second);
    assert!(dut.engine.set_raw_filter(second.qpn, chat()).is_err());
}

#[test]
fn raw_t16_nobody_hears_itself_and_others_only_if_it_wants() {
    let group: Gid = "ff12:e70e:ffff::3333:88:b5".parse().unwrap();
    for loopback in [false, true] {
        let mut dut = Dut::new();
        let sender = dut.open(QpType::RawEtherType, RawFilter { loopback, ..chat() });
        let other = dut.open(QpType::RawEtherType, chat());
        for end in [sender, other] {
            dut.engine.attach(end.qpn, group, Lid(0xc005)).unwrap();
            dut.post_recv(end, 1, 64);
        }
        dut.send(sender, ether(0xc005), b"to all of them..").unwrap();
        let frame = dut.transmit().unwrap();
        assert_eq!(dut.completion(sender).unwrap().op, ibdev::CompletionOp::Send);
        assert!(dut.completion(sender).is_none());
        let heard = dut.completion(other);
        assert_eq!(heard.is_some(), loopback);
        if let Some(completion) = heard {
            let source = completion.raw.unwrap();
            assert_eq!((source.slid, source.group), (Lid(OWN | 1), Some(Lid(0xc005))));
        }
        // What comes back from the link is not heard again.
        dut.arrive(&frame);
        assert!(dut.completion(sender).is_none() && dut.completion(other).is_none());
        assert_eq!(dut.engine.counters().drop_raw_own, 1);
    }
}

#[test]
fn unicast_to_the_own_port_stays_there() {
    let mut dut = Dut::new();
    let (sender, other) = (dut.open(QpType::RawEtherType, chat()), dut.open(QpType::RawEtherType, chat()));
    for end in [sender, other] {
        dut.post_recv(end, 1, 64);
    }
    dut.send(sender, ether(OWN + 3), b"neighbour").unwrap();
    assert_eq!(dut.transmit(), None);
    assert_eq!(dut.received(other).unwrap(), b"neighbour\0\0\0");
    assert_eq!(dut.completion(sender).unwrap().op, ibdev::CompletionOp::Send);
    assert!(dut.completion(sender).is_none());
}

#[test]
fn groups_are_for_those_that_are_attached() {
    let mut dut = Dut::new();
    let group: Gid = "ff12:e70e:ffff::1".parse().unwrap();
    let (member, port) = (
        dut.open(QpType::RawEtherType, chat()),
        dut.open(QpType::RawEtherType, RawFilter { view: RawView::Port, ..only(&[0x88b6]) }),
    );
    assert!(dut.engine.attach(member.qpn, group, Lid(5)).is_err(), "not a group's LID");
    let here = PortGroup { port: 1, mgid: group, mlid: Lid(0xc007) };
    assert_eq!(dut.engine.attach(member.qpn, group, Lid(0xc007)).unwrap(), (here, true));
    for end in [member, port] {
        (0..4).for_each(|id| dut.post_recv(end, id, 64));
    }
    dut.arrive(&ether_frame(lrh(0xc007), CHAT, b"12345678"));
    dut.arrive(&ether_frame(lrh(0xc008), CHAT, b"12345678"));
    dut.arrive(&ether_frame(lrh(0xc009), EtherType::LOCAL_2, b"12345678"));
    assert!(dut.received(member).is_some() && dut.received(member).is_none());
    assert!(dut.received(port).is_some());
    assert_eq!(dut.engine.counters().drop_raw_not_member, 1);
    assert_eq!(dut.engine.raw_counters(member.qpn).unwrap().not_member, 1);
    assert_eq!(dut.engine.detach(member.qpn, group, Lid(0xc007)), Some(here));
    dut.arrive(&ether_frame(lrh(0xc007), CHAT, b"12345678"));
    assert!(dut.received(member).is_none());
}

#[test]
fn raw_t34_addresses_that_raw_packets_cannot_have() {
    let mut dut = Dut::new();
    let end = dut.open(QpType::RawEtherType, RawFilter::default());
    for dlid in [0xffff, 0x0000] {
        assert!(matches!(dut.send(end, ether(dlid), b"12345678"), Err(PostError::Invalid { .. })));
    }
    let beyond = SendOp::RawEtherType { to: RawDest { path_bits: 4, ..to(0x20) }, ether_type: CHAT };
    assert!(matches!(dut.send(end, beyond, b"12345678"), Err(PostError::Invalid { .. })));
    assert_eq!(dut.transmit(), None);
    dut.post_recv(end, 1, 64);
    for dlid in [0xffff, 0x0000, 0x0055] {
        dut.arrive(&ether_frame(lrh(dlid), CHAT, b"12345678"));
    }
    for slid in [0xc000, 0xffff, 0x0000] {
        dut.arrive(&ether_frame(Lrh { slid: Lid(slid), ..lrh(OWN) }, CHAT, b"12345678"));
    }
    assert_eq!((dut.engine.counters().drop_address, dut.engine.cq_len(end.cq)), (6, 0));
}

#[test]
fn a_device_that_has_none_says_so() {
    let mut engine = engine(ib_port(1), 3);
    let cq = engine.create_cq(8).unwrap();
    for kind in [QpType::RawIpv6, QpType::RawEtherType] {
        let error = engine.create_qp(&QpCreate::new(kind, cq, 1, 1)).unwrap_err();
        assert!(matches!(error, ibdev::DeviceError::Unsupported { .. }), "{error}");
    }
    let mut dut = Dut::new();
    let ends: Vec<_> = (0..4).map(|_| dut.create(QpType::RawIpv6, 8)).collect();
    let cq = dut.engine.create_cq(8).unwrap();
    let fifth = dut.engine.create_qp(&QpCreate::new(QpType::RawIpv6, cq, 1, 1)).unwrap();
    let error = dut.engine.modify(fifth, Transition::Init(INIT)).unwrap_err();
    assert_eq!(error.to_string(), "raw IPv6 queue pairs on the port 5, the device allows 4");
    drop(dut.engine.destroy_qp(ends[0].qpn));
    dut.engine.modify(fifth, Transition::Init(INIT)).unwrap();
    // Raw QPs reserve nothing in their CQs, so others cannot rely on those.
    let mixed = dut.engine.create_qp(&QpCreate::new(QpType::Ud, cq, 1, 1)).unwrap_err();
    assert!(matches!(mixed, ibdev::DeviceError::Unsupported { .. }), "{mixed}");
}

#[test]
fn unsignaled_sends_do_not_complete() {
    let mut dut = Dut::new();
    let end = dut.open(QpType::RawEtherType, chat());
    let wr = SendWr { flags: SendFlags::empty(), ..SendWr::new(1, ether(0x20), message(1, 20)) };
    dut.engine.post_send(end.qpn, &mut one(wr)).unwrap();
    assert!(dut.transmit().is_some() && dut.completion(end).is_none());
    assert_eq!(dut.engine.take_released().len(), 1);
    assert_eq!(dut.engine.outstanding(end.qpn), Some((0, 0)));
}
