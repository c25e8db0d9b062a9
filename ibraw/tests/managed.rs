//! Sockets on a subnet with an SA: groups are joined there, and the SM lays the trees that carry them.
#![cfg(feature = "soft")]

use std::error::Error;
use std::net::Ipv6Addr;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use ibdev::Device;
use ibraw::protocol::Protocol;
use ibraw::{
    EtherDest, EtherType, Group, Ipv6Dest, Link, NextHeader, RawError, RawEtherSocket, RawIpv6Socket,
    RawSocket,
};
use ibsoft::sim::Subnet;
use tokio::time::timeout;

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

const CHAT: EtherType = EtherType::LOCAL_1;
const ROOM: [u8; 6] = [0x33, 0x33, 0, 0, 0x88, 0xb5];

/// Longer than any of these needs in virtual time.
const LIMIT: Duration = Duration::from_secs(60);

/// Longer than a packet is under way.
const MOMENT: Duration = Duration::from_millis(100);

async fn two_switches() -> Result<Subnet> {
    let net = Subnet::builder().hca("ann").hca("bob").hca("cy").switch("left").switch("right");
    let net = net.link("ann", "left").link("bob", "right").link("cy", "right").link("left", "right");
    Ok(net.managed().await?)
}

fn link(net: &Subnet, name: &str) -> Link {
    net.device(name).into()
}

/// Sends until the other has heard it: the switches may learn the way a moment after the SA has answered.
async fn heard<P: Protocol>(from: &RawSocket<P>, dest: &P::Dest, to: &RawSocket<P>, text: &[u8]) -> Result {
    loop {
        from.send_to(text, dest).await?;
        if let Ok(datagram) = timeout(MOMENT, to.recv()).await
            && datagram?.data.starts_with(text)
        {
            return Ok(());
        }
    }
}

async fn is_silent<P: Protocol>(socket: &RawSocket<P>) -> bool {
    timeout(MOMENT, socket.recv()).await.is_err()
}

#[tokio::test(start_paused = true)]
async fn sockets_at_two_switches_hear_each_other_by_the_trees_of_the_sm() -> Result {
    timeout(LIMIT, async {
        let net = two_switches().await?;
        let (ann, bob) = (link(&net, "ann"), link(&net, "bob"));
        let (a, b) = (RawEtherSocket::bind(&ann, [CHAT]).await?, RawEtherSocket::bind(&bob, [CHAT]).await?);
        let group = Group::link(ROOM)?;
        let dest = group.dest(CHAT);
        a.send_to(b"nobody", &dest).await?; // is there to hear it
        let held = b.join(&group).await?;
        // Who sends need not be in it.
        heard(&a, &dest, &b, b"to all").await?;
        let also = a.join(&group).await?;
        heard(&b, &dest, &a, b"back").await?;
        assert!(is_silent(&b).await, "it hears itself");
        // A sink and a stream are the same way.
        let (mut say, mut hear) = (a.sink(), b.stream());
        say.send((b"said"[..].into(), dest)).await?;
        assert!(hear.next().await.ok_or("over")??.data.starts_with(b"said"));
        held.leave()?;
        tokio::time::sleep(Duration::from_secs(6)).await; // the SA is told in the background
        a.send_to(b"gone", &dest).await?;
        assert!(is_silent(&b).await);
        also.leave()?;
        Ok(())
    })
    .await?
}

/// Sockets of a port are one member for the SA: the one that stays hears on when another leaves, by whatever link it was bound.
#[tokio::test(start_paused = true)]
async fn sockets_of_a_port_are_one_member() -> Result {
    timeout(LIMIT, async {
        let net = two_switches().await?;
        let group = Group::link(ROOM)?;
        let a = RawEtherSocket::bind(&link(&net, "ann"), [CHAT]).await?;
        let mut members = Vec::new();
        for _ in 0..2 {
            let socket = RawEtherSocket::bind(&link(&net, "bob"), [CHAT]).await?;
            members.push((socket.join(&group).await?, socket));
        }
        for (_, member) in &members {
            heard(&a, &group.dest(CHAT), member, b"both").await?;
        }
        let (held, left) = members.remove(0);
        held.leave()?;
        drop(left);
        tokio::time::sleep(Duration::from_secs(6)).await;
        heard(&a, &group.dest(CHAT), &members[0].1, b"one").await
    })
    .await?
}

