//! What a socket may be bound with beside what it receives: times of arrival, types of ICMPv6, an address, a filter program.

use std::net::Ipv6Addr;
use std::time::{Duration, Instant, SystemTime};

use ibraw::{
    EtherType, Group, Instruction, Ipv6Dest, NextHeader, RawError, RawIpv6Socket, RawSocket, VlanPolicy,
};
use ibwire::FlowLabel;
use ibwire::raw::Ipv6Header;
use tests::veth::{Here, Net, There};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::case::{Outcome, Place};
use crate::ends::{TYPE, ether, frame, ipv6, link};
use crate::peer::Peer;

/// For experiments (RFC 3692).
const NEXT: NextHeader = NextHeader::EXPERIMENT_1;

/// Where what is left out was sent to before: the kernel has looked at it when this has come.
const LAST: &[u8] = b"yes, last";

/// Looks until a datagram was taken from the link before it was received: the kernel begins to note times a little after it was
/// asked, before that it takes the time of the call.
async fn is_taken_before_it_is_received(
    mut send: impl FnMut() -> std::io::Result<()>,
    mut recv: impl AsyncFnMut() -> Result<Option<SystemTime>, RawError>,
) -> Outcome {
    let patience = Instant::now() + Duration::from_secs(20);
    while Instant::now() < patience {
        let before = SystemTime::now();
        send()?;
        let there = SystemTime::now();
        let time = recv().await?.ok_or("no time")?;
        assert!(before <= time && time <= SystemTime::now(), "{before:?} {time:?}");
        if time <= there {
            return Ok(());
        }
    }
    Err("the times are those of the calls that receive".into())
}

/// A frame tells when the kernel took it, if that was asked for.
pub(crate) async fn times_of_frames(net: Place) -> Outcome {
    let mut peer = Peer::start(&net, There, "ether", TYPE.0)?;
    let silent = ether(&net, Here).await?;
    let socket = net.bind(&link(&net, Here)?, [TYPE]).timestamps().await?;
    let frame = frame(Here.mac(), There, TYPE.0, b"when");
    is_taken_before_it_is_received(|| peer.send(&frame), async || Ok(socket.recv().await?.meta.time)).await?;
    assert_eq!(silent.recv().await?.meta.time, None);
    // Beside all that the kernel says of a frame.
    let tagged = net.bind(&link(&net, Here)?, [TYPE]).vlan(VlanPolicy::Any).timestamps().await?;
    peer.send(&frame)?;
    assert!(tagged.recv().await?.meta.time.is_some());
    Ok(())
}

/// So does an IPv6 packet, beside all else that the kernel says of one.
pub(crate) async fn times_of_packets(net: Net) -> Outcome {
    let mut peer = Peer::start(&net, There, "ipv6", NEXT.0.into())?;
    let silent = ipv6(&net, Here, NEXT).await?;
    let socket = RawIpv6Socket::bind(&link(&net, Here)?, [NEXT]).timestamps().recv_buffer(2304).await?;
    is_taken_before_it_is_received(
        || peer.send_to(b"when", Here.address()),
        async || Ok(socket.recv().await?.meta.time),
    )
    .await?;
    assert_eq!(silent.recv().await?.meta.time, None);
    while socket.stats().rx_dropped == 0 {
        peer.send_to(&[7; 60], Here.address())?;
    }
    let mut batch = socket.batch();
    socket.recv_batch(&mut batch).await?;
    let mut told: u64 = batch.iter().map(|(_, meta)| u64::from(meta.drops_before)).sum();
    let full = RawIpv6Socket::bind(&link(&net, There)?, [NEXT]).caller_header().await?;
    let header = Ipv6Header {
        traffic_class: 0x28,
        flow_label: FlowLabel::default(),
        payload_len: 4,
        next_header: NEXT,
        hop_limit: 7,
        src: There.address().parse()?,
        dst: Here.address().parse()?,
    };
    let to = Ipv6Dest { addr: header.dst, next_header: NEXT };
    full.send_to(&[&header.to_bytes()[..], b"last"].concat(), &to).await?;
    let meta = loop {
        let taken = socket.recv().await?;
        told += u64::from(taken.meta.drops_before);
        if &taken.data[..] == b"last" {
            break taken.meta;
        }
    };
    assert_eq!((meta.dst, meta.hop_limit, meta.traffic_class), (header.dst, 7, 0x28));
    assert!(meta.time.is_some(), "{meta:?}");
    assert_eq!(told, socket.stats().rx_dropped);
    Ok(())
}

