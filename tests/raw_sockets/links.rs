//! Links that go down, come back, and go away; and a process that may not.

use std::time::Duration;

use futures::StreamExt;
use ibraw::{EtherDest, Ipv6Dest, Link, NextHeader, RawError, RawIpv6Socket};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::case::{Outcome, Place};
use crate::ends::{TYPE, ether, frame, link};
use crate::peer::Peer;
use tests::veth::{Here, Net, Side, There};

fn set(net: &Net, side: Side, state: &str) -> Outcome {
    Ok(net.ip(side, &format!("link set {} {state}", side.interface()))?)
}

/// A task that waits is told when the link goes down, each time, and the same stream goes on when it is up.
pub(crate) async fn down_and_up(net: Place) -> Outcome {
    let mut peer = Peer::start(&net, There, "ether", TYPE.0)?;
    let socket = ether(&net, Here).await?;
    let six = RawIpv6Socket::bind(&link(&net, Here)?, [NextHeader::EXPERIMENT_1]).await?;
    let to = Ipv6Dest { addr: There.address().parse()?, next_header: NextHeader::EXPERIMENT_1 };
    let waiting = tokio::spawn({
        let socket = socket.clone();
        async move {
            let mut stream = socket.stream();
            let mut items = Vec::new();
            while items.len() < 3 {
                items.extend(stream.next().await);
            }
            items
        }
    });
    tokio::task::yield_now().await;
    set(&net, Here, "down")?;
    // That nothing can be sent is said each time, and takes the news from nobody who waits.
    for _ in 0..2 {
        let refused = socket.send_to(b"x", &EtherDest::station(There.mac(), TYPE)).await;
        assert!(matches!(&refused, Err(error @ RawError::LinkDown) if error.is_transient()), "{refused:?}");
        let refused = six.send_to(b"x", &to).await;
        assert!(matches!(refused, Err(RawError::LinkDown)), "{refused:?}");
    }
    set(&net, Here, "up")?;
    net.carries()?;
    peer.send(&frame(Here.mac(), There, TYPE.0, b"again"))?;
    set(&net, Here, "down")?;
    // Nobody may have asked while it was up.
    let mut items = tokio::time::timeout(Duration::from_secs(10), waiting).await??;
    let frames: Vec<_> = items.extract_if(.., |item| item.is_ok()).collect::<Result<_, _>>()?;
    assert!(matches!(&frames[..], [frame] if frame.data[..] == *b"again"), "{frames:?}");
    assert!(items.iter().all(|item| matches!(item, Err(RawError::LinkDown))), "{items:?}");
    assert_eq!(socket.stats().link_down_events, 2);
    Ok(())
}

/// A link that is removed ends the stream, once, and whatever waits; later calls say so at once.
pub(crate) async fn removed(net: Place) -> Outcome {
    let socket = ether(&net, Here).await?;
    let six = RawIpv6Socket::bind(&link(&net, Here)?, [NextHeader::EXPERIMENT_1]).await?;
    let waiting = tokio::spawn({
        let socket = socket.clone();
        async move { socket.stream().collect::<Vec<_>>().await }
    });
    // Whoever else waits hears of the end, too.
    let others = [(); 3].map(|()| tokio::spawn(socket.stream().collect::<Vec<_>>()));
    tokio::task::yield_now().await;
    net.ip(Here, &format!("link del {}", Here.interface()))?;
    for other in others {
        let items = tokio::time::timeout(Duration::from_secs(10), other).await??;
        assert!(matches!(items.last(), Some(Err(RawError::LinkGone))), "{items:?}");
    }
    let items = tokio::time::timeout(Duration::from_secs(10), waiting).await??;
    // Going away is going down first.
    let errors: Vec<_> = items.iter().filter_map(|item| item.as_ref().err()).collect();
    assert!(
        matches!(&errors[..], [.., RawError::LinkGone]) && errors.len() == items.len() && items.len() <= 2,
        "{items:?}"
    );
    let sent = socket.send_to(b"x", &EtherDest::station(There.mac(), TYPE)).await;
    assert!(matches!(sent, Err(RawError::LinkGone)), "{sent:?}");
    assert!(matches!(socket.recv().await, Err(RawError::LinkGone)));
    let to = Ipv6Dest { addr: There.address().parse()?, next_header: NextHeader::EXPERIMENT_1 };
    let sent = six.send_to(b"x", &to).await;
    assert!(matches!(sent, Err(RawError::LinkGone)), "{sent:?}");
    let opened = Link::open(Here.interface());
    assert!(matches!(&opened, Err(RawError::NoSuchLink(name)) if name == Here.interface()), "{opened:?}");
    Ok(())
}

