//! Datagram sockets in groups of a subnet with an SA.

mod common;

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use common::Result;
use common::odd::Odd;
use ibcm::sa::{Group, McMemberRecord, Template};
use ibcm::sim::Subnet;
use ibcm::{Error, Gid, Hca, Lid, QKey, QueryError, ud};
use tokio::time::{sleep, timeout};

/// Longer than any of these needs in virtual time.
const LIMIT: Duration = Duration::from_secs(60);

async fn two_switches() -> Result<Subnet> {
    let net = Subnet::builder().hca("a").hca("b").hca("c").switch("left").switch("right");
    Ok(net.link("a", "left").link("b", "right").link("c", "right").link("left", "right").managed().await?)
}

async fn open(net: &Subnet, name: &str) -> Result<Hca> {
    Ok(Hca::open(net.device(name)).await?)
}

/// Groups that the SA has.
async fn groups(hca: &Hca) -> Result<Vec<Gid>> {
    let table = hca.sa().table(Template::<McMemberRecord>::new()).await?;
    Ok(table.iter().map(|record| record.mgid).collect())
}

/// Sends until the other has heard it: the switches may learn the way a moment after the SA has answered.
async fn heard(from: &ud::Socket, to: &ud::Socket, mgid: Gid, text: &[u8]) -> Result {
    let group = from.group(mgid)?;
    loop {
        from.send_copy(&group, text).await?;
        if let Ok(datagram) = timeout(Duration::from_millis(100), to.recv()).await
            && datagram?[..] == *text
        {
            return Ok(());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn sockets_at_two_switches_are_in_a_group_of_the_sa() -> Result {
    timeout(LIMIT, async {
        let net = two_switches().await?;
        let (a, b, c) = (open(&net, "a").await?, open(&net, "b").await?, open(&net, "c").await?);
        let before = groups(&c).await?;
        let (here, there) = (ud::Socket::open(&a).await?, ud::Socket::open(&b).await?);
        let mgid: Gid = "ff15::7".parse()?;
        assert!(matches!(here.group(mgid), Err(Error::Query(_))), "only the SA knows where it is");
        let (group, same) = tokio::try_join!(here.join(mgid), here.join(mgid))?;
        assert!(group.lid().is_multicast() && group == same && group == here.group(mgid)?);
        assert_eq!((group.gid(), group.qkey()), (Some(mgid), ud::DEFAULT_QKEY));
        assert_eq!(there.join(mgid).await?.lid(), group.lid());
        heard(&here, &there, mgid, b"to all").await?;
        heard(&there, &here, mgid, b"back").await?;
        assert_eq!(groups(&c).await?.len(), before.len() + 1);
        // Who leaves hears nothing more, and the other is still in it.
        there.leave(mgid).await?;
        there.leave(mgid).await?;
        assert!(there.group(mgid).is_err());
        heard(&here, &here, mgid, b"alone").await?;
        there.join(mgid).await?;
        heard(&here, &there, mgid, b"again").await?;
        while let Ok(datagram) = timeout(Duration::from_millis(100), there.recv()).await {
            assert!(matches!(&datagram?[..], b"to all" | b"again"), "what was sent to `back` and `alone`");
        }
        // A socket that is dropped leaves, too.
        there.leave(mgid).await?;
        drop(here);
        while groups(&c).await? != before {
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    })
    .await?
}

#[tokio::test(start_paused = true)]
async fn a_group_with_other_keys_is_refused() -> Result {
    timeout(LIMIT, async {
        let net = two_switches().await?;
        let (a, b) = (open(&net, "a").await?, open(&net, "b").await?);
        let mgid: Gid = "ff15::7".parse()?;
        let before = groups(&a).await?;
        let held = b.sa().join(mgid).or_create(Group::new(QKey(7))).await?;
        let socket = ud::Socket::open(&a).await?;
        let refused = socket.join(mgid).await.expect_err("another Q_Key");
        assert!(
            matches!(&refused, Error::Invalid(invalid) if invalid.field == "the group's Q_Key"),
            "{refused}"
        );
        let fitting = ud::Socket::open(&a).qkey(QKey(7)).await?;
        assert_eq!(fitting.join(mgid).await?.lid(), held.mlid());
        fitting.leave(mgid).await?;
        held.leave().await?;
        assert_eq!(groups(&a).await?, before);
        Ok(())
    })
    .await?
}

/// A call that is dropped anywhere leaves nothing that the next one would stumble over.
#[tokio::test(start_paused = true)]
async fn joining_and_leaving_may_be_dropped_anywhere() -> Result {
    timeout(LIMIT, async {
        let net = two_switches().await?;
        let (a, b) = (open(&net, "a").await?, open(&net, "b").await?);
        let (socket, other) = (ud::Socket::open(&a).await?, ud::Socket::open(&b).await?);
        let mgid: Gid = "ff15::8".parse()?;
        let before = groups(&b).await?;
        other.join(mgid).await?;
        for polls in 0..12 {
            common::drop_after(polls, socket.join(mgid)).await;
            socket.join(mgid).await?;
            common::drop_after(polls, socket.leave(mgid)).await;
            assert_ne!(socket.join(mgid).await?.lid(), Lid::NONE);
            heard(&other, &socket, mgid, &[polls as u8]).await?;
            socket.leave(mgid).await?;
        }
        other.leave(mgid).await?;
        while groups(&b).await? != before {
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    })
    .await?
}

/// A new SM knows no groups; the one that is made again has the LID that another had before.
#[tokio::test(start_paused = true)]
async fn sa_t57_sockets_join_again_at_a_new_sm_and_hear_at_the_new_lid() -> Result {
    timeout(LIMIT, async {
        let net = two_switches().await?;
        let (a, b, c) = (open(&net, "a").await?, open(&net, "b").await?, open(&net, "c").await?);
        let (here, there, beside) =
            (ud::Socket::open(&a).await?, ud::Socket::open(&b).await?, ud::Socket::open(&b).await?);
        let mgid: Gid = "ff15::7".parse()?;
        let first = c.sa().join("ff15::1".parse()?).or_create(Group::new(QKey(7))).await?;
        let before = here.join(mgid).await?.lid();
        for socket in [&there, &beside] {
            socket.join(mgid).await?;
            heard(&here, socket, mgid, b"before").await?;
        }
        first.leave().await?;
        net.sm("left").restart();
        let lid = |socket: &ud::Socket| socket.group(mgid).map(|group| group.lid());
        while [&here, &there, &beside].into_iter().any(|socket| lid(socket).ok() == Some(before)) {
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!((lid(&here)?, lid(&beside)?), (lid(&there)?, lid(&there)?));
        for socket in [&there, &beside] {
            heard(&here, socket, mgid, b"again").await?;
        }
        heard(&there, &here, mgid, b"back").await?;
        Ok(())
    })
    .await?
}

/// A new SM has another LID for the group: what the device then refuses does not keep the socket at the old one.
#[tokio::test(start_paused = true)]
async fn sa_t57_a_group_that_moves_is_not_heard_where_it_was() -> Result {
    timeout(LIMIT, async {
        let mgid: Gid = "ff15::7".parse()?;
        // Once: the device has had no room for both. Always: it has none at all.
        for refused in [1, 2] {
            let net = two_switches().await?;
            let odd = Odd::new(net.device("a"), |_| {});
            let (a, b, c) =
                (Hca::open(odd.as_device()).await?, open(&net, "b").await?, open(&net, "c").await?);
            let (here, there) = (ud::Socket::open(&a).await?, ud::Socket::open(&b).await?);
            let first = c.sa().join("ff15::1".parse()?).or_create(Group::new(QKey(7))).await?;
            let before = here.join(mgid).await?.lid();
            there.join(mgid).await?;
            assert_eq!(odd.attached(), [(mgid, before)]);
            first.leave().await?;
            odd.refuse_groups(refused);
            net.sm("left").restart();
            let lid = |socket: &ud::Socket| socket.group(mgid).map(|group| group.lid());
            while odd.attached() == [(mgid, before)] || lid(&here).ok() != lid(&there).ok() {
                sleep(Duration::from_millis(10)).await;
            }
            sleep(Duration::from_millis(100)).await;
            let unheard = a.stats().get("groups_unheard");
            if refused == 1 {
                assert_eq!((odd.attached(), unheard), (vec![(mgid, lid(&here)?)], Some(0)));
                heard(&there, &here, mgid, b"again").await?;
            } else {
                assert_eq!((odd.attached(), unheard), (vec![], Some(1)));
            }
            here.leave(mgid).await?;
        }
        Ok(())
    })
    .await?
}

/// The last handle of an HCA goes with its socket, or with a membership: the SA hears of it.
#[tokio::test(start_paused = true)]
async fn sa_t75_what_is_dropped_with_its_hca_leaves_its_groups() -> Result {
    timeout(LIMIT, async {
        let mgid: Gid = "ff15::7".parse()?;
        let net = two_switches().await?;
        let b = open(&net, "b").await?;
        let before = groups(&b).await?;
        for step in 0..4 {
            let a = open(&net, "a").await?;
            let socket = ud::Socket::open(&a).await?;
            socket.join(mgid).await?;
            assert_eq!(groups(&b).await?.len(), before.len() + 1);
            match step {
                0 => drop((socket, a)),
                1 => drop((a, socket)),
                2 => {
                    drop(socket);
                    a.close().await;
                    assert_eq!(groups(&b).await?, before, "done when it is closed");
                }
                _ => {
                    let held = a.sa().join("ff15::8".parse()?).or_create(Group::new(QKey(7))).await?;
                    a.close().await;
                    assert_eq!(groups(&b).await?, before, "whoever holds something");
                    drop(held);
                }
            }
            let left = async {
                while groups(&b).await? != before {
                    sleep(Duration::from_millis(10)).await;
                }
                Result::Ok(())
            };
            timeout(Duration::from_secs(1), left).await??;
        }
        Ok(())
    })
    .await?
}

/// Who opens the HCA again at once can join again, although the SA takes its time to hear that the one before leaves.
#[tokio::test(start_paused = true)]
async fn sa_t75_an_hca_that_is_opened_again_joins_again() -> Result {
    timeout(LIMIT, async {
        let net = two_switches().await?;
        for _ in 0..3 {
            let a = open(&net, "a").await?;
            net.sa().normal();
            let socket = ud::Socket::open(&a).await?;
            socket.join("ff15::7".parse()?).await?;
            net.sa().slow(Duration::from_millis(100));
        }
        Ok(())
    })
    .await?
}

/// An HCA whose SA is silent closes all the same.
#[tokio::test(start_paused = true)]
async fn sa_t75_an_hca_of_a_silent_sa_closes() -> Result {
    timeout(LIMIT, async {
        let net = two_switches().await?;
        let a = open(&net, "a").await?;
        let socket = ud::Socket::open(&a).await?;
        socket.join("ff15::7".parse()?).await?;
        net.sa().silent();
        let started = tokio::time::Instant::now();
        a.close().await;
        assert!(started.elapsed() <= Duration::from_millis(5_100), "{:?}", started.elapsed());
        Ok(())
    })
    .await?
}

/// Who opens the HCA again waits until the one before has given up to tell a silent SA, so that the SA can be asked then.
#[tokio::test(start_paused = true)]
async fn sa_t75_an_hca_that_is_opened_again_waits_for_a_silent_sa() -> Result {
    timeout(LIMIT, async {
        let net = two_switches().await?;
        let a = open(&net, "a").await?;
        let socket = ud::Socket::open(&a).await?;
        socket.join("ff15::7".parse()?).await?;
        net.sa().silent();
        drop((socket, a));
        let started = tokio::time::Instant::now();
        let a = open(&net, "a").await?;
        assert!(started.elapsed() <= Duration::from_millis(5_200), "{:?}", started.elapsed());
        net.sa().normal();
        ud::Socket::open(&a).await?.join("ff15::7".parse()?).await?;
        Ok(())
    })
    .await?
}

/// When a program ends the HCA's client of the SA, its sockets are in no group any more, and none says that it is.
#[tokio::test(start_paused = true)]
async fn sa_t75_a_socket_whose_sa_client_is_over_is_in_no_group() -> Result {
    timeout(LIMIT, async {
        let net = two_switches().await?;
        let odd = Odd::new(net.device("a"), |_| {});
        let (a, mgid) = (Hca::open(odd.as_device()).await?, "ff15::7".parse()?);
        let socket = ud::Socket::open(&a).await?;
        let group = socket.join(mgid).await?;
        assert_eq!(odd.attached(), [(mgid, group.lid())]);
        a.sa().shutdown().await;
        sleep(Duration::from_millis(100)).await;
        assert_eq!((odd.attached(), a.stats().get("groups_unheard")), (vec![], Some(1)));
        let again = socket.join(mgid).await;
        assert!(matches!(again, Err(Error::Query(QueryError::Closed))), "{again:?}");
        assert!(socket.group(mgid).is_err());
        socket.leave(mgid).await?;
        Ok(())
    })
    .await?
}

/// A group that is left at any moment while the client of the SA ends is not heard any more.
#[tokio::test(start_paused = true)]
async fn sa_t75_a_group_that_is_left_as_the_sa_client_ends_is_detached() -> Result {
    timeout(LIMIT, async {
        let mgid = "ff15::7".parse()?;
        for turns in 0..8 {
            let net = two_switches().await?;
            let odd = Odd::new(net.device("a"), |_| {});
            let a = Hca::open(odd.as_device()).await?;
            let socket = ud::Socket::open(&a).await?;
            socket.join(mgid).await?;
            a.sa().close();
            let leaving = tokio::spawn(async move {
                let mut turns = turns;
                // So often the other tasks that can run go first.
                poll_fn(|cx| {
                    if turns == 0 {
                        return Poll::Ready(());
                    }
                    turns -= 1;
                    cx.waker().wake_by_ref();
                    Poll::Pending
                })
                .await;
                (socket.leave(mgid).await, socket)
            });
            let (left, _socket) = leaving.await?;
            assert!(
                matches!(left, Ok(()) | Err(Error::Query(QueryError::Closed))),
                "{turns} turns: {left:?}"
            );
            sleep(Duration::from_millis(100)).await;
            assert!(odd.attached().is_empty(), "{turns} turns");
        }
        Ok(())
    })
    .await?
}

/// A group that somebody else has made anew with other keys, and to whose LID the device does not attach: one group unheard.
#[tokio::test(start_paused = true)]
async fn sa_t57_a_group_that_is_not_heard_for_two_reasons_counts_once() -> Result {
    timeout(LIMIT, async {
        let net = two_switches().await?;
        let odd = Odd::new(net.device("a"), |_| {});
        let (a, c) = (Hca::open(odd.as_device()).await?, open(&net, "c").await?);
        let (socket, mgid) = (ud::Socket::open(&a).await?, "ff15::7".parse()?);
        let before = socket.join(mgid).await?.lid();
        net.link_down("a");
        net.sweep().await?;
        let other = c.sa().join("ff15::1".parse()?).or_create(Group::new(QKey(7))).await?;
        let anew = c.sa().join(mgid).or_create(Group::new(QKey(7))).await?;
        assert_eq!((other.mlid(), anew.mlid() == before), (before, false));
        odd.refuse_groups(2);
        net.link_up("a");
        while !odd.attached().is_empty() {
            sleep(Duration::from_millis(10)).await;
        }
        sleep(Duration::from_millis(100)).await;
        assert_eq!(a.stats().get("groups_unheard"), Some(1));
        Ok(())
    })
    .await?
}
