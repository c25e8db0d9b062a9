//! What the task that keeps a service registered does.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ibwire::mad::Method;
use ibwire::{PKey, ServiceId};
use rand::rngs::ChaCha8Rng;
use tokio::sync::oneshot;

use crate::client::keep::{Backoff, Entries, Entry, Keeper, Kept, LEAVE, Reply, Step, keep, spread};
use crate::client::shared::{Owner, Shared, State, now};
use crate::proto::client::{QueryError, Request, SaStatus};
use crate::record::{ServiceRecord, Template};

/// What tells the records of one port apart (spec/sa.md 6.1).
type Key = (ServiceId, PKey);

/// A service that is registered, or was.
#[derive(Debug)]
pub(in crate::client) struct Service {
    key: Key,
    /// Counts what was to be registered: the answer about one is none about the next.
    turn: u64,
    /// What to register; `None`: nothing any more.
    wanted: Option<Wanted>,
    /// Who waits for the first time.
    asking: Option<Asking>,
    cancelling: Vec<Reply>,
    /// What the SA has, or may have: the record that removes it.
    at_sa: Option<Template<ServiceRecord>>,
    /// When to register it. Far away if the SA has it for ever.
    due: Option<Instant>,
    /// The SA may not have it any more, or has not for a while: who holds it hears when it is there again.
    lost: bool,
    backoff: Backoff,
}

type Asking = oneshot::Sender<Result<Kept<Service>, QueryError>>;

#[derive(Debug, Clone)]
pub(in crate::client) struct Wanted {
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
    pub(super) registered: Asking,
}

/// What is to be done for a service.
pub(in crate::client) enum Work {
    Register(u64, Wanted),
    Remove(Template<ServiceRecord>),
}

/// Begins to keep a service registered.
pub(super) fn register(
    shared: &Arc<Shared>,
    owner: &Arc<Owner>,
    key: Key,
    asked: Asked,
) -> Result<(), QueryError> {
    let mut state = shared.lock();
    state.takes_more()?;
    let wanted = Wanted { record: asked.wanted, lease: asked.lease, deadline: Some(asked.deadline) };
    let due = Some(now());
    if let Some(service) = state.services.find(|service| service.key == key) {
        let given_up = service.asking.as_ref().is_some_and(oneshot::Sender::is_closed);
        if service.wanted.is_some() && !given_up {
            return Err(QueryError::Registered(key.0));
        }
        // It is being removed, and comes again after that.
        service.turn += 1;
        (service.wanted, service.due, service.lost) = (Some(wanted), due, false);
        let before = service.asking.replace(asked.registered);
        drop(state);
        drop(before);
        return Ok(());
    }
    let service = Service {
        key,
        turn: 0,
        wanted: Some(wanted),
        asking: Some(asked.registered),
        cancelling: Vec::new(),
        at_sa: None,
        due,
        lost: false,
        backoff: Backoff::default(),
    };
    keep(shared, owner, state, service);
    Ok(())
}

impl Entry for Service {
    type Record = ServiceRecord;
    type Claim = ();
    type Work = Work;
    type Waiting = Option<Asking>;

    fn all(state: &mut State) -> &mut Entries<Self> {
        &mut state.services
    }

    fn next(&mut self, now: Instant) -> Step<Work> {
        if self.asking.as_ref().is_some_and(oneshot::Sender::is_closed) {
            (self.asking, self.wanted) = (None, None);
        }
        let Some(wanted) = &self.wanted else {
            return self.at_sa.clone().map_or(Step::End, |rid| Step::Do(Work::Remove(rid)));
        };
        // Somebody waits until it is removed; afterwards it comes again.
        if let Some(rid) = self.at_sa.as_ref().filter(|_| !self.cancelling.is_empty()) {
            return Step::Do(Work::Remove(rid.clone()));
        }
        match self.due {
            Some(due) if due <= now => Step::Do(Work::Register(self.turn, wanted.clone())),
            due => Step::Rest(due),
        }
    }

    async fn work(keeper: &Keeper<Self>, work: Work) {
        match work {
            Work::Register(turn, wanted) => try_to_register(keeper, turn, wanted).await,
            Work::Remove(rid) => remove(keeper, rid).await,
        }
    }

    fn renew(&mut self, now: Instant, rng: &mut ChaCha8Rng) {
        self.lost = true;
        self.backoff.reset();
        self.due = Some(now + spread(rng));
    }

    fn release(&mut self, (): (), reply: Option<Reply>) -> Option<Reply> {
        self.wanted = None;
        self.cancelling.extend(reply);
        None
    }

    fn abandon(&mut self) -> Option<Asking> {
        self.wanted = None;
        self.asking.take()
    }

