//! What calls, streams and sinks say when something is wrong, and that they go on, on in-process subnets.
#![cfg(feature = "soft")]
#![allow(clippy::unwrap_used, reason = "test helpers outside #[test] functions")]

use std::marker::PhantomPinned;

use bytes::{Buf, BytesMut};
use futures::{SinkExt, StreamExt};
use ibdev::Device;
use ibraw::{
    EtherDest, EtherType, Group, Ipv6Dest, Link, NextHeader, OnTruncate, RawError, RawEtherSocket,
    RawIpv6Socket,
};
use ibsoft::sim::Subnet;
use ibwire::Lid;
use tokio_util::codec::Decoder;

const CHAT: EtherType = EtherType::LOCAL_1;

/// Two ports, and the way to the second.
async fn subnet() -> (Subnet, Link, Link, EtherDest) {
    let net = Subnet::star(["ann", "bob"]).await.unwrap();
    let (ann, bob): (Link, Link) = (net.device("ann").into(), net.device("bob").into());
    let lid = Lid(u16::from_be_bytes(bob.address().as_bytes().try_into().unwrap()));
    (net, ann, bob, EtherDest::lid(lid, CHAT))
}

async fn pair() -> (Subnet, RawEtherSocket, RawEtherSocket, EtherDest) {
    let (net, ann, bob, to) = subnet().await;
    let a = RawEtherSocket::bind(&ann, [CHAT]).await.unwrap();
    (net, a, RawEtherSocket::bind(&bob, [CHAT]).await.unwrap(), to)
}

/// Whether a cut is an error is for the socket to say; the stream goes on after it.
#[tokio::test(start_paused = true)]
async fn raw_t24_a_cut_is_seen_or_said() {
    let (_net, ann, bob, to) = subnet().await;
    let a = RawEtherSocket::bind(&ann, [CHAT]).await.unwrap();
    let seen = RawEtherSocket::bind(&bob, [CHAT]).buffer(8).await.unwrap();
    let said = RawEtherSocket::bind(&bob, [CHAT]).buffer(8).on_truncate(OnTruncate::Error).await.unwrap();
    let mut stream = said.stream();
    for text in [&b"sixteen bytes are"[..16], b"sixteen bytes, 2"] {
        a.send_to(text, &to).await.unwrap();
    }
    a.send_to(b"eight is", &to).await.unwrap();
    let cut = seen.recv().await.unwrap();
    assert_eq!((&cut.data[..], cut.meta.truncated, cut.meta.wire_len), (&b"sixteen "[..], true, 16));
    let error = said.recv().await.unwrap_err();
    assert!(matches!(error, RawError::Truncated { wire: 16, buffer: 8 }) && error.is_transient(), "{error}");
    let error = stream.next().await.unwrap().unwrap_err();
    assert!(matches!(error, RawError::Truncated { wire: 16, buffer: 8 }), "{error}");
    let whole = stream.next().await.unwrap().unwrap();
    assert_eq!((&whole.data[..], whole.meta.truncated), (&b"eight is"[..], false));
    assert_eq!((said.stats().rx_truncated, said.stats().rx_packets), (2, 3));
}

/// As much as there is room for is written, be it all or less; of IPv6 a cut is seen and said as well.
#[tokio::test(start_paused = true)]
async fn raw_t24_a_buffer_of_the_caller_and_a_cut_of_ipv6() {
    let (net, ann, bob, to) = subnet().await;
    let a = RawEtherSocket::bind(&ann, [CHAT]).await.unwrap();
    let b = RawEtherSocket::bind(&bob, [CHAT]).await.unwrap();
    for room in [12, 8, 7, 0] {
        a.send_to(b"12345678", &to).await.unwrap();
        let mut buffer = [0xee; 12];
        let (len, meta) = b.recv_from(&mut buffer[..room]).await.unwrap();
        assert_eq!((len, meta.wire_len, meta.truncated), (room.min(8), 8, false));
        assert_eq!((&buffer[..len], &buffer[len..]), (&b"12345678"[..len], &[0xee; 12][len..]));
    }
    let next = NextHeader::EXPERIMENT_1;
    let a = RawIpv6Socket::bind(&ann, [next]).await.unwrap();
    let seen = RawIpv6Socket::bind(&bob, [next]).buffer(4).await.unwrap();
    let said = RawIpv6Socket::bind(&bob, [next]).buffer(4).on_truncate(OnTruncate::Error).await.unwrap();
    let gid = net.device("bob").gids(1).unwrap()[0].gid;
    a.send_to(b"12345", &Ipv6Dest { addr: gid.0.into(), next_header: next }).await.unwrap();
    let cut = seen.recv().await.unwrap();
    assert_eq!((&cut.data[..], cut.meta.truncated, cut.meta.wire_len), (&b"1234"[..], true, 5));
    assert!(matches!(said.recv().await, Err(RawError::Truncated { wire: 5, buffer: 4 })));
    assert_eq!((said.stats().rx_truncated, said.stats().rx_bytes), (1, 5));
}

