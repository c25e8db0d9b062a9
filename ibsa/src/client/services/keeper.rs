//! The task that keeps one service registered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ibwire::mad::Method;
use ibwire::{PKey, ServiceId};
use rand::rngs::ChaCha8Rng;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::sleep_until;

use super::Hold;
use crate::client::keep::{Backoff, LEAVE, first, spread};
use crate::client::shared::{Owner, Shared, State, now};
use crate::proto::client::{QueryError, Request, SaStatus};
use crate::record::{ServiceRecord, Template};

/// What tells the records of one port apart (spec/sa.md 6.1).
type Key = (ServiceId, PKey);

/// The services of one client.
#[derive(Debug, Default)]
pub(in crate::client) struct Services {
    next: u64,
    entries: BTreeMap<u64, Entry>,
}

/// A service that is registered, or was.
#[derive(Debug)]
struct Entry {
    key: Key,
    /// Counts what was to be registered: the answer about one is none about the next.
    turn: u64,
    /// What to register; `None`: nothing any more.
    wanted: Option<Wanted>,
    /// Who waits for the first time.
    asking: Option<oneshot::Sender<Result<Registered, QueryError>>>,
    cancelling: Vec<oneshot::Sender<Result<(), QueryError>>>,
    /// What the SA has, or may have: the record that removes it.
    at_sa: Option<Template<ServiceRecord>>,
    /// When to register it. Far away if the SA has it for ever.
    due: Option<Instant>,
    /// The SA may not have it any more, or has not for a while: who holds it hears when it is there again.
    lost: bool,
    backoff: Backoff,
    kick: Arc<Notify>,
    news: watch::Receiver<News>,
}

#[derive(Debug, Clone)]
struct Wanted {
    /// All but the port's GID.
    record: Template<ServiceRecord>,
    lease: u32,
    deadline: Option<Instant>,
}

/// A registration that somebody waits for.
pub(super) struct Asked {
    pub(super) wanted: Template<ServiceRecord>,
    pub(super) lease: u32,
    pub(super) deadline: Instant,
    pub(super) registered: oneshot::Sender<Result<Registered, QueryError>>,
}

/// What who waits gets.
pub(super) type Registered = (Hold, watch::Receiver<News>);

/// What the holder of a registration hears.
#[derive(Debug, Clone, Default)]
pub(super) struct News {
    /// The record as the SA gave it last.
    pub(super) record: ServiceRecord,
    /// Why it could not be renewed.
    pub(super) error: Option<QueryError>,
}

/// What is to be done for a service.
enum Step {
    End,
    Rest(Option<Instant>),
    Register(u64, Wanted),
    Remove(Template<ServiceRecord>),
}

impl Services {
    /// The SM has changed.
    pub(in crate::client) fn renew(&mut self, now: Instant, rng: &mut ChaCha8Rng) {
        for entry in self.entries.values_mut() {
            entry.lost = true;
            entry.backoff.reset();
            entry.due = Some(now + spread(rng));
            entry.kick.notify_one();
        }
    }

    /// The client is over. Whoever waits hears of it when what is given back is dropped.
    pub(in crate::client) fn end(&mut self) -> impl Sized + use<> {
        let entries = std::mem::take(&mut self.entries);
        entries.values().for_each(|entry| entry.kick.notify_one());
        entries
    }
}

impl Entry {
    fn next(&mut self, now: Instant) -> Step {
        if self.asking.as_ref().is_some_and(oneshot::Sender::is_closed) {
            (self.asking, self.wanted) = (None, None);
        }
        let Some(wanted) = &self.wanted else {
            return self.at_sa.clone().map_or(Step::End, Step::Remove);
        };
        match self.due {
            Some(due) if due <= now => Step::Register(self.turn, wanted.clone()),
            due => Step::Rest(due),
        }
    }
}

