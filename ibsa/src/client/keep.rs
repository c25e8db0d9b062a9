//! What is kept at the SA: a task for each thing tells the SA again after a change of the SM, and gives it up in the end.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, MutexGuard};
use std::task::Poll;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::ChaCha8Rng;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::sleep_until;

use super::shared::{Owner, Shared, State, now};
use crate::proto::client::QueryError;

/// After a change of the SM everything is registered again within so long, by chance, for others do the same.
pub(super) const SPREAD: Duration = Duration::from_secs(1);

/// How long giving something up may take. What the SA then still has ends by its own rules.
pub(super) const LEAVE: Duration = Duration::from_secs(5);

/// Brings the news that something was given up, or why that is not known.
pub(super) type Reply = oneshot::Sender<Result<(), QueryError>>;

/// One thing that is kept.
pub(super) trait Entry: fmt::Debug + Send + Sized + 'static {
    /// What the SA says of it.
    type Record: Clone + Default + fmt::Debug + Send + Sync + 'static;
    /// How somebody holds it.
    type Claim: Copy + fmt::Debug + Send + Sync + 'static;
    /// What there is to do.
    type Work: Send;
    /// Who waits for it.
    type Waiting;

    /// Those of a client.
    fn all(state: &mut State) -> &mut Entries<Self>;

    /// What is next.
    fn next(&mut self, now: Instant) -> Step<Self::Work>;

    /// Does it.
    fn work(keeper: &Keeper<Self>, work: Self::Work) -> impl Future<Output = ()> + Send;

    /// The SM has changed: what it knew of us may be gone.
    fn renew(&mut self, now: Instant, rng: &mut ChaCha8Rng);

    /// A holder goes. The reply is kept until the SA has confirmed it; given back, there is nothing to confirm.
    fn release(&mut self, claim: Self::Claim, reply: Option<Reply>) -> Option<Reply>;

    /// Nobody holds it any more, or waits for it. What is given back tells them when it is dropped.
    fn abandon(&mut self) -> Self::Waiting;

    /// Nothing of it is left.
    fn over(self) {}
}

/// What is to be done for an entry.
#[derive(Debug)]
pub(super) enum Step<W> {
    /// Nothing is left of it.
    End,
    /// Nothing, or nothing before this time.
    Rest(Option<Instant>),
    Do(W),
}

/// All of one kind that a client keeps.
#[derive(Debug)]
pub(super) struct Entries<E> {
    next: u64,
    slots: BTreeMap<u64, Slot<E>>,
}

#[derive(Debug)]
struct Slot<E> {
    entry: E,
    /// Its keeper looks again.
    kick: Arc<Notify>,
}

impl<E> Default for Entries<E> {
    fn default() -> Self {
        Self { next: 0, slots: BTreeMap::new() }
    }
}

impl<E: Entry> Entries<E> {
    pub(super) fn get(&mut self, id: u64) -> Option<&mut E> {
        self.slots.get_mut(&id).map(|slot| &mut slot.entry)
    }

    /// The one that is meant, if there is one, to change it: its keeper looks again.
    pub(super) fn find(&mut self, is: impl Fn(&E) -> bool) -> Option<&mut E> {
        let slot = self.slots.values_mut().find(|slot| is(&slot.entry))?;
        slot.kick.notify_one();
        Some(&mut slot.entry)
    }

    /// The SM has changed.
    pub(super) fn renew(&mut self, now: Instant, rng: &mut ChaCha8Rng) {
        for slot in self.slots.values_mut() {
            slot.entry.renew(now, rng);
            slot.kick.notify_one();
        }
    }

    /// Nobody holds any of them any more. Whoever waits hears of it when what is given back is dropped.
    pub(super) fn abandon(&mut self) -> Vec<E::Waiting> {
        let abandoned = |slot: &mut Slot<E>| {
            slot.kick.notify_one();
            slot.entry.abandon()
        };
        self.slots.values_mut().map(abandoned).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The client is over. Whoever waits hears of it when what is given back is dropped.
    pub(super) fn end(&mut self) -> impl Sized + use<E> {
        let slots = std::mem::take(&mut self.slots);
        slots.values().for_each(|slot| slot.kick.notify_one());
        slots
    }
}

/// Keeps something new from now on.
pub(super) fn keep<E: Entry>(
    shared: &Arc<Shared>,
    owner: &Arc<Owner>,
    mut state: MutexGuard<'_, State>,
    entry: E,
) {
    let (kick, entries) = (Arc::new(Notify::new()), E::all(&mut state));
    let id = entries.next;
    entries.next += 1;
    entries.slots.insert(id, Slot { entry, kick: Arc::clone(&kick) });
    drop(state);
    let news = watch::Sender::new(News::default());
    let keeper = Keeper::<E> { shared: Arc::clone(shared), _owner: Arc::clone(owner), id, kick, news };
    if let Some(runtime) = shared.runtime() {
        runtime.spawn(keeper.run());
    }
}

/// Keeps one entry, and with it the client open.
pub(super) struct Keeper<E: Entry> {
    pub(super) shared: Arc<Shared>,
    _owner: Arc<Owner>,
    pub(super) id: u64,
    kick: Arc<Notify>,
    news: watch::Sender<News<E::Record>>,
}

/// What holders hear.
#[derive(Debug, Clone, Default)]
struct News<R> {
    /// As the SA gave it last.
    record: R,
    /// Why the SA could not be told again.
    error: Option<QueryError>,
}

impl<E: Entry> Keeper<E> {
    async fn run(self) {
        loop {
            match self.step() {
                Step::End => return,
                Step::Rest(None) => self.kick.notified().await,
                Step::Rest(Some(until)) => {
                    _ = first(self.kick.notified(), sleep_until(until.into())).await;
                }
                Step::Do(work) => E::work(&self, work).await,
            }
        }
    }

