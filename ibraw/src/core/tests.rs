use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use ibcm_sys::packet::RecvBatch;

use super::{Core, OnTruncate};
use crate::backend::{Backend, Ether, NotSent, Wait};
use crate::stats::Counters;
use crate::{Batch, EtherDest, Group, Link, RawError};

/// What the system sees of joins and leaves.
#[derive(Debug, Default)]
struct Seen {
    is_leaving: AtomicBool,
    members: AtomicUsize,
}

/// A link on which leaving takes its time, and that may be full of frames for others.
#[derive(Debug, Default)]
struct Slow {
    counters: Arc<Counters>,
    seen: Arc<Seen>,
    is_flooded: bool,
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
        Ok(datagrams.len())
    }

    fn writable(&self) -> Wait<'_> {
        Box::pin(std::future::pending())
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
#[cfg(feature = "soft")]
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
#[cfg(feature = "soft")]
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
