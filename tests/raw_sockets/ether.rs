//! Packets of an EtherType: what reaches a socket, as what, and what Python and tshark see of what it sends.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use ibraw::{EtherDest, EtherType, FrameKind, Group, OnTruncate, RawError, VlanPolicy};
use pcap_file::pcap::{PcapPacket, PcapWriter};
use tests::decode::{Want, tshark};

use crate::case::{Outcome, Place};
use crate::ends::{BROADCAST, GROUP, TYPE, ether, frame, head, link, number};
use crate::peer::Peer;
use tests::veth::{Here, There};

/// A datagram and its answer, which is the peer's own doing; and how they look to their receivers.
pub(crate) async fn python_answers(net: Place) -> Outcome {
    let mut peer = Peer::start(&net, There, "ether", TYPE.0)?;
    let socket = ether(&net, Here).await?;
    let sent = socket.send_to(b"to Python", &EtherDest::station(There.mac(), TYPE)).await?;
    assert_eq!(sent.wire_len, 9);
    assert_eq!(peer.recv()?.0, frame(There.mac(), Here, TYPE.0, b"to Python"));

    peer.tell("echo 1")?;
    socket.send_to(b"and back", &EtherDest::station(There.mac(), TYPE)).await?;
    let back = socket.recv().await?;
    peer.answer()?;
    assert_eq!(&back.data[..], b"and back");
    assert_eq!((back.meta.ether_type, back.meta.kind, back.meta.wire_len), (TYPE, FrameKind::Host, 8));
    assert_eq!(back.meta.src.map(|address| address.as_bytes().to_vec()), Some(There.mac().to_vec()));
    assert_eq!((back.meta.truncated, back.meta.drops_before, back.meta.vlan), (false, 0, None));
    let stats = socket.stats();
    assert_eq!((stats.tx_packets, stats.tx_bytes, stats.rx_packets, stats.rx_bytes), (2, 17, 1, 8));
    Ok(())
}

/// What other programs read of our frames: one from each way to send.
pub(crate) async fn tshark_reads(net: Place) -> Outcome {
    let mut peer = Peer::start(&net, There, "ether", TYPE.0)?;
    let socket = ether(&net, Here).await?;
    let group = Group::link(GROUP)?;
    let station = EtherDest::station(There.mac(), TYPE);
    socket.send_to(b"one", &station).await?;
    socket.send_batch(&[(b"two", &group.dest(TYPE)), (b"three", &station)]).await?;
    let mut sink = socket.sink();
    sink.send((b"four"[..].into(), group.dest(TYPE))).await?;
    let wanted = [(There.mac(), "one"), (GROUP, "two"), (There.mac(), "three"), (GROUP, "four")];

    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("raw_sockets");
    std::fs::create_dir_all(&folder)?;
    let capture = folder.join("sent.pcap");
    let mut writer = PcapWriter::new(File::create(&capture)?)?;
    for _ in &wanted {
        let (frame, _) = peer.recv()?;
        writer.write_packet(&PcapPacket::new(Duration::ZERO, frame.len() as u32, &frame))?;
    }
    drop(writer);
    let frames = tshark(&capture)?;
    assert_eq!(frames.len(), wanted.len());
    for (frame, (to, text)) in frames.iter().zip(wanted) {
        let complaints = frame.complaints(&[
            ("eth.dst", Want::Bytes(to.to_vec())),
            ("eth.src", Want::Bytes(Here.mac().to_vec())),
            ("eth.type", Want::Number(TYPE.0.into())),
            ("data.data", Want::Bytes(text.into())),
        ]);
        assert!(complaints.is_empty(), "{text}: {complaints:?}");
    }
    Ok(())
}

/// While another interface of the machine is busy with the same EtherType, no frame of it comes, not even from the time
/// before the socket was bound to its own.
pub(crate) async fn no_frame_of_another_link(net: Place) -> Outcome {
    /// More than there is time for: the flood ends with its sender.
    const MANY: u32 = 100_000_000;
    net.ip(Here, "link add other0 type veth peer name other1\nlink set other0 up\nlink set other1 up")?;
    let mut other = Peer::start_on(&net, Here, "other0", "ether", TYPE.0)?;
    let mut peer = Peer::start(&net, There, "ether", TYPE.0)?;
    other.tell(&format!("flood {} {MANY} 60", crate::peer::hex(&head(BROADCAST, Here, TYPE.0))))?;
    for round in 0..50_u32 {
        let socket = ether(&net, Here).await?;
        let payload = [&round.to_be_bytes()[..], b"here"].concat();
        peer.send(&frame(Here.mac(), There, TYPE.0, &payload))?;
        let first = socket.recv().await?;
        assert_eq!(&first.data[..], payload, "{:?}", first.meta);
    }
    Ok(())
}