    fn step(&self) -> Step<E::Work> {
        let mut state = self.shared.lock();
        let entries = E::all(&mut state);
        let Some(entry) = entries.get(self.id) else { return Step::End };
        let step = entry.next(now());
        let over = match step {
            Step::End => entries.slots.remove(&self.id),
            _ => None,
        };
        drop(state);
        if let Some(slot) = over {
            slot.entry.over();
        }
        step
    }

    /// What the SA says, or nothing once nobody wants to hear it any more.
    pub(super) async fn while_wanted<T>(
        &self,
        asking: impl Future<Output = T>,
        wanted: impl Fn(&mut E) -> bool,
    ) -> Option<T> {
        let mut asking = pin!(asking);
        loop {
            match first(asking.as_mut(), self.kick.notified()).await {
                Ok(said) => return Some(said),
                Err(()) if E::all(&mut self.shared.lock()).get(self.id).is_some_and(&wanted) => {}
                Err(()) => return None,
            }
        }
    }

    /// Tells the holders; `loud`: those who wait for a change, too. Call it without the lock: it wakes tasks.
    pub(super) fn tell(&self, said: Result<E::Record, QueryError>, loud: bool) {
        self.news.send_if_modified(|news| {
            match said {
                Ok(record) => *news = News { record, error: None },
                Err(error) => news.error = Some(error),
            }
            loud
        });
    }

    /// What a new holder gets.
    pub(super) fn hold(&self, claim: E::Claim) -> Kept<E> {
        Kept {
            shared: Arc::clone(&self.shared),
            id: self.id,
            claim,
            over: false,
            news: self.news.subscribe(),
        }
    }
}

impl<E: Entry> Drop for Keeper<E> {
    /// Also where the runtime ends.
    fn drop(&mut self) {
        let slot = E::all(&mut self.shared.lock()).slots.remove(&self.id);
        drop(slot);
        self.shared.given_up.notify_waiters();
    }
}

/// What somebody holds: dropped, it is given up in the background.
#[derive(Debug)]
pub(super) struct Kept<E: Entry> {
    shared: Arc<Shared>,
    id: u64,
    claim: E::Claim,
    /// It holds nothing more.
    over: bool,
    news: watch::Receiver<News<E::Record>>,
}

impl<E: Entry> Kept<E> {
    pub(super) const fn claim(&self) -> E::Claim {
        self.claim
    }

    /// As the SA gave it last.
    pub(super) fn with<T>(&self, f: impl FnOnce(&E::Record) -> T) -> T {
        f(&self.news.borrow().record)
    }

    /// Waits for the next change, or for why there is none.
    pub(super) async fn changed(&mut self) -> Result<E::Record, QueryError> {
        if self.news.changed().await.is_err() {
            return Err(self.shared.ended());
        }
        let news = self.news.borrow_and_update();
        match &news.error {
            Some(error) => Err(error.clone()),
            None => Ok(news.record.clone()),
        }
    }

    /// Gives it up. Done when the SA has confirmed it; dropped, it goes on in the background.
    pub(super) async fn give_up(mut self) -> Result<(), QueryError> {
        let (reply, confirmed) = oneshot::channel();
        if self.release(Some(reply)).is_some() {
            return Ok(());
        }
        confirmed.await.unwrap_or_else(|_| Err(self.shared.ended()))
    }

    fn release(&mut self, reply: Option<Reply>) -> Option<Reply> {
        self.over = true;
        let mut state = self.shared.lock();
        // The client may be over.
        let slot = E::all(&mut state).slots.get_mut(&self.id)?;
        slot.kick.notify_one();
        slot.entry.release(self.claim, reply)
    }
}

impl<E: Entry> Drop for Kept<E> {
    fn drop(&mut self) {
        if !self.over {
            self.release(None);
        }
    }
}

/// Waits for what a keeper says, at most so long.
pub(super) async fn within<T>(
    shared: &Shared,
    timeout: Duration,
    said: oneshot::Receiver<Result<T, QueryError>>,
) -> Result<T, QueryError> {
    match tokio::time::timeout(timeout, said).await {
        Ok(said) => said.unwrap_or_else(|_| Err(shared.ended())),
        Err(_) => Err(QueryError::Late(timeout)),
    }
}

/// A time within [`SPREAD`].
pub(super) fn spread(rng: &mut ChaCha8Rng) -> Duration {
    SPREAD.mul_f64(rng.random_range(0.0..1.0))
}

/// Rests between attempts: 1 s, doubled up to 16 s, each up to a quarter more or less (spec/sa.md 5.5).
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    pub(super) fn next(&mut self, rng: &mut ChaCha8Rng) -> Duration {
        let rest = Duration::from_secs(1 << self.failures.min(4));
        self.failures += 1;
        rest.mul_f64(rng.random_range(0.75..1.25))
    }

    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// What comes first; the other one is dropped. Of two that are ready the one named first.
async fn first<A: Future, B: Future>(one: A, other: B) -> Result<A::Output, B::Output> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| match one.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Ok(output)),
        Poll::Pending => other.as_mut().poll(cx).map(Err),
    })
    .await
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn rests_grow_to_sixteen_seconds() {
        let (mut backoff, mut rng) = (Backoff::default(), ChaCha8Rng::from_seed([1; 32]));
        for _ in 0..2 {
            for seconds in [1, 2, 4, 8, 16, 16, 16] {
                let (rest, about) = (backoff.next(&mut rng), Duration::from_secs(seconds));
                assert!((about * 3 / 4..about * 5 / 4).contains(&rest), "{rest:?} is not about {about:?}");
            }
            backoff.reset();
        }
    }
}