#[tokio::test(start_paused = true)]
async fn ipv6_by_the_trees_of_the_sm() -> Result {
    timeout(LIMIT, async {
        let net = two_switches().await?;
        let (ann, bob) = (link(&net, "ann"), link(&net, "bob"));
        let next = NextHeader::EXPERIMENT_1;
        let (a, b) = (RawIpv6Socket::bind(&ann, [next]).await?, RawIpv6Socket::bind(&bob, [next]).await?);
        let group = Group::ipv6("ff15::7")?;
        let _held = b.join(&group).await?;
        heard(&a, &group.ipv6_dest(next).ok_or("a group")?, &b, b"to all").await?;
        let gid = net.device("ann").gids(1)?[0].gid;
        b.send_to(b"back", &Ipv6Dest { addr: Ipv6Addr::from(gid.0), next_header: next }).await?;
        let back = a.recv().await?;
        assert_eq!(&back.data[..], b"back");
        let subnet = back.meta.subnet.ok_or("of a subnet")?;
        assert_eq!((subnet.slid, subnet.path_bits), (net.device("bob").port(1)?.lid, Some(0)));
        Ok(())
    })
    .await?
}

/// The way to one port is the SA's to tell, as for who is connected: by a path for raw packets, asked for once.
#[tokio::test(start_paused = true)]
async fn unicast_ipv6_goes_by_a_path_of_the_sa() -> Result {
    timeout(LIMIT, async {
        let net = two_switches().await?;
        let next = NextHeader::EXPERIMENT_1;
        let patience = Duration::from_millis(200);
        let a = RawIpv6Socket::bind(&link(&net, "ann"), [next]).send_timeout(patience).await?;
        let (b, c) = (
            RawIpv6Socket::bind(&link(&net, "bob"), [next]).await?,
            RawIpv6Socket::bind(&link(&net, "cy"), [next]).await?,
        );
        let to = |name: &str| -> Result<_> {
            let gid = net.device(name).gids(1)?[0].gid;
            Ok(Ipv6Dest { addr: Ipv6Addr::from(gid.0), next_header: next })
        };
        let asked = || net.sm("left").counters().into_iter().find(|(name, _)| *name == "requests");
        a.send_to(b"first", &to("bob")?).await?;
        assert_eq!(&b.recv().await?.data[..], b"first");
        let before = asked();
        let batch: [(&[u8], &Ipv6Dest); 2] = [(b"second", &to("bob")?), (b"third", &to("cy")?)];
        assert_eq!(a.send_batch(&batch).await?, 2);
        assert_eq!((&b.recv().await?.data[..], &c.recv().await?.data[..]), (&b"second"[..], &b"third"[..]));
        assert_eq!(asked().map(|(_, n)| n), before.map(|(_, n)| n + 1), "of one path alone");
        let nobody = Ipv6Dest { addr: "fe80::dead".parse()?, next_header: next };
        let refused = a.send_to(b"x", &nobody).await;
        assert!(matches!(refused, Err(RawError::InvalidDest(_))), "{refused:?}");
        // What is known goes on while nobody answers; what is not waits.
        net.sa().silent();
        a.send_to(b"fourth", &to("bob")?).await?;
        assert_eq!(&b.recv().await?.data[..], b"fourth");
        let refused = a.send_to(b"x", &to("ann")?).await;
        assert!(matches!(refused, Err(RawError::SaUnavailable { .. })), "{refused:?}");
        net.sa().normal();
        Ok(())
    })
    .await?
}

