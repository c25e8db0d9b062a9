//! Raw packets: what reads them, and the engine that gives them to raw queue pairs.
//!
//! The first byte says which filters the queue pairs have and how long their receives are; what follows is a packet from the LRH
//! on, without its VCRC.

use ibdev::qp::{Init, QpType, Transition};
use ibdev::{Access, Buf, Completion, LinkLayer, PortAttr, PortState, RawFilter, RawTypes, RawView, RecvWr};
use ibsoft::engine::{Config, CqId, Engine, PortConfig, QpCreate, device_attr};
use ibwire::packet::{Lrh, NextHeader};
use ibwire::raw::{EtherType, Ipv6Header, RawHeader, RawPacket, Rwh, ether_frame, ipv6_frame, size};
use ibwire::vcrc::Vcrc;
use ibwire::{Guid, Lid, Mtu, PKey, Psn, QKey, Qpn, Rate, ServiceLevel};

use crate::seeds::Seed;

const OWN: Lid = Lid(0x10);
const MTU: Mtu = Mtu::B1024;
/// Receives of each queue pair.
const RECEIVES: u64 = 2;

/// The target.
pub fn run(bytes: &[u8]) {
    let Some((&setting, packet)) = bytes.split_first() else { return };
    let parsed = RawPacket::parse_covered(packet).ok();
    if let Some(parsed) = &parsed {
        check_parsed(packet, parsed);
    }
    let mut engine = engine();
    let view = if setting & 1 == 0 { RawView::Joined } else { RawView::Port };
    let filter = |types| RawFilter { view, lenient: setting & 2 != 0, ..RawFilter::new(types) };
    let room = usize::from(setting >> 2) * 24;
    let only = RawTypes::Only(vec![EtherType::LOCAL_1.0]);
    let ends = [
        (QpType::RawEtherType, filter(RawTypes::Any)),
        (QpType::RawEtherType, filter(only)),
        (QpType::RawIpv6, filter(RawTypes::Only(vec![17, 58]))),
    ]
    .map(|(kind, filter)| open(&mut engine, kind, filter, room));
    for _ in 0..=RECEIVES {
        engine.handle_raw_packet(1, packet);
    }
    let mut received = 0;
    for (qpn, cq) in ends {
        let mut done = Vec::new();
        engine.poll_cq(cq, &mut done, usize::MAX);
        let counters = engine.raw_counters(qpn).expect("a raw queue pair");
        assert_eq!(counters.received, done.len() as u64);
        assert!(done.len() as u64 <= RECEIVES && counters.received + counters.no_receive <= RECEIVES + 1);
        received += done.len();
        done.iter().for_each(|completion| check_received(packet, completion));
    }
    let counters = engine.counters();
    let drops: u64 = counters.named().filter(|(name, _)| name.starts_with("drop_")).map(|(_, n)| n).sum();
    assert!(received > 0 || drops > RECEIVES, "nothing is lost silently");
    assert!(engine.poll_transmit(std::time::Instant::now(), &mut Vec::new()).is_none(), "nobody answers");
}

/// What was read is what stands there.
fn check_parsed(packet: &[u8], parsed: &RawPacket<'_>) {
    let frame = match parsed.header {
        RawHeader::EtherType(rwh) => {
            assert_eq!(parsed.payload.len(), packet.len() - Lrh::LEN - Rwh::LEN);
            ether_frame(parsed.lrh, rwh.ether_type, parsed.payload)
        }
        RawHeader::Ipv6(header) => {
            assert_eq!(parsed.payload.len(), usize::from(header.payload_len));
            ipv6_frame(parsed.lrh, &parsed.message[..Ipv6Header::LEN + parsed.payload.len()])
        }
    };
    assert_eq!(frame.len(), packet.len() + Vcrc::LEN);
    assert_eq!(frame[..Lrh::LEN], packet[..Lrh::LEN]);
}

