//! Packets of no use leave the memory where it was.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::Instant;

use allocation_counter::{AllocationInfo, measure};
use ibdev::qp::{Init, QpType, Rtr, Rts, Transition};
use ibdev::{
    Access, AddressVector, Buf, GidEntry, GidKind, GlobalRoute, LinkLayer, PortAttr, PortState, RecvWr,
    SendOp, SendWr, SharedMemory,
};
use ibsoft::engine::{
    Config, CqId, DomainId, Engine, NetHeader, NetRoute, PortConfig, QpCreate, device_attr,
};
use ibwire::packet::{Bth, TransportPacket};
use ibwire::{
    FlowLabel, Gid, Guid, Lid, Mtu, PKey, Psn, QKey, Qpn, RKey, Rate, RnrTimer, ServiceLevel, TimeCode,
};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, RngExt, SeedableRng};

const PEER: [u8; 4] = [10, 77, 0, 1];
const HERE: [u8; 4] = [10, 77, 0, 2];
/// What a device may hold of a connected QP that has nothing to do and of its completion queue, however long the
/// queues may become.
const BYTES_OF_IDLE_QP: u64 = 1024;
const EXPECTED: Psn = Psn::truncate(1000);

fn gid(ip: [u8; 4]) -> Gid {
    Gid::from_ip(ip.into())
}

/// A device with a region of 4096 bytes.
fn device() -> (Engine, RKey, u64) {
    let attr = PortAttr {
        number: 1,
        state: PortState::Active,
        link_layer: LinkLayer::Ethernet,
        active_mtu: Mtu::B1024,
        lid: Lid::NONE,
        lmc: 0,
        sm_lid: Lid::NONE,
        sm_sl: ServiceLevel::default(),
        rate: Rate::GBPS_10,
    };
    let gids = vec![GidEntry { index: 0, gid: gid(HERE), kind: GidKind::RoceV2 }];
    let port = PortConfig { attr, gids, pkeys: vec![PKey::DEFAULT] };
    let mut engine = Engine::new(Config::new(device_attr("soft", Guid(1), 1), vec![port], [1; 32]));
    let memory = SharedMemory::zeroed(4096);
    let (rkey, addr) = engine.register(DomainId::DEFAULT, memory, Access::all()).unwrap();
    (engine, rkey, addr)
}

/// A QP in RTS. A connected one has a receive and a send that is not answered.
fn connect(engine: &mut Engine, cq: CqId, kind: QpType) -> Qpn {
    let qpn = idle(engine, &QpCreate::new(kind, cq, 4, 4));
    if kind != QpType::Ud {
        engine.post_recv(qpn, &mut [RecvWr::new(1, Buf::unregistered(64))].into()).unwrap();
        let send = SendWr::new(2, SendOp::Send { imm: None }, Buf::unregistered(3000));
        engine.post_send(qpn, &mut [send].into()).unwrap();
    }
    qpn
}

/// A QP in RTS.
fn idle(engine: &mut Engine, create: &QpCreate) -> Qpn {
    let qpn = engine.create_qp(create).unwrap();
    let grh = GlobalRoute {
        dgid: gid(PEER),
        sgid_index: 0,
        flow_label: FlowLabel::default(),
        hop_limit: 64,
        traffic_class: 0,
    };
    let av = AddressVector {
        port: 1,
        dlid: Lid::NONE,
        sl: ServiceLevel::default(),
        path_bits: 0,
        rate: Rate::PORT_CURRENT,
        grh: Some(grh),
    };
    let rtr = Rtr {
        av,
        path_mtu: Mtu::B1024,
        dest_qpn: Qpn::truncate(9),
        rq_psn: EXPECTED,
        max_dest_rd_atomic: 4,
        min_rnr_timer: RnrTimer::truncate(12),
    };
    let rts = Rts {
        sq_psn: Psn::truncate(7_000_000),
        timeout: TimeCode::truncate(14),
        retry_count: 7,
        rnr_retry: 7,
        max_rd_atomic: 4,
        alternate: None,
    };
    let init = Init { port: 1, pkey_index: 0, access: Access::all(), qkey: QKey(0x1234) };
    engine.modify(qpn, Transition::Init(init)).unwrap();
    if create.kind == QpType::Ud {
        engine.modify(qpn, Transition::DatagramRtr).unwrap();
        engine.modify(qpn, Transition::DatagramRts { sq_psn: rts.sq_psn }).unwrap();
        return qpn;
    }
    engine.modify(qpn, Transition::Rtr(rtr)).unwrap();
    engine.modify(qpn, Transition::Rts(rts)).unwrap();
    qpn
}

fn net() -> NetHeader {
    NetHeader::roce(NetRoute {
        sgid: gid(PEER),
        dgid: gid(HERE),
        flow_label: FlowLabel::default(),
        traffic_class: 0,
        hop_limit: 64,
        ip_id: 0,
    })
}

/// Hands a packet in and throws away what is sent.
fn deliver(engine: &mut Engine, now: Instant, out: &mut Vec<u8>, bytes: &[u8]) {
    engine.handle_packet(now, 1, &net(), bytes);
    while engine.poll_transmit(now, out).is_some() {
        out.clear();
    }
    while engine.poll_event().is_some() {}
}

