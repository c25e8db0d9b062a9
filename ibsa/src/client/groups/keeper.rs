//! The task that keeps one group as its members want it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use ibwire::Gid;
use ibwire::mad::Method;
use tokio::sync::{Notify, watch};
use tokio::time::sleep_until;

use super::entry::{Attempt, Entry, Joiner, News, Outcome, Step, is_absent};
use super::{Group, Hold};
use crate::client::keep::{LEAVE, first};
use crate::client::shared::{Owner, Shared, State, now};
use crate::proto::client::{QueryError, Request, SaStatus};
use crate::record::{JoinState, McMemberRecord, Template};

/// The groups of one client.
#[derive(Debug, Default)]
pub(in crate::client) struct Groups {
    next: u64,
    entries: BTreeMap<u64, Entry>,
}

impl Groups {
    fn of(&mut self, mgid: Gid) -> Option<&mut Entry> {
        self.entries.values_mut().find(|entry| entry.mgid == mgid && !mgid.is_unspecified())
    }

    pub(super) fn get(&mut self, id: u64) -> Option<&mut Entry> {
        self.entries.get_mut(&id)
    }

    /// The SM has changed.
    pub(in crate::client) fn renew(&mut self, now: Instant, rng: &mut rand::rngs::ChaCha8Rng) {
        for entry in self.entries.values_mut() {
            entry.renew(now, rng);
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

/// Adds a joiner to its group, which is made and kept by a task if it is new.
pub(super) fn join(
    shared: &Arc<Shared>,
    owner: &Arc<Owner>,
    mgid: Gid,
    joiner: Joiner,
    create: Option<Group>,
) -> Result<(), QueryError> {
    let mut state = shared.lock();
    if let Some(end) = &state.end {
        return Err(end.error());
    }
    if let Some(entry) = state.groups.of(mgid) {
        entry.join(joiner, create);
        entry.kick.notify_one();
        return Ok(());
    }
    let id = state.groups.next;
    state.groups.next += 1;
    let (kick, (tell, news)) = (Arc::new(Notify::new()), watch::channel(News::default()));
    let mut entry = Entry::new(mgid, &kick, news);
    entry.join(joiner, create);
    state.groups.entries.insert(id, entry);
    drop(state);
    let keeper = Keeper { shared: Arc::clone(shared), _owner: Arc::clone(owner), id, kick, news: tell };
    if let Some(runtime) = shared.runtime() {
        runtime.spawn(keeper.run());
    }
    Ok(())
}

/// Keeps one group, and with it the client open.
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
                Step::Idle => self.kick.notified().await,
                Step::Rest(until) => {
                    _ = first(self.kick.notified(), sleep_until(until.into())).await;
                }
                Step::Tell(outcome, news) => self.tell(outcome, news),
                Step::Join(attempt) => self.join(attempt).await,
                Step::Leave(mgid, kind) => self.leave(mgid, kind).await,
            }
        }
    }

    fn step(&self) -> Step {
        let mut state = self.shared.lock();
        let Some(entry) = state.groups.get(self.id) else { return Step::End };
        let step = entry.next(now());
        let over = match step {
            Step::End => state.groups.entries.remove(&self.id),
            _ => None,
        };
        drop(state);
        drop(over);
        step
    }

    async fn join(&self, attempt: Attempt) {
        let result = {
            let mut asking = std::pin::pin!(ask(&self.shared, &attempt));
            loop {
                match first(asking.as_mut(), self.kick.notified()).await {
                    Ok(result) => break Some(result),
                    // A group whose name the SA has yet to tell can only be left after its answer.
                    Err(()) if self.wants(attempt.kind) || attempt.mgid.is_unspecified() => {}
                    Err(()) => break None, // what has been asked for is left again
                }
            }
        };
        let (outcome, news) = {
            let mut state = self.shared.lock();
            let State { groups, rng, .. } = &mut *state;
            let Some(entry) = groups.get(self.id) else { return };
            (entry.joined(now(), &attempt, result, rng), entry.news.clone())
        };
        self.tell(outcome, news);
    }

    /// Without the lock: it wakes tasks, and what nobody takes is given up.
    fn tell(&self, outcome: Outcome, mut news: watch::Receiver<News>) {
        let Outcome { joined, failed, news: said, loud } = outcome;
        match said {
            Some(Ok(record)) => self.change(loud, |news| *news = News { record, error: None }),
            Some(Err(error)) => self.change(loud, |news| news.error = Some(error)),
            None => {}
        }
        news.mark_unchanged();
        for joiner in joined {
            let hold = Hold::new(&self.shared, self.id, joiner.kind);
            _ = joiner.joined.send(Ok((hold, news.clone()))); // who has gone leaves again
        }
        for (joiner, error) in failed {
            _ = joiner.joined.send(Err(error)); // who has gone knows it
        }
    }

    fn change(&self, loud: bool, f: impl FnOnce(&mut News)) {
        self.news.send_if_modified(|news| {
            f(news);
            loud
        });
    }

    fn wants(&self, kind: JoinState) -> bool {
        self.shared.lock().groups.get(self.id).is_some_and(|entry| entry.wanted().contains(kind))
    }

    async fn leave(&self, mgid: Gid, kind: JoinState) {
        let result = if mgid.is_unspecified() { Ok(()) } else { leave(&self.shared, mgid, kind).await };
        let gone = {
            let mut state = self.shared.lock();
            let Some(entry) = state.groups.get(self.id) else { return };
            entry.left(kind)
        };
        tracing::debug!(port = self.shared.port, %mgid, %kind, ?result, "a multicast group is left");
        for left in gone {
            _ = left.send(result.clone()); // who does not wait for it has asked for it all the same
        }
    }
}