/// A new SM knows no groups: the one that is made again has the LID that another had before. Who has joined it is heard at the
/// new one, and who sends goes there.
#[tokio::test(start_paused = true)]
async fn raw_t18_a_group_has_another_lid_after_a_restart_of_the_sm() -> Result {
    timeout(LIMIT, async {
        let net = two_switches().await?;
        let [ann, bob, cy] = ["ann", "bob", "cy"].map(|name| link(&net, name));
        let (group, other) = (Group::link(ROOM)?, Group::link([0x33, 0x33, 0, 0, 0, 7])?);
        let first = RawEtherSocket::bind(&cy, [CHAT]).await?;
        let held = first.join(&other).await?;
        let (a, b, beside) = (
            RawEtherSocket::bind(&ann, [CHAT]).await?,
            RawEtherSocket::bind(&bob, [CHAT]).await?,
            RawEtherSocket::bind(&bob, [CHAT]).await?,
        );
        let _held = (b.join(&group).await?, beside.join(&group).await?);
        // The LID that a group's packets have.
        let lid = async |socket: &RawEtherSocket| -> Result<_> {
            loop {
                a.send_to(b"to all", &group.dest(CHAT)).await?;
                match timeout(MOMENT, socket.recv()).await {
                    Ok(Ok(frame)) => break Ok(frame.meta.dst),
                    Ok(Err(error)) if !error.is_transient() => break Err(error.into()),
                    _ => {}
                }
            }
        };
        let before = lid(&b).await?;
        assert_eq!(before, lid(&beside).await?);
        held.leave()?;
        drop(first);
        net.sm("left").restart();
        for socket in [&b, &beside] {
            while lid(socket).await? == before {}
        }
        for socket in [&b, &beside] {
            while !is_silent(socket).await {}
        }
        // Each frame once.
        a.send_to(b"last one", &group.dest(CHAT)).await?;
        for socket in [&b, &beside] {
            assert_eq!(&socket.recv().await?.data[..], b"last one");
            assert!(is_silent(socket).await);
        }
        Ok(())
    })
    .await?
}

/// However many groups a socket sends to in turn, each is joined once.
#[tokio::test(start_paused = true)]
async fn groups_that_are_sent_to_in_turn_are_joined_once() -> Result {
    timeout(LIMIT, async {
        let net = two_switches().await?;
        let a = RawEtherSocket::bind(&link(&net, "ann"), [CHAT]).await?;
        let groups: std::result::Result<Vec<_>, _> =
            (0..100).map(|n| Group::link([0x33, 0x33, 0, 0, 1, n])).collect();
        let dests: Vec<_> = groups?.iter().map(|group| group.dest(CHAT)).collect();
        let asked = || net.sm("left").counters().into_iter().find(|(name, _)| *name == "requests");
        for dest in &dests {
            a.send_to(b"12345678", dest).await?;
        }
        let before = asked();
        for dest in dests.iter().chain(&dests) {
            a.send_to(b"12345678", dest).await?;
        }
        assert_eq!(asked(), before);
        Ok(())
    })
    .await?
}

/// A port that is down says so once to who receives, and each time to who sends; afterwards all goes on, groups included.
#[tokio::test(start_paused = true)]
async fn raw_t20_a_port_goes_down_and_comes_back() -> Result {
    timeout(LIMIT, async {
        let net = two_switches().await?;
        let (ann, bob) = (link(&net, "ann"), link(&net, "bob"));
        let (a, b) = (RawEtherSocket::bind(&ann, [CHAT]).await?, RawEtherSocket::bind(&bob, [CHAT]).await?);
        let group = Group::link(ROOM)?;
        let _held = b.join(&group).await?;
        heard(&a, &group.dest(CHAT), &b, b"before").await?;
        let waiting = tokio::spawn({
            let b = b.clone();
            async move {
                let mut stream = b.stream();
                (stream.next().await, stream.next().await)
            }
        });
        tokio::time::sleep(MOMENT).await;
        net.link_down("bob");
        tokio::time::sleep(MOMENT).await;
        for _ in 0..2 {
            let refused = b.send_to(b"x", &EtherDest::lid(ibwire::Lid(1), CHAT)).await;
            assert!(matches!(refused, Err(RawError::LinkDown)), "{refused:?}");
        }
        net.link_up("bob");
        let (first, second) = loop {
            _ = a.send_to(b"after", &group.dest(CHAT)).await; // as long as the tree is without him it goes nowhere
            tokio::time::sleep(MOMENT).await;
            if waiting.is_finished() {
                break waiting.await?;
            }
        };
        assert!(matches!(first, Some(Err(RawError::LinkDown))), "{first:?}");
        assert!(second.ok_or("over")??.data.starts_with(b"after"));
        assert_eq!(b.stats().link_down_events, 1);
        // Twice while nobody asks.
        net.link_down("bob");
        net.link_up("bob");
        while net.device("bob").port(1)?.state != ibdev::PortState::Active {
            tokio::time::sleep(MOMENT).await;
        }
        net.link_down("bob");
        for _ in 0..2 {
            let told = loop {
                match b.recv().await {
                    Ok(_) => {}
                    Err(error) => break error,
                }
            };
            assert!(matches!(told, RawError::LinkDown), "{told:?}");
        }
        assert_eq!(b.stats().link_down_events, 3);
        Ok(())
    })
    .await?
}