/// What is cut may be dropped, however it would have been received.
#[tokio::test(start_paused = true)]
async fn raw_t24_a_cut_is_dropped() {
    let (_net, ann, bob, to) = subnet().await;
    let a = RawEtherSocket::bind(&ann, [CHAT]).await.unwrap();
    let b = RawEtherSocket::bind(&bob, [CHAT]).buffer(8).on_truncate(OnTruncate::Drop).await.unwrap();
    let (mut batch, mut stream) = (b.batch(), b.stream());
    for way in 0..4 {
        a.send_batch(&[(&[7; 12], &to), (b"eight is", &to)]).await.unwrap();
        let whole = match way {
            0 => b.recv().await.unwrap().data.to_vec(),
            1 => {
                let mut buffer = [0; 12];
                let (len, _) = b.recv_from(&mut buffer).await.unwrap();
                buffer[..len].to_vec()
            }
            2 => {
                assert_eq!(b.recv_batch(&mut batch).await.unwrap(), 1);
                batch.iter().next().unwrap().0.to_vec()
            }
            _ => stream.next().await.unwrap().unwrap().data.to_vec(),
        };
        assert_eq!(whole, b"eight is", "{way}");
    }
    assert_eq!((b.stats().rx_truncated, b.stats().rx_packets), (4, 8));
}

/// Each call that waits has one that does not.
#[tokio::test(start_paused = true)]
async fn who_does_not_wait_gets_what_is_there() {
    let (_net, a, b, to) = pair().await;
    let mut batch = b.batch();
    assert!(b.try_recv().unwrap().is_none());
    assert!(b.try_recv_from(&mut [0; 8]).unwrap().is_none());
    assert_eq!(b.try_recv_batch(&mut batch).unwrap(), 0);
    assert_eq!(a.try_send_to(b"12345678", &to).unwrap().unwrap().wire_len, 8);
    assert_eq!(a.try_send_batch(&[(b"87654321", &to), (&[0; 5000], &to)]).unwrap(), 1);
    assert_eq!(a.try_send_batch(&[]).unwrap(), 0);
    assert_eq!(a.try_send_batch(&[(b"11112222", &to), (b"33334444", &to)]).unwrap(), 2);
    let refused = a.try_send_to(&[0; 5000], &to);
    assert!(matches!(refused, Err(RawError::TooLarge { len: 5000, .. })), "{refused:?}");
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    assert_eq!(&b.try_recv().unwrap().unwrap().data[..], b"12345678");
    let mut buffer = [0; 4];
    let (len, meta) = b.try_recv_from(&mut buffer).unwrap().unwrap();
    assert_eq!((len, meta.wire_len, &buffer), (4, 8, b"8765"));
    assert_eq!(b.try_recv_batch(&mut batch).unwrap(), 2);
    assert!(b.try_recv().unwrap().is_none());
    b.close();
    assert!(matches!(b.try_recv(), Err(RawError::Closed)));
    assert!(matches!(b.try_send_to(b"12345678", &to), Err(RawError::Closed)));
}

