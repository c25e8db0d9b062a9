use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use ibdev::{Buf, MemoryKey, RawDest, RawSource, SendOp, SendWr};
use ibsoft::sim::Subnet;
use ibwire::{Lid, Rate, ServiceLevel};
use tokio::task::coop::poll_proceed;

use super::SubnetPort;
use super::mgid::mgid;
use super::queue::work;
use super::socket::{From, OnSubnet, SubnetSocket};
use crate::backend::{Backend, Ether, Ipv6, NotSent};
use crate::meta::SubnetMeta;
use crate::{Batch, EtherDest, EtherType, Group, Link, NextHeader, RawError, RawSocket};

const CHAT: EtherType = EtherType::LOCAL_1;

/// Longer than a packet is under way.
const MOMENT: Duration = Duration::from_millis(10);

async fn subnet() -> Subnet {
    Subnet::star(["ann", "bob"]).await.expect("a subnet")
}

fn bound(net: &Subnet, name: &str) -> SubnetSocket<Ether> {
    let link: Link = net.device(name).into();
    let plan = RawSocket::<Ether>::bind(&link, [CHAT]).plan;
    SubnetSocket::bind(&Arc::new(SubnetPort::new(net.device(name), 1)), &plan).expect("bound")
}

fn send(from: &SubnetSocket<Ether>, to: &EtherDest, texts: &[&[u8]]) {
    let all: Vec<_> = texts.iter().map(|text| (*text, to)).collect();
    assert_eq!(from.send(&all).expect("sent"), texts.len());
}

fn at(dlid: Lid) -> RawDest {
    RawDest { dlid, sl: ServiceLevel::default(), path_bits: 0, rate: Rate::PORT_CURRENT }
}

fn to_bob(bob: &SubnetSocket<Ether>) -> EtherDest {
    EtherDest::lid(bob.port.attr().expect("a port").lid, CHAT)
}

fn received(socket: &SubnetSocket<Ether>, batch: &mut Batch<Ether>) -> Result<usize, RawError> {
    batch.clear();
    Ok(if socket.recv(batch, 64)?.is_ready() { batch.len() } else { 0 })
}

/// Receives that cannot be posted again are no reason to keep what they held: it is handed out, and the next call says what is
/// wrong.
#[tokio::test(start_paused = true)]
async fn what_was_received_before_the_device_went_is_handed_out() {
    let net = subnet().await;
    let (ann, bob) = (bound(&net, "ann"), bound(&net, "bob"));
    send(&ann, &to_bob(&bob), &[b"12345678", b"87654321"]);
    tokio::time::sleep(MOMENT).await;
    let mut taken = Vec::new();
    let any = bob.queue.recv(&bob.port, 64, |packet, _| {
        net.remove("bob");
        taken.push(packet.to_vec());
    });
    assert!(matches!(any, Ok(true)), "{any:?}");
    assert_eq!(taken, [b"12345678", b"87654321"]);
    let next = bob.queue.recv(&bob.port, 64, |packet, _| panic!("{packet:?}"));
    assert!(matches!(next, Err(RawError::LinkGone)), "{next:?}");
}

/// The same poll of the completion queue finds packets and a failure.
#[tokio::test(start_paused = true)]
async fn what_came_in_the_same_poll_as_a_failure_is_handed_out() {
    let net = subnet().await;
    let (ann, bob) = (bound(&net, "ann"), bound(&net, "bob"));
    send(&ann, &to_bob(&bob), &[b"12345678", b"87654321"]);
    tokio::time::sleep(MOMENT).await;
    bob.queue.fail();
    let mut batch = bob.room(64);
    assert_eq!(received(&bob, &mut batch).expect("received"), 2);
    assert_eq!(bob.counters().read().rx_packets, 2);
    for _ in 0..2 {
        let next = received(&bob, &mut batch);
        assert!(matches!(next, Err(RawError::QueueFailed)), "{next:?}");
    }
}

/// The registration of another device.
#[derive(Debug)]
struct Foreign;