/// Begins to keep a service registered.
pub(super) fn register(
    shared: &Arc<Shared>,
    owner: &Arc<Owner>,
    key: Key,
    asked: Asked,
) -> Result<(), QueryError> {
    let mut state = shared.lock();
    if let Some(end) = &state.end {
        return Err(end.error());
    }
    let wanted = Wanted { record: asked.wanted, lease: asked.lease, deadline: Some(asked.deadline) };
    let due = Some(now());
    if let Some(entry) = state.services.entries.values_mut().find(|entry| entry.key == key) {
        let given_up = entry.asking.as_ref().is_some_and(oneshot::Sender::is_closed);
        if entry.wanted.is_some() && !given_up {
            return Err(QueryError::Registered(key.0));
        }
        // It is being removed, and comes again after that.
        entry.turn += 1;
        (entry.wanted, entry.due, entry.lost) = (Some(wanted), due, false);
        let before = entry.asking.replace(asked.registered);
        entry.kick.notify_one();
        drop(state);
        drop(before);
        return Ok(());
    }
    let id = state.services.next;
    state.services.next += 1;
    let (kick, (tell, news)) = (Arc::new(Notify::new()), watch::channel(News::default()));
    let entry = Entry {
        key,
        turn: 0,
        wanted: Some(wanted),
        asking: Some(asked.registered),
        cancelling: Vec::new(),
        at_sa: None,
        due,
        lost: false,
        backoff: Backoff::default(),
        kick: Arc::clone(&kick),
        news,
    };
    state.services.entries.insert(id, entry);
    drop(state);
    let keeper = Keeper { shared: Arc::clone(shared), _owner: Arc::clone(owner), id, kick, news: tell };
    if let Some(runtime) = shared.runtime() {
        runtime.spawn(keeper.run());
    }
    Ok(())
}

/// The holder gives it up.
pub(super) fn cancel(shared: &Shared, id: u64, cancelled: Option<oneshot::Sender<Result<(), QueryError>>>) {
    let mut state = shared.lock();
    // The client may be over.
    if let Some(entry) = state.services.entries.get_mut(&id) {
        entry.wanted = None;
        entry.cancelling.extend(cancelled);
        entry.kick.notify_one();
    }
}

/// Keeps one service registered, and with it the client open.
struct Keeper {
    shared: Arc<Shared>,
    _owner: Arc<Owner>,
    id: u64,
    kick: Arc<Notify>,
    news: watch::Sender<News>,
}

impl Keeper {
    async fn run(self) {
        loop {
            match self.step() {
                Step::End => return,
                Step::Rest(None) => self.kick.notified().await,
                Step::Rest(Some(until)) => {
                    _ = first(self.kick.notified(), sleep_until(until.into())).await;
                }
                Step::Register(turn, wanted) => self.register(turn, wanted).await,
                Step::Remove(record) => self.remove(record).await,
            }
        }
    }

    fn step(&self) -> Step {
        let mut state = self.shared.lock();
        let Some(entry) = state.services.entries.get_mut(&self.id) else { return Step::End };
        let step = entry.next(now());
        let over = match step {
            Step::End => state.services.entries.remove(&self.id),
            _ => None,
        };
        drop(state);
        // Nothing of it is at the SA.
        for cancelled in over.into_iter().flat_map(|entry| entry.cancelling) {
            _ = cancelled.send(Ok(()));
        }
        step
    }

    /// Whether somebody still wants what is being registered.
    fn is_wanted(&self, turn: u64) -> bool {
        let state = self.shared.lock();
        let entry = state.services.entries.get(&self.id);
        let given_up = |asking: &oneshot::Sender<_>| asking.is_closed();
        entry
            .filter(|entry| entry.turn == turn && entry.wanted.is_some())
            .is_some_and(|entry| !entry.asking.as_ref().is_some_and(given_up))
    }