/// Of ICMPv6 those types come that are named; of other next headers all.
pub(crate) async fn types_of_icmpv6(net: Net) -> Outcome {
    let mut icmp = Peer::start(&net, There, "ipv6", NextHeader::ICMPV6.0.into())?;
    let mut other = Peer::start(&net, There, "ipv6", NEXT.0.into())?;
    let link = link(&net, Here)?;
    // Types for experiments (RFC 4443).
    let socket = RawIpv6Socket::bind(&link, [NextHeader::ICMPV6, NEXT]).icmp_filter([100, 201]).await?;
    let none = RawIpv6Socket::bind(&link, [NextHeader::ICMPV6, NEXT]).icmp_filter([]).await?;
    for icmp_type in [200, 101, 201, 100] {
        icmp.send_to(&[icmp_type, 0, 0, 0, 1, 2], Here.address())?;
    }
    other.send_to(&[200, 1], Here.address())?;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let taken = socket.recv().await?;
        seen.push((taken.meta.next_header, taken.data[0]));
    }
    seen.sort_by_key(|(next, _)| next.0 != NextHeader::ICMPV6.0); // two next headers are two queues
    assert_eq!(seen, [(NextHeader::ICMPV6, 201), (NextHeader::ICMPV6, 100), (NEXT, 200)]);
    assert_eq!(none.recv().await?.meta.next_header, NEXT);
    assert_eq!((socket.stats().rx_dropped, none.stats().rx_packets), (0, 1));
    let refused = RawIpv6Socket::bind(&link, [NEXT]).icmp_filter([200]).await;
    assert!(matches!(refused, Err(RawError::Unsupported(_))), "{refused:?}");
    Ok(())
}

/// What is sent to the socket's address comes, and to its groups by any of its next headers; what it sends is from there.
pub(crate) async fn an_address_of_its_own(net: Net) -> Outcome {
    const OTHER: NextHeader = NextHeader::EXPERIMENT_2;
    for (side, addresses) in [(Here, &["fd00::3", "fd00::9"][..]), (There, &["fd00::2"])] {
        for address in addresses {
            net.ip(side, &format!("addr add {address}/64 dev {} nodad", side.interface()))?;
        }
    }
    let mut peer = Peer::start(&net, There, "ipv6", NEXT.0.into())?;
    let mut second = Peer::start(&net, There, "ipv6", OTHER.0.into())?;
    let link = link(&net, Here)?;
    let addresses = [Here.address(), "fd00::3", "fd00::9"];
    let mut sockets = Vec::new();
    for address in addresses {
        let socket = RawIpv6Socket::bind(&link, [NEXT, OTHER]).bind_addr(address.parse()?).await?;
        let to = if address == Here.address() { There.address() } else { "fd00::2" };
        socket.send_to(b"whence", &Ipv6Dest { addr: to.parse()?, next_header: NEXT }).await?;
        assert_eq!(peer.recv()?.1.split('%').next(), Some(address));
        sockets.push(socket);
    }
    let beside = ipv6(&net, Here, NEXT).await?;
    let group = Group::ipv6("ff15::80")?;
    let _beside = beside.join(&group).await?;
    peer.send_to(b"not joined", "ff15::80")?;
    for address in addresses {
        peer.send_to(address.as_bytes(), address)?;
    }
    let mut held = Vec::new();
    for (socket, address) in sockets.iter().zip(addresses) {
        let taken = socket.recv().await?;
        assert_eq!((&taken.data[..], taken.meta.dst), (address.as_bytes(), address.parse()?));
        assert_eq!(socket.stats().rx_not_member, 1);
        held.push(socket.join(&group).await?);
    }
    second.send_to(b"joined", "ff15::80")?;
    for socket in &sockets {
        let taken = socket.recv().await?;
        assert_eq!((&taken.data[..], taken.meta.next_header), (&b"joined"[..], OTHER));
    }
    for address in ["fd00::77", "fe80::77", "ff15::80", "::"] {
        let address: Ipv6Addr = address.parse()?;
        let refused = RawIpv6Socket::bind(&link, [NEXT]).bind_addr(address).await;
        assert!(matches!(refused, Err(RawError::NotOwnAddress(of)) if of == address), "{refused:?}");
    }
    Ok(())
}

/// The program that takes what has this byte at this place.
fn has(at: u32, byte: u8) -> [Instruction; 4] {
    let op = |code, jt, jf, k| Instruction { code, jt, jf, k };
    [op(0x30, 0, 0, at), op(0x15, 0, 1, byte.into()), op(0x06, 0, 0, u32::MAX), op(0x06, 0, 0, 0)]
}

/// What is no program is refused, and the socket goes on with the one that it has.
fn refuses<P: ibraw::protocol::Protocol>(socket: &RawSocket<P>, room: u64) {
    let backwards = Instruction { code: 0x05, jt: 0, jf: 0, k: u32::MAX };
    let endless = [Instruction { code: 0x00, jt: 0, jf: 0, k: 0 }];
    for program in [&endless[..], &[backwards], &[Instruction { code: 0xffff, jt: 0, jf: 0, k: 0 }; 2]] {
        let refused = socket.set_filter(program);
        assert!(matches!(refused, Err(RawError::InvalidFilter)), "{refused:?}");
    }
    let refused = socket.set_filter(&vec![has(0, 0)[3]; room as usize + 1]);
    assert!(
        matches!(refused, Err(RawError::Invalid { value, limit, .. }) if (value, limit) == (room + 1, room)),
        "{refused:?}"
    );
}