impl MemoryKey for Foreign {
    fn lkey(&self) -> u32 {
        7
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// Class B: what could not be sent is said once, with what was behind it. Receiving goes on meanwhile, and sending afterwards.
#[tokio::test(start_paused = true)]
async fn raw_t13_a_send_that_fails_is_said_and_the_next_one_goes_out() {
    let net = subnet().await;
    let (ann, bob) = (bound(&net, "ann"), bound(&net, "bob"));
    let op = SendOp::RawEtherType { to: at(ann.port.attr().expect("a port").lid), ether_type: CHAT };
    let broken = SendWr::new(0, op.clone(), Buf::registered(BytesMut::zeroed(8), Arc::new(Foreign)));
    let work = [work(op.clone(), &[b"12345678"]), broken, work(op, &[b"flushed."])];
    match bob.queue.send(work.into(), bob.counters()) {
        Err(NotSent::Error(error @ RawError::SendFault { lost: 2 })) if error.is_transient() => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(bob.counters().read().tx_faults, 2);
    send(&ann, &to_bob(&bob), &[b"is heard"]);
    tokio::time::sleep(MOMENT).await;
    let mut batch = bob.room(64);
    assert_eq!(received(&bob, &mut batch).expect("receiving goes on"), 1);
    let to_ann = EtherDest::lid(ann.port.attr().expect("a port").lid, CHAT);
    send(&bob, &to_ann, &[b"sent too"]);
    tokio::time::sleep(MOMENT).await;
    assert_eq!(received(&ann, &mut batch).expect("received"), 2);
    assert_eq!(batch.iter().map(|(data, _)| data).collect::<Vec<_>>(), [b"12345678", b"sent too"]);
    // What is not class B is for good.
    bob.queue.fail();
    for _ in 0..2 {
        let refused = bob.send(&[(b"12345678", &to_ann)]);
        assert!(matches!(refused, Err(NotSent::Error(RawError::QueueFailed))), "{refused:?}");
    }
}

/// Each of two who send at once is told of its own, and neither that the queue pair has failed.
#[tokio::test(start_paused = true)]
async fn raw_t13_sends_that_fail_at_once_are_said_each() {
    let net = subnet().await;
    let (ann, bob) = (bound(&net, "ann"), bound(&net, "bob"));
    let op = SendOp::RawEtherType { to: at(ann.port.attr().expect("a port").lid), ether_type: CHAT };
    let broken = || SendWr::new(0, op.clone(), Buf::registered(BytesMut::zeroed(8), Arc::new(Foreign)));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    let refused = bob.queue.send([broken()].into(), bob.counters());
                    let is_told = matches!(refused, Err(NotSent::Error(RawError::SendFault { lost: 1 })));
                    assert!(is_told, "{refused:?}");
                }
            });
        }
    });
    assert_eq!(bob.counters().read().tx_faults, 2000);
}

/// An SA may say that a group has moved to where no group can be: that is told to who receives, once, and the socket hears the
/// group again as soon as there is a better answer.
#[tokio::test(start_paused = true)]
async fn raw_t18_a_group_that_is_lost_is_told_and_found_again() {
    let net = subnet().await;
    let (ann, bob) = (bound(&net, "ann"), bound(&net, "bob"));
    let group = Group::link([0x33, 0x33, 0, 0, 0x88, 0xb5]).expect("a group");
    bob.join(&group).await.expect("joined");
    let mgid = mgid(&group).expect("a group");
    let (nowhere, there) = (at(Lid(7)), bob.groups.way(&group).expect("a way"));
    for _ in 0..2 {
        bob.groups.follow(mgid, Ok(nowhere));
        let told = bob.readable().await.expect_err("lost");
        assert!(matches!(&told, RawError::GroupLost { group: of, .. } if *of == group), "{told:?}");
        assert!(told.is_transient());
        assert!(tokio::time::timeout(MOMENT, bob.readable()).await.is_err(), "told once");
    }
    send(&ann, &group.dest(CHAT), &[b"unheard."]);
    tokio::time::sleep(MOMENT).await;
    let mut batch = bob.room(64);
    assert_eq!(received(&bob, &mut batch).expect("nothing"), 0);
    // Whoever was not told by then need not be.
    bob.groups.follow(mgid, Ok(nowhere));
    bob.groups.follow(mgid, Ok(there));
    assert!(tokio::time::timeout(MOMENT, bob.readable()).await.is_err(), "found again");
    send(&ann, &group.dest(CHAT), &[b"is heard"]);
    bob.readable().await.expect("readable");
    assert_eq!(received(&bob, &mut batch).expect("received"), 1);
    bob.leave(&group).expect("a member");
}

