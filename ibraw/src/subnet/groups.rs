//! The groups of a socket, and how they are joined: where there is an SA by that, else in the subnet's own table.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ibdev::RawDest;
use ibsa::{Membership, QueryError};
use ibwire::{Gid, Lid, QKey, Rate};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::mgid::{BROADCAST, mgid};
use super::queue::{Queue, dest};
use super::{SubnetPort, sa};
use crate::backend::NotSent;
use crate::{Group, RawError};

/// The Q_Key that IP over InfiniBand gives its groups unless it is told otherwise.
const IPOIB_Q_KEY: QKey = QKey(0x0b1b);

/// Groups that a socket has joined to send to, at most; then the one that was not sent to for the longest time is left.
const SENT_TO: usize = 1024;

#[derive(Debug)]
pub(super) struct Groups {
    port: Arc<SubnetPort>,
    queue: Weak<Queue>,
    state: Mutex<State>,
    /// For who waits, that a group is lost.
    losses: Notify,
}

#[derive(Debug, Default)]
struct State {
    joined: HashMap<Gid, Joined>,
    /// At the SA, to send alone.
    sent_to: HashMap<Gid, SentTo>,
    /// Counts what was sent to those.
    sends: u64,
    /// The group of all stations of IP over InfiniBand, without which the SA makes none of an IPv6 address (RFC 4391 5).
    all: Option<Membership>,
}

/// A group that the port has joined to send to.
#[derive(Debug)]
struct SentTo {
    membership: Membership,
    /// The count of sends when it was sent to last.
    last: u64,
}

/// A group of the subnet.
#[derive(Debug)]
struct Joined {
    /// Those of the link that it stands for.
    groups: Vec<Group>,
    way: RawDest,
    /// The LID that the queue pair hears.
    heard: Option<Lid>,
    /// Why nothing of it comes any more, until somebody was told.
    untold: Option<RawError>,
    /// Keeps the membership at the SA. With it the group is left.
    _keeper: Option<AbortOnDropHandle<()>>,
}