/// A tagged frame is another VLAN's, though its inner type is ours, unless the socket asks for such. A tag with a priority
/// alone is none.
pub(crate) async fn vlan_frames(net: Place) -> Outcome {
    let mut peer = Peer::start(&net, There, "ether", TYPE.0)?;
    let link = link(&net, Here)?;
    let untagged = net.bind(&link, [TYPE]).await?;
    let any = net.bind(&link, [TYPE]).vlan(VlanPolicy::Any).await?;
    let five = net.bind(&link, [TYPE]).vlan(VlanPolicy::Id(5)).await?;
    let tagged = |tci: u16, text: &[u8]| {
        let inside = [&tci.to_be_bytes()[..], &TYPE.0.to_be_bytes(), text].concat();
        frame(Here.mac(), There, EtherType::VLAN.0, &inside)
    };
    peer.send(&tagged(0x6005, b"five"))?;
    peer.send(&tagged(6, b"six"))?;
    peer.send(&tagged(0xe000, b"priority"))?;
    peer.send(&frame(Here.mac(), There, TYPE.0, b"plain"))?;

    for wanted in [&b"priority"[..], b"plain"] {
        let taken = untagged.recv().await?;
        assert_eq!((&taken.data[..], taken.meta.vlan), (wanted, None));
    }
    assert_eq!(untagged.stats().rx_packets, 2);
    let wanted =
        [(&b"five"[..], Some((5, 3))), (b"six", Some((6, 0))), (b"priority", None), (b"plain", None)];
    for (text, vlan) in wanted {
        let taken = any.recv().await?;
        assert_eq!(&taken.data[..], text);
        let seen = taken.meta.vlan.map(|vlan| (vlan.id, vlan.priority));
        // A priority alone is reported where the kernel keeps it.
        assert!(seen == vlan || (text == b"priority" && seen == Some((0, 7))), "{:?}", taken.meta);
    }
    peer.send(&tagged(5, b"last"))?;
    for text in [&b"five"[..], b"last"] {
        let taken = five.recv().await?;
        assert_eq!((&taken.data[..], taken.meta.vlan.map(|vlan| vlan.id)), (text, Some(5)));
    }
    Ok(())
}

/// A socket that takes tagged frames sees what the machine sends, too, if it asks; and never what it sends itself.
pub(crate) async fn outgoing_only_if_asked_for(net: Place) -> Outcome {
    let link = link(&net, Here)?;
    let mut peer = Peer::start(&net, There, "ether", TYPE.0)?;
    let mut beside = Peer::start(&net, Here, "ether", TYPE.0)?;
    let deaf = net.bind(&link, [TYPE]).vlan(VlanPolicy::Any).await?;
    let sees = net.bind(&link, [TYPE]).vlan(VlanPolicy::Any).see_outgoing().await?;
    beside.send(&frame(There.mac(), Here, TYPE.0, b"outgoing"))?;
    sees.send_to(b"own", &EtherDest::station(There.mac(), TYPE)).await?;
    peer.send(&frame(Here.mac(), There, TYPE.0, b"incoming"))?;
    let seen = sees.recv().await?;
    assert_eq!((&seen.data[..], seen.meta.kind), (&b"outgoing"[..], FrameKind::Outgoing));
    for socket in [&sees, &deaf] {
        let next = socket.recv().await?;
        assert_eq!((&next.data[..], next.meta.kind), (&b"incoming"[..], FrameKind::Host));
    }
    Ok(())
}

/// The kernel hands over what it would have cut for the wire in one piece: longer than the link's MTU, and than a buffer of
/// that size.
pub(crate) async fn truncation_is_seen(net: Place) -> Outcome {
    let mut peer = Peer::start(&net, There, "udp", 7000)?;
    let link = link(&net, Here)?;
    let socket = net.bind(&link, [EtherType::IPV6]).buffer(2048).await?;
    peer.ask("segments 1400")?;
    peer.send_to(&[7; 12_000], &format!("{} 7001", Here.address()))?;
    loop {
        // IPv6 has traffic of its own.
        let taken = socket.recv().await?;
        if taken.meta.wire_len < 2048 {
            assert!(!taken.meta.truncated && taken.data.len() == taken.meta.wire_len);
            continue;
        }
        assert!(taken.meta.truncated);
        assert_eq!((taken.meta.wire_len, taken.data.len()), (12_048, 2048));
        break;
    }
    assert_eq!(socket.stats().rx_truncated, 1);
    Ok(())
}

