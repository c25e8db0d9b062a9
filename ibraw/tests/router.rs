//! A router between two in-process subnets, and what it must not send on (spec/raw.md 4.1).
#![cfg(feature = "soft")]

use std::net::Ipv6Addr;
use std::time::Duration;

use ibraw::{Group, Ipv6Dest, Link, NextHeader, RawError, RawIpv6Socket};
use ibsoft::sim::Subnet;
use ibwire::FlowLabel;
use ibwire::raw::Ipv6Header;

const NEXT: NextHeader = NextHeader(253);
const SITE: &str = "ff05::99";
const LINK: &str = "ff02::99";

/// Sends on what comes from one side to the other: the header is made anew, the payload stays.
async fn route(from: Link, to: Link, source: Ipv6Addr) -> Result<(), RawError> {
    let hear = RawIpv6Socket::bind(&from, [NEXT]).hear_port().await?;
    let say = RawIpv6Socket::bind(&to, [NEXT]).caller_header().await?;
    let _held = (hear.join(&Group::ipv6(SITE)?).await?, hear.join(&Group::ipv6(LINK)?).await?);
    loop {
        let packet = hear.recv().await?;
        let header = Ipv6Header {
            traffic_class: packet.meta.traffic_class,
            flow_label: FlowLabel::default(),
            payload_len: packet.data.len() as u16,
            next_header: packet.meta.next_header,
            hop_limit: packet.meta.hop_limit,
            src: source,
            dst: packet.meta.dst,
        };
        let Some(header) = header.forwarded() else { continue };
        let dest = Ipv6Dest { addr: header.dst, next_header: header.next_header };
        say.send_to(&[&header.to_bytes()[..], &packet.data].concat(), &dest).await?;
    }
}

#[tokio::test(start_paused = true)]
async fn raw_t35_hop_limit_and_scope_end_at_a_router() {
    let net = Subnet::rails(2, ["ann", "router", "bob"]).await.unwrap();
    let link = |name: &str, port| Link::port(net.device(name), port).unwrap();
    let router = route(link("router", 1), link("router", 2), "2001:db8::1".parse().unwrap());
    let router = tokio::spawn(router);
    let sender = RawIpv6Socket::bind(&link("ann", 1), [NEXT]).multicast_hops(2).await.unwrap();
    let tired = RawIpv6Socket::bind(&link("ann", 1), [NEXT]).multicast_hops(1).await.unwrap();
    let bob = RawIpv6Socket::bind(&link("bob", 2), [NEXT]).await.unwrap();
    let _held = (
        bob.join(&Group::ipv6(SITE).unwrap()).await.unwrap(),
        bob.join(&Group::ipv6(LINK).unwrap()).await.unwrap(),
    );
    tokio::task::yield_now().await;
    let dest = |group: &str| Group::ipv6(group).unwrap().ipv6_dest(NEXT).unwrap();
    tired.send_to(b"one hop", &dest(SITE)).await.unwrap();
    sender.send_to(b"of the link", &dest(LINK)).await.unwrap();
    sender.send_to(b"of the site", &dest(SITE)).await.unwrap();
    let packet = bob.recv().await.unwrap();
    assert_eq!((&packet.data[..], packet.meta.hop_limit), (&b"of the site"[..], 1));
    assert!(tokio::time::timeout(Duration::from_millis(10), bob.recv()).await.is_err());
    router.abort();
}
