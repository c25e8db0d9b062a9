//! Who listens to which groups: the multicast stream of ICMPv6 to the routers of a link (RFC 3810).
//!
//! `mld eth0` prints each report of a neighbour (CAP_NET_RAW). `cargo run --example mld -- --sim` is the same program on an
//! in-process subnet, where a neighbour reports two groups.

use std::error::Error;
use std::net::Ipv6Addr;

use futures::StreamExt;
use ibcm::sim::Subnet;
use ibraw::{Group, Ipv6Dest, Link, NextHeader, RawError, RawIpv6Socket};

/// All routers that understand MLD version 2.
const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
const REPORT: u8 = 143;

/// Prints `most` reports, all if there is no such number.
async fn listen(link: Link, most: Option<usize>) -> Result<(), RawError> {
    let socket = RawIpv6Socket::bind(&link, [NextHeader::ICMPV6]).await?;
    let _held = socket.join(&Group::try_from(ROUTERS)?).await?;
    let mut reports = 0;
    let mut stream = socket.stream();
    while let Some(packet) = stream.next().await {
        let packet = match packet {
            Ok(packet) => packet,
            Err(error) if error.is_transient() => {
                eprintln!("{error}");
                continue;
            }
            Err(error) => return Err(error),
        };
        let Some(groups) = groups(&packet.data) else { continue };
        for group in groups {
            println!("{} says it is in {group}", packet.meta.src);
        }
        reports += 1;
        if Some(reports) == most {
            break;
        }
    }
    Ok(())
}

/// The groups of the records of a report, or `None` for another message.
fn groups(icmp: &[u8]) -> Option<Vec<Ipv6Addr>> {
    let (&REPORT, count) = (icmp.first()?, u16::from_be_bytes([*icmp.get(6)?, *icmp.get(7)?])) else {
        return None;
    };
    let mut groups = Vec::new();
    let mut rest = &icmp[8..];
    for _ in 0..count {
        let (more, sources) = (*rest.get(1)?, u16::from_be_bytes([*rest.get(2)?, *rest.get(3)?]));
        let group: [u8; 16] = rest.get(4..20)?.try_into().ok()?;
        groups.push(group.into());
        rest = rest.get(20 + 16 * usize::from(sources) + 4 * usize::from(more)..)?;
    }
    Some(groups)
}

/// A report that this station listens to all sources of these groups. Its checksum is left out: there is no kernel to look.
fn report(groups: &[Ipv6Addr]) -> Vec<u8> {
    const CHANGE_TO_EXCLUDE: u8 = 4;
    let mut icmp = vec![REPORT, 0, 0, 0, 0, 0, 0, groups.len() as u8];
    for group in groups {
        icmp.extend([CHANGE_TO_EXCLUDE, 0, 0, 0]);
        icmp.extend(group.octets());
    }
    icmp
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let place = std::env::args().nth(1).ok_or("mld NETDEV or mld --sim")?;
    if place != "--sim" {
        return Ok(listen(Link::open(&place)?, None).await?);
    }
    let net = Subnet::star(["router", "host"]).await?;
    let neighbour = async {
        let socket = RawIpv6Socket::bind(&net.device("host").into(), [NextHeader::ICMPV6]).await?;
        let dest = Ipv6Dest { addr: ROUTERS, next_header: NextHeader::ICMPV6 };
        let groups = ["ff02::fb".parse()?, "ff05::1:3".parse()?];
        socket.send_to(&report(&groups), &dest).await?;
        Ok::<_, Box<dyn Error>>(())
    };
    let listener = listen(net.device("router").into(), Some(1)); // the changed line
    let (heard, said) = tokio::join!(listener, neighbour);
    said?;
    Ok(heard?)
}
