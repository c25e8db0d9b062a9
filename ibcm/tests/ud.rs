//! Datagram sockets, over UDP and in a subnet.

mod common;

use std::collections::HashSet;
use std::time::Duration;

use common::{Net, Result, drop_after};
use ibcm::sim::Subnet;
use ibcm::{Gid, Guid, Hca, OpCause, Path, PathRecord, QKey, Recv, RecvError, ud};

/// Sockets of two HCAs, and each as the other's peer.
struct Pair {
    a: ud::Socket,
    b: ud::Socket,
    to_a: ud::Peer,
    to_b: ud::Peer,
}

async fn pair(here: &Hca, there: &Hca, qkey: QKey, recv: Recv) -> Result<Pair> {
    let a = ud::Socket::open(here).qkey(qkey).await?;
    let b = ud::Socket::open(there).qkey(qkey).recv(recv).await?;
    let to_a = ud::Peer::new(&there.path_to(here.gid()).await?, a.qpn(), qkey);
    let to_b = ud::Peer::new(&here.path_to(there.gid()).await?, b.qpn(), qkey);
    Ok(Pair { a, b, to_a, to_b })
}

async fn soft() -> Result<Pair> {
    let (here, there) = (Hca::open("soft").await?, Hca::open("soft").await?);
    pair(&here, &there, QKey(7), Recv::buffers(8, 1024)).await
}

#[tokio::test]
async fn there_and_back() -> Result {
    let Pair { a, b, to_a, to_b } = soft().await?;
    let mut buf = a.hca().alloc(64).await?;
    buf.clear();
    buf.put_slice(b"hello");
    let buf = a.send(&to_b, buf).imm(0x1234_5678).await?;
    assert_eq!(&buf[..], b"hello");
    let datagram = b.recv().await?;
    assert_eq!((&datagram[..], datagram.imm()), (&b"hello"[..], Some(0x1234_5678)));
    let from = datagram.from();
    assert_eq!((from.gid(), from.qpn(), from.qkey()), (to_a.gid(), a.qpn(), b.qkey()));
    let mut buf = datagram.into_buf();
    assert_eq!(&buf[..], b"hello");
    buf.resize(6, b'!');
    b.send(&from, buf).await?;
    let datagram = a.recv().await?;
    assert_eq!((&datagram[..], datagram.imm()), (&b"hello!"[..], None));
    a.send_copy(&to_b, b"").solicited().await?;
    assert_eq!(b.recv().await?.len(), 0);
    b.send_copy(&to_a, &[3; 1000]).await?;
    assert_eq!(a.recv().await?[..], [3; 1000]);
    let stats = a.hca().stats();
    assert_eq!((stats.hca.datagrams_sent, stats.hca.datagrams_received), (2, 2));
    assert_eq!(stats.hca.datagram_bytes_received, 1006);
    Ok(())
}

#[tokio::test]
async fn what_is_too_long_or_for_another_port_is_refused() -> Result {
    let Pair { a, b, to_a, to_b } = soft().await?;
    let most = a.mtu();
    assert!(most >= 1024);
    let buf = a.hca().alloc(most + 1).await?;
    let error = a.send(&to_b, buf).await.unwrap_err();
    assert_eq!(error.to_string(), format!("datagram length is {}, at most {most} is allowed", most + 1));
    assert_eq!(error.buf.map(|buf| buf.len()), Some(most + 1));
    let error = a.send_copy(&to_a, b"x").await.unwrap_err();
    assert!(matches!(error.cause, OpCause::Invalid(_)), "{error}");
    let error = ud::Socket::open(b.hca()).qkey(QKey(0x8000_0000)).await.unwrap_err();
    assert!(error.to_string().contains("Q_Key"), "{error}");
    let error = ud::Socket::open(b.hca()).port(9).await.unwrap_err();
    assert!(error.to_string().contains("port"), "{error}");
    let error = ud::Socket::open(b.hca()).recv(Recv::buffers(0, 1)).await.unwrap_err();
    assert!(error.to_string().contains("receive buffers"), "{error}");
    let shared = b.hca().shared_recv(1, 64).await?;
    let error = ud::Socket::open(b.hca()).recv(Recv::shared(&shared)).await.unwrap_err();
    assert!(error.to_string().contains("shared receive queue"), "{error}");
    a.send_copy(&to_b, b"still here").await?;
    b.recv().await?;
    Ok(())
}

/// Who answers is the peer that was asked, however the ways there and back differ.
#[tokio::test]
async fn a_peer_is_its_queue_pair() -> Result {
    let Pair { a, b, to_a, to_b } = soft().await?;
    a.send_copy(&to_b, b"hello").await?;
    let from = b.recv().await?.from();
    assert_eq!(from, to_a);
    let path = a.hca().path_to(b.hca().gid()).sl(3).await?;
    assert_eq!(ud::Peer::new(&path, b.qpn(), QKey(9)), to_b);
    let next = ibcm::Qpn::truncate(b.qpn().get() + 1);
    assert_ne!(ud::Peer::new(&path, next, QKey(7)), to_b);
    Ok(())
}