/// What a queue pair gets is a part of the packet, and the packet may be one.
fn check_received(packet: &[u8], completion: &Completion) {
    let lrh = Lrh::parse(packet).expect("it was delivered");
    let source = completion.raw.expect("of a raw queue pair");
    let data = &completion.sg[0][..];
    assert_eq!((completion.len as usize, source.slid, source.sl), (data.len(), lrh.slid, lrh.sl));
    assert!(Some(lrh.words) <= size::max_words(MTU) && lrh.slid.is_unicast() && lrh.slid != OWN);
    let at = if lrh.next == NextHeader::RawEtherType { Lrh::LEN + Rwh::LEN } else { Lrh::LEN };
    assert_eq!(data, &packet[at..][..data.len()]);
}

fn engine() -> Engine {
    let attr = PortAttr {
        number: 1,
        state: PortState::Active,
        link_layer: LinkLayer::InfiniBand,
        active_mtu: MTU,
        lid: OWN,
        lmc: 0,
        sm_lid: Lid::NONE,
        sm_sl: ServiceLevel::default(),
        rate: Rate::GBPS_100,
    };
    let mut device = device_attr("raw", Guid(1), 1);
    (device.max_raw_ipv6_qp, device.max_raw_ethertype_qp, device.raw_multicast) = (4, 4, true);
    let port = PortConfig { attr, gids: Vec::new(), pkeys: vec![PKey::DEFAULT] };
    Engine::new(Config::new(device, vec![port], [5; 32]))
}

/// A raw queue pair in RTS with receives of `room` bytes.
fn open(engine: &mut Engine, kind: QpType, filter: RawFilter, room: usize) -> (Qpn, CqId) {
    let cq = engine.create_cq(8).expect("a completion queue");
    let qpn = engine.create_qp(&QpCreate::new(kind, cq, 4, 4)).expect("a queue pair");
    let init = Init { port: 1, pkey_index: 0, access: Access::empty(), qkey: QKey::default() };
    engine.modify(qpn, init.into()).expect("INIT");
    engine.set_raw_filter(qpn, filter).expect("a filter");
    let mut work = (0..RECEIVES).map(|id| RecvWr::new(id, Buf::unregistered(room))).collect();
    engine.post_recv(qpn, &mut work).expect("receives");
    engine.modify(qpn, Transition::DatagramRtr).expect("RTR");
    engine.modify(qpn, Transition::DatagramRts { sq_psn: Psn::default() }).expect("RTS");
    (qpn, cq)
}

/// Packets of both kinds, unicast and multicast, under several settings.
pub fn seeds() -> Vec<Seed> {
    let lrh = |dlid| {
        let (vl, words, reserved, next) = (0, 0, 0, NextHeader::RawEtherType);
        Lrh { vl, sl: ServiceLevel::truncate(3), next, dlid: Lid(dlid), words, slid: Lid(0x20), reserved }
    };
    let mut ipv6 = vec![0x60, 0, 0, 0, 0, 5, 17, 1];
    ipv6.resize(Ipv6Header::LEN + 5, 0xff);
    let mut seeds = Vec::new();
    for (setting, dlid) in [(0xfc, 0x10), (0xfd, 0xc001), (0xfe, 0x10), (0x09, 0xc001), (0xff, 0x11)] {
        let packets = [
            ("ether", ether_frame(lrh(dlid), EtherType::LOCAL_1, b"hello")),
            ("long", ether_frame(lrh(dlid), EtherType::IPV6, &[7; 1136])),
            ("ipv6", ipv6_frame(lrh(dlid), &ipv6)),
        ];
        for (name, mut frame) in packets {
            frame.truncate(frame.len() - Vcrc::LEN);
            frame.insert(0, setting);
            seeds.push(Seed { name: format!("raw-{name}-{setting:02x}-{dlid:x}"), bytes: frame });
        }
    }
    seeds
}