impl Groups {
    pub(super) fn new(port: &Arc<SubnetPort>, queue: &Arc<Queue>) -> Arc<Self> {
        let (port, queue) = (port.clone(), Arc::downgrade(queue));
        Arc::new(Self { port, queue, state: Mutex::default(), losses: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> Result<Arc<Queue>, RawError> {
        self.queue.upgrade().ok_or(RawError::Closed)
    }

    /// Whether the socket has joined that group itself, and not only one that shares its address in the subnet.
    pub(super) fn has(&self, group: &Group) -> bool {
        let mgid = mgid(group).ok();
        mgid.is_some_and(|mgid| {
            self.state().joined.get(&mgid).is_some_and(|joined| joined.groups.contains(group))
        })
    }

    /// Whether it is a group that can be sent to, now or when its way was found.
    pub(super) fn check(&self, group: &Group) -> Result<(), RawError> {
        mgid(group)?;
        self.port.attr().map(drop)
    }

    /// Where to send what is for a group.
    pub(super) fn way(&self, group: &Group) -> Result<RawDest, NotSent> {
        let mgid = mgid(group)?;
        let mut state = self.state();
        if let Some(joined) = state.joined.get(&mgid) {
            return Ok(joined.way);
        }
        state.sends += 1;
        let now = state.sends;
        if let Some(sent_to) = state.sent_to.get_mut(&mgid) {
            sent_to.last = now;
            return Ok(way(&sent_to.membership));
        }
        self.port.local(mgid)?.ok_or(NotSent::NoWay)
    }

    /// Finds the way to a group that was not joined: the SA knows it.
    pub(super) async fn find(&self, group: &Group) -> Result<(), RawError> {
        let mgid = mgid(group)?;
        // Nobody need be in it: it is made for what is sent, as a link has every group.
        let join = self.sa(group).await?.join(mgid).send_only_full().or_create(made());
        let membership = join.await.map_err(no_way)?;
        let mut state = self.state();
        if state.sent_to.len() >= SENT_TO {
            let idle = state.sent_to.iter().min_by_key(|(_, sent_to)| sent_to.last).map(|(mgid, _)| *mgid);
            idle.and_then(|idle| state.sent_to.remove(&idle));
        }
        let last = state.sends;
        state.sent_to.insert(mgid, SentTo { membership, last });
        Ok(())
    }

    /// The SA, which makes the group if there is none.
    async fn sa(&self, group: &Group) -> Result<ibsa::Client, RawError> {
        let client = sa::client(&self.port)?;
        if matches!(group, Group::Ipv6(_)) && self.state().all.is_none() {
            let join = client.join(BROADCAST).or_create(ibsa::Group::new(IPOIB_Q_KEY));
            let all = join.await.map_err(no_way)?;
            self.state().all = Some(all);
        }
        Ok(client)
    }

    /// One at a time.
    pub(super) async fn join(self: &Arc<Self>, group: &Group) -> Result<(), RawError> {
        let mgid = mgid(group)?;
        if let Some(joined) = self.state().joined.get_mut(&mgid) {
            joined.groups.push(*group);
            return Ok(());
        }
        let (membership, way) = match self.port.local(mgid)? {
            Some(way) => (None, way),
            None => {
                let join = self.sa(group).await?.join(mgid).or_create(made());
                let membership = join.await.map_err(no_way)?;
                let way = way(&membership);
                (Some(membership), way)
            }
        };
        let mut state = self.state();
        self.queue()?.attach(mgid, way.dlid)?;
        let keeper = membership.map(|membership| tokio::spawn(keep(Arc::downgrade(self), membership)));
        let _keeper = keeper.map(AbortOnDropHandle::new);
        state
            .joined
            .insert(mgid, Joined { groups: vec![*group], way, heard: Some(way.dlid), untold: None, _keeper });
        Ok(())
    }

    pub(super) fn leave(&self, group: &Group) -> Result<(), RawError> {
        let mgid = mgid(group)?;
        let mut state = self.state();
        let Some(joined) = state.joined.get_mut(&mgid) else { return Err(RawError::NotMember(*group)) };
        // Two groups of a link may be one here: each has its own entry.
        let Some(at) = joined.groups.iter().position(|other| other == group) else {
            return Err(RawError::NotMember(*group));
        };
        joined.groups.swap_remove(at);
        if joined.groups.is_empty() {
            let heard = joined.heard;
            state.joined.remove(&mgid);
            heard.map_or(Ok(()), |lid| self.queue()?.detach(mgid, lid))?;
        }
        Ok(())
    }

    /// The SA has taken the port into a group again, perhaps with another LID.
    fn moved(&self, mgid: Gid, now: RawDest) -> Result<(), RawError> {
        let mut state = self.state();
        let Some(joined) = state.joined.get_mut(&mgid) else { return Ok(()) };
        joined.way = now;
        if joined.heard != Some(now.dlid) {
            let queue = self.queue()?;
            let hears = queue.attach(mgid, now.dlid);
            if let Some(before) = joined.heard.take() {
                queue.detach(mgid, before)?;
            }
            if hears.is_err() {
                queue.attach(mgid, now.dlid)?; // there may be room for it now
            }
            joined.heard = Some(now.dlid);
        }
        joined.untold = None;
        Ok(())
    }

    /// The group is there now, or is not to be had for this reason, which is said to who receives.
    pub(super) fn follow(&self, mgid: Gid, now: Result<RawDest, RawError>) {
        let Err(why) = now.and_then(|now| self.moved(mgid, now)) else { return };
        if let Some(joined) = self.state().joined.get_mut(&mgid) {
            joined.untold = Some(why);
        }
        self.losses.notify_one();
    }

    /// A group of which nothing comes any more, and that nobody was told of: once it has been lost.
    pub(super) async fn loss(&self) -> RawError {
        loop {
            let lost = {
                let mut state = self.state();
                let lost = |joined: &mut Joined| Some((*joined.groups.first()?, joined.untold.take()?));
                state.joined.values_mut().find_map(lost)
            };
            if let Some((group, why)) = lost {
                return RawError::GroupLost { group, source: Box::new(why) };
            }
            self.losses.notified().await;
        }
    }
}

/// Keeps a queue pair attached to the LID that its group has, until the group is left.
async fn keep(groups: Weak<Groups>, mut membership: Membership) {
    loop {
        let changed = membership.changed().await;
        let Some(groups) = groups.upgrade() else { return };
        let now = match changed {
            Ok(_) => Ok(way(&membership)),
            // The device is gone: who waits hears of that.
            Err(QueryError::Closed | QueryError::Device(_)) => return,
            Err(error) => Err(no_way(error)), // it is tried again
        };
        groups.follow(membership.mgid(), now);
    }
}

/// A group that there was not yet. Packets carry neither of its keys (spec/raw.md 4.6).
fn made() -> ibsa::Group {
    ibsa::Group::new(QKey::default())
}

fn way(membership: &Membership) -> RawDest {
    let record = membership.record();
    RawDest { dlid: record.mlid, sl: record.sl, path_bits: 0, rate: Rate::PORT_CURRENT }
}

fn no_way(error: QueryError) -> RawError {
    match error {
        QueryError::Status(_) => RawError::InvalidDest("the subnet has no such group, or the SA refuses it"),
        error => super::not_answered(error),
    }
}

impl SubnetPort {
    /// The way to a group as the subnet's own table has it; `None` where that is the SA's affair.
    fn local(&self, mgid: Gid) -> Result<Option<RawDest>, RawError> {
        self.attr()?;
        Ok(self.device.resolve(self.port, mgid).map(|path| dest(&path)))
    }
}