/// A program sees frames with the link's header and without a tag, and of the socket's own EtherTypes only.
pub(crate) async fn a_program_for_frames(net: Place) -> Outcome {
    const OTHER: EtherType = EtherType::LOCAL_2;
    let mut peer = Peer::start(&net, There, "ether", TYPE.0)?;
    let (link, yes) = (link(&net, Here)?, has(14, b'y'));
    let one = net.bind(&link, [TYPE]).filter(&yes).await?;
    let two = net.bind(&link, [TYPE, OTHER]).filter(&yes).await?;
    let any = net.bind(&link, [TYPE]).vlan(VlanPolicy::Any).filter(&yes).await?;
    let mut say =
        |ether_type: EtherType, text: &[u8]| peer.send(&frame(Here.mac(), There, ether_type.0, text));
    let tagged = |text: &[u8]| [&[0, 5][..], &TYPE.0.to_be_bytes(), text].concat();
    say(TYPE, b"no")?;
    say(TYPE, b"yes, one")?;
    say(OTHER, b"no")?;
    say(OTHER, b"yes, two")?;
    say(EtherType(0x9999), b"yes, nobody's")?;
    say(EtherType::VLAN, &tagged(b"no"))?;
    say(EtherType::VLAN, &tagged(b"yes, tagged"))?;
    say(TYPE, LAST)?;
    let wanted: [(_, &[&[u8]]); 3] = [
        (&one, &[b"yes, one", LAST]),
        (&two, &[b"yes, one", b"yes, two", LAST]),
        (&any, &[b"yes, one", b"yes, tagged", LAST]),
    ];
    for (socket, wanted) in wanted {
        for text in wanted {
            assert_eq!(&socket.recv().await?.data[..], *text);
        }
        assert_eq!(socket.stats().rx_dropped, 0);
    }
    // The destination, before the EtherType.
    let to_all = has(0, 0xff);
    for socket in [&one, &two] {
        socket.set_filter(&to_all)?;
    }
    refuses(&one, 4096);
    refuses(&two, 4096 - 5);
    say(TYPE, b"yes, but to one")?;
    for socket in [&one, &two] {
        socket.set_filter(&[])?;
    }
    say(EtherType(0x9999), b"nobody's")?;
    say(TYPE, b"no filter any more")?;
    for socket in [&one, &two] {
        assert_eq!(&socket.recv().await?.data[..], b"no filter any more");
    }
    let refused = net.bind(&link, [TYPE]).filter(&yes[..2]).await;
    assert!(matches!(refused, Err(RawError::InvalidFilter)), "{refused:?}");
    Ok(())
}

/// A program sees what follows the IPv6 header, and nothing comes past it, not even from the time before the socket was bound.
pub(crate) async fn a_program_for_packets(net: Net) -> Outcome {
    const OTHER: NextHeader = NextHeader::EXPERIMENT_2;
    let mut peer = Peer::start(&net, There, "ipv6", NEXT.0.into())?;
    let mut second = Peer::start(&net, There, "ipv6", OTHER.0.into())?;
    let link = link(&net, Here)?;
    let socket = RawIpv6Socket::bind(&link, [NEXT, OTHER]).filter(&has(0, b'y')).await?;
    for text in [&b"no"[..], b"nor y", LAST] {
        peer.send_to(text, Here.address())?;
        second.send_to(text, Here.address())?;
    }
    for _ in 0..2 {
        assert_eq!(&socket.recv().await?.data[..], LAST);
    }
    refuses(&socket, 4096);
    socket.set_filter(&has(1, b'o'))?;
    second.send_to(LAST, Here.address())?;
    second.send_to(b"no", Here.address())?;
    assert_eq!(&socket.recv().await?.data[..], b"no");
    socket.set_filter(&[])?;
    peer.send_to(b"anything", Here.address())?;
    assert_eq!((&socket.recv().await?.data[..], socket.stats().rx_dropped), (&b"anything"[..], 0));
    let refused = RawIpv6Socket::bind(&link, [NEXT]).filter(&has(0, 0)[..2]).await;
    assert!(matches!(refused, Err(RawError::InvalidFilter)), "{refused:?}");
    let flood = RawIpv6Socket::bind(&crate::ends::link(&net, There)?, [NEXT]).await?;
    let to = Ipv6Dest { addr: Here.address().parse()?, next_header: NEXT };
    let flood: JoinHandle<()> = tokio::spawn(async move {
        loop {
            _ = flood.send_to(b"no", &to).await; // what is lost of it does not matter
        }
    });
    let link = crate::ends::link(&net, Here)?;
    for _ in 0..200 {
        let socket = RawIpv6Socket::bind(&link, [NEXT]).filter(&has(0, b'y')).await?;
        let taken = loop {
            peer.send_to(b"yes", Here.address())?; // it may be lost in the flood
            if let Ok(taken) = timeout(Duration::from_secs(1), socket.recv()).await {
                break taken?;
            }
        };
        assert_eq!(&taken.data[..], b"yes");
    }
    flood.abort();
    Ok(())
}
