//! Connections to many peers, a bounded number of them at once.

mod dial;
mod progress;

use std::collections::VecDeque;
use std::fmt;
use std::iter::Fuse;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, Stream, StreamExt as _};
use ibwire::{Gid, ServiceId};

use crate::clock::now;
use crate::connect::Connect;
use crate::connection::Connection;
use crate::error::ConnectError;
use crate::hca::Hca;
use crate::proto::Invalid;
use crate::retry::Retry;

use dial::{Dial, Outcome};
pub use progress::Progress;

/// Connects to many peers: a builder that is itself a stream, of one [`Attempt`] for each peer, as they end. Made by
/// [`Hca::connect_all`].
///
/// Paths are found and connections made while it is polled, by the task that polls it; it starts none. Peers are taken
/// from their iterator when their turn comes, so what is held is what is in flight, and an address for each peer that is
/// to be tried again.
///
/// A peer that does not answer does not keep the others waiting: after 10 s, or the deadline of its own that
/// [`each`](Self::each) gives it, it makes room. With a [`deadline`](Self::deadline) for the whole set, and a
/// [`retry`](Self::retry) that goes on after that error, it is tried again behind those that have not been tried yet.
///
/// ```
/// # use ibcm::{Connection, Hca, Listener, Recv, Retry, ServiceId};
/// # use futures::{StreamExt, future::join_all};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (here, there, sid) = (Hca::open("soft").await?, Hca::open("soft").await?, ServiceId::new(7));
/// # let listener = Listener::bind(sid).device(&there).await?;
/// # let served = there.shared_recv(16, 64).await?;
/// # tokio::spawn(async move {
/// #     while let Ok(request) = listener.accept().await {
/// #         let accept = request.accept().recv(Recv::shared(&served));
/// #         tokio::spawn(async move { Ok::<_, ibcm::Error>(accept.await?.closed().await) });
/// #     }
/// # });
/// let receives = here.shared_recv(64, 4096).await?; // for all connections together
/// let peers = std::iter::repeat_n((there.gid(), sid), 20);
/// let mut all = here
///     .connect_all(peers)
///     .concurrency(4)
///     .deadline(Duration::from_secs(30))
///     .retry(Retry::backoff())
///     .each(move |rank, connect| connect.private_data(&[rank as u8]).recv(Recv::shared(&receives)));
/// let mut conns = Vec::new();
/// while let Some(attempt) = all.next().await {
///     conns.push(attempt.result?);
///     eprintln!("{}", all.progress());
/// }
/// assert_eq!(all.progress().to_string(), "20 of 20 up, 0 failed, 0 in flight, 0 waiting");
/// join_all(conns.iter().map(Connection::disconnect)).await;
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// A dropped `next()` loses nothing: the next one goes on. Dropped itself, connections in flight are given up, each as a
/// dropped [`Connect`]; those that are up were all handed out, and live on.
#[must_use = "nothing is sent before it is polled"]
pub struct ConnectAll {
    hca: Hca,
    peers: Fuse<Box<dyn Iterator<Item = (Gid, ServiceId)> + Send>>,
    settings: Settings,
    /// When it was polled first.
    started: Option<Instant>,
    /// How many peers the iterator has given.
    taken: usize,
    /// Peers to be tried again, those first that have waited longest.
    again: VecDeque<Dial>,
    in_flight: FuturesUnordered<BoxFuture<'static, Outcome>>,
    up: usize,
    failed: usize,
}

/// How the peers are connected.
struct Settings {
    concurrency: usize,
    deadline: Option<Duration>,
    retry: Retry,
    each: Each,
}

type Each = Box<dyn FnMut(usize, Connect<92>) -> Connect<92> + Send>;

/// What became of one peer of [`ConnectAll`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Attempt {
    /// Which peer, counted from 0 in the order of the iterator.
    pub index: usize,
    /// Its address.
    pub gid: Gid,
    /// The service that was asked for.
    pub service_id: ServiceId,
    /// The connection, or the error of the last try.
    pub result: Result<Connection, ConnectError>,
    /// How often it was tried; 0 if its turn did not come in time.
    pub tries: u32,
    /// From its first try until now; zero without one.
    pub took: Duration,
}

impl Hca {
    /// Connects to many peers, of which a bounded number is in flight at once: see [`ConnectAll`]. The iterator is only
    /// asked for a peer when there is room for it.
    pub fn connect_all<I>(&self, peers: I) -> ConnectAll
    where
        I: IntoIterator<Item = (Gid, ServiceId)>,
        I::IntoIter: Send + 'static,
    {
        let peers: Box<dyn Iterator<Item = (Gid, ServiceId)> + Send> = Box::new(peers.into_iter());
        ConnectAll {
            hca: self.clone(),
            peers: peers.fuse(),
            settings: Settings {
                concurrency: 64,
                deadline: None,
                retry: Retry::default(),
                each: Box::new(|_, connect| connect),
            },
            started: None,
            taken: 0,
            again: VecDeque::new(),
            in_flight: FuturesUnordered::new(),
            up: 0,
            failed: 0,
        }
    }
}

impl ConnectAll {
    /// How many connections may be in the making at once. At least 1, default 64.
    pub fn concurrency(mut self, most: usize) -> Self {
        self.settings.concurrency = most;
        self
    }

