//! Sockets on a subnet whose SA answers nothing for a while, or has forgotten what it knew: what they say, and that they go on.
#![cfg(feature = "soft")]

use std::error::Error;
use std::net::Ipv6Addr;
use std::time::Duration;

use futures::future::join_all;
use futures::{SinkExt, StreamExt};
use ibdev::Device;
use ibraw::protocol::Protocol;
use ibraw::{
    EtherDest, EtherType, Group, Ipv6Dest, Link, Membership, NextHeader, RawError, RawEtherSocket,
    RawIpv6Socket, RawSocket,
};
use ibsoft::sim::Subnet;
use tokio::time::timeout;

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

const CHAT: EtherType = EtherType::LOCAL_1;
const NEXT: NextHeader = NextHeader::EXPERIMENT_1;
const ROOM: [u8; 6] = [0x33, 0x33, 0, 0, 0x88, 0xb5];

/// Groups of IPv6 that are one in the subnet: the low 80 bits are the same.
const TWINS: [&str; 2] = ["ff02::1:4321", "ff05::1:4321"];

/// Longer than any of these needs in virtual time.
const LIMIT: Duration = Duration::from_secs(3600);

/// Longer than a packet is under way.
const MOMENT: Duration = Duration::from_millis(100);

/// Longer than a request to an SA is repeated.
const PATIENCE: Duration = Duration::from_secs(100);

async fn two_switches() -> Result<Subnet> {
    let net = Subnet::builder().hca("ann").hca("bob").switch("left").switch("right");
    Ok(net.link("ann", "left").link("bob", "right").link("left", "right").managed().await?)
}

fn link(net: &Subnet, name: &str) -> Link {
    net.device(name).into()
}

/// Sends until the other has heard it.
async fn heard<P: Protocol>(from: &RawSocket<P>, dest: &P::Dest, to: &RawSocket<P>, text: &[u8]) -> Result {
    loop {
        match from.send_to(text, dest).await {
            Err(error) if !error.is_transient() => return Err(error.into()),
            _ => {}
        }
        if let Ok(Ok(datagram)) = timeout(MOMENT, to.recv()).await
            && datagram.data.starts_with(text)
        {
            return Ok(());
        }
    }
}

/// Joins as soon as the SA lets it.
async fn joined<P: Protocol>(socket: &RawSocket<P>, group: &Group) -> Result<Membership<P>> {
    loop {
        match socket.join(group).await {
            Err(error) if error.is_transient() => {}
            held => return Ok(held?),
        }
    }
}

/// What the next error is of a socket that may hear something as well.
async fn told<P: Protocol>(socket: &RawSocket<P>) -> RawError {
    loop {
        if let Err(error) = socket.recv().await {
            return error;
        }
    }
}

fn passes<T: std::fmt::Debug>(result: std::result::Result<T, RawError>) {
    match result {
        Err(error @ RawError::SaUnavailable { .. }) if error.is_transient() => {}
        other => panic!("{other:?}"),
    }
}

/// Whatever is asked of an SA that is silent or busy, or that there is not: that passes, and the socket goes on.
#[tokio::test(start_paused = true)]
async fn raw_t18_an_sa_that_does_not_answer_is_no_end() -> Result {
    timeout(LIMIT, async {
        let net = two_switches().await?;
        let frames = RawEtherSocket::bind(&link(&net, "ann"), [CHAT]).await?;
        let packets = RawIpv6Socket::bind(&link(&net, "ann"), [NEXT]).await?;
        let (b, b6) = (
            RawEtherSocket::bind(&link(&net, "bob"), [CHAT]).await?,
            RawIpv6Socket::bind(&link(&net, "bob"), [NEXT]).await?,
        );
        let group = Group::link(ROOM)?;
        let gid = net.device("bob").gids(1)?[0].gid;
        let to_bob = Ipv6Dest { addr: Ipv6Addr::from(gid.0), next_header: NEXT };
        let outages: [&dyn Fn(); 3] = [&|| net.sa().silent(), &|| net.sa().busy(), &|| net.sm("left").kill()];
        for outage in outages {
            outage();
            passes(frames.join(&group).await);
            passes(frames.send_to(b"12345678", &group.dest(CHAT)).await);
            passes(packets.send_to(b"hello", &to_bob).await);
            passes(packets.send_batch(&[(b"hello", &to_bob)]).await);
            net.sa().normal();
        }
        net.sm("left").start(0);
        let _held = joined(&b, &group).await?;
        heard(&frames, &group.dest(CHAT), &b, b"to all").await?;
        heard(&packets, &to_bob, &b6, b"to bob").await
    })
    .await?
}

/// Two groups of a link that are one in the subnet are lost together, and each is said to be. Who joins another of them meanwhile
/// waits as the first did, and hears in the end what is wrong.
#[tokio::test(start_paused = true)]
async fn raw_t18_each_group_that_is_lost_is_told_and_none_is_joined_meanwhile() -> Result {
    timeout(LIMIT, async {
        let net = two_switches().await?;
        let a = RawIpv6Socket::bind(&link(&net, "ann"), [NEXT]).await?;
        let b = RawIpv6Socket::bind(&link(&net, "bob"), [NEXT]).await?;
        let [one, other, third] = [TWINS[0], TWINS[1], "ff08::1:4321"].map(Group::ipv6);
        let (one, other, third) = (one?, other?, third?);
        let _held = (b.join(&one).await?, b.join(&other).await?);
        heard(&a, &other.ipv6_dest(NEXT).ok_or("a group")?, &b, b"before").await?;
        net.sa().silent();
        net.sm("left").restart();
        let mut lost = Vec::new();
        // Each of those who wait is told of one.
        for error in join_all([told(&b), told(&b)]).await {
            match error {
                RawError::GroupLost { group, source }
                    if matches!(&*source, RawError::SaUnavailable { .. }) =>
                {
                    lost.push(group);
                }
                error => return Err(error.into()),
            }
        }
        lost.sort_unstable_by_key(|group| *group != one);
        assert_eq!(lost, [one, other]);
        passes(b.join(&third).await);
        assert!(matches!(b.leave(&third), Err(RawError::NotMember(_))));
        net.sa().normal();
        let _third = joined(&b, &third).await?;
        for group in [one, other, third] {
            heard(&a, &group.ipv6_dest(NEXT).ok_or("a group")?, &b, b"after").await?;
        }
        Ok(())
    })
    .await?
}