    async fn register(&self, turn: u64, wanted: Wanted) {
        let began = now();
        let result = {
            let mut asking = std::pin::pin!(self.ask(&wanted));
            loop {
                match first(asking.as_mut(), self.kick.notified()).await {
                    Ok(result) => break result,
                    Err(()) if self.is_wanted(turn) => {}
                    Err(()) => return, // what has been asked for is removed again
                }
            }
        };
        let (asking, news, loud) = {
            let mut state = self.shared.lock();
            let State { services, rng, .. } = &mut *state;
            let entry = services.entries.get_mut(&self.id).filter(|entry| entry.turn == turn);
            let Some(entry) = entry else { return };
            let asking = entry.asking.take();
            // Who waits is told that, holders what is out of the ordinary.
            let loud = asking.is_none() && (result.is_err() || entry.lost);
            match &result {
                Ok(_) => {
                    entry.lost = entry.due.is_some_and(|due| due > began); // the SM has changed meanwhile
                    entry.backoff.reset();
                    if !entry.lost {
                        let half = Duration::from_secs(wanted.lease.into()) / 2;
                        entry.due = (wanted.lease != ServiceRecord::FOR_EVER).then(|| began + half);
                    }
                    if let Some(wanted) = &mut entry.wanted {
                        wanted.deadline = None; // of the first time
                    }
                }
                Err(_) if asking.is_some() => entry.wanted = None,
                Err(_) => {
                    entry.lost = true;
                    entry.due = Some(now() + entry.backoff.next(rng));
                }
            }
            (asking, entry.news.clone(), loud)
        };
        self.tell(result, asking, news, loud);
    }

    /// Without the lock: it wakes tasks, and what nobody takes is given up.
    fn tell(
        &self,
        result: Result<ServiceRecord, QueryError>,
        asking: Option<oneshot::Sender<Result<Registered, QueryError>>>,
        mut news: watch::Receiver<News>,
        loud: bool,
    ) {
        self.news.send_if_modified(|news| {
            match &result {
                Ok(record) => *news = News { record: record.clone(), error: None },
                Err(error) => news.error = Some(error.clone()),
            }
            loud
        });
        news.mark_unchanged();
        if let Some(asking) = asking {
            let answer = result.map(|_| (Hold::new(&self.shared, self.id), news));
            _ = asking.send(answer); // who has gone cancels
        }
    }

    async fn ask(&self, wanted: &Wanted) -> Result<ServiceRecord, QueryError> {
        let gid = self.shared.lock().gid.ok_or(QueryError::NoSa)?;
        let record = wanted.record.clone().service_gid(gid);
        let (asked, _) = record.clone().checked()?;
        let rid = Template::<ServiceRecord>::new().service_id(asked.service_id);
        let rid = rid.service_gid(gid).service_p_key(asked.service_p_key);
        let deadline = wanted.deadline.unwrap_or_else(|| self.shared.deadline());
        let request = Request::new(Method::SET, record, deadline)?;
        let before = self.note(Some(rid));
        let result = self.shared.request(request).await;
        if let Err(QueryError::Status(_)) = &result {
            self.note(before); // it has not been changed
        }
        result?.record()
    }

    /// Notes what the SA may have from now on; what it was before.
    fn note(&self, rid: Option<Template<ServiceRecord>>) -> Option<Template<ServiceRecord>> {
        let mut state = self.shared.lock();
        let entry = state.services.entries.get_mut(&self.id)?;
        std::mem::replace(&mut entry.at_sa, rid)
    }

    /// Removes the record. What is not there is removed.
    async fn remove(&self, rid: Template<ServiceRecord>) {
        let removed = match Request::new(Method::DELETE, rid, now() + LEAVE) {
            Ok(request) => self.shared.request(request).await.map(drop),
            Err(invalid) => Err(invalid.into()),
        };
        let result = match removed {
            Err(QueryError::Status(SaStatus::NO_RECORDS)) => Ok(()),
            removed => removed,
        };
        let cancelling = {
            let mut state = self.shared.lock();
            let Some(entry) = state.services.entries.get_mut(&self.id) else { return };
            entry.at_sa = None;
            std::mem::take(&mut entry.cancelling)
        };
        tracing::debug!(port = self.shared.port, ?result, "a service is cancelled");
        for cancelled in cancelling {
            _ = cancelled.send(result.clone()); // who does not wait for it has asked for it all the same
        }
    }
}

impl Drop for Keeper {
    /// Also where the runtime ends.
    fn drop(&mut self) {
        let entry = self.shared.lock().services.entries.remove(&self.id);
        drop(entry);
    }
}
