//! IPv6 packets by next header: which reach a socket, and what Python's sockets and the kernel of the other side make of ours.

use std::net::Ipv6Addr;

use ibraw::{Group, Ipv6Dest, NextHeader, RawError, RawIpv6Socket};
use ibwire::FlowLabel;
use ibwire::raw::Ipv6Header;

use crate::case::Outcome;
use crate::ends::{frame, ipv6, link};
use crate::peer::Peer;
use tests::veth::{Here, Net, Side, There};

const ALL_NODES: &str = "ff02::1";

/// For experiments (RFC 3692).
const NEXT: NextHeader = NextHeader::EXPERIMENT_1;

fn address(side: Side) -> Ipv6Addr {
    side.address().parse().expect("an address")
}

fn to(address: &str, next_header: NextHeader) -> Ipv6Dest {
    Ipv6Dest { addr: address.parse().expect("an address"), next_header }
}

/// A packet and its answer; and how they look to their receivers.
pub(crate) async fn python_answers(net: Net) -> Outcome {
    let mut peer = Peer::start(&net, There, "ipv6", NEXT.0.into())?;
    let socket = ipv6(&net, Here, NEXT).await?;
    let sent = socket.send_to(b"to Python", &to(There.address(), NEXT)).await?;
    assert_eq!(sent.wire_len, 9);
    let (payload, sender) = peer.recv()?;
    assert_eq!((&payload[..], sender.split('%').next()), (&b"to Python"[..], Some(Here.address())));
    peer.send_to(b"and back", Here.address())?;
    let back = socket.recv().await?;
    assert_eq!(&back.data[..], b"and back");
    assert_eq!((back.meta.src, back.meta.dst), (address(There), address(Here)));
    assert_eq!((back.meta.next_header, back.meta.hop_limit, back.meta.traffic_class), (NEXT, 64, 0));
    assert_eq!((back.meta.wire_len, back.meta.truncated, back.meta.drops_before), (8, false, 0));
    Ok(())
}

/// An echo request to all nodes is answered by the kernel there; one of its `ping` is seen by us, who have joined.
pub(crate) async fn ping_all_nodes(net: Net) -> Outcome {
    let socket = ipv6(&net, Here, NextHeader::ICMPV6).await?;
    let _held = socket.join(&Group::ipv6(ALL_NODES)?).await?;
    // Type 128, code 0, checksum by the kernel, identifier 7, sequence 1.
    socket.send_to(&[128, 0, 0, 0, 0, 7, 0, 1, b'h', b'i'], &to(ALL_NODES, NextHeader::ICMPV6)).await?;
    let answer = loop {
        let taken = socket.recv().await?;
        if taken.meta.src == address(There) && taken.data[0] == 129 {
            break taken;
        }
    };
    assert_eq!((&answer.data[4..], answer.meta.dst), (&[0, 7, 0, 1, b'h', b'i'][..], address(Here)));

    let target = format!("{ALL_NODES}%{}", There.interface());
    let said = net.run(There, "ping", &["-6", "-c", "1", "-W", "5", &target])?;
    assert!(said.contains("1 received"), "{said}");
    let request = loop {
        let taken = socket.recv().await?;
        if taken.data[0] == 128 {
            break taken;
        }
    };
    assert_eq!((request.meta.src, request.meta.dst.to_string().as_str()), (address(There), ALL_NODES));
    assert_eq!(request.meta.hop_limit, 1);
    Ok(())
}

/// Each socket gets what its filter names, and a packet that several name goes to all of them.
pub(crate) async fn each_filter_gets_its_own(net: Net) -> Outcome {
    let mut udp = Peer::start(&net, There, "udp", 7000)?;
    let mut icmp = Peer::start(&net, There, "ipv6", NextHeader::ICMPV6.0.into())?;
    let mut other = Peer::start(&net, There, "ipv6", NEXT.0.into())?;
    let link = link(&net, Here)?;
    let one = RawIpv6Socket::bind(&link, [NextHeader::UDP]).await?;
    let both = RawIpv6Socket::bind(&link, [NextHeader::UDP, NextHeader::ICMPV6]).await?;
    let nodes = Group::ipv6(ALL_NODES)?;
    let _held = (one.join(&nodes).await?, both.join(&nodes).await?);
    other.send_to(b"nobody's", ALL_NODES)?;
    udp.send_to(b"datagram", &format!("{ALL_NODES} 7001"))?;
    let first = one.recv().await?;
    assert_eq!((first.meta.next_header, &first.data[8..]), (NextHeader::UDP, &b"datagram"[..]));
    // Type 200: for experiments.
    icmp.send_to(&[200, 0, 0, 0, 1, 2], ALL_NODES)?;
    udp.send_to(b"last", &format!("{ALL_NODES} 7001"))?;
    let second = one.recv().await?;
    assert_eq!((second.meta.next_header, &second.data[8..]), (NextHeader::UDP, &b"last"[..]));
    let (mut datagrams, mut messages) = (Vec::new(), 0);
    while datagrams.len() < 2 || messages < 1 {
        let taken = both.recv().await?;
        match taken.meta.next_header {
            NextHeader::UDP => datagrams.push(taken.data),
            NextHeader::ICMPV6 => messages += usize::from(taken.data[0] == 200),
            other => return Err(format!("{other:?} is not in the filter").into()),
        }
    }
    assert_eq!(datagrams, [first.data, second.data]);
    Ok(())
}

