//! What a socket may be bound with beside what it receives, on in-process subnets.
#![cfg(feature = "soft")]
#![allow(clippy::unwrap_used, reason = "test helpers outside #[test] functions")]

use std::net::Ipv6Addr;

use ibdev::Device;
use ibraw::{
    EtherType, Group, Instruction, Ipv6Dest, Link, NextHeader, RawError, RawEtherSocket, RawIpv6Socket,
};
use ibsoft::sim::Subnet;

const NEXT: NextHeader = NextHeader::EXPERIMENT_1;

async fn subnet() -> (Subnet, Link, Link) {
    let net = Subnet::star(["ann", "bob"]).await.unwrap();
    let (ann, bob) = (net.device("ann").into(), net.device("bob").into());
    (net, ann, bob)
}

/// The address of an HCA.
fn address(net: &Subnet, name: &str) -> Ipv6Addr {
    net.device(name).gids(1).unwrap()[0].gid.0.into()
}

/// Types that are not named are counted, and what was lost before them is told by the next one.
#[tokio::test(start_paused = true)]
async fn raw_t14_types_of_icmpv6_that_are_not_named_are_left_out() {
    let (net, ann, bob) = subnet().await;
    let both = [NextHeader::ICMPV6, NEXT];
    let a = RawIpv6Socket::bind(&ann, both).await.unwrap();
    let b = RawIpv6Socket::bind(&bob, both).icmp_filter([0, 31, 32, 255]).await.unwrap();
    let addr = address(&net, "bob");
    let to = |next_header| Ipv6Dest { addr, next_header };
    let mut datagrams: Vec<_> =
        [30, 0, 33, 31, 1, 32, 254, 255].map(|icmp_type| (vec![icmp_type, 0, 0, 0], both[0])).into();
    datagrams.push((vec![0, 0, 0], both[0])); // shorter than a header
    datagrams.push((vec![30], NEXT));
    for (data, next_header) in datagrams {
        a.send_to(&data, &to(next_header)).await.unwrap();
    }
    let mut seen = Vec::new();
    for _ in 0..5 {
        let taken = b.recv().await.unwrap();
        seen.push((taken.meta.next_header, taken.data[0]));
    }
    assert_eq!(seen, [(both[0], 0), (both[0], 31), (both[0], 32), (both[0], 255), (NEXT, 30)]);
    assert_eq!((b.stats().rx_filtered, b.stats().rx_packets), (5, 5));
    let refused = RawIpv6Socket::bind(&bob, [NEXT]).icmp_filter([0]).await;
    assert!(matches!(refused, Err(RawError::Unsupported(_))), "{refused:?}");
}

/// A socket with an address hears that and its groups, though the port has another one by then, from which it cannot send.
#[tokio::test(start_paused = true)]
async fn a_socket_of_one_address() {
    let (net, ann, bob) = subnet().await;
    let (old, new) = (address(&net, "bob"), "fd00::b0b".parse::<Ipv6Addr>().unwrap());
    let a = RawIpv6Socket::bind(&ann, [NEXT]).await.unwrap();
    let any = RawIpv6Socket::bind(&bob, [NEXT]).await.unwrap();
    let bound = RawIpv6Socket::bind(&bob, [NEXT]).bind_addr(old).await.unwrap();
    let to = |addr| Ipv6Dest { addr, next_header: NEXT };
    a.send_to(b"old", &to(old)).await.unwrap();
    assert_eq!(&bound.recv().await.unwrap().data[..], b"old");
    bound.send_to(b"whence", &to(address(&net, "ann"))).await.unwrap();
    assert_eq!(a.recv().await.unwrap().meta.src, old);

    net.set_gid("bob", 1, ibwire::Gid(new.octets()));
    a.send_to(b"new", &to(new)).await.unwrap();
    let group = Group::ipv6("ff02::9").unwrap();
    let _held = bound.join(&group).await.unwrap();
    a.send_to(b"all", &group.ipv6_dest(NEXT).unwrap()).await.unwrap();
    assert_eq!(&bound.recv().await.unwrap().data[..], b"all");
    assert_eq!(bound.stats().rx_other_host, 1);
    for text in [&b"old"[..], b"new"] {
        assert_eq!(&any.recv().await.unwrap().data[..], text);
    }
    let sent = bound.send_to(b"whence", &to(address(&net, "ann"))).await;
    assert!(matches!(sent, Err(RawError::NotOwnAddress(of)) if of == old), "{sent:?}");
    let after = RawIpv6Socket::bind(&bob, [NEXT]).bind_addr(new).await.unwrap();
    after.send_to(b"whence", &to(address(&net, "ann"))).await.unwrap();
    assert_eq!(a.recv().await.unwrap().meta.src, new);
    for of_nobody in [old, Ipv6Addr::UNSPECIFIED, "ff02::9".parse().unwrap()] {
        let refused = RawIpv6Socket::bind(&bob, [NEXT]).bind_addr(of_nobody).await;
        assert!(matches!(refused, Err(RawError::NotOwnAddress(of)) if of == of_nobody), "{refused:?}");
    }
}

/// What only kernels do is refused.
#[tokio::test(start_paused = true)]
async fn what_a_subnet_does_not_do_is_refused() {
    let (_net, ann, _) = subnet().await;
    let all = [Instruction { code: 0x06, jt: 0, jf: 0, k: u32::MAX }];
    let ether = || RawEtherSocket::bind(&ann, [EtherType::LOCAL_1]);
    let ipv6 = || RawIpv6Socket::bind(&ann, [NEXT]);
    for refused in [ether().timestamps().await, ether().filter(&all).await] {
        assert!(matches!(refused, Err(RawError::Unsupported(_))), "{refused:?}");
    }
    for refused in [ipv6().timestamps().await, ipv6().filter(&all).await] {
        assert!(matches!(refused, Err(RawError::Unsupported(_))), "{refused:?}");
    }
    let socket = ipv6().filter(&[]).await.unwrap();
    assert!(matches!(socket.set_filter(&all), Err(RawError::Unsupported(_))));
    socket.close();
    assert!(matches!(socket.set_filter(&all), Err(RawError::Closed)));
}