/// As long as it is not known which LID a group has by now nothing is sent to the one that it had: others may have that.
#[tokio::test(start_paused = true)]
async fn raw_t18_nothing_is_sent_to_the_lid_that_a_lost_group_had() -> Result {
    timeout(LIMIT, async {
        let net = two_switches().await?;
        let sender = RawEtherSocket::bind(&link(&net, "ann"), [CHAT]).await?;
        let member = RawEtherSocket::bind(&link(&net, "ann"), [CHAT]).await?;
        let b = RawEtherSocket::bind(&link(&net, "bob"), [CHAT]).await?;
        let (group, dest) = (Group::link(ROOM)?, Group::link(ROOM)?.dest(CHAT));
        let _held = (b.join(&group).await?, member.join(&group).await?);
        for socket in [&sender, &member] {
            heard(socket, &dest, &b, b"before..").await?;
        }
        net.sa().silent();
        net.sm("left").restart();
        tokio::time::sleep(PATIENCE).await;
        for socket in [&sender, &member] {
            passes(socket.send_to(b"too soon", &dest).await);
        }
        net.sa().normal();
        for socket in [&sender, &member] {
            heard(socket, &dest, &b, b"after...").await?;
        }
        Ok(())
    })
    .await?
}

/// What a sink could not send for want of a way is said, and what is behind it goes out, also what came while it was tried.
#[tokio::test(start_paused = true)]
async fn a_sink_goes_on_behind_what_has_no_way() -> Result {
    timeout(LIMIT, async {
        let net = two_switches().await?;
        let a = RawEtherSocket::bind(&link(&net, "ann"), [CHAT]).await?;
        let b = RawEtherSocket::bind(&link(&net, "bob"), [CHAT]).await?;
        let (to_group, to_bob) =
            (Group::link(ROOM)?.dest(CHAT), EtherDest::lid(net.device("bob").port(1)?.lid, CHAT));
        net.sa().silent();
        let mut sink = a.sink();
        sink.feed((b"no way.."[..].into(), to_group)).await?;
        sink.feed((b"behind.."[..].into(), to_bob)).await?;
        assert!(timeout(MOMENT, sink.flush()).await.is_err(), "it is tried");
        sink.feed((b"later..."[..].into(), to_bob)).await?;
        passes(sink.flush().await);
        sink.flush().await?;
        for text in [b"behind..", b"later..."] {
            assert_eq!(&b.recv().await?.data[..], text);
        }
        assert!(timeout(MOMENT, b.recv()).await.is_err());
        Ok(())
    })
    .await?
}

/// Where the device goes that is what is said, and not that its groups are lost.
#[tokio::test(start_paused = true)]
async fn raw_t21_a_device_goes_with_its_groups() -> Result {
    timeout(LIMIT, async {
        let net = two_switches().await?;
        let b = RawEtherSocket::bind(&link(&net, "bob"), [CHAT]).await?;
        let _held = b.join(&Group::link(ROOM)?).await?;
        let hears = tokio::spawn(b.stream().collect::<Vec<_>>());
        tokio::time::sleep(MOMENT).await;
        net.remove("bob");
        let heard = hears.await?;
        assert!(matches!(&heard[..], [Err(RawError::LinkGone)]), "{heard:?}");
        tokio::time::sleep(PATIENCE).await; // its tasks have ended
        Ok(())
    })
    .await?
}

/// What the process has of an SA lives as long as the subnet, whoever asked first: a runtime that ends takes nothing from others.
#[test]
fn raw_t18_what_another_runtime_has_begun_goes_on_without_it() -> Result {
    use tokio::runtime::{Builder, Runtime};
    let runtime = || Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let within = Duration::from_secs(60);
    let (of_net, first, second): (Runtime, Runtime, Runtime) = (runtime()?, runtime()?, runtime()?);
    let net = of_net.block_on(two_switches())?;
    let group = Group::link(ROOM)?;
    let (a, b, held) = first.block_on(async {
        let a = RawEtherSocket::bind(&link(&net, "ann"), [CHAT]).await?;
        let b = RawEtherSocket::bind(&link(&net, "bob"), [CHAT]).await?;
        let held = timeout(within, b.join(&group)).await??;
        timeout(within, heard(&a, &group.dest(CHAT), &b, b"before..")).await??;
        Ok::<_, Box<dyn Error>>((a, b, held))
    })?;
    drop(first);
    second.block_on(async {
        // What was joined stays so, and is joined again after a change of the SM.
        net.sm("left").restart();
        let c = RawEtherSocket::bind(&link(&net, "ann"), [CHAT]).await?;
        let other = Group::link([0x33, 0x33, 0, 0, 0, 7])?;
        let also = timeout(within, c.join(&other)).await??;
        timeout(within, heard(&c, &group.dest(CHAT), &b, b"after...")).await??;
        timeout(within, heard(&a, &group.dest(CHAT), &b, b"as well.")).await??;
        also.leave()?;
        held.leave()?;
        Ok(())
    })
}