/// Much of one next header does not keep another one waiting.
pub(crate) async fn each_next_header_in_its_turn(net: Net) -> Outcome {
    const MUCH: NextHeader = NextHeader(253);
    const LITTLE: NextHeader = NextHeader(254);
    let from = RawIpv6Socket::bind(&link(&net, There)?, [MUCH, LITTLE]).await?;
    let to = RawIpv6Socket::bind(&link(&net, Here)?, [MUCH, LITTLE]).await?;
    let dest = |next_header| Ipv6Dest { addr: address(Here), next_header };
    // Both in one batch. From now on it is known that there may be something of either.
    let batch: [(&[u8], &Ipv6Dest); 2] = [(b"first", &dest(MUCH)), (b"first", &dest(LITTLE))];
    assert_eq!(from.send_batch(&batch).await?, 2);
    let mut first = [to.recv().await?.meta.next_header, to.recv().await?.meta.next_header];
    first.sort();
    assert_eq!(first, [MUCH, LITTLE]);
    for _ in 0..150 {
        from.send_to(b"much", &dest(MUCH)).await?;
    }
    from.send_to(b"little", &dest(LITTLE)).await?;
    // A veth pair hands over in the sender's call: all of it is there.
    let mut batch = to.batch();
    let mut kinds = Vec::new();
    for _ in 0..2 {
        to.recv_batch(&mut batch).await?;
        kinds.extend(batch.iter().map(|(_, meta)| meta.next_header));
    }
    assert!(kinds.contains(&LITTLE), "{} packets of the other came before", kinds.len());
    Ok(())
}

/// Who sends to his own group does not hear himself; another socket of his machine hears him if he lets it.
pub(crate) async fn nobody_hears_himself(net: Net) -> Outcome {
    let mut peer = Peer::start(&net, There, "ipv6", NEXT.0.into())?;
    let link = link(&net, Here)?;
    let group = Group::ipv6("ff15::77")?;
    let other = RawIpv6Socket::bind(&link, [NEXT]).await?;
    let _held = other.join(&group).await?;
    let quiet = RawIpv6Socket::bind(&link, [NEXT]).await?;
    let _own = quiet.join(&group).await?;
    quiet.send_to(b"unheard", &to("ff15::77", NEXT)).await?;
    // The kernel gives a member who lets others hear him his own, too, so this one is none.
    let loud = RawIpv6Socket::bind(&link, [NEXT]).multicast_loop().await?;
    loud.send_to(b"heard", &to("ff15::77", NEXT)).await?;
    peer.send_to(b"end", Here.address())?;
    for (socket, wanted) in [(&other, &["heard", "end"][..]), (&quiet, &["heard", "end"]), (&loud, &["end"])]
    {
        for text in wanted {
            assert_eq!(&socket.recv().await?.data[..], text.as_bytes());
        }
    }
    Ok(())
}

/// Groups that are one on Ethernet are two: the whole address counts.
pub(crate) async fn equal_on_ethernet(net: Net) -> Outcome {
    let mut peer = Peer::start(&net, There, "ipv6", NEXT.0.into())?;
    let socket = ipv6(&net, Here, NEXT).await?;
    let (joined, twin) = (Group::ipv6("ff02::1:4321")?, Group::ipv6("ff05::1:4321")?);
    assert_eq!(joined.on_link(), twin.on_link());
    let _held = socket.join(&joined).await?;
    // The kernel of this side takes the twin, too: somebody else has joined it.
    let beside = ipv6(&net, Here, NEXT).await?;
    let _beside = beside.join(&twin).await?;
    peer.send_to(b"twin", "ff05::1:4321")?;
    peer.send_to(b"ours", "ff02::1:4321")?;
    assert_eq!(&socket.recv().await?.data[..], b"ours");
    assert_eq!(&beside.recv().await?.data[..], b"twin");
    assert_eq!(socket.stats().rx_not_member, 1);
    Ok(())
}