    /// Nothing of it is at the SA.
    fn over(self) {
        for cancelled in self.cancelling {
            _ = cancelled.send(Ok(())); // who does not wait for it has asked for it all the same
        }
    }
}

impl Service {
    /// Whether somebody still wants what is being registered.
    fn is_wanted(&self, turn: u64) -> bool {
        let given_up = self.asking.as_ref().is_some_and(oneshot::Sender::is_closed);
        self.turn == turn && self.wanted.is_some() && !given_up
    }

    /// What the SA said; who waited for it, and whether holders are to hear it. Nothing if something else is wanted by now.
    fn registered(
        &mut self,
        turn: u64,
        began: Instant,
        lease: u32,
        result: &Result<ServiceRecord, QueryError>,
        rng: &mut ChaCha8Rng,
    ) -> Option<(Option<Asking>, bool)> {
        if self.turn != turn {
            return None;
        }
        let asking = self.asking.take();
        // Who waits is told that, holders what is out of the ordinary.
        let loud = asking.is_none() && (result.is_err() || self.lost);
        match result {
            Ok(_) => {
                self.lost = self.due.is_some_and(|due| due > began); // the SM has changed meanwhile
                self.backoff.reset();
                if !self.lost {
                    let half = Duration::from_secs(lease.into()) / 2;
                    self.due = (lease != ServiceRecord::FOR_EVER).then(|| began + half);
                }
                if let Some(wanted) = &mut self.wanted {
                    wanted.deadline = None; // of the first time
                }
            }
            Err(_) if asking.is_some() => self.wanted = None,
            Err(_) => {
                self.lost = true;
                self.due = Some(now() + self.backoff.next(rng));
            }
        }
        Some((asking, loud))
    }
}

async fn try_to_register(keeper: &Keeper<Service>, turn: u64, wanted: Wanted) {
    let began = now();
    let result = keeper.while_wanted(ask(keeper, &wanted), |service| service.is_wanted(turn)).await;
    let Some(result) = result else { return }; // what has been asked for is removed again
    let registered = {
        let mut state = keeper.shared.lock();
        let State { services, rng, .. } = &mut *state;
        let service = services.get(keeper.id);
        service.and_then(|service| service.registered(turn, began, wanted.lease, &result, rng))
    };
    let Some((asking, loud)) = registered else { return };
    // Without the lock: it wakes tasks, and what nobody takes is given up.
    keeper.tell(result.clone(), loud);
    if let Some(asking) = asking {
        _ = asking.send(result.map(|_| keeper.hold(()))); // who has gone cancels
    }
}

async fn ask(keeper: &Keeper<Service>, wanted: &Wanted) -> Result<ServiceRecord, QueryError> {
    let shared = &keeper.shared;
    let gid = shared.lock().gid.ok_or(QueryError::NoSa)?;
    let record = wanted.record.clone().service_gid(gid);
    let (asked, _) = record.clone().checked()?;
    let rid = Template::<ServiceRecord>::new().service_id(asked.service_id);
    let rid = rid.service_gid(gid).service_p_key(asked.service_p_key);
    let deadline = wanted.deadline.unwrap_or_else(|| shared.deadline());
    let request = Request::new(Method::SET, record, deadline)?;
    let before = note(keeper, Some(rid));
    let result = shared.request(request).await;
    if let Err(QueryError::Status(_)) = &result {
        note(keeper, before); // it has not been changed
    }
    result?.record()
}

/// Notes what the SA may have from now on; what it was before.
fn note(keeper: &Keeper<Service>, rid: Option<Template<ServiceRecord>>) -> Option<Template<ServiceRecord>> {
    let mut state = keeper.shared.lock();
    let service = state.services.get(keeper.id)?;
    std::mem::replace(&mut service.at_sa, rid)
}

/// Removes the record. What is not there is removed.
async fn remove(keeper: &Keeper<Service>, rid: Template<ServiceRecord>) {
    let shared = &keeper.shared;
    let removed = match Request::new(Method::DELETE, rid, now() + LEAVE) {
        Ok(request) => shared.request(request).await.map(drop),
        Err(invalid) => Err(invalid.into()),
    };
    let result = match removed {
        Err(QueryError::Status(SaStatus::NO_RECORDS)) => Ok(()),
        removed => removed,
    };
    let cancelling = match shared.lock().services.get(keeper.id) {
        Some(service) => {
            service.at_sa = None;
            std::mem::take(&mut service.cancelling)
        }
        None => return,
    };
    tracing::debug!(port = shared.port, ?result, "a service is cancelled");
    for cancelled in cancelling {
        _ = cancelled.send(result.clone()); // who does not wait for it has asked for it all the same
    }
}
