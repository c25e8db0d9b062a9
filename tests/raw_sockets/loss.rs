//! What is lost is counted, to the datagram; what is not lost comes once, whoever waits for it and however often he gives up.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use ibraw::EtherDest;

use crate::case::{Outcome, Place};
use crate::ends::{TYPE, frame, head, link, number};
use crate::peer::{Peer, hex};
use tests::veth::{Here, There};

/// Bytes of the peer's payloads.
const LEN: usize = 60;

fn flood(many: u32) -> String {
    format!("flood {} {many} {LEN}", hex(&head(Here.mac(), There, TYPE.0)))
}

/// A flood for a queue of a part of it: what was received and what was dropped are all of them, and the gap is told with the
/// frame behind it.
pub(crate) async fn every_loss_is_counted(net: Place) -> Outcome {
    let mut peer = Peer::start(&net, There, "ether", TYPE.0)?;
    // The smallest that there is; frames in it are longer by what the kernel says of each.
    let (room, many) = if net.has_ring() { (128 << 10, 2000) } else { (2304, 50) };
    let socket = net.bind_with_room(&link(&net, Here)?, [TYPE], room).await?;
    let (mut taken, mut told, mut sent) = (0, 0, 0);
    for round in 0..3 {
        peer.ask(&flood(many))?;
        sent += u64::from(many);
        // Reading the counters loses nothing of them.
        assert_eq!(socket.stats().rx_dropped, socket.stats().rx_dropped);
        // Of this round: the number after that of the last frame, how many came, and what was told before them.
        let (mut next, mut came, mut told_of) = (0, 0, 0);
        while taken + socket.stats().rx_dropped < sent {
            let datagram = socket.recv().await?;
            taken += 1;
            told += u64::from(datagram.meta.drops_before);
            let number = number(&datagram.data);
            assert!(number >= next, "{number} after {next}");
            (next, came) = (number + 1, came + 1);
            if round == 0 {
                // What is missing before a frame was told with it or before. A ring's frame may tell of what came after it, too, when
                // the kernel drops a few frames between two blocks, as it does on a busy machine; but none where nothing is missing.
                told_of += datagram.meta.drops_before;
                let missing = next - came;
                assert!(missing <= told_of, "{missing} are missing before {number}, {told_of} were told");
                assert!(
                    missing > 0 || told_of == 0,
                    "{told_of} were told before {number}, and none is missing"
                );
                assert!(net.has_ring() || (missing, told_of) == (0, 0), "{missing} {told_of}");
            }
        }
        let stats = socket.stats();
        assert_eq!((stats.rx_packets, stats.rx_packets + stats.rx_dropped), (taken, sent));
    }
    // The last round's are told with the next frame.
    let dropped = socket.stats().rx_dropped;
    assert!(dropped > u64::from(many), "{dropped} of {sent}");
    assert_eq!(socket.stats().rx_ring_full > 0, net.has_ring());
    peer.ask(&flood(1))?;
    told += u64::from(socket.recv().await?.meta.drops_before);
    assert_eq!(told, dropped);
    // Nor need anybody ask for the counters: where nothing more comes, one more frame tells.
    peer.ask(&flood(many))?;
    let (mut sent, mut taken, mut told) = (many, 0, 0);
    while taken + told < sent {
        match tokio::time::timeout(Duration::from_millis(20), socket.recv()).await {
            Ok(datagram) => (taken, told) = (taken + 1, told + datagram?.meta.drops_before),
            Err(_) => {
                peer.ask(&flood(1))?;
                sent += 1;
            }
        }
    }
    assert!(told > 0);
    assert_eq!(socket.stats().rx_dropped, dropped + u64::from(told));
    Ok(())
}

/// Ten thousand receives are given up while frames arrive: every frame comes once, in order, and where some are missing the
/// next one tells how many its queue did not hold.
pub(crate) async fn given_up_under_load(net: Place) -> Outcome {
    const MANY: u32 = 20_000;
    let mut peer = Peer::start(&net, There, "ether", TYPE.0)?;
    let socket = net.bind_with_room(&link(&net, Here)?, [TYPE], 64 << 20).await?;
    peer.tell(&flood(MANY))?;
    let (mut next, mut given_up, mut turn) = (0, 0_u32, 0_u32);
    while socket.stats().rx_packets + socket.stats().rx_dropped < MANY.into() || given_up < 10_000 {
        turn += 1;
        let patience = std::future::poll_fn(|cx| {
            // Ready at once, after one turn of the runtime, or after two.
            if turn.is_multiple_of(3) {
                return std::task::Poll::Ready(());
            }
            turn += 1;
            cx.waker().wake_by_ref();
            std::task::Poll::Pending
        });
        tokio::select! {
            biased;
            () = patience => {
                given_up += 1;
                tokio::task::yield_now().await; // the case's limit, too, needs a turn
            }
            datagram = socket.recv() => {
                let datagram = datagram?;
                assert_eq!(number(&datagram.data), next + datagram.meta.drops_before);
                next = number(&datagram.data) + 1;
            }
        }
    }
    peer.answer()?;
    assert_eq!(socket.stats().rx_packets + socket.stats().rx_dropped, u64::from(MANY));
    Ok(())
}