/// What a socket has to itself it has on one interface of one network namespace of one process. In the other namespace the interface
/// has the same index.
pub(crate) async fn claims_end_at_the_namespace(net: Place) -> Outcome {
    let mut peer = Peer::start(&net, There, "ether", TYPE.0)?;
    let (here, there) = (link(&net, Here)?, link(&net, There)?);
    let index = |side: Side| -> Result<String, libtest_mimic::Failed> {
        let shown = net.run(side, "ip", &["-o", "link", "show", side.interface()])?;
        Ok(shown.split(':').next().unwrap_or_default().to_owned())
    };
    assert_eq!(index(Here)?, index(There)?);
    net.enter(Here)?;
    let mine = net.bind(&here, [TYPE]).exclusive().await?;
    let refused = net.bind(&Link::open(Here.interface())?, [TYPE]).await;
    assert!(matches!(refused, Err(RawError::FilterConflict(_))), "{refused:?}");
    // Another process asks nobody.
    let mut beside = Peer::start(&net, Here, "ether", TYPE.0)?;
    net.enter(There)?;
    let other = net.bind(&there, [TYPE]).exclusive().await?;
    other.send_to(b"over", &EtherDest::station(Here.mac(), TYPE)).await?;
    assert_eq!(&mine.recv().await?.data[..], b"over");
    assert_eq!(beside.recv()?.0, frame(Here.mac(), There, TYPE.0, b"over"));
    mine.send_to(b"back", &EtherDest::station(There.mac(), TYPE)).await?;
    assert_eq!(&other.recv().await?.data[..], b"back");
    assert_eq!(peer.recv()?.0, frame(There.mac(), Here, TYPE.0, b"back"));
    drop(mine);
    net.enter(Here)?;
    net.bind(&here, [TYPE]).await?;
    Ok(())
}

/// A queue is as long as was asked for with the capability to go beyond the system's limit, and as that without.
pub(crate) async fn a_queue_beyond_the_limit(net: Place) -> Outcome {
    let link = link(&net, Here)?;
    let limit: usize = std::fs::read_to_string("/proc/sys/net/core/rmem_max")?.trim().parse()?;
    let more = 2 * limit;
    let lengths = async || -> Result<[usize; 2], RawError> {
        let ether = net.bind_with_room(&link, [TYPE], more).await?;
        let six = RawIpv6Socket::bind(&link, [NextHeader::EXPERIMENT_1]).recv_buffer(more).await?;
        Ok([ether.recv_buffer(), six.recv_buffer()])
    };
    // The kernel counts its bookkeeping as much again (socket(7)).
    assert_eq!(lengths().await?, [2 * more; 2]);
    // Of this thread alone, which ends with the case.
    let mut sets = capabilities(None)?;
    sets.effective.remove(CapabilitySet::NET_ADMIN);
    set_capabilities(None, sets)?;
    assert_eq!(lengths().await?, [2 * limit; 2]);
    Ok(())
}

/// Without the capability the error names it.
pub(crate) async fn without_the_capability(net: Place) -> Outcome {
    let link = link(&net, Here)?;
    // Of this thread alone, which ends with the case.
    let mut sets = capabilities(None)?;
    sets.effective.remove(CapabilitySet::NET_RAW);
    set_capabilities(None, sets)?;
    let ether = net.bind(&link, [TYPE]).await;
    let six = RawIpv6Socket::bind(&link, [NextHeader::EXPERIMENT_1]).await;
    for error in [ether.err(), six.err()] {
        assert!(matches!(error, Some(RawError::Permission { needs: "CAP_NET_RAW" })), "{error:?}");
    }
    Ok(())
}