impl Drop for Keeper {
    /// Also where the runtime ends.
    fn drop(&mut self) {
        let entry = self.shared.lock().groups.entries.remove(&self.id);
        drop(entry);
    }
}

/// Joins a group, or makes it if there is none.
async fn ask(shared: &Arc<Shared>, attempt: &Attempt) -> Result<McMemberRecord, QueryError> {
    let port_gid = shared.lock().gid.ok_or(QueryError::NoSa)?;
    let deadline = attempt.deadline.unwrap_or_else(|| shared.deadline());
    let member = |template: Template<McMemberRecord>| {
        template.mgid(attempt.mgid).port_gid(port_gid).join_state(attempt.kind)
    };
    if !attempt.mgid.is_unspecified() {
        let joined = set(shared, member(Template::new()), deadline).await;
        match joined {
            Err(QueryError::Status(status)) if attempt.create.is_some() && is_absent(status) => {}
            joined => return check(attempt.mgid, joined?),
        }
    }
    let Some(group) = &attempt.create else { return Err(QueryError::NoGroup(attempt.mgid)) };
    check(attempt.mgid, set(shared, member(group.template()), deadline).await?)
}

async fn set(
    shared: &Arc<Shared>,
    member: Template<McMemberRecord>,
    deadline: Instant,
) -> Result<McMemberRecord, QueryError> {
    shared.request(Request::new(Method::SET, member, deadline)?).await?.record()
}

/// The answer is about the group that was asked for.
fn check(mgid: Gid, record: McMemberRecord) -> Result<McMemberRecord, QueryError> {
    match record.mgid.is_multicast() && (mgid.is_unspecified() || record.mgid == mgid) {
        true => Ok(record),
        false => Err(QueryError::OtherGroup(record.mgid)),
    }
}

/// Leaves a group. Who is not in it has left it (spec/sa.md T67).
async fn leave(shared: &Arc<Shared>, mgid: Gid, kind: JoinState) -> Result<(), QueryError> {
    let port_gid = shared.lock().gid.ok_or(QueryError::NoSa)?;
    let member = Template::<McMemberRecord>::new().mgid(mgid).port_gid(port_gid).join_state(kind);
    let request = Request::new(Method::DELETE, member, now() + LEAVE)?;
    match shared.request(request).await {
        Err(QueryError::Status(SaStatus::REQUEST_INVALID | SaStatus::NO_RECORDS)) => Ok(()),
        answer => answer.map(drop),
    }
}