/// Two tasks share a socket: no frame comes to both, each has its own in order, and what neither has was dropped before it
/// and told, once.
pub(crate) async fn two_tasks_share(net: Place) -> Outcome {
    const MANY: u32 = 100_000;
    let mut peer = Peer::start(&net, There, "ether", TYPE.0)?;
    let socket = net.bind_with_room(&link(&net, Here)?, [TYPE], 64 << 20).await?;
    let (stop, stopped) = tokio::sync::watch::channel(());
    let tasks = [(); 2].map(|()| {
        let (socket, mut stopped) = (socket.clone(), stopped.clone());
        tokio::spawn(async move {
            let (mut numbers, mut told) = (Vec::new(), 0);
            loop {
                tokio::select! {
                    biased;
                    datagram = socket.recv() => {
                        let datagram = datagram?;
                        numbers.push(number(&datagram.data));
                        told += u64::from(datagram.meta.drops_before);
                    }
                    _ = stopped.changed() => return Ok::<_, ibraw::RawError>((numbers, told)),
                }
            }
        })
    });
    peer.tell(&flood(MANY))?;
    // The peer's answer blocks this thread alone: the tasks have others.
    tokio::task::block_in_place(|| peer.answer())?;
    // One more, before which every loss is told: its queue is empty by then.
    while socket.stats().rx_packets + socket.stats().rx_dropped < MANY.into() {
        tokio::task::yield_now().await;
    }
    peer.send(&frame(Here.mac(), There, TYPE.0, &MANY.to_be_bytes()))?;
    while socket.stats().rx_packets + socket.stats().rx_dropped <= MANY.into() {
        tokio::task::yield_now().await;
    }
    drop(stop);
    let (mut union, mut taken, mut told) = (BTreeSet::new(), 0, 0);
    for task in tasks {
        let (numbers, of_task) = task.await??;
        told += of_task;
        assert!(numbers.is_sorted());
        taken += numbers.len();
        union.extend(numbers);
    }
    assert_eq!(taken, union.len());
    let dropped = socket.stats().rx_dropped;
    assert_eq!((taken as u64 + dropped, dropped), (u64::from(MANY) + 1, told));
    Ok(())
}

/// A queue of the link that takes nothing is not an end: the sink tries again, and counts.
pub(crate) async fn a_full_qdisc(net: Place) -> Outcome {
    let mut peer = Peer::start(&net, There, "ether", TYPE.0)?;
    let patience = Duration::from_secs(30);
    let socket = net.bind(&link(&net, Here)?, [TYPE]).send_timeout(patience).await?;
    let tc = |words: &str| net.run(Here, "tc", &words.split(' ').collect::<Vec<_>>());
    tc(&format!("qdisc add dev {} root tbf rate 8kbit burst 1600 limit 1", Here.interface()))?;
    let mut sink = socket.sink();
    let to = EtherDest::station(There.mac(), TYPE);
    // The first uses up the burst; the next finds no room.
    let sending = tokio::spawn(async move {
        for at in 0..4_u32 {
            let payload = [&at.to_be_bytes()[..], &[0; 1400]].concat();
            sink.send((payload.into(), to)).await?;
        }
        Ok::<_, ibraw::RawError>(())
    });
    while socket.stats().tx_nobufs == 0 {
        tokio::task::yield_now().await;
    }
    // Changed, not removed: what is sent while it is being removed is lost without a word.
    tc(&format!("qdisc change dev {} root tbf rate 1gbit burst 100k limit 100k", Here.interface()))?;
    tokio::time::timeout(patience, sending).await???;
    for at in 0..4_u32 {
        assert_eq!(peer.recv()?.0[14..18], at.to_be_bytes());
    }
    assert_eq!(socket.stats().tx_packets, 4);
    Ok(())
}

/// The same flood by each way to receive: all of it, in order.
pub(crate) async fn batches_and_streams(net: Place) -> Outcome {
    const MANY: u32 = 1000;
    let mut peer = Peer::start(&net, There, "ether", TYPE.0)?;
    let socket = net.bind_with_room(&link(&net, Here)?, [TYPE], 8 << 20).await?;
    peer.ask(&flood(MANY))?;
    let mut batch = socket.batch();
    let mut next = 0;
    while next < MANY {
        let count = socket.recv_batch(&mut batch).await?;
        assert!((1..=64).contains(&count) && count == batch.len());
        for (data, meta) in batch.iter() {
            assert_eq!((number(data), data.len(), meta.drops_before), (next, LEN, 0));
            next += 1;
        }
    }
    peer.ask(&flood(MANY))?;
    let mut stream = socket.stream();
    for at in 0..MANY {
        assert_eq!(number(&stream.next().await.ok_or("the stream has ended")??.data), at);
    }
    peer.ask(&flood(MANY))?;
    let mut buffer = [0; 100];
    for at in 0..MANY {
        let (len, _) = socket.recv_from(&mut buffer).await?;
        assert_eq!((len, number(&buffer)), (LEN, at));
    }
    Ok(())
}