/// Memberships of one socket are counted.
pub(crate) async fn joined_twice_left_twice(net: Net) -> Outcome {
    let mut peer = Peer::start(&net, There, "ipv6", NEXT.0.into())?;
    let socket = ipv6(&net, Here, NEXT).await?;
    let group = Group::ipv6("ff15::78")?;
    let (first, second) = (socket.join(&group).await?, socket.join(&group).await?);
    first.leave()?;
    peer.send_to(b"still", "ff15::78")?;
    assert_eq!(&socket.recv().await?.data[..], b"still");
    second.leave()?;
    peer.send_to(b"gone", "ff15::78")?;
    peer.send_to(b"end", Here.address())?;
    assert_eq!(&socket.recv().await?.data[..], b"end");
    Ok(())
}

/// What somebody else on the machine has joined is not ours, though the kernel hands it to every raw socket.
pub(crate) async fn a_group_that_others_joined(net: Net) -> Outcome {
    let mut peer = Peer::start(&net, There, "ipv6", NEXT.0.into())?;
    let mut beside = Peer::start(&net, Here, "ipv6", NEXT.0.into())?;
    beside.ask("join ff15::79")?;
    let socket = ipv6(&net, Here, NEXT).await?;
    peer.send_to(b"theirs", "ff15::79")?;
    peer.send_to(b"end", Here.address())?;
    assert_eq!(beside.recv()?.0, b"theirs");
    assert_eq!(&socket.recv().await?.data[..], b"end");
    assert_eq!(socket.stats().rx_not_member, 1);
    Ok(())
}

/// Nothing is cut into fragments: longer than the MTU is refused, and what is as long goes.
pub(crate) async fn never_in_fragments(net: Net) -> Outcome {
    let mut peer = Peer::start(&net, There, "ipv6", NEXT.0.into())?;
    let socket = ipv6(&net, Here, NEXT).await?;
    for len in [9000, 1461] {
        let refused = socket.send_to(&vec![1; len], &to(There.address(), NEXT)).await;
        assert!(matches!(refused, Err(RawError::TooLarge { max: 1460, .. })), "{refused:?}");
    }
    socket.send_to(&[2; 1460], &to(There.address(), NEXT)).await?;
    assert_eq!(peer.recv()?.0, [2; 1460]);
    Ok(())
}

/// A number without a name goes both ways.
pub(crate) async fn next_headers_without_a_name(net: Net) -> Outcome {
    const NAMELESS: NextHeader = NextHeader(200);
    assert_eq!(NAMELESS.name(), None);
    let mut peer = Peer::start(&net, There, "ipv6", NAMELESS.0.into())?;
    let socket = ipv6(&net, Here, NAMELESS).await?;
    socket.send_to(b"there", &to(There.address(), NAMELESS)).await?;
    assert_eq!(peer.recv()?.0, b"there");
    peer.send_to(b"back", Here.address())?;
    let back = socket.recv().await?;
    assert_eq!((&back.data[..], back.meta.next_header), (&b"back"[..], NAMELESS));
    Ok(())
}

/// A packet shorter than its header says is nothing that a socket sees, whoever sent it.
pub(crate) async fn lengths_that_lie(net: Net) -> Outcome {
    let mut wire = Peer::start(&net, There, "ether", 0x86dd)?;
    let socket = ipv6(&net, Here, NEXT).await?;
    let packet = |version: u8, payload_len: u16, payload: &[u8]| {
        let mut packet = vec![version << 4, 0, 0, 0];
        packet.extend(payload_len.to_be_bytes());
        packet.extend([NEXT.0, 9]);
        packet.extend(address(There).octets());
        packet.extend(address(Here).octets());
        packet.extend(payload);
        frame(Here.mac(), There, 0x86dd, &packet)
    };
    wire.send(&packet(6, 100, b"short"))?;
    wire.send(&packet(4, 5, b"fifth"))?;
    wire.send(&packet(6, 4, b"good and padding"))?;
    let taken = socket.recv().await?;
    assert_eq!((&taken.data[..], taken.meta.hop_limit), (&b"good"[..], 9));
    Ok(())
}