    /// How long all of them may take together, from the first poll. More than zero. Default: each has its own deadline
    /// and no other.
    ///
    /// When it is over, those in flight end, and those that wait fail: with the error that they have met already, else
    /// with [`ConnectError::Deadline`].
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = Some(deadline);
        self
    }

    /// Whether and when a peer is tried again, as in [`Connect::retry`]; [`each`](Self::each) may set another rule for some.
    /// The attempts of all turns of a peer count together.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.settings.retry = retry;
        self
    }

    /// What is particular about each connection: its private data, its receives, a deadline of its own, a rule of its own
    /// for other attempts. The function is given the peer's index and what the connection would be without it, once for
    /// each time that the peer's turn comes.
    ///
    /// A deadline that is set there counts within that of the whole set.
    pub fn each(mut self, set: impl FnMut(usize, Connect<92>) -> Connect<92> + Send + 'static) -> Self {
        self.settings.each = Box::new(set);
        self
    }

    /// How far it has got.
    pub fn progress(&self) -> Progress {
        let (least, most) = self.peers.size_hint();
        let untaken = most.filter(|most| *most == least);
        Progress {
            up: self.up,
            failed: self.failed,
            in_flight: self.in_flight.len(),
            waiting: untaken.map(|untaken| untaken + self.again.len()),
        }
    }

    /// What a value out of range makes of every peer.
    fn check(&self) -> Result<(), Invalid> {
        if self.settings.concurrency == 0 {
            return Err(Invalid::at_least("concurrency", 0, 1));
        }
        self.settings.deadline.map_or(Ok(()), |deadline| Invalid::more_than_zero("deadline", deadline))?;
        self.settings.retry.check()
    }

    /// When the deadline of all is over, if there is one.
    fn end(&self) -> Option<Instant> {
        self.started?.checked_add(self.settings.deadline?)
    }

    /// Fills the room that there is, with new peers first.
    fn start(&mut self) {
        while self.in_flight.len() < self.settings.concurrency {
            let end = self.end();
            if end.is_some_and(|end| end <= now()) {
                return;
            }
            let dial = match self.peers.next() {
                Some(peer) => {
                    self.taken += 1;
                    Dial::new(self.taken - 1, peer)
                }
                None => match self.again.pop_front() {
                    Some(dial) => dial,
                    None => return,
                },
            };
            self.in_flight.push(Box::pin(dial.run(&self.hca, end, &mut self.settings)));
        }
    }

    /// What became of a peer that is not in flight, when nothing is begun any more.
    fn cut_short(&mut self, why: impl FnOnce() -> ConnectError) -> Option<Attempt> {
        let dial = match self.again.pop_front() {
            Some(dial) => dial,
            None => {
                let peer = self.peers.next()?;
                self.taken += 1;
                Dial::new(self.taken - 1, peer)
            }
        };
        Some(dial.cut_short(why))
    }

    /// When a peer that has met this error is tried again by its rule, if it is.
    fn again_at(&self, dial: &Dial, retry: &Retry, error: &ConnectError) -> Option<Instant> {
        // Without an end of all, that of its own was all that it had.
        let end = self.end()?;
        let jitter = || self.hca.shared().engine().draw();
        let pause = retry.pause_after(dial.tries(), error, jitter)?;
        now().checked_add(pause).filter(|at| *at < end)
    }

    fn count(&mut self, attempt: Attempt) -> Poll<Option<Attempt>> {
        match attempt.result {
            Ok(_) => self.up += 1,
            Err(_) => self.failed += 1,
        }
        Poll::Ready(Some(attempt))
    }
}

impl Stream for ConnectAll {
    type Item = Attempt;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Attempt>> {
        let this = &mut *self;
        if let Err(invalid) = this.check() {
            return this
                .cut_short(|| invalid.into())
                .map_or(Poll::Ready(None), |attempt| this.count(attempt));
        }
        let started = *this.started.get_or_insert_with(now);
        loop {
            this.start();
            match this.in_flight.poll_next_unpin(cx) {
                // The end of all is theirs, too, so there is nothing else to wait for.
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Outcome { mut dial, result: Err(error), retry, is_tried })) => {
                    let at = if is_tried { this.again_at(&dial, &retry, &error) } else { None };
                    let Some(at) = at else { return this.count(dial.ended(Err(error), now())) };
                    dial.rest(error, at);
                    this.again.push_back(dial);
                }
                Poll::Ready(Some(Outcome { dial, result, .. })) => {
                    return this.count(dial.ended(result, now()));
                }
                Poll::Ready(None) => {
                    let why = || ConnectError::Deadline { waited: now().saturating_duration_since(started) };
                    return this.cut_short(why).map_or(Poll::Ready(None), |attempt| this.count(attempt));
                }
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let more = self.in_flight.len() + self.again.len();
        let (least, most) = self.peers.size_hint();
        (least.saturating_add(more), most.and_then(|most| most.checked_add(more)))
    }
}

impl fmt::Debug for ConnectAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectAll")
            .field("hca", &self.hca)
            .field("concurrency", &self.settings.concurrency)
            .field("deadline", &self.settings.deadline)
            .field("retry", &self.settings.retry)
            .field("progress", &self.progress())
            .finish_non_exhaustive()
    }
}