/// A datagram that cannot be sent does not hide that those before it were.
#[tokio::test(start_paused = true)]
async fn a_batch_says_how_far_it_got() {
    let (_net, a, b, to) = pair().await;
    let long = [0; 5000];
    let batch: [(&[u8], &EtherDest); 3] = [(b"12345678", &to), (&long, &to), (b"87654321", &to)];
    assert_eq!(a.send_batch(&batch).await.unwrap(), 1);
    let error = a.send_batch(&batch[1..]).await.unwrap_err();
    assert!(matches!(error, RawError::TooLarge { len: 5000, .. }), "{error}");
    assert_eq!(a.send_batch(&batch[2..]).await.unwrap(), 1);
    let mut heard = b.stream();
    for text in [b"12345678", b"87654321"] {
        assert_eq!(&heard.next().await.unwrap().unwrap().data[..], text);
    }
}

#[tokio::test(start_paused = true)]
async fn a_closed_socket_says_so() {
    let (_net, a, b, to) = pair().await;
    let mut heard = b.stream();
    let waiting = tokio::spawn(async move { heard.next().await.is_none() });
    tokio::task::yield_now().await;
    b.close();
    assert!(waiting.await.unwrap(), "the stream ends");
    let mut later = b.stream();
    assert!(later.next().await.is_none() && later.next().await.is_none());
    let group = Group::link([0x33, 0x33, 0, 0, 0, 1]).unwrap();
    assert!(matches!(b.join(&group).await, Err(RawError::Closed)));
    assert!(matches!(b.recv().await, Err(RawError::Closed)));
    assert!(matches!(b.sink().send((b"12345678"[..].into(), to)).await, Err(RawError::Closed)));
    a.send_to(b"12345678", &to).await.unwrap();
}

/// What cannot be sent is an error once, and the next one goes out.
#[tokio::test(start_paused = true)]
async fn a_sink_goes_on_after_an_error() {
    let (_net, a, b, to) = pair().await;
    let mut sink = a.sink();
    let error = sink.send((vec![0; 5000].into(), to)).await.unwrap_err();
    assert!(matches!(error, RawError::TooLarge { .. }), "{error}");
    sink.send((b"12345678"[..].into(), to)).await.unwrap();
    assert_eq!(&b.recv().await.unwrap().data[..], b"12345678");
}

/// What a stream has received and nobody has taken from it is counted when it is dropped.
#[tokio::test(start_paused = true)]
async fn what_a_stream_leaves_is_counted() {
    let (_net, a, b, to) = pair().await;
    for _ in 0..5 {
        a.send_to(b"12345678", &to).await.unwrap();
    }
    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    let mut stream = b.stream();
    stream.next().await.unwrap().unwrap();
    assert_eq!((b.stats().rx_packets, b.stats().rx_unread), (5, 0));
    drop(stream);
    assert_eq!((b.stats().rx_packets, b.stats().rx_unread), (5, 4));
}

/// A length of one byte, and so many others. It may not be moved once it is pinned, which a codec never is.
#[derive(Default)]
struct Counted(PhantomPinned);

impl Decoder for Counted {
    type Item = BytesMut;
    type Error = std::io::Error;

    fn decode(&mut self, from: &mut BytesMut) -> Result<Option<BytesMut>, std::io::Error> {
        let Some(len) = from.first().map(|len| usize::from(*len)).filter(|len| *len < from.len()) else {
            return Ok(None);
        };
        from.advance(1);
        Ok(Some(from.split_to(len)))
    }
}

/// A codec that makes nothing of a datagram does not wait for the rest of it in the next one.
#[tokio::test(start_paused = true)]
async fn what_a_codec_makes_nothing_of_is_counted() {
    let (_net, a, b, to) = pair().await;
    let mut framed = b.framed(Counted::default());
    a.send_to(&[9, 1, 2, 3, 4, 5, 6, 7], &to).await.unwrap(); // two bytes are missing
    a.send_to(&[2, 1, 2, 4, 3, 4, 5, 6], &to).await.unwrap(); // two in one
    for expected in [&[1, 2][..], &[3, 4, 5, 6]] {
        assert_eq!(framed.next().await.unwrap().unwrap().0[..], *expected);
    }
    assert_eq!(b.stats().rx_undecoded, 1);
}
