//! Sockets on in-process subnets. The scenarios are those of spec/raw.md 9.
#![cfg(feature = "soft")]

use std::net::Ipv6Addr;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use ibdev::Device;
use ibraw::{
    EtherDest, EtherType, Group, Ipv6Dest, Link, LinkKind, NextHeader, RawError, RawEtherSocket,
    RawIpv6Socket,
};
use ibsoft::sim::Subnet;
use ibwire::Lid;
use ibwire::raw::Ipv6Header;

const CHAT: EtherType = EtherType::LOCAL_1;
const ROOM: [u8; 6] = [0x33, 0x33, 0, 0, 0x88, 0xb5];

async fn subnet() -> (Subnet, Link, Link) {
    let net = Subnet::star(["ann", "bob"]).await.expect("a subnet");
    let (ann, bob) = (net.device("ann").into(), net.device("bob").into());
    (net, ann, bob)
}

fn lid(link: &Link) -> Lid {
    let address = link.address();
    Lid(u16::from_be_bytes(address.as_bytes().try_into().expect("a LID")))
}

/// The address of an HCA in the subnet.
fn gid(net: &Subnet, name: &str) -> Ipv6Addr {
    Ipv6Addr::from(net.device(name).gids(1).expect("a port")[0].gid.0)
}

fn to_group(group: &str, next_header: NextHeader) -> Ipv6Dest {
    Group::ipv6(group).ok().and_then(|group| group.ipv6_dest(next_header)).expect("a group")
}

/// Nothing comes within the time that a packet takes.
async fn is_silent<P: ibraw::protocol::Protocol>(socket: &ibraw::RawSocket<P>) -> bool {
    tokio::time::timeout(Duration::from_millis(10), socket.recv()).await.is_err()
}

#[tokio::test(start_paused = true)]
async fn unicast_and_groups_with_their_metadata() {
    let (_net, ann, bob) = subnet().await;
    assert_eq!((ann.kind(), ann.name(), ann.mtu()), (LinkKind::Subnet, "ann", 4096));
    let (a, b) = (
        RawEtherSocket::bind(&ann, [CHAT]).await.unwrap(),
        RawEtherSocket::bind(&bob, [CHAT]).await.unwrap(),
    );
    let sent = a.send_to(b"to bob", &EtherDest::lid(lid(&bob), CHAT)).await.unwrap();
    assert_eq!(sent.wire_len, 8);
    let frame = b.recv().await.unwrap();
    assert_eq!((&frame.data[..], frame.meta.wire_len), (&b"to bob\0\0"[..], 8));
    assert_eq!((frame.meta.src, frame.meta.dst), (Some(ann.address()), None));
    assert_eq!((frame.meta.ether_type, frame.meta.kind), (CHAT, ibraw::FrameKind::Host));
    let group = Group::link(ROOM).unwrap();
    a.send_to(b"nobody hears", &group.dest(CHAT)).await.unwrap();
    let held = b.join(&group).await.unwrap();
    a.send_to(b"all hear", &group.dest(CHAT)).await.unwrap();
    let frame = b.recv().await.unwrap();
    assert_eq!((&frame.data[..], frame.meta.kind), (&b"all hear"[..], ibraw::FrameKind::Multicast));
    drop(held);
    a.send_to(b"nobody hears", &group.dest(CHAT)).await.unwrap();
    assert!(is_silent(&b).await);
    assert_eq!((a.stats().tx_packets, b.stats().rx_packets), (4, 2));
}

#[tokio::test(start_paused = true)]
async fn raw_t14_two_sockets_share_what_both_want() {
    let (_net, ann, bob) = subnet().await;
    let udp = RawIpv6Socket::bind(&bob, [NextHeader::UDP]).await.unwrap();
    let both = RawIpv6Socket::bind(&bob, [NextHeader::UDP, NextHeader::ICMPV6]).await.unwrap();
    let sender =
        RawIpv6Socket::bind(&ann, [NextHeader::UDP, NextHeader::ICMPV6, NextHeader(253)]).await.unwrap();
    let group = Group::ipv6("ff02::1").unwrap();
    let _held = (udp.join(&group).await.unwrap(), both.join(&group).await.unwrap());
    for next in [NextHeader::UDP, NextHeader::ICMPV6, NextHeader(253)] {
        sender.send_to(&[next.0; 9], &to_group("ff02::1", next)).await.unwrap();
    }
    assert_eq!(udp.recv().await.unwrap().data, vec![17; 9]);
    assert!(is_silent(&udp).await);
    assert_eq!(both.recv().await.unwrap().data, vec![17; 9]);
    assert_eq!(both.recv().await.unwrap().meta.next_header, NextHeader::ICMPV6);
    assert!(is_silent(&both).await);
}

