//! Subscriptions: what happens in the subnet.

use std::collections::{BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_core::Stream;
use ibwire::Gid;
use ibwire::Qpn;
use ibwire::mad::Method;

use super::Client;
use super::keep::{Backoff, LEAVE, spread};
use super::shared::{Owner, Shared, State};
use crate::proto::client::{QueryError, Request};
use crate::record::{self, InformInfo, NoticeDetails, Template};

/// A trap that IBTA defines (IBTA vol. 1, 14.2.5.1; spec/sa.md 3.19).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Trap(pub u16);

impl Trap {
    /// A port came into service.
    pub const GID_IN: Self = Self(64);
    /// A port went out of service.
    pub const GID_OUT: Self = Self(65);
    /// A multicast group was created.
    pub const GROUP_CREATED: Self = Self(66);
    /// A multicast group was deleted.
    pub const GROUP_DELETED: Self = Self(67);
    /// The link of a switch's port changed its state.
    pub const LINK_STATE: Self = Self(128);
    /// The capabilities of a port changed.
    pub const CAPABILITIES: Self = Self(144);
    /// The GUID of a system changed.
    pub const SYSTEM_IMAGE_GUID: Self = Self(145);
}

/// What a subscription tells.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A port came into service.
    GidIn(Gid),
    /// A port went out of service.
    GidOut(Gid),
    /// A multicast group was created.
    GroupCreated(Gid),
    /// A multicast group was deleted.
    GroupDeleted(Gid),
    /// Something else; [`details`](record::Notice::details) reads it.
    Other(Box<record::Notice>),
    /// The subnet manager has changed, or asked for it: the subscription was made again. Notices may be missing, so ask
    /// for what they would have told.
    Resubscribed,
    /// The reader was slow: so many notices were dropped here.
    Lagged(u64),
}

/// Notices that wait for one reader, at most.
const WAITING: usize = 256;

/// A subscription to some traps: a stream of notices, each acknowledged and told once. It lives through changes of the SM.
/// Ends with the client.
///
/// Dropped, the subscription ends in the background, unless others of this port want the same traps.
#[derive(Debug)]
#[must_use = "dropped, the subscription ends"]
pub struct Notices {
    feed: Arc<Feed>,
    shared: Arc<Shared>,
    _owner: Arc<Owner>,
}

/// What waits for one reader.
#[derive(Debug)]
pub(super) struct Feed {
    traps: BTreeSet<Trap>,
    state: Mutex<FeedState>,
}

#[derive(Debug, Default)]
struct FeedState {
    waiting: VecDeque<Notice>,
    lagged: u64,
    ended: bool,
    waker: Option<Waker>,
}

impl Feed {
    fn change(&self, f: impl FnOnce(&mut FeedState)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        f(&mut state);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    fn push(&self, notice: Notice) {
        self.change(|state| {
            if state.waiting.len() == WAITING {
                state.waiting.pop_front();
                state.lagged += 1;
            }
            state.waiting.push_back(notice);
        });
    }

    pub(super) fn tell(&self, notice: &record::Notice) {
        self.push(match notice.details() {
            NoticeDetails::GidIn(gid) => Notice::GidIn(gid),
            NoticeDetails::GidOut(gid) => Notice::GidOut(gid),
            NoticeDetails::GroupCreated(gid) => Notice::GroupCreated(gid),
            NoticeDetails::GroupDeleted(gid) => Notice::GroupDeleted(gid),
            _ => Notice::Other(Box::new(notice.clone())),
        });
    }

    pub(super) fn end(&self) {
        self.change(|state| state.ended = true);
    }
}

/// Subscriptions of one client.
#[derive(Debug, Default)]
pub(super) struct Feeds {
    feeds: Vec<Arc<Feed>>,
    /// They are being made again.
    renewing: bool,
    /// And have to be once more.
    again: bool,
    /// Subscriptions that are being given up.
    ending: usize,
}

impl Feeds {
    fn remove(&mut self, feed: &Arc<Feed>) {
        self.feeds.retain(|one| !Arc::ptr_eq(one, feed));
    }

    /// Whether somebody wants this trap.
    fn want(&self, trap: Trap) -> bool {
        self.feeds.iter().any(|feed| feed.traps.contains(&trap))
    }

    /// Who wants a notice.
    pub(super) fn of(&self, notice: &record::Notice) -> Vec<Arc<Feed>> {
        let trap = Trap(notice.trap_or_device);
        let wants = |feed: &&Arc<Feed>| notice.is_generic && feed.traps.contains(&trap);
        self.feeds.iter().filter(wants).cloned().collect()
    }

    pub(super) fn all(&self) -> Vec<Arc<Feed>> {
        self.feeds.clone()
    }

    /// Nobody wants any of them any more; the traps that somebody did.
    pub(super) fn abandon(&mut self) -> BTreeSet<Trap> {
        let traps = self.traps();
        self.feeds.clear();
        traps
    }

