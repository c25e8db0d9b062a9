//! What the task that keeps a group does.

use std::sync::Arc;
use std::time::Instant;

use ibwire::Gid;
use ibwire::mad::Method;
use rand::rngs::ChaCha8Rng;

use super::Group;
use super::entry::{Attempt, Joiner, Outcome, PortGroup, Work, is_absent};
use crate::client::keep::{Entries, Entry, Keeper, LEAVE, Reply, Step, keep};
use crate::client::shared::{Owner, Shared, State, now};
use crate::proto::client::{QueryError, Request, SaStatus};
use crate::record::{JoinState, McMemberRecord, Template};

/// Adds a joiner to its group, which is made and kept by a task if it is new.
pub(super) fn join(
    shared: &Arc<Shared>,
    owner: &Arc<Owner>,
    mgid: Gid,
    joiner: Joiner,
    create: Option<Group>,
) -> Result<(), QueryError> {
    let mut state = shared.lock();
    state.takes_more()?;
    if let Some(group) = state.groups.find(|group| group.mgid == mgid && !mgid.is_unspecified()) {
        group.join(joiner, create);
        return Ok(());
    }
    let mut group = PortGroup::new(mgid);
    group.join(joiner, create);
    keep(shared, owner, state, group);
    Ok(())
}

impl Entry for PortGroup {
    type Record = McMemberRecord;
    type Claim = JoinState;
    type Work = Work;
    type Waiting = Vec<Joiner>;

    fn all(state: &mut State) -> &mut Entries<Self> {
        &mut state.groups
    }

    fn next(&mut self, now: Instant) -> Step<Work> {
        self.next_step(now)
    }

    async fn work(keeper: &Keeper<Self>, work: Work) {
        match work {
            Work::Tell(outcome) => tell(keeper, outcome),
            Work::Join(attempt) => try_to_join(keeper, attempt).await,
            Work::Leave(mgid, kind) => try_to_leave(keeper, mgid, kind).await,
        }
    }

    fn renew(&mut self, now: Instant, rng: &mut ChaCha8Rng) {
        self.join_again(now, rng);
    }

    fn release(&mut self, kind: JoinState, reply: Option<Reply>) -> Option<Reply> {
        self.leave(kind, reply)
    }

    fn abandon(&mut self) -> Vec<Joiner> {
        self.expel()
    }
}

async fn try_to_join(keeper: &Keeper<PortGroup>, attempt: Attempt) {
    // A group whose name the SA has yet to tell can only be left after its answer. What nobody wants any more is left again.
    let wanted =
        |group: &mut PortGroup| group.wanted().contains(attempt.kind) || attempt.mgid.is_unspecified();
    let result = keeper.while_wanted(ask(&keeper.shared, &attempt), wanted).await;
    let outcome = {
        let mut state = keeper.shared.lock();
        let State { groups, rng, .. } = &mut *state;
        let Some(group) = groups.get(keeper.id) else { return };
        group.joined(now(), &attempt, result, rng)
    };
    tell(keeper, outcome);
}

/// Without the lock: it wakes tasks, and what nobody takes is given up.
fn tell(keeper: &Keeper<PortGroup>, outcome: Outcome) {
    let Outcome { joined, left, failed, news, loud } = outcome;
    if let Some(news) = news {
        keeper.tell(news, loud);
    }
    for joiner in joined {
        _ = joiner.joined.send(Ok(keeper.hold(joiner.kind))); // who has gone leaves again
    }
    for left in left {
        _ = left.send(Ok(())); // who does not wait for it has asked for it all the same
    }
    for (joiner, error) in failed {
        _ = joiner.joined.send(Err(error)); // who has gone knows it
    }
}

async fn try_to_leave(keeper: &Keeper<PortGroup>, mgid: Gid, kind: JoinState) {
    let shared = &keeper.shared;
    let result = if mgid.is_unspecified() { Ok(()) } else { leave(shared, mgid, kind).await };
    let gone = match shared.lock().groups.get(keeper.id) {
        Some(group) => group.left(kind),
        None => return,
    };
    tracing::debug!(port = shared.port, %mgid, %kind, ?result, "a multicast group is left");
    for left in gone {
        _ = left.send(result.clone()); // who does not wait for it has asked for it all the same
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