#[test]
fn hca_t09_reading_a_packet_takes_no_memory() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut bytes = [0; 100];
    let AllocationInfo { count_total, .. } = measure(|| {
        for _ in 0..10_000 {
            rng.fill_bytes(&mut bytes);
            for len in [rng.random_range(0..=bytes.len()), bytes.len()] {
                _ = TransportPacket::parse(&bytes[..len]);
            }
        }
    });
    assert_eq!(count_total, 0);
}

/// Random bytes, most of them addressed to a QP of each kind, and few with an opcode that nobody knows.
#[test]
fn hca_t09_no_garbage_takes_memory_of_the_engine() {
    let (mut engine, ..) = device();
    let cq = engine.create_cq(64).unwrap();
    let qpns = [QpType::Rc, QpType::Uc, QpType::Ud].map(|kind| connect(&mut engine, cq, kind));
    let (now, mut out, mut rng) = (Instant::now(), Vec::with_capacity(2048), ChaCha8Rng::seed_from_u64(2));
    let mut bytes = vec![0; 1200];
    let mut round = |engine: &mut Engine| {
        for _ in 0..20_000 {
            let len = rng.random_range(0..=bytes.len());
            rng.fill_bytes(&mut bytes);
            if rng.random_bool(0.9) {
                let which = rng.random_range(0..3);
                bytes[0] = [0x00, 0x20, 0x60][which] | bytes[0] & 0x1f;
                bytes[1] &= 0xf0;
                bytes[2..4].fill(0xff);
                bytes[5..8].copy_from_slice(&qpns[which].get().to_be_bytes()[1..]);
            }
            deliver(engine, now, &mut out, &bytes[..len]);
        }
    };
    round(&mut engine);
    let before = *engine.counters();
    let AllocationInfo { bytes_current, .. } = measure(|| round(&mut engine));
    assert!(bytes_current <= 0, "{bytes_current} bytes");
    let counters = engine.counters();
    assert!(counters.drop_out_of_sequence > before.drop_out_of_sequence + 1000);
    assert!(counters.drop_malformed > before.drop_malformed);
    assert!(counters.drop_stale_response + counters.drop_future_response > 100);
    // UC takes any PSN for the beginning of a message: it has used its receive. It has sent its message, too.
    assert_eq!((counters.qp_errors, engine.cq_len(cq)), (0, 2));
}

/// A QP that a peer has got to fail leaves nothing once it is destroyed.
#[test]
fn hca_t09_no_broken_connection_leaves_memory_behind() {
    let (mut engine, rkey, addr) = device();
    let cq = engine.create_cq(64).unwrap();
    let (now, mut out, mut rng) = (Instant::now(), Vec::with_capacity(2048), ChaCha8Rng::seed_from_u64(3));
    let mut failed = 0;
    let mut completions = Vec::with_capacity(64);
    let mut round = |engine: &mut Engine| {
        for _ in 0..300 {
            let qpn = connect(engine, cq, QpType::Rc);
            let mut expected = EXPECTED;
            for _ in 0..10 {
                let bth = Bth::new(ibwire::packet::Opcode(rng.random_range(0..0x18)), qpn, expected);
                let mut bytes = bth.to_bytes().to_vec();
                bytes.extend((addr + rng.random_range(0..5000)).to_be_bytes());
                bytes.extend((rkey.0 + u32::from(rng.random_bool(0.1))).to_be_bytes());
                bytes.extend(rng.random_range(0..3000u32).to_be_bytes());
                bytes.resize(bytes.len() + [0, 12, 1008, 1024][rng.random_range(0..4)], 7);
                deliver(engine, now, &mut out, &bytes);
                expected = expected.offset(rng.random_range(0..2));
            }
            engine.poll_cq(cq, &mut completions, usize::MAX);
            failed += completions.iter().filter(|completion| !completion.status.is_ok()).count();
            completions.clear();
            drop(engine.destroy_qp(qpn));
        }
    };
    // What is kept for the next QP has its size after a while.
    (0..3).for_each(|_| round(&mut engine));
    let AllocationInfo { bytes_current, .. } = measure(|| round(&mut engine));
    assert!(bytes_current <= 0, "{bytes_current} bytes");
    assert!(failed > 300, "{failed}");
}

/// 10,000 connections at rest, with a completion queue each.
#[test]
fn an_idle_queue_pair_is_small() {
    const QPS: u64 = 10_000;
    let (mut engine, ..) = device();
    let mut all = Vec::with_capacity(QPS as usize);
    let fill = |engine: &mut Engine, all: &mut Vec<(Qpn, CqId)>| {
        let taken = measure(|| {
            all.extend((0..QPS).map(|_| {
                let cq = engine.create_cq(256).unwrap();
                (idle(engine, &QpCreate::new(QpType::Rc, cq, 128, 128)), cq)
            }));
        });
        taken.bytes_current
    };
    let taken = fill(&mut engine, &mut all);
    let each = taken as u64 / QPS;
    eprintln!("{each} bytes for an idle queue pair");
    assert!(each < BYTES_OF_IDLE_QP, "{each} bytes");
    assert_eq!(engine.poll_timeout(), None, "an idle queue pair needs no timer");
    let given_back = measure(|| {
        for (qpn, cq) in all.drain(..) {
            drop(engine.destroy_qp(qpn));
            engine.destroy_cq(cq).unwrap();
        }
    });
    // The tables keep their room, for the next ones.
    assert!(fill(&mut engine, &mut all) + given_back.bytes_current <= 0, "{given_back:?}");
}