#[tokio::test(start_paused = true)]
async fn raw_t15_a_filter_that_is_claimed() {
    let (_net, ann, _) = subnet().await;
    let first = RawEtherSocket::bind(&ann, [CHAT]).exclusive().await.unwrap();
    assert!(matches!(RawEtherSocket::bind(&ann, [CHAT]).await, Err(RawError::FilterConflict(_))));
    RawEtherSocket::bind(&ann, [EtherType::LOCAL_2]).await.unwrap();
    drop(first);
    RawEtherSocket::bind(&ann, [CHAT]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn raw_t16_the_sender_never_hears_itself() {
    let (_net, ann, _) = subnet().await;
    let group = Group::ipv6("ff02::77").unwrap();
    let quiet = RawIpv6Socket::bind(&ann, [NextHeader(253)]).await.unwrap();
    let loud = RawIpv6Socket::bind(&ann, [NextHeader(253)]).multicast_loop().await.unwrap();
    let other = RawIpv6Socket::bind(&ann, [NextHeader(253)]).await.unwrap();
    let mut held = Vec::new();
    for socket in [&quiet, &loud, &other] {
        held.push(socket.join(&group).await.unwrap());
    }
    quiet.send_to(b"quiet", &to_group("ff02::77", NextHeader(253))).await.unwrap();
    assert!(is_silent(&other).await && is_silent(&quiet).await);
    loud.send_to(b"loud", &to_group("ff02::77", NextHeader(253))).await.unwrap();
    assert_eq!(&other.recv().await.unwrap().data[..], b"loud");
    assert!(is_silent(&loud).await);
}

#[tokio::test(start_paused = true)]
async fn raw_t17_groups_that_share_an_address_are_told_apart() {
    let (_net, ann, bob) = subnet().await;
    let a = RawIpv6Socket::bind(&ann, [NextHeader(253)]).await.unwrap();
    let b = RawIpv6Socket::bind(&bob, [NextHeader(253)]).await.unwrap();
    let _held = b.join(&Group::ipv6("ff02::1:4321").unwrap()).await.unwrap();
    a.send_to(b"other", &to_group("ff05::1:4321", NextHeader(253))).await.unwrap();
    a.send_to(b"joined", &to_group("ff02::1:4321", NextHeader(253))).await.unwrap();
    let packet = b.recv().await.unwrap();
    assert_eq!((&packet.data[..], packet.meta.dst.to_string()), (&b"joined"[..], "ff02::1:4321".into()));
    assert!(is_silent(&b).await);
    assert_eq!(b.stats().rx_not_member, 1);
}

#[tokio::test(start_paused = true)]
async fn raw_t18_memberships_are_counted() {
    let (_net, ann, bob) = subnet().await;
    let a = RawIpv6Socket::bind(&ann, [NextHeader(253)]).await.unwrap();
    let b = RawIpv6Socket::bind(&bob, [NextHeader(253)]).await.unwrap();
    let group = Group::ipv6("ff02::9").unwrap();
    b.join(&group).await.unwrap().forget();
    b.join(&group).await.unwrap().forget();
    b.leave(&group).unwrap();
    a.send_to(b"still", &to_group("ff02::9", NextHeader(253))).await.unwrap();
    assert_eq!(&b.recv().await.unwrap().data[..], b"still");
    b.leave(&group).unwrap();
    a.send_to(b"gone", &to_group("ff02::9", NextHeader(253))).await.unwrap();
    assert!(is_silent(&b).await);
    assert!(matches!(b.leave(&group), Err(RawError::NotMember(_))));
}

/// Two groups with one address on the link: whoever leaves the one stays in the other.
#[tokio::test(start_paused = true)]
async fn raw_t17_t18_groups_that_share_an_address_are_left_apart() {
    let (_net, ann, bob) = subnet().await;
    let (from, to) = (
        RawEtherSocket::bind(&ann, [CHAT]).await.expect("bound"),
        RawEtherSocket::bind(&bob, [CHAT]).await.expect("bound"),
    );
    let [one, two] = ["ff02::1:4321", "ff05::1:4321"].map(|group| Group::ipv6(group).expect("a group"));
    let (first, second) = (to.join(&one).await.expect("joined"), to.join(&two).await.expect("joined"));
    first.leave().expect("it was a member");
    from.send_to(b"for two.", &two.dest(CHAT)).await.expect("sent");
    let frame = tokio::time::timeout(Duration::from_secs(1), to.recv()).await.expect("still a member");
    assert_eq!(&frame.expect("a frame").data[..], b"for two.");
    second.leave().expect("it was a member");
    from.send_to(b"for two.", &two.dest(CHAT)).await.expect("sent");
    assert!(is_silent(&to).await);
}

#[tokio::test(start_paused = true)]
async fn raw_t06_sizes_are_refused_before_anything_is_sent() {
    let (net, ann, _) = subnet().await;
    let a = RawIpv6Socket::bind(&ann, [NextHeader(253)]).await.unwrap();
    let to = to_group("ff02::1", NextHeader(253));
    a.send_to(&[0; 4172], &to).await.unwrap();
    let error = a.send_to(&[0; 4173], &to).await.unwrap_err();
    assert!(matches!(error, RawError::TooLarge { len: 4173, max: 4172 }), "{error}");
    let e = RawEtherSocket::bind(&ann, [CHAT]).await.unwrap();
    let error = e.send_to(&[0; 4209], &EtherDest::lid(Lid(2), CHAT)).await.unwrap_err();
    assert!(matches!(error, RawError::TooLarge { len: 4209, max: 4208 }), "{error}");
    assert_eq!(net.log().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn settings_out_of_range_are_refused_where_they_are_given() {
    let (_net, ann, _) = subnet().await;
    let refused = |result: Result<(), RawError>| match result {
        Err(RawError::Invalid { field, value, limit }) => (field, value, limit),
        other => panic!("{other:?}"),
    };
    let ether = || RawEtherSocket::bind(&ann, [CHAT]);
    let ipv6 = || RawIpv6Socket::bind(&ann, [NextHeader(253)]);
    let vlan = ether().vlan(ibraw::VlanPolicy::Id(4096)).await;
    assert_eq!(refused(vlan.map(drop)), ("VLAN", 4096, 4095));
    assert_eq!(refused(ether().buffer(65_536).await.map(drop)), ("buffer", 65_536, 65_535));
    assert_eq!(refused(ipv6().buffer(65_536).await.map(drop)), ("buffer", 65_536, 65_535));
    assert_eq!(refused(ipv6().checksum_at(3).await.map(drop)), ("odd offset of the checksum", 3, 2));
    let every = RawEtherSocket::bind_any(&ann).exclusive().await;
    assert!(matches!(every, Err(RawError::Unsupported(_))), "{every:?}");
    ether().buffer(65_535).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn raw_t25_any_ethertype_goes_over_a_subnet() {
    let (_net, ann, bob) = subnet().await;
    for ether_type in [EtherType(0x0400), EtherType(0x05ff)] {
        let b = RawEtherSocket::bind(&bob, [ether_type]).await.unwrap();
        let a = RawEtherSocket::bind(&ann, [ether_type]).await.unwrap();
        a.send_to(b"12345678", &EtherDest::lid(lid(&bob), ether_type)).await.unwrap();
        assert_eq!(b.recv().await.unwrap().meta.ether_type, ether_type);
    }
}

#[tokio::test(start_paused = true)]
async fn raw_t28_a_header_that_lies_is_refused() {
    let (net, ann, bob) = subnet().await;
    let next = NextHeader(253);
    let a = RawIpv6Socket::bind(&ann, [next]).caller_header().await.unwrap();
    let b = RawIpv6Socket::bind(&bob, [next]).await.unwrap();
    let dst = gid(&net, "bob");
    let header = Ipv6Header {
        traffic_class: 3,
        flow_label: ibwire::FlowLabel::default(),
        payload_len: 5,
        next_header: next,
        hop_limit: 9,
        src: gid(&net, "ann"),
        dst,
    };
    let to = Ipv6Dest { addr: dst, next_header: next };
    let packet = [&header.to_bytes()[..], b"12345"].concat();
    a.send_to(&packet, &to).await.unwrap();
    let received = b.recv().await.unwrap();
    assert_eq!((&received.data[..], received.meta.hop_limit), (&b"12345"[..], 9));
    assert_eq!(received.meta.traffic_class, 3);
    for (at, value) in [(0, 0x40), (5, 6), (5, 4), (6, 17), (39, 0xee)] {
        let mut lie = packet.clone();
        lie[at] = value;
        assert!(matches!(a.send_to(&lie, &to).await, Err(RawError::Malformed(_))), "byte {at}");
    }
    assert!(is_silent(&b).await);
}

#[tokio::test(start_paused = true)]
async fn raw_t29_each_lost_packet_is_counted_once() {
    let (_net, ann, bob) = subnet().await;
    let a = RawEtherSocket::bind(&ann, [CHAT]).await.unwrap();
    // Room for six.
    let b = RawEtherSocket::bind(&bob, [CHAT]).recv_buffer(6 * 4208).await.unwrap();
    let to = EtherDest::lid(lid(&bob), CHAT);
    for n in 0..50u64 {
        a.send_to(&n.to_be_bytes(), &to).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    for n in 0..6u64 {
        let frame = b.recv().await.unwrap();
        assert_eq!((&frame.data[..], frame.meta.drops_before), (&n.to_be_bytes()[..], 0));
    }
    assert!(is_silent(&b).await);
    assert_eq!((b.stats().rx_dropped, b.stats().rx_packets), (44, 6));
    a.send_to(&[1; 8], &to).await.unwrap();
    assert_eq!(b.recv().await.unwrap().meta.drops_before, 44);
    assert_eq!((b.stats().rx_dropped, b.stats().rx_packets), (44, 7));
}

/// A packet that is not for the socket tells the device's count of losses: the next one that is for it passes that on.
#[tokio::test(start_paused = true)]
async fn raw_t29_losses_before_a_packet_of_another_group_are_told_with_the_next() {
    const OWN: &str = "ff02::1:4321";
    let (_net, ann, bob) = subnet().await;
    let a = RawIpv6Socket::bind(&ann, [NextHeader(253)]).await.unwrap();
    let b = RawIpv6Socket::bind(&bob, [NextHeader(253)]).recv_buffer(1).await.unwrap(); // room for one
    let _held = b.join(&Group::ipv6(OWN).unwrap()).await.unwrap();
    let send = async |group: &str| {
        a.send_to(b"hello", &to_group(group, NextHeader(253))).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    send(OWN).await;
    send(OWN).await; // lost
    assert_eq!(b.recv().await.unwrap().meta.drops_before, 0);
    send("ff05::1:4321").await;
    assert!(is_silent(&b).await);
    send(OWN).await;
    assert_eq!(b.recv().await.unwrap().meta.drops_before, 1);
    send(OWN).await;
    assert_eq!(b.recv().await.unwrap().meta.drops_before, 0);
    assert_eq!((b.stats().rx_dropped, b.stats().rx_not_member), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn raw_t30_a_dropped_future_loses_nothing() {
    let (_net, ann, bob) = subnet().await;
    let (a, b) = (
        RawEtherSocket::bind(&ann, [CHAT]).await.unwrap(),
        RawEtherSocket::bind(&bob, [CHAT]).await.unwrap(),
    );
    let to = EtherDest::lid(lid(&bob), CHAT);
    let mut next = 0u64;
    let mut cancelled = 0;
    for n in 0..2000u64 {
        a.send_to(&n.to_be_bytes(), &to).await.unwrap();
        for _ in 0..2 {
            tokio::select! {
                biased;
                frame = b.recv() => {
                    assert_eq!(frame.unwrap().data[..], next.to_be_bytes());
                    next += 1;
                }
                () = tokio::task::yield_now() => cancelled += 1,
            }
        }
    }
    while next < 2000 {
        assert_eq!(b.recv().await.unwrap().data[..], next.to_be_bytes());
        next += 1;
    }
    assert!(cancelled > 1000 && is_silent(&b).await, "{cancelled}");
    assert_eq!(b.stats().rx_dropped, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raw_t31_each_datagram_goes_to_one_task() {
    const ALL: usize = 2000;
    let (_net, ann, bob) = subnet().await;
    let a = RawEtherSocket::bind(&ann, [CHAT]).await.unwrap();
    let b = RawEtherSocket::bind(&bob, [CHAT]).recv_buffer(4208 * ALL).await.unwrap();
    let receive = |socket: RawEtherSocket| {
        tokio::spawn(async move {
            let mut seen = Vec::new();
            while let Ok(frame) = socket.recv().await {
                seen.push(u64::from_be_bytes(frame.data[..].try_into().unwrap()));
            }
            seen
        })
    };
    let tasks = (receive(b.clone()), receive(b.clone()));
    let to = EtherDest::lid(lid(&bob), CHAT);
    for n in 0..ALL as u64 {
        a.send_to(&n.to_be_bytes(), &to).await.unwrap();
    }
    while b.stats().rx_packets < ALL as u64 {
        tokio::task::yield_now().await;
    }
    b.close();
    let mut seen = [tasks.0.await.unwrap(), tasks.1.await.unwrap()].concat();
    seen.sort_unstable();
    assert_eq!(seen, (0..ALL as u64).collect::<Vec<_>>());
}

/// Needs no capability: this is not run as root alone.
#[tokio::test(start_paused = true)]
async fn raw_t33_a_subnet_needs_no_privilege() {
    let (_net, ann, bob) = subnet().await;
    let b = RawIpv6Socket::bind(&bob, [NextHeader::ICMPV6]).await.unwrap();
    let a = RawIpv6Socket::bind(&ann, [NextHeader::ICMPV6]).await.unwrap();
    let _held = b.join(&Group::ipv6("ff02::1").unwrap()).await.unwrap();
    a.send_to(&[128, 0, 0, 0], &to_group("ff02::1", NextHeader::ICMPV6)).await.unwrap();
    let packet = b.recv().await.unwrap();
    assert_eq!((packet.meta.next_header, packet.meta.hop_limit), (NextHeader::ICMPV6, 1));
}

#[tokio::test(start_paused = true)]
async fn raw_t34_lids_that_nobody_has() {
    let (_net, ann, _) = subnet().await;
    let a = RawEtherSocket::bind(&ann, [CHAT]).await.unwrap();
    for lid in [Lid(0xffff), Lid(0)] {
        let refused = a.send_to(b"12345678", &EtherDest::lid(lid, CHAT)).await;
        assert!(matches!(refused, Err(RawError::InvalidDest(_))));
    }
    let ethernet = EtherDest::station([2, 0, 0, 0, 0, 1], CHAT);
    assert!(matches!(a.send_to(b"12345678", &ethernet).await, Err(RawError::InvalidDest(_))));
}

/// What is sent has the hop limit that the socket has for one address, and the next headers that it is bound to.
#[tokio::test(start_paused = true)]
async fn what_a_socket_says_of_its_packets() {
    let (net, ann, bob) = subnet().await;
    let next = NextHeader(253);
    let b = RawIpv6Socket::bind(&bob, [next]).await.unwrap();
    for (a, hops) in [
        (RawIpv6Socket::bind(&ann, [next]).await.unwrap(), 64),
        (RawIpv6Socket::bind(&ann, [next]).hop_limit(7).multicast_hops(9).await.unwrap(), 7),
    ] {
        a.send_to(b"hello", &Ipv6Dest { addr: gid(&net, "bob"), next_header: next }).await.unwrap();
        assert_eq!(b.recv().await.unwrap().meta.hop_limit, hops);
        let other = Ipv6Dest { addr: gid(&net, "bob"), next_header: NextHeader::UDP };
        assert!(matches!(a.send_to(b"hello", &other).await, Err(RawError::InvalidDest(_))));
    }
}

/// A port that was down when the socket was bound is down, which is said once.
#[tokio::test(start_paused = true)]
async fn raw_t20_a_socket_of_a_port_that_is_down() {
    let (net, ann, bob) = subnet().await;
    net.link_down("bob");
    let b = RawEtherSocket::bind(&bob, [CHAT]).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(1), b.recv()).await.expect("it is told");
    assert!(matches!(told, Err(RawError::LinkDown)));
    assert!(is_silent(&b).await && b.stats().link_down_events == 1);
    net.link_up("bob");
    let a = RawEtherSocket::bind(&ann, [CHAT]).await.unwrap();
    a.send_to(b"12345678", &EtherDest::lid(lid(&bob), CHAT)).await.unwrap();
    assert_eq!(&b.recv().await.unwrap().data[..], b"12345678");
}

#[tokio::test(start_paused = true)]
async fn raw_t36_unknown_numbers_arrive_as_they_are() {
    let (net, ann, bob) = subnet().await;
    let (odd, odder) = (NextHeader(200), EtherType(0x9999));
    assert_eq!((odd.name(), odder.name()), (None, None));
    let b = RawIpv6Socket::bind(&bob, [odd]).await.unwrap();
    let a = RawIpv6Socket::bind(&ann, [odd]).await.unwrap();
    a.send_to(b"odd", &Ipv6Dest { addr: gid(&net, "bob"), next_header: odd }).await.unwrap();
    let packet = b.recv().await.unwrap();
    assert_eq!((packet.meta.next_header, packet.meta.src), (odd, gid(&net, "ann")));
    let b = RawEtherSocket::bind(&bob, [odder]).await.unwrap();
    let a = RawEtherSocket::bind(&ann, [odder]).await.unwrap();
    a.send_to(b"12345678", &EtherDest::lid(lid(&bob), odder)).await.unwrap();
    assert_eq!(b.recv().await.unwrap().meta.ether_type, odder);
}

#[tokio::test(start_paused = true)]
async fn a_device_that_is_removed_ends_streams_and_sends() {
    let (net, ann, bob) = subnet().await;
    let (a, b) = (
        RawEtherSocket::bind(&ann, [CHAT]).await.unwrap(),
        RawEtherSocket::bind(&bob, [CHAT]).await.unwrap(),
    );
    let mut hear = b.stream();
    let waiting = tokio::spawn(async move { (hear.next().await, hear.next().await) });
    tokio::task::yield_now().await;
    net.remove("bob");
    let (first, second) = waiting.await.unwrap();
    assert!(matches!(first, Some(Err(RawError::LinkGone))), "{first:?}");
    assert!(second.is_none());
    assert!(matches!(b.send_to(b"12345678", &EtherDest::lid(Lid(1), CHAT)).await, Err(RawError::LinkGone)));
    assert!(matches!(RawEtherSocket::bind(&bob, [CHAT]).await, Err(RawError::LinkGone)));
    // To nobody: that is not for the sender to know.
    a.send_to(b"12345678", &EtherDest::lid(Lid(2), CHAT)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn streams_and_sinks_under_loss_count_nothing_twice() {
    let (net, ann, bob) = subnet().await;
    net.faults().loss(0.2);
    let (a, b) = (
        RawEtherSocket::bind(&ann, [CHAT]).await.unwrap(),
        RawEtherSocket::bind(&bob, [CHAT]).await.unwrap(),
    );
    let (mut say, mut hear) = (a.sink(), b.stream());
    let to = EtherDest::lid(lid(&bob), CHAT);
    for n in 0..200u64 {
        say.send((n.to_be_bytes().to_vec().into(), to)).await.unwrap();
    }
    let mut last = None;
    let mut heard = 0;
    while let Ok(Some(frame)) = tokio::time::timeout(Duration::from_millis(20), hear.next()).await {
        let n = u64::from_be_bytes(frame.unwrap().data[..].try_into().unwrap());
        assert!(last < Some(n));
        (last, heard) = (Some(n), heard + 1);
    }
    let counters: std::collections::HashMap<_, _> = net.counters().into_iter().collect();
    assert_eq!((counters["delivered"], counters["lost"]), (heard, 200 - heard));
    drop((a, b, say, hear));
    net.quiet().await.unwrap();
}

/// spec/raw.md 2: the message is within the MTU where that is asked for, an IPv6 header included; else within the table.
#[tokio::test(start_paused = true)]
async fn raw_t06_within_the_mtu_if_that_is_asked_for() {
    let net = Subnet::builder().mtu(ibwire::Mtu::B256).hca("ann").hca("bob").switch("hub");
    let net = net.link("ann", "hub").link("bob", "hub").await.expect("a subnet");
    let (ann, bob): (Link, Link) = (net.device("ann").into(), net.device("bob").into());
    let next = NextHeader::EXPERIMENT_1;
    let to = Ipv6Dest { addr: gid(&net, "bob"), next_header: next };
    let strict = RawIpv6Socket::bind(&ann, [next]).strict_pmtu().await.unwrap();
    strict.send_to(&[0; 216], &to).await.unwrap();
    let refused = strict.send_to(&[0; 217], &to).await;
    assert!(matches!(refused, Err(RawError::TooLarge { len: 217, max: 216 })), "{refused:?}");
    let frames = RawEtherSocket::bind(&ann, [CHAT]).strict_pmtu().await.unwrap();
    let to = EtherDest::lid(lid(&bob), CHAT);
    frames.send_to(&[0; 256], &to).await.unwrap();
    let refused = frames.send_to(&[0; 257], &to).await;
    assert!(matches!(refused, Err(RawError::TooLarge { len: 257, max: 256 })), "{refused:?}");
    let refused = frames.send_batch(&[(&[0; 256], &to), (&[0; 257], &to)]).await;
    assert_eq!(refused.unwrap(), 1);
}