/// Where who receives has said so, what was cut is dropped, and counted.
pub(crate) async fn what_is_cut_is_dropped(net: Place) -> Outcome {
    let mut peer = Peer::start(&net, There, "ether", TYPE.0)?;
    let socket = net.bind(&link(&net, Here)?, [TYPE]).buffer(64).on_truncate(OnTruncate::Drop).await?;
    for payload in [[1; 65].to_vec(), vec![2; 64], vec![3; 1000], vec![4; 46]] {
        peer.send(&frame(Here.mac(), There, TYPE.0, &payload))?;
    }
    for (len, byte) in [(64, 2), (46, 4)] {
        let taken = socket.recv().await?;
        assert_eq!((&taken.data[..], taken.meta.truncated), (&vec![byte; len][..], false));
    }
    assert_eq!((socket.stats().rx_truncated, socket.stats().rx_packets), (2, 4));
    Ok(())
}

/// Who does not wait gets the same, be it that somebody has waited before or not.
pub(crate) async fn without_waiting(net: Place) -> Outcome {
    let mut peer = Peer::start(&net, There, "ether", TYPE.0)?;
    let socket = ether(&net, Here).await?;
    let to = EtherDest::station(There.mac(), TYPE);
    for round in 0..3 {
        assert!(socket.try_recv()?.is_none());
        let mut batch = socket.batch();
        assert_eq!((socket.try_recv_batch(&mut batch)?, batch.len()), (0, 0));
        peer.send(&frame(Here.mac(), There, TYPE.0, &[round; 46]))?;
        let mut buffer = [0; 4];
        let (len, meta) = loop {
            match socket.try_recv_from(&mut buffer)? {
                Some(taken) => break taken,
                None => tokio::task::yield_now().await,
            }
        };
        assert_eq!((len, meta.wire_len, buffer), (4, 46, [round; 4]));
        assert_eq!(socket.try_send_to(b"to Python", &to)?.map(|sent| sent.wire_len), Some(9));
        assert_eq!(socket.try_send_batch(&[(b"one", &to), (&[0; 1501], &to), (b"not", &to)])?, 1);
        for text in [&b"to Python"[..], b"one"] {
            assert_eq!(peer.recv()?.0, frame(There.mac(), Here, TYPE.0, text));
        }
        // From now on it is watched.
        peer.send(&frame(Here.mac(), There, TYPE.0, b"waited for"))?;
        assert_eq!(&socket.recv().await?.data[..10], b"waited for");
    }
    Ok(())
}

/// Below 0x0600 the field is a length on Ethernet: refused when the socket is bound, and when something is sent.
pub(crate) async fn no_lengths_for_types(net: Place) -> Outcome {
    let link = link(&net, Here)?;
    for number in [0, 0x0400, 0x05ff] {
        let small = EtherType(number);
        let bound = net.bind(&link, [TYPE, small]).await;
        assert!(
            matches!(bound, Err(RawError::EtherTypeNotOnLink { ether_type, .. }) if ether_type == small),
            "{bound:?}"
        );
        let sent = ether(&net, Here).await?.send_to(b"x", &EtherDest::station(There.mac(), small)).await;
        assert!(matches!(sent, Err(RawError::EtherTypeNotOnLink { .. })), "{sent:?}");
    }
    Ok(())
}

/// Numbers without a name go both ways, and through the filter.
pub(crate) async fn types_without_a_name(net: Place) -> Outcome {
    const NAMELESS: EtherType = EtherType(0x9999);
    assert_eq!(NAMELESS.name(), None);
    let mut peer = Peer::start(&net, There, "ether", NAMELESS.0)?;
    let socket = net.bind(&link(&net, Here)?, [TYPE, NAMELESS]).await?;
    socket.send_to(b"there", &EtherDest::station(There.mac(), NAMELESS)).await?;
    assert_eq!(peer.recv()?.0, frame(There.mac(), Here, NAMELESS.0, b"there"));
    for (ether_type, text) in [(NAMELESS, b"back"), (EtherType::LOCAL_2, b"lost"), (TYPE, b"more")] {
        peer.send(&frame(Here.mac(), There, ether_type.0, text))?;
    }
    let mut stream = socket.stream();
    let mut taken = Vec::new();
    while taken.len() < 2 {
        let datagram = stream.next().await.ok_or("the stream has ended")??;
        taken.push((datagram.meta.ether_type, datagram.data));
    }
    taken.sort(); // two types are two queues
    assert_eq!(taken, [(TYPE, b"more"[..].into()), (NAMELESS, b"back"[..].into())]);
    Ok(())
}