/// That a group is lost is seen by a task whose turn is over, too.
#[tokio::test(start_paused = true)]
async fn raw_t18_a_lost_group_has_no_way_at_any_time() {
    let net = Subnet::star(["ann", "bob"]).managed().await.expect("a subnet");
    let ann = bound(&net, "ann");
    let group = Group::link([0x33, 0x33, 0, 0, 0x88, 0xb5]).expect("a group");
    ann.groups.find(&group).await.expect("found");
    ann.groups.way(&group).expect("a way");
    net.sa().silent();
    net.sm("switch 1").restart();
    tokio::time::sleep(Duration::from_secs(100)).await; // longer than a request is repeated
    let way = std::future::poll_fn(|cx| {
        while let Poll::Ready(turn) = poll_proceed(cx) {
            turn.made_progress();
        }
        Poll::Ready(ann.groups.way(&group))
    });
    assert!(matches!(way.await, Err(NotSent::NoWay)));
}

/// Of the groups that are only sent to the one is left that was not sent to for the longest time.
#[tokio::test(start_paused = true)]
async fn groups_that_are_sent_to_are_bounded() {
    let net = Subnet::star(["ann", "bob"]).managed().await.expect("a subnet");
    let mut ann = bound(&net, "ann");
    Arc::get_mut(&mut ann.groups).expect("nobody else has them").bound = 2;
    let asked = || net.sm("switch 1").counters().into_iter().find(|(name, _)| *name == "requests");
    let way = async |n| {
        let group = Group::link([0x33, 0x33, 0, 0, 0, n]).expect("a group");
        let before = asked();
        if let Err(NotSent::NoWay) = ann.groups.way(&group) {
            ann.groups.find(&group).await.expect("found");
        }
        ann.groups.way(&group).expect("a way");
        tokio::time::sleep(Duration::from_secs(6)).await; // what is left is left in the background
        asked() != before
    };
    let mut is_asked = Vec::new();
    for n in [1, 2, 1, 3, 1, 2] {
        is_asked.push(way(n).await);
    }
    assert_eq!(is_asked, [true, true, false, true, false, true]);
}

/// An HCA hears so many groups: who has the last place moves within it.
#[tokio::test(start_paused = true)]
async fn raw_t18_a_group_moves_though_there_is_no_room_for_both() {
    let net = subnet().await;
    let bob = bound(&net, "bob");
    let name = |n: u16| Group::link([0x33, 0x33, 0, 0, (n >> 8) as u8, n as u8]).expect("a group");
    let mut joined = 0;
    while let Ok(()) = bob.join(&name(joined)).await {
        joined += 1;
    }
    assert!(joined > 0);
    let mgid = mgid(&name(0)).expect("a group");
    let before = bob.groups.way(&name(0)).expect("a way");
    bob.groups.follow(mgid, Ok(RawDest { dlid: Lid(0xf000), ..before }));
    assert!(tokio::time::timeout(MOMENT, bob.groups.loss()).await.is_err(), "it has moved");
}

#[tokio::test(start_paused = true)]
async fn raw_t07_what_is_no_packet_is_counted() {
    let net = subnet().await;
    let link: Link = net.device("bob").into();
    let plan = RawSocket::<Ipv6>::bind(&link, [NextHeader::UDP]).plan;
    let port = Arc::new(SubnetPort::new(net.device("bob"), 1));
    let socket = SubnetSocket::<Ipv6>::bind(&port, &plan).expect("bound");
    let (slid, sl) = (Lid(1), ServiceLevel::default());
    let source = RawSource { slid, sl, path_bits: Some(0), group: None, ether_type: None, lost_before: 0 };
    let from = From { source, drops_before: 3, subnet: SubnetMeta { slid, sl, path_bits: Some(0) } };
    assert!(<Ipv6 as OnSubnet>::read(&socket, &[0x60; 39], from).is_none());
    assert_eq!(socket.counters().read().rx_malformed, 1);
    assert_eq!(socket.untold.load(Ordering::Relaxed), 3, "the next packet tells of it");
}
