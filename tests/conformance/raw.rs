//! Raw queue pairs: packets without a transport header.

use ibdev::qp::{QpType, Transition};
use ibdev::{Completion, DeviceError, PostError, RawDest, RawFilter, RawTypes, SendOp, SendWr, Status};
use ibwire::raw::{EtherType, Ipv6Header, size};
use ibwire::{Gid, Lid, Psn, Rate, ServiceLevel};

use super::bench::Bench;
use super::case::cases;
use super::end::{End, Options, message};

cases! {
    raw_of_every_length [Raw];
    raw_ipv6_comes_with_its_header [Raw];
    raw_group_reaches_members [Raw];
    raw_without_a_receive_is_counted [Raw];
    raw_qp_takes_nothing_else [Raw];
    raw_is_claimed_once [Raw];
}

const CHAT: EtherType = EtherType::LOCAL_1;

fn raw(kind: QpType) -> Options {
    Options { kind, ..Options::default() }
}

/// A QP in RTS that takes what the filter lets in.
async fn open(device: &std::sync::Arc<dyn ibdev::Device>, kind: QpType, filter: RawFilter) -> End {
    let end = End::new(device, raw(kind)).await;
    end.modify(Transition::Init(end.init())).await;
    end.qp.set_raw_filter(filter).await.unwrap();
    end.modify(Transition::DatagramRtr).await;
    end.modify(Transition::DatagramRts { sq_psn: Psn::default() }).await;
    end
}

async fn two(bench: &Bench, kind: QpType) -> (End, End) {
    (
        open(&bench.a, kind, RawFilter::default()).await,
        open(&bench.b, kind, RawFilter::new(RawTypes::Any)).await,
    )
}

fn dest(dlid: Lid) -> RawDest {
    RawDest { dlid, sl: ServiceLevel::default(), path_bits: 0, rate: Rate::PORT_CURRENT }
}

fn ether(dlid: Lid) -> SendOp {
    SendOp::RawEtherType { to: dest(dlid), ether_type: CHAT }
}

fn lid(end: &End) -> Lid {
    end.device.port(1).unwrap().lid
}

async fn received(end: &End) -> Completion {
    let got = end.completion().await;
    assert_eq!((got.status, got.from, got.imm), (Status::SUCCESS, None, None));
    got
}

async fn raw_of_every_length(bench: Bench) {
    let (a, b) = two(&bench, QpType::RawEtherType).await;
    let longest = size::max_ether_payload(bench.a.port(1).unwrap().active_mtu).unwrap();
    for len in [0, 1, 7, 8, 9, 256, longest - 1, longest] {
        b.receives(3, 1, longest).await;
        let sent = message(1, len);
        assert_eq!(a.carry_out(ether(lid(&b)), &sent).await.status, Status::SUCCESS);
        let got = received(&b).await;
        assert_eq!(got.len as usize, len + size::ether_padding(len));
        assert_eq!((&got.sg[0][..len], got.sg[0][len..].iter().all(|byte| *byte == 0)), (&sent[..], true));
        let source = got.raw.unwrap();
        assert_eq!((source.slid, source.ether_type, source.path_bits), (lid(&a), Some(CHAT), Some(0)));
    }
    let wr = SendWr::new(1, ether(lid(&b)), a.buf(&message(1, longest + 1)).await);
    assert_eq!(a.post(wr), Err(PostError::TooLong { len: longest + 1, limit: longest }));
}

async fn raw_ipv6_comes_with_its_header(bench: Bench) {
    let (a, b) = two(&bench, QpType::RawIpv6).await;
    let header = Ipv6Header {
        traffic_class: 0,
        flow_label: ibwire::FlowLabel::default(),
        payload_len: 5,
        next_header: ibwire::raw::NextHeader(253),
        hop_limit: 9,
        src: "fe80::1".parse().unwrap(),
        dst: "fe80::2".parse().unwrap(),
    };
    let packet = [&header.to_bytes()[..], b"12345"].concat();
    b.receives(3, 1, 64).await;
    a.carry_out(SendOp::RawIpv6 { to: dest(lid(&b)) }, &packet).await;
    let got = received(&b).await;
    assert_eq!((&got.sg[0][..], got.raw.unwrap().ether_type), (&packet[..], None));
}

async fn raw_group_reaches_members(bench: Bench) {
    let (a, b) = two(&bench, QpType::RawEtherType).await;
    let group: Gid = "ff12:e70e:ffff::3333:0:88b5".parse().unwrap();
    let mlid = bench.hands.group(group).await;
    b.receives(3, 2, 64).await;
    b.qp.attach(group, mlid).await.unwrap();
    a.carry_out(ether(mlid), b"members.").await;
    let got = received(&b).await;
    assert_eq!((&got.sg[0][..], got.raw.unwrap().group), (&b"members."[..], Some(mlid)));
    b.qp.detach(group, mlid).await.unwrap();
    a.carry_out(ether(mlid), b"nobody..").await;
    a.carry_out(ether(lid(&b)), b"you only").await;
    assert_eq!(received(&b).await.sg[0][..], b"you only"[..]);
}

/// Until so many packets have come and were lost.
async fn lost(end: &End, packets: u64) {
    loop {
        let counters = end.qp.raw_counters().unwrap();
        if counters.no_receive + counters.too_long == packets {
            return;
        }
        // Nothing tells of a loss. A task that only yields would hold a paused clock.
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

async fn raw_without_a_receive_is_counted(bench: Bench) {
    let (a, b) = two(&bench, QpType::RawEtherType).await;
    a.carry_out(ether(lid(&b)), b"too soon").await;
    lost(&b, 1).await;
    b.receives(1, 1, 11).await;
    a.carry_out(ether(lid(&b)), b"too long for it").await;
    lost(&b, 2).await;
    a.carry_out(ether(lid(&b)), b"it fits.").await;
    let got = received(&b).await;
    assert_eq!((&got.sg[0][..], got.raw.unwrap().lost_before), (&b"it fits."[..], 2));
    let counters = b.qp.raw_counters().unwrap();
    assert_eq!((counters.no_receive, counters.too_long, counters.received), (1, 1, 1));
}

async fn raw_qp_takes_nothing_else(bench: Bench) {
    let (a, b) = two(&bench, QpType::RawEtherType).await;
    for op in [
        SendOp::Send { imm: None },
        SendOp::RawIpv6 { to: dest(lid(&b)) },
        ether(Lid(0)),
        ether(Lid::PERMISSIVE),
    ] {
        let refused = a.post(SendWr::new(0, op, a.buf(&[0; 64]).await));
        assert!(matches!(refused, Err(PostError::Invalid { .. })), "{refused:?}");
    }
}

async fn raw_is_claimed_once(bench: Bench) {
    let only = RawFilter::new(RawTypes::Only(vec![CHAT.0]));
    let exclusive = RawFilter { exclusive: true, ..only.clone() };
    let first = open(&bench.a, QpType::RawEtherType, exclusive).await;
    let second = End::new(&bench.a, raw(QpType::RawEtherType)).await;
    second.modify(Transition::Init(second.init())).await;
    let refused = second.qp.set_raw_filter(only.clone()).await;
    assert!(matches!(refused, Err(DeviceError::InUse { .. })), "{refused:?}");
    drop(first);
    second.qp.set_raw_filter(only).await.unwrap();
}
