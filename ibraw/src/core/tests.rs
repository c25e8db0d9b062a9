use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ibcm_sys::packet::RecvBatch;

use super::{Core, OnTruncate};
use crate::backend::{Backend, Ether, NotSent, Wait};
use crate::batch::Taken;
use crate::stats::Counters;
use crate::{Batch, EtherDest, Group, Link, RawError};

/// What the system sees of joins and leaves.
#[derive(Debug, Default)]
struct Seen {
    is_leaving: AtomicBool,
    members: AtomicUsize,
}

/// A link on which leaving takes its time, and that may be full, or full of frames for others.
#[derive(Debug, Default)]
struct Slow {
    counters: Arc<Counters>,
    seen: Arc<Seen>,
    is_flooded: bool,
    /// Nothing can be sent.
    is_full: Arc<AtomicBool>,
    looks: AtomicUsize,
}

impl Backend<Ether> for Slow {
    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    fn recv(&self, _: &mut Batch<Ether>, _: usize) -> Result<Poll<()>, RawError> {
        assert!(self.looks.fetch_add(1, Ordering::SeqCst) < 10_000, "nobody else has a turn");
        Ok(if self.is_flooded { Poll::Ready(()) } else { Poll::Pending })
    }

    fn readable(&self) -> Wait<'_> {
        Box::pin(std::future::pending())
    }

    fn send(&self, datagrams: &[(&[u8], &EtherDest)]) -> Result<usize, NotSent> {
        match self.is_full.load(Ordering::SeqCst) {
            true => Err(NotSent::WouldBlock),
            false => Ok(datagrams.len()),
        }
    }

    fn writable(&self) -> Wait<'_> {
        Box::pin(std::future::poll_fn(|_| match self.is_full.load(Ordering::SeqCst) {
            true => Poll::Pending,
            false => Poll::Ready(Ok(())),
        }))
    }

    fn check(&self, data: &[u8], _: &EtherDest) -> Result<usize, RawError> {
        Ok(data.len())
    }

    fn join<'a>(&'a self, _: &'a Group) -> Wait<'a> {
        assert!(!self.seen.is_leaving.load(Ordering::SeqCst), "joined while the same group is left");
        self.seen.members.fetch_add(1, Ordering::SeqCst);
        Box::pin(std::future::ready(Ok(())))
    }

    fn leave(&self, _: &Group) -> Result<(), RawError> {
        self.seen.is_leaving.store(true, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(20));
        self.seen.members.fetch_sub(1, Ordering::SeqCst);
        self.seen.is_leaving.store(false, Ordering::SeqCst);
        Ok(())
    }

    fn recv_buffer(&self) -> usize {
        0
    }

    fn note_drops(&self) {}

    fn room(&self, most: usize) -> Batch<Ether> {
        Batch::new(RecvBatch::new(most, 0))
    }
}

/// The system is asked in the order in which the socket counts.
#[tokio::test(start_paused = true)]
async fn raw_t18_who_joins_while_the_last_one_leaves_is_a_member() {
    let net = ibsoft::sim::Subnet::star(["ann", "bob"]).await.expect("a subnet");
    let link: Link = net.device("ann").into();
    let seen: Arc<Seen> = Arc::default();
    let backend = Box::new(Slow { seen: seen.clone(), ..Slow::default() });
    let core = Core::<Ether>::new(backend, link, OnTruncate::Deliver, Duration::ZERO);
    let group = Group::link([0x33, 0x33, 0, 0, 0, 1]).expect("a group");
    core.join(&group).await.expect("joined");
    let leaving = std::thread::spawn({
        let core = core.clone();
        move || core.leave(&group)
    });
    while !seen.is_leaving.load(Ordering::SeqCst) && !leaving.is_finished() {
        std::thread::yield_now();
    }
    core.join(&group).await.expect("joined again");
    leaving.join().expect("no panic").expect("left");
    assert_eq!(seen.members.load(Ordering::SeqCst), 1);
    assert!(core.leave(&group).is_ok());
}

/// However much comes for others, the task gives its turn away.
#[tokio::test(start_paused = true)]
async fn frames_for_others_do_not_keep_a_thread() {
    let net = ibsoft::sim::Subnet::star(["ann", "bob"]).await.expect("a subnet");
    let link: Link = net.device("ann").into();
    let backend = Box::new(Slow { is_flooded: true, ..Slow::default() });
    let core = Core::<Ether>::new(backend, link, OnTruncate::Deliver, Duration::ZERO);
    let mut stream = crate::Datagrams::new(core.clone());
    tokio::select! {
        biased;
        received = core.recv() => panic!("{received:?}"),
        () = tokio::task::yield_now() => {}
    }
    tokio::select! {
        biased;
        item = std::future::poll_fn(|cx| stream.poll_item(cx)) => panic!("{item:?}"),
        () = tokio::task::yield_now() => {}
    }
}