/// A header that the caller wrote goes as it is if it says what is so. Else nothing is sent.
pub(crate) async fn headers_of_the_caller(net: Net) -> Outcome {
    let mut peer = Peer::start(&net, There, "ipv6", NEXT.0.into())?;
    let socket = RawIpv6Socket::bind(&link(&net, Here)?, [NEXT]).caller_header().await?;
    let header = |payload_len: u16| {
        let header = Ipv6Header {
            traffic_class: 0,
            flow_label: FlowLabel::truncate(7),
            payload_len,
            next_header: NEXT,
            hop_limit: 3,
            src: address(Here),
            dst: address(There),
        };
        header.to_bytes().to_vec()
    };
    let dest = to(There.address(), NEXT);
    let with = |mut header: Vec<u8>, payload: &[u8]| {
        header.extend_from_slice(payload);
        header
    };
    let mut fourth = with(header(4), b"four");
    fourth[0] = 4 << 4 | fourth[0] & 0xf;
    for wrong in [with(header(5), b"four"), with(header(3), b"four"), fourth, header(0)[..39].to_vec()] {
        let refused = socket.send_to(&wrong, &dest).await;
        assert!(matches!(refused, Err(RawError::Malformed(_))), "{refused:?}");
    }
    let refused = socket.send_to(&with(header(1461), &[0; 1461]), &dest).await;
    assert!(matches!(refused, Err(RawError::TooLarge { len: 1501, max: 1500 })), "{refused:?}");
    socket.send_to(&with(header(4), b"good"), &dest).await?;
    assert_eq!(peer.recv()?.0, b"good");
    Ok(())
}

/// A packet of ours as it goes over the link: header and payload.
fn on_the_link(wire: &mut Peer) -> Result<Vec<u8>, libtest_mimic::Failed> {
    loop {
        // IPv6 has traffic of its own.
        let frame = wire.recv()?.0;
        if frame[14 + 6] == NEXT.0 {
            return Ok(frame[14..].to_vec());
        }
    }
}

/// What the socket is bound with stands in what it sends, and what comes with a wrong checksum is dropped.
pub(crate) async fn hops_and_checksums(net: Net) -> Outcome {
    let mut wire = Peer::start(&net, There, "ether", 0x86dd)?;
    let socket = RawIpv6Socket::bind(&link(&net, Here)?, [NEXT]).hop_limit(7).multicast_hops(9);
    let socket = socket.checksum_at(2).await?;
    for (dest, hops) in [(There.address(), 7), (ALL_NODES, 9)] {
        socket.send_to(&[1, 2, 0, 0, 5], &to(dest, NEXT)).await?;
        let packet = on_the_link(&mut wire)?;
        assert_eq!(packet[7], hops);
        let mut summed = packet[8..].to_vec(); // addresses and payload
        summed.extend([0, 5, 0, 0, 0, NEXT.0]); // at odd bytes: the payload has five
        summed.insert(summed.len() - 6, 0);
        let sum: u32 = summed.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        assert_eq!((sum >> 16) + (sum & 0xffff), 0xffff, "{packet:?}");
    }
    let mut peer = Peer::start(&net, There, "ipv6", NEXT.0.into())?;
    peer.send_to(&[1, 2, 0, 0, 5], Here.address())?;
    let own = RawIpv6Socket::bind(&link(&net, There)?, [NEXT]).checksum_at(2).await?;
    own.send_to(&[1, 2, 0, 0, 6], &to(Here.address(), NEXT)).await?;
    assert_eq!(socket.recv().await?.data[4], 6);
    Ok(())
}

/// More than there is room for: what was received and what was dropped are all, and the next packet tells of the gap.
pub(crate) async fn every_lost_packet_is_counted(net: Net) -> Outcome {
    let mut peer = Peer::start(&net, There, "ipv6", NEXT.0.into())?;
    let socket = RawIpv6Socket::bind(&link(&net, Here)?, [NEXT]).recv_buffer(2304).await?;
    for _ in 0..50 {
        peer.send_to(&[7; 60], Here.address())?;
    }
    let (mut taken, mut told) = (0, 0);
    while taken + socket.stats().rx_dropped < 50 {
        told += u64::from(socket.recv().await?.meta.drops_before);
        taken += 1;
    }
    peer.send_to(b"one more", Here.address())?;
    let last = socket.recv().await?;
    let stats = socket.stats();
    told += u64::from(last.meta.drops_before);
    assert_eq!((&last.data[..], told), (&b"one more"[..], stats.rx_dropped));
    assert!(stats.rx_dropped > 0 && stats.rx_packets + stats.rx_dropped == 51, "{stats:?}");
    Ok(())
}
