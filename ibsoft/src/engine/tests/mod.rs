//! Tests of the engine. The scenarios `hca_t…` are those of spec/softhca.md section 7.

mod captured_answers;
mod captured_requests;
mod captured_uc;
mod datagrams;
mod gsi;
mod heard;
mod migration;
mod raw;
mod raw_errors;
mod rc_memory;
mod rc_rdma;
mod rc_receive;
mod rc_respond;
mod rc_send;
mod runs;
mod script;
mod send_queue;
mod shared_receives;
mod simulation;
mod states;
mod uc;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use ibdev::qp::{Init, Rtr, Rts, Transition};
use ibdev::{
    Access, AddressHandle, AddressVector, Buf, DeviceAttr, GidEntry, GidKind, GlobalRoute, LinkLayer,
    PortAttr, PortState, RecvWr, SendOp, SendWr,
};
use ibwire::{FlowLabel, Gid, Guid, Lid, Mtu, PKey, Psn, QKey, Qpn, Rate, RnrTimer, ServiceLevel, TimeCode};

use super::{Config, Engine, NetHeader, NetRoute, PortConfig, device_attr};

/// A RoCE port with this address and an MTU of 1024.
fn roce_port(ip: &str) -> PortConfig {
    PortConfig {
        attr: PortAttr {
            number: 1,
            state: PortState::Active,
            link_layer: LinkLayer::Ethernet,
            active_mtu: Mtu::B1024,
            lid: Lid::NONE,
            lmc: 0,
            sm_lid: Lid::NONE,
            sm_sl: ServiceLevel::default(),
            rate: Rate::GBPS_10,
        },
        gids: vec![GidEntry { index: 3, gid: gid(ip), kind: GidKind::RoceV2 }],
        pkeys: vec![PKey::DEFAULT],
    }
}

/// An InfiniBand port with this LID and room for four path bits.
fn ib_port(lid: u16) -> PortConfig {
    let mut port = roce_port("fe80::1");
    port.attr.link_layer = LinkLayer::InfiniBand;
    (port.attr.lid, port.attr.lmc) = (Lid(lid), 2);
    port.gids[0].kind = GidKind::Infiniband;
    port.pkeys = vec![PKey(0x8001), PKey::DEFAULT];
    port
}

fn engine(port: PortConfig, seed: u8) -> Engine {
    Engine::new(Config::new(device_attr("soft", Guid(u64::from(seed)), 1), vec![port], [seed; 32]))
}

fn gid(ip: &str) -> Gid {
    Gid::from_ip(ip.parse::<IpAddr>().unwrap())
}

/// The way to a RoCE peer.
fn roce_av(to: &str) -> AddressVector {
    AddressVector {
        port: 1,
        dlid: Lid::NONE,
        sl: ServiceLevel::default(),
        path_bits: 0,
        rate: Rate::PORT_CURRENT,
        grh: Some(GlobalRoute {
            dgid: gid(to),
            sgid_index: 3,
            flow_label: FlowLabel::truncate(5),
            hop_limit: 64,
            traffic_class: 0,
        }),
    }
}

/// The header of a RoCE packet.
fn roce_net(from: &str, to: &str) -> NetHeader {
    NetHeader::roce(NetRoute {
        sgid: gid(from),
        dgid: gid(to),
        flow_label: FlowLabel::default(),
        traffic_class: 0,
        hop_limit: 64,
        ip_id: 0,
    })
}

const INIT: Init = Init { port: 1, pkey_index: 0, access: Access::empty(), qkey: QKey(0x1234) };

fn rtr(av: AddressVector, dest_qpn: Qpn, rq_psn: u32) -> Rtr {
    Rtr {
        av,
        path_mtu: Mtu::B1024,
        dest_qpn,
        rq_psn: Psn::truncate(rq_psn),
        max_dest_rd_atomic: 1,
        min_rnr_timer: RnrTimer::truncate(12),
    }
}

fn rts(sq_psn: u32) -> Rts {
    Rts {
        sq_psn: Psn::truncate(sq_psn),
        timeout: TimeCode::truncate(14),
        retry_count: 7,
        rnr_retry: 7,
        max_rd_atomic: 1,
        alternate: None,
    }
}

/// Brings a connected QP to RTS.
fn connect(engine: &mut Engine, qpn: Qpn, rtr: Rtr, rts: Rts) {
    for transition in [Transition::Init(INIT), Transition::Rtr(rtr), Transition::Rts(rts)] {
        engine.modify(qpn, transition).unwrap();
    }
}

/// Byte `i` of a message that tells itself from others by `tag`.
fn pattern(tag: u64, i: usize) -> u8 {
    (tag as usize).wrapping_mul(31).wrapping_add(i).wrapping_mul(151) as u8 ^ (i >> 8) as u8
}

fn message(tag: u64, len: usize) -> Buf {
    let mut buf = Buf::unregistered(len);
    for (i, byte) in buf.iter_mut().enumerate() {
        *byte = pattern(tag, i);
    }
    buf
}

fn send(id: u64, len: usize, imm: Option<u32>) -> SendWr {
    SendWr::new(id, SendOp::Send { imm }, message(id, len))
}

fn recv(id: u64, len: usize) -> RecvWr {
    RecvWr::new(id, Buf::unregistered(len))
}

/// An address handle of these tests.
#[derive(Debug)]
struct Ah(AddressVector);

impl AddressHandle for Ah {
    fn av(&self) -> &AddressVector {
        &self.0
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

fn ah(av: AddressVector) -> Arc<dyn AddressHandle> {
    Arc::new(Ah(av))
}

fn one<T>(work: T) -> VecDeque<T> {
    VecDeque::from([work])
}