/// Who does not wait is kept neither by what is for others nor by a link that takes nothing.
#[tokio::test(start_paused = true)]
async fn who_does_not_wait_is_not_kept() {
    let net = ibsoft::sim::Subnet::star(["ann", "bob"]).await.expect("a subnet");
    let link: Link = net.device("ann").into();
    let is_full = Arc::new(AtomicBool::new(true));
    let backend = Box::new(Slow { is_flooded: true, is_full: is_full.clone(), ..Slow::default() });
    let core = Core::<Ether>::new(backend, link, OnTruncate::Deliver, Duration::ZERO);
    assert!(core.recv_now().expect("no error").is_none());
    let to = EtherDest::lid(ibwire::Lid(1), crate::EtherType(0x88b5));
    assert!(core.send_one_now(b"12345678", &to).expect("no error").is_none());
    is_full.store(false, Ordering::SeqCst);
    assert!(core.send_one_now(b"12345678", &to).expect("no error").is_some());
}

/// What was lost before a datagram that is dropped itself is told with the next one, be that of the next batch.
#[tokio::test(start_paused = true)]
async fn raw_t24_what_a_cut_datagram_told_of_losses_is_passed_on() {
    let net = ibsoft::sim::Subnet::star(["ann", "bob"]).await.expect("a subnet");
    let link: Link = net.device("ann").into();
    let core = Core::<Ether>::new(Box::new(Slow::default()), link, OnTruncate::Drop, Duration::ZERO);
    let taken = |drops_before, truncated| Taken::<Ether> {
        data: crate::batch::Data::Shared(b"12345678"[..].into()),
        meta: crate::EtherMeta {
            ether_type: crate::EtherType(0x88b5),
            src: None,
            dst: None,
            kind: crate::FrameKind::Host,
            vlan: None,
            wire_len: 8,
            truncated,
            checksum_partial: false,
            time: None,
            drops_before,
            subnet: None,
        },
    };
    let told = |mut all: Vec<_>| {
        core.drop_cut(&mut all);
        all.iter().map(|taken| taken.meta.drops_before).collect::<Vec<_>>()
    };
    assert_eq!(told(vec![taken(1, false), taken(2, true), taken(3, false), taken(0, false)]), [1, 5, 0]);
    assert_eq!(told(vec![taken(4, true), taken(5, true)]), []);
    assert_eq!(told(vec![]), []);
    assert_eq!(told(vec![taken(1, false)]), [10]);
    assert_eq!(told(vec![taken(0, false)]), [0]);
}

/// While the link takes nothing a sink takes 64, those that it has begun to send included.
#[tokio::test(start_paused = true)]
async fn a_sink_holds_64_while_the_link_blocks() {
    let net = ibsoft::sim::Subnet::star(["ann", "bob"]).await.expect("a subnet");
    let link: Link = net.device("ann").into();
    let is_full = Arc::new(AtomicBool::new(true));
    let backend = Box::new(Slow { is_full: is_full.clone(), ..Slow::default() });
    let core = Core::<Ether>::new(backend, link, OnTruncate::Deliver, Duration::from_secs(3600));
    let to = EtherDest::lid(ibwire::Lid(1), crate::EtherType(0x88b5));
    let mut cx = Context::from_waker(Waker::noop());
    for flush_at in [0, 1, 10, 64] {
        let mut sink = crate::DatagramSink::new(core.clone());
        let mut fill = |sink: &mut crate::DatagramSink<Ether>| {
            let mut taken = 0;
            while sink.poll_room(&mut cx).is_ready() {
                sink.start(b"12345678"[..].into(), to).expect("taken");
                taken += 1;
                assert!(taken <= 64, "more than its bound, flushed at {flush_at}");
                if taken == flush_at {
                    assert!(sink.poll_send(&mut cx).is_pending());
                }
            }
            taken
        };
        is_full.store(true, Ordering::SeqCst);
        assert_eq!(fill(&mut sink), 64);
        assert_eq!(fill(&mut sink), 0);
        is_full.store(false, Ordering::SeqCst);
        assert!(matches!(std::future::poll_fn(|cx| sink.poll_send(cx)).await, Ok(())));
        is_full.store(true, Ordering::SeqCst);
        let unsent = core.stats().tx_unsent;
        drop(sink);
        assert_eq!(core.stats().tx_unsent, unsent, "all was sent");
    }
    let mut sink = crate::DatagramSink::new(core.clone());
    for _ in 0..3 {
        sink.start(b"12345678"[..].into(), to).expect("taken");
    }
    assert!(sink.poll_send(&mut cx).is_pending());
    sink.start(b"12345678"[..].into(), to).expect("taken");
    drop(sink);
    assert_eq!(core.stats().tx_unsent, 4);
}
