//! The groups of a socket, and how they are joined: where there is an SA by that, else in the subnet's own table.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use ibdev::RawDest;
use ibsa::{Membership, QueryError};
use ibwire::{Gid, Lid, QKey, Rate};
use tokio::sync::Notify;
use tokio::task::coop::unconstrained;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::mgid::{BROADCAST, mgid};
use super::queue::{Queue, dest};
use super::{SubnetPort, not_asked, sa};
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
    /// How many groups it is in to send to, at most.
    pub(super) bound: usize,
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
    /// The SM has changed, and whether the group still is where it was is not known.
    is_lost: bool,
    /// The count of sends when it was sent to last.
    last: u64,
}

/// A group of the subnet.
#[derive(Debug)]
struct Joined {
    /// Those of the link that it stands for.
    groups: Vec<Held>,
    way: RawDest,
    /// The LID that the queue pair hears.
    heard: Option<Lid>,
    /// Perhaps nothing of it comes any more.
    is_lost: bool,
    /// Keeps the membership at the SA. With it the group is left.
    _keeper: Option<DropGuard>,
}

/// A group of the link that was joined.
#[derive(Debug)]
struct Held {
    group: Group,
    /// Why nothing of it comes any more, until somebody was told.
    untold: Option<Arc<RawError>>,
}

impl Groups {
    pub(super) fn new(port: &Arc<SubnetPort>, queue: &Arc<Queue>) -> Arc<Self> {
        let (port, queue) = (port.clone(), Arc::downgrade(queue));
        Arc::new(Self { port, queue, bound: SENT_TO, state: Mutex::default(), losses: Notify::new() })
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
            self.state().joined.get(&mgid).is_some_and(|joined| joined.place(group).is_some())
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
        if let Some(joined) = state.joined.get(&mgid).filter(|joined| !joined.is_lost) {
            return Ok(joined.way);
        }
        state.sends += 1;
        let now = state.sends;
        if let Some(sent_to) = state.sent_to.get_mut(&mgid)
            && sent_to.is_there()
        {
            sent_to.last = now;
            return Ok(way(&sent_to.membership));
        }
        self.port.local(mgid)?.ok_or(NotSent::NoWay)
    }

    /// Finds the way to a group that was not joined, or is lost: the SA knows it.
    pub(super) async fn find(&self, group: &Group) -> Result<(), RawError> {
        let mgid = mgid(group)?;
        if self.state().joined.contains_key(&mgid) {
            let membership = self.ask(group, mgid).await?;
            return self.moved(mgid, way(&membership));
        }
        // Nobody need be in it: it is made for what is sent, as a link has every group.
        let join = self.sa(group).await?.join(mgid).send_only_full().or_create(made());
        let membership = join.await.map_err(no_way)?;
        let mut state = self.state();
        if state.sent_to.len() >= self.bound {
            let idle = state.sent_to.iter().min_by_key(|(_, sent_to)| sent_to.last).map(|(mgid, _)| *mgid);
            idle.and_then(|idle| state.sent_to.remove(&idle));
        }
        let last = state.sends;
        state.sent_to.insert(mgid, SentTo { membership, is_lost: false, last });
        Ok(())
    }

    /// The SA, which makes the group if there is none.
    async fn sa(&self, group: &Group) -> Result<ibsa::Client, RawError> {
        let client = sa::client(&self.port).await?;
        if matches!(group, Group::Ipv6(_)) && self.state().all.is_none() {
            let join = client.join(BROADCAST).or_create(ibsa::Group::new(IPOIB_Q_KEY));
            let all = join.await.map_err(no_way)?;
            self.state().all = Some(all);
        }
        Ok(client)
    }

    /// Asks the SA to be in a group. It is asked once for a port: who asks while that is in the group hears so at once, and while the
    /// group is lost it waits for the answer as the first one did.
    async fn ask(&self, group: &Group, mgid: Gid) -> Result<Membership, RawError> {
        self.sa(group).await?.join(mgid).or_create(made()).await.map_err(no_way)
    }