/// What is longer than the link's MTU is refused with the limit; what is as long goes.
pub(crate) async fn the_mtu_is_the_limit(net: Place) -> Outcome {
    let mut peer = Peer::start(&net, There, "ether", TYPE.0)?;
    let socket = ether(&net, Here).await?;
    let to = EtherDest::station(There.mac(), TYPE);
    let refused = socket.send_to(&[1; 1501], &to).await;
    assert!(matches!(refused, Err(RawError::TooLarge { len: 1501, max: 1500 })), "{refused:?}");
    // The sink lives on after an item that it could not take.
    let mut sink = socket.sink();
    assert!(matches!(sink.send((vec![2; 1501].into(), to)).await, Err(RawError::TooLarge { .. })));
    sink.send((vec![3; 1500].into(), to)).await?;
    assert_eq!(peer.recv()?.0, frame(There.mac(), Here, TYPE.0, &[3; 1500]));
    Ok(())
}

/// Multicast comes to those who have joined, as long as they have; frames for other stations never.
pub(crate) async fn groups_are_joined(net: Place) -> Outcome {
    let mut peer = Peer::start(&net, There, "ether", TYPE.0)?;
    let socket = ether(&net, Here).await?;
    let group = Group::link(GROUP)?;
    let mut say = |number: u32, to| peer.send(&frame(to, There, TYPE.0, &number.to_be_bytes()));
    say(0, GROUP)?;
    say(1, [2, 0, 0, 0, 0, 9])?;
    say(2, BROADCAST)?;
    let mut seen = vec![number(&socket.recv().await?.data)];
    let filters = || -> std::io::Result<bool> {
        let shown = net.run(Here, "ip", &["maddr", "show", "dev", Here.interface()])?;
        Ok(shown.contains("33:33:00:00:88:b5"))
    };
    assert!(!filters()?);
    let held = socket.join(&group).await?;
    let again = socket.join(&group).await?;
    assert!(filters()?, "the interface takes them");
    drop(again); // one of two
    say(3, GROUP)?;
    say(4, BROADCAST)?;
    for kind in [FrameKind::Multicast, FrameKind::Broadcast] {
        let taken = socket.recv().await?;
        assert_eq!(taken.meta.kind, kind);
        seen.push(number(&taken.data));
    }
    assert!(filters()?);
    drop(held);
    assert!(!filters()?, "no more");
    say(5, GROUP)?;
    say(6, Here.mac())?;
    seen.push(number(&socket.recv().await?.data));
    assert_eq!(seen, [2, 3, 4, 6]);
    let stats = socket.stats();
    assert_eq!((stats.rx_packets, stats.rx_not_member, stats.rx_other_host), (4, 2, 1));
    Ok(())
}

/// Of IPv6 the whole address counts in frames, too, and groups that are one on Ethernet are left one by one.
pub(crate) async fn groups_that_are_equal_on_ethernet(net: Place) -> Outcome {
    let mut peer = Peer::start(&net, There, "udp", 7000)?;
    let socket = net.bind(&link(&net, Here)?, [EtherType::IPV6]).await?;
    let (one, twin) = (Group::ipv6("ff02::1:4321")?, Group::ipv6("ff05::1:4321")?);
    let mut hears = async |text: &[u8], to: &str| -> Result<bool, libtest_mimic::Failed> {
        peer.send_to(text, &format!("{to} 7001"))?;
        peer.send_to(b"end", &format!("{} 7001", Here.address()))?;
        let mut heard = false;
        loop {
            // IPv6 has traffic of its own.
            let taken = socket.recv().await?;
            match taken.data.get(48..) {
                Some(payload) if payload == text => heard = true,
                Some(b"end") => return Ok(heard),
                _ => {}
            }
        }
    };
    let held = socket.join(&one).await?;
    assert!(!hears(b"not joined", "ff05::1:4321").await?);
    assert!(hears(b"joined", "ff02::1:4321").await?);
    let also = socket.join(&twin).await?;
    assert!(hears(b"both", "ff05::1:4321").await?);
    held.leave()?;
    assert!(hears(b"the other", "ff05::1:4321").await?);
    assert!(!hears(b"left", "ff02::1:4321").await?);
    also.leave()?;
    assert!(!hears(b"all left", "ff05::1:4321").await?);
    Ok(())
}