/// The peer that answers is the one that was asked, whichever of the LIDs of both ports the packets carry, and also with a GRH.
#[tokio::test(start_paused = true)]
async fn a_peer_is_the_same_by_every_way() -> Result {
    let net = Subnet::builder().lmc(2).switch("hub").hca("a").hca("b").hca("c");
    let net = net.link("a", "hub").link("b", "hub").link("c", "hub").managed().await?;
    let open = async |name| Hca::open(net.device(name)).await;
    let (here, there, third) = (open("a").await?, open("b").await?, open("c").await?);
    let (a, b) = (ud::Socket::open(&here).await?, ud::Socket::open(&there).await?);
    let port = &here.ports()[0];
    let records = here.sa().path(there.gid()).all().await?;
    let dlids: HashSet<_> = records.iter().map(|record| record.dlid).collect();
    let slids: HashSet<_> = records.iter().map(|record| record.slid).collect();
    assert_eq!((dlids.len(), slids.len()), (4, 4), "{records:?}");
    let mut peers = HashSet::new();
    for record in &records {
        for hop_limit in [0, 64] {
            let record = PathRecord { hop_limit, ..*record };
            let asked = ud::Peer::new(&Path::from_record(port, record), b.qpn(), b.qkey());
            a.send_copy(&asked, b"who is there?").await?;
            b.send_copy(&b.recv().await?.from(), b"me").await?;
            let answers = a.recv().await?.from();
            assert_eq!((answers.gid().is_some(), asked.gid().is_some()), (hop_limit > 0, hop_limit > 0));
            assert_eq!(answers, asked);
            peers.extend([asked, answers]);
        }
    }
    assert_eq!(peers.len(), 1);

    // The same number at another port, in our subnet, in another one behind the same router, and here.
    let record = records[0];
    let other = here.path_to(third.gid()).await?;
    let gid = |prefix| Gid::from_parts(prefix, Guid(there.gid().interface_id()));
    let far = |prefix| PathRecord { dgid: gid(prefix), hop_limit: 64, ..record };
    let strangers = [*other.record(), far(7), far(8)].map(|record| Path::from_record(port, record));
    peers.extend(strangers.iter().map(|path| ud::Peer::new(path, b.qpn(), b.qkey())));
    peers.insert(ud::Peer::new(&here.path_to(here.gid()).await?, b.qpn(), b.qkey()));
    assert_eq!(peers.len(), 5);
    Ok(())
}

/// What goes out would carry the socket's P_Key, not that of the path.
#[tokio::test]
async fn a_path_of_another_partition_is_refused() -> Result {
    let Pair { a, b, .. } = soft().await?;
    let mut record = *a.hca().path_to(b.hca().gid()).await?.record();
    record.pkey = ibwire::PKey(0x8001);
    let path = Path::from_record(&a.hca().ports()[0], record);
    let error = a.send_copy(&ud::Peer::new(&path, b.qpn(), QKey(7)), b"x").await.unwrap_err();
    assert!(error.to_string().contains("P_Key"), "{error}");
    Ok(())
}

/// Who has another Q_Key is not heard.
#[tokio::test(start_paused = true)]
async fn hca_t56_another_qkey() -> Result {
    let net = Net::new(1).await?;
    let Pair { a, b, to_b, .. } = pair(&net.client, &net.server, QKey(7), Recv::buffers(8, 64)).await?;
    let path = net.client.path_to(net.server.gid()).await?;
    a.send_copy(&ud::Peer::new(&path, b.qpn(), QKey(8)), b"wrong").await?;
    a.send_copy(&to_b, b"right").await?;
    assert_eq!(&b.recv().await?[..], b"right");
    assert_eq!(net.server.stats().get("drop_qkey"), Some(1));
    drop((a, b));
    net.quiet().await
}