    /// One at a time.
    pub(super) async fn join(self: &Arc<Self>, group: &Group) -> Result<(), RawError> {
        let mgid = mgid(group)?;
        let (membership, way) = match self.port.local(mgid)? {
            Some(way) => (None, way),
            None => {
                let membership = self.ask(group, mgid).await?;
                let way = way(&membership);
                (Some(membership), way)
            }
        };
        let mut state = self.state();
        if let Some(joined) = state.joined.get_mut(&mgid) {
            joined.move_to(way, mgid, &*self.queue()?)?;
            joined.groups.push(Held { group: *group, untold: None });
            return Ok(());
        }
        self.queue()?.attach(mgid, way.dlid)?;
        let _keeper = membership.map(|membership| {
            let end = CancellationToken::new();
            let (ends, groups) = (end.clone(), Arc::downgrade(self));
            self.port
                .device
                .spawn(async move { _ = ends.run_until_cancelled(keep(groups, membership)).await });
            end.drop_guard()
        });
        let groups = vec![Held { group: *group, untold: None }];
        state.joined.insert(mgid, Joined { groups, way, heard: Some(way.dlid), is_lost: false, _keeper });
        Ok(())
    }

    pub(super) fn leave(&self, group: &Group) -> Result<(), RawError> {
        let mgid = mgid(group)?;
        let mut state = self.state();
        let Some(joined) = state.joined.get_mut(&mgid) else { return Err(RawError::NotMember(*group)) };
        // Two groups of a link may be one here: each has its own entry.
        let at = joined.place(group).ok_or(RawError::NotMember(*group))?;
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
        match self.state().joined.get_mut(&mgid) {
            Some(joined) => joined.move_to(now, mgid, &*self.queue()?),
            None => Ok(()),
        }
    }

    /// The group is there now, or is not to be had for this reason, which is said to who receives.
    pub(super) fn follow(&self, mgid: Gid, now: Result<RawDest, RawError>) {
        let Err(why) = now.and_then(|now| self.moved(mgid, now)) else { return };
        if let Some(joined) = self.state().joined.get_mut(&mgid) {
            joined.is_lost = true;
            let why = Arc::new(why);
            joined.groups.iter_mut().for_each(|held| held.untold = Some(why.clone()));
        }
        self.losses.notify_one();
    }

    /// A group of which nothing comes any more, and that nobody was told of: once it has been lost.
    pub(super) async fn loss(&self) -> RawError {
        loop {
            let lost = {
                let mut state = self.state();
                let mut held = state.joined.values_mut().flat_map(|joined| &mut joined.groups);
                held.find_map(|held| Some((held.group, held.untold.take()?)))
            };
            if let Some((group, source)) = lost {
                self.losses.notify_one(); // there may be more, for others who wait
                return RawError::GroupLost { group, source };
            }
            self.losses.notified().await;
        }
    }
}

impl Joined {
    fn place(&self, group: &Group) -> Option<usize> {
        self.groups.iter().position(|held| held.group == *group)
    }

    /// The queue pair hears the group where it is now.
    fn move_to(&mut self, now: RawDest, mgid: Gid, queue: &Queue) -> Result<(), RawError> {
        self.way = now;
        if self.heard != Some(now.dlid) {
            let hears = queue.attach(mgid, now.dlid);
            if let Some(before) = self.heard.take() {
                queue.detach(mgid, before)?;
            }
            if hears.is_err() {
                queue.attach(mgid, now.dlid)?; // there may be room for it now
            }
            self.heard = Some(now.dlid);
        }
        self.is_lost = false;
        self.groups.iter_mut().for_each(|held| held.untold = None);
        Ok(())
    }
}

impl SentTo {
    /// Whether the port is in the group where it was last, as far as is known.
    fn is_there(&mut self) -> bool {
        // Also for a task whose turn is over.
        let changed = unconstrained(self.membership.changed());
        if let Poll::Ready(changed) = pin!(changed).poll(&mut Context::from_waker(Waker::noop())) {
            self.is_lost = changed.is_err();
        }
        !self.is_lost
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
    not_asked(error, RawError::InvalidDest("the subnet has no such group, or the SA refuses it"))
}

impl SubnetPort {
    /// The way to a group as the subnet's own table has it; `None` where that is the SA's affair.
    fn local(&self, mgid: Gid) -> Result<Option<RawDest>, RawError> {
        self.attr()?;
        Ok(self.device.resolve(self.port, mgid).map(|path| dest(&path)))
    }
}