    pub(super) const fn are_ending(&self) -> bool {
        self.ending > 0
    }

    /// All traps that somebody wants.
    fn traps(&self) -> BTreeSet<Trap> {
        self.feeds.iter().flat_map(|feed| feed.traps.iter().copied()).collect()
    }
}

impl Client {
    /// Subscribes to traps. Done when the SA has confirmed all of them.
    ///
    /// # Errors
    /// [`QueryError`]; then there is no subscription.
    ///
    /// # Cancel safety
    /// Dropped, what was subscribed to is given up in the background.
    pub async fn subscribe(&self, traps: impl IntoIterator<Item = Trap>) -> Result<Notices, QueryError> {
        self.shared.open().await?;
        let feed = Arc::new(Feed { traps: traps.into_iter().collect(), state: Mutex::default() });
        {
            let mut state = self.shared.lock();
            state.takes_more()?;
            state.feeds.feeds.push(Arc::clone(&feed));
        }
        let (shared, owner) = (Arc::clone(&self.shared), Arc::clone(&self._owner));
        let notices = Notices { feed, shared, _owner: owner };
        for trap in &notices.feed.traps {
            inform(&notices.shared, *trap, true).await?;
        }
        Ok(notices)
    }
}

/// Subscribes to a trap, or ends that. Again what is there already, it changes nothing.
async fn inform(shared: &Arc<Shared>, trap: Trap, subscribe: bool) -> Result<(), QueryError> {
    let info = InformInfo { subscribe: subscribe.into(), qpn: Qpn::GSI, ..InformInfo::trap(trap.0) };
    let request = Request::new(Method::SET, Template::with_mask(info, 0), shared.deadline())?;
    shared.request(request).await.map(drop)
}

/// Makes all subscriptions again after the SM has changed, one run at a time, until the SA has confirmed all of them.
pub(super) async fn renew(shared: Arc<Shared>) {
    {
        let feeds = &mut shared.lock().feeds;
        feeds.again = true;
        if std::mem::replace(&mut feeds.renewing, true) {
            return;
        }
    }
    let mut backoff = Backoff::default();
    loop {
        // No feed is held while it waits: whoever is dropped meanwhile ends his subscription.
        let rest = {
            let mut state = shared.lock();
            let State { feeds, rng, end, .. } = &mut *state;
            if !feeds.again || end.is_some() || feeds.traps().is_empty() {
                feeds.renewing = false;
                return;
            }
            spread(rng)
        };
        tokio::time::sleep(rest).await;
        let traps = {
            let feeds = &mut shared.lock().feeds;
            feeds.again = false;
            feeds.traps()
        };
        let mut failed = false;
        for trap in traps {
            if shared.lock().feeds.want(trap)
                && let Err(error) = inform(&shared, trap, true).await
            {
                tracing::warn!(port = shared.port, trap = trap.0, %error, "a subscription was not made again");
                failed = true;
            }
        }
        if !failed {
            let feeds = shared.lock().feeds.all();
            feeds.iter().for_each(|feed| feed.push(Notice::Resubscribed));
            backoff.reset();
            continue;
        }
        let rest = {
            let mut state = shared.lock();
            state.feeds.again = true;
            backoff.next(&mut state.rng)
        };
        tokio::time::sleep(rest).await;
    }
}

impl Stream for Notices {
    type Item = Notice;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Notice>> {
        let mut state = self.feed.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.lagged > 0 {
            return Poll::Ready(Some(Notice::Lagged(std::mem::take(&mut state.lagged))));
        }
        if let Some(notice) = state.waiting.pop_front() {
            return Poll::Ready(Some(notice));
        }
        if state.ended {
            return Poll::Ready(None);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Ends the subscriptions to these traps in the background, but for those that somebody wants. An SA that does not hear it
/// repeats its reports, which are acknowledged, a few times.
pub(super) fn unsubscribe(shared: &Arc<Shared>, owner: &Arc<Owner>, traps: BTreeSet<Trap>) {
    let Some(runtime) = shared.runtime() else { return };
    shared.lock().feeds.ending += 1;
    let (ending, owner) = (Ending(Arc::clone(shared)), Arc::clone(owner));
    runtime.spawn(async move {
        let shared = &ending.0;
        for trap in traps {
            if shared.lock().feeds.want(trap) {
                continue;
            }
            let ended = tokio::time::timeout(LEAVE, inform(shared, trap, false)).await;
            tracing::debug!(port = shared.port, trap = trap.0, ?ended, "a subscription ends");
            // Who has come meanwhile may have been overtaken.
            if shared.lock().feeds.want(trap) {
                _ = inform(shared, trap, true).await;
            }
        }
        drop(ending);
        drop(owner);
    });
}

/// A subscription that is being given up.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.lock().feeds.ending -= 1;
        self.0.given_up.notify_waiters();
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        self.shared.lock().feeds.remove(&self.feed);
        unsubscribe(&self.shared, &self._owner, self.feed.traps.clone());
    }
}
