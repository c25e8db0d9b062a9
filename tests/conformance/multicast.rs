//! Datagrams to multicast groups.

use std::sync::atomic::{AtomicU8, Ordering};

use ibdev::qp::{QpType, Transition};
use ibdev::{DatagramDest, DeviceError, LinkLayer, SendOp};
use ibwire::{Gid, Lid, Psn, QKey, Qpn};

use super::bench::Bench;
use super::case::cases;
use super::end::{End, Options, way};

cases! {
    group_reaches_its_members [Ud];
    group_reaches_members_of_the_senders_device [Ud];
    group_reaches_nobody_else [Ud];
    group_with_another_qkey_is_dropped [Ud];
    group_is_for_datagrams [Ud];
    group_has_an_address_of_its_own_kind [Ud];
    group_is_left_with_the_queue_pair [Ud];
}

/// What stands before the message in a receive.
const GRH: usize = 40;
const QKEY: QKey = QKey(0x2468_1357);

/// A group that no other case sends to, nor one of another process at the same time.
#[derive(Debug, Clone, Copy)]
struct Group {
    mgid: Gid,
    mlid: Lid,
}

impl Group {
    async fn new(bench: &Bench) -> Self {
        static GROUPS: AtomicU8 = AtomicU8::new(1);
        let (number, process) = (GROUPS.fetch_add(1, Ordering::Relaxed), std::process::id().to_be_bytes());
        let mgid = if bench.a.port(1).unwrap().link_layer == LinkLayer::Ethernet {
            let ip = std::net::Ipv4Addr::new(239, process[2], process[3], number);
            Gid::from_ip(ip.into())
        } else {
            format!("ff15:a01b::{number:x}").parse().unwrap()
        };
        Self { mgid, mlid: bench.hands.group(mgid).await }
    }

    /// Sends it a message.
    async fn tell(self, bench: &Bench, from: &End, message: &[u8]) {
        let mut av = way(&bench.a, &bench.b, 1, true);
        av.dlid = self.mlid;
        av.grh.as_mut().expect("asked for").dgid = self.mgid;
        let ah = from.domain.create_ah(av).await.unwrap();
        let to = DatagramDest { ah, qpn: Qpn::MULTICAST, qkey: QKEY };
        assert!(from.carry_out(SendOp::Datagram { to, imm: None }, message).await.status.is_ok());
    }
}

fn ud(qkey: QKey) -> Options {
    Options { kind: QpType::Ud, qkey, ..Options::default() }
}

async fn end(device: &std::sync::Arc<dyn ibdev::Device>, qkey: QKey) -> End {
    let end = End::new(device, ud(qkey)).await;
    end.modify(Transition::Init(end.init())).await;
    end.modify(Transition::DatagramRtr).await;
    end.modify(Transition::DatagramRts { sq_psn: Psn::default() }).await;
    end.receives(0, 4, 256).await;
    end
}

async fn member(device: &std::sync::Arc<dyn ibdev::Device>, group: Group) -> End {
    let end = end(device, QKEY).await;
    end.qp.attach(group.mgid, group.mlid).await.unwrap();
    end
}

async fn hears(end: &End, message: &[u8]) {
    let got = end.completion().await;
    assert!(got.status.is_ok());
    assert_eq!(&got.sg[0][GRH..], message);
}

/// Each member once, who attached twice, too.
async fn group_reaches_its_members(bench: Bench) {
    let group = Group::new(&bench).await;
    let speaker = end(&bench.a, QKEY).await;
    let members = [member(&bench.b, group).await, member(&bench.b, group).await];
    members[0].qp.attach(group.mgid, group.mlid).await.unwrap();
    for message in [b"first", b"other"] {
        group.tell(&bench, &speaker, message).await;
        for member in &members {
            hears(member, message).await;
        }
    }
}

async fn group_reaches_members_of_the_senders_device(bench: Bench) {
    let group = Group::new(&bench).await;
    let (speaker, near, far) =
        (end(&bench.a, QKEY).await, member(&bench.a, group).await, member(&bench.b, group).await);
    group.tell(&bench, &speaker, b"all of you").await;
    hears(&near, b"all of you").await;
    hears(&far, b"all of you").await;
}

/// Those of another group, of none, and who left.
async fn group_reaches_nobody_else(bench: Bench) {
    let (group, other) = (Group::new(&bench).await, Group::new(&bench).await);
    let speaker = end(&bench.a, QKEY).await;
    let others = [member(&bench.b, other).await, end(&bench.b, QKEY).await, member(&bench.b, group).await];
    let member = member(&bench.b, group).await;
    group.tell(&bench, &speaker, b"one").await;
    hears(&others[2], b"one").await;
    hears(&member, b"one").await;
    for _ in 0..2 {
        others[2].qp.detach(group.mgid, group.mlid).await.unwrap();
    }
    group.tell(&bench, &speaker, b"two").await;
    hears(&member, b"two").await;
    assert!(others.iter().all(|other| other.completed().is_empty()));
    others[2].qp.attach(group.mgid, group.mlid).await.unwrap();
    group.tell(&bench, &speaker, b"three").await;
    hears(&others[2], b"three").await;
}

async fn group_with_another_qkey_is_dropped(bench: Bench) {
    let group = Group::new(&bench).await;
    let (speaker, stranger) = (end(&bench.a, QKEY).await, end(&bench.b, QKey(QKEY.0 ^ 1)).await);
    stranger.qp.attach(group.mgid, group.mlid).await.unwrap();
    let member = member(&bench.b, group).await;
    group.tell(&bench, &speaker, b"members").await;
    hears(&member, b"members").await;
    assert!(stranger.completed().is_empty());
}

async fn group_is_for_datagrams(bench: Bench) {
    let group = Group::new(&bench).await;
    let connected = End::new(&bench.a, Options::default()).await;
    connected.modify(Transition::Init(connected.init())).await;
    let refused = connected.qp.attach(group.mgid, group.mlid).await;
    assert!(matches!(refused, Err(DeviceError::Unsupported { .. })), "{refused:?}");
    let reset = End::new(&bench.a, ud(QKEY)).await;
    let refused = reset.qp.attach(group.mgid, group.mlid).await;
    assert!(matches!(refused, Err(DeviceError::State { .. })), "{refused:?}");
}

async fn group_has_an_address_of_its_own_kind(bench: Bench) {
    let end = end(&bench.a, QKEY).await;
    let own = bench.a.gids(1).unwrap()[0].gid;
    for gid in [own, "10.0.0.1".parse().unwrap()] {
        let refused = end.qp.attach(gid, Lid::NONE).await;
        assert!(matches!(refused, Err(DeviceError::Unsupported { .. })), "{gid}: {refused:?}");
    }
}

async fn group_is_left_with_the_queue_pair(bench: Bench) {
    let groups = [Group::new(&bench).await, Group::new(&bench).await];
    let member = member(&bench.b, groups[0]).await;
    member.qp.attach(groups[1].mgid, groups[1].mlid).await.unwrap();
    drop(member);
    bench.nothing_left().await;
}