/// Datagrams that find no buffer are lost and counted; those read make room.
#[tokio::test(start_paused = true)]
async fn a_slow_reader_loses_datagrams() -> Result {
    let net = Net::new(2).await?;
    let Pair { a, b, to_b, .. } = pair(&net.client, &net.server, QKey(7), Recv::buffers(4, 64)).await?;
    for n in 0..10u8 {
        a.send_copy(&to_b, &[n; 8]).await?;
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    let mut kept = Vec::new();
    for n in 0..4 {
        kept.push(b.recv().await?);
        assert_eq!(kept[usize::from(n)][..], [n; 8]);
    }
    assert_eq!(net.server.stats().get("drop_ud_no_receive"), Some(6));
    let waiting = drop_after(1, b.recv()).await;
    assert!(waiting.is_none());
    // Buffers come home wherever they are dropped, and are posted by the driver.
    tokio::spawn(async move { drop(kept) }).await?;
    tokio::time::sleep(Duration::from_millis(10)).await;
    for n in 10..14u8 {
        a.send_copy(&to_b, &[n; 8]).await?;
        assert_eq!(b.recv().await?[..], [n; 8]);
    }
    drop((a, b));
    net.quiet().await
}

/// More at once than the send queue holds, from one buffer pool.
#[tokio::test]
async fn many_at_once() -> Result {
    let Pair { a, b, to_b, .. } = soft().await?;
    let pool = a.hca().pool(4, 64).await?;
    let send = |n: u16| {
        let (a, pool, to_b) = (&a, &pool, &to_b);
        async move {
            let mut buf = pool.get().await?;
            buf.put_slice(&n.to_be_bytes());
            a.send(to_b, buf).await?;
            a.send_copy(to_b, &n.to_be_bytes()).await?;
            Ok::<_, ibcm::Error>(())
        }
    };
    let receiving = async {
        let mut count = 0;
        while tokio::time::timeout(Duration::from_millis(200), b.recv()).await.is_ok_and(|got| got.is_ok()) {
            count += 1;
        }
        count
    };
    let sending = futures::future::try_join_all((0..500).map(send));
    let (sent, received) = tokio::join!(sending, receiving);
    sent?;
    assert!(received > 0);
    assert_eq!(a.hca().stats().hca.datagrams_sent, 1000);
    Ok(())
}

/// A send that is dropped at any of its polls leaves nothing behind, and its buffer comes home.
#[tokio::test(start_paused = true)]
async fn sends_dropped_anywhere() -> Result {
    for polls in 0..6 {
        let net = Net::new(polls as u64).await?;
        let Pair { a, b, to_b, .. } = pair(&net.client, &net.server, QKey(7), Recv::buffers(8, 64)).await?;
        let pool = net.client.pool(1, 64).await?;
        drop_after(polls, a.send(&to_b, pool.get().await?)).await;
        drop_after(polls, a.send_copy(&to_b, b"copy")).await;
        let mut buf = tokio::time::timeout(Duration::from_secs(1), pool.get()).await??;
        buf.put_slice(b"last");
        a.send(&to_b, buf).await?;
        while &b.recv().await?[..] != b"last" {}
        drop((a, b));
        net.quiet().await?;
    }
    Ok(())
}

#[tokio::test]
async fn closed() -> Result {
    let Pair { a, b, to_b, .. } = soft().await?;
    let datagram = {
        a.send_copy(&to_b, b"kept").await?;
        b.recv().await?
    };
    b.hca().close().await;
    assert_eq!(b.recv().await.unwrap_err(), RecvError::Closed);
    let error = b.send_copy(&datagram.from(), b"x").await.unwrap_err();
    assert!(matches!(error.cause, OpCause::Closed), "{error:?}");
    assert_eq!(&datagram[..], b"kept");
    drop(b);
    assert_eq!(&datagram.into_buf()[..], b"kept");
    Ok(())
}

/// One copy to each socket that has joined and has the right Q_Key, over UDP and in a subnet, also to the sender's own HCA.
async fn groups(here: &Hca, there: &Hca, group: &str) -> Result {
    let mgid = group.parse()?;
    let speaker = ud::Socket::open(here).await?;
    let to_group = speaker.group(mgid)?;
    let (first, second) = (ud::Socket::open(there).await?, ud::Socket::open(there).await?);
    let other_key = ud::Socket::open(there).qkey(QKey(9)).await?;
    let stranger = ud::Socket::open(there).await?;
    for socket in [&first, &second, &other_key] {
        socket.join(mgid).await?;
        socket.join(mgid).await?;
    }
    speaker.send_copy(&to_group, b"one").imm(7).await?;
    for socket in [&first, &second] {
        let datagram = socket.recv().await?;
        assert_eq!((&datagram[..], datagram.imm()), (&b"one"[..], Some(7)));
        // The answer goes to the speaker alone.
        socket.send_copy(&datagram.from(), b"heard").await?;
        assert_eq!(&speaker.recv().await?[..], b"heard");
    }
    let group = speaker.join(mgid).await?;
    assert_eq!(group, to_group);
    second.leave(mgid).await?;
    speaker.send_copy(&group, b"two").await?;
    assert_eq!(&speaker.recv().await?[..], b"two");
    assert_eq!(&first.recv().await?[..], b"two");
    // Nothing else has come to anybody.
    for socket in [&speaker, &first, &second, &other_key, &stranger] {
        let path = here.path_to(socket.hca().gid()).await?;
        let direct = ud::Peer::new(&path, socket.qpn(), socket.qkey());
        speaker.send_copy(&direct, b"last").await?;
        assert_eq!(&socket.recv().await?[..], b"last");
    }
    let error = speaker.join(here.gid()).await.expect_err("no group");
    assert!(error.to_string().contains("multicast group"), "{error}");
    Ok(())
}

#[tokio::test]
async fn hca_t59_groups_over_udp() -> Result {
    let (here, there) = (Hca::open("soft").await?, Hca::open("soft").await?);
    groups(&here, &there, "239.1.1.1").await?;
    assert!(there.stats().get("drop_qkey") > Some(0));
    let other_family = ud::Socket::open(&here).await?.join("ff1e::7".parse()?).await;
    assert!(other_family.is_err());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn hca_t59_groups_in_a_subnet() -> Result {
    let net = Net::new(7).await?;
    groups(&net.client, &net.server, "ff15:a01b::7").await?;
    net.quiet().await
}
